"""Produce and DeleteRecords: changes of a leader's log that are answered when the followers have caught up.

Produce with acks=0 has no answer at all; with acks=1 it is answered when the leader's log has the batches; with acks=-1
when the high watermark has passed them, that is when every ISR member has them: until then the request waits
(`DelayedProduce`). Rules and codes: Kafka 2.8's ReplicaManager.appendRecords. Offsets, epochs, idempotence and
validation are the log's.

A produce goes through two stages. Its records are checked: at once if that is little work, else off the loop
(`broker/ports.py`). Then its batches are appended, in the order in which the requests came: a request waits for the
earlier ones that name one of its partitions. Leadership is checked before each stage.

A waiting partition is settled when the high watermark has passed what was appended, when this broker no longer leads,
or when the time is up. Leadership is the very object that appended: a leadership that was lost and won again may have
had the batches truncated in between. Source: Kafka 2.8's DelayedProduce and Partition.checkEnoughReplicasReachOffset.

DeleteRecords moves the leader's log start offset. Followers move theirs when their fetches learn of it, and the client
is answered when all of them have. Files are removed later, by retention. Nothing beyond the high watermark can be
deleted, and nothing of a topic whose policy is not to delete.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from controller.broker.metadata import INTERNAL_TOPICS, MetadataCache
from controller.broker.partition import LeaderState, Partition, PartitionEvents
from controller.broker.ports import OffLoop
from controller.broker.records.cold_reads import ATTEMPTS, read_in, until_cached
from controller.broker.replica_manager import ApiError, RecordAccess, api_error_of
from controller.broker.request_context import SLICE, SLICE_BYTES, Drive, Steps, Yielded, finish
from controller.protocol.admin import (
    NO_LOW_WATERMARK,
    UP_TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import IN_MEMORY
from controller.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
)
from controller.protocol.schema import Records
from controller.storage import DeviceUnavailable, PartitionLog, StorageError
from controller.storage.batches import HEADER_BYTES, LENGTH_END, MAGIC
from controller.storage.disk import NotCached
from controller.storage.log_validator import Checked
from controller.storage.transactions import Origin
from controller.timer.purgatory import DelayedOperation, Purgatory


class Awaited(Protocol):
    @property
    def partition(self) -> Partition:
        """Whose news it is waited for."""


class DelayedPart(Protocol):
    """One partition's result, which is final once nothing is `awaited`."""

    @property
    def awaited(self) -> Awaited | None: ...


P = TypeVar("P", bound=DelayedPart)


class DelayedParts(DelayedOperation, Generic[P]):
    """`parts`: by topic, as the request has them."""

    __slots__ = ("_parts", "_waiting")

    def __init__(self, timeout_ms: int, parts: Sequence[tuple[str, Sequence[P]]]) -> None:
        super().__init__(timeout_ms)
        self._parts = parts
        self._waiting = [part for _, those in parts for part in those if part.awaited is not None]

    def keys(self) -> list[tuple[str, int]]:
        return [one.partition.key for part in self._waiting if (one := part.awaited) is not None]

    def try_complete(self) -> bool:
        for part in self._waiting:
            if part.awaited is not None:
                self.check(part)
        self._waiting = [part for part in self._waiting if part.awaited is not None]
        return not self._waiting and self.force_complete()

    def on_complete(self) -> None:
        for part in self._waiting:
            if part.awaited is not None:
                self.give_up(part)
        self.answer()

    @abstractmethod
    def check(self, part: P) -> None:
        """Settles it if what it waits for has come, or can come no more."""

    @abstractmethod
    def give_up(self, part: P) -> None:
        """Settles it: the time is up."""

    @abstractmethod
    def answer(self) -> None:
        """Once, when nothing is awaited any more."""


MinInsync = Callable[[str], int]


