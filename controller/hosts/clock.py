"""The machine's clock as the code's clock: monotonic time, with timers that run on the network thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from controller.clock import Timer
from controller.hosts.network import NetworkThread
from controller.pending import Pending


class _LoopTimer:
    """A timer of the loop's that any thread may set and cancel."""

    def __init__(self, network: NetworkThread, delay_ms: float, callback: Callable[[], None]) -> None:
        self._network = network
        self._callback: Callable[[], None] | None = callback
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = time.monotonic() + delay_ms / 1000
        if network.here():
            self._arm()
        else:
            network.call(self._arm)

    def _arm(self) -> None:
        if self._callback is not None:
            self._handle = self._network.loop.call_later(max(0.0, self._due_s - time.monotonic()), self._fire)

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self._callback = None
        if self._network.here():
            self._disarm()
        else:
            self._network.call(self._disarm)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class RealClock:
    def __init__(self, network: NetworkThread) -> None:
        self._network = network

    def now_ms(self) -> float:
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return _LoopTimer(self._network, delay_ms, callback)

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending
