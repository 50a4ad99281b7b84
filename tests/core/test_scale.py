"""What a controller asks of ZooKeeper and of the encoders grows with the partitions over the batch, and with nothing
else: counted, not timed, so that one read a partition, or one encoding a broker, is found here on any machine."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from controller.core import request_batch
from controller.core.events import ControlledShutdownRequested
from controller.protocol.client import CreatableTopic
from controller.protocol.control import ControlledShutdownResponse
from controller.zookeeper import paths
from controller.zookeeper.memory.server import InMemoryConnection
from controller.zookeeper.operations import BATCH, LONGEST_READ
from controller.zookeeper.row_writes import STATES_A_BATCH
from tests.benchmarks.clusters import TreeSize, znodes
from tests.core.driving import Cluster, Host
from tests.core.test_topic_creation import create

REQUESTS = ("read", "read_columns", "children", "multi", "set_watches", "watch", "sync")
ENCODERS = ("update_metadata_body", "leader_and_isr_body")
TOPIC_SIZE = 50
Counts = Counter[str]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """How often each request was made by anybody, and each encoder called."""
    counted: Counts = Counter()

    def count(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    for name in REQUESTS:
        count(InMemoryConnection, name)
    for name in ENCODERS:
        count(request_batch, name)
    return counted


def cluster_of(partitions: int, replication_factor: int, brokers: int, led_by: int | None = None) -> Cluster:
    """Registered brokers 2 to `brokers`, and the partitions of all, as the benchmark has them."""
    cluster = Cluster()
    cluster.register(*range(2, brokers + 1))
    cluster.put(paths.CONTROLLER_EPOCH, b"0")  # as in a cluster that has had controllers
    size = TreeSize(partitions // TOPIC_SIZE, partitions, replication_factor, brokers, led_by)
    for topic in range(size.topics):
        cluster.write(*znodes(size, range(topic, topic + 1)))
    return cluster


def batches(count: int, a_batch: int) -> int:
    return -(-count // a_batch)


def failed_over(cluster: Cluster, counts: Counts) -> tuple[Host, Counts]:
    """A host that has taken over, and what that took. What it traces of each partition is not wanted."""
    host = cluster.new_host(1)
    host.trace.enabled = False
    counts.clear()
    host.start()
    cluster.settle()
    assert host.controller.active
    assert host.failures() == []
    return host, Counter(counts)


def test_a_failovers_requests_grow_with_the_partitions_over_the_batch(counts: Counts) -> None:
    fixed: set[tuple[tuple[str, int], ...]] = set()
    for partitions in (1_000, 3_000, 7_000):
        _, found = failed_over(cluster_of(partitions, 1, 3), counts)
        topics = partitions // TOPIC_SIZE
        found["read_columns"] -= batches(topics, BATCH) + batches(partitions, LONGEST_READ)
        fixed.add(tuple(sorted(found.items())))
    assert len(fixed) == 1, fixed
    [[*rest]] = fixed
    assert dict(rest)["read_columns"] == 0
    assert sum(count for _, count in rest) < 60


def test_what_brokers_are_told_is_encoded_once_for_all_where_it_is_the_same(counts: Counts) -> None:
    """LeaderAndIsr is each broker's own; UpdateMetadata is not, however many hear it."""
    for brokers in (3, 20):
        _, found = failed_over(cluster_of(1_000, 2, brokers), counts)
        assert found["leader_and_isr_body"] == brokers
        assert found["update_metadata_body"] == 2  # who lives, and the partitions' states


@pytest.mark.parametrize("partitions", [1_000, 4_000])
def test_a_lost_brokers_partitions_are_written_in_batches_leaders_first(counts: Counts, partitions: int) -> None:
    """Two thirds of the partitions have a replica there, half of those are led by it."""
    cluster = cluster_of(partitions, 2, 3)
    host, _ = failed_over(cluster, counts)
    counts.clear()
    cluster.unregister(3)
    cluster.settle()
    places = [sum(_place(name)) % 3 for name in TreeSize(partitions // TOPIC_SIZE, partitions, 2, 3).names()]
    led, followed = places.count(2), places.count(1)
    assert counts["multi"] == batches(led, STATES_A_BATCH) + batches(followed, STATES_A_BATCH)
    assert counts["read_columns"] == 0
    assert counts["read"] + counts["children"] + counts["watch"] < 20
    assert host.failures() == []
    assert {leader for leader, *_ in cluster.states().values()} == {1, 2}


def _place(name: tuple[str, int]) -> tuple[int, int]:
    topic, partition = name
    return int(topic.rpartition("-")[2]), partition


def test_a_controlled_shutdowns_writes_are_batches_of_what_it_led(counts: Counts) -> None:
    cluster = cluster_of(4_000, 2, 3, led_by=3)
    host, _ = failed_over(cluster, counts)
    counts.clear()
    answers: list[ControlledShutdownResponse] = []
    host.events.put(ControlledShutdownRequested(3, -1, answers.append))
    cluster.settle()
    assert answers == [ControlledShutdownResponse(0)]
    assert counts["multi"] == batches(4_000, STATES_A_BATCH)
    assert sum(counts[name] for name in REQUESTS) - counts["multi"] < 10


def test_a_read_a_partition_would_be_found(counts: Counts) -> None:
    """The counting itself: what is asked one by one is counted one by one."""
    cluster = cluster_of(1_000, 1, 3)
    host, _ = failed_over(cluster, counts)
    counts.clear()
    for name, partition in TreeSize(20, 1_000, 1, 3).names():
        cluster.wait(host.client.read([f"/brokers/topics/{name}/partitions/{partition}/state"]))
    assert counts["read"] == 1_000


def test_the_creation_of_a_topic_leaves_nothing_to_the_cyclic_collector() -> None:
    """A pass of the collector stops all threads of a broker for as long as the garbage takes to free: 70 ms for what
    thousands of requests to ZooKeeper left, when each made objects that refer to each other."""
    cluster = Cluster()
    cluster.register(2, 3)
    host = cluster.host(1)
    host.answering = True
    create(cluster, host, CreatableTopic("first", 1, 3))
    for _ in range(3):  # coroutines that earlier tests have left are closed by one, and freed by the next
        gc.collect()
    gc.disable()
    try:
        create(cluster, host, *(CreatableTopic(f"t{number}", 1, 3) for number in range(100)))
        left = gc.collect()
    finally:
        gc.enable()
    assert len(cluster.states()) == 101
    assert left < 100, f"{left} objects of 100 topics"
