"""How the way from one node to another fares: slow, lossy, or shut in this direction alone. Values, and one rule.

A packet that is lost is sent again: what it was part of comes late, and what was sent after it behind it. One that is
lost every time breaks the connection. So loss is seen as connections that stall and, now and then, break.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

FIRST_RETRANSMISSION_MS: Final = 200.0
"""Linux's least retransmission timeout; it doubles with each attempt."""
ATTEMPTS: Final = 6
"""Fewer than a real stack's 15, which are many minutes: a way so bad breaks connections within seconds."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`slower` times the usual latency and `more_ms`; `loss` is the chance of each packet; `shut`: nothing arrives."""

    slower: float = 1.0
    more_ms: float = 0.0
    loss: float = 0.0
    shut: bool = False

    def __post_init__(self) -> None:
        if self.slower <= 0 or self.more_ms < 0 or not 0 <= self.loss < 1:
            raise ValueError(f"{self}: expected slower above 0, more_ms of 0 or more, loss from 0 to below 1")


GOOD: Final = Condition()


def retransmissions_ms(rng: Random, loss: float) -> float | None:
    """By how much one message is late for the packets lost; None: it never gets through, and the connection breaks."""
    late_ms = 0.0
    for attempt in range(ATTEMPTS):
        if rng.random() >= loss:
            return late_ms
        late_ms += FIRST_RETRANSMISSION_MS * 2.0**attempt
    return None
