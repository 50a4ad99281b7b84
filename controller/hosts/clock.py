"""Real time: the monotonic clock, with timers on the network's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from controller.clock import Timer
from controller.hosts.network import NetworkThread
from controller.pending import Pending


class _LoopTimer:
    """Armed and disarmed on the loop; `callback` None is what says, from any thread, that it will not run."""

    __slots__ = ("__weakref__", "_network", "callback", "handle")

    def __init__(self, network: NetworkThread, callback: Callable[[], None]) -> None:
        self._network = network
        self.callback: Callable[[], None] | None = callback
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self.callback = None
        self._network.call(self._disarm)

    def arm(self, due_s: float) -> None:
        if self.callback is not None:
            self.handle = self._network.loop.call_at(due_s, self._fire)

    def _disarm(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None

    def _fire(self) -> None:
        self.handle = None  # which refers to this object
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class RealClock:
    """Any thread may set timers. The callbacks run on the loop, which is also the broker's thread: `call_later(0, f)`
    brings `f` there."""

    def __init__(self, network: NetworkThread) -> None:
        self._network = network

    def now_ms(self) -> float:
        return time.monotonic() * 1_000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        # asyncio's loop counts time.monotonic() too, so the way to the loop is not added to the delay.
        due_s = time.monotonic() + delay_ms / 1_000.0
        timer = _LoopTimer(self._network, callback)
        self._network.call(lambda: timer.arm(due_s))
        return timer

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending
