"""The load of the purgatory's benchmark, Kafka's: when requests come, what they watch, when their conditions hold.

Gaps are exponential, latencies log-normal, given by two of their percentiles, both in whole milliseconds. Everything
is drawn before it is needed, in columns, so that the measured loops draw nothing. Source: Kafka's
TestPurgatoryPerformance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUARTILE = 0.67448975
"""The 75th percentile of the standard normal distribution."""
KEY_SETS = 4_096
CHUNK = 50_000


@dataclass(frozen=True, slots=True)
class Load:
    """`rate`: requests a second; percentiles and `timeout_ms` in ms; `size`: bytes that each request holds; `news`: how
    many keys have news each millisecond, in turns (on the virtual clock; in Kafka's benchmark none ever has)."""

    rate: int
    percentile_50_ms: float
    percentile_75_ms: float
    number: int
    timeout_ms: int = 200
    keys: int = 100
    keys_of_each: int = 3
    size: int = 100
    seed: int = 1
    news: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "number", "timeout_ms", "keys", "keys_of_each"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        if self.keys_of_each > self.keys:
            raise ValueError(f"keys_of_each {self.keys_of_each}: expected at most {self.keys}, which is all there are")
        if not 0 < self.percentile_50_ms < self.percentile_75_ms:
            raise ValueError(
                f"percentiles {self.percentile_50_ms:g}/{self.percentile_75_ms:g}: expected the 50th below the 75th"
            )
        for name in ("size", "news"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 or more")

    @property
    def name(self) -> str:
        return f"{self.percentile_50_ms:g}/{self.percentile_75_ms:g} ms"


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order in which they come, a row each: when, how long until its condition holds, its key set."""

    arrival_ms: NDArray[np.int64]
    latency_ms: NDArray[np.int64]
    key_set: NDArray[np.int64]


def key_sets(load: Load) -> list[tuple[str, ...]]:
    """What requests watch: each as many different keys as they have."""
    rng = np.random.default_rng(load.seed)
    names = [f"key {number}" for number in range(load.keys)]
    return [
        tuple(names[number] for number in rng.choice(load.keys, load.keys_of_each, replace=False).tolist())
        for _ in range(KEY_SETS)
    ]


def requests(load: Load, chunk: int = CHUNK) -> Iterator[Requests]:
    """All of the load's requests, `chunk` at a time. The same load gives the same requests."""
    rng = np.random.default_rng([load.seed, load.rate])
    mean = np.log(load.percentile_50_ms)
    deviation = (np.log(load.percentile_75_ms) - mean) / QUARTILE
    now_ms = 0.0
    for left in range(load.number, 0, -chunk):
        count = min(chunk, left)
        arrivals = now_ms + np.cumsum(rng.exponential(1_000 / load.rate, count))
        now_ms = float(arrivals[-1])
        latencies = np.minimum(np.exp(rng.normal(mean, deviation, count)), 1e12)
        yield Requests(
            arrivals.astype(np.int64), latencies.astype(np.int64), rng.integers(0, KEY_SETS, count, dtype=np.int64)
        )
