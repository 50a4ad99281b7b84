"""ISRs that leaders change: asked for by AlterIsr, or written by themselves and told of by a notification znode.

The leader epoch stays as it is and the state's znode version grows, so that leader and controller agree on which
change came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from controller.core.events import AlterIsrRequested, IsrChangeNotification
from controller.core.handlers import reassignment
from controller.core.notifications import delete_children, list_children
from controller.core.partition_table import NO_STATE, Rows, all_members, padded
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
    AlterIsrTopic,
    AlterIsrTopicResult,
)
from controller.protocol.errors import ErrorCode
from controller.quick import maker
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_isr_change_notification
from controller.zookeeper.errors import DamagedZnode

_asked, _result = maker(AlterIsrPartition), maker(AlterIsrPartitionResult)
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
    accepted: dict[int, tuple[int, ...]] = {}
    for topic in request.topics:
        for asked, row, present in _present(term, topic):
            error = _refusal(term, request.broker_id, present, asked, event.version)
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and event.version >= NAMED_BY_ID and not topic.name:
                error = ErrorCode.UNKNOWN_TOPIC_ID
            if error is not None:
                errors[topic.name, asked.partition_index] = error
            elif row is not None and present is not None and asked.new_isr != present.isr:
                accepted[row] = asked.new_isr
    rows = np.array(sorted(accepted), dtype=np.int64)
    moved = await _write(term, rows, [accepted[row] for row in rows.tolist()])
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
    return _asked(
        asked.partition_index,
        asked.leader_epoch,
        tuple([one.broker_id for one in members]),
        asked.current_isr_version,
        tuple([one.broker_epoch for one in members]),
        members,
        asked.leader_recovery_state,
    )


class _Present(NamedTuple):
    """A partition's state as the context has it; a tuple, since one is made for each that is asked for."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    assignment: tuple[int, ...]


def _present(term: Term, topic: AlterIsrTopic) -> list[tuple[AlterIsrPartition, int | None, _Present | None]]:
    """What is asked for of a topic, each with its row and its state, None where there is none."""
    table = term.context.partitions
    found = table.rows_in(topic.name, [asked.partition_index for asked in topic.partitions])
    rows = np.array([0 if row is None else row for row in found if len(table)], dtype=np.int64)
    columns = zip(
        table.leader[rows].tolist(),
        table.leader_epoch[rows].tolist(),
        all_members(table.isr[rows]),
        table.zk_version[rows].tolist(),
        all_members(table.assignment[rows]),
        strict=True,
    )
    states: list[_Present | None] = [_Present(*state) for state in columns]
    return [
        (asked, row, None if row is None or state is None or state.version == NO_STATE else state)
        for asked, row, state in zip(topic.partitions, found, states or [None] * len(found), strict=True)
    ]


def _refusal(
    term: Term, sender: int, present: _Present | None, asked: AlterIsrPartition, spoken: int
) -> ErrorCode | None:
    """Why a change can't be made; None if it can, or is made already. `spoken`: the version of the request."""
    if present is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if asked.leader_epoch > present.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # it knows a later controller than this one (KAFKA-14154)
    if asked.leader_epoch < present.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    members = set(asked.new_isr)
    if sender != present.leader or not members or len(members) != len(asked.new_isr):
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state != RECOVERED:
        return ErrorCode.INVALID_REQUEST  # nobody was told that it is to recover
    if asked.new_isr == present.isr:
        return None
    if asked.current_isr_version > present.version:
        return ErrorCode.NOT_CONTROLLER
    if asked.current_isr_version < present.version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if sender not in members or not members.issubset(present.assignment):
        return ErrorCode.INVALID_REQUEST
    # One that shuts down would be leader next (KAFKA-14140), and one that had everything in an earlier life may have
    # lost it with its disk (KIP-903).
    joining = members.difference(present.isr)
    if not joining.issubset(term.context.eligible_ids) or _of_earlier_lives(term, joining, asked):
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
    none, unknown = int(ErrorCode.NONE), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = []
    for topic in request.topics:
        results = []
        for asked, _, present in _present(term, topic):
            partition = asked.partition_index
            error = errors.get((topic.name, partition), unknown if present is None else None)
            if error is not None or present is None:
                results.append(AlterIsrPartitionResult(partition, int(error or unknown)))
            else:
                leader, epoch, isr, version, _ = present
                results.append(_result(partition, none, leader, epoch, isr, version))
        topics.append(AlterIsrTopicResult(topic.name, tuple(results), topic.topic_id))
    return AlterIsrResponse(none, tuple(topics))


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
