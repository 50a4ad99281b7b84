"""A timer with a thread, without its thread: whoever advances it runs what is due, so that tests know when."""

from __future__ import annotations

from controller.timer import TimerTask
from controller.timer.threaded import ThreadTimer
from controller.timer.threaded_cohort import NS_PER_MS, ThreadedCohort


class Driven(ThreadTimer):
    """Runs what is due in `advance_to`, tick by tick, and at once what is due already, as a virtual timer does."""

    def __init__(self) -> None:
        self.at_ms = 0
        self._running = False
        super().__init__(clock_ns=lambda: self.at_ms * NS_PER_MS)
        self._thread.join()
        self._closed = False

    def _reap(self) -> None:
        return None

    def start(self, task: TimerTask, delay_ms: int) -> None:
        super().start(task, delay_ms)
        self._run_due()

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        super().restart(task, delay_ms)
        self._run_due()

    def start_cohort(self, cohort: ThreadedCohort) -> None:
        super().start_cohort(cohort)
        self._run_due()

    def advance_to(self, now_ms: int) -> None:
        for at_ms in range(self.at_ms + 1, now_ms + 1):
            self.at_ms = at_ms
            self._run_due()

    def _run_due(self) -> None:
        if self._running:
            return
        self._running = True
        try:
            while (task := self._due()) is not None:
                self._run(task)
        finally:
            self._running = False

    def _due(self) -> TimerTask | None:
        with self._lock:
            while True:
                task = self._wheel.take()
                if task is not None:
                    self._pending -= 1
                    return task
                if not self._wheel.turn(self.at_ms):
                    return None
