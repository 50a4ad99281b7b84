"""Operations that were handed in one after another, in one tick and for one time: for the timer they are one task.

Most operations are over long before their time, and to start and to cancel each in the timer costs much of what a
purgatory does with it. One of a cohort is appended to a list, and leaves the timer by saying so. The cohort lies in the
timer until its time, or until a purge finds that all in it have ended.

For one thread; knows no host. Who may be in one is the purgatory's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.timer.operation import PENDING
from controller.timer.task import IN_BUNDLE, Bundle, TimerTask


class Cohort(Bundle):
    """`members`, in the order in which they came. Those that are `IN_BUNDLE` expire with it. There may be others, who
    are in the timer by themselves or in none: they only stand here until they are entered under their keys."""

    __slots__ = ("entered", "members", "released", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        super().__init__()
        self.timeout_ms = timeout_ms
        self.members: list[Any] = []
        self.entered = 0
        """So many of them, the first, have been entered under their keys."""
        self.released = 0
        """How many it has let go since the last purge, when its time had come: they had ended."""

    def in_timer(self) -> list[Any]:
        return [operation for operation in self.members if operation._next is IN_BUNDLE]

    def count(self) -> int:
        return len(self.in_timer())

    def fire(self, on_error: Callable[[TimerTask, Exception], None]) -> int:
        fired = 0
        members = self.members
        others: list[Any] = []
        for operation in members:  # a purge that comes meanwhile makes another list
            if operation.state is PENDING:
                if operation._next is IN_BUNDLE:  # else one before it has cancelled it in the timer, or restarted it
                    fired += 1
                    try:
                        operation.run()
                    except Exception as error:  # noqa: BLE001 - whatever one raises, the others run
                        on_error(operation, error)
                else:
                    others.append(operation)
        before = len(self.members)
        if self.entered or self.members is not members:
            self.sweep()
        else:
            self.members = others
        self.released += before - len(self.members)
        return fired

    def sweep(self) -> int:
        """Leaves out those that have ended; how many keys those watched that had not been entered."""
        entered, gone = self.entered, 0
        left = [operation for operation in self.members[:entered] if operation.state is PENDING] if entered else []
        self.entered = len(left)
        for operation in self.members[entered:] if entered else self.members:
            if operation.state is PENDING:
                left.append(operation)
            else:
                gone += len(operation.watches)
        self.members = left
        return gone
