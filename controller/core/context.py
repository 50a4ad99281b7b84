"""The controller's view of its cluster during one term: the partitions as columns, and the live brokers.

It is loaded from ZooKeeper when the term starts, changes only by what was written there or read again, and is discarded
with the term. Every derived set is one vector operation over the columns; the values of gauges are updated as states
change. No I/O.

`PartitionTable` has a row a partition and no object for any. Rows are numbered 0..n-1. A row number is good until
topics are removed, which moves the rest together; no code keeps one beyond the event that it handles. Additions and
removals copy the columns once, however many topics they are of.

`FailedReplicas` are replicas that their live brokers can't serve: a log directory failed. They are known for one term,
from what the brokers answered to its LeaderAndIsr; a broker that is gone, or comes back, is asked anew. Nearly always
there are none, and then they cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from controller.core.channels import Endpoint
from controller.protocol.control import UpdateMetadataBroker
from controller.zookeeper.row_writes import StatePaths
from statemachines.leader_election_columns import is_member, live_mask
from statemachines.machine import InvalidTransition
from statemachines.partition import PARTITION, PartitionState
from statemachines.reassignment import REASSIGNMENT, Assignment, ReassignmentState
from statemachines.replica import REPLICA, ReplicaState

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


class Topic(msgspec.Struct, frozen=True):
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

    def state_paths(self, rows: Rows) -> StatePaths:
        """The paths of the state znodes, in the order of the rows; compact where rows of a topic follow each other."""
        topics, partitions = self.topic[rows], self.partition[rows].tolist()
        firsts = np.flatnonzero(np.diff(topics, prepend=-1))
        ends = [*firsts[1:].tolist(), len(rows)]
        spans = zip(topics[firsts].tolist(), firsts.tolist(), ends, strict=True) if len(rows) else ()
        return StatePaths([(self.topics[topic].name, partitions[first:end]) for topic, first, end in spans])

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


Key = tuple[str, int]


class FailedReplicas:
    """Topic and partition, by broker."""

    def __init__(self) -> None:
        self._by_broker: dict[int, set[Key]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_broker)

    def of(self, broker: int) -> frozenset[Key]:
        return frozenset(self._by_broker.get(broker, ()))

    def heard(self, broker: int, failed: Collection[Key], sound: Collection[Key]) -> frozenset[Key]:
        """Record a broker's answer for some of its replicas; return those that have failed since its last answer."""
        known = self._by_broker.get(broker, set())
        now = (known - set(sound)) | set(failed)
        if now:
            self._by_broker[broker] = now
        else:
            self._by_broker.pop(broker, None)
        return frozenset(now - known)

    def forget(self, brokers: Iterable[int]) -> None:
        for broker in brokers:
            self._by_broker.pop(broker, None)

    def forget_topics(self, names: Collection[str]) -> None:
        for broker in list(self._by_broker):
            self.heard(broker, (), [key for key in self._by_broker[broker] if key[0] in names])

    def usable(self, table: PartitionTable, rows: Rows, brokers: Int32s, mask: Bools) -> Bools:
        """`mask`, bool like `brokers` (int32[n, w] beside `rows`), without the replicas that failed."""
        for broker, keys in self._by_broker.items():
            hit = np.isin(rows, rows_of(table, keys))
            mask = mask & ~((brokers == broker) & hit[:, None])
        return mask

    def among(self, brokers: tuple[int, ...], key: Key) -> tuple[int, ...]:
        """Those of `brokers` whose replica of this partition has not failed."""
        if not self._by_broker:
            return brokers
        return tuple(broker for broker in brokers if key not in self._by_broker.get(broker, ()))


def rows_of(table: PartitionTable, keys: Iterable[Key]) -> Rows:
    known = (table.row_of(topic, partition) for topic, partition in keys)
    return np.array(sorted(row for row in known if row is not None), dtype=np.int64)


REFUSALS_NAMED = 10
"""How many of the entities whose transition was refused get into the log."""


class LiveBroker(msgspec.Struct, frozen=True):
    """One broker incarnation as registered: the address for the controller, and the addresses sent to clients."""

    endpoint: Endpoint
    advertised: UpdateMetadataBroker

    @property
    def id(self) -> int:
        return self.endpoint.broker

    @property
    def epoch(self) -> int:
        return self.endpoint.broker_epoch


