"""Reading a log: which file and where for an offset, which offset for a timestamp. No state of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from controller.storage.batches import HEADER_BYTES, BatchHeader
from controller.storage.disk import FileRange
from controller.storage.records import record_times
from controller.storage.segment import Segment

Decompress: TypeAlias = Callable[[int, bytes], bytes | None]
"""A codec's number and a batch's records; None from who does not know the codec."""


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    timestamp_ms: int
    offset: int
    leader_epoch: int


def index_of(segments: Sequence[Segment], offset: int) -> int:
    """The segment that holds `offset`: the last that begins at or before it."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1
    return max(bisect_right(segments, offset, key=lambda one: one.base_offset) - 1, 0)


def range_from(
    segments: Sequence[Segment], offset: int, max_bytes: int, up_to: int, whole_first_batch: bool
) -> FileRange:
    """See PartitionLog.read; `offset` is within the log, or its end."""
    index = index_of(segments, offset)
    while True:
        segment = segments[index]
        start = segment.position_of(offset)
        end = segment.position_of(up_to) if up_to < segment.next_offset else segment.size_bytes
        is_last = index == len(segments) - 1
        if start < end or is_last or up_to <= segment.next_offset:
            break
        index += 1
    length = max(end - start, 0)
    if length > max_bytes:
        whole = segment.batch_bytes(start) if whole_first_batch else 0
        length = max(max_bytes, whole)
    return segment.range(start, length)


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch that may have the first record of a time or later, as it was read. `find` may run on any thread."""

    header: BatchHeader
    payload: bytes
    timestamp_ms: int
    first_offset: int

    def find(self, decompress: Decompress | None) -> TimestampOffset | None:
        """The first record from `first_offset` on that is not before the time; CorruptBatch. Where the batch can't be
        decompressed it counts as a whole: a reader that begins there misses nothing."""
        header = self.header
        payload: bytes | None = self.payload
        if header.codec:
            payload = None if decompress is None else decompress(header.codec, self.payload)
        if payload is None:
            first = max(header.base_offset, self.first_offset)
            return TimestampOffset(header.max_timestamp_ms, first, header.leader_epoch)
        for record_ms, offset in record_times(header, payload):
            if record_ms >= self.timestamp_ms and offset >= self.first_offset:
                return TimestampOffset(record_ms, offset, header.leader_epoch)
        return None


def batch_for_time(segments: Sequence[Segment], timestamp_ms: int, first_offset: int) -> TimedBatch | None:
    """See PartitionLog.batch_for_timestamp."""
    for segment in segments[index_of(segments, first_offset) :]:
        if segment.latest_timestamp_ms < timestamp_ms:
            continue
        for position, header in segment.headers_since(timestamp_ms, first_offset):
            if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= first_offset:
                payload = segment.file.read_at(position + HEADER_BYTES, header.size_bytes - HEADER_BYTES)
                return TimedBatch(header, payload, timestamp_ms, first_offset)
    return None
