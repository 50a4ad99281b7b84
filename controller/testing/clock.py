"""The clock of an in-process cluster: the machine's, plus what a test has advanced it by.

Everything in a cluster reads one axis: the loop's own `time`, the timers, the sessions. `advance` moves it from one
timer that is due to the next and lets the loop handle what each of them causes, so that a session that is pinged does
not expire only because much time passes at once. Threads of clients do not see the advance.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from controller.hosts.network import NetworkThread, RealClock

ROUNDS = 10
"""Iterations of the loop after each step of an advance: a follower's fetch and its answer take five."""


class ShiftedLoop(asyncio.SelectorEventLoop):
    """A loop whose time is the machine's monotonic time plus `offset_s`."""

    offset_s = 0.0

    def time(self) -> float:
        return time.monotonic() + self.offset_s


class ShiftedClock(RealClock):
    """The clock of a `ClusterThread`."""

    def __init__(self, network: ClusterThread) -> None:
        loop = network.loop
        assert isinstance(loop, ShiftedLoop)
        self._shifted = loop
        super().__init__(network, lambda: loop.time() * 1_000.0)

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._shifted.offset_s * 1_000.0)

    async def advance(self, by_ms: float) -> None:
        """On the loop."""
        left_ms = by_ms
        while left_ms > 0:
            step_ms = min(left_ms, max(float(self._wheel.next_ms) - self.now_ms(), 0.001))
            left_ms -= step_ms
            self._shifted.offset_s += step_ms / 1_000.0
            for _ in range(ROUNDS):
                await asyncio.sleep(0)


class ClusterThread(NetworkThread):
    """The one thread of a cluster. `clock` can be advanced."""

    clock: ShiftedClock

    def __init__(self, name: str) -> None:
        super().__init__(name, ShiftedLoop)
        self.clock = ShiftedClock(self)


class ClusterClock:
    """A test's view of the clock of its cluster."""

    def __init__(self, now_ms: Callable[[], float], advance: Callable[[float], None]) -> None:
        self._now_ms = now_ms
        self._advance = advance

    def now_ms(self) -> float:
        """Return the cluster's monotonic time in milliseconds."""
        return self._now_ms()

    def advance(self, ms: float) -> None:
        """Let `ms` milliseconds pass at once for the brokers and ZooKeeper; everything that is due meanwhile happens
        in its order. The clients' time is the machine's, and does not move. Raises ValueError for less than 0, infinity
        and NaN, and UnsupportedByHost where brokers are not in this process."""
        if not 0 <= ms < math.inf:
            raise ValueError(f"advance by {ms} ms: expected 0 or more, and finite")
        self._advance(ms)