class Replicas(msgspec.Struct, frozen=True, eq=False):
    """Some replicas: row numbers of their partitions, and their slots in the assignment; both int64[n]."""

    rows: Rows
    slots: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def where(cls, rows: Rows, mask: Bools) -> Replicas:
        """Return the replicas of `rows` that `mask` selects; `mask` is bool, of the shape of their assignments."""
        places, slots = np.nonzero(mask)
        return cls(rows[places], slots)


class Deletions(msgspec.Struct):
    """Topic deletions, by topic name.

    `queued`: all topics to be deleted. `ineligible`: the queued topics that have to wait, because a replica's broker is
    dead or failed to delete it, or because the topic is being reassigned. `begun`: the queued topics whose partitions
    have left their state machine. `forget_requests`: for each begun topic, the number of the request that asked each
    (broker, broker epoch) to forget the topic. Iterate over the sets in sorted order only.
    """

    queued: set[str] = msgspec.field(default_factory=set)
    ineligible: set[str] = msgspec.field(default_factory=set)
    begun: set[str] = msgspec.field(default_factory=set)
    forget_requests: dict[str, Mapping[tuple[int, int], int]] = msgspec.field(default_factory=dict)

    def forget(self, topics: Iterable[str]) -> None:
        gone = frozenset(topics)
        self.queued -= gone
        self.ineligible -= gone
        self.begun -= gone
        self.forget_requests = {name: sent for name, sent in self.forget_requests.items() if name not in gone}


