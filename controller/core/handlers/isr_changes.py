"""ISRs that leaders change: asked for by AlterIsr, or written by themselves and told of by a notification znode.

The leader epoch stays as it is and the state's znode version grows, so that leader and controller agree on which
change came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controller.core.events import AlterIsrRequested, IsrChangeNotification
from controller.core.handlers import reassignment
from controller.core.notifications import delete_children, list_children
from controller.core.partition_table import NO_STATE, Rows, padded
from controller.core.request_batch import RequestBatch
from controller.core.state_writes import NewStates, set_states, state_paths, take_in
from controller.core.term import Term
from controller.protocol.control_values import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    RECOVERED,
    AlterIsrPartition,
    AlterIsrPartitionResult,
    AlterIsrRequest,
    AlterIsrResponse,
    AlterIsrTopicResult,
)
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_isr_change_notification
from controller.zookeeper.errors import DamagedZnode

Asked = tuple[str, AlterIsrPartition]
NAMED_BY_ID = SPEAKS_INELIGIBLE = 2
"""The version from which on topics have ids instead of names, and INELIGIBLE_REPLICA is an answer."""


async def alter_isr(term: Term, event: AlterIsrRequested) -> None:
    """Answers partition by partition; every broker then hears of the partitions that changed."""
    request = _by_name(term, event.value)
    sender = term.context.broker(request.broker_id)
    if sender is None or sender.epoch != request.broker_epoch:
        event.refuse(ErrorCode.STALE_BROKER_EPOCH)
        return
    errors: dict[tuple[str, int], ErrorCode] = {}
    accepted: dict[int, AlterIsrPartition] = {}
    for topic, asked in _asked(request):
        row = term.context.partitions.row_of(topic, asked.partition_index)
        error = _refusal(term, request.broker_id, row, asked, event.version)
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and event.version >= NAMED_BY_ID and not topic:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        if error is not None:
            errors[topic, asked.partition_index] = error
        elif row is not None and asked.new_isr != term.context.partitions.isr_of(row):
            accepted[row] = asked
    rows = np.array(sorted(accepted), dtype=np.int64)
    moved = await _write(term, rows, [accepted[row].new_isr for row in rows.tolist()])
    for row in moved.tolist():
        errors[term.context.partitions.topic_and_partition(row)] = ErrorCode.INVALID_UPDATE_VERSION
    if len(rows):
        batch = RequestBatch(term)
        batch.update_metadata(rows)
        batch.send()
    event.respond(_response(term, request, errors))
    await reassignment.isr_changed(term, rows)


def _by_name(term: Term, request: AlterIsrRequest) -> AlterIsrRequest:
    """As version 0 has it: later ones name topics by id (an unknown one stays without a name) and pair each member with
    the life that is meant."""
    if all(topic.name for topic in request.topics):
        return request
    names = {topic.id: topic.name for topic in term.context.partitions.topics if topic.id != NO_TOPIC_ID}
    return replace(
        request,
        topics=tuple(
            replace(
                topic,
                name=topic.name or names.get(topic.topic_id, ""),
                partitions=tuple(_unpaired(one) for one in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _unpaired(asked: AlterIsrPartition) -> AlterIsrPartition:
    members = asked.new_isr_with_epochs
    if not members:
        return asked
    ids, epochs = tuple(one.broker_id for one in members), tuple(one.broker_epoch for one in members)
    return replace(asked, new_isr=ids, new_isr_epochs=epochs)


def _asked(request: AlterIsrRequest) -> list[Asked]:
    return [(topic.name, asked) for topic in request.topics for asked in topic.partitions]


def _refusal(term: Term, sender: int, row: int | None, asked: AlterIsrPartition, spoken: int) -> ErrorCode | None:
    """Why a change can't be made; None if it can, or is made already. `spoken`: the version of the request."""
    table = term.context.partitions
    if row is None or table.zk_version[row] == NO_STATE:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    epoch, version = int(table.leader_epoch[row]), int(table.zk_version[row])
    if asked.leader_epoch > epoch:
        return ErrorCode.NOT_CONTROLLER  # it knows a later controller than this one (KAFKA-14154)
    if asked.leader_epoch < epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != table.leader[row] or not asked.new_isr or len(set(asked.new_isr)) != len(asked.new_isr):
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state != RECOVERED:
        return ErrorCode.INVALID_REQUEST  # nobody was told that it is to recover
    current = table.isr_of(row)
    if asked.new_isr == current:
        return None
    if asked.current_isr_version > version:
        return ErrorCode.NOT_CONTROLLER
    if asked.current_isr_version < version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if sender not in asked.new_isr or not set(asked.new_isr) <= set(table.assignment_of(row)):
        return ErrorCode.INVALID_REQUEST
    # One that shuts down would be leader next (KAFKA-14140), and one that had everything in an earlier life may have
    # lost it with its disk (KIP-903).
    joining = set(asked.new_isr) - set(current)
    if not joining <= set(term.context.eligible_ids) or _of_earlier_lives(term, joining, asked):
        return ErrorCode.OPERATION_NOT_ATTEMPTED if spoken < SPEAKS_INELIGIBLE else ErrorCode.INELIGIBLE_REPLICA
    return None


