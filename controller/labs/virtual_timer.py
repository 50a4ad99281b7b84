"""A timer whose clock is moved by hand: one thread, no lock, the same order each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from controller.log import logger
from controller.timer.wheel import COMPILED, NOWHERE, TimerTask, TimingWheel, mypyc_attr

if TYPE_CHECKING:
    from mypy_extensions import i64


def log_failure(task: TimerTask, error: Exception) -> None:
    logger.opt(exception=error).error("a timer's task failed: {!r}", task)


@mypyc_attr(free_list_len=1)
class CallbackTask(TimerTask):
    """What a timer makes itself, for a callback. Compiled, the memory of one that is over is kept for the next."""

    __slots__ = ()


# In Python, an __init__ of its own is a third of the cost of making a task and starting it: this has object's again.
BareTask: type[CallbackTask] = (
    CallbackTask
    if COMPILED
    else type("CallbackTask", (CallbackTask,), {"__slots__": (), "__init__": object.__init__, "__module__": __name__})
)


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

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> TimerTask:
        """A new task that calls `callback`, started: as `start`, whose lines are here again, without what a new
        task needs not be asked. Making one and starting it takes a third longer."""
        if COMPILED:
            task = CallbackTask(callback)
        else:
            task = BareTask()
            task._callback = callback
        due_ms: i64 = self.now_ms + delay_ms
        task._due_ms = due_ms
        if due_ms < self._soonest_ms and self._sooner(task, delay_ms):
            return task
        fresh = self._fresh
        last = fresh._previous
        task._previous = last
        task._next = fresh
        fresh._previous = last._next = task
        return task

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
