"""Leaders for very many partitions, decided in columns: no ZooKeeper, no broker, the rule alone."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from statemachines.leader_election_columns import elect_offline_columns, live_mask

MOST_PARTITIONS = 1_000_000
REPLICAS = 3
BROKERS = 1_000
SEED = 1


@dataclass(frozen=True, slots=True)
class Elected:
    """What one run took, by the clock and of the processor."""

    ms: float
    cpu_ms: float


def elect_in_columns(partitions: int, runs: int) -> tuple[Elected, ...]:
    """What each run took: who of `partitions` of three replicas leads now that every second of a thousand
    brokers is dead, liveness of each replica and the new ISR included. A first run is made and not counted."""
    random = np.random.default_rng(SEED)
    first = random.integers(0, BROKERS, size=(partitions, 1), dtype=np.int32)
    steps = np.cumsum(random.integers(1, BROKERS // REPLICAS, size=(partitions, REPLICAS - 1), dtype=np.int32), axis=1)
    assignment = np.concatenate((first, (first + steps) % BROKERS), axis=1).astype(np.int32)
    isr = assignment.copy()
    alive = tuple(range(0, BROKERS, 2))
    times = []
    for _ in range(runs + 1):
        began, cpu_began = time.perf_counter(), time.thread_time()
        live = live_mask(assignment, alive)
        elected = elect_offline_columns(assignment, isr, live, isr_live=live)
        ended, cpu_ended = time.perf_counter(), time.thread_time()
        times.append(Elected((ended - began) * 1_000.0, (cpu_ended - cpu_began) * 1_000.0))
    led = elected.leader[elected.elected]
    assert not (led % 2).any(), "a dead broker was elected"
    assert np.array_equal(elected.elected, live.any(axis=1)), "a partition with a live replica has no leader"
    return tuple(times[1:])
