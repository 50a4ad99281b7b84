"""Requests to delete topics, from clients and in ZooKeeper, and what brokers answered that were to delete replicas.

How a deletion goes is in `controller.core.topic_deletion`; here is what makes it go on.
"""

from __future__ import annotations

import numpy as np

from controller.core import topic_deletion as deletion
from controller.core.context import Replicas
from controller.core.events import (
    DeleteTopicsRequested,
    RetryDeletions,
    StopReplicaResponseReceived,
    TopicChange,
    TopicDeletion,
)
from controller.core.handlers.topic_changes import topic_change
from controller.core.leadership import Term
from controller.core.topic_settings import name_fault
from controller.core.znode_changes import delete_children, list_children
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.operations import NoAuth, NodeExists, NoNode

RETRY_MS = 30_000.0
"""After a broker could not delete a replica, until it is asked again: its disk may have been slow. Kafka's controller
asks again when the broker registers anew, or when another controller is elected."""


async def topic_deletion(term: Term, event: TopicDeletion) -> None:
    """Compares the children of /admin/delete_topics with the context. A topic that the context lacks may have been
    made a moment ago: topics are looked at first. What no topic is asked for is taken out."""
    asked = await list_children(term, paths.DELETE_TOPICS)
    if any(not _is_known(term, name) for name in asked):
        await topic_change(term, TopicChange())
    unknown = [name for name in asked if not _is_known(term, name)]
    if unknown:
        term.note("warning", f"no topics, so not deleted: {', '.join(unknown[:10])}")
        await delete_children(term, paths.DELETE_TOPICS, unknown)
    known = [name for name in asked if _is_known(term, name)]
    if not term.settings.delete_topic:
        await deletion.refuse(term, known)
    else:
        await deletion.enqueue(term, known)


def _is_known(term: Term, name: str) -> bool:
    return name in term.context.partitions or name in term.context.left_out


async def delete_topics(term: Term, event: DeleteTopicsRequested) -> None:
    """Leaves a request in /admin/delete_topics for each; its watch does the rest. One that is there already is as
    good. A name that no topic can have is no topic's; it may be no znode's name either."""
    errors = {}
    for name in event.topics:
        if name_fault(name) is not None:
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        try:
            await term.writes.ask_to_delete_topic(name)
        except NodeExists:
            errors[name] = ErrorCode.NONE
        except NoNode:
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except NoAuth as error:
            term.note("error", f"topic {name} is not deleted: {error}")
            errors[name] = ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            errors[name] = ErrorCode.NONE
    event.respond(errors)


async def stop_replica_answered(term: Term, event: StopReplicaResponseReceived) -> None:
    """Handle a broker's answer about replicas that it was to delete. Answers of earlier incarnations are ignored."""
    broker = term.context.broker(event.broker)
    if broker is None or broker.epoch != event.broker_epoch:
        return
    failed = {
        (one.topic_name, one.partition_index) for one in event.body.partition_errors if one.error_code != ErrorCode.NONE
    }
    if event.body.error_code != ErrorCode.NONE:
        failed.update(event.to_delete)
    wanted = [one for one in event.to_delete if one[0] in term.context.deletions.queued]
    if any(one in failed for one in wanted):
        refused = [one for one in wanted if one in failed]
        term.note("warning", f"broker {event.broker} could not delete {len(refused)} replicas, {refused[0]} among them")
        await deletion.replicas_failed(term, _replicas(term, event.broker, refused))
        term.timers.set("refused deletions", term.clock, RETRY_MS, lambda: term.put(RetryDeletions(term.epoch)))
    deleted = [one for one in wanted if one not in failed]
    if deleted:
        await deletion.replicas_deleted(term, _replicas(term, event.broker, deleted))


async def retry_deletions(term: Term, event: RetryDeletions) -> None:
    """Replicas that are offline by now, with their broker or log directory, are not asked for."""
    if event.controller_epoch == term.epoch:
        await deletion.resume_for(term, term.context.deletions.queued)


def _replicas(term: Term, broker: int, partitions: list[tuple[str, int]]) -> Replicas:
    """The broker's replicas of these partitions, as far as the context has them."""
    table = term.context.partitions
    found = [table.row_of(topic, partition) for topic, partition in partitions]
    rows = np.array([row for row in found if row is not None], dtype=np.int64)
    return Replicas.where(rows, table.assignment[rows] == broker)
