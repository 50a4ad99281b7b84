"""The interface of any timer, independent of its driver."""

from __future__ import annotations

from typing import Protocol

from controller.timer.task import TimerTask


class Timer(Protocol):
    def start(self, task: TimerTask, delay_ms: int) -> None:
        """The task will be run once, `delay_ms` from now, at the start of the tick in which that lies; at once if that
        is past; never, if it lies further than 2**44 ms (557 years). AlreadyStarted: it is pending."""

    def cancel(self, task: TimerTask) -> bool:
        """True: it was pending in this timer, and will not run. False: it has run, is running or was cancelled."""

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        """As `start`, for a task that may be pending in this timer."""

    def __len__(self) -> int:
        """How many tasks are pending."""
