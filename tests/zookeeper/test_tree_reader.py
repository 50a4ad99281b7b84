"""A cluster is read from ZooKeeper as it is in a file, without a write or a watch, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from controller.clock import Future, VirtualClock, spawn
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.cluster_state import Tree, cluster_state, load, read_cluster_tree
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import BATCH, Create, ReadResult

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"
LIMIT_MS = 600_000.0


class Events:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, event: Any) -> None:
        self.seen.append(event)


class Watched(ZooKeeperClient):
    """Notes when each read was asked for."""

    asked: list[tuple[float, int]]

    def read(self, paths: Sequence[str]) -> Future[ReadResult]:
        self.asked.append((self.clock.now_ms(), len(paths)))
        return super().read(paths)


def filled(clock: VirtualClock, nodes: Tree) -> InMemoryZooKeeper:
    server = InMemoryZooKeeper(clock)
    writer = server.connect(6_000)
    clock_wait(clock, ZooKeeperClient(writer, clock, Events()).start())
    creates = [Create(row.path, row.data) for row in nodes.nodes.values() if row.path != "/"]
    clock_wait(clock, writer.multi(creates))
    return server


def clock_wait(clock: VirtualClock, pending: Future[Any]) -> Any:
    assert clock.run_until(lambda: pending.done, LIMIT_MS)
    return pending.result()


def read(clock: VirtualClock, server: InMemoryZooKeeper, pause_ms: float) -> tuple[Tree, Watched, Events]:
    events = Events()
    client = Watched(server.connect(6_000), clock, events)
    client.asked = []
    clock_wait(clock, client.start())
    before = server.zxid
    tree: Tree = clock_wait(clock, spawn(read_cluster_tree(client, clock, pause_ms)))
    assert server.zxid == before, "something was written"
    assert server.watched(client.session()) == frozenset()
    return tree, client, events


def test_a_real_cluster_is_read_back_as_it_was() -> None:
    clock = VirtualClock()
    original = load(DATA / "znodes.txt")
    tree, _, events = read(clock, filled(clock, original), 1.0)
    for path, row in tree.nodes.items():
        assert row.data == original.nodes[path].data
    expected, found = cluster_state(original), cluster_state(tree)
    assert found.cluster_id == expected.cluster_id
    assert found.absent_brokers == expected.absent_brokers
    assert len(found.partitions) == 14
    assert np.array_equal(found.partitions.off_preferred, expected.partitions.off_preferred)
    assert events.seen == []
    # Credentials and what is not asked for stay where they are.
    kept = (paths.CONFIG_TOPICS, paths.CONFIG_BROKER_DEFAULT)
    assert not any(path.startswith(paths.CONFIG) and not path.startswith(kept) for path in tree.nodes)


def test_reads_are_batches_with_a_pause_between() -> None:
    clock = VirtualClock()
    server = filled(clock, load(DATA / "znodes.txt"))
    root = server.connect(6_000)
    clock_wait(clock, ZooKeeperClient(root, clock, Events()).start())
    count = 2 * BATCH + 1
    assignment = b",".join(b'"%d":[2]' % partition for partition in range(count))
    clock_wait(clock, root.multi([Create(paths.topic("wide"), b'{"version":1,"partitions":{%s}}' % assignment)]))
    tree, client, _ = read(clock, server, 50.0)
    assert max(size for _, size in client.asked) == BATCH
    times = [at for at, _ in client.asked]
    assert all(later - earlier >= 50.0 for earlier, later in pairwise(times))
    assert int(cluster_state(tree).partitions.offline.sum()) == count


def test_where_there_is_no_cluster_the_tree_is_empty() -> None:
    clock = VirtualClock()
    tree, _, _ = read(clock, InMemoryZooKeeper(clock), 1.0)
    assert not tree.nodes