class Replication(msgspec.Struct, frozen=True):
    """What a result waits for. `leading`: the leadership that appended; `offset`: the one after the last appended."""

    partition: Partition
    leading: LeaderState
    offset: int

    def outcome(self, min_insync: MinInsync) -> ErrorCode | None:
        """None: it is not decided yet."""
        partition = self.partition
        if partition.leading is not self.leading:
            return ErrorCode.KAFKA_STORAGE_ERROR if partition.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.high_watermark < self.offset:
            return None
        if len(self.leading.maximal_isr) < min_insync(partition.topic):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE


class ProducePart(msgspec.Struct):
    """One partition's result, which is final once nothing is `awaited`."""

    result: ProducePartitionResult
    awaited: Replication | None = None

    def settle(self, error: ErrorCode) -> None:
        self.awaited = None
        if error is not ErrorCode.NONE:
            self.result = replace(self.result, error_code=error)


ProduceParts = Sequence[tuple[str, Sequence[ProducePart]]]
"""By topic, as the request has them."""


def response(parts: ProduceParts) -> ProduceResponse:
    return ProduceResponse(
        tuple(ProduceTopicResult(topic, tuple(part.result for part in those)) for topic, those in parts)
    )


class DelayedProduce(DelayedParts[ProducePart]):
    __slots__ = ("_answer", "_min_insync")

    def __init__(
        self, timeout_ms: int, parts: ProduceParts, min_insync: MinInsync, answer: Callable[[ProduceResponse], None]
    ) -> None:
        super().__init__(timeout_ms, parts)
        self._min_insync = min_insync
        self._answer = answer

    def check(self, part: ProducePart) -> None:
        error = part.awaited.outcome(self._min_insync) if part.awaited is not None else None
        if error is not None:
            part.settle(error)

    def give_up(self, part: ProducePart) -> None:
        part.settle(ErrorCode.REQUEST_TIMED_OUT)

    def answer(self) -> None:
        self._answer(response(self._parts))


FIRST_VERSION_WITH_ZSTD = 7
_MAGIC_AT = 16
_ATTRIBUTES_END = 23
_CODEC_BITS = 0x07
_ZSTD = 4
VALID_ACKS = (ACKS_NONE, ACKS_LEADER, ACKS_ALL)
AT_ONCE_US = 2_000
"""How much of a request's checks is done on the loop, by their own estimates; a librdkafka batch of 10,000 records is
about as much."""

_OF_BROKERS_ALONE = ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only brokers write to an internal topic")

Key: TypeAlias = tuple[str, int]


class _One(msgspec.Struct):
    """One partition's part of a request: `part` is its result, once it has one. Until then it is being checked by
    `work`, or is `checked`."""

    topic: str
    index: int
    part: ProducePart | None = None
    work: Generator[int, None, None] | None = None
    checked: Checked | None = None
    unflushed: tuple[PartitionLog, int] | None = None
    """A log that is to be flushed up to an offset before the answer."""

    def checking(self, work: Generator[int, None, Checked]) -> Generator[int, None, None]:
        try:
            self.checked = yield from work
        except StorageError as error:
            self.part = _refused(self.index, error)
        self.work = None

    def check(self, budget_us: int) -> int:
        """Do as much of the work as the budget allows; return what is left of it."""
        while self.work is not None:
            cost_us = next(self.work, None)
            if cost_us is None:
                break
            if cost_us > budget_us:
                return 0
            budget_us -= cost_us
        return budget_us


class _Request(msgspec.Struct, eq=False):
    acks: int
    topics: list[tuple[str, list[_One]]]
    then: Callable[[ProduceParts], None]
    origin: Origin = Origin.CLIENT
    keys: dict[Key, None] = msgspec.field(default_factory=dict)
    """The partitions in whose queues it waits."""
    is_appending: bool = False

    def ones(self) -> list[_One]:
        return [one for _, those in self.topics for one in those]


