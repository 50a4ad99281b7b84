"""A cluster as its znodes show it: who is live, who leads what, and what is wrong. From a tree to a value; no I/O.

Partitions are columns (a row a partition, see `codecs_columns.py`), so that a cluster of hundreds of thousands is
judged in vector operations. A damaged znode is listed with its path, and only what it held is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from controller.zookeeper import codecs, paths
from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.operations import Columns
from controller.zookeeper.tree import Tree
from controller.zookeeper.znode_sense import (
    sound_partition_state,
    sound_registration,
    sound_states,
    sound_topic_assignment,
    sound_topics,
    topic_name_fault,
)

T = TypeVar("T")
Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]


class NoKafkaCluster(Exception):
    """The tree has none of what every Kafka cluster keeps."""


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registered broker. `broker_epoch` is its registration's czxid, `session` its owner; `registration` is None
    where the znode is damaged (its being there still says that the broker lives)."""

    broker_id: int
    broker_epoch: int
    session: int
    registration: codecs.BrokerRegistration | None


@dataclass(frozen=True, slots=True)
class ClusterPartition:
    """One partition, as plain values. `leader` is -1 for none; without a state the epochs are -1 and the ISR empty."""

    topic: str
    partition: int
    assignment: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    zk_version: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterPartitions:
    """All partitions, a row each, by topic and number; the masks [n] say what is to be said of a row.

    `offline`: no state, no leader, or one that is not live. `under_replicated`: fewer live ISR members than replicas
    (those being added not counted). `off_preferred`: led, but not by the assignment's first; `could_move`: and that
    one is live and in the ISR. `leader_outside_isr` and `isr_outside_assignment` should never be. `unreadable`: the
    state is damaged, so that nothing else is said.
    """

    assignments: codecs.TopicAssignmentColumns
    states: codecs.PartitionStateColumns
    offline: Bools
    under_replicated: Bools
    off_preferred: Bools
    could_move: Bools
    leader_outside_isr: Bools
    isr_outside_assignment: Bools
    unreadable: Bools

    def __len__(self) -> int:
        return len(self.states.leader)

    def partition(self, row: int) -> ClusterPartition:
        held, state = self.assignments, self.states
        there = bool(state.present[row])
        return ClusterPartition(
            topic=held.names[held.topic_index[row]],
            partition=int(held.partition[row]),
            assignment=_members(held.assignment[row]),
            leader=int(state.leader[row]),
            leader_epoch=int(state.leader_epoch[row]) if there else -1,
            isr=_members(state.isr[row]),
            controller_epoch=int(state.controller_epoch[row]) if there else -1,
            zk_version=int(state.versions[row]),
            adding=held.adding.get(row, ()),
            removing=held.removing.get(row, ()),
        )

    def where(self, mask: Bools) -> Iterator[ClusterPartition]:
        return map(self.partition, np.flatnonzero(mask).tolist())

    def reassigning(self) -> list[int]:
        """Rows with replicas being added or removed."""
        return sorted({*self.assignments.adding, *self.assignments.removing})


@dataclass(frozen=True, slots=True)
class ZnodeDamage:
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster's state as ZooKeeper has it.

    `controller` is None while there is no controller, `controller_epoch` is None before the first one.
    `absent_brokers` are named by an assignment and not registered. `reassignments` are those requested in /admin:
    replicas by (topic, partition).
    """

    cluster_id: str | None
    controller: codecs.ControllerZnode | None
    controller_epoch: int | None
    brokers: tuple[RegisteredBroker, ...]
    absent_brokers: tuple[int, ...]
    partitions: ClusterPartitions
    deletions: tuple[str, ...]
    reassignments: Mapping[codecs.TopicPartition, tuple[int, ...]]
    preferred_elections: tuple[codecs.TopicPartition, ...]
    isr_changes: int
    damaged: tuple[ZnodeDamage, ...]


class _Decoding:
    """Decodes znodes of a tree, and notes the damaged ones."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.damaged: list[ZnodeDamage] = []

    def one(self, path: str, decode: Callable[[str, bytes | None], T]) -> T | None:
        """None if the node is absent or damaged."""
        row = self.tree.get(path)
        return None if row is None else self.data(path, row.data, decode)

    def data(self, path: str, data: bytes | None, decode: Callable[[str, bytes | None], T]) -> T | None:
        try:
            return decode(path, data)
        except DamagedZnode as damaged:
            self.damaged.append(ZnodeDamage(path, f"expected {damaged.expected}"))
            return None

    def columns(self, wanted: Sequence[str]) -> Columns:
        return Columns.of_rows([self.tree.get(path) for path in wanted], 0)


