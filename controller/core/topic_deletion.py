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

The znodes of a complete deletion are /brokers/topics/T with all below it, /config/topics/T and /admin/delete_topics/T.
Children are deleted before parents, partition by partition, as a 2.8 controller does, in fenced batches of many topics.
One multi deletes a topic's own znode, its config and its deletion request: as long as the request exists there is
something to delete, and without it the deletion is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np

from controller.clock import Future
from controller.core import state_changes
from controller.core.context import NO_BROKER, Bools, Replicas, Rows
from controller.core.leadership import Term
from controller.core.loading import forget_quarantined_topics
from controller.core.request_batch import RequestBatch
from controller.core.znode_changes import ROUNDS, delete_children, list_children
from controller.zookeeper import paths
from controller.zookeeper.operations import (
    ANY_VERSION,
    BATCH,
    Delete,
    MultiFailed,
    NoAuth,
    NoNode,
    NotEmpty,
    UnknownOutcome,
    WriteResults,
)
from controller.zookeeper.row_writes import BATCH_BYTES, operation_bytes
from statemachines.partition import PartitionState
from statemachines.replica import ReplicaState

MULTIS_IN_FLIGHT = 4
NO_TOPIC = -1
"""As a czxid: the topic's znode was gone from the beginning."""


class _Found(msgspec.Struct, frozen=True):
    """The znodes that exist of a topic; `czxid` distinguishes the deleted topic from a later one of the same name."""

    czxid: int
    topic: bool
    config: bool
    request: bool

    @property
    def anything(self) -> bool:
        return self.topic or self.config or self.request


async def remove_topics(term: Term, names: Sequence[str]) -> None:
    """Removes them, whatever of them is there. A topic that was made again meanwhile is left alone. What still resists
    after some rounds is named in the log."""
    lives: dict[str, int] = {}
    left = tuple(names)
    for _ in range(ROUNDS):
        found = await _look(term, left)
        for name, one in found.items():
            lives.setdefault(name, one.czxid)
        left = tuple(name for name in left if found[name].anything and found[name].czxid == lives[name])
        if not left:
            return
        trees = await _trees(term, [name for name in left if found[name].topic])
        refused = await _delete(term, [unit for name in left for unit in _units(name, found[name], trees)])
        for name, error in refused.items():
            term.note("error", f"topic {name} could not be removed: {error}")
        left = tuple(name for name in left if name not in refused)
    term.note("error", f"{len(left)} topics could not be removed, {left[0]} among them")


async def _look(term: Term, names: Sequence[str]) -> dict[str, _Found]:
    asked = [path for name in names for path in (paths.topic(name), paths.config_topic(name), paths.delete_topic(name))]
    rows = iter((await term.zookeeper.read(asked)).rows)
    found = {}
    for name, topic, config, request in zip(names, rows, rows, rows, strict=True):
        czxid = NO_TOPIC if topic is None else topic.stat.czxid
        found[name] = _Found(czxid, topic is not None, config is not None, request is not None)
    return found


async def _trees(term: Term, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The children's paths of every znode in these topics, level by level."""
    children: dict[str, tuple[str, ...]] = {}
    level = [paths.topic(name) for name in names]
    while level:
        listing = await term.zookeeper.children(level)
        for path, there in zip(level, listing.children, strict=True):
            children[path] = tuple(paths.child(path, name) for name in there or ())
        level = [path for parent in level for path in children[parent]]
    return children


def _units(name: str, found: _Found, children: dict[str, tuple[str, ...]]) -> Iterator[tuple[Delete, ...]]:
    """The topic's deletes in order, those together that must be made together."""
    top = paths.topic(name)
    for path in _below(top, children):
        yield (Delete(path, ANY_VERSION),)
    last = ((top, found.topic), (paths.config_topic(name), found.config), (paths.delete_topic(name), found.request))
    yield tuple(Delete(path, ANY_VERSION) for path, there in last if there)


def _below(path: str, children: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for child in children.get(path, ()):
        yield from _below(child, children)
        yield child


async def _delete(term: Term, units: Sequence[tuple[Delete, ...]]) -> dict[str, NoAuth]:
    """Delete in batches, several in flight; return the topics of which ZooKeeper refuses to delete a znode.

    If a batch fails because a znode was already deleted or was created again, the caller reads those topics again.
    """
    refused: dict[str, NoAuth] = {}
    in_flight: deque[Future[WriteResults]] = deque()
    for batch in _batches(units):
        if len(in_flight) == MULTIS_IN_FLIGHT:
            await _settle(in_flight.popleft(), refused)
        in_flight.append(term.zookeeper.commit(term.leadership, batch))
    while in_flight:
        await _settle(in_flight.popleft(), refused)
    return refused


def _batches(units: Sequence[tuple[Delete, ...]]) -> Iterator[list[Delete]]:
    batch: list[Delete] = []
    size = 0
    for unit in units:
        more = sum(map(operation_bytes, unit))
        if batch and (len(batch) + len(unit) > BATCH - 1 or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch += unit
        size += more
    if batch:
        yield batch


async def _settle(sent: Future[WriteResults], refused: dict[str, NoAuth]) -> None:
    try:
        await sent
    except UnknownOutcome:
        pass  # the next look says what became of it
    except MultiFailed as failed:
        if isinstance(failed.error, NoAuth) and paths.is_one_of_many(failed.error.path):
            path = failed.error.path
            refused[paths.topic_of(path) or path.rpartition("/")[2]] = failed.error
        elif not isinstance(failed.error, NoNode | NotEmpty):
            raise


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
    state_changes.move_replicas(term, state_changes.pick_replicas(replicas, able), ReplicaState.DeletionIneligible)
    _wait(term, table.names_of_topics(replicas.rows), "a replica could not be deleted")
    await resume(term)


async def replicas_deleted(term: Term, replicas: Replicas) -> None:
    """Handle replicas of queued topics whose broker answered that it has deleted them."""
    started = _in_states(term, replicas, ReplicaState.DeletionStarted)
    state_changes.move_replicas(term, state_changes.pick_replicas(replicas, started), ReplicaState.DeletionSuccessful)
    await resume(term)


def not_deleted(term: Term, replicas: Replicas) -> Replicas:
    """Return the replicas that their brokers still have, as far as is known: they can be brought online again."""
    gone = _in_states(term, replicas, ReplicaState.DeletionStarted, ReplicaState.DeletionSuccessful)
    return state_changes.pick_replicas(replicas, ~gone)


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
    state_changes.move_partitions(term, unseen, PartitionState.Offline)
    state_changes.move_partitions(term, unseen, PartitionState.NonExistent)
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
    state_changes.move_replicas(term, state_changes.pick_replicas(dead, able), ReplicaState.DeletionIneligible)
    await _take_offline(term, there)
    batch = RequestBatch(term)
    state_changes.stop_for_deletion(term, there, batch)
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
    await state_changes.take_replicas_offline(term, replicas, batch)
    batch.send()


async def _complete(term: Term, topics: Sequence[str]) -> None:
    """Delete the topics' znodes, and forget the topics.

    The watches are removed first, so that a topic of the same name that is created at once is only a new child.
    """
    table = term.context.partitions
    term.zookeeper.unwatch([paths.topic(name) for name in topics])
    known = [name for name in topics if name in table]
    state_changes.move_replicas(
        term, _replicas_in(term, known, ReplicaState.DeletionSuccessful), ReplicaState.NonExistent
    )
    await remove_topics(term, topics)
    forget_quarantined_topics(term, topics)
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
