"""`camerlengo lab latency --fit`: fit the model to one half of measured settings, and predict the other half.

The settings run on brokers of this machine. Three values are fitted: a factor of all service times (several processes
share a core), the time of a message from one process to another, and a time added to p99 (what else has the core in
the tail). Brokers and clients share the cores of this machine. The measured client is librdkafka, which makes a request
for each batch; the workload names partitions in turn. The fit minimises the mean error of the logarithms over a grid.
The error of a prediction is its distance from the measurement as a share of the measurement.

Each setting is measured `RUNS` times, all settings in turn, and the medians count. How far a run is from the median of
the others of its setting is the error that a perfect model has of a single run: "between equal runs" in the figures.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from controller.hosts.local_cluster import LocalCluster
from controller.labs.latency.cluster_model import ClusterShape, ServiceTimes
from controller.labs.latency.experiments import simulate
from controller.labs.latency.producer_model import ProducerLoad
from controller.labs.latency.service_times import LIBRDKAFKA, MEASURED
from controller.labs.latency.workload import Partitions, ProduceBench, UniformRandomPayload
from tests.benchmarks.common import progress
from tests.benchmarks.latency import run_workload
from tests.benchmarks.latency_worker import GRAIN_S

FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
ONE_WAY_MS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0)
TAILS_MS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
OVERHEAD_BYTES = 4
RUNS = 3
LIBRDKAFKA_IN_FLIGHT = 1_000_000
"""Its default of max.in.flight.requests.per.connection."""


class Setting(msgspec.Struct, frozen=True):
    linger_ms: float
    records_s: int
    value_bytes: int
    partitions: int
    replicas: int


class Fit(msgspec.Struct, frozen=True):
    """`tail_ms`: p99 beyond the model's."""

    factor: float
    one_way_ms: float
    tail_ms: float


def settings(count: int, brokers: int, random: Random) -> list[Setting]:
    every = itertools.product((0.0, 5.0, 20.0), (200, 600, 1_500), (100, 1_000), (3, 12), sorted({1, min(3, brokers)}))
    return random.sample([Setting(*one) for one in every], count)


def measured(arguments: argparse.Namespace, chosen: Sequence[Setting]) -> NDArray[np.float64]:
    """By run and setting: p50 and p99 in ms."""
    found = []
    with LocalCluster(arguments.brokers, settings={"log.segment.delete.delay.ms": "1000"}) as cluster:
        for turn, (number, one) in itertools.product(range(RUNS), enumerate(chosen)):
            progress(f"run {turn + 1} of {RUNS}, setting {number + 1} of {len(chosen)}")
            found.append(_measured(arguments, cluster.bootstrap_servers, f"fit-{turn}-{number}", one))
    return np.array(found).reshape(RUNS, len(chosen), 2)


def _measured(arguments: argparse.Namespace, bootstrap: str, topic: str, one: Setting) -> tuple[float, float]:
    conf = {"acks": "all", "linger.ms": f"{one.linger_ms:g}", "batch.size": "16384"}
    workload = ProduceBench(
        one.records_s,
        10**9,
        {topic: Partitions(one.partitions, one.replicas)},
        producer_conf=conf,
        common_client_conf={"log_level": "0"},
        value_generator=UniformRandomPayload(one.value_bytes),
    )
    words = argparse.Namespace(seconds=arguments.seconds, arrivals="constant")
    given = {"expected": int(0.9 * one.records_s * words.seconds), "patience_s": 3.0}
    figures = run_workload(bootstrap, workload, words, None, arguments.seed, consume=given)
    latency_ms = figures.end_to_end_ms[len(figures.end_to_end_ms) // 4 :]
    return float(np.quantile(latency_ms, 0.5)), float(np.quantile(latency_ms, 0.99))


def between_runs(runs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The error of each run as predicted by the median of the other runs of its setting."""
    others = [np.median(np.delete(runs, number, axis=0), axis=0) for number in range(len(runs))]
    return np.abs(np.array(others) / runs - 1.0)


def scaled(times: ServiceTimes, factor: float) -> ServiceTimes:
    return ServiceTimes(**{name: value * factor for name, value in msgspec.structs.asdict(times).items()})


def predicted(one: Setting, brokers: int, factor: float, one_way_ms: float) -> tuple[float, float]:
    """p50 and p99 in ms by the model, without the time of the tail."""
    times = scaled(replace(MEASURED["camerlengo"], **LIBRDKAFKA), factor)
    cores = os.cpu_count() or 1
    shape = ClusterShape(times, brokers, 1, same_zone_ms=one_way_ms, cores=cores, one_machine=True)
    load = ProducerLoad(
        1,
        one.records_s,
        one.value_bytes + OVERHEAD_BYTES,
        one.linger_ms,
        in_flight=LIBRDKAFKA_IN_FLIGHT,
        trogdor=False,
        in_turn=True,
        alone=True,
        late_ms=GRAIN_S * 1e3,
    )
    counts: dict[str, Any] = {"partitions": one.partitions, "replicas": one.replicas, "consumers": 1}
    outcome = simulate(shape, load, **counts, warm_s=0.2, seconds=0.5, drain_s=0.3)
    return outcome.quantile(0.5), outcome.quantile(0.99)


Quantiles = Sequence[tuple[float, float]]
"""p50 and p99 in ms."""


def fit(values: Quantiles, table: Mapping[tuple[float, float], Quantiles]) -> Fit:
    """`table`: the model's values of the same settings, by factor and one way."""

    def error(candidate: Fit) -> float:
        model = np.array(table[candidate.factor, candidate.one_way_ms]) + (0.0, candidate.tail_ms)
        return float(np.abs(np.log(model / np.array(values))).mean())

    return min((Fit(*key, tail) for key in table for tail in TAILS_MS), key=error)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, fit and predict."""
    arguments.seconds = arguments.seconds or 1.5
    chosen = settings(4 if arguments.quick else 12, arguments.brokers, Random(arguments.seed))
    runs = measured(arguments, chosen)
    values = [(float(p50), float(p99)) for p50, p99 in np.median(runs, axis=0)]
    grid = itertools.product(FACTORS, ONE_WAY_MS)
    table = {key: [predicted(one, arguments.brokers, *key) for one in chosen] for key in grid}
    half = len(chosen) // 2
    found = fit(values[:half], {key: those[:half] for key, those in table.items()})
    model = np.array(table[found.factor, found.one_way_ms]) + (0.0, found.tail_ms)
    errors = np.abs(model / np.array(values) - 1.0)
    rows = {
        f"{'fitted' if number < half else 'predicted'}, {_words(one)}": {
            "p50 ms, measured and model": [round(values[number][0], 2), round(float(model[number][0]), 2)],
            "p99 ms, measured and model": [round(values[number][1], 2), round(float(model[number][1]), 2)],
        }
        for number, one in enumerate(chosen)
    }
    medians = np.median(errors[half:], axis=0)
    return {
        "rows": rows,
        "fit": msgspec.structs.asdict(found),
        "median error of p50 and p99, predicted": [round(float(one), 3) for one in medians],
        "median error of both, predicted": round(float(np.median(errors[half:])), 3),
        "median error of both, fitted": round(float(np.median(errors[:half])), 3),
        "median error of p50 and p99, between equal runs": [
            round(float(one), 3) for one in np.median(between_runs(runs).reshape(-1, 2), axis=0)
        ],
    }


def _words(one: Setting) -> str:
    return (
        f"linger {one.linger_ms:g}, {one.records_s} records/s of {one.value_bytes} B, {one.partitions} partitions,"
        f" rf {one.replicas}"
    )
