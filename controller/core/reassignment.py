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

/admin/reassign_partitions has the requests, the topics' znodes what is on its way. A topic's znode is the one source of
truth for what has begun (KAFKA-9089): what a later request overrides is taken out of the first in the multi that writes
the second. All writes are fenced, each znode at the version that it was read at, and read again when it had moved.

`Removed` are replicas that a partition's assignment names no more: they are stopped, removed from the ISR and deleted
(Kafka's stopRemovedReplicasOfReassignedPartition). Their states are here, since the table has no place for them.

`serve_repaired` takes up partitions whose state znodes were repaired, in the same term, as a failover does for all at
once: replicas on dead brokers leave the ISR, live ones are sent the state, and a leader is elected where none is live.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import msgspec
import numpy as np

from controller.core import state_changes, topic_deletion
from controller.core.context import NO_BROKER, NO_STATE, Bytes, Int32s, Replicas, Rows, padded
from controller.core.events import ReassignmentIsrChange
from controller.core.leadership import Term
from controller.core.loading import describe_damage, quarantine, release_from_quarantine, topic_id_text, unwatch_states
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import REASSIGNED, NewStates, names_of, read_states, set_states
from controller.core.znode_changes import ROUNDS
from controller.protocol.control import NO_TOPIC_ID
from controller.trace import PartitionMoved
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    Reassignments,
    TopicAssignment,
    decode_reassignments,
    encode_reassignments,
    encode_topic_assignment,
)
from controller.zookeeper.codecs_columns import sound_topic_assignment
from controller.zookeeper.operations import (
    BATCH,
    BadVersion,
    Create,
    DamagedZnode,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    UnknownOutcome,
    Write,
    Znode,
)
from controller.zookeeper.row_writes import BATCH_BYTES, ZNODE_BYTES_MAX, operation_bytes
from statemachines.leader_election_columns import is_member, live_mask
from statemachines.partition import PartitionState
from statemachines.reassignment import Assignment, ReassignmentState, is_in_sync, kept_on_the_way
from statemachines.replica import REPLICA, ReplicaState

Partition = tuple[str, int]
Targets = Mapping[Partition, tuple[int, ...]]

PATH = paths.REASSIGN_PARTITIONS


# -- what is asked for


async def read_asked(term: Term) -> Targets | None:
    """Return the requested and unfinished reassignments, the target by partition; None if there is no znode.

    An unreadable znode is named in the log and left as it is.
    """
    row = (await term.zookeeper.read([PATH])).rows[0]
    return None if row is None else _asked(term, row)


def _asked(term: Term, row: Znode | None) -> Targets:
    if row is None:
        release_from_quarantine(term, PATH)
        return {}
    try:
        asked = decode_reassignments(row.path, row.data).replicas
    except DamagedZnode as damaged:
        quarantine(term, PATH, str(damaged))
        return {}
    release_from_quarantine(term, PATH)
    return asked


class NotWritten(Exception):
    """The requested reassignments could not be changed; the znode is as it was. The message has the reason."""


async def change_asked(term: Term, change: Callable[[Targets], Targets]) -> Targets:
    """Replace the requested reassignments by the result of `change`, and return them.

    The znode is deleted when no request is left. Raises NotWritten for a znode that can't be read, would be too large,
    or keeps changing.
    """
    for _ in range(ROUNDS):
        row = (await term.zookeeper.read([PATH])).rows[0]
        before = _asked(term, row)
        after = change(before)
        write = _write(row, before, after)
        if write is None:
            return after
        if await _committed(term, [write]):
            return after
    raise NotWritten(f"{PATH} changed under {ROUNDS} looks and is left as it is")


def _write(row: Znode | None, before: Targets, after: Targets) -> Write | None:
    """Return the write that turns one value into the other, or None if there is none. Raises NotWritten."""
    if row is None:
        return Create(PATH, _fitting(Reassignments(after))) if after else None
    try:
        found = decode_reassignments(row.path, row.data)
    except DamagedZnode as damaged:
        raise NotWritten(str(damaged)) from damaged
    if not after:
        return Delete(PATH, row.stat.version)
    if before == after:
        return None
    return SetData(PATH, _fitting(replace(found, replicas=after)), row.stat.version)


def _fitting(asked: Reassignments) -> bytes:
    data = encode_reassignments(asked)
    if len(data) > ZNODE_BYTES_MAX:
        raise NotWritten(
            f"{len(asked.replicas)} reassignments take {len(data)} bytes in {PATH}, expected {ZNODE_BYTES_MAX} at most"
        )
    return data