class ProduceHandler:
    """`waiting` is where those with acks=all wait, by partition. `drive` runs the steps of requests that waited."""

    def __init__(
        self,
        access: RecordAccess,
        partition_events: PartitionEvents,
        waiting: Purgatory[tuple[str, int], DelayedProduce],
        min_insync: MinInsync,
        off_loop: OffLoop,
    ) -> None:
        self._access = access
        self._partition_events = partition_events
        self._waiting = waiting
        self._min_insync = min_insync
        self._off_loop = off_loop
        self.drive: Drive = finish
        self._ready: deque[_Request] = deque()
        self._is_advancing = False
        self._queues: dict[Key, deque[_Request]] = {}
        """The requests that name a partition and are not appended yet, in the order of their coming."""
        partition_events.of_high_watermarks.append(self._partition_changed)
        partition_events.idle[self._partition_changed] = lambda: not waiting.delayed

    def handle(
        self,
        request: ProduceRequest,
        version: int,
        answer: Callable[[ProduceResponse], None],
        *,
        internal: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> Steps:
        """For acks 1 and -1, and for those that are none. `internal`: the request may name internal topics; those of
        this broker's coordinators may."""

        def appended(parts: ProduceParts) -> None:
            if not any(part.awaited for _, those in parts for part in those):
                answer(response(parts))
                return
            operation = DelayedProduce(request.timeout_ms, parts, self._min_insync, answer)
            self._waiting.try_complete_else_watch(operation, operation.keys())

        return self._take(request, version, appended, internal or origin is Origin.COORDINATOR, origin)

    def when_replicated(self, awaited: Replication, then: Callable[[], None]) -> None:
        """Call `then` once, when each member of the ISR has it, however few they are, or the leadership is over."""
        part = ProducePart(ProducePartitionResult(awaited.partition.index, ErrorCode.NONE), awaited)
        unlimited_ms, parts = (1 << 31) - 1, ((awaited.partition.topic, (part,)),)
        operation = DelayedProduce(unlimited_ms, parts, lambda _topic: 0, lambda _response: then())
        self._waiting.try_complete_else_watch(operation, operation.keys())

    def handle_unanswered(self, request: ProduceRequest, version: int, then: Callable[[bool], None]) -> Steps:
        """Handle a request with acks=0. `then` is called with False if a part was refused: closing the connection is
        the only way to notify the client."""

        def appended(parts: ProduceParts) -> None:
            then(all(part.result.error_code == ErrorCode.NONE for _, those in parts for part in those))

        return self._take(request, version, appended)

    # -- first stage

    def _take(
        self,
        request: ProduceRequest,
        version: int,
        then: Callable[[ProduceParts], None],
        internal: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> Steps:
        """In slices; a connection's next request waits for all of them."""
        budget_us = AT_ONCE_US
        begun = 0
        finished = True
        taken = _Request(request.acks, [], then, origin)
        for topic in request.topic_data:
            ones = []
            for asked in topic.partition_data:
                begun += 1
                if begun % SLICE == 0:
                    yield None
                if topic.name in INTERNAL_TOPICS and not internal:
                    one = _One(topic.name, asked.index, _refused(asked.index, _OF_BROKERS_ALONE))
                else:
                    one = self._begin(topic.name, asked, request.acks, version, origin)
                if one.work is not None:
                    budget_us = one.check(budget_us)
                    finished &= one.work is None
                ones.append(one)
            taken.topics.append((topic.name, ones))
        if finished and not (self._queues and any((one.topic, one.index) in self._queues for one in taken.ones())):
            yield from self._append_all(taken)
            return
        for one in taken.ones():
            taken.keys[one.topic, one.index] = None
        for key in taken.keys:
            self._queues.setdefault(key, deque()).append(taken)
        if not finished:
            self._off_loop(_rest_of(taken), lambda error: self._checked(taken, error))

    def _begin(self, topic: str, asked: ProducePartition, acks: int, version: int, origin: Origin) -> _One:
        try:
            log = self._admit(topic, asked.index, acks)[2]
            one = _One(topic, asked.index)
            one.work = one.checking(log.checking(_batch(asked.records, version), origin))
            return one
        except (ApiError, StorageError) as error:
            return _One(topic, asked.index, _refused(asked.index, error))

    def _admit(self, topic: str, index: int, acks: int) -> tuple[Partition, LeaderState, PartitionLog]:
        if acks not in VALID_ACKS:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        partition, log = self._access.leader_log(topic, index)
        leading = partition.leading
        assert leading is not None
        if acks == ACKS_ALL and len(leading.isr) < self._min_insync(topic):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{topic}-{index}: the ISR is {leading.isr}")
        return partition, leading, log

    def _checked(self, request: _Request, error: Exception | None) -> None:
        for one in request.ones():
            one.work = None
            if one.checked is None and one.part is None:
                one.part = ProducePart(ProducePartitionResult(one.index, ErrorCode.UNKNOWN_SERVER_ERROR))
        self._advance(request)
        if error is not None:
            raise error  # a defect of the checks: the request is answered, and the host logs the error

    # -- second stage

    def _advance(self, request: _Request) -> None:
        """Append the request, if it is checked and the first of each of its queues; then those that waited for it."""
        self._ready.append(request)
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._ready:
                first = self._ready.popleft()
                if not first.is_appending and self._is_first(first):
                    first.is_appending = True
                    self.drive(self._append_all(first))
        finally:
            self._is_advancing = False

    def _is_first(self, request: _Request) -> bool:
        if not request.keys or any(one.work is not None for one in request.ones()):
            return False
        return all(self._queues[key][0] is request for key in request.keys)

    def _append_all(self, request: _Request) -> Steps:
        parts = []
        done = done_bytes = 0
        try:
            for topic, ones in request.topics:
                those = []
                for one in ones:
                    if done >= SLICE or done_bytes >= SLICE_BYTES:
                        done = done_bytes = 0
                        yield None
                    part = self._append(topic, one, request) if one.part is None else one.part
                    if isinstance(part, NotCached):
                        self._hold(request)
                        part = yield from self._append_after(part, topic, one, request)
                    those.append(part)
                    done += 1
                    done_bytes += 0 if one.checked is None else len(one.checked.batches)
                parts.append((topic, those))
        finally:
            self._release(request)
        yield from self._flush(parts, request)
        request.then(parts)

    def _hold(self, request: _Request) -> None:
        """Later requests wait for it in the queues of its partitions."""
        if not request.is_appending:
            request.is_appending = True
            request.keys = {(one.topic, one.index): None for one in request.ones()}
            for key in request.keys:
                self._queues.setdefault(key, deque()).appendleft(request)

    def _release(self, request: _Request) -> None:
        keys, request.keys = request.keys, {}
        for key in keys:
            queue = self._queues[key]
            queue.remove(request)
            if queue:
                self._ready.append(queue[0])
            else:
                del self._queues[key]
        if self._ready:
            self._advance(self._ready.popleft())

    def _append_after(
        self, missing: NotCached, topic: str, one: _One, request: _Request
    ) -> Generator[Yielded, Any, ProducePart]:
        """Append once jobs have done what the append would wait for."""
        for _ in range(ATTEMPTS):
            try:
                if not (yield from read_in(missing)):
                    break
            except DeviceUnavailable as error:
                return _refused(one.index, error)
            part = self._append(topic, one, request)
            if not isinstance(part, NotCached):
                return part
            missing = part
        part = self._append(topic, one, request, may_wait=True)
        assert isinstance(part, ProducePart)
        return part

    def _append(self, topic: str, one: _One, request: _Request, *, may_wait: bool = False) -> ProducePart | NotCached:
        """NotCached: what a job is to do first."""
        assert one.checked is not None
        acks = request.acks
        try:
            partition, leading, log = self._admit(topic, one.index, acks)
            appended = log.attempt(may_wait, log.append_checked, one.checked, partition.leader_epoch, request.origin)
        except (ApiError, StorageError) as error:
            return _refused(one.index, error)
        except NotCached as missing:
            return missing
        if appended.must_flush:
            one.unflushed = (log, log.log_end_offset)
        result = ProducePartitionResult(
            one.index, ErrorCode.NONE, appended.base_offset, appended.log_append_time_ms, log.log_start_offset
        )
        if not appended.duplicate:
            self._partition_events.appended(partition)
        return ProducePart(
            result, Replication(partition, leading, appended.last_offset + 1) if acks == ACKS_ALL else None
        )

    def _flush(self, parts: list[tuple[str, list[ProducePart]]], request: _Request) -> Steps:
        """What must be on the disk before the answer (flush.messages)."""
        for (_, ones), (_, those) in zip(request.topics, parts, strict=True):
            for place, one in enumerate(ones):
                if one.unflushed is not None:
                    log, end = one.unflushed
                    try:
                        yield from until_cached(log, partial(log.flush, end))
                    except StorageError as error:
                        those[place] = _refused(one.index, error)

    def _partition_changed(self, partition: Partition) -> None:
        if self._waiting.delayed:
            self._waiting.check_and_complete(partition.key)


def _rest_of(request: _Request) -> Generator[int, None, None]:
    for one in request.ones():
        if one.work is not None:
            yield from one.work


def _refused(index: int, error: ApiError | StorageError) -> ProducePart:
    why = api_error_of(error)
    return ProducePart(ProducePartitionResult(index, why.error, error_message=why.message))


def _batch(records: Records | None, version: int) -> bytes | memoryview:
    """The one batch that a partition's part of a request may have: of several the log knows a repetition by the first
    alone. Whether it is whole is the log's to find."""
    if not isinstance(records, IN_MEMORY) or not len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, "no batch of records")
    if len(records) < HEADER_BYTES or records[_MAGIC_AT] != MAGIC:
        return records
    if LENGTH_END + int.from_bytes(records[LENGTH_END - 4 : LENGTH_END], "big") < len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, "more than one batch of records")
    if version < FIRST_VERSION_WITH_ZSTD and records[_ATTRIBUTES_END - 1] & _CODEC_BITS == _ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd in version {version} of Produce")
    return records


