"""The controller's view of its cluster during one term: the partitions as columns, and the live brokers.

It is loaded from ZooKeeper when the term starts, changes only by what was written there or read again, and is
discarded with the term. Every derived set is one vector operation over the columns; the values of gauges are updated
as states change. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from controller.core.failed_replicas import FailedReplicas, rows_of
from controller.core.partition_table import NO_STATE, Bools, Int32s, PartitionTable, Rows
from controller.core.ports import Endpoint
from controller.protocol.control import UpdateMetadataBroker
from statemachines.leader_election_columns import is_member, live_mask
from statemachines.machine import InvalidTransition
from statemachines.partition import PARTITION, PartitionState
from statemachines.reassignment import REASSIGNMENT, ReassignmentState
from statemachines.replica import REPLICA, ReplicaState

REFUSALS_NAMED = 10
"""How many of the entities whose transition was refused get into the log."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """One broker incarnation as registered: the address for the controller, and the addresses sent to clients."""

    endpoint: Endpoint
    advertised: UpdateMetadataBroker

    @property
    def id(self) -> int:
        return self.endpoint.broker

    @property
    def epoch(self) -> int:
        return self.endpoint.broker_epoch


@dataclass(frozen=True, slots=True, eq=False)
class Replicas:
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


@dataclass(slots=True)
class Deletions:
    """Topic deletions, by topic name.

    `queued`: all topics to be deleted. `ineligible`: the queued topics that have to wait, because a replica's broker is
    dead or failed to delete it, or because the topic is being reassigned. `begun`: the queued topics whose partitions
    have left their state machine. `forget_requests`: for each begun topic, the number of the request that asked each
    (broker, broker epoch) to forget the topic. Iterate over the sets in sorted order only.
    """

    queued: set[str] = field(default_factory=set)
    ineligible: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    forget_requests: dict[str, Mapping[tuple[int, int], int]] = field(default_factory=dict)

    def forget(self, topics: Iterable[str]) -> None:
        gone = frozenset(topics)
        self.queued -= gone
        self.ineligible -= gone
        self.begun -= gone
        self.forget_requests = {name: sent for name, sent in self.forget_requests.items() if name not in gone}


@dataclass(slots=True)
class ControllerContext:
    """The state of the cluster in this term.

    `brokers`: live and shutting-down brokers. `left_out`: topics whose znodes can't be used. `shares_id`: the topics
    of `left_out` whose id belongs to a topic that is served, each with that topic. `quarantine`: the fault of each
    znode that can't be used, by path (`core.quarantine`). `rewritten`: partitions whose state another client wrote,
    with the version. `waiting`: reassignments that ZooKeeper requests and that have not begun: the target by
    partition, in the order of the requests.
    `offline_partitions`: the number of partitions in the state Offline. `unclean_elections`: the number written in
    this term. `paused`: the reason why no optional move is allowed, None if such moves are allowed. `failed`: replicas
    of live brokers on failed log directories, which count as dead wherever liveness matters.
    """

    partitions: PartitionTable = field(default_factory=PartitionTable)
    left_out: set[str] = field(default_factory=set)
    shares_id: dict[str, str] = field(default_factory=dict)
    quarantine: dict[str, str] = field(default_factory=dict)
    rewritten: dict[tuple[str, int], int] = field(default_factory=dict)
    deletions: Deletions = field(default_factory=Deletions)
    waiting: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    offline_partitions: int = 0
    unclean_elections: int = 0
    paused: str | None = None
    failed: FailedReplicas = field(default_factory=FailedReplicas)
    _brokers: dict[int, LiveBroker] = field(default_factory=dict)
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