def _of_earlier_lives(term: Term, joining: set[int], asked: AlterIsrPartition) -> bool:
    """Whether the leader speaks of a life of one that joins which is not the registered one. It need not say."""
    if len(asked.new_isr_epochs) != len(asked.new_isr):
        return False
    for member, epoch in zip(asked.new_isr, asked.new_isr_epochs, strict=True):
        if member in joining and epoch != NO_BROKER_EPOCH:
            broker = term.context.broker(member)
            if broker is None or broker.epoch != epoch:
                return True
    return False


async def _write(term: Term, rows: Rows, isrs: Sequence[Sequence[int]]) -> Rows:
    """Gives the rows that had moved."""
    if not len(rows):
        return rows
    table = term.context.partitions
    states = NewStates(
        rows=rows,
        leader=table.leader[rows],
        leader_epoch=table.leader_epoch[rows],
        isr=padded(isrs, table.width),
        unclean=np.zeros(len(rows), dtype=np.bool_),
        why="alter isr",
        live=term.context.eligible_ids,
    )
    return await set_states(term, states)


def _response(term: Term, request: AlterIsrRequest, errors: dict[tuple[str, int], ErrorCode]) -> AlterIsrResponse:
    def result(topic: str, partition: int) -> AlterIsrPartitionResult:
        error, table = errors.get((topic, partition)), term.context.partitions
        row = table.row_of(topic, partition)
        if error is not None or row is None:
            return AlterIsrPartitionResult(partition, int(error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return AlterIsrPartitionResult(
            partition,
            int(ErrorCode.NONE),
            int(table.leader[row]),
            int(table.leader_epoch[row]),
            table.isr_of(row),
            int(table.zk_version[row]),
        )

    topics = tuple(
        AlterIsrTopicResult(
            topic.name, tuple(result(topic.name, asked.partition_index) for asked in topic.partitions), topic.topic_id
        )
        for topic in request.topics
    )
    return AlterIsrResponse(int(ErrorCode.NONE), topics)


async def isr_change_notification(term: Term, event: IsrChangeNotification) -> None:
    """Leaders below inter-broker protocol 2.7 wrote states themselves: those are read again, and told of. The children
    are listed here, not where the watch fired; one that is gone was another event's (KAFKA-5879)."""
    parent = paths.ISR_CHANGE_NOTIFICATION
    names = await list_children(term, parent)
    if not names:
        return
    reading = await term.zookeeper.read([paths.child(parent, name) for name in names])
    table = term.context.partitions
    named: set[int] = set()
    for found in reading.rows:
        if found is None:
            continue
        try:
            partitions = decode_isr_change_notification(found.path, found.data).partitions
        except DamagedZnode as damaged:
            term.note("error", str(damaged))
            continue
        known = (table.row_of(topic, partition) for topic, partition in partitions)
        named.update(row for row in known if row is not None)
    rows = np.array(sorted(named), dtype=np.int64)
    if len(rows):
        states = await term.zookeeper.read(state_paths(term, rows))
        for row, state in zip(rows.tolist(), states.rows, strict=True):
            take_in(term, row, state)
        batch = RequestBatch(term)
        batch.update_metadata(rows)
        batch.send()
    await delete_children(term, parent, names)
    await reassignment.isr_changed(term, rows)
