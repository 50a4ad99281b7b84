"""Replica state transitions, many at once, with their writes to ZooKeeper and their requests to brokers.

The compiled table decides which transitions are allowed; a replica whose transition is not allowed keeps its state and
is named in the log.
"""

from __future__ import annotations

import numpy as np

from controller.core.context import Replicas
from controller.core.partition_table import NO_BROKER, NO_STATE, Bools, Int32s, Rows
from controller.core.request_batch import RequestBatch
from controller.core.state_writes import NewStates, names_of, set_states
from controller.core.term import Term
from controller.trace import PartitionMoved
from statemachines.leader_election_columns import is_member, live_mask
from statemachines.replica import ReplicaState

_NAMES = {int(state): state.name for state in ReplicaState}
SHRINK_ROUNDS = 5
"""How often the removal from an ISR is decided anew because the state had moved."""


def move(term: Term, replicas: Replicas, target: ReplicaState) -> Replicas:
    """Move replicas in the context only, and return those that moved."""
    table = term.context.partitions
    sources = table.replica_state[replicas.rows, replicas.slots]
    refused = term.context.move_replicas(replicas, target)
    if not len(refused):
        moved = replicas
    else:
        for error in term.context.replica_refusals(refused, target):
            term.note("error", str(error))
        stayed = np.isin(replicas.rows * table.width + replicas.slots, refused.rows * table.width + refused.slots)
        moved, sources = pick(replicas, ~stayed), sources[~stayed]
    if term.trace.enabled:
        brokers = table.assignment[moved.rows, moved.slots].tolist()
        keys = table.topics_and_partitions(moved.rows)
        epoch, emit, now = term.epoch, term.trace.emit, target.name
        for (topic, partition), broker, source in zip(keys, brokers, sources.tolist(), strict=True):
            emit(PartitionMoved(epoch, topic, partition, broker, _NAMES[source], now))
    return moved


def make_new(term: Term, replicas: Replicas) -> None:
    """Move replicas of partitions that are being created to New; they are notified only when there is a leader."""
    move(term, replicas, ReplicaState.New)


def bring_online(term: Term, replicas: Replicas, batch: RequestBatch) -> None:
    """Move replicas on live brokers to Online.

    A replica that was New has already been sent its partition's first state; any other is sent its partition's current
    state.
    """
    table = term.context.partitions
    new = table.replica_state[replicas.rows, replicas.slots] == ReplicaState.New
    move(term, pick(replicas, new), ReplicaState.Online)
    moved = move(term, pick(replicas, ~new), ReplicaState.Online)
    batch.leader_and_isr(pick(moved, table.zk_version[moved.rows] != NO_STATE))


def pick(replicas: Replicas, chosen: Bools) -> Replicas:
    return Replicas(replicas.rows[chosen], replicas.slots[chosen])


async def take_offline(term: Term, replicas: Replicas, batch: RequestBatch, leaderless: Rows | None = None) -> Rows:
    """Move replicas on dead brokers, or ones that their broker stops, to Offline.

    They are sent StopReplica and removed from their ISRs, and the partitions' other replicas are notified, unless the
    topic is queued for deletion.

    A removed leader is replaced by -1, and the last member of an ISR stays in it (KAFKA-708). If all members of an ISR
    are removed at once they all stay, since each of them has all acknowledged records. A partition that needs no change
    is not written, but its replicas are notified again, as a 2.8 controller does; those of `leaderless` rows are
    notified once they have a leader.

    Returns the rows whose state had changed in ZooKeeper, as `shrink`.
    """
    table = term.context.partitions
    replicas = move(term, replicas, ReplicaState.Offline)
    if not len(replicas):
        return replicas.rows
    batch.stop_replicas(replicas)
    rows, places = np.unique(replicas.rows, return_inverse=True)
    _update_metadata(term, rows, batch)
    leaving = np.full((len(rows), table.width), NO_BROKER, dtype=np.int32)
    leaving[places, replicas.slots] = table.assignment[replicas.rows, replicas.slots]
    known = table.zk_version[rows] != NO_STATE
    rows, leaving = rows[known], leaving[known]
    changed = await shrink(term, rows, leaving)
    others = table.assignment[rows]
    others_mask = live_mask(others, term.context.broker_ids) & ~is_member(others, leaving)
    notified = (table.zk_version[rows] != NO_STATE) & ~term.context.deleting(rows)
    if leaderless is not None:
        notified &= ~np.isin(rows, leaderless)
    batch.leader_and_isr(Replicas.where(rows[notified], others_mask[notified]))
    return changed


