"""Holds threads at sync points (`controller/sync_points.py`): a test stops one between two steps and lets others go on.

The thread that comes to a held point waits until it is released, or until a limit that makes the test fail and not
hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from controller import sync_points
from controller.sync_points import POINTS

HOLD_LIMIT_S = 30.0


class UnknownPoint(Exception):
    """A name that is not among `POINTS`."""


class NotReached(AssertionError):
    """No thread came to a point in time."""


class HeldTooLong(AssertionError):
    """A thread was not released in time, and went on by itself: what the test saw after that proves nothing."""


@dataclass(eq=False)
class Hold:
    """One thread held once, at one point. As a context manager it waits for the thread, and releases it."""

    point: str
    nth: int
    thread: str | None
    limit_s: float
    overdue: bool = False
    _held: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Until a thread is held here. NotReached."""
        if not self._held.wait(self.limit_s):
            raise NotReached(f"no thread came to {self.point!r} (time {self.nth}) in {self.limit_s:g} s")

    @property
    def held(self) -> bool:
        return self._held.is_set() and not self._released.is_set()

    def release(self) -> None:
        """Lets the thread go on, or never holds it. Safe to call twice."""
        self._released.set()

    def __enter__(self) -> Hold:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def stay(self) -> None:
        """On the thread that came."""
        self._held.set()
        self.overdue = not self._released.wait(self.limit_s)


class Script:
    """What a test holds. `hold` may be called at any time; threads come from anywhere."""

    def __init__(self, limit_s: float = HOLD_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._pending: list[tuple[Hold, int]] = []
        self._holds: list[Hold] = []
        self._reached: dict[str, int] = {}

    def hold(self, point: str, *, nth: int = 1, thread: str | None = None) -> Hold:
        """Holds the thread that comes to `point` the `nth` time from now; `thread` counts only those of that name."""
        self._known(point)
        if nth < 1:
            raise ValueError(f"the {nth}th time that {point!r} is reached: expected 1 or more")
        hold = Hold(point, nth, thread, self._limit_s)
        with self._lock:
            self._pending.append((hold, nth))
            self._holds.append(hold)
        return hold

    def reached(self, point: str) -> int:
        """How often the point was reached, held there or not."""
        self._known(point)
        with self._lock:
            return self._reached.get(point, 0)

    def await_reached(self, point: str, times: int) -> None:
        """Until the point has been reached so often. NotReached."""
        deadline = time.monotonic() + self._limit_s
        while self.reached(point) < times:
            if time.monotonic() > deadline:
                raise NotReached(f"{point!r} reached {self.reached(point)} times in {self._limit_s:g} s, not {times}")
            time.sleep(0.001)

    def come(self, point: str) -> None:
        """On the thread that reaches the point. The earliest hold that waits for it takes it."""
        self._known(point)
        name = threading.current_thread().name
        taken: Hold | None = None
        with self._lock:
            self._reached[point] = self._reached.get(point, 0) + 1
            still: list[tuple[Hold, int]] = []
            for hold, left in self._pending:
                here = hold.point == point and hold.thread in (None, name)
                if here and left == 1 and taken is None:
                    taken = hold
                else:
                    still.append((hold, max(left - here, 1)))
            self._pending = still
        if taken is not None:
            taken.stay()

    def end(self) -> None:
        """Releases everybody. HeldTooLong."""
        with self._lock:
            self._pending.clear()
        for hold in self._holds:
            hold.release()
        overdue = [hold.point for hold in self._holds if hold.overdue]
        if overdue:
            raise HeldTooLong(f"held for {self._limit_s:g} s, then let go: {', '.join(overdue)}")

    @staticmethod
    def _known(point: str) -> None:
        if point not in POINTS:
            raise UnknownPoint(f"{point!r} is no point; there are {', '.join(map(repr, POINTS))}")


@contextmanager
def installed(script: Script) -> Iterator[Script]:
    """For the whole process, one at a time; everybody is released at its end. HeldTooLong, RuntimeError."""
    sync_points.install(script.come)
    try:
        yield script
    finally:
        sync_points.install(None)
        script.end()
