"""Cohorts for threads: operations that were handed in in one millisecond and for one time are one task of a timer with
a thread, and who is handed in joins without a lock.

To join is to append oneself and *then* to look whether the cohort is over; who closes it says that it is over and
*then* looks who is in it. So either the one sees the other's entry, or the other sees that he has to stand elsewhere.
To stand in two cohorts does no harm, since an operation ends once.

One of a cohort is `IN_COHORT`, and in the timer while it is pending besides: so to end is to leave. That mark is set
before anybody else knows of the operation, and from then on changed under the timer's lock alone.

No host's clock is read here. Who may be in one is the purgatory's to say, who has been entered under its keys the watch
lists'.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from controller.timer.operation import PENDING
from controller.timer.task import IN_COHORT, TimerTask

NS_PER_MS: Final = 1_000_000
NO_TIMEOUT_MS: Final = -(1 << 62)
"""Of those who stand together and are in the timer each by itself, or in none."""


class RunsCohorts(Protocol):
    """The timer that a cohort is a task of, on whose thread it runs."""

    def run_of_cohort(self, task: TimerTask) -> None:
        """Runs one of its members, unless that one is in the timer no more."""

    def forget(self, cohort: ThreadedCohort) -> bool:
        """It has run. False: the timer was closed meanwhile, and who is left in it is in the timer."""


class LetsGo(Protocol):
    """The watch lists of a cohort's purgatory."""

    def let_go(self, cohort: ThreadedCohort) -> None:
        """Its time has come, and all in it have run."""


class ThreadedCohort(TimerTask):
    """`members`, in the order in which they came, are only ever appended to, but for sweeps, which assign to the slice
    that they have looked through. Among them may be some that are no `IN_COHORT`: they only stand here until they are
    entered under their keys."""

    __slots__ = ("_lists", "_timer", "entered", "members", "opened_ms", "out", "over", "timeout_ms", "until_ns")

    def __init__(
        self,
        lists: LetsGo | None = None,
        timer: RunsCohorts | None = None,
        opened_ms: int = 0,
        timeout_ms: int = NO_TIMEOUT_MS,
    ) -> None:
        super().__init__()
        self._lists = lists
        self._timer = timer
        self.opened_ms = opened_ms
        self.until_ns = (opened_ms + 1) * NS_PER_MS
        """On the timer's clock: who is handed in before that, with that timeout, may join."""
        self.timeout_ms = timeout_ms
        self.members: list[Any] = []
        self.entered = 0
        """So many of them, the first, have been entered under their keys."""
        self.over = False
        """Who comes must stand elsewhere."""
        self.out = timer is None
        """In no timer any more, or never: who is entered need not stand here."""

    def in_timer(self) -> list[Any]:
        return [operation for operation in self.members[:] if operation._next is IN_COHORT and operation.pending]

    def run(self) -> None:
        """On the timer's thread. Should the timer be closed meanwhile, those that are left stay in it."""
        self.over = True
        timer, lists = self._timer, self._lists
        assert timer is not None
        assert lists is not None
        for operation in self.members[:]:  # a later thread sees that it is over
            if operation.state is PENDING:
                timer.run_of_cohort(operation)
        if timer.forget(self):
            lists.let_go(self)
