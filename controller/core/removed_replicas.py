"""Replicas that a partition's assignment names no more: stopped, out of the ISR, deleted (Kafka's
stopRemovedReplicasOfReassignedPartition). Their states live here, since the table has no place for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controller.core import replica_moves
from controller.core.context import Replicas
from controller.core.partition_table import NO_STATE, Bytes, Int32s, Rows, padded
from controller.core.request_batch import RequestBatch
from controller.core.term import Term
from controller.trace import PartitionMoved
from statemachines.leader_election_columns import live_mask
from statemachines.replica import REPLICA, ReplicaState


@dataclass(frozen=True, slots=True, eq=False)
class Removed:
    """A replica a place: `rows` int64[n], `brokers` int32[n], `states` uint8[n]."""

    rows: Rows
    brokers: Int32s
    states: Bytes

    @classmethod
    def of(cls, states: Mapping[int, Mapping[int, int]]) -> Removed:
        """By row, the states by broker, as `PartitionTable.set_assignment` gives them."""
        flat = [(row, broker, state) for row, of_row in states.items() for broker, state in of_row.items()]
        rows, brokers, numbers = zip(*flat, strict=True) if flat else ((), (), ())
        return cls(np.array(rows, dtype=np.int64), np.array(brokers, dtype=np.int32), np.array(numbers, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.rows)


async def stop(term: Term, removed: Removed, *, every_leader: bool = False) -> None:
    """Stop and delete the replicas, without waiting for their brokers' answers.

    A broker that is dead, or fails, keeps its data. A later topic of the same name does not use it, because its id
    differs. Rows whose leader was among the removed replicas have no leader afterwards.

    `every_leader`: leaders that know them as replicas get a new leader epoch, whether they were in the ISR or not. In
    the epoch that it knows, a leader ignores the smaller set of replicas, and below inter-broker protocol 2.7 it could
    write them into the ISR.
    """
    if not len(removed):
        return
    _move(term, removed, ReplicaState.Offline)
    context, table = term.context, term.context.partitions
    rows = np.unique(removed.rows)
    batch = RequestBatch(term)
    batch.stop_on(removed.rows, removed.brokers)
    leaving = [removed.brokers[removed.rows == row].tolist() for row in rows.tolist()]
    known = table.zk_version[rows] != NO_STATE
    await replica_moves.shrink(term, rows[known], padded(leaving)[known], every_leader=every_leader)
    notified = rows[(table.zk_version[rows] != NO_STATE) & ~context.deleting(rows)]
    batch.leader_and_isr(Replicas.where(notified, live_mask(table.assignment[notified], context.broker_ids)))
    batch.send()
    _move(term, removed, ReplicaState.DeletionStarted)
    batch = RequestBatch(term)
    batch.stop_on(removed.rows, removed.brokers, delete=True)
    batch.send()
    _move(term, removed, ReplicaState.DeletionSuccessful)
    _move(term, removed, ReplicaState.NonExistent)


def _move(term: Term, removed: Removed, target: ReplicaState) -> None:
    table, places = term.context.partitions, np.arange(len(removed))
    sources = removed.states.copy()
    refused = REPLICA.move_column(removed.states, places, target)

    def name_of(place: int) -> str:
        return f"{table.name_of(int(removed.rows[place]))} on broker {removed.brokers[place]}"

    for error in REPLICA.refusals(removed.states, refused[:10], target, name_of):
        term.note("error", str(error))
    if not term.trace.enabled:
        return
    for place in places[~np.isin(places, refused)].tolist():
        topic, partition = table.topic_and_partition(int(removed.rows[place]))
        source, broker = ReplicaState(int(sources[place])).name, int(removed.brokers[place])
        term.trace.emit(PartitionMoved(term.epoch, topic, partition, broker, source, target.name))