class AwaitedDeletion(msgspec.Struct, frozen=True):
    """What a result waits for. `leading`: the leadership that deleted; `offset`: where the log begins now."""

    partition: Partition
    leading: LeaderState
    offset: int

    def low_watermark(self, metadata: MetadataCache) -> int:
        """Return the offset below which all live replicas are known to have deleted."""
        log, brokers = self.partition.log, metadata.snapshot.brokers
        if log is None:
            return NO_LOW_WATERMARK
        live = [replica for replica in self.partition.replicas if replica in brokers]
        return self.leading.low_watermark(log.log_start_offset, live)

    def lost(self) -> ErrorCode | None:
        """Why nothing more can be waited for; None while this broker leads."""
        if self.partition.leading is self.leading:
            return None
        return ErrorCode.KAFKA_STORAGE_ERROR if self.partition.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER


class DeletePart(msgspec.Struct):
    """One partition's result, which is final once nothing is `awaited`."""

    result: DeleteRecordsPartitionResult
    awaited: AwaitedDeletion | None = None

    def settle(self, error: ErrorCode, low_watermark: int) -> None:
        self.awaited = None
        self.result = replace(self.result, error_code=error, low_watermark=low_watermark)


DeletionParts = Sequence[tuple[str, Sequence[DeletePart]]]
"""By topic, as the request has them."""


