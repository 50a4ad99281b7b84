"""A host's clock whose timers hang on a wheel: `Clock.call_later` for a million of them.

The wheel runs a task up to a tick early, as Kafka's does; a clock must not, since what a lease or a deadline waits for
has then not happened. So a tick is added to what is asked for, and a timer runs up to two late.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from controller.clock import Clock
from controller.clock import Timer as ClockTimer
from controller.pending import Pending
from controller.timer.ports import Timer
from controller.timer.task import TimerTask


class _Task(TimerTask):
    __slots__ = ("_timer",)

    def __init__(self, timer: Timer, callback: Callable[[], None]) -> None:
        super().__init__(callback)
        self._timer = timer

    def cancel(self) -> None:
        self._timer.cancel(self)


class ClockOnTimer:
    """A clock that reads the time of `clock` and sets its timers on `timer`, whose ticks are `tick_ms` long and whose
    time advances at the same rate. Callbacks run where `timer` runs its tasks."""

    def __init__(self, clock: Clock, timer: Timer, tick_ms: int = 1) -> None:
        self._clock = clock
        self._timer = timer
        self._tick_ms = tick_ms

    def now_ms(self) -> float:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> ClockTimer:
        """Runs `callback` once, `delay_ms` from now or up to two ticks later; with 0 or less, as soon as the timer
        comes to it."""
        task = _Task(self._timer, callback)
        self._timer.start(task, math.ceil(delay_ms) + self._tick_ms if delay_ms > 0 else 0)
        return task

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending
