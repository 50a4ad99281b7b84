"""A timer on an asyncio loop: as `on_clock`, with the loop for its clock.

For one thread, the loop's. Time is the loop's, which is monotonic (S61).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.timer.on_clock import AT_ONCE as AT_ONCE
from controller.timer.on_clock import TimerOnClock
from controller.timer.report import log_failure
from controller.timer.task import TimerTask


class _LoopTime:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> float:
        return self._loop.time() * 1_000.0

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1_000.0, callback)


class AsyncioTimer(TimerOnClock):
    """A timer whose tasks run on the event loop, never inside `start`, up to a tick early, as Kafka's do.

    `loop` is the running loop by default. Call `close` before closing the loop if no task may run after that."""

    def __init__(
        self,
        tick_ms: int = 1,
        wheel_size: int = 20,
        on_error: Callable[[TimerTask, Exception], None] = log_failure,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(_LoopTime(asyncio.get_running_loop() if loop is None else loop), tick_ms, wheel_size, on_error)
