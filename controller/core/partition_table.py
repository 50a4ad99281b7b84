"""All partitions of the cluster as numpy columns: a row a partition, no object for any.

Rows are numbered 0..n-1. A row number is good until topics are removed, which moves the rest together; nothing keeps
one beyond the event that it handles. Additions and removals copy the columns once, however many topics they are of.
Plain data: no I/O, no rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statemachines.partition import PartitionState
from statemachines.reassignment import Assignment
from statemachines.replica import ReplicaState

Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

INT32_MAX = 2**31 - 1
NO_BROKER = -1
NO_STATE = -1
"""As `zk_version`: the partition has no state znode, or none that can be read."""

_NO_ROWS: Rows = np.empty(0, dtype=np.int64)
_SINGLE = ("topic", "partition", "leader", "leader_epoch", "controller_epoch", "zk_version", "partition_state")
_WIDE = ("assignment", "isr", "replica_state")
_SPARSE = ("adding", "removing", "leaving", "extra")


@dataclass(frozen=True, slots=True)
class Topic:
    """`id` is its 16 bytes, all zero for none. `rows` are its partitions', by partition."""

    name: str
    id: bytes
    rows: Rows


class PartitionTable:
    """By row: `topic` (index into `topics`), `partition`, `leader` (-1: none), `leader_epoch`, `controller_epoch`,
    `zk_version` (`NO_STATE`: no state) int32[n]; `partition_state` uint8[n]; `assignment` and `isr` int32[n, width],
    padded with -1 at the end; `replica_state` uint8[n, width], beside the assignment. Sparse, by row number: `adding`
    and `removing` (of partitions that are being reassigned), `leaving` (replicas that are out of the assignment here,
    and not yet in ZooKeeper) and `extra` (the bytes of states with unknown fields).
    """

    def __init__(self) -> None:
        self.topics: list[Topic] = []
        self._index: dict[str, int] = {}
        self.topic: Int32s = np.empty(0, dtype=np.int32)
        self.partition: Int32s = np.empty(0, dtype=np.int32)
        self.leader: Int32s = np.empty(0, dtype=np.int32)
        self.leader_epoch: Int32s = np.empty(0, dtype=np.int32)
        self.controller_epoch: Int32s = np.empty(0, dtype=np.int32)
        self.zk_version: Int32s = np.empty(0, dtype=np.int32)
        self.partition_state: Bytes = np.empty(0, dtype=np.uint8)
        self.assignment: Int32s = np.empty((0, 0), dtype=np.int32)
        self.isr: Int32s = np.empty((0, 0), dtype=np.int32)
        self.replica_state: Bytes = np.empty((0, 0), dtype=np.uint8)
        self.adding: dict[int, tuple[int, ...]] = {}
        self.removing: dict[int, tuple[int, ...]] = {}
        self.leaving: dict[int, tuple[int, ...]] = {}
        self.off_preferred = 0
        """How many rows `are_off_preferred`, kept as they change."""
        self.extra: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.topic)

    @property
    def width(self) -> int:
        return int(self.assignment.shape[1])

    # -- finding

    def __contains__(self, topic: object) -> bool:
        return topic in self._index

    def topic_named(self, name: str) -> Topic | None:
        number = self._index.get(name)
        return None if number is None else self.topics[number]

    def row_of(self, topic: str, partition: int) -> int | None:
        known = self.topic_named(topic)
        if known is None or not 0 <= partition <= INT32_MAX:
            return None
        rows = known.rows
        if partition < len(rows) and self.partition[rows[partition]] == partition:
            return int(rows[partition])  # as in nearly every topic: numbered from 0 without a gap
        place = int(np.searchsorted(self.partition[rows], partition))
        return int(rows[place]) if place < len(rows) and self.partition[rows[place]] == partition else None

    def all_rows(self) -> Rows:
        return np.arange(len(self), dtype=np.int64)

    def rows_in(self, topic: str, partitions: Sequence[int]) -> list[int | None]:
        """As `row_of`, of each."""
        known = self.topic_named(topic)
        if known is None:
            return [None] * len(partitions)
        asked = np.array(partitions, dtype=np.int64)
        if not len(known.rows):
            return [None] * len(partitions)
        rows = known.rows[np.clip(asked, 0, len(known.rows) - 1)]
        there = self.partition[rows] == asked
        if there.all():
            return list(rows.tolist())
        return [self.row_of(topic, partition) for partition in partitions]

    def topics_and_partitions(self, rows: Rows) -> list[tuple[str, int]]:
        """As `topic_and_partition`, of each."""
        topics = self.topics
        numbers, partitions = self.topic[rows].tolist(), self.partition[rows].tolist()
        return [(topics[number].name, partition) for number, partition in zip(numbers, partitions, strict=True)]

    def name_of(self, row: int) -> str:
        """As Kafka writes it: topic-partition."""
        return f"{self.topics[self.topic[row]].name}-{self.partition[row]}"

    def topic_and_partition(self, row: int) -> tuple[str, int]:
        return self.topics[self.topic[row]].name, int(self.partition[row])

    def names_of_topics(self, rows: Rows) -> tuple[str, ...]:
        """The topics that these rows are of, each once."""
        return tuple(self.topics[number].name for number in np.unique(self.topic[rows]).tolist())

    def assignment_of(self, row: int) -> tuple[int, ...]:
        return members(self.assignment[row])

    def isr_of(self, row: int) -> tuple[int, ...]:
        return members(self.isr[row])

    def moving_rows(self) -> list[int]:
        """Partitions that are being reassigned, by row."""
        return sorted(self.adding.keys() | self.removing.keys())

    def reassignment_of(self, row: int) -> Assignment:
        return Assignment(self.assignment_of(row), self.adding.get(row, ()), self.removing.get(row, ()))

    # -- growing and shrinking

    def widen(self, width: int) -> None:
        """Makes room for `width` replicas a partition."""
        more = width - self.width
        if more > 0:
            for name in _WIDE:
                column = getattr(self, name)
                fill = ReplicaState.NonExistent if column.dtype == np.uint8 else NO_BROKER
                setattr(self, name, np.pad(column, ((0, 0), (0, more)), constant_values=fill))

    def add(
        self,
        topics: Sequence[tuple[str, bytes]],
        topic_index: Int32s,
        partition: Int32s,
        assignment: Int32s,
        adding: Mapping[int, tuple[int, ...]],
        removing: Mapping[int, tuple[int, ...]],
    ) -> Rows:
        """Adds partitions, and the topics among (name, id) that are new; gives their rows. They have no state yet.

        `topic_index` says which of `topics` each row is of; by topic, partitions ascend. `adding` and `removing` are
        by row among the new ones. A partition that is there already is the caller's mistake.
        """
        first, count = len(self), len(partition)
        self.widen(assignment.shape[1])
        numbers = np.array([self._number(name, topic_id) for name, topic_id in topics], dtype=np.int32)
        wide = np.full((count, self.width), NO_BROKER, dtype=np.int32)
        wide[:, : assignment.shape[1]] = assignment
        new: dict[str, npt.NDArray[np.generic]] = {
            "topic": numbers[topic_index] if count else np.empty(0, dtype=np.int32),
            "partition": partition.astype(np.int32),
            "leader": np.full(count, NO_BROKER, dtype=np.int32),
            "leader_epoch": np.zeros(count, dtype=np.int32),
            "controller_epoch": np.zeros(count, dtype=np.int32),
            "zk_version": np.full(count, NO_STATE, dtype=np.int32),
            "partition_state": np.full(count, PartitionState.NonExistent, dtype=np.uint8),
            "assignment": wide,
            "isr": np.full((count, self.width), NO_BROKER, dtype=np.int32),
            "replica_state": np.full((count, self.width), ReplicaState.NonExistent, dtype=np.uint8),
        }
        for name, column in new.items():
            setattr(self, name, np.concatenate((getattr(self, name), column)) if first else column)
        self.adding.update({first + row: replicas for row, replicas in adding.items()})
        self.removing.update({first + row: replicas for row, replicas in removing.items()})
        rows = np.arange(first, first + count, dtype=np.int64)
        self._index_rows(numbers.tolist(), rows)
        return rows

    def _number(self, name: str, topic_id: bytes) -> int:
        number = self._index.get(name)
        if number is None:
            number = self._index[name] = len(self.topics)
            self.topics.append(Topic(name, topic_id, _NO_ROWS))
        return number

    def _index_rows(self, numbers: Iterable[int], rows: Rows) -> None:
        """Puts new rows, grouped by topic, into their topics' lists."""
        ends = np.flatnonzero(np.diff(self.topic[rows], append=-1)) + 1
        start = 0
        for end in ends.tolist():
            added = rows[start:end]
            topic = self.topics[self.topic[added[0]]]
            joined = added if not len(topic.rows) else np.concatenate((topic.rows, added))
            if len(topic.rows) and self.partition[added[0]] < self.partition[topic.rows[-1]]:
                joined = joined[np.argsort(self.partition[joined], kind="stable")]
            self.topics[self.topic[added[0]]] = Topic(topic.name, topic.id, joined)
            start = end

    def are_off_preferred(self, rows: Rows) -> Bools:
        """bool beside `rows`: partitions with a state whose leader, if they have one, is not their assignment's first
        replica."""
        if not self.width:
            return np.zeros(len(rows), dtype=np.bool_)
        preferred = self.assignment[rows, 0]
        known = (self.zk_version[rows] != NO_STATE) & (preferred != NO_BROKER)
        off: Bools = known & (self.leader[rows] != preferred)
        return off

    def count_off_preferred(self, rows: Rows, times: int) -> None:
        """Around a change of these rows: -1 before it, 1 after it."""
        self.off_preferred += times * int(np.count_nonzero(self.are_off_preferred(rows)))

    def set_assignment(self, row: int, assignment: Assignment) -> dict[int, int]:
        """Another set of replicas, or another order. Each that stays keeps its state, one that is new is NonExistent;
        gives the states of those that are no replicas any more, by broker."""
        changed = np.array([row], dtype=np.int64)
        self.count_off_preferred(changed, -1)
        replicas = assignment.replicas
        states = dict(zip(self.assignment_of(row), self.replica_state[row].tolist(), strict=False))
        self.widen(len(replicas))
        self.assignment[row] = NO_BROKER
        self.assignment[row, : len(replicas)] = replicas
        self.replica_state[row] = ReplicaState.NonExistent
        self.replica_state[row, : len(replicas)] = [
            states.pop(broker, int(ReplicaState.NonExistent)) for broker in replicas
        ]
        for sparse, named in ((self.adding, assignment.adding), (self.removing, assignment.removing)):
            sparse.pop(row, None)
            if named:
                sparse[row] = named
        self.count_off_preferred(changed, 1)
        return states

    def set_topic_id(self, name: str, topic_id: bytes) -> None:
        number = self._index[name]
        self.topics[number] = Topic(name, topic_id, self.topics[number].rows)

    def remove_topics(self, names: Iterable[str]) -> None:
        """Forgets topics and their rows. Every row number from before is void."""
        gone = {self._index[name] for name in names if name in self._index}
        if not gone:
            return
        keep_topic = np.ones(len(self.topics), dtype=np.bool_)
        keep_topic[sorted(gone)] = False
        keep = keep_topic[self.topic] if len(self) else np.empty(0, dtype=np.bool_)
        moved_to = np.cumsum(keep) - 1
        topic_moved_to = (np.cumsum(keep_topic) - 1).astype(np.int32)
        for name in (*_SINGLE, *_WIDE):
            setattr(self, name, getattr(self, name)[keep])
        self.topic = topic_moved_to[self.topic]
        for name in _SPARSE:
            kept = {int(moved_to[row]): value for row, value in getattr(self, name).items() if keep[row]}
            setattr(self, name, kept)
        self.topics = [
            Topic(topic.name, topic.id, moved_to[topic.rows])
            for number, topic in enumerate(self.topics)
            if number not in gone
        ]
        self._index = {topic.name: number for number, topic in enumerate(self.topics)}
        self.off_preferred = int(np.count_nonzero(self.are_off_preferred(self.all_rows())))


def members(row: Int32s) -> tuple[int, ...]:
    """The broker ids of one row of a padded column."""
    brokers = row.tolist()
    return tuple(brokers) if NO_BROKER not in brokers else tuple(one for one in brokers if one != NO_BROKER)


def all_members(column: Int32s) -> list[tuple[int, ...]]:
    """As `members`, of every row of a padded column; the same object for those that are the same."""
    sets: dict[tuple[int, ...], tuple[int, ...]] = {}
    found = []
    for row in map(tuple, column.tolist()):
        known = sets.get(row)
        if known is None:
            known = row if NO_BROKER not in row else tuple([one for one in row if one != NO_BROKER])
            sets[row] = known = sets.setdefault(known, known)
        found.append(known)
    return found


def padded(sets: Sequence[Sequence[int]], width: int = 0) -> Int32s:
    """int32[n, at least `width`] of some sets of broker ids, -1 after them. For the few, not for bulk."""
    widest = max((len(one) for one in sets), default=0)
    column = np.full((len(sets), max(width, widest)), NO_BROKER, dtype=np.int32)
    for row, one in enumerate(sets):
        column[row, : len(one)] = one
    return column
