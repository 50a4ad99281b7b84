"""Workloads, statistics and the parts of a latency, on stamps that are known."""

from __future__ import annotations

import itertools
import json
import socket
from random import Random

import numpy as np
import pytest

from controller.chaos.protocol_proxy import Fetched, Position, Produced
from controller.labs.latency.parts import Parts, Received, joined, parts_of, quantiles_ms
from controller.labs.latency.statistics import between_blocks, percentile, r_squared, warm_from
from controller.labs.latency.workload import (
    BadWorkload,
    ConnectionStress,
    ConsumeBench,
    assigned,
    due_times,
    read_bench,
    read_workload,
    topics_of,
)
from tests.benchmarks.latency_trogdor import MillisecondHistogram, connected

SPEC = b"""{"class": "org.apache.kafka.trogdor.workload.ProduceBenchSpec", "durationMs": 10000, "producerNode": "node0",
"bootstrapServers": "localhost:9092", "targetMessagesPerSec": 10, "maxMessages": 100,
"valueGenerator": {"type": "uniformRandom", "size": 512, "padding": 256},
"activeTopics": {"foo[1-3]": {"numPartitions": 3, "replicationFactor": 1}}}"""


def test_trogdors_specification_is_read() -> None:
    workload = read_workload(SPEC, "spec")
    assert sorted(topics_of(workload)) == ["foo1", "foo2", "foo3"]
    value = workload.value_generator.payload(0, Random(1))
    assert (len(value), value[256:]) == (512, bytes(256))
    assert workload.key_generator.payload(258, Random(1)) == b"\x02\x01\0\0"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"maxMessages": 100', b'"maxMessages": 0', "spec: maxMessages is 0: expected 1 or more"),
        (b'"size": 512', b'"size": 8', "valueGenerator.size is 8"),
        (b'"durationMs"', b'"durationSec"', "unknown field `durationSec`"),
        (b"foo[1-3]", b"foo[1-99999]", "names 99999 topics"),
        (b"uniformRandom", b"gaussian", "gaussian"),
    ],
)
def test_a_bad_specification_is_refused_with_its_field(old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(BadWorkload, match=message):
        read_workload(SPEC.replace(old, new), "spec")


def test_records_are_due_whatever_the_cluster_does() -> None:
    assert list(itertools.islice(due_times(4, "constant", Random(1)), 3)) == [0.25, 0.5, 0.75]
    assert list(itertools.islice(due_times(30, "trogdor", Random(1)), 5)) == [0.0, 0.0, 0.0, 0.1, 0.1]
    poisson = list(itertools.islice(due_times(1_000, "poisson", Random(1)), 50_000))
    assert poisson[-1] == pytest.approx(50.0, rel=0.02)


def parts(**changed: object) -> tuple[list[list[float]], list[bool]]:
    """Two batches of two records: request at 1.0 and 2.0; two followers; the first fetch of the consumer waits."""
    given = {
        "received": Received(np.array([0, 1, 2, 3]), np.array([0.5, 0.9, 1.5, 1.9]), np.array([1.6, 1.7, 2.6, 2.7])),
        "produced": [Produced(0, 2, 1.0, 1.5, 99), Produced(2, 2, 2.0, 2.5, 99)],
        "fetched": [
            Fetched(0, 2, 0.2, 1.1, 2),
            Fetched(0, 2, 0.2, 1.2, 3),
            Fetched(0, 2, 0.3, 1.55, -1),
            Fetched(2, 4, 1.3, 2.1, 2),
            Fetched(2, 4, 1.4, 2.2, 3),
            Fetched(2, 4, 2.45, 2.55, -1),
        ],
        "positions": [Position(2, 2, 1.3), Position(3, 2, 1.4), Position(2, 4, 2.3), Position(3, 4, 2.4)],
        "followers": [2, 3],
    } | changed
    found = joined([parts_of(**given)])  # type: ignore[arg-type]
    return found.parts_ms.round(6).tolist(), found.adds_up.tolist()


def test_parts_are_the_intervals_between_the_stamps() -> None:
    rows, adds_up = parts()
    assert rows == [
        [500, 100, 300, 0, 200],
        [100, 100, 300, 0, 300],
        [500, 100, 300, 50, 150],
        [100, 100, 300, 50, 250],
    ]
    assert all(adds_up)


def test_without_followers_a_record_is_committed_when_it_is_published() -> None:
    rows, adds_up = parts(followers=[])
    assert [row[1:3] for row in rows] == [[500, 0]] * 4
    assert all(adds_up)


@pytest.mark.parametrize(
    "changed", [{"positions": [Position(2, 4, 1.3), Position(3, 2, 1.4)]}, {"produced": [Produced(0, 2, 1.0, 1.5, 99)]}]
)
def test_a_record_with_a_missing_stamp_does_not_add_up(changed: dict[str, object]) -> None:
    assert parts(**changed)[1] == [True, True, False, False]


def test_a_record_may_reach_a_consumer_before_its_acknowledgement_is_read() -> None:
    received = Received(np.array([0]), np.array([0.9]), np.array([1.45]))
    found = parts_of(received, [Produced(0, 1, 1.0, 1.5, 99)], [Fetched(0, 1, 0.3, 1.4, -1)], [], [])
    assert found.parts_ms.round(6).tolist() == [[100, 400, 0, 0, 50]]
    assert found.adds_up.all()


def test_stamps_in_an_impossible_order_do_not_add_up() -> None:
    late = [Produced(0, 2, 1.0, 1.5, 99), Produced(2, 2, 2.2, 2.5, 99)]
    assert parts(produced=late)[1] == [True, True, False, False]


def test_percentiles_have_intervals() -> None:
    values = np.random.default_rng(1).exponential(10.0, 20_000)
    for found in (percentile(values, 0.99), between_blocks(values, 0.99)):
        assert found.low < 46.05 < found.high
        assert found.high - found.low < 6


def test_the_warm_up_is_cut_off() -> None:
    values = np.concatenate((np.linspace(100, 10, 3_000), np.random.default_rng(1).normal(10, 1, 17_000)))
    assert 2_000 <= warm_from(values) <= 4_000
    assert warm_from(values[5_000:]) <= 3_000
    assert warm_from(values[:10]) == 0


def test_a_line_is_fitted() -> None:
    slope, intercept, fit = r_squared([1, 2, 3], [3, 5, 7])
    assert (round(slope, 9), round(intercept, 9), round(fit, 9)) == (2, 1, 1)


def test_quantiles_are_of_the_records_that_add_up() -> None:
    received = Received(np.array([0, 1]), np.array([0.5, 0.9]), np.array([1.6, 1.7]))
    found = parts_of(received, [Produced(0, 1, 1.0, 1.5, 99)], [Fetched(0, 2, 0.3, 1.55, -1)], [], [])
    assert quantiles_ms(found)["end to end"]["p50"] == pytest.approx(1_100)


def test_the_parts_of_a_p99_are_those_of_the_slowest_records() -> None:
    rows = np.tile([5.0, 1.0, 1.0, 0.0, 1.0], (200, 1))
    rows[[7, 90], 2] = 9.0, 7.0
    figures = quantiles_ms(Parts(rows, rows.sum(axis=1), np.arange(200.0)))
    assert figures["commit"] == pytest.approx({"p50": 1.0, "p99": 1.06, "mean": 1.07, "beyond p99": 8.0})
    assert figures["produce"]["beyond p99"] == 5.0


def test_percentiles_are_those_of_trogdors_histogram() -> None:
    """The first value up to which so large a share of the samples lies; what is larger counts as the largest."""
    histogram = MillisecondHistogram(100)
    for value, count in ((3.9, 50), (7.2, 45), (5_000.0, 5)):
        histogram.add(value, count)
    assert histogram.status() == {
        "averageLatencyMs": 9.65,
        "p50LatencyMs": 3,
        "p95LatencyMs": 7,
        "p99LatencyMs": 100,
    }


def test_a_consumers_partitions_are_expanded() -> None:
    spec = b'{"class": "org.apache.kafka.trogdor.workload.ConsumeBenchSpec", "maxMessages": 1, "activeTopics": %s}'
    bench = read_bench(spec % b'["a[1-2]:[0-1]", "b:7"]', "spec")
    assert isinstance(bench, ConsumeBench)
    assert assigned(bench) == [("a1", 0), ("a1", 1), ("a2", 0), ("a2", 1), ("b", 7)]


def test_connections_that_fail_are_counted() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        status = connected(ConnectionStress(120, 100, 2), held.getsockname())  # no one listens
    assert status["totalConnections"] == status["totalFailedConnections"] > 0


@pytest.mark.parametrize("changed", [{"durationMs": 0}, {"numThreads": 5_000}, {"commonClientConf": {"a": "b"}}])
def test_a_connection_stress_that_cannot_run_is_named(changed: dict[str, object]) -> None:
    spec = {"class": "org.apache.kafka.trogdor.workload.ConnectionStressSpec", "targetConnectionsPerSec": 1}
    with pytest.raises(BadWorkload, match=f"spec: {''.join(changed)}"):
        read_bench(json.dumps(spec | {"durationMs": 1} | changed).encode(), "spec")
