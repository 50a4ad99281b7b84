"""Offset look-ups: ListOffsets (by timestamp) and OffsetForLeaderEpoch (by leader epoch). Kafka 2.8's rules.

A consumer gets offsets up to the high watermark, or up to the last stable offset if it reads committed records alone; a
follower, and a debugging client, up to the log end offset. Version 0 is answered with segments' offsets.

A look-up by timestamp reads compressed batches. A leader has checked what producers sent, but the log may hold batches
from one that did not: what is damaged, or grows beyond a limit, is not decompressed, and the batch counts as a whole
(docs/storage.md). With OffsetForLeaderEpoch a follower or a consumer finds where its own history diverges from this log
(KIP-101, KIP-320). Only the leader answers, to followers and consumers alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from controller.broker.partition import Partition
from controller.broker.records.cold_reads import until_cached
from controller.broker.replica_manager import ApiError, RecordAccess, api_error_of, local_log
from controller.broker.request_context import SLICE, Job, JobLane, Steps, Yielded
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    CONSUMER,
    DEBUGGING_CONSUMER,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    READ_COMMITTED,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderResult,
    OffsetForLeaderTopicResult,
)
from controller.storage import PartitionLog, StorageError, TimestampOffset
from controller.storage.compression import GZIP, ZSTD, BadCompression, decompressing
from controller.storage.log_validator import done

DECOMPRESSED_BYTES_MAX = 4 << 20
"""A batch of Kafka's default size that holds text rarely comes near it; looking through so many of the smallest records
takes a second or so."""


def decompress(codec: int, payload: bytes) -> bytes | None:
    """None: by no codec that is known, or damaged, or too large."""
    if not GZIP <= codec <= ZSTD:
        return None
    try:
        return bytes(done(decompressing(codec, memoryview(payload), DECOMPRESSED_BYTES_MAX)))
    except BadCompression:
        return None


FIRST_VERSION_WITH_NOT_AVAILABLE = 5
"""From here on a client knows OFFSET_NOT_AVAILABLE."""


class ListOffsetsHandler:
    def __init__(self, access: RecordAccess, wall_ms: Callable[[], int]) -> None:
        self._access = access
        self._wall_ms = wall_ms

    def handle(self, request: ListOffsetsRequest, version: int, answer: Callable[[ListOffsetsResponse], None]) -> Steps:
        named = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
        topics = []
        done = 0
        for topic in request.topics:
            results = []
            for one in topic.partitions:
                twice = named[topic.name, one.partition_index] > 1
                results.append((yield from self._result(request, version, topic.name, one, twice=twice)))
                done += 1
                if done % SLICE == 0:
                    yield None
            topics.append(ListOffsetsTopicResult(topic.name, tuple(results)))
        answer(ListOffsetsResponse(tuple(topics)))

    def _result(
        self, request: ListOffsetsRequest, version: int, topic: str, asked: ListOffsetsPartition, *, twice: bool
    ) -> Generator[Yielded, Any, ListOffsetsPartitionResult]:
        try:
            if twice and version > 0:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            partition = self._access.partition(topic, asked.partition_index)
            only_leader = request.replica_id != DEBUGGING_CONSUMER
            log = local_log(partition, asked.current_leader_epoch, only_leader=only_leader)
            if version == 0:
                offsets = self._segments_before(log, asked, _limit(partition, log, request))
                return ListOffsetsPartitionResult(asked.partition_index, ErrorCode.NONE, old_style_offsets=offsets)
            client = request.replica_id == CONSUMER
            if asked.timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
                limit = _limit(partition, log, request)
                return _end(partition, log, asked, limit, client=client)
            found = yield from _at_time(log, asked.timestamp)
            # Meanwhile the partition may have another leader, or another log.
            if local_log(partition, asked.current_leader_epoch, only_leader=only_leader) is not log:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            limit = _limit(partition, log, request)
            return _answer_to_time(partition, asked.partition_index, found, limit, client=client)
        except (ApiError, StorageError) as error:
            return ListOffsetsPartitionResult(asked.partition_index, _error(api_error_of(error).error, version))

    def _segments_before(self, log: PartitionLog, asked: ListOffsetsPartition, limit: int) -> tuple[int, ...]:
        """Version 0: the offsets at which segments begin that were changed by the time asked for, and the log's end,
        the latest first, `max_num_offsets` of them at most."""
        times = [(max(offset, log.log_start_offset), changed_ms) for offset, changed_ms in log.segment_times()]
        if log.active_bytes:
            times.append((log.log_end_offset, self._wall_ms()))
        offsets = offsets_before(times, asked.timestamp, asked.max_num_offsets)
        below = tuple(offset for offset in offsets if offset <= limit)
        return offsets if len(below) == len(offsets) else (limit, *below)


def offsets_before(times: Sequence[tuple[int, int]], timestamp: int, count: int) -> tuple[int, ...]:
    """Of (offset, time), in ascending order, the last `count` up to the last one that is not after `timestamp`, the
    latest first. Kafka's Log.legacyFetchOffsetsBefore."""
    if timestamp == LATEST_TIMESTAMP:
        found = len(times)
    elif timestamp == EARLIEST_TIMESTAMP:
        found = 1
    else:
        found = next((at + 1 for at in reversed(range(len(times))) if times[at][1] <= timestamp), 0)
    return tuple(offset for offset, _ in reversed(times[max(found - max(count, 0), 0) : found]))