def cluster_state(tree: Tree) -> ClusterState:
    """Return the cluster's state in `tree`. Raises NoKafkaCluster; a damaged znode raises nothing."""
    if not any(path.startswith(paths.BROKERS) for path in tree.nodes):
        raise NoKafkaCluster(f"no Kafka cluster: there is no {paths.BROKERS}")
    decoding = _Decoding(tree)
    brokers = _brokers(decoding)
    table = _partitions(decoding, [broker.broker_id for broker in brokers])
    named = {int(broker) for broker in np.unique(table.assignments.assignment)} - {-1}
    cluster_id = decoding.one(paths.CLUSTER_ID, codecs.decode_cluster_id)
    reassignments = decoding.one(paths.REASSIGN_PARTITIONS, codecs.decode_reassignments)
    elections = decoding.one(paths.PREFERRED_ELECTION, codecs.decode_preferred_election)
    return ClusterState(
        cluster_id=cluster_id.id if cluster_id else None,
        controller=decoding.one(paths.CONTROLLER, codecs.decode_controller),
        controller_epoch=decoding.one(paths.CONTROLLER_EPOCH, codecs.decode_controller_epoch),
        brokers=brokers,
        absent_brokers=tuple(sorted(named - {broker.broker_id for broker in brokers})),
        partitions=table,
        deletions=tuple(tree.children(paths.DELETE_TOPICS)),
        reassignments=reassignments.replicas if reassignments else {},
        preferred_elections=elections.partitions if elections else (),
        isr_changes=len(tree.children(paths.ISR_CHANGE_NOTIFICATION)),
        damaged=tuple(decoding.damaged),
    )


def _brokers(decoding: _Decoding) -> tuple[RegisteredBroker, ...]:
    live: list[RegisteredBroker] = []
    for name in decoding.tree.children(paths.BROKER_IDS):
        path = paths.child(paths.BROKER_IDS, name)
        row = decoding.tree.nodes[path]
        registration = decoding.data(path, row.data, sound_registration)
        broker_id = paths.broker_of(path)
        if broker_id is not None:
            live.append(RegisteredBroker(broker_id, row.stat.czxid, row.stat.ephemeral_owner, registration))
    return tuple(sorted(live, key=lambda broker: broker.broker_id))


def _partitions(decoding: _Decoding, live: Sequence[int]) -> ClusterPartitions:
    names = decoding.tree.children(paths.BROKER_TOPICS)
    topic_paths = [paths.topic(name) for name in names]
    held, senseless = sound_topics(codecs.decode_topic_assignments(decoding.columns(topic_paths), names))
    for topic in sorted({*senseless, *(topic for topic, _ in held.damaged)}):
        decoding.one(topic_paths[topic], sound_topic_assignment)
    for path, name in zip(topic_paths, names, strict=True):
        if (fault := topic_name_fault(name)) is not None:
            decoding.damaged.append(ZnodeDamage(path, fault))
    state_paths = state_paths_of(held)
    states, odd = sound_states(codecs.decode_partition_states(decoding.columns(state_paths), held.assignment.shape[1]))
    for row in odd:
        decoding.one(state_paths[row], sound_partition_state)
    for row, data in states.damaged:
        decoding.data(state_paths[row], data, sound_partition_state)
    unusable = [*odd, *(row for row, _ in states.damaged)]
    return _judged(held, states, live, unusable)


def state_paths_of(held: codecs.TopicAssignmentColumns) -> list[str]:
    """The path of each row's state."""
    found: list[str] = []
    for topic, name in enumerate(held.names):
        numbers = held.partition[held.starts[topic] : held.starts[topic + 1]].tolist()
        found += paths.partition_states(name, numbers)
    return found


def _judged(
    held: codecs.TopicAssignmentColumns,
    states: codecs.PartitionStateColumns,
    live: Sequence[int],
    unusable: Sequence[int],
) -> ClusterPartitions:
    count = len(states.leader)
    assignment, isr, leader = held.assignment, states.isr, states.leader
    unreadable = np.zeros(count, dtype=np.bool_)
    unreadable[list(unusable)] = True
    in_isr = isr >= 0
    alive = np.array(live, dtype=np.int32)
    led = np.isin(leader, alive)
    replicas = (assignment >= 0).sum(axis=1)
    for row, adding in held.adding.items():
        replicas[row] -= len(set(adding) & set(assignment[row].tolist()))
    in_sync = (np.isin(isr, alive) & in_isr).sum(axis=1)
    preferred = assignment[:, 0] if assignment.shape[1] else np.full(count, -1, dtype=np.int32)
    off_preferred = led & (preferred >= 0) & (leader != preferred)
    preferred_in_isr = (isr == preferred[:, None]).any(axis=1)
    assigned = (isr[:, :, None] == assignment[:, None, :]).any(axis=2)
    return ClusterPartitions(
        assignments=held,
        states=states,
        offline=~led & ~unreadable,
        under_replicated=states.present & (in_sync < replicas),
        off_preferred=off_preferred,
        could_move=off_preferred & np.isin(preferred, alive) & preferred_in_isr,
        leader_outside_isr=states.present & (leader >= 0) & ~(isr == leader[:, None]).any(axis=1),
        isr_outside_assignment=(in_isr & ~assigned).any(axis=1),
        unreadable=unreadable,
    )


def _members(padded: Int32s) -> tuple[int, ...]:
    return tuple(member for member in padded.tolist() if member >= 0)
