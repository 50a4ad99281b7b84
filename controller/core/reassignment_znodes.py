"""Reassignments in ZooKeeper: /admin/reassign_partitions, where they are asked for, and the topics' znodes, which say
what is on its way. The topic's znode is the one source of truth for what has begun (KAFKA-9089): what a request of a
later day overrides is taken out of the first in the multi that writes the second.

All fenced, each znode at the version that it was read at, and looked at again when it had moved. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from controller.core import quarantine
from controller.core.loading import topic_id_text
from controller.core.notifications import ROUNDS
from controller.core.term import Term
from controller.protocol.control import NO_TOPIC_ID
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    Reassignments,
    TopicAssignment,
    decode_reassignments,
    encode_reassignments,
    encode_topic_assignment,
)
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
from controller.zookeeper.znode_sense import sound_topic_assignment
from statemachines.reassignment import Assignment

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
        quarantine.released(term, PATH)
        return {}
    try:
        asked = decode_reassignments(row.path, row.data).replicas
    except DamagedZnode as damaged:
        quarantine.report(term, PATH, str(damaged))
        return {}
    quarantine.released(term, PATH)
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


@dataclass(slots=True)
class _Plan:
    """`writes` with the partitions that each is of; `done`: as wanted already; `lost`: not there any more. `too_large`:
    their topic's znode would be."""

    writes: list[tuple[SetData, tuple[Partition, ...]]] = field(default_factory=list)
    done: set[Partition] = field(default_factory=set)
    lost: set[Partition] = field(default_factory=set)
    too_large: set[Partition] = field(default_factory=set)


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
        quarantine.report(term, row.path, f"topic {name} stays as it was known: {quarantine.describe(damaged)}")
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
