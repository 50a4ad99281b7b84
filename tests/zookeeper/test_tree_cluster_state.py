"""What a cluster's znodes say of it: the real ones by hand, and each thing that can be wrong on its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.zookeeper import paths
from controller.zookeeper.cluster_state import (
    ClusterPartitions,
    ClusterState,
    NoKafkaCluster,
    Tree,
    cluster_state,
    load,
)
from controller.zookeeper.operations import Stat, Znode

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"
MASKS = (
    "offline",
    "under_replicated",
    "off_preferred",
    "could_move",
    "leader_outside_isr",
    "isr_outside_assignment",
    "unreadable",
)
BROKER = b'{"endpoints":["PLAINTEXT://h:9092"],"version":5}'


def tree_of(znodes: Mapping[str, bytes | None]) -> Tree:
    stat = Stat(7, 7, 0, 0, 1, 0, 0, 0, 0, 0, 7)
    ephemeral = stat._replace(ephemeral_owner=9)
    return Tree.of(
        Znode(path, data, ephemeral if path == paths.CONTROLLER or paths.broker_of(path) is not None else stat)
        for path, data in znodes.items()
    )


def cluster(state: bytes | None, *, assignment: str = "[1,2,3]", live: tuple[int, ...] = (1, 2, 3)) -> ClusterState:
    """One topic of one partition."""
    znodes: dict[str, bytes | None] = {paths.broker(broker): BROKER for broker in live}
    znodes[paths.topic("t")] = b'{"version":1,"partitions":{"0":%s}}' % assignment.encode()
    if state is not None:
        znodes[paths.partition_state("t", 0)] = state
    return cluster_state(tree_of(znodes))


def state(leader: int, isr: str) -> bytes:
    return b'{"controller_epoch":1,"leader":%d,"version":1,"leader_epoch":4,"isr":%s}' % (leader, isr.encode())


def said_of(table: ClusterPartitions) -> set[str]:
    assert len(table) == 1
    return {mask for mask in MASKS if getattr(table, mask)[0]}


def test_the_cluster_that_lost_its_controller() -> None:
    found = cluster_state(load(DATA / "znodes.txt"))
    table = found.partitions
    assert found.cluster_id == "QhpdYtSjQZCx4lNcGYNXLw"
    assert found.controller is not None
    assert (found.controller.broker_id, found.controller_epoch) == (3, 2)
    assert [(broker.broker_id, broker.broker_epoch) for broker in found.brokers] == [(2, 61), (3, 63)]
    assert found.absent_brokers == (1,)
    assert len(table) == 14
    assert {mask: int(getattr(table, mask).sum()) for mask in MASKS} == {
        "offline": 0,
        "under_replicated": 14,
        "off_preferred": 4,
        "could_move": 0,
        "leader_outside_isr": 0,
        "isr_outside_assignment": 0,
        "unreadable": 0,
    }
    # The four that broker 1 led by preference.
    moved = [(partition.topic, partition.partition) for partition in table.where(table.off_preferred)]
    assert moved == [("__consumer_offsets", 2), ("__consumer_offsets", 5), ("proof", 0), ("proof", 3)]
    proof = next(table.where(table.off_preferred & (table.states.leader == 3) & (table.states.versions == 2)))
    assert (proof.leader, proof.leader_epoch, proof.isr, proof.assignment) == (3, 2, (3, 2), (1, 3, 2))
    assert found.damaged == ()
    assert found.deletions == ()


def test_the_cluster_after_its_broker_came_back() -> None:
    found = cluster_state(load(DATA / "znodes-after-admin.txt"))
    assert [broker.broker_id for broker in found.brokers] == [1, 2, 3]
    assert len(found.partitions) == 16
    assert not any(getattr(found.partitions, mask).any() for mask in MASKS)


@pytest.mark.parametrize(
    ("znode", "live", "expected"),
    [
        (state(1, "[1,2,3]"), (1, 2, 3), set()),
        (state(2, "[1,2,3]"), (1, 2, 3), {"off_preferred", "could_move"}),
        (state(2, "[2,3]"), (1, 2, 3), {"off_preferred", "under_replicated"}),
        (state(2, "[2,1,3]"), (2, 3), {"off_preferred", "under_replicated"}),
        (state(-1, "[1]"), (2, 3), {"offline", "under_replicated"}),
        (state(1, "[1,2,3]"), (2, 3), {"offline", "under_replicated"}),
        (state(3, "[1,2]"), (1, 2, 3), {"leader_outside_isr", "off_preferred", "could_move", "under_replicated"}),
        (state(1, "[1,2,9]"), (1, 2, 3), {"isr_outside_assignment", "under_replicated"}),
        (None, (1, 2, 3), {"offline"}),
        (b'{"leader":1', (1, 2, 3), {"unreadable"}),
    ],
)
def test_each_thing_that_can_be_said_of_a_partition(
    znode: bytes | None, live: tuple[int, ...], expected: set[str]
) -> None:
    assert said_of(cluster(znode, live=live).partitions) == expected


def test_replicas_that_are_being_added_are_not_missed() -> None:
    znodes: dict[str, bytes | None] = {paths.broker(broker): BROKER for broker in (1, 2, 3)}
    znodes[paths.topic("t")] = (
        b'{"partitions":{"0":[3,1,2]},"adding_replicas":{"0":[3]},"removing_replicas":{"0":[2]},"version":3}'
    )
    znodes[paths.partition_state("t", 0)] = state(1, "[1,2]")
    table = cluster_state(tree_of(znodes)).partitions
    assert said_of(table) == {"off_preferred"}
    assert table.reassigning() == [0]
    assert (table.partition(0).adding, table.partition(0).removing) == ((3,), (2,))


def test_damaged_znodes_are_listed_and_leave_the_rest_standing() -> None:
    good = state(2, "[2]")
    znodes: dict[str, bytes | None] = {
        paths.CLUSTER_ID: b"\xff",
        paths.CONTROLLER: b'{"brokerid":"two"}',
        paths.CONTROLLER_EPOCH: b"-1",
        paths.broker(1): b"{",
        paths.broker(2): BROKER,
        paths.child(paths.BROKER_IDS, "nobody"): BROKER,
        paths.topic("bad"): b'{"partitions":[]}',
        paths.topic("good"): b'{"version":1,"partitions":{"0":[2],"1":[1]}}',
        paths.partition_state("good", 0): good,
        paths.partition_state("good", 1): good + good,
        paths.REASSIGN_PARTITIONS: b"[]",
    }
    found = cluster_state(tree_of(znodes))
    bad = {path for path, data in znodes.items() if data not in (BROKER, good) and path != paths.topic("good")}
    assert {damage.path for damage in found.damaged} == bad | {paths.child(paths.BROKER_IDS, "nobody")}
    assert all(damage.why for damage in found.damaged)
    # A registration that can't be read still says that its broker lives.
    assert [(broker.broker_id, broker.registration is None) for broker in found.brokers] == [(1, True), (2, False)]
    assert found.controller is None
    assert found.controller_epoch is None
    assert len(found.partitions) == 2
    assert found.partitions.partition(0).leader == 2
    assert found.partitions.unreadable.tolist() == [False, True]


def test_what_is_pending_is_told() -> None:
    znodes: dict[str, bytes | None] = {
        paths.BROKER_IDS: None,
        paths.delete_topic("old"): None,
        paths.REASSIGN_PARTITIONS: b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[2,3]}]}',
        paths.PREFERRED_ELECTION: b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
        paths.child(paths.ISR_CHANGE_NOTIFICATION, "isr_change_0000000001"): b'{"version":1,"partitions":[]}',
    }
    found = cluster_state(tree_of(znodes))
    assert found.deletions == ("old",)
    assert found.reassignments == {("t", 1): (2, 3)}
    assert found.preferred_elections == (("t", 0),)
    assert found.isr_changes == 1
    assert found.brokers == ()
    assert len(found.partitions) == 0


def test_a_tree_of_something_else_is_no_cluster() -> None:
    with pytest.raises(NoKafkaCluster, match="/brokers"):
        cluster_state(tree_of({"/hbase": b"1", "/": None}))
