"""Time as the code sees it: a port, and its virtual form.

Times are milliseconds as floats, on a monotonic axis whose zero means nothing (`now_ms`); wall time is asked for
apart, and only to be written down (`wall_ms`). Nothing below the hosts reads another clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

from controller.pending import Pending


class Timer(Protocol):
    """What `call_later` gives back."""

    def cancel(self) -> None:
        """The callback will not run, if it has not yet. Safe to call twice."""


class Clock(Protocol):
    def now_ms(self) -> float:
        """Monotonic time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for what is written down; never compared with `now_ms`."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Runs `callback` once, `delay_ms` from now. It must not block."""

    def sleep(self, delay_ms: float) -> Pending[None]:
        """Answered `delay_ms` from now."""


class _VirtualTimer(list[Any]):
    """[due time, number, callback (None: cancelled, or fired)]: what the heap compares is the timer itself, so that
    setting one makes one object. Two never compare equal before their callbacks, which could not be compared."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class VirtualClock:
    """Time that passes only when it is told to. Timers fire in order of due time, then of being set.

    `wall_ms` is `epoch_ms` plus the virtual time, so that what is written down is repeatable too.
    """

    def __init__(self, now_ms: float = 0.0, epoch_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._epoch_ms = epoch_ms
        self._sequence = 0
        self._timers: list[_VirtualTimer] = []

    def now_ms(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._epoch_ms + int(self._now_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        if delay_ms < 0:
            raise ValueError(f"delay_ms {delay_ms}: expected 0 or more")
        self._sequence += 1
        timer = _VirtualTimer((self._now_ms + delay_ms, self._sequence, callback))
        heapq.heappush(self._timers, timer)
        return timer

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending

    def next_due_ms(self) -> float | None:
        """When the next timer is due; None when none is set."""
        timers = self._timers
        while timers and timers[0][2] is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def step(self) -> bool:
        """Moves to the next timer and fires it. False when none is set."""
        if self.next_due_ms() is None:
            return False
        timer = heapq.heappop(self._timers)
        due_ms, _, callback = timer
        timer[2] = None
        self._now_ms = max(self._now_ms, due_ms)
        callback()
        return True

    def advance_to(self, now_ms: float) -> None:
        """Fires everything that is due up to and including `now_ms`, and ends there."""
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            self.step()
        self._now_ms = max(self._now_ms, now_ms)

    def run_until(self, condition: Callable[[], bool], limit_ms: float) -> bool:
        """Fires timers one by one until `condition` holds (True), none is left or `limit_ms` is reached (False)."""
        timers, pop = self._timers, heapq.heappop  # as `step`, without a call of our own a timer
        while not condition():
            while timers and timers[0][2] is None:
                pop(timers)
            if not timers or timers[0][0] > limit_ms:
                return False
            timer = pop(timers)
            due_ms, _, callback = timer
            timer[2] = None
            if due_ms > self._now_ms:
                self._now_ms = due_ms
            callback()
        return True