class DelayedDeleteRecords(DelayedParts[DeletePart]):
    __slots__ = ("_answer", "_metadata")

    def __init__(
        self,
        timeout_ms: int,
        parts: DeletionParts,
        metadata: MetadataCache,
        answer: Callable[[DeleteRecordsResponse], None],
    ) -> None:
        super().__init__(timeout_ms, parts)
        self._metadata = metadata
        self._answer = answer

    def check(self, part: DeletePart) -> None:
        deletion = part.awaited
        if deletion is None:
            return
        lost = deletion.lost()
        if lost is not None:
            part.settle(lost, NO_LOW_WATERMARK)
            return
        low_watermark = deletion.low_watermark(self._metadata)
        if low_watermark >= deletion.offset:
            part.settle(ErrorCode.NONE, low_watermark)

    def give_up(self, part: DeletePart) -> None:
        if part.awaited is not None:
            part.settle(ErrorCode.REQUEST_TIMED_OUT, part.awaited.low_watermark(self._metadata))

    def answer(self) -> None:
        topics = [DeleteRecordsTopicResult(topic, tuple(part.result for part in those)) for topic, those in self._parts]
        self._answer(DeleteRecordsResponse(tuple(topics)))


Deletes = Callable[[str], bool | None]
"""Whether records of a topic may be deleted; None: its config is not known yet."""


