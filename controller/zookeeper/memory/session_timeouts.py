"""Which session timeouts a ZooKeeper server grants, and when a session that is silent ends."""

from __future__ import annotations

import msgspec


class SessionTimeouts(msgspec.Struct, frozen=True):
    """`tick_ms`: tickTime. `min_ms` and `max_ms`: what is granted at least and at most."""

    tick_ms: int
    min_ms: int
    max_ms: int

    @classmethod
    def of(cls, tick_ms: int, min_ms: int | None = None, max_ms: int | None = None) -> SessionTimeouts:
        """With ZooKeeper's bounds, 2 and 20 ticks, unless others are given. Raises ValueError."""
        if tick_ms <= 0:
            raise ValueError(f"tick_ms {tick_ms}: expected more than 0")
        made = cls(tick_ms, 2 * tick_ms if min_ms is None else min_ms, 20 * tick_ms if max_ms is None else max_ms)
        if not 0 < made.min_ms <= made.max_ms:
            raise ValueError(f"session timeouts from {made.min_ms} to {made.max_ms} ms: expected 0 < min <= max")
        return made

    def granted_ms(self, asked_ms: int) -> int:
        return min(max(asked_ms, self.min_ms), self.max_ms)

    def next_tick_ms(self, now_ms: float) -> float:
        """The tick after `now_ms`. A session ends at the tick after its timeout."""
        return (now_ms // self.tick_ms + 1) * self.tick_ms