class ControllerContext(msgspec.Struct):
    """The state of the cluster in this term.

    `brokers`: live and shutting-down brokers. `left_out`: topics whose znodes can't be used. `shares_id`: the topics
    of `left_out` whose id belongs to a topic that is served, each with that topic. `quarantine`: the fault of each
    znode that can't be used, by path (`core.loading`). `rewritten`: partitions whose state another client wrote,
    with the version. `waiting`: reassignments that ZooKeeper requests and that have not begun: the target by
    partition, in the order of the requests.
    `offline_partitions`: the number of partitions in the state Offline. `unclean_elections`: the number written in
    this term. `paused`: the reason why no optional move is allowed, None if such moves are allowed. `failed`: replicas
    of live brokers on failed log directories, which count as dead wherever liveness matters.
    """

    partitions: PartitionTable = msgspec.field(default_factory=PartitionTable)
    left_out: set[str] = msgspec.field(default_factory=set)
    shares_id: dict[str, str] = msgspec.field(default_factory=dict)
    quarantine: dict[str, str] = msgspec.field(default_factory=dict)
    rewritten: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)
    deletions: Deletions = msgspec.field(default_factory=Deletions)
    waiting: dict[tuple[str, int], tuple[int, ...]] = msgspec.field(default_factory=dict)
    offline_partitions: int = 0
    unclean_elections: int = 0
    paused: str | None = None
    failed: FailedReplicas = msgspec.field(default_factory=FailedReplicas)
    _brokers: dict[int, LiveBroker] = msgspec.field(default_factory=dict)
    _shutting_down: frozenset[int] = frozenset()

    # -- brokers

    @property
    def brokers(self) -> tuple[LiveBroker, ...]:
        """Live and shutting-down brokers, by id."""
        return tuple(self._brokers[broker] for broker in sorted(self._brokers))

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Live and shutting-down brokers' ids, ascending."""
        return tuple(sorted(self._brokers))

    @property
    def shutting_down(self) -> frozenset[int]:
        return self._shutting_down

    @property
    def eligible_ids(self) -> tuple[int, ...]:
        """The brokers that may become leaders or ISR members: live and not shutting down. Ascending."""
        return tuple(broker for broker in sorted(self._brokers) if broker not in self._shutting_down)

    def broker(self, broker: int) -> LiveBroker | None:
        return self._brokers.get(broker)

    def put_brokers(self, brokers: Iterable[LiveBroker]) -> None:
        """Add brokers, or replace their entries."""
        for broker in brokers:
            self._brokers[broker.id] = broker

    def remove_brokers(self, brokers: Iterable[int]) -> None:
        """Remove brokers, also from those that are shutting down."""
        for broker in brokers:
            self._brokers.pop(broker, None)
            self._shutting_down -= {broker}
            self.failed.forget((broker,))

    def mark_shutting_down(self, broker: int) -> None:
        self._shutting_down |= {broker}

    # -- replicas and partitions, by live brokers

    def eligible(self, rows: Rows) -> Bools:
        """bool beside the assignments of `rows`: replicas on live brokers that are not shutting down."""
        return self.usable(rows, self.partitions.assignment[rows], self.eligible_ids)

    def alive(self, rows: Rows) -> Bools:
        """Return the same as `eligible`, including brokers that are shutting down."""
        return self.usable(rows, self.partitions.assignment[rows], self._brokers)

    def eligible_in_isr(self, rows: Rows) -> Bools:
        """Return which ISR members are eligible, as bool of the ISRs' shape.

        A member that the assignment does not name is not eligible.
        """
        isr = self.partitions.isr[rows]
        assigned: Bools = is_member(isr, self.partitions.assignment[rows])
        return assigned & self.usable(rows, isr, self.eligible_ids)

    def led(self, rows: Rows) -> Bools:
        """Return, as bool by row, which leaders are eligible replicas."""
        leaders = self.partitions.leader[rows][:, None]
        beside: Bools = self.usable(rows, leaders, self.eligible_ids)[:, 0]
        return beside

    def usable(self, rows: Rows, brokers: Int32s, living: Collection[int]) -> Bools:
        """bool like `brokers` (int32[n, w] beside `rows`): those among `living` whose replica has not failed."""
        return self.failed.usable(self.partitions, rows, brokers, live_mask(brokers, living))

    def replicas(self, keys: Iterable[tuple[str, int]], broker: int) -> Replicas:
        """Return the replicas of these partitions that the broker has."""
        rows = rows_of(self.partitions, keys)
        return Replicas.where(rows, self.partitions.assignment[rows] == broker)

    def replicas_on(self, brokers: Collection[int]) -> Replicas:
        rows = self.partitions.all_rows()
        return Replicas.where(rows, live_mask(self.partitions.assignment, brokers))

    def rows_with_state(self) -> Rows:
        return np.flatnonzero(self.partitions.zk_version != NO_STATE)

    def rows_without_eligible_leader(self) -> Rows:
        """Return partitions with a state that have no leader, or one that is dead or shutting down.

        Partitions of topics that are queued for deletion are excluded: they need no leader.
        """
        led = self.led(self.partitions.all_rows())
        return self.not_deleting(np.flatnonzero((self.partitions.zk_version != NO_STATE) & ~led))

    def rows_to_elect(self, *states: PartitionState) -> Rows:
        """Return partitions in one of these states, except those of topics that are queued for deletion."""
        return self.not_deleting(np.flatnonzero(np.isin(self.partitions.partition_state, states)))

    def queued_for_deletion(self, rows: Rows) -> Bools:
        """Return, as bool by row, which partitions' topics are queued for deletion."""
        names = self.deletions.queued
        if not names:
            return np.zeros(len(rows), dtype=np.bool_)
        numbers = [number for number, topic in enumerate(self.partitions.topics) if topic.name in names]
        found: Bools = np.isin(self.partitions.topic[rows], numbers)
        return found

    def not_deleting(self, rows: Rows) -> Rows:
        """Return the rows whose topics are not being deleted."""
        return rows[~self.deleting(rows)] if self.deletions.queued else rows

    def moving_topics(self) -> frozenset[str]:
        """Return the topics that are being reassigned."""
        rows = np.array(self.partitions.moving_rows(), dtype=np.int64)
        return frozenset(self.partitions.names_of_topics(rows))

    def deleting(self, rows: Rows) -> Bools:
        """Return, as bool by row, which topics are being deleted.

        Brokers are asked to forget these topics, and no leaders are elected for them. A topic that is queued for
        deletion while it is being reassigned is not included: its reassignment ends only when the new replicas are in
        sync, which requires a leader and brokers that know the topic.
        """
        deleting = self.queued_for_deletion(rows)
        if deleting.any() and (moving := self.moving_topics()):
            kept = [number for number, topic in enumerate(self.partitions.topics) if topic.name in moving]
            deleting &= ~np.isin(self.partitions.topic[rows], kept)
        return deleting

    # -- the state machines' columns

    def move_partitions(self, rows: Rows, target: PartitionState) -> Rows:
        """Move partitions to `target`; return the rows for which the machine does not allow it, left as they were."""
        column = self.partitions.partition_state
        before = int(np.count_nonzero(column[rows] == PartitionState.Offline))
        refused: Rows = PARTITION.move_column(column, rows, target).astype(np.int64)
        self.offline_partitions += int(np.count_nonzero(column[rows] == PartitionState.Offline)) - before
        return refused

    def move_replicas(self, replicas: Replicas, target: ReplicaState) -> Replicas:
        """Move replicas to `target`; return those for which the machine does not allow it, left as they were."""
        flat, width = self.partitions.replica_state.reshape(-1), self.partitions.width
        refused: Rows = REPLICA.move_column(flat, replicas.rows * width + replicas.slots, target).astype(np.int64)
        return Replicas(refused // max(width, 1), refused % max(width, 1))

    def move_all_partitions(self, rows: Rows, target: PartitionState) -> None:
        """Move partitions to `target`. Raises InvalidTransition if the machine does not allow it for one of them."""
        for error in self.partition_refusals(self.move_partitions(rows, target), target):
            raise error

    def move_all_replicas(self, replicas: Replicas, target: ReplicaState) -> None:
        """Move replicas to `target`. Raises InvalidTransition if the machine does not allow it for one of them."""
        for error in self.replica_refusals(self.move_replicas(replicas, target), target):
            raise error

    def partition_refusals(self, refused: Rows, target: PartitionState) -> tuple[InvalidTransition, ...]:
        """Return the errors of rows that `move_partitions` refused, of the first few."""
        table = self.partitions
        return PARTITION.refusals(table.partition_state, refused[:REFUSALS_NAMED], target, table.name_of)

    def replica_refusals(self, refused: Replicas, target: ReplicaState) -> tuple[InvalidTransition, ...]:
        """Return the errors of replicas that `move_replicas` refused, of the first few."""
        table = self.partitions

        def key_of(number: int) -> str:
            row, slot = divmod(number, table.width)
            return f"{table.name_of(row)} on broker {table.assignment[row, slot]}"

        numbers = (refused.rows * table.width + refused.slots)[:REFUSALS_NAMED]
        return REPLICA.refusals(table.replica_state.reshape(-1), numbers, target, key_of)

    def reassignment_state(self, row: int) -> ReassignmentState:
        """Return where the partition's reassignment is, from what the columns and the requests say."""
        table = self.partitions
        if row in table.leaving:
            return ReassignmentState.Completing
        if row in table.adding or row in table.removing:
            return ReassignmentState.Adding
        if self.waiting and table.topic_and_partition(row) in self.waiting:
            return ReassignmentState.Waiting
        return ReassignmentState.Settled

    def require_reassignment(self, rows: Iterable[int], target: ReassignmentState) -> None:
        """Raise InvalidTransition if the machine does not allow one of these reassignments to enter `target`."""
        for row in rows:
            REASSIGNMENT.require(self.reassignment_state(row), target, partial(self.partitions.name_of, row))

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Every row number from before is void."""
        names = list(topics)
        self.deletions.forget(names)
        self.failed.forget_topics(frozenset(names))
        self.partitions.remove_topics(names)
        self.offline_partitions = int(np.count_nonzero(self.partitions.partition_state == PartitionState.Offline))

    def put_states(
        self,
        rows: Rows,
        leader: Int32s,
        leader_epoch: Int32s,
        controller_epoch: Int32s | int,
        isr: Int32s,
        version: Int32s,
    ) -> None:
        """Store the states that ZooKeeper has for these partitions now."""
        table = self.partitions
        table.widen(isr.shape[1])
        table.count_off_preferred(rows, -1)
        table.leader[rows] = leader
        table.leader_epoch[rows] = leader_epoch
        table.controller_epoch[rows] = controller_epoch
        table.isr[rows, : isr.shape[1]] = isr
        table.isr[rows, isr.shape[1] :] = -1
        table.zk_version[rows] = version
        table.count_off_preferred(rows, 1)

    def drop_states(self, rows: Rows) -> None:
        """These partitions have no state in ZooKeeper, or none that can be read."""
        none = np.full((len(rows), self.partitions.width), -1, dtype=np.int32)
        gone = np.full(len(rows), NO_STATE, dtype=np.int32)
        self.put_states(rows, gone, np.zeros(len(rows), dtype=np.int32), 0, none, gone)
