"""The broker's replicas, who may change them (controller epoch, leader epoch, topic id), and access to their records.

A request of a controller whose epoch is over is refused as a whole (S01, S31). A partition's state is taken only with a
leader epoch above the one held, and a StopReplica only with one that is not below it (S30, KIP-570). The broker's own
epoch was checked before (`broker.py`). `RecordAccess` finds a partition for a request about its records, or raises the
error for the refusal. The rules are those of Kafka 2.8's ReplicaManager. No I/O.

DescribeLogDirs reports a failed directory with its error and no replicas. Volume sizes are unknown.

`ReplicationThrottle` and `Quota` limit how fast replicas that are not in sync catch up:
leader.replication.throttled.rate for what leaves a broker, follower.replication.throttled.rate for what arrives, each
for the replicas that their topics' *.replication.throttled.replicas name. The quota is Kafka's: bytes over eleven
samples of a second. What exceeds it is held back, not refused: a follower's fetch finds nothing of that partition, or
does not ask for it. Followers in sync are never held back, or a producer would wait for a reassignment.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

from msgspec.structs import replace

from controller.broker.error_responses import leader_and_isr_error, topics_named_in
from controller.broker.log_manager import LogManager
from controller.broker.metadata import MetadataCache, MetadataSnapshot, NamedPartitions
from controller.broker.partition import Partition, Role
from controller.broker.request_context import SLICE, Job, Steps, Yielded
from controller.clock import Clock
from controller.core.topic_settings import elements, name_fault
from controller.protocol.admin import (
    DescribedLogDir,
    DescribedReplica,
    DescribedReplicas,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from controller.protocol.control import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    NO_TOPIC_ID,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import NO_LEADER_EPOCH
from controller.storage import (
    BadBatches,
    BatchesTooLarge,
    BatchTooLarge,
    CoordinatorFenced,
    CorruptBatch,
    DeviceUnavailable,
    InvalidBatch,
    InvalidTimestamp,
    InvalidTransactionState,
    LogDirectory,
    LogOffline,
    OffsetOutOfRange,
    OutOfResources,
    PartitionLog,
    ProducerFenced,
    SequenceOutOfOrder,
    StorageError,
    UnsupportedCompression,
    UnsupportedMagic,
)
from controller.trace import MetadataApplied, Noted, ReplicaRoleApplied, RequestRefused, Trace

Refused = Callable[[], bool]
"""Asked after each wait of a controller's request. Once it is true, the broker has registered anew, and the request was
meant for it before: nothing more of it is applied, and None is returned."""


def _never() -> bool:
    return False


def failed_in(topics: Iterable[LeaderAndIsrTopicError], failed: Set[tuple[str, int]]) -> list[LeaderAndIsrTopicError]:
    """The answers, with KAFKA_STORAGE_ERROR for the partitions that have failed since."""
    return [
        replace(
            topic,
            partition_errors=tuple(
                replace(one, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
                if (topic.topic_name, one.partition_index) in failed
                else one
                for one in topic.partition_errors
            ),
        )
        for topic in topics
    ]


def stray_replicas(
    broker: int,
    partitions: Mapping[tuple[str, int], Partition],
    metadata: MetadataSnapshot,
    named: NamedPartitions,
    kept: Collection[str] | None,
) -> list[Partition]:
    """Return the replicas here that should not exist: a later leader epoch's assignment, or that of a topic under
    deletion, does not name this broker, or the topic was deleted, and perhaps another created that has its name.

    This happens when the reassignment or deletion could not be sent to this broker, whose session had expired while its
    process was still running. `metadata` already includes what was `named` in this request. If `kept` is None, nothing
    is known of other partitions; otherwise no other partitions exist, except those of the `kept` topics.
    """
    found = []
    topics, topic_ids, going = metadata.topics, metadata.topic_ids, named.going
    for partition in named.among(partitions) if kept is None else list(partitions.values()):
        if not partition.fetching and partition.role is Role.NONE:
            continue
        topic, index = key = partition.key
        state = topics[topic].get(index) if topic in topics else None
        if state is None:
            unnamed = kept is not None and topic not in kept
            if unnamed or (key in going and broker not in going[key]):
                found.append(partition)
        else:
            # In a complete request an earlier leader epoch is another topic's of this name. The same epoch without this
            # broker is that, too, or its reassignment is complete.
            is_later = state.leader_epoch > partition.leader_epoch
            is_named_by_all = kept is not None and key in named
            is_another = key in named and _differ(partition.topic_id, topic_ids.get(topic, NO_TOPIC_ID))
            if is_another or ((is_later or is_named_by_all) and broker not in state.replicas):
                found.append(partition)
    return found


def _differ(topic_id: bytes, other: bytes) -> bool:
    """Whether these are known to be the ids of two topics."""
    return topic_id != other and NO_TOPIC_ID not in (topic_id, other)


def is_of_deleted_topic(
    partition: Partition, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState, metadata: MetadataSnapshot
) -> bool:
    """What has no role here, of a topic whose name is another's by now, as metadata shows too, unless it has not come
    to the new one yet: reassigned away while this broker was away, and the topic deleted and created again.
    LeaderAndIsr of a topic that is new comes before its metadata. Where topics have no ids, the controller says that a
    partition is new which has had a leader epoch here."""
    if topic.topic_id == partition.topic_id == NO_TOPIC_ID:
        was_used = partition.leader_epoch >= 0 or (partition.log is not None and partition.log.log_end_offset > 0)
        return partition.role is Role.NONE and state.is_new and was_used
    return (
        partition.role is Role.NONE
        and _differ(partition.topic_id, topic.topic_id)
        and bool(metadata.brokers)
        and metadata.topic_ids.get(topic.topic_name) in (None, topic.topic_id)
    )


METADATA_AT_ONCE = 2_000
"""Partitions of an UpdateMetadata that are taken on the broker's own thread: about a millisecond."""
Heard = Callable[[Sequence[Partition]], None]
_LEADER, _FOLLOWER = Role.LEADER.value, Role.FOLLOWER.value