def _update_metadata(term: Term, rows: Rows, batch: RequestBatch) -> None:
    """Send the partitions' metadata to all brokers, without partitions of topics that are being deleted.

    Brokers have already been notified of these topics. Like a 2.8 controller, this one sends them again only for a
    partition without a state.
    """
    notified = rows[~(term.context.deleting(rows) & (term.context.partitions.zk_version[rows] != NO_STATE))]
    if len(notified):
        batch.update_metadata(notified)


def stop_for_deletion(term: Term, replicas: Replicas, batch: RequestBatch) -> None:
    """Send StopReplica with delete to replicas of a topic that is being deleted; they are already Offline."""
    batch.stop_replicas(move(term, replicas, ReplicaState.DeletionStarted), delete=True)


async def shrink(term: Term, rows: Rows, leaving: Int32s, *, every_leader: bool = False) -> Rows:
    """Remove the `leaving` brokers from each row's ISR, and retry from the current state where the ISR had changed.

    `every_leader`: a row whose ISR has none of them gets a new leader epoch too, if it has a leader.

    Returns the rows whose state had changed and is known.
    """
    table = term.context.partitions
    changed = rows[:0]
    for _ in range(SHRINK_ROUNDS):
        states, writing = _shrunk(term, rows, leaving, every_leader)
        if not len(states.rows):
            return changed
        moved = await set_states(term, states)
        moved = moved[table.zk_version[moved] != NO_STATE]
        changed = np.union1d(changed, moved)
        again = np.isin(rows, moved) & writing
        rows, leaving = rows[again], leaving[again]
        if not len(rows):
            return changed
    term.note("error", f"the ISR moved {SHRINK_ROUNDS} times under its change: {names_of(term, rows)}")
    return changed


def _shrunk(term: Term, rows: Rows, leaving: Int32s, every_leader: bool) -> tuple[NewStates, Bools]:
    """Return the states of the rows that change, and which of `rows` they are (bool).

    Members that the assignment does not name are removed too, so that the last remaining one can be elected.
    """
    table = term.context.partitions
    isr, leader = table.isr[rows], table.leader[rows]
    assigned = np.where(is_member(isr, table.assignment[rows]), isr, NO_BROKER).astype(np.int32)
    kept = np.where(is_member(assigned, leaving), NO_BROKER, assigned).astype(np.int32)
    for fallback in (assigned, isr):
        emptied = (kept == NO_BROKER).all(axis=1)
        kept[emptied] = fallback[emptied]
    led_by_leaving = is_member(leader[:, None], leaving)[:, 0]
    new_leader = np.where(led_by_leaving, NO_BROKER, leader).astype(np.int32)
    writing = led_by_leaving | (kept != isr).any(axis=1) | (every_leader & (leader != NO_BROKER))
    packed = np.take_along_axis(kept, np.argsort(kept == NO_BROKER, axis=1, kind="stable"), axis=1)
    states = NewStates(
        rows=rows[writing],
        leader=new_leader[writing],
        leader_epoch=table.leader_epoch[rows[writing]] + 1,
        isr=packed[writing],
        unclean=np.zeros(int(np.count_nonzero(writing)), dtype=np.bool_),
        why="replica offline",
        live=term.context.eligible_ids,
    )
    return states, writing
