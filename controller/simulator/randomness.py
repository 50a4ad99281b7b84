"""Chance, split by purpose: each use draws from a stream of its own, so that one more draw here moves nothing there.

A seed and a purpose name a stream. Nothing in the simulator draws from anywhere else, and no stream depends on the
hash of anything, so that a seed means the same run in every process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


class Streams:
    """All the chance of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, purpose: str) -> random.Random:
        """The stream of that purpose, from its beginning."""
        return random.Random(f"{self.seed}/{purpose}")

    def delays(self, purpose: str, least_ms: float, mean_ms: float) -> Callable[[], float]:
        """Milliseconds, `least_ms` and an exponential tail above, `mean_ms` on average."""
        draw = self.stream(purpose).expovariate
        rate = 1.0 / (mean_ms - least_ms)
        return lambda: least_ms + draw(rate)


def times(rng: random.Random, after_ms: float, between_ms: tuple[float, float], until_ms: float) -> Iterator[float]:
    """Yield times until `until_ms`; the mean time between two is chosen from the range `between_ms`."""
    at_ms, mean_ms = after_ms, rng.uniform(*between_ms)
    while (at_ms := at_ms + rng.expovariate(1.0 / mean_ms)) < until_ms:
        yield round(at_ms, 1)
