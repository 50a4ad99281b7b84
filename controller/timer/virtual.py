"""A timer whose clock is moved by hand: one thread, no lock, the same order each time."""

from __future__ import annotations

from collections.abc import Callable

from controller.timer.report import log_failure
from controller.timer.task import NOWHERE, Bundle, TimerTask
from controller.timer.wheel import TimingWheel


class VirtualTimer(TimingWheel):
    """Runs tasks inside `advance_to` (and inside `start`, those that are due already), tick by tick: while a task of
    a tick runs, `now_ms` is that tick, however far the clock is to go. In a tick, tasks run in the order in which
    they were started; one that is started by a task for the current tick runs after all others of it.

    `on_error` is called for a task that raised an Exception; the others still run.
    """

    __slots__ = ("_on_error", "_running")

    def __init__(
        self,
        tick_ms: int = 1,
        wheel_size: int = 20,
        start_ms: int = 0,
        on_error: Callable[[TimerTask, Exception], None] = log_failure,
    ) -> None:
        super().__init__(tick_ms, wheel_size, start_ms)
        self._on_error = on_error
        self._running = False

    def advance_to(self, now_ms: int) -> int:
        """Runs what is due up to and including `now_ms`; how many that were. ValueError: the clock is beyond it.
        RuntimeError: called by a task."""
        if now_ms < self.now_ms:
            raise ValueError(f"advance to {now_ms} ms: the clock is at {self.now_ms} ms and does not go back")
        if self._running:
            raise RuntimeError("advance_to was called by a task: the clock is moving already")
        fired = self._run_ready()
        while self.turn(now_ms):
            fired += self._run_ready()
        return fired

    def _due_at_once(self) -> None:
        if not self._running:
            self._run_ready()

    def _run_ready(self) -> int:
        ready = self._ready
        fired = 0
        self._running = True
        try:
            while (task := ready._next) is not ready:  # read anew each time: a task may cancel its neighbours
                assert task is not None
                following = task._next
                assert following is not None
                ready._next = following
                following._previous = ready
                task._next = None
                task._previous = NOWHERE
                callback = task._callback
                if callback is None and isinstance(task, Bundle):
                    fired += self._fire(task)
                    continue
                fired += 1
                try:
                    if callback is None:
                        task.run()
                    else:
                        callback()
                except Exception as error:  # noqa: BLE001 - whatever a task raises, the others run
                    self._on_error(task, error)
        finally:
            self._running = False
        return fired

    def _fire(self, bundle: Bundle) -> int:
        """It stands first until all in it have run: should one end the program, the others are ready still."""
        ready = self._ready
        first = ready._next
        assert first is not None
        bundle._previous = ready
        bundle._next = first
        ready._next = first._previous = bundle
        fired = bundle.fire(self._on_error)
        self.cancel(bundle)
        return fired
