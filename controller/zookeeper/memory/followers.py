"""Followers of the in-memory ZooKeeper's server: they apply its transactions later, so that reads may be stale.

A client of a follower reads what the follower has applied, and its watches fire when the follower applies the change.
As in ZooKeeper, it sees its own writes (a follower answers a write when it has applied it), never goes back behind what
it has seen, and `sync` waits until the follower has caught up with the leader.
"""

from __future__ import annotations

from collections import deque

from controller.clock import Clock
from controller.zookeeper.memory.database import Database, Latency, Transaction


class Follower:
    """Made by `InMemoryZooKeeper.add_follower`.

    `lag` gives the milliseconds after which the next transaction is applied here; their order is kept.
    """

    def __init__(self, clock: Clock, leader: Database, lag: Latency) -> None:
        self.database = Database(clock)
        self._clock = clock
        self._lag = lag
        self._behind: deque[tuple[float, Transaction]] = deque()
        self._due_ms = 0.0
        leader.transaction_listeners.append(self._take)

    def _take(self, transaction: Transaction) -> None:
        now_ms = self._clock.now_ms()
        self._due_ms = max(self._due_ms, now_ms + self._lag())
        self._behind.append((self._due_ms, transaction))
        self._clock.call_later(self._due_ms - now_ms, self._apply_due)

    def _apply_due(self) -> None:
        now_ms = self._clock.now_ms() + 1e-6  # a sum of floats may fall short
        while self._behind and self._behind[0][0] <= now_ms:
            self.database.repeat(self._behind.popleft()[1])

    def catch_up(self, zxid: int | None = None) -> None:
        """Apply at once what is behind: up to `zxid`, or all."""
        while self._behind and (zxid is None or self._behind[0][1].zxid <= zxid):
            self.database.repeat(self._behind.popleft()[1])
