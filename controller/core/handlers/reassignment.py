"""Requests for reassignments, by /admin/reassign_partitions or by clients' requests, and which of them may begin.

A reassignment that waits for its turn is kept in that znode, however it was requested, so that it outlives the
controller. The steps of a reassignment are in `controller.core.reassignment`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from controller.core import reassignment
from controller.core.context import Rows
from controller.core.events import (
    AlterReassignmentsRequested,
    ListReassignmentsRequested,
    ReassignmentAsked,
    ReassignmentIsrChange,
    TopicChange,
)
from controller.core.handlers.topic_changes import topic_change
from controller.core.leadership import Term
from controller.core.loading import quarantine
from controller.core.reassignment import NotWritten, Partition, change_asked, read_asked, serve_repaired, too_large
from controller.core.state_changes import read_states
from controller.core.znode_changes import ROUNDS
from controller.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponse,
    OngoingPartition,
    OngoingTopic,
    ReassignablePartitionResult,
    ReassignableTopicResult,
)
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs_columns import replicas_fault
from controller.zookeeper.row_writes import ZNODE_BYTES_MAX
from statemachines.reassignment import (
    Assignment,
    ReassignmentLimits,
    ReassignmentState,
    admitted,
    strands,
    target_fault,
)

NO_PARTITION = "The partition does not exist."
NOT_IN_PROGRESS = "No partition reassignment is in progress."
STRANDED = "All replicas that are in sync would be removed."


class ReassignmentRefusal(msgspec.Struct, frozen=True):
    error: ErrorCode
    message: str


TOO_LARGE = ReassignmentRefusal(
    ErrorCode.POLICY_VIOLATION, f"The topic's znode would have more than {ZNODE_BYTES_MAX} bytes."
)


# -- by the znode


async def reassignment_asked(term: Term, event: ReassignmentAsked) -> None:
    """Read the requested reassignments, and begin those that may begin."""
    await _begin_asked(term)
    await begin_what_waits(term)


async def take_up(term: Term) -> int:
    """Resume requested and unfinished reassignments when a term begins, and return the number of partitions."""
    begun = await _begin_asked(term)
    table = term.context.partitions
    left = [row for row in table.moving_rows() if table.topic_and_partition(row) not in begun]
    await reassignment.go_on(term, left)
    await begin_what_waits(term)
    return len(begun) + len(left)


async def restart_for(term: Term, started: Collection[int]) -> None:
    """These brokers are there (again): what is to move to them goes on (KAFKA-4214)."""
    table = term.context.partitions
    there = frozenset(started)
    rows = [row for row in table.moving_rows() if there.intersection(table.reassignment_of(row).target)]
    await reassignment.go_on(term, rows)
    await begin_what_waits(term)


async def isr_changed(term: Term, rows: Rows) -> None:
    """Replicas may have come into sync. Row numbers from before are void then."""
    if term.context.partitions.moving_rows():
        await reassignment.complete_caught_up(term, rows.tolist())
        await begin_what_waits(term)


async def reassignment_isr_change(term: Term, event: ReassignmentIsrChange) -> None:
    """Handle the write of a watched state, by a leader or by an administrator who repaired it."""
    row = term.context.partitions.row_of(event.topic, event.partition)
    if row is None:
        return
    rows = np.array([row], dtype=np.int64)
    was_unusable = paths.partition_state(event.topic, event.partition) in term.context.quarantine
    await read_states(term, rows)
    rewritten = term.context.rewritten.pop((event.topic, event.partition), None)
    if was_unusable or rewritten == term.context.partitions.zk_version[row]:
        await serve_repaired(term, rows)
        await begin_what_waits(term)  # what was asked for it meanwhile may begin
        rows = rows[:0]  # it is taken up already
    await isr_changed(term, rows)


async def begin_what_waits(term: Term) -> None:
    """Others have arrived, and made room."""
    for _ in range(ROUNDS):
        if not term.context.waiting or not await _begin_asked(term):
            return


async def _begin_asked(term: Term) -> frozenset[Partition]:
    """Begin the requested reassignments that may begin and are not in progress, and return those that began.

    Invalid requests are removed from the znode, as in Kafka.
    """
    asked = await read_asked(term)
    if asked is None:
        term.context.waiting = {}
        return frozenset()
    if any(topic not in term.context.partitions for topic, _ in asked):
        await topic_change(term, TopicChange())  # it may have been made a moment ago
    wanted: dict[Partition, Assignment] = {}
    refused: dict[Partition, str] = {}
    unread: list[Partition] = []
    for key, target in asked.items():
        checked = _checked(term, key, target, live=None)
        if isinstance(checked, ReassignmentRefusal):
            if _is_unreadable(term, key):
                unread.append(key)
            elif key[0] not in term.context.left_out:
                refused[key] = checked.message
        elif not (checked.is_moving and checked == _present(term, key)):
            wanted[key] = checked
    if refused or not asked:
        for key, why in refused.items():
            term.note("warning", f"not reassigned, as asked for in ZooKeeper: {key[0]}-{key[1]}: {why}")
        await _take_out(term, refused)
    if large := await too_large(term, wanted):
        await _take_out(term, large)
        wanted = {key: one for key, one in wanted.items() if key not in large}
    starting, waiting = _admit(term, wanted)
    _wait(term, {key: asked[key] for key in (*waiting, *unread)})
    return await reassignment.begin(term, starting)


def _wait(term: Term, waiting: Mapping[Partition, tuple[int, ...]]) -> None:
    """Set which requests wait. One for a partition that is being reassigned waits to replace the target."""
    table = term.context.partitions
    rows = (table.row_of(*key) for key in waiting if not _is_moving(term, key))
    term.context.require_reassignment((row for row in rows if row is not None), ReassignmentState.Waiting)
    term.context.waiting = dict(waiting)


async def _take_out(term: Term, refused: Collection[Partition]) -> None:
    try:
        await change_asked(term, lambda now: {key: target for key, target in now.items() if key not in refused})
    except NotWritten as why:
        quarantine(term, paths.REASSIGN_PARTITIONS, str(why))


# -- by request


async def alter_reassignments(term: Term, event: AlterReassignmentsRequested) -> None:
    """Answer partition by partition, once the topics' znodes name the new replicas.

    The latest request takes effect, however an earlier one was made (KAFKA-9089).
    """
    asked = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in event.value.topics
        for partition in topic.partitions
    }
    refused: dict[Partition, ReassignmentRefusal] = {}
    wanted: dict[Partition, Assignment] = {}
    withdrawn: set[Partition] = set()
    for key, target in asked.items():
        if target is None and key in term.context.waiting and not _is_moving(term, key):
            withdrawn.add(key)
            continue
        checked = _checked(term, key, target, live=term.context.eligible_ids)
        if isinstance(checked, ReassignmentRefusal):
            refused[key] = checked
        else:
            wanted[key] = checked
    for key in await too_large(term, wanted):
        del wanted[key]
        refused[key] = TOO_LARGE
    starting, waiting = _admit(term, wanted)
    if waiting:
        targets = {key: wanted[key].target for key in waiting}
        try:
            await change_asked(term, lambda now: {**now, **targets})
        except NotWritten as why:
            refused.update(dict.fromkeys(waiting, ReassignmentRefusal(ErrorCode.POLICY_VIOLATION, str(why))))
        else:
            _wait(term, {**term.context.waiting, **targets})
    withdrawn.update(starting)
    for key in withdrawn:
        term.context.waiting.pop(key, None)
    begun = await reassignment.begin(term, starting, withdrawn)
    gone = ReassignmentRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_PARTITION)
    refused.update({key: gone for key in starting if key not in begun})
    event.respond(_altered(asked, refused))
    await begin_what_waits(term)


def _altered(
    asked: Iterable[Partition], refused: Mapping[Partition, ReassignmentRefusal]
) -> AlterPartitionReassignmentsResponse:
    topics: dict[str, list[ReassignablePartitionResult]] = {}
    for topic, partition in asked:
        why = refused.get((topic, partition))
        error, message = (ErrorCode.NONE, None) if why is None else (why.error, why.message)
        topics.setdefault(topic, []).append(ReassignablePartitionResult(partition, int(error), message))
    return AlterPartitionReassignmentsResponse(
        tuple(ReassignableTopicResult(name, tuple(results)) for name, results in topics.items())
    )


async def list_reassignments(term: Term, event: ListReassignmentsRequested) -> None:
    """Those on their way, and those that wait for their turn as they will be."""
    table, waiting = term.context.partitions, term.context.waiting
    if event.value.topics is None:
        keys = [table.topic_and_partition(row) for row in table.moving_rows()]
        keys += [key for key in waiting if key not in keys]
    else:
        keys = [(topic.name, one) for topic in event.value.topics for one in topic.partition_indexes]
    topics: dict[str, list[OngoingPartition]] = {}
    for topic, partition in dict.fromkeys(keys):
        row = table.row_of(topic, partition)
        if row is None:
            continue
        shown = table.reassignment_of(row)
        if (topic, partition) in waiting:
            shown = shown.toward(waiting[topic, partition])
        if shown.is_moving:
            ongoing = OngoingPartition(partition, shown.replicas, shown.adding, shown.removing)
            topics.setdefault(topic, []).append(ongoing)
    event.respond(
        ListPartitionReassignmentsResponse(tuple(OngoingTopic(name, tuple(found)) for name, found in topics.items()))
    )


# -- what may be


def _present(term: Term, key: Partition) -> Assignment | None:
    row = term.context.partitions.row_of(*key)
    return None if row is None else term.context.partitions.reassignment_of(row)


def _is_moving(term: Term, key: Partition) -> bool:
    present = _present(term, key)
    return present is not None and present.is_moving


def _checked(
    term: Term, key: Partition, target: Sequence[int] | None, live: Collection[int] | None
) -> Assignment | ReassignmentRefusal:
    """Return the partition's next assignment, or the error. None as a target cancels the reassignment.

    The checks are in Kafka's order: the target is checked before the existence of the partition.
    """
    row = term.context.partitions.row_of(*key)
    present = Assignment(()) if row is None else term.context.partitions.reassignment_of(row)
    if target is not None and (fault := target_fault(target, present, live) or replicas_fault(target)):
        return ReassignmentRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
    if target is None and not present.is_moving:
        return ReassignmentRefusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, NOT_IN_PROGRESS)
    if row is None or key[0] in term.context.deletions.queued:
        return ReassignmentRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_PARTITION)
    if _is_unreadable(term, key):
        return ReassignmentRefusal(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{paths.partition_state(*key)} can't be used; repair it first."
        )
    after = present.toward(present.origin if target is None else target)
    if fault := replicas_fault(after.replicas):
        return ReassignmentRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"On the way to {list(after.target)}: {fault}")
    if strands(term.context.partitions.isr_of(row), after):
        return ReassignmentRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, STRANDED)
    return after


def _is_unreadable(term: Term, key: Partition) -> bool:
    """Whether the partition's state is in quarantine: its ISR is not known, so that no replica may be dropped."""
    return paths.partition_state(*key) in term.context.quarantine


def _admit(
    term: Term, wanted: Mapping[Partition, Assignment]
) -> tuple[dict[Partition, Assignment], tuple[Partition, ...]]:
    """Which begin now, and which wait until others have arrived, or the controller is paused no more."""
    if term.context.paused is not None:
        back = {key: one for key, one in wanted.items() if _is_moving(term, key) and not one.adding}
        return back, tuple(key for key in wanted if key not in back)
    limits = ReassignmentLimits(term.settings.reassignments_in_cluster, term.settings.reassignments_on_broker)
    table = term.context.partitions
    others = [row for row in table.moving_rows() if table.topic_and_partition(row) not in wanted]
    verdicts = admitted([table.reassignment_of(row) for row in others], list(wanted.values()), limits)
    starting = {key: one for (key, one), may in zip(wanted.items(), verdicts, strict=True) if may}
    return starting, tuple(key for key in wanted if key not in starting)
