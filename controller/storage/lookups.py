"""Look-ups by timestamp in the segments of a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from controller.storage.batches import HEADER_BYTES, BatchHeader, record_times
from controller.storage.segment import Segment, index_of

Decompress: TypeAlias = Callable[[int, bytes], bytes | None]
"""A codec's number and a batch's records; None from who does not know the codec."""


class TimestampOffset(msgspec.Struct, frozen=True):
    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimedBatch(msgspec.Struct, frozen=True):
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
