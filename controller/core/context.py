"""What a controller knows of its cluster during one term: the partitions in columns, and the brokers that live.

Loaded from ZooKeeper at the term's start, changed only by what was written there or read again, dropped with the
term. Every derived set is one vector operation over the columns; what a gauge shows is kept as states change. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from controller.core.failed_replicas import FailedReplicas, rows_of
from controller.core.partition_table import NO_STATE, Bools, Bytes, Int32s, PartitionTable, Rows
from controller.core.ports import Endpoint
from controller.protocol.control_values import UpdateMetadataBroker
from statemachines.leader_election_columns import is_member, live_mask
from statemachines.partition import PartitionState
from statemachines.replica import ReplicaState
from statemachines.tables import PARTITION, REPLICA


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """One life of a broker, as its registration says: where the controller reaches it, and what clients are told."""

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
        """Those of `rows` that `mask`, bool beside their assignments, picks."""
        places, slots = np.nonzero(mask)
        return cls(rows[places], slots)


@dataclass(slots=True)
class Deletions:
    """Topics by name. `queued`: all that are to be deleted. Of those, `ineligible`: what can't go on for now, since a
    replica's broker is dead, or failed to delete it, or the topic is being reassigned; `begun`: whose partitions have
    left their state machine. Sets that are asked, and walked only in order. `told`: for those that are begun, the
    number of the request that told each (broker, broker epoch) to forget the topic."""

    queued: set[str] = field(default_factory=set)
    ineligible: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    told: dict[str, Mapping[tuple[int, int], int]] = field(default_factory=dict)

    def forget(self, topics: Iterable[str]) -> None:
        gone = frozenset(topics)
        self.queued -= gone
        self.ineligible -= gone
        self.begun -= gone
        self.told = {name: requests for name, requests in self.told.items() if name not in gone}


@dataclass(slots=True)
class ControllerContext:
    """`brokers`: live and shutting-down ones. `left_out`: topics whose znodes can't be used. `shares_id`: those
    among them that have the id of a topic which is served, and that topic. `quarantine`: what is wrong with each znode
    that can't be used, by path (`core.quarantine`). `rewritten`: partitions whose state somebody else
    wrote, with the version. `waiting`: reassignments that are asked for in ZooKeeper and not begun, the target by
    partition, in the order in which they were asked for.
    `offline_partitions`: how many partitions are in the state Offline. `unclean_elections`: how many were written in
    this term. `paused`: why nothing may be moved by choice, None if it may. `failed`: replicas of live brokers on log
    directories that failed, which are taken for dead wherever it matters who lives."""

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
        """Adds brokers, or replaces what was known of them."""
        for broker in brokers:
            self._brokers[broker.id] = broker

    def remove_brokers(self, brokers: Iterable[int]) -> None:
        """A broker that is gone does not shut down any more either."""
        for broker in brokers:
            self._brokers.pop(broker, None)
            self._shutting_down -= {broker}
            self.failed.forget((broker,))

    def mark_shutting_down(self, broker: int) -> None:
        self._shutting_down |= {broker}

    # -- replicas and partitions, by what brokers live

    def eligible(self, rows: Rows) -> Bools:
        """bool beside the assignments of `rows`: replicas on live brokers that are not shutting down."""
        return self.usable(rows, self.partitions.assignment[rows], self.eligible_ids)

    def alive(self, rows: Rows) -> Bools:
        """As `eligible`, with the brokers that are shutting down."""
        return self.usable(rows, self.partitions.assignment[rows], self._brokers)

    def eligible_in_isr(self, rows: Rows) -> Bools:
        """As `eligible`, beside the ISRs. A member that the assignment does not name is not eligible."""
        isr = self.partitions.isr[rows]
        assigned: Bools = is_member(isr, self.partitions.assignment[rows])
        return assigned & self.usable(rows, isr, self.eligible_ids)

    def led(self, rows: Rows) -> Bools:
        """bool beside `rows`: whether the leader is an eligible replica."""
        leaders = self.partitions.leader[rows][:, None]
        beside: Bools = self.usable(rows, leaders, self.eligible_ids)[:, 0]
        return beside

    def usable(self, rows: Rows, brokers: Int32s, living: Collection[int]) -> Bools:
        """bool like `brokers` (int32[n, w] beside `rows`): those among `living` whose replica has not failed."""
        return self.failed.usable(self.partitions, rows, brokers, live_mask(brokers, living))

    def replicas(self, keys: Iterable[tuple[str, int]], broker: int) -> Replicas:
        """That broker's replicas of these partitions, of those that it has."""
        rows = rows_of(self.partitions, keys)
        return Replicas.where(rows, self.partitions.assignment[rows] == broker)

    def replicas_on(self, brokers: Collection[int]) -> Replicas:
        rows = self.partitions.all_rows()
        return Replicas.where(rows, live_mask(self.partitions.assignment, brokers))

    def rows_with_state(self) -> Rows:
        return np.flatnonzero(self.partitions.zk_version != NO_STATE)

    def rows_led_by_nobody_eligible(self) -> Rows:
        """Partitions with a state whose leader is none, dead or shutting down. None is sought for a topic that is
        queued for deletion."""
        led = self.led(self.partitions.all_rows())
        return self.staying(np.flatnonzero((self.partitions.zk_version != NO_STATE) & ~led))

    def rows_to_elect(self, *states: PartitionState) -> Rows:
        """Partitions in one of these states, but for those whose topics are queued for deletion."""
        return self.staying(np.flatnonzero(np.isin(self.partitions.partition_state, states)))

    def queued(self, rows: Rows) -> Bools:
        """bool beside `rows`: whether the topic is queued for deletion."""
        names = self.deletions.queued
        if not names:
            return np.zeros(len(rows), dtype=np.bool_)
        numbers = [number for number, topic in enumerate(self.partitions.topics) if topic.name in names]
        found: Bools = np.isin(self.partitions.topic[rows], numbers)
        return found

    def staying(self, rows: Rows) -> Rows:
        """Those of `rows` that are not `doomed`."""
        return rows[~self.doomed(rows)] if self.deletions.queued else rows

    def moving_topics(self) -> frozenset[str]:
        """Topics that are being reassigned."""
        rows = np.array(self.partitions.moving_rows(), dtype=np.int64)
        return frozenset(self.partitions.names_of_topics(rows))

    def doomed(self, rows: Rows) -> Bools:
        """bool beside `rows`: whether the topic is on its way out: brokers are told to forget it, nobody is elected for
        it. One that is queued for deletion and being reassigned still is not: to end that, its replicas have to come
        into sync, which takes a leader, and brokers that know it."""
        doomed = self.queued(rows)
        if doomed.any() and (moving := self.moving_topics()):
            kept = [number for number, topic in enumerate(self.partitions.topics) if topic.name in moving]
            doomed &= ~np.isin(self.partitions.topic[rows], kept)
        return doomed

    # -- the state machines' columns

    def move_partitions(self, rows: Rows, target: PartitionState) -> Rows:
        """Moves those that may; gives those that may not, left as they were."""
        column = self.partitions.partition_state
        before = int(np.count_nonzero(column[rows] == PartitionState.Offline))
        refused: Rows = PARTITION.move_column(column, rows, target).astype(np.int64)
        self.offline_partitions += int(np.count_nonzero(column[rows] == PartitionState.Offline)) - before
        return refused

    def move_replicas(self, replicas: Replicas, target: ReplicaState) -> Replicas:
        """Moves those that may; gives those that may not, left as they were."""
        flat, width = self.partitions.replica_state.reshape(-1), self.partitions.width
        refused: Rows = REPLICA.move_column(flat, replicas.rows * width + replicas.slots, target).astype(np.int64)
        return Replicas(refused // max(width, 1), refused % max(width, 1))

    def set_partition_states(self, rows: Rows, states: Bytes) -> None:
        """As a term begins: what the columns show, not a move."""
        column = self.partitions.partition_state
        before = int(np.count_nonzero(column[rows] == PartitionState.Offline))
        column[rows] = states
        self.offline_partitions += int(np.count_nonzero(states == PartitionState.Offline)) - before

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
        """What ZooKeeper holds for these partitions now."""
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
