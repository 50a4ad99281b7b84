"""A clock, an in-memory ZooKeeper and clients that remember what they were told, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controller.clock import Future, VirtualClock
from controller.zookeeper import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import SessionState, WatchEvent

T = TypeVar("T")

CONNECTED, SUSPENDED = SessionState.CONNECTED, SessionState.SUSPENDED
EXPIRED, CLOSED = SessionState.EXPIRED, SessionState.CLOSED
TIMEOUT_MS, TICK_MS, RECONNECT_MS = 3_000, 500, 100.0


class Listener:
    """What a client was told, and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.log: list[tuple[float, SessionState | WatchEvent]] = []

    def session_state(self, state: SessionState) -> None:
        self.log.append((self.clock.now_ms(), state))

    def watch_fired(self, event: WatchEvent) -> None:
        self.log.append((self.clock.now_ms(), event))

    def told(self) -> list[SessionState | WatchEvent]:
        return [entry for _, entry in self.log]


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock, tick_ms=TICK_MS)

    def client(
        self, latency: Callable[[], float] | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> tuple[InMemoryConnection, Listener]:
        connection = self.server.connect(timeout_ms, latency=latency, reconnect_delay_ms=RECONNECT_MS)
        listener = Listener(self.clock)
        connection.listen(listener)
        started = connection.start()
        self.done(started)
        return connection, listener

    def done(self, pending: Future[T]) -> T:
        assert self.clock.run_until(lambda: pending.done, self.clock.now_ms() + 60_000)
        return pending.result()

    def passes(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)