async def _committed(term: Term, writes: list[Write]) -> bool:
    """Return whether the writes were applied; after False read again: they conflicted, or the outcome is unknown."""
    try:
        await term.zookeeper.commit(term.leadership, writes)
    except UnknownOutcome:
        return False
    except MultiFailed as failed:
        if not isinstance(failed.error, BadVersion | NoNode | NodeExists):
            raise
        return False
    return True


# -- what is on its way


class _Plan(msgspec.Struct):
    """`writes` with the partitions that each is of; `done`: as wanted already; `lost`: not there any more. `too_large`:
    their topic's znode would be."""

    writes: list[tuple[SetData, tuple[Partition, ...]]] = msgspec.field(default_factory=list)
    done: set[Partition] = msgspec.field(default_factory=set)
    lost: set[Partition] = msgspec.field(default_factory=set)
    too_large: set[Partition] = msgspec.field(default_factory=set)


async def persist(
    term: Term, wanted: Mapping[Partition, Assignment], withdrawn: Collection[Partition] = ()
) -> frozenset[Partition]:
    """Write assignments into their topics' znodes, and return those that are written.

    All assignments of a topic are written at once, and the znode's other fields are kept. `withdrawn` is removed from
    the requested reassignments with the first write, or before it if one request can't hold both. The topics of
    assignments that are not written are deleted, can't be read, or would be too large.
    """
    left, written, lost = dict(wanted), set[Partition](), set[Partition]()
    for _ in range(ROUNDS):
        plan = await _plan(term, left)
        written |= plan.done
        lost |= plan.lost | plan.too_large
        if withdrawn:
            removal = await _removal(term, withdrawn)
            if removal is None or await _committed(term, [*_beside(removal, plan), removal]):
                withdrawn = ()
            if removal is not None:
                left = {key: one for key, one in left.items() if key not in written | lost}
                continue
        result = await term.zookeeper.commit_rows(term.leadership, [write for write, _ in plan.writes])
        moved = {place for place, _ in result.moved}
        for place, (_, partitions) in enumerate(plan.writes):
            if place not in moved:
                written.update(partitions)
        left = {key: one for key, one in left.items() if key not in written | lost}
        if not left:
            return frozenset(written)
    term.note("error", f"assignments changed under {ROUNDS} looks: {len(left)} partitions are not reassigned")
    return frozenset(written)


async def _removal(term: Term, withdrawn: Collection[Partition]) -> Write | None:
    row = (await term.zookeeper.read([PATH])).rows[0]
    before = _asked(term, row)
    after = {key: target for key, target in before.items() if key not in withdrawn}
    if len(after) == len(before):
        return None
    try:
        return _write(row, before, after)
    except NotWritten as why:
        term.note("error", str(why))
        return None


def _beside(removal: Write, plan: _Plan) -> list[Write]:
    """The first of the plan's writes, as many as fit into one request with the removal."""
    writes = [write for write, _ in plan.writes]
    room = max(BATCH_BYTES, ZNODE_BYTES_MAX) - operation_bytes(removal)
    sizes = accumulate(map(operation_bytes, writes))
    return [write for write, size in zip(writes[: BATCH - 2], sizes, strict=False) if size <= room]


async def too_large(term: Term, wanted: Mapping[Partition, Assignment]) -> frozenset[Partition]:
    """Those whose topics' znodes could not hold them."""
    return frozenset((await _plan(term, wanted)).too_large) if wanted else frozenset()


async def _plan(term: Term, wanted: Mapping[Partition, Assignment]) -> _Plan:
    plan, by_topic = _Plan(), dict[str, dict[int, Assignment]]()
    for (topic, partition), assignment in wanted.items():
        by_topic.setdefault(topic, {})[partition] = assignment
    reading = await term.zookeeper.read([paths.topic(name) for name in by_topic])
    for (name, changes), row in zip(by_topic.items(), reading.rows, strict=True):
        before = None if row is None else _topic(term, name, row)
        if row is None or before is None:
            plan.lost.update((name, partition) for partition in changes)
            continue
        there = {partition: one for partition, one in changes.items() if partition in before.partitions}
        plan.lost.update((name, partition) for partition in changes if partition not in there)
        after = _with(before, there)
        keys = tuple((name, partition) for partition in there)
        if after == before:
            plan.done.update(keys)
            continue
        data = encode_topic_assignment(after)
        if len(data) > ZNODE_BYTES_MAX:
            term.note("warning", f"topic {name} is not reassigned: its znode would have {len(data)} bytes")
            plan.too_large.update(keys)
        else:
            plan.writes.append((SetData(row.path, data, row.stat.version), keys))
    return plan


