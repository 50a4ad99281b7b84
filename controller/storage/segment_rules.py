"""Which segments retention deletes: Kafka 2.8's Log.deleteOldSegments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
