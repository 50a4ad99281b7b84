"""A timer on a host's clock: all tasks behind one `call_later`, for the next bucket's time.

For one thread, that on which the clock runs its callbacks. So the broker's core has a million timers on a real host and
in the simulator alike, and the clock has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller.clock import Timer as Wake
from controller.timer.report import log_failure
from controller.timer.task import TimerTask
from controller.timer.wheel import NEVER_MS, TimerError, TimingWheel

AT_ONCE = 1_000
"""How many tasks run before others whom the clock calls have their turn."""


class Wakes(Protocol):
    """What of a `controller.clock.Clock` is needed."""

    def now_ms(self) -> float: ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Wake: ...


class TimerOnClock:
    """A timer whose tasks run in the clock's callbacks, never inside `start`, up to a tick early, as Kafka's do.

    Call `close` before the clock stops if no task may run after that."""

    def __init__(
        self,
        clock: Wakes,
        tick_ms: int = 1,
        wheel_size: int = 20,
        on_error: Callable[[TimerTask, Exception], None] = log_failure,
    ) -> None:
        self._clock = clock
        self._on_error = on_error
        self._wheel = TimingWheel(tick_ms, wheel_size, self._now_ms())
        self._handle: Wake | None = None
        self._armed_ms = NEVER_MS
        self._closed = False
        self._pending = 0

    def __len__(self) -> int:
        """Tasks that are pending."""
        return self._pending

    def start(self, task: TimerTask, delay_ms: int) -> None:
        """The task will be run `delay_ms` from now; if that is past already, as soon as the clock calls.
        AlreadyStarted; TimerError: the timer is closed."""
        if self._closed:
            raise TimerError(f"{task!r} was started on a timer that is closed")
        wheel = self._wheel
        wheel.start(task, self._now_ms() + delay_ms - wheel.now_ms)
        self._pending += 1
        if wheel.next_ms < self._armed_ms:
            self._arm()

    def cancel(self, task: TimerTask) -> bool:
        """True: it was pending, and will not run. False: it has run, is running or was cancelled."""
        cancelled = self._wheel.cancel(task)
        self._pending -= cancelled
        return cancelled

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        """As `start`, wherever in this timer the task is."""
        self.cancel(task)
        self.start(task, delay_ms)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> TimerTask:
        """A new task that calls `callback`, started."""
        task = TimerTask(callback)
        self.start(task, delay_ms)
        return task

    def close(self) -> None:
        """Nothing is run any more; what is pending stays so. Safe to call twice."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _now_ms(self) -> int:
        return int(self._clock.now_ms())

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_ms = self._wheel.next_ms
        self._handle = None
        if self._armed_ms < NEVER_MS:
            self._handle = self._clock.call_later(max(self._armed_ms - self._clock.now_ms(), 0.0), self._run)

    def _run(self) -> None:
        self._armed_ms = -1  # nothing that is started meanwhile needs to arm
        try:
            for _ in range(AT_ONCE):
                task = self._next()
                if task is None:
                    return
                self._pending -= 1
                try:
                    task.run()
                except Exception as error:  # noqa: BLE001 - whatever a task raises, the others run
                    self._on_error(task, error)
        finally:  # also if `on_error` raised
            if not self._closed:
                self._arm()

    def _next(self) -> TimerTask | None:
        wheel = self._wheel
        task = None
        while not self._closed and (task := wheel.take()) is None and wheel.turn(self._now_ms()):
            pass
        return task
