"""When a log begins a new segment, and which ones retention deletes: the rules of Kafka 2.8's LogSegment.shouldRoll and
Log.deleteOldSegments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol
from zlib import crc32

from controller.storage.batches import INT_MAX
from controller.storage.settings import UNLIMITED, LogSettings


class SegmentFacts(Protocol):
    """What the rules look at. Timestamps in ms, -1 unknown."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def first_timestamp_ms(self) -> int:
        """The largest timestamp of its first batch."""

    @property
    def latest_ms(self) -> int:
        """The largest timestamp of all, or when the file was changed where no batch has one."""

    @property
    def offset_entries(self) -> int: ...
    @property
    def time_entries(self) -> int: ...


def deletable(
    segments: Sequence[SegmentFacts], log_start_offset: int, high_watermark: int, settings: LogSettings, now_ms: int
) -> int:
    """How many segments, the oldest first, retention lets go: too old, too much, or before the log's start. None
    that holds an offset at the high watermark or above. All of them only if the last holds something."""
    total = sum(segment.size_bytes for segment in segments)
    surplus = total - settings.retention_bytes if settings.retention_bytes != UNLIMITED else 0
    count = 0
    for segment in segments:
        is_last = count == len(segments) - 1
        if segment.next_offset > high_watermark or (is_last and segment.size_bytes == 0):
            break
        too_old = settings.retention_ms != UNLIMITED and now_ms - segment.latest_ms > settings.retention_ms
        too_much = surplus > 0 and surplus >= segment.size_bytes
        before_start = not is_last and segment.next_offset <= log_start_offset
        if not (too_old or too_much or before_start):
            break
        surplus -= segment.size_bytes
        count += 1
    return count


class RollReason(Enum):
    SIZE = "log.segment.bytes"
    AGE = "log.roll.ms"
    INDEX_FULL = "log.index.size.max.bytes"
    OFFSET = "an offset too far from the segment's first for its indexes"


def roll_jitter_ms(directory: str, base_offset: int, settings: LogSettings) -> int:
    """How much earlier than `segment.ms` a segment is rolled: 0 up to `segment.jitter.ms`, and less than `segment.ms`.

    It spreads the rolls, and so the flushes, of partitions that were created together. Kafka draws it at random when a
    segment is opened (LogConfig.randomSegmentJitter); here it follows from the segment's name, so that it stays the
    same after a restart, and in every run of the simulator.
    """
    if not settings.roll_jitter_ms:
        return 0
    return crc32(f"{directory}/{base_offset}".encode()) % min(settings.roll_jitter_ms, settings.roll_ms)


def roll_reason(
    segment: SegmentFacts,
    size_bytes: int,
    last_offset: int,
    max_timestamp_ms: int,
    settings: LogSettings,
    now_ms: int,
    jitter_ms: int = 0,
) -> RollReason | None:
    """Why an append of so many bytes, up to that offset, must go into a new segment; None if it need not. `jitter_ms`:
    the segment's `roll_jitter_ms`."""
    if last_offset - segment.base_offset > INT_MAX:
        return RollReason.OFFSET
    if segment.size_bytes == 0:
        return None
    if segment.size_bytes > settings.segment_bytes - size_bytes:
        return RollReason.SIZE
    # By the records' own time where they have one, so that a replica that catches up rolls as its leader did.
    if segment.first_timestamp_ms >= 0 and max_timestamp_ms >= 0:
        age_ms = max_timestamp_ms - segment.first_timestamp_ms
    else:
        age_ms = now_ms - segment.created_ms
    roll_ms = min(settings.roll_ms, settings.max_compaction_lag_ms) if settings.compacted else settings.roll_ms
    if age_ms > roll_ms - jitter_ms:
        return RollReason.AGE
    # One entry of the time index is kept for the segment's last.
    index_bytes = settings.index_size_max_bytes
    if segment.offset_entries >= index_bytes // 8 or segment.time_entries >= index_bytes // 12 - 1:
        return RollReason.INDEX_FULL
    return None
