"""A timer with a thread of its own, which sleeps until the next bucket's time and runs what is due.

One lock guards the wheel; it is held to start, to cancel and to take one task, never while a task runs (S57). Time is
the machine's monotonic clock, in whole milliseconds since an arbitrary zero, so a step of the wall clock moves nothing
(S61).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from controller import sync_points
from controller.labs.virtual_timer import log_failure
from controller.timer.wheel import NEVER_MS, TimerError, TimerTask, TimingWheel

AWAKE = -1  # `_sleeps_until_ms` of a thread that will look at the wheel again before it sleeps
CLOSING_LIMIT_S = 10.0


class TimerClosed(TimerError):
    """A task was started on a timer that has been closed."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Task(TimerTask):
    """A callback that any thread may cancel."""

    __slots__ = ("_timer",)

    def __init__(self, timer: ThreadTimer, callback: Callable[[], None]) -> None:
        super().__init__(callback)
        self._timer = timer

    def cancel(self) -> None:
        self._timer.cancel(self)


class ThreadTimer:
    """Tasks may be started, cancelled and restarted from any thread, and run one after another on the timer's own: a
    slow one delays the others. They run up to a tick early, as Kafka's do, since both the clock and the due time are
    clipped. Not for signal handlers and finalizers, which may come while their own thread holds the lock.

    The thread is a daemon, and sleeps while nothing is due. `clock_ms` must be monotonic.
    """

    def __init__(
        self,
        tick_ms: int = 1,
        wheel_size: int = 20,
        on_error: Callable[[TimerTask, Exception], None] = log_failure,
        *,
        name: str = "timer",
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._clock_ms = clock_ms
        self._on_error = on_error
        self._lock = threading.Lock()
        # `with` takes twice as long as these two.
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._wanted = threading.Condition(self._lock)
        self._wheel = TimingWheel(tick_ms, wheel_size, clock_ms())
        self._sleeps_until_ms = AWAKE
        self._closed = False
        self._pending = 0
        self.wakes = 0
        """How often the thread has looked at the wheel after a sleep: an idle timer's does not grow."""
        self._thread = threading.Thread(target=self._reap, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Tasks that are pending."""
        return self._pending

    def __enter__(self) -> ThreadTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, task: TimerTask, delay_ms: int) -> None:
        """The task will be run `delay_ms` from now; if that is past already, as soon as the thread comes to it.
        AlreadyStarted, TimerClosed."""
        self._acquire()
        try:
            self._start(task, delay_ms)
        finally:
            self._release()

    def cancel(self, task: TimerTask) -> bool:
        """True: it was pending, and will not run. False: it has run, is running (or is about to), or was cancelled."""
        self._acquire()
        try:
            return self._cancel(task)
        finally:
            self._release()

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        """As `start`, wherever in this timer the task is. A task that is running may be restarted; it runs again."""
        with self._lock:
            self._cancel(task)
            self._start(task, delay_ms)

    def close(self, limit_s: float = CLOSING_LIMIT_S) -> None:
        """Nothing is run any more once this returns; what is pending stays so, and can be cancelled. From a task it
        returns at once. Safe to call twice. TimeoutError: a task is still running after `limit_s`."""
        with self._lock:
            self._closed = True
            self._wanted.notify()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TimeoutError(f"a task of {self._thread.name} is still running after {limit_s:g} s")

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> TimerTask:
        """A new task that calls `callback`, started."""
        task = _Task(self, callback)
        self.start(task, delay_ms)
        return task

    # What follows is done under the lock, or on the timer's thread.

    def _start(self, task: TimerTask, delay_ms: int) -> None:
        if self._closed:
            raise TimerClosed(f"{task!r} was started on a timer that is closed")
        wheel = self._wheel
        wheel.start(task, self._clock_ms() + delay_ms - wheel.now_ms)
        self._pending += 1
        if wheel.next_ms < self._sleeps_until_ms:
            self._sleeps_until_ms = AWAKE
            self._wanted.notify()

    def _cancel(self, task: TimerTask) -> bool:
        if not self._wheel.cancel(task):
            return False
        self._pending -= 1
        return True

    def _reap(self) -> None:
        try:
            while (task := self._next()) is not None:
                self._run(task)
        finally:
            self._closed = True  # a thread that was ended by a task's SystemExit, say, must not be waited for

    def _run(self, task: TimerTask) -> None:
        sync_points.reach("timer: task taken")
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 - whatever a task raises, the others run
            self._report(task, error)

    def _next(self) -> TimerTask | None:
        """Sleeps until a task is due. None: the timer is closed."""
        wheel = self._wheel
        self._acquire()
        try:
            while not self._closed:
                task = wheel.take()
                if task is not None:
                    self._pending -= 1
                    return task
                if not wheel.turn(self._clock_ms()):
                    self._sleep()
            return None
        finally:
            self._release()

    def _sleep(self) -> None:
        until_ms = self._sleeps_until_ms = self._wheel.next_ms
        self._wanted.wait(None if until_ms == NEVER_MS else max(until_ms - self._clock_ms(), 0) / 1_000)
        self._sleeps_until_ms = AWAKE
        self.wakes += 1

    def _report(self, task: TimerTask, error: Exception) -> None:
        try:
            self._on_error(task, error)
        except Exception as second:  # noqa: BLE001 - `on_error` itself raised: both errors are logged
            log_failure(task, error)
            log_failure(task, second)
