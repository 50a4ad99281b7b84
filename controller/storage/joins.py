"""Whether a log's sealed segments join: each begins with the batch that its name says and ends where the next begins.

A segment that was deleted, cut short, renamed or copied by hand would otherwise be served with a gap, or twice. Only a
segment's first batch and what follows its last index entry are read. Gaps are sound in a log that Kafka's cleaner has
compacted, and are accepted where the batches show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from controller.storage.batches import HEADER_BYTES, header_at, headers_of
from controller.storage.disk import Disk
from controller.storage.errors import CorruptBatch, CorruptLog
from controller.storage.index import OFFSET_ENTRY
from controller.storage.scan import Damage, headers_between
from controller.storage.segment import INDEX_SUFFIX, Segment


class Joins:
    """The segments of one log; whether it was compacted is looked up when there is a gap, and once."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._compacted: bool | None = None

    @property
    def is_compacted(self) -> bool:
        if self._compacted is None:
            self._compacted = _is_compacted(self._segments)
        return self._compacted

    def wrong_beginning(self, segment: Segment) -> Damage | None:
        """Damage if the segment's first batch is not the one that its name says."""
        if not segment.size_bytes:
            return None
        try:
            first = header_at(segment.file.read_at(0, HEADER_BYTES), 0, segment.size_bytes)
        except CorruptBatch as error:
            return Damage(0, error.reason)
        if first.base_offset == segment.base_offset or (first.base_offset > segment.base_offset and self.is_compacted):
            return None
        return Damage(0, f"the first batch has base offset {first.base_offset}, expected {segment.base_offset}")

    def join(self, end: int, after: Segment) -> bool:
        """Whether `after` may follow a segment that ends at `end`."""
        return end == after.base_offset or (end < after.base_offset and self.is_compacted)


def check_joins(
    disk: Disk, directory: str, names: Sequence[str], segments: Sequence[Segment], begun: int, joins: Joins
) -> None:
    """Checks that the first `begun` segments begin with their own offset, and that each of `segments` but the last ends
    where the next begins. Raises CorruptLog.

    `names`: what is in the directory.
    """
    present = frozenset(names)
    for segment in segments[:begun]:
        damage = joins.wrong_beginning(segment)
        if damage is not None:
            raise CorruptLog(segment.path, damage.position, damage.reason)
    for segment, after in pairwise(segments):
        end = _end(disk, directory, present, segment)
        if not joins.join(end, after):
            reason = f"the segment ends at offset {end}, but the next one begins at {after.base_offset}"
            raise CorruptLog(segment.path, segment.size_bytes, reason)


def _end(disk: Disk, directory: str, present: frozenset[str], segment: Segment) -> int:
    """The offset after the segment's last batch; its base offset if it has none. Raises CorruptLog."""
    start = 0
    index_name = f"{segment.base_offset:020d}{INDEX_SUFFIX}"
    if index_name in present:
        start = _last_indexed(disk, f"{directory}/{index_name}", segment)
    for at in (start, 0) if start else (0,):
        end = segment.base_offset
        try:
            for position, header in headers_between(segment.file, at, segment.size_bytes):
                if header.base_offset < end:
                    raise CorruptBatch(position, f"base offset {header.base_offset}, expected {end} or more")
                end = header.next_offset
        except CorruptBatch as error:
            if at:
                continue  # the index may be of another file: the batches are read from the beginning
            raise CorruptLog(segment.path, error.position, error.reason) from None
        break
    return end


def _last_indexed(disk: Disk, path: str, segment: Segment) -> int:
    """Where the batch of the index's last entry begins; 0 if the index does not tell."""
    file = disk.open(path)
    try:
        size = file.size()
        entry = file.read_at(size - OFFSET_ENTRY.size, OFFSET_ENTRY.size) if size >= OFFSET_ENTRY.size else b""
    finally:
        file.close()
    if size % OFFSET_ENTRY.size or len(entry) < OFFSET_ENTRY.size:
        return 0
    offset, position = OFFSET_ENTRY.unpack(entry)
    if not 0 < position < segment.size_bytes:
        return 0
    try:
        header = header_at(segment.file.read_at(position, HEADER_BYTES), 0, segment.size_bytes - position)
    except CorruptBatch:
        return 0
    return position if segment.base_offset <= header.base_offset <= offset + segment.base_offset else 0


def _is_compacted(segments: Sequence[Segment]) -> bool:
    """Whether records are missing between a segment's batches or within one, as the cleaner leaves them."""
    for segment in segments:
        expected = None
        try:
            for position, header in headers_between(segment.file, 0, segment.size_bytes):
                if expected is not None and header.base_offset < expected:
                    return False  # the cleaner keeps the order: the file is damaged
                if header.record_count <= header.last_offset_delta or expected not in (None, header.base_offset):
                    headers_of(segment.file.read_at(position, header.size_bytes))
                    return True
                expected = header.next_offset
        except CorruptBatch:
            return False  # readers of the batches detect any corruption
    return False