def _topic(term: Term, name: str, row: Znode) -> TopicAssignment | None:
    """None for one that can't be read, or that is another topic of the same name by now."""
    try:
        found = sound_topic_assignment(row.path, row.data)
    except DamagedZnode as damaged:
        quarantine(term, row.path, f"topic {name} stays as it was known: {describe_damage(damaged)}")
        return None
    known = term.context.partitions.topic_named(name)
    if known is None:
        return None
    if known.id != NO_TOPIC_ID and found.topic_id is not None and topic_id_text(known.id) != found.topic_id:
        return None
    return found


def _with(topic: TopicAssignment, changes: Mapping[int, Assignment]) -> TopicAssignment:
    partitions, adding, removing = dict(topic.partitions), dict(topic.adding), dict(topic.removing)
    for partition, assignment in changes.items():
        partitions[partition] = assignment.replicas
        for named, replicas in ((adding, assignment.adding), (removing, assignment.removing)):
            named.pop(partition, None)
            if replicas:
                named[partition] = replicas
    return replace(topic, partitions=partitions, adding=adding, removing=removing, version=max(topic.version, 2))


class Removed(msgspec.Struct, frozen=True, eq=False):
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
    await state_changes.shrink(term, rows[known], padded(leaving)[known], every_leader=every_leader)
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
    _make_added_new(term, np.array([_row(term, key) for key in changed], dtype=np.int64))
    await _lead_those_left(term, [row for row in left if table.topic_and_partition(row) in written])
    begun = [key for key in wanted if key not in changed or key in written]
    await go_on(term, [_row(term, key) for key in begun])
    return frozenset(begun)


def _make_added_new(term: Term, rows: Rows) -> None:
    """Move replicas that have just come into an assignment to New, before anything is written or sent.

    Otherwise a replica could be sent LeaderAndIsr by an election, and join the ISR, before it has a state. Below
    inter-broker protocol 2.7 its leader writes that itself, and the next read of the state completes the reassignment.
    """
    adding = _is_adding(term, rows)
    without = adding & (term.context.partitions.replica_state[rows] == ReplicaState.NonExistent)
    state_changes.make_replicas_new(term, Replicas.where(rows, without))


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
    await stop(
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
    state_changes.move_partitions(term, unled, PartitionState.Offline)
    batch = RequestBatch(term)
    await state_changes.bring_partitions_online(term, unled, batch)
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
    new = adding & (table.replica_state[rows] == ReplicaState.New)
    batch = RequestBatch(term)
    batch.leader_and_isr(Replicas.where(rows, known & new), is_new=True)
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
    begun: list[int] = (await state_changes.bring_partitions_online(term, chosen, batch)).tolist()
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
    state_changes.bring_replicas_online(term, Replicas.where(chosen, there), batch)
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
    await stop(term, Removed.of(removed))
    done = {table.topic_and_partition(row): table.reassignment_of(row) for row in rows if row not in stuck}
    written = await persist(term, done)
    context.require_reassignment((row for row in rows if row in table.leaving), ReassignmentState.Settled)
    for row in rows:
        table.leaving.pop(row, None)
    await _fulfil(term, {key: done[key].replicas for key in written})
    batch = RequestBatch(term)
    batch.update_metadata(np.array([_row(term, key) for key in done], dtype=np.int64))
    batch.send()
    unwatch_states(term, done)
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
    elected = await state_changes.bring_partitions_online(term, rows[~leads], batch, REASSIGNED)
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


async def serve_repaired(term: Term, rows: Rows) -> None:
    """`rows` without a state are passed over, and so are topics that are being deleted. Voids row numbers: a topic may
    have waited for a reassignment that ends here."""
    context, table = term.context, term.context.partitions
    rows = context.not_deleting(rows[table.zk_version[rows] != NO_STATE])
    if not len(rows):
        return
    led = context.led(rows)
    state_changes.move_partitions(term, rows[led], PartitionState.Online)
    state_changes.move_partitions(term, rows[~led], PartitionState.Offline)
    batch = RequestBatch(term)
    await state_changes.bring_partitions_online(term, rows[~led], batch)
    batch.send()
    live, real = context.eligible(rows), table.assignment[rows] != NO_BROKER
    batch = RequestBatch(term)
    await state_changes.take_replicas_offline(term, Replicas.where(rows, ~live & real), batch)
    batch.send()
    # A new epoch, because a broker ignores a state, and its znode version, with an epoch that it already has.
    await new_epoch(term, rows[context.led(rows)])
    batch = RequestBatch(term)
    state_changes.bring_replicas_online(term, topic_deletion.not_deleted(term, Replicas.where(rows, live)), batch)
    batch.send()
    moving = frozenset(table.moving_rows())
    await go_on(term, [row for row in rows.tolist() if row in moving])
