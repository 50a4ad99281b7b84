"""Created and deleted topics and added partitions. The watch reports them, whichever client wrote the topic's znode.

Work that a dead controller began is continued: a partition state that already exists is used as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from controller.core import state_changes, topic_deletion
from controller.core.context import Replicas, Rows, padded
from controller.core.events import PartitionModifications, TopicChange
from controller.core.leadership import Term
from controller.core.loading import (
    decode_topic_id,
    describe_damage,
    forget_quarantined_topics,
    list_topics,
    load_topics,
    quarantine,
    release_from_quarantine,
    shared_id_fault,
    topic_id_text,
)
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import names_of
from controller.core.znode_changes import delete_children
from controller.protocol.control import NO_TOPIC_ID
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, encode_topic_assignment
from controller.zookeeper.codecs_columns import sound_topic_assignment
from controller.zookeeper.operations import DamagedZnode, SetData, Znode
from statemachines.partition import PartitionState


async def topic_change(term: Term, event: TopicChange) -> None:
    """Compares the children of /brokers/topics with the context."""
    context = term.context
    names, since_zxid = await list_topics(term)
    there = frozenset(names)
    known = {topic.name for topic in context.partitions.topics} | context.left_out
    gone, new = sorted(known - there), sorted(there - known)
    if gone:
        fulfilled = [name for name in gone if name in context.deletions.queued]
        _forget(term, gone)
        await delete_children(term, paths.DELETE_TOPICS, fulfilled)
    if new:
        rows = await load_topics(term, new, since_zxid)
        term.note("info", f"{len(new)} new topics: {names_of(term, rows)}")
        await create_partitions(term, rows)


def _forget(term: Term, topics: list[str]) -> None:
    term.note("info", f"{len(topics)} topics are gone, {topics[0]} among them")
    term.zookeeper.unwatch([paths.topic(name) for name in topics])
    forget_quarantined_topics(term, topics)
    term.context.forget_topics(topics)
    term.context.left_out -= set(topics)


async def create_partitions(term: Term, rows: Rows) -> None:
    """Create partitions that are new to the context: write first states with leaders, and notify their replicas."""
    if not len(rows):
        return
    replicas = Replicas.where(rows, term.context.partitions.assignment[rows] >= 0)
    state_changes.move_partitions(term, rows, PartitionState.New)
    state_changes.make_replicas_new(term, replicas)
    batch = RequestBatch(term)
    await state_changes.bring_partitions_online(term, rows, batch)
    batch.send()
    batch = RequestBatch(term)
    state_changes.bring_replicas_online(term, replicas, batch)
    batch.send()


async def partition_modifications(term: Term, event: PartitionModifications) -> None:
    """One topic's znode was written or deleted. A deletion is for the change of /brokers/topics that comes with it."""
    context, name = term.context, event.topic
    if name not in context.partitions and name not in context.left_out:
        return
    reading = await term.zookeeper.read([paths.topic(name)])
    row = reading.rows[0]
    if row is None:
        return
    try:
        assignment = sound_topic_assignment(row.path, row.data)
    except DamagedZnode as damaged:
        left = "is left out" if name in context.left_out else "stays as it was known"
        quarantine(term, row.path, f"topic {name} {left}: {describe_damage(damaged)}")
        return
    if name in context.partitions and (holder := _holder_of_its_id(term, name, assignment)) is not None:
        fault = shared_id_fault(name, assignment.topic_id, holder)
        quarantine(term, row.path, f"topic {name} stays as it was known: {fault}")
        return
    if name not in context.left_out:
        release_from_quarantine(term, row.path)
    if _is_another_topic(term, name, assignment):
        _forget(term, [name])
    if name not in context.partitions:
        await create_partitions(term, await load_topics(term, [name], reading.zxid))
        await topic_deletion.enqueue_if_asked(term, name)
    elif name in context.deletions.queued:
        await _restore(term, name, assignment, row)
    else:
        await create_partitions(term, _add(term, name, assignment))


async def _restore(term: Term, name: str, assignment: TopicAssignment, row: Znode) -> None:
    """Partitions that were added to a topic while it is being deleted are taken out of its znode, or they would live
    on (KAFKA-6612). If it changes again meanwhile, its watch brings that here."""
    topic = term.context.partitions.topic_named(name)
    assert topic is not None, name
    known = frozenset(term.context.partitions.partition[topic.rows].tolist())
    kept = {partition: replicas for partition, replicas in assignment.partitions.items() if partition in known}
    if len(kept) == len(assignment.partitions):
        return
    term.note("warning", f"topic {name} is being deleted: partitions {sorted(set(assignment.partitions) - known)} go")
    adding = {partition: replicas for partition, replicas in assignment.adding.items() if partition in kept}
    removing = {partition: replicas for partition, replicas in assignment.removing.items() if partition in kept}
    data = encode_topic_assignment(replace(assignment, partitions=kept, adding=adding, removing=removing))
    await term.zookeeper.commit_rows(term.leadership, [SetData(row.path, data, row.stat.version)])


def _is_another_topic(term: Term, name: str, assignment: TopicAssignment) -> bool:
    """Return whether the topic was deleted and created again before the controller read it."""
    known = term.context.partitions.topic_named(name)
    if known is None or known.id == NO_TOPIC_ID or assignment.topic_id is None:
        return False
    return topic_id_text(known.id) != assignment.topic_id


def _holder_of_its_id(term: Term, name: str, assignment: TopicAssignment) -> str | None:
    """The other topic whose id the znode holds by now."""
    if not _is_another_topic(term, name, assignment):
        return None
    topic_id = decode_topic_id(assignment.topic_id)
    topics = term.context.partitions.topics
    return next((one.name for one in topics if one.id == topic_id and one.name != name), None)


def _add(term: Term, name: str, assignment: TopicAssignment) -> Rows:
    """The rows of partitions that the context does not have yet."""
    table = term.context.partitions
    topic = table.topic_named(name)
    assert topic is not None, name
    known = frozenset(table.partition[topic.rows].tolist())
    added = sorted(partition for partition in assignment.partitions if partition not in known)
    if added:
        term.note("info", f"topic {name} has new partitions {added}")
    place_of = {partition: place for place, partition in enumerate(added)}
    return table.add(
        [(name, topic.id)],
        np.zeros(len(added), dtype=np.int32),
        np.array(added, dtype=np.int32),
        padded([assignment.partitions[partition] for partition in added]),
        {place_of[one]: replicas for one, replicas in assignment.adding.items() if one in place_of},
        {place_of[one]: replicas for one, replicas in assignment.removing.items() if one in place_of},
    )
