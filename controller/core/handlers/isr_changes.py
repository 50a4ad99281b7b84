"""ISR changes by leaders: requested with AlterIsr, or written by the leader and announced by a notification znode.

The leader epoch stays as it is and the state's znode version grows, so that leader and controller agree on which
change came last.

A leader of Kafka 2.7 to 3.1 asks in version 0 and handles three errors of a partition (`HANDLED_AT_0`). On any other
one Kafka 2.8 sends the request again from inside its own callback, fails with IllegalStateException, and never changes
the ISR of that partition again in its leader epoch. So version 0 is answered with those three errors, or with a state:
the one asked for, or the one that stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from controller.core.context import NO_STATE, Rows, all_members, padded
from controller.core.events import AlterIsrRequested, IsrChangeNotification
from controller.core.handlers import reassignment
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import NewStates, set_states, take_in
from controller.core.znode_changes import delete_children, list_children
from controller.protocol.control import (
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
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_isr_change_notification
from controller.zookeeper.operations import DamagedZnode

NAMED_BY_ID = SPEAKS_INELIGIBLE = 2
"""The version from which on topics have ids instead of names, and INELIGIBLE_REPLICA is an answer."""
HANDLED_AT_0 = frozenset(
    [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION]
)
"""What Kafka 2.8's Partition.handleAlterIsrResponse handles: the leader keeps its change pending until a LeaderAndIsr
of a newer epoch."""


async def alter_isr(term: Term, event: AlterIsrRequested) -> None:
    """Answer partition by partition, and send all brokers the partitions that changed."""
    request = _by_name(term, event.value)
    sender = term.context.broker(request.broker_id)
    if sender is None or sender.epoch != request.broker_epoch:
        event.refuse(ErrorCode.STALE_BROKER_EPOCH)
        return
    await _catch_up(term, request)
    errors: dict[tuple[str, int], ErrorCode] = {}
    accepted: dict[int, AlterIsrPartition] = {}
    decide = _decision_at_0 if event.version == 0 else _decision
    for topic in request.topics:
        for asked, row, present in _present(term, topic):
            decision = decide(term, request.broker_id, present, asked, event.version)
            if decision is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and event.version >= NAMED_BY_ID and not topic.name:
                decision = ErrorCode.UNKNOWN_TOPIC_ID
            if decision is None and row is not None:
                accepted[row] = asked
            elif decision:
                errors[topic.name, asked.partition_index] = decision
    rows = np.array(sorted(accepted), dtype=np.int64)
    moved = await _write(term, rows, [accepted[row].new_isr for row in rows.tolist()])
    for row in moved.tolist():
        key = term.context.partitions.topic_and_partition(row)
        errors[key] = ErrorCode.INVALID_UPDATE_VERSION
        if event.version == 0:
            ((asked, _, present),) = _present(term, AlterIsrTopic(key[0], (accepted[row],)))
            errors[key] = decide(term, request.broker_id, present, asked, 0) or ErrorCode.NONE
    if len(rows):
        batch = RequestBatch(term)
        batch.update_metadata(rows)
        batch.send()
    event.respond(_response(term, request, errors))
    await reassignment.isr_changed(term, rows)


def _by_name(term: Term, request: AlterIsrRequest) -> AlterIsrRequest:
    """Convert a request to the form of version 0, with topic names.

    Later versions name topics by id (an unknown one stays without a name) and each member with its incarnation.
    """
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
    return AlterIsrPartition(
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
    """Return the requested partitions of a topic, each with its row and its state, None where there is none."""
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


def _ahead(asked: AlterIsrPartition, present: _Present | None) -> bool:
    """Return whether the leader's state is later than the one known here."""
    if present is None:
        return False
    if asked.leader_epoch != present.leader_epoch:
        return asked.leader_epoch > present.leader_epoch
    return asked.current_isr_version > present.version and asked.new_isr != present.isr


async def _catch_up(term: Term, request: AlterIsrRequest) -> None:
    """Reads again, past what this ZooKeeper server may lack, the states that a leader knows a later version of: a later
    controller wrote them (ControllerMoved), or the leader itself below inter-broker protocol 2.7."""
    ahead = {
        row
        for topic in request.topics
        for asked, row, present in _present(term, topic)
        if row is not None and _ahead(asked, present)
    }
    if not ahead:
        return
    rows = np.array(sorted(ahead), dtype=np.int64)
    names = term.context.partitions.state_paths(rows)
    await term.zookeeper.sync(names[0])
    for row, state in zip(rows.tolist(), (await term.zookeeper.read(names)).rows, strict=True):
        take_in(term, row, state)


