"""Topic deletion: which deletions may continue, which wait, which are complete (Kafka's TopicDeletionManager).

    queued      UpdateMetadata with a reserved leader id that no broker has, to all
    begun       partitions NonExistent; replicas Offline (sent StopReplica, out of their ISRs), then DeletionStarted
                (sent StopReplica with delete); those on dead brokers DeletionIneligible, and the topic waits
    answered    DeletionSuccessful, or DeletionIneligible, and the topic waits
    done        every replica DeletionSuccessful, and every broker has forgotten the topic: the znodes are deleted and
                the context forgets the topic

A deletion that waits continues when one of the topic's brokers returns. The next controller starts it from the
beginning: each step is idempotent. The context has the queued topics; the requests in /admin/delete_topics survive the
controller.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from controller.core import partition_moves, quarantine, replica_moves
from controller.core.context import Replicas
from controller.core.notifications import delete_children, list_children
from controller.core.partition_table import NO_BROKER, Bools, Rows
from controller.core.request_batch import RequestBatch
from controller.core.term import Term
from controller.core.topic_removal import remove_topics
from controller.zookeeper import paths
from statemachines.partition import PartitionState
from statemachines.replica import ReplicaState


async def take_up(term: Term) -> int:
    """Queue the deletions requested in earlier terms, when a term begins; return how many topics are queued.

    No deletion starts before `resume`. A topic of which only the request is left is queued too, so that the request is
    deleted.
    """
    asked = await list_children(term, paths.DELETE_TOPICS)
    if not term.settings.delete_topic:
        await refuse(term, asked)
        return 0
    context = term.context
    context.deletions.queued.update(name for name in asked if name not in context.left_out)
    _note_left_out(term, asked)
    rows = np.flatnonzero(context.queued_for_deletion(context.partitions.all_rows()))
    dead = (~context.eligible(rows) & (context.partitions.assignment[rows] != NO_BROKER)).any(axis=1)
    _wait(term, context.partitions.names_of_topics(rows[dead]), "a replica's broker is dead")
    _wait(term, _moving(term, rows), "it is being reassigned")
    return len(context.deletions.queued)


async def refuse(term: Term, asked: Sequence[str]) -> None:
    """Delete the requests but not the topics: delete.topic.enable is false."""
    if asked:
        term.note("warning", f"not deleted, as delete.topic.enable is false: {', '.join(asked[:10])}")
        await delete_children(term, paths.DELETE_TOPICS, asked)


async def enqueue(term: Term, topics: Collection[str]) -> None:
    """Queue topics that the context has, and start the deletions that may start.

    A topic whose znode can't be read waits until it is repaired: its replicas, which would have to be deleted, are not
    known.
    """
    context = term.context
    _note_left_out(term, sorted(topics))
    new = [name for name in sorted(topics) if name in context.partitions]
    if not new:
        return
    term.note("info", f"{len(new)} topics are to be deleted, {new[0]} among them")
    context.deletions.queued.update(new)
    _wait(term, _moving(term, _rows_of(term, new)), "it is being reassigned")
    await resume(term)


async def enqueue_if_asked(term: Term, topic: str) -> None:
    """Queue a topic that has just become readable, if its deletion is requested."""
    if topic in await list_children(term, paths.DELETE_TOPICS):
        await enqueue(term, (topic,))


async def resume_for(term: Term, topics: Collection[str]) -> None:
    """Resume the deletions of these topics after a broker's return or the end of a reassignment.

    A topic that is still being reassigned continues to wait.
    """
    deletions = term.context.deletions
    again = deletions.queued.intersection(topics) - term.context.moving_topics()
    if again:
        deletions.ineligible -= again
        await resume(term)


async def replicas_failed(term: Term, replicas: Replicas) -> None:
    """Handle replicas of queued topics whose broker is dead, or answered that it could not delete them."""
    table = term.context.partitions
    if not len(replicas):
        await complete(term)
        return
    able = _in_states(term, replicas, ReplicaState.Offline, ReplicaState.DeletionStarted)
    replica_moves.move(term, replica_moves.pick(replicas, able), ReplicaState.DeletionIneligible)
    _wait(term, table.names_of_topics(replicas.rows), "a replica could not be deleted")
    await resume(term)


async def replicas_deleted(term: Term, replicas: Replicas) -> None:
    """Handle replicas of queued topics whose broker answered that it has deleted them."""
    started = _in_states(term, replicas, ReplicaState.DeletionStarted)
    replica_moves.move(term, replica_moves.pick(replicas, started), ReplicaState.DeletionSuccessful)
    await resume(term)


def not_deleted(term: Term, replicas: Replicas) -> Replicas:
    """Return the replicas that their brokers still have, as far as is known: they can be brought online again."""
    gone = _in_states(term, replicas, ReplicaState.DeletionStarted, ReplicaState.DeletionSuccessful)
    return replica_moves.pick(replicas, ~gone)


async def complete(term: Term) -> None:
    """Complete the deletions that only waited for a broker to forget the topic: it has answered, or is dead."""
    if term.context.deletions.begun:
        done, _, _ = _sort_out(term)
        if done:
            await _complete(term, done)


async def resume(term: Term) -> int:
    """Advance the deletion of each queued topic as far as possible, and return how many topics are still queued."""
    deletions = term.context.deletions
    if not deletions.queued:
        return 0
    done, retried, ready = _sort_out(term)
    if done:
        await _complete(term, done)
    if retried:
        await _take_offline(term, _replicas_in(term, retried, ReplicaState.DeletionIneligible))
    if ready:
        term.note("info", f"deletion of {len(ready)} topics is (re)started, {ready[0]} among them")
        await _begin(term, ready)
    return len(deletions.queued)


def _sort_out(term: Term) -> tuple[list[str], list[str], list[str]]:
    """Return three lists of queued topics: those whose replicas are all deleted, those with failed replicas that may be
    tried again, and those that begin now."""
    table, deletions = term.context.partitions, term.context.deletions
    rows = np.flatnonzero(term.context.queued_for_deletion(table.all_rows()))
    states, real = table.replica_state[rows], table.assignment[rows] != NO_BROKER

    def topics_with(found: Bools) -> frozenset[str]:
        return frozenset(table.names_of_topics(rows[(found & real).any(axis=1)]))

    left = topics_with(states != ReplicaState.DeletionSuccessful)
    under_way = topics_with(states == ReplicaState.DeletionStarted)
    failed = topics_with(states == ReplicaState.DeletionIneligible)
    queued = sorted(deletions.queued)
    done = [name for name in queued if name not in left and _is_forgotten(term, name)]
    retried = [name for name in queued if name in failed and name not in under_way]
    ready = [name for name in queued if name in left and name not in under_way and name not in deletions.ineligible]
    return done, retried, ready


async def _begin(term: Term, topics: Sequence[str]) -> None:
    context, table, deletions = term.context, term.context.partitions, term.context.deletions
    unseen = _rows_of(term, [name for name in topics if name not in deletions.begun])
    partition_moves.move(term, unseen, PartitionState.Offline)
    partition_moves.move(term, unseen, PartitionState.NonExistent)
    deletions.begun.update(topics)
    rows = _rows_of(term, topics)
    batch = RequestBatch(term)
    batch.update_metadata(rows)
    batch.send()
    requests = {(broker.id, broker.epoch): term.requests.last(broker.id) for broker in context.brokers}
    deletions.forget_requests.update(dict.fromkeys(topics, requests))
    live, real = context.eligible(rows), table.assignment[rows] != NO_BROKER
    dead = Replicas.where(rows, ~live & real)
    there = Replicas.where(rows, live & real & (table.replica_state[rows] != ReplicaState.DeletionSuccessful))
    able = _in_states(term, dead, ReplicaState.Offline)
    replica_moves.move(term, replica_moves.pick(dead, able), ReplicaState.DeletionIneligible)
    await _take_offline(term, there)
    batch = RequestBatch(term)
    replica_moves.stop_for_deletion(term, there, batch)
    batch.send()
    _wait(term, table.names_of_topics(dead.rows), "a replica's broker is dead")


def _is_forgotten(term: Term, topic: str) -> bool:
    """Return whether every live broker has answered the request to forget the topic.

    A broker that has not answered and has no replica to delete would never be notified again, once the znodes are
    deleted and another controller leads.
    """
    requests = term.context.deletions.forget_requests.get(topic, {})
    living = {(broker.id, broker.epoch) for broker in term.context.brokers}
    return all(term.requests.is_answered(*one, sequence) for one, sequence in requests.items() if one in living)


def record_forget_requests(term: Term, started: Sequence[int]) -> None:
    """Record the requests that asked newly started brokers to forget the topics in deletion.

    These brokers have just been sent all metadata. A broker whose session ended may know a topic in deletion.
    """
    by_topic = term.context.deletions.forget_requests
    for broker in term.context.brokers:
        if broker.id in started:
            latest = {(broker.id, broker.epoch): term.requests.last(broker.id)}
            by_topic.update({topic: {**requests, **latest} for topic, requests in by_topic.items()})


async def _take_offline(term: Term, replicas: Replicas) -> None:
    batch = RequestBatch(term)
    await replica_moves.take_offline(term, replicas, batch)
    batch.send()


async def _complete(term: Term, topics: Sequence[str]) -> None:
    """Delete the topics' znodes, and forget the topics.

    The watches are removed first, so that a topic of the same name that is created at once is only a new child.
    """
    table = term.context.partitions
    term.zookeeper.unwatch([paths.topic(name) for name in topics])
    known = [name for name in topics if name in table]
    replica_moves.move(term, _replicas_in(term, known, ReplicaState.DeletionSuccessful), ReplicaState.NonExistent)
    await remove_topics(term, topics)
    quarantine.forget_topics(term, topics)
    term.context.forget_topics(topics)
    term.note("info", f"{len(topics)} topics are deleted, {topics[0]} among them")


# -- finding


def _rows_of(term: Term, topics: Collection[str]) -> Rows:
    """Return the topics' rows, grouped by topic, in the context's order."""
    table = term.context.partitions
    wanted = frozenset(topics)
    numbers = [number for number, topic in enumerate(table.topics) if topic.name in wanted]
    rows: Rows = np.flatnonzero(np.isin(table.topic, numbers))
    return rows


def _replicas_in(term: Term, topics: Collection[str], state: ReplicaState) -> Replicas:
    table = term.context.partitions
    rows = _rows_of(term, topics)
    real = table.assignment[rows] != NO_BROKER
    return Replicas.where(rows, real & (table.replica_state[rows] == state))


def _in_states(term: Term, replicas: Replicas, *states: ReplicaState) -> Bools:
    found: Bools = np.isin(term.context.partitions.replica_state[replicas.rows, replicas.slots], states)
    return found


def _moving(term: Term, rows: Rows) -> tuple[str, ...]:
    """Return the topics of `rows` that are being reassigned."""
    moving = term.context.moving_topics()
    return tuple(name for name in term.context.partitions.names_of_topics(rows) if name in moving)


def _wait(term: Term, topics: Collection[str], why: str) -> None:
    deletions = term.context.deletions
    waiting = sorted(deletions.queued.intersection(topics))
    if waiting:
        deletions.ineligible.update(waiting)
        term.note("info", f"deletion of {len(waiting)} topics waits, as {why}: {waiting[0]} among them")


def _note_left_out(term: Term, asked: Sequence[str]) -> None:
    for name in asked:
        if name in term.context.left_out:
            term.note("warning", f"topic {name} is not deleted before its znode can be read")
