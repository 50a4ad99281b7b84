"""Whether a log's sealed segments join: each begins with the batch that its name says and ends where the next begins.

A segment that was deleted, cut short, renamed or copied by hand would otherwise be served with a gap, or twice. Only a
segment's first batch and what follows its last index entry are read. Gaps are sound in a log that Kafka's cleaner has
compacted, and are accepted where the batches show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from controller.storage.batches import HEADER_BYTES, BatchHeader, header_at
from controller.storage.disk import Disk
from controller.storage.errors import CorruptBatch, CorruptLog
from controller.storage.index import OFFSET_ENTRY
from controller.storage.scan import headers_between
from controller.storage.segment import INDEX_SUFFIX, Segment


def check_joins(disk: Disk, directory: str, names: Sequence[str], segments: Sequence[Segment], begun: int) -> None:
    """Checks that the first `begun` segments begin with their own offset, and that each of `segments` but the last ends
    where the next begins. Raises CorruptLog.

    `names`: what is in the directory.
    """
    present = frozenset(names)
    compacted: bool | None = None
    for segment in segments[:begun]:
        first = _first(segment)
        if first is not None and first.base_offset != segment.base_offset:
            reason = f"the first batch has base offset {first.base_offset}, expected {segment.base_offset}"
            compacted = compacted or (first.base_offset > segment.base_offset and _is_compacted(segments))
            if not compacted:
                raise CorruptLog(segment.path, 0, reason)
    for segment, after in pairwise(segments):
        end = _end(disk, directory, present, segment)
        if end == after.base_offset:
            continue
        if compacted is None or not compacted:
            compacted = end < after.base_offset and _is_compacted(segments)
        if not compacted or end > after.base_offset:
            reason = f"the segment ends at offset {end}, but the next one begins at {after.base_offset}"
            raise CorruptLog(segment.path, segment.size_bytes, reason)


def _first(segment: Segment) -> BatchHeader | None:
    if not segment.size_bytes:
        return None
    try:
        return header_at(segment.file.read_at(0, HEADER_BYTES), 0, segment.size_bytes)
    except CorruptBatch as error:
        raise CorruptLog(segment.path, 0, error.reason) from None


def _end(disk: Disk, directory: str, present: frozenset[str], segment: Segment) -> int:
    """The offset after the segment's last batch; its base offset if it has none. Raises CorruptLog."""
    start = 0
    index_name = f"{segment.base_offset:020d}{INDEX_SUFFIX}"
    if index_name in present:
        start = _last_indexed(disk, f"{directory}/{index_name}", segment)
    for at in (start, 0) if start else (0,):
        end = segment.base_offset
        try:
            for _, header in headers_between(segment.file, at, segment.size_bytes):
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
            for _, header in headers_between(segment.file, 0, segment.size_bytes):
                if header.record_count <= header.last_offset_delta or expected not in (None, header.base_offset):
                    return True
                expected = header.next_offset
        except CorruptBatch as error:
            raise CorruptLog(segment.path, error.position, error.reason) from None
    return False