def _decision(
    term: Term, sender: int, present: _Present | None, asked: AlterIsrPartition, spoken: int
) -> ErrorCode | None:
    """None: the change can be made. NONE: nothing is written, the state that stands is the answer. Else the error.
    `spoken`: the version of the request."""
    if present is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if _ahead(asked, present):
        return ErrorCode.NOT_CONTROLLER  # it knows a later controller than this one (KAFKA-14154)
    if asked.leader_epoch < present.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    members = set(asked.new_isr)
    if sender != present.leader or not members or len(members) != len(asked.new_isr):
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state != RECOVERED:
        return ErrorCode.INVALID_REQUEST  # no leader was asked to recover
    if asked.new_isr == present.isr:
        return ErrorCode.NONE
    if asked.current_isr_version < present.version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if sender not in members or not members.issubset(present.assignment):
        return ErrorCode.INVALID_REQUEST
    # A broker that shuts down could be elected next (KAFKA-14140), and one that was in sync in an earlier incarnation
    # may have lost its disk (KIP-903).
    joining = members.difference(present.isr)
    if not joining.issubset(term.context.eligible_ids) or _of_earlier_lives(term, joining, asked):
        return ErrorCode.OPERATION_NOT_ATTEMPTED if spoken < SPEAKS_INELIGIBLE else ErrorCode.INELIGIBLE_REPLICA
    return None


def _decision_at_0(
    term: Term, sender: int, present: _Present | None, asked: AlterIsrPartition, spoken: int
) -> ErrorCode | None:
    """As `_decision`, in terms of a leader of Kafka 2.8.

    A live broker joins even while it shuts down, as under Kafka 2.8's own controller: its leader asks again with each
    fetch of a follower that was not accepted, thousands of times a second. Any other change that this leader may not
    make is answered with the state that stands, after which it may propose again. A change that rests on a state that
    does not exist stays refused.
    """
    decision = _decision(term, sender, present, asked, spoken)
    if not decision or present is None or decision is ErrorCode.FENCED_LEADER_EPOCH:
        return decision
    if decision is ErrorCode.NOT_CONTROLLER:
        return ErrorCode.INVALID_UPDATE_VERSION  # no later controller wrote the state, which was read again
    if sender != present.leader:
        return ErrorCode.FENCED_LEADER_EPOCH
    if decision is ErrorCode.OPERATION_NOT_ATTEMPTED:
        joining = set(asked.new_isr).difference(present.isr)
        if joining.issubset(term.context.broker_ids) and not _of_earlier_lives(term, joining, asked):
            return None
    return ErrorCode.NONE


def _of_earlier_lives(term: Term, joining: set[int], asked: AlterIsrPartition) -> bool:
    """Return whether the leader names an added broker in an incarnation that is not the registered one.

    The leader need not name incarnations.
    """
    if len(asked.new_isr_epochs) != len(asked.new_isr):
        return False
    for member, epoch in zip(asked.new_isr, asked.new_isr_epochs, strict=True):
        if member in joining and epoch != NO_BROKER_EPOCH:
            broker = term.context.broker(member)
            if broker is None or broker.epoch != epoch:
                return True
    return False


async def _write(term: Term, rows: Rows, isrs: Sequence[Sequence[int]]) -> Rows:
    """Write the states, and return the rows that had changed in ZooKeeper."""
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
            error = errors.get((topic.name, partition))
            if error or present is None:
                results.append(AlterIsrPartitionResult(partition, int(error or unknown)))
            else:
                leader, epoch, isr, version, _ = present
                results.append(AlterIsrPartitionResult(partition, none, leader, epoch, isr, version))
        topics.append(AlterIsrTopicResult(topic.name, tuple(results), topic.topic_id))
    return AlterIsrResponse(none, tuple(topics))


async def isr_change_notification(term: Term, event: IsrChangeNotification) -> None:
    """Read again the states that leaders below inter-broker protocol 2.7 wrote themselves, and notify the brokers.

    The children are listed here, not where the watch fired; another event has handled a child that is no longer there
    (KAFKA-5879).
    """
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
        states = await term.zookeeper.read(term.context.partitions.state_paths(rows))
        for row, state in zip(rows.tolist(), states.rows, strict=True):
            take_in(term, row, state)
        batch = RequestBatch(term)
        batch.update_metadata(rows)
        batch.send()
    await delete_children(term, parent, names)
    await reassignment.isr_changed(term, rows)
