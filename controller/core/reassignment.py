"""Reassignment of partitions to other replicas: Kafka's onPartitionReassignment, for many partitions at once.

    U   replicas of an earlier target that this one does not have are stopped and deleted; the topic's znode names
        both sets, and which replicas are added and which are removed
    A   while the target is not in sync: a new leader epoch, so that all replicas are sent the whole replica set; the
        new replicas start
    B   once the target is in sync: the new replicas are Online; only the target is notified, and one of it leads; the
        others leave the ISR, stop and are deleted; the topic's znode names the target alone, and the request in
        ZooKeeper is deleted

Every step is idempotent, and the znodes show the next step, so that another controller continues where this one
stopped. Validation of requests, and reassignments that wait for their turn, are in `handlers/reassignment.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from controller.core import partition_moves, removed_replicas, replica_moves, topic_deletion
from controller.core.context import Replicas
from controller.core.elections import REASSIGNED
from controller.core.events import ReassignmentIsrChange
from controller.core.partition_table import NO_BROKER, NO_STATE, Rows
from controller.core.reassignment_znodes import NotWritten, Partition, Targets, change_asked, persist
from controller.core.removed_replicas import Removed
from controller.core.request_batch import RequestBatch
from controller.core.state_writes import NewStates, names_of, read_states, set_states
from controller.core.term import Term
from controller.zookeeper import paths
from statemachines.leader_election_columns import is_member
from statemachines.partition import PartitionState
from statemachines.reassignment import Assignment, ReassignmentState, is_in_sync, kept_on_the_way
from statemachines.replica import ReplicaState

BUMP_ROUNDS = 5
"""How often a new leader epoch is written anew because the state had moved."""


async def begin(
    term: Term, wanted: Mapping[Partition, Assignment], withdrawn: Collection[Partition] = ()
) -> frozenset[Partition]:
    """Begin the reassignment of these partitions, which the context has, and return those that began.

    `withdrawn`: requests to remove from ZooKeeper. The znodes of the partitions that did not begin are deleted or can't
    be read.
    """
    table = term.context.partitions
    before = {key: table.reassignment_of(_row(term, key)) for key in wanted}
    changed = {key: one for key, one in wanted.items() if before[key] != one}
    kept = {_row(term, key): kept_on_the_way(before[key], one) for key, one in changed.items()}
    term.context.require_reassignment(kept, ReassignmentState.Adding)
    left = await _stop_unneeded(term, kept)
    written = await persist(term, changed, withdrawn) if changed or withdrawn else frozenset[Partition]()
    for key, one in changed.items():
        table.set_assignment(_row(term, key), one if key in written else before[key])
    await _lead_those_left(term, [row for row in left if table.topic_and_partition(row) in written])
    begun = [key for key in wanted if key not in changed or key in written]
    await go_on(term, [_row(term, key) for key in begun])
    return frozenset(begun)


def _row(term: Term, partition: Partition) -> int:
    row = term.context.partitions.row_of(*partition)
    assert row is not None, partition
    return row


async def _stop_unneeded(term: Term, kept: Mapping[int, Assignment]) -> list[int]:
    """Step U3: stop the replicas of an earlier target that are not needed; return the rows whose leader was among them.

    This comes before the znode drops these replicas: Kafka writes the znode first, and a controller that dies in
    between leaves them in the ISR, and on their brokers, permanently. The replicas of the next target are not notified
    yet, and none of them may lead, because the znode does not name them.
    """
    table = term.context.partitions
    led = {row for row in kept if table.leader[row] != NO_BROKER}
    await removed_replicas.stop(
        term,
        Removed.of({row: table.set_assignment(row, assignment) for row, assignment in kept.items()}),
        every_leader=True,
    )
    return sorted(row for row in led if table.leader[row] == NO_BROKER)


async def _lead_those_left(term: Term, rows: Sequence[int]) -> None:
    """Elect leaders among the remaining replicas of partitions whose leader was removed.

    Kafka elects no leader until a broker starts or fails. A partition that had no leader before waits for such an event
    here too: a request for other replicas does not ask for an unclean election.
    """
    unled = term.context.not_deleting(np.array(rows, dtype=np.int64))
    partition_moves.move(term, unled, PartitionState.Offline)
    batch = RequestBatch(term)
    await partition_moves.bring_online(term, unled, batch)
    batch.send()


async def go_on(term: Term, rows: Sequence[int]) -> None:
    """Takes partitions up where they are: phase B where the target is in sync, phase A where it is not. Row numbers
    from before are void: a topic may have been waiting for this to be deleted."""
    context = term.context
    await _watch(term, rows)
    ready = await _ready(term, rows)
    waiting = [row for row in rows if row not in ready]
    if waiting:
        context.require_reassignment(waiting, ReassignmentState.Adding)
        await _spread(term, np.array(waiting, dtype=np.int64))
        ready |= await _ready(term, await _give_first_states(term, waiting))
    if ready:
        await _complete(term, sorted(ready))


async def complete_caught_up(term: Term, rows: Sequence[int]) -> None:
    """Phase B for those that are being reassigned and whose target is in sync by now. Voids row numbers, as `go_on`."""
    moving = frozenset(term.context.partitions.moving_rows())
    ready = await _ready(term, [row for row in rows if row in moving])
    if ready:
        await _complete(term, sorted(ready))


async def _ready(term: Term, rows: Sequence[int]) -> frozenset[int]:
    """Those whose target is in sync and can lead. Where leaders write ISRs themselves, the states are read again."""
    table = term.context.partitions
    if rows and term.settings.versions.alter_isr is None:
        await read_states(term, np.array(rows, dtype=np.int64))
    eligible = frozenset(term.context.eligible_ids)
    ready = set()
    for row in rows:
        assignment, isr = table.reassignment_of(row), table.isr_of(row)
        keeps = not assignment.removing or table.leader[row] in assignment.target
        # If no replica of the target can lead, the removed ones continue until one can (Kafka stops them).
        if is_in_sync(isr, assignment) and (keeps or eligible.intersection(assignment.target, isr)):
            ready.add(row)
    return frozenset(ready)


# -- phase A


async def _spread(term: Term, rows: Rows) -> None:
    """Send the replica set to all replicas, and start the new ones.

    `is_new` allows a new replica to choose a log directory (KAFKA-10314).
    """
    table = term.context.partitions
    await new_epoch(term, rows)
    adding = _is_adding(term, rows)
    batch = RequestBatch(term)
    known = (table.zk_version[rows] != NO_STATE)[:, None]
    batch.leader_and_isr(Replicas.where(rows, known & ~adding & (table.assignment[rows] != NO_BROKER)))
    batch.leader_and_isr(Replicas.where(rows, known & adding), is_new=True)
    batch.send()
    begin = Replicas.where(rows, adding & (table.replica_state[rows] == ReplicaState.NonExistent))
    replica_moves.make_new(term, begin)
    batch = RequestBatch(term)
    batch.leader_and_isr(replica_moves.pick(begin, table.zk_version[begin.rows] != NO_STATE), is_new=True)
    batch.send()


async def _give_first_states(term: Term, rows: Sequence[int]) -> list[int]:
    """Create the states of those partitions that have none, since no replica of theirs was live, and now have a live
    one; return their rows. Nothing was ever written to them, so any replica may lead. Kafka waits for a broker to
    start."""
    context, table = term.context, term.context.partitions
    new = [row for row in rows if table.partition_state[row] == PartitionState.New]
    chosen = context.not_deleting(np.array(new, dtype=np.int64))
    chosen = chosen[context.eligible(chosen).any(axis=1)]
    batch = RequestBatch(term)
    begun: list[int] = (await partition_moves.bring_online(term, chosen, batch)).tolist()
    batch.send()
    return begun


def _is_adding(term: Term, rows: Rows) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """bool beside the assignments of `rows`."""
    table = term.context.partitions
    mask = np.zeros((len(rows), table.width), dtype=np.bool_)
    for place, row in enumerate(rows.tolist()):
        mask[place] = np.isin(table.assignment[row], table.adding.get(row, ()))
    return mask


async def new_epoch(term: Term, rows: Rows) -> None:
    """Write the same leader and ISR with a new leader epoch: in the old epoch brokers ignore other replica sets."""
    table = term.context.partitions
    for _ in range(BUMP_ROUNDS):
        rows = rows[table.zk_version[rows] != NO_STATE]
        if not len(rows):
            return
        states = NewStates(
            rows=rows,
            leader=table.leader[rows],
            leader_epoch=table.leader_epoch[rows] + 1,
            isr=table.isr[rows],
            unclean=np.zeros(len(rows), dtype=np.bool_),
            why="reassignment",
            live=term.context.eligible_ids,
        )
        rows = await set_states(term, states)
    if len(rows):
        term.note("error", f"the state moved {BUMP_ROUNDS} times under its leader epoch: {names_of(term, rows)}")


# -- phase B


async def _complete(term: Term, rows: Sequence[int]) -> None:
    context, table = term.context, term.context.partitions
    context.require_reassignment(rows, ReassignmentState.Completing)
    chosen = np.array(rows, dtype=np.int64)
    term.note("info", f"the target of {len(rows)} partitions is in sync: {names_of(term, chosen)}")
    there = _is_adding(term, chosen) & context.alive(chosen)
    batch = RequestBatch(term)
    replica_moves.bring_online(term, Replicas.where(chosen, there), batch)
    batch.send()
    before = {row: table.reassignment_of(row) for row in rows}
    removed = {}
    for row in rows:
        removed[row] = table.set_assignment(row, before[row].reached())
        table.leaving[row] = before[row].removing
    await _lead_from_target(term, chosen)
    stuck = [row for row in rows if before[row].removing and table.leader[row] not in table.assignment_of(row)]
    for row in stuck:
        _put_back(term, row, before[row], removed.pop(row))
    await removed_replicas.stop(term, Removed.of(removed))
    done = {table.topic_and_partition(row): table.reassignment_of(row) for row in rows if row not in stuck}
    written = await persist(term, done)
    context.require_reassignment((row for row in rows if row in table.leaving), ReassignmentState.Settled)
    for row in rows:
        table.leaving.pop(row, None)
    await _fulfil(term, {key: done[key].replicas for key in written})
    batch = RequestBatch(term)
    batch.update_metadata(np.array([_row(term, key) for key in done], dtype=np.int64))
    batch.send()
    _unwatch(term, done)
    await topic_deletion.resume_for(term, {topic for topic, _ in done})


def _put_back(term: Term, row: int, assignment: Assignment, states: Mapping[int, int]) -> None:
    """Return to phase A, because no replica of the target could be elected: both sets are still the replicas."""
    table = term.context.partitions
    term.context.require_reassignment((row,), ReassignmentState.Adding)
    table.leaving.pop(row, None)
    table.set_assignment(row, assignment)
    for slot, broker in enumerate(assignment.replicas):
        if broker in states:
            table.replica_state[row, slot] = states[broker]
    term.note("warning", f"{table.name_of(row)}: no replica of the target can lead, so that the others stay")


async def _lead_from_target(term: Term, rows: Rows) -> None:
    """Step B3: elect a leader from the target in a new leader epoch, and notify only the target.

    In the epoch that it knows, a leader ignores the smaller replica set, and below inter-broker protocol 2.7 it could
    write the removed replicas into the ISR. A leader in the target that is shutting down continues to lead if no other
    replica of the target can. A partition without a state gets no leader.
    """
    context, table = term.context, term.context.partitions
    rows = rows[table.zk_version[rows] != NO_STATE]
    leads = is_member(table.leader[rows][:, None], table.assignment[rows])[:, 0] & context.led(rows)
    batch = RequestBatch(term)
    elected = await partition_moves.bring_online(term, rows[~leads], batch, REASSIGNED)
    rows = rows[~np.isin(rows, elected)]
    kept = rows[is_member(table.leader[rows][:, None], table.assignment[rows])[:, 0]]
    await new_epoch(term, kept)
    batch.leader_and_isr(Replicas.where(kept, table.assignment[kept] != NO_BROKER))
    batch.send()


async def _fulfil(term: Term, done: Targets) -> None:
    """B7: requests that are fulfilled go out of ZooKeeper. One for another target by now does not."""

    def without(asked: Targets) -> Targets:
        return {key: target for key, target in asked.items() if done.get(key) != tuple(target)}

    if done:
        try:
            left = await change_asked(term, without)
        except NotWritten as why:
            term.note("error", str(why))
            left = {}
        for key in done:
            if key not in left:
                term.context.waiting.pop(key, None)


async def _watch(term: Term, rows: Sequence[int]) -> None:
    """Watch the states where leaders write them themselves: only the znode shows that a replica is in sync."""
    if term.settings.versions.alter_isr is None:
        table = term.context.partitions
        for row in rows:
            key = table.topic_and_partition(row)
            if table.reassignment_of(row).is_moving:
                await term.zookeeper.watch_node(paths.partition_state(*key), ReassignmentIsrChange(*key))


def _unwatch(term: Term, done: Collection[Partition]) -> None:
    if term.settings.versions.alter_isr is None:
        term.zookeeper.unwatch([paths.partition_state(*key) for key in done])
