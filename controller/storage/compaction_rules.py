"""What the log cleaner cleans, and when: which part of a log is dirty, whether that is enough, and how segments are put
together. Pure. Source: Kafka 2.8's LogCleanerManager, LogToClean and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from controller.storage.batches import INT_MAX
from controller.storage.settings import LONG_MAX, LogSettings

NEVER_CLEANED = -1
INDEX_ENTRY_BYTES = 12
"""Of a time index; an entry of an offset index has 8."""


class CleanableSegment(Protocol):
    """`latest_timestamp_ms`: -1 if no batch has one."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def latest_timestamp_ms(self) -> int: ...


class UnderWay(Protocol):
    """A cleaning that is under way."""

    def settle(self) -> None:
        """End it now: the files are those of before, or those of after."""


class CompactionState(msgspec.Struct, frozen=True):
    """Of a log that was compacted, or is being."""

    cleaned_to: int
    under_way: UnderWay | None = None


S = TypeVar("S", bound=CleanableSegment)


class DirtyRange(msgspec.Struct, frozen=True):
    """What of a log can be cleaned: from `first_dirty` up to below `end`, where a segment begins. `overdue_ms`: for how
    long some of it should have been cleaned (max.compaction.lag.ms)."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int = 0

    @property
    def ratio(self) -> float:
        """The dirty part of what would be read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(cleaned_to: int, log_start_offset: int, log_end_offset: int) -> int:
    """Where a cleaning begins: where the last one ended, unless the log is another since then."""
    return cleaned_to if log_start_offset <= cleaned_to <= log_end_offset else log_start_offset


def dirty_range(
    segments: Sequence[CleanableSegment],
    first_dirty: int,
    limit: int,
    settings: LogSettings,
    now_ms: int,
    first_timestamps_ms: Sequence[int] = (),
) -> DirtyRange:
    """What can be cleaned of `segments`, of which the last is the active one and is never cleaned.

    `limit`: nothing at this offset or above is cleaned: the high watermark, or the first unstable offset.
    `first_timestamps_ms`: of the first batches of the sealed segments from `first_dirty` on.
    """
    ends = [limit, segments[-1].base_offset]
    if settings.min_compaction_lag_ms > 0:
        too_young = now_ms - settings.min_compaction_lag_ms
        ends += [one.base_offset for one in _from(segments, first_dirty)[:-1] if one.latest_timestamp_ms > too_young][
            :1
        ]
    uncleanable = max(first_dirty, min(ends))
    end = max((one.base_offset for one in segments if one.base_offset <= uncleanable), default=first_dirty)
    dirty = [one for one in _from(segments, min(first_dirty, end)) if one.base_offset < end]
    return DirtyRange(
        first_dirty,
        end,
        sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        sum(one.size_bytes for one in dirty),
        overdue_ms(first_timestamps_ms, settings, now_ms),
    )


def overdue_ms(first_timestamps_ms: Sequence[int], settings: LogSettings, now_ms: int) -> int:
    """For how long the oldest dirty segment has been older than max.compaction.lag.ms."""
    known = [one for one in first_timestamps_ms if one > 0]
    if not known or settings.max_compaction_lag_ms == LONG_MAX:
        return 0
    return max(now_ms - settings.max_compaction_lag_ms - min(known), 0)


def is_due(dirty: DirtyRange, settings: LogSettings) -> bool:
    """Whether the log is to be cleaned now."""
    if not dirty.dirty_bytes or dirty.end <= dirty.first_dirty:
        return False
    return dirty.overdue_ms > 0 or dirty.ratio > settings.min_cleanable_dirty_ratio


def groups(segments: Sequence[S], end: int, settings: LogSettings) -> list[list[S]]:
    """Neighbours that fit into one segment, by bytes, index entries and offsets. `segments` are sealed; `end` is where
    the segment after the last one begins."""
    found: list[list[S]] = []
    entry_for = max(settings.index_interval_bytes, 61)
    for place, segment in enumerate(segments):
        following = segments[place + 1].base_offset if place + 1 < len(segments) else end
        group = found[-1] if found else []
        size = sum(one.size_bytes for one in group) + segment.size_bytes
        fits = (
            size <= settings.segment_bytes
            and size // entry_for * INDEX_ENTRY_BYTES <= settings.index_size_max_bytes
            and bool(group)
            and following - 1 - group[0].base_offset <= INT_MAX
        )
        if fits:
            group.append(segment)
        else:
            found.append([segment])
    return found


def _from(segments: Sequence[CleanableSegment], offset: int) -> Sequence[CleanableSegment]:
    """From the segment that holds the offset on."""
    first = sum(1 for one in segments if one.base_offset <= offset)
    return segments[max(first - 1, 0) :]


def pause_ms(done_bytes: int, took_ms: float, bytes_per_second: float) -> float:
    """How long to wait after so many bytes, which took so long, to stay within the rate."""
    return max(done_bytes * 1000 / bytes_per_second - took_ms, 0.0) if bytes_per_second > 0 else 0.0