def _limit(partition: Partition, log: PartitionLog, request: ListOffsetsRequest) -> int:
    """Return the offset up to which this client may get offsets."""
    if request.replica_id != CONSUMER:
        return log.log_end_offset
    committed_only = request.isolation_level == READ_COMMITTED
    return partition.last_stable_offset if committed_only else partition.high_watermark


def _at_time(log: PartitionLog, timestamp_ms: int) -> Generator[Yielded, Any, TimestampOffset | None]:
    """The first record of that time or later. Batches are looked through by jobs: one that is compressed takes long."""
    batch = yield from until_cached(log, partial(log.batch_for_timestamp, timestamp_ms))
    while batch is not None:
        found: TimestampOffset | None = yield Job(partial(batch.find, decompress), JobLane.RECORDS)
        if found is not None:
            return found
        following = partial(log.batch_for_timestamp, timestamp_ms, batch.header.last_offset + 1)
        batch = yield from until_cached(log, following)
    return None


def _answer_to_time(
    partition: Partition, index: int, found: TimestampOffset | None, limit: int, *, client: bool
) -> ListOffsetsPartitionResult:
    if found is not None and found.offset < limit:
        epoch = max(found.leader_epoch, NO_LEADER_EPOCH)
        return ListOffsetsPartitionResult(index, ErrorCode.NONE, found.timestamp_ms, found.offset, epoch)
    _require_committed_epoch(partition, client)
    return ListOffsetsPartitionResult(index, ErrorCode.NONE)


def _end(
    partition: Partition, log: PartitionLog, asked: ListOffsetsPartition, limit: int, *, client: bool
) -> ListOffsetsPartitionResult:
    index = asked.partition_index
    if asked.timestamp == EARLIEST_TIMESTAMP:
        return ListOffsetsPartitionResult(index, ErrorCode.NONE, NO_TIMESTAMP, log.log_start_offset, _first_epoch(log))
    _require_committed_epoch(partition, client)
    return ListOffsetsPartitionResult(index, ErrorCode.NONE, NO_TIMESTAMP, limit, partition.leader_epoch)


def _first_epoch(log: PartitionLog) -> int:
    """That of the log's first record, where it is known."""
    first = next(iter(log.epochs.entries()), None)
    return first.epoch if first is not None and first.start_offset <= log.log_start_offset else NO_LEADER_EPOCH


def _require_committed_epoch(partition: Partition, client: bool) -> None:
    """A new leader may not know yet how far its predecessor has committed: until its high watermark has come to where
    its own epoch began, the end might seem to a client to go back (KIP-207). A follower needs the log's end before
    that: it truncates to it."""
    leading = partition.leading
    if client and leading is not None and leading.epoch_start_offset > partition.high_watermark:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _error(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.OFFSET_NOT_AVAILABLE and version < FIRST_VERSION_WITH_NOT_AVAILABLE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return error


class LeaderEpochHandler:
    def __init__(self, access: RecordAccess) -> None:
        self._access = access

    def handle(
        self, request: OffsetForLeaderEpochRequest, version: int, answer: Callable[[OffsetForLeaderEpochResponse], None]
    ) -> Steps:
        topics = []
        done = 0
        for topic in request.topics:
            results = []
            for one in topic.partitions:
                results.append(self._result(topic.topic, one))
                done += 1
                if done % SLICE == 0:
                    yield None
            topics.append(OffsetForLeaderTopicResult(topic.topic, tuple(results)))
        answer(OffsetForLeaderEpochResponse(tuple(topics)))

    def _result(self, topic: str, asked: OffsetForLeaderPartition) -> OffsetForLeaderResult:
        try:
            _, log = self._access.leader_log(topic, asked.partition, asked.current_leader_epoch)
            log.health.check()
            end = log.end_offset_for_epoch(asked.leader_epoch)
        except (ApiError, StorageError) as error:
            return OffsetForLeaderResult(api_error_of(error).error, asked.partition)
        return OffsetForLeaderResult(ErrorCode.NONE, asked.partition, end.epoch, end.end_offset)