class DeleteRecordsHandler:
    """`metadata_changed` when brokers may have come or gone: a dead follower is not waited for."""

    def __init__(
        self,
        access: RecordAccess,
        metadata: MetadataCache,
        partition_events: PartitionEvents,
        purgatory: Purgatory[tuple[str, int], DelayedDeleteRecords],
        deletes: Deletes,
    ) -> None:
        self._access = access
        self._metadata = metadata
        self._purgatory = purgatory
        self._deletes = deletes
        self._partition_events = partition_events
        self._watched: dict[tuple[str, int], None] = {}
        partition_events.of_followers.append(self._follower_fetched)
        partition_events.of_high_watermarks.append(self._changed)
        partition_events.idle[self._changed] = lambda: not self._watched

    def handle(
        self, request: DeleteRecordsRequest, version: int, answer: Callable[[DeleteRecordsResponse], None]
    ) -> Steps:
        parts = []
        done = 0
        for topic in request.topics:
            those = []
            for one in topic.partitions:
                those.append(self._delete(topic.name, one))
                done += 1
                if done % SLICE == 0:
                    yield None
            parts.append((topic.name, those))
        operation = DelayedDeleteRecords(request.timeout_ms, parts, self._metadata, answer)
        keys = operation.keys()
        if not self._purgatory.try_complete_else_watch(operation, keys):
            self._watched.update(dict.fromkeys(keys))

    def metadata_changed(self) -> None:
        for key in tuple(self._watched):
            self._purgatory.check_and_complete(key)
        if not self._purgatory.delayed:
            self._watched.clear()

    def _follower_fetched(self, partition: Partition, _broker: int) -> None:
        if self._watched:  # else no request waits
            self._purgatory.check_and_complete(partition.key)

    def _changed(self, partition: Partition) -> None:
        if self._watched:
            self._purgatory.check_and_complete(partition.key)

    def _delete(self, topic: str, asked: DeleteRecordsPartition) -> DeletePart:
        try:
            deletion = self._deleted(topic, asked)
        except (ApiError, StorageError) as error:
            return DeletePart(DeleteRecordsPartitionResult(asked.partition_index, api_error_of(error).error))
        return DeletePart(DeleteRecordsPartitionResult(asked.partition_index, ErrorCode.NONE), deletion)

    def _deleted(self, topic: str, asked: DeleteRecordsPartition) -> AwaitedDeletion:
        """Refused, StorageError."""
        if topic in INTERNAL_TOPICS:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        partition, log = self._access.leader_log(topic, asked.partition_index)
        assert partition.leading is not None
        deletes = self._deletes(topic)
        if deletes is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"the config of {topic} is not known yet")
        if not deletes:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"records of {topic} are not deleted, by its cleanup.policy")
        offset = partition.high_watermark if asked.offset == UP_TO_HIGH_WATERMARK else asked.offset
        if offset < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}")
        if log.delete_records_before(offset, partition.high_watermark):
            self._partition_events.changed((partition,))
        return AwaitedDeletion(partition, partition.leading, offset)