class ReplicaManager:
    """Manages the replicas of this broker.

    `controller_epoch` is the highest seen in any control request; 0 before the first. With `logs`, each replica has its
    log from its first role on. `of_roles` are called with the partitions that have changed role, `of_stops` with those
    that were stopped or removed, once per request and before it is answered; `of_deletions` with the partitions that
    an UpdateMetadata says are being deleted. `now_ms` is monotonic time."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        trace: Trace,
        logs: LogManager | None = None,
        now_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._trace = trace
        self._logs = logs
        self._now_ms = now_ms
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.of_roles: list[Heard] = []
        self.of_stops: list[Heard] = []
        self.of_shortages: list[Callable[[], None]] = []
        """Called for each partition that was refused for want of descriptors or memory."""
        self.of_deletions: list[Callable[[Collection[tuple[str, int]]], None]] = []
        self.controller_epoch = 0

    def partition(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def latest_controller_epoch(self, key: tuple[str, int]) -> int:
        """The controller epoch of the partition's latest LeaderAndIsr, 0 if there is none."""
        partition = self._partitions.get(key)
        return 0 if partition is None else partition.controller_epoch

    def partitions(self) -> Iterator[Partition]:
        """In the order in which they came here."""
        return iter(self._partitions.values())

    # -- UpdateMetadata

    def update_metadata(
        self, request: UpdateMetadataRequest, refused: Refused = _never
    ) -> Generator[Yielded, Any, UpdateMetadataResponse | None]:
        """Apply an UpdateMetadata request. A job makes the snapshot of many partitions; until it is ready, the old one
        remains visible. No other request of a controller may be handled in between."""
        stale = self._stale("UpdateMetadata", request.controller_id, request.controller_epoch)
        if stale:
            return UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        count = sum(len(topic.partition_states) for topic in request.topic_states)
        named = self._metadata.named(request)
        if count <= METADATA_AT_ONCE:
            kept = self._metadata.update(request)
        else:
            make = self._metadata.next(request)
            snapshot, _ = yield Job(lambda: (make(), named.going))
            if refused():
                return None
            kept = self._metadata.update(request, snapshot)
        self._remove_stray_replicas(named, kept)
        for take in self.of_deletions if named.going else ():
            take(named.going)
        if self._trace.enabled:
            live = tuple(sorted(broker.id for broker in request.live_brokers))
            self._trace.emit(MetadataApplied(request.controller_epoch, live, count))
        return UpdateMetadataResponse(ErrorCode.NONE)

    def _remove_stray_replicas(self, named: NamedPartitions, kept: Collection[str] | None) -> None:
        """Stop leading and following such replicas; their files stay until a request deletes them (KIP-550).

        A controller that could not read a partition's state left it out, and sends it in the same leader epoch once the
        state is repaired: that epoch counts as news then.
        """
        left = stray_replicas(self._broker_id, self._partitions, self._metadata.snapshot, named, kept)
        for partition in left:
            self._note("info", f"{partition.topic}-{partition.index} is no replica of this broker any more")
            self._fall_back(partition, partition.leader_epoch - 1)
        if left:
            self._notify(self.of_stops, left)

    # -- LeaderAndIsr

    def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, refused: Refused = _never
    ) -> Generator[Yielded, Any, LeaderAndIsrResponse | None]:
        """In slices; no other request of a controller may be handled in between."""
        if self._stale("LeaderAndIsr", request.controller_id, request.controller_epoch):
            api_error_of: LeaderAndIsrResponse = yield Job(
                partial(leader_and_isr_error, request, ErrorCode.STALE_CONTROLLER_EPOCH)
            )
            return api_error_of
        topics = topics_named_in(request)
        rows = [(topic, state) for topic in topics for state in topic.partition_states]
        errors = [ErrorCode.NONE] * len(rows)
        unheard: set[tuple[str, int]] = set()
        is_refused = False

        def apply(places: Sequence[int]) -> None:
            nonlocal is_refused
            is_refused = is_refused or refused()  # answers the request, once
            taken: list[Partition] = []
            failed: list[Partition] = []
            for place in () if is_refused else places:
                errors[place] = self._applied(request, *rows[place], taken, failed)
            unnotified = self._notify(self.of_roles, taken)
            for partition in unnotified:
                # The leader epoch before the one that was taken: the same request again is news.
                self._fall_back(partition, partition.leader_epoch - 1)
            unheard.update(partition.key for partition in unnotified)
            self._notify(self.of_stops, failed + unnotified)

        to_make: dict[LogDirectory, dict[tuple[str, int], bytes]] = {}
        waiting: dict[tuple[str, int], list[int]] = {}
        for first in range(0, max(len(rows), 1), SLICE):
            if first:
                yield None
            apply(self._without_files(rows, range(first, min(first + SLICE, len(rows))), to_make, waiting))
        if self._logs is not None:
            yield from self._logs.make(to_make, lambda keys: apply([place for key in keys for place in waiting[key]]))
        if is_refused:
            return None
        codes = iter(errors)
        answers = [
            LeaderAndIsrTopicError(
                tuple(LeaderAndIsrPartitionError(one.partition_index, next(codes)) for one in topic.partition_states),
                topic.topic_name,
                topic.topic_id,
            )
            for topic in topics
        ]
        if unheard:
            answers = failed_in(answers, unheard)
        return LeaderAndIsrResponse(ErrorCode.NONE, tuple(answers))

    def _without_files(
        self,
        rows: Sequence[tuple[LeaderAndIsrTopicState, LeaderAndIsrPartitionState]],
        places: Sequence[int],
        to_make: dict[LogDirectory, dict[tuple[str, int], bytes]],
        waiting: dict[tuple[str, int], list[int]],
    ) -> Sequence[int]:
        """Those of these places whose rows need no new log. The others' logs are added `to_make`, and their places to
        `waiting`. What else `_apply` asks of a partition, it asks again."""
        if self._logs is None:
            return places
        places_of: dict[tuple[str, int], list[int]] = {}
        wanted: list[tuple[tuple[str, int], bytes, bool]] = []
        for place in places:
            topic, state = rows[place]
            key = (topic.topic_name, state.partition_index)
            known = self._partitions.get(key)
            has_none = known is None or (known.log is None and not known.offline)
            if has_none and key[1] >= 0 and self._broker_id in state.replicas and not name_fault(key[0]):
                places_of.setdefault(key, []).append(place)
                wanted.append((key, topic.topic_id, state.is_new))
        planned = self._logs.plan(wanted, to_make)
        for key in planned:
            waiting.setdefault(key, []).extend(places_of[key])
        later = {place for key in planned for place in places_of[key]}
        return [place for place in places if place not in later]

    def _applied(
        self,
        request: LeaderAndIsrRequest,
        topic: LeaderAndIsrTopicState,
        state: LeaderAndIsrPartitionState,
        taken: list[Partition],
        failed: list[Partition],
    ) -> ErrorCode:
        """The partition's error. An exception in one partition is that partition's error, and its leader epoch is not
        recorded, so that a retry of the request is not refused as stale. KAFKA_STORAGE_ERROR is the one partition error
        that a controller acts on: it elects another leader."""
        before = self._partitions.get((topic.topic_name, state.partition_index))
        held = -1 if before is None else before.leader_epoch
        try:
            return self._apply(request, topic, state, taken)
        except (OutOfResources, DeviceUnavailable) as shortage:
            self._note("error", f"{topic.topic_name}-{state.partition_index}: LeaderAndIsr not applied: {shortage}")
            for heard in self.of_shortages if isinstance(shortage, OutOfResources) else ():
                heard()
        except Exception:  # noqa: BLE001 - logged with its place; the other partitions of the request are unaffected
            place = f"{topic.topic_name}-{state.partition_index}"
            self._note("error", f"{place}: LeaderAndIsr failed in this partition\n{traceback.format_exc()}")
        partition = self._partitions.get((topic.topic_name, state.partition_index))
        if partition is not None:
            self._fall_back(partition, held if partition is before else -1)
            failed.append(partition)
        return ErrorCode.KAFKA_STORAGE_ERROR

    def _fall_back(self, partition: Partition, leader_epoch: int) -> None:
        """The partition neither leads nor follows until the controller sends its state again."""
        partition.stand_down()
        partition.leader_epoch = leader_epoch

    def _notify(self, listeners: Sequence[Heard], partitions: list[Partition]) -> list[Partition]:
        """Calls the listeners with the partitions; one by one where the call for all of them fails, so that a listener
        must accept a partition twice. Returns the partitions for which a listener failed."""
        failed: list[Partition] = []
        for heard in listeners:
            try:
                heard(partitions)
            except Exception:  # noqa: BLE001 - each partition is tried apart below, and what fails there is logged
                failed += [one for one in partitions if not self._notified(heard, one)]
        return failed

    def _notified(self, heard: Heard, partition: Partition) -> bool:
        try:
            heard([partition])
        except Exception:  # noqa: BLE001 - logged with its place; the other partitions are unaffected
            place = f"{partition.topic}-{partition.index}"
            self._note("error", f"{place}: a change of role failed\n{traceback.format_exc()}")
            return False
        return True

    def _apply(
        self,
        request: LeaderAndIsrRequest,
        topic: LeaderAndIsrTopicState,
        state: LeaderAndIsrPartitionState,
        taken: list[Partition],
    ) -> ErrorCode:
        key = (topic.topic_name, state.partition_index)
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._found(*key)
        if partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if state.is_new or partition.topic_id != topic.topic_id:
            if is_of_deleted_topic(partition, topic, state, self._metadata.snapshot):
                partition = self._set_aside(partition)
                if partition.offline:
                    return ErrorCode.KAFKA_STORAGE_ERROR
            if not partition.agrees_on_topic_id(topic.topic_id):
                self._note_ignored(request, partition, "its topic id is another")
                return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= partition.leader_epoch:
            self._note_ignored(request, partition, f"leader epoch {state.leader_epoch} is not news")
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in state.replicas:
            self._note_ignored(request, partition, f"broker {self._broker_id} is not in {state.replicas}")
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        needs_log = partition.log is None and self._logs is not None
        if needs_log and (name_fault(topic.topic_name) or key[1] < 0):
            self._note_ignored(request, partition, "there can be no directory of that name")
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        self._partitions[partition.key] = partition
        try:
            if needs_log:
                self._open_log(partition, state.is_new)
            if self._take_role(request.controller_epoch, partition, state):
                taken.append(partition)
        except LogOffline as offline:
            self._note("error", f"{partition.topic}-{partition.index}: {offline}")
            partition.go_offline()
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _found(self, topic: str, index: int) -> Partition:
        """Return a replica that no request has named in this broker incarnation, with the state in its files."""
        partition = Partition(topic, index)
        log = None if self._logs is None else self._logs.get(topic, index)
        if log is not None and log.health.cause is None:
            partition.topic_id = log.topic_id
        return partition

    def _set_aside(self, partition: Partition) -> Partition:
        """Its files under another name, never deleted unasked; what takes its place starts empty."""
        fresh = Partition(partition.topic, partition.index)
        self._note(
            "warning", f"{partition.topic}-{partition.index} is of a topic that is gone: its files are set aside"
        )
        self._partitions.pop((partition.topic, partition.index), None)
        try:
            if self._logs is not None:
                self._logs.set_aside(partition.topic, partition.index)
        except LogOffline as offline:
            self._note("error", f"{partition.topic}-{partition.index} is not set aside: {offline}")
            fresh.offline = True
        return fresh

    def _open_log(self, partition: Partition, is_new: bool) -> None:
        if self._logs is not None:
            log = self._logs.get_or_create(partition.key, partition.topic_id, is_new=is_new)
            partition.attach(log, self._logs.kept_high_watermark(partition.topic, partition.index))

    def _take_role(self, controller_epoch: int, partition: Partition, state: LeaderAndIsrPartitionState) -> bool:
        """Apply a role. Returns False if nothing changed, because there is no live leader to follow."""
        role = _FOLLOWER
        if state.leader == self._broker_id:
            partition.make_leader(state, self._now_ms())
            role = _LEADER
        elif state.leader in self._metadata.snapshot.brokers:
            partition.make_follower(state)
        else:
            # A leader that is not among the live brokers can't be followed: the replica is there, and waits for a
            # later leader epoch, or for the same one again. The controller sends UpdateMetadata first for this reason
            # (KAFKA-4443). Where it led itself it leads no more; Kafka's goes on leading in its old epoch, and takes
            # records that the next leader has never seen.
            self._note(
                "debug", f"{partition.topic}-{partition.index}: leader {state.leader} is not live, no leader to follow"
            )
            if partition.role is not Role.LEADER:
                return False
            partition.stand_down()
            role = Role.NONE.value
        if self._trace.enabled:
            topic, index = partition.key
            self._trace.emit(ReplicaRoleApplied(controller_epoch, topic, index, state.leader, state.leader_epoch, role))
        return True

    # -- StopReplica

    def stop_replicas(
        self, request: StopReplicaRequest, refused: Refused = _never
    ) -> Generator[Yielded, Any, StopReplicaResponse | None]:
        """In slices; no other request of a controller may be handled in between."""
        if self._stale("StopReplica", request.controller_id, request.controller_epoch):
            return StopReplicaResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        errors: list[StopReplicaPartitionError] = []
        rows = [(topic.topic_name, state) for topic in request.topic_states for state in topic.partition_states]
        for first in range(0, max(len(rows), 1), SLICE):
            if first:
                yield None
                if refused():
                    return None
            errors += yield from self._stop_some(rows[first : first + SLICE])
        return StopReplicaResponse(ErrorCode.NONE, tuple(errors))

    def _stop_some(
        self, rows: Sequence[tuple[str, StopReplicaPartitionState]]
    ) -> Generator[Yielded, Any, list[StopReplicaPartitionError]]:
        stopped: list[Partition] = []
        found = {(topic, state.partition_index): self._stopped(topic, state, stopped) for topic, state in rows}
        deleted = {
            (topic, state.partition_index): None
            for topic, state in rows
            if state.delete_partition and found[topic, state.partition_index] is ErrorCode.NONE
        }
        failed = yield from self._deleted(tuple(deleted))
        for key in deleted:
            error = failed.get(key)
            partition = self._partitions.get(key)
            if error is not None:
                self._note("error", f"{key[0]}-{key[1]} is not deleted: {error}")
                found[key] = ErrorCode.KAFKA_STORAGE_ERROR
                if partition is not None and isinstance(error, LogOffline):
                    partition.go_offline()  # its directory has removed it already, and reports the others alone
            if partition is not None and not partition.offline and (self._logs is None or self._logs.get(*key) is None):
                partition.log = None
                del self._partitions[key]
        self._notify(self.of_stops, stopped)
        return [
            StopReplicaPartitionError(topic, state.partition_index, found[topic, state.partition_index])
            for topic, state in rows
        ]

    def _deleted(self, keys: Sequence[tuple[str, int]]) -> Generator[Yielded, Any, Mapping[tuple[str, int], Exception]]:
        """Those that are not, with the reason. An exception costs the partitions of this slice alone."""
        if self._logs is None:
            return {}
        try:
            return (yield from self._logs.delete_all(keys))
        except Exception as error:  # noqa: BLE001 - logged with its place; other partitions are unaffected
            self._note("error", f"StopReplica failed in {len(keys)} partitions\n{traceback.format_exc()}")
            return dict.fromkeys(keys, error)

    def _stopped(self, topic: str, state: StopReplicaPartitionState, stopped: list[Partition]) -> ErrorCode:
        """The partition's error; an exception in one partition leaves the others unaffected, as in LeaderAndIsr."""
        try:
            return self._stop(topic, state, stopped)
        except OutOfResources as shortage:
            self._note("error", f"{topic}-{state.partition_index}: StopReplica not carried out: {shortage}")
        except Exception:  # noqa: BLE001 - logged with its place; the other partitions of the request are unaffected
            place = f"{topic}-{state.partition_index}"
            self._note("error", f"{place}: StopReplica failed in this partition\n{traceback.format_exc()}")
        return ErrorCode.KAFKA_STORAGE_ERROR

    def _stop(self, topic: str, state: StopReplicaPartitionState, stopped: list[Partition]) -> ErrorCode:
        partition = self._partitions.get((topic, state.partition_index))
        if partition is None:
            return ErrorCode.NONE  # nothing to stop; files may be left from an earlier life of this broker
        if partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR  # what it had may lie there still, and is not gone
        overriding = state.leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH)
        if not overriding and state.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        partition.stop()
        stopped.append(partition)
        return ErrorCode.NONE

    # -- files

    def go_offline(self, keys: Sequence[tuple[str, int]]) -> None:
        """These partitions' log directory can't be trusted any more."""
        partitions = [self._partitions[key] for key in keys if key in self._partitions]
        for partition in partitions:
            partition.go_offline()
        self._notify(self.of_stops, partitions)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """Of every replica that has a log, for its checkpoint."""
        return {key: one.high_watermark for key, one in self._partitions.items() if one.log is not None}

    def high_watermarks_in(
        self, keys: Iterable[tuple[str, int]], kept: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """Of these; one that is no replica with a log here has what was `kept` of it, 0 if nothing was."""
        known = self._partitions.get
        return {
            key: kept.get(key, 0) if (one := known(key)) is None or one.log is None else one.high_watermark
            for key in keys
        }

    # -- who is the controller

    def _stale(self, api: str, controller_id: int, epoch: int) -> bool:
        """Whether a request is of a term that is over; if not, its epoch is now the latest seen."""
        if epoch >= self.controller_epoch:
            self.controller_epoch = epoch
            return False
        reason = f"controller {controller_id} has epoch {epoch}, the latest seen is {self.controller_epoch}"
        self._trace.emit(RequestRefused(api, epoch, ErrorCode.STALE_CONTROLLER_EPOCH, reason))
        return True

    def _note_ignored(self, request: LeaderAndIsrRequest, partition: Partition, why: str) -> None:
        self._note(
            "info",
            f"LeaderAndIsr of controller {request.controller_id} epoch {request.controller_epoch} ignored for"
            f" {partition.topic}-{partition.index} (leader epoch {partition.leader_epoch}): {why}",
        )

    def _note(self, level: str, message: str) -> None:
        if self._trace.enabled:
            self._trace.emit(Noted(level, message))


def leading(manager: ReplicaManager) -> tuple[Partition, ...]:
    """The partitions that this broker leads."""
    return tuple(partition for partition in manager.partitions() if partition.role is Role.LEADER)


class ApiError(Exception):
    """A request about one partition that is not carried out, with Kafka's code for it."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message


_CODES: Mapping[type[StorageError], ErrorCode] = {
    UnsupportedMagic: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    BatchesTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
    SequenceOutOfOrder: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    InvalidBatch: ErrorCode.INVALID_RECORD,
    BadBatches: ErrorCode.INVALID_RECORD,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    LogOffline: ErrorCode.KAFKA_STORAGE_ERROR,
    DeviceUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    OutOfResources: ErrorCode.KAFKA_STORAGE_ERROR,
}


def api_error_of(error: ApiError | StorageError) -> ApiError:
    """Convert an error of the storage into the error for the client."""
    if isinstance(error, ApiError):
        return error
    codes = (_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
    return ApiError(next(codes, ErrorCode.UNKNOWN_SERVER_ERROR), str(error))


class RecordAccess:
    """Partitions by name, for requests about their records. Raises Refused."""

    def __init__(self, replicas: ReplicaManager, metadata: MetadataCache) -> None:
        self._replicas = replicas
        self._metadata = metadata

    def partition(self, topic: str, index: int) -> Partition:
        """Return the local replica, leader or not.

        Raises Refused: KAFKA_STORAGE_ERROR if its files are offline, NOT_LEADER_OR_FOLLOWER if only other brokers have
        a replica, UNKNOWN_TOPIC_OR_PARTITION if no broker has."""
        partition = self._replicas.partition(topic, index)
        if partition is None:
            elsewhere = index in self._metadata.snapshot.topics.get(topic, {})
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER if elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is in an offline log directory")
        return partition

    def leader_log(self, topic: str, index: int, leader_epoch: int = NO_LEADER_EPOCH) -> tuple[Partition, PartitionLog]:
        """A partition that this broker leads, with its log. `leader_epoch`: the one that the asker knows of."""
        partition = self.partition(topic, index)
        return partition, local_log(partition, leader_epoch, only_leader=True)


def local_log(partition: Partition, leader_epoch: int, *, only_leader: bool) -> PartitionLog:
    """Return the log of a local replica, after the checks on the client's leader epoch (NO_LEADER_EPOCH: not sent) and,
    with `only_leader`, on its leadership."""
    if leader_epoch not in (NO_LEADER_EPOCH, partition.leader_epoch):
        behind = leader_epoch < partition.leader_epoch
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH)
    if partition.log is None or (only_leader and partition.leading is None):
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition.log


class DescribeLogDirs:
    def __init__(self, logs: LogManager, replicas: ReplicaManager) -> None:
        self._logs = logs
        self._replicas = replicas

    def handle(
        self, request: DescribeLogDirsRequest, _version: int, answer: Callable[[DescribeLogDirsResponse], None]
    ) -> Steps:
        wanted: Mapping[str, frozenset[int]] | None = None
        if request.topics is not None:
            wanted = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
        described = []
        for directory in self._logs.directories:
            described.append((yield from self._described(directory, wanted)))
        answer(DescribeLogDirsResponse(tuple(described)))

    def _described(
        self, directory: LogDirectory, wanted: Mapping[str, frozenset[int]] | None
    ) -> Generator[None, Any, DescribedLogDir]:
        if directory.health.cause is not None:
            return DescribedLogDir(int(ErrorCode.KAFKA_STORAGE_ERROR), directory.path)
        topics: dict[str, list[DescribedReplica]] = {}
        old = self._logs.bytes_on_hdd(directory.path)
        for done, (topic, index) in enumerate(sorted(directory.logs.keys() | old.keys()), 1):
            if done % SLICE == 0:
                yield None
            if wanted is not None and index not in wanted.get(topic, ()):
                continue
            log, partition = directory.logs.get((topic, index)), self._replicas.partition(topic, index)
            if log is None:
                # Deleted since the list was made, or a log that has its home on an SSD.
                if (size_bytes := old.get((topic, index), 0)) > 0:
                    topics.setdefault(topic, []).append(DescribedReplica(index, size_bytes, 0))
                continue
            committed = 0 if partition is None else partition.high_watermark
            replica = DescribedReplica(index, log.home_bytes, max(committed - log.log_end_offset, 0))
            topics.setdefault(topic, []).append(replica)
        for (topic, index), future in sorted(directory.futures.items()):
            if wanted is None or index in wanted.get(topic, ()):
                current = self._logs.get(topic, index)
                lag = 0 if current is None else max(current.log_end_offset - future.log_end_offset, 0)
                topics.setdefault(topic, []).append(DescribedReplica(index, future.home_bytes, lag, is_future_key=True))
        named = tuple(DescribedReplicas(topic, tuple(replicas)) for topic, replicas in topics.items())
        return DescribedLogDir(int(ErrorCode.NONE), directory.path, named)


SAMPLES = 11
"""replication.quota.window.num"""
SAMPLE_MS = 1_000.0
"""replication.quota.window.size.seconds"""
ALL = "*"


class Measured:
    """Bytes a second over the last samples, the present one as far as it has come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[int, int]] = deque()

    def add(self, size_bytes: int) -> None:
        now = int(self._clock.now_ms() // SAMPLE_MS)
        before = self._samples.pop()[1] if self._samples and self._samples[-1][0] == now else 0
        self._samples.append((now, before + size_bytes))

    def bytes_per_s(self) -> float:
        now_ms = self._clock.now_ms()
        oldest = int(now_ms // SAMPLE_MS) - SAMPLES + 1
        while self._samples and self._samples[0][0] < oldest:
            self._samples.popleft()
        window_ms = (SAMPLES - 1) * SAMPLE_MS + now_ms % SAMPLE_MS
        return sum(size for _, size in self._samples) * 1_000.0 / window_ms


class Quota:
    """`rate` returns the allowed bytes a second (None: no limit), `replicas` a topic's throttled replicas."""

    def __init__(
        self, broker_id: int, clock: Clock, rate: Callable[[], int | None], replicas: Callable[[str], str]
    ) -> None:
        self._broker_id = broker_id
        self._measured = Measured(clock)
        self.rate = rate
        self.replicas = replicas

    def is_exceeded(self, topic: str, index: int) -> bool:
        """Whether there is nothing of this partition for now."""
        rate = self.rate()
        return rate is not None and self._names(topic, index) and self._measured.bytes_per_s() >= rate

    def count(self, topic: str, index: int, size_bytes: int) -> None:
        """Those in sync count too, as in Kafka: what is left is for the others."""
        if self.rate() is not None and self._names(topic, index):
            self._measured.add(size_bytes)

    def _names(self, topic: str, index: int) -> bool:
        """Whether the partition is throttled on this broker."""
        text = self.replicas(topic)
        return text.strip() == ALL or f"{index}:{self._broker_id}" in elements(text)


class ReplicationThrottle(Quota):
    """A leader's: of what it sends."""

    def holds_back(self, topic: str, index: int, replica: int, isr: Collection[int]) -> bool:
        """Whether that follower is given nothing of the partition for now."""
        return self.rate() is not None and replica not in isr and self.is_exceeded(topic, index)

    def sent(self, topic: str, index: int, size_bytes: int) -> None:
        self.count(topic, index, size_bytes)
