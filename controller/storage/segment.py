"""One segment of a log: a file of batches, and the two sparse indexes derived from it.

File names, index entries and their order are those of Kafka's LogSegment. Batches are read a piece at a time, headers
alone for a look-up and all bytes for a recovery; no more than a piece is in memory, whatever a header says about a
batch's length.

The rules of when a log begins a new segment, and which ones retention deletes, are pure functions: Kafka 2.8's
LogSegment.shouldRoll and Log.deleteOldSegments. `log.py` carries them out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import msgspec
from crc32c import crc32c

from controller.storage.batches import (
    CRC_FROM,
    HEADER_BYTES,
    INT_MAX,
    NO_TIMESTAMP,
    OFFSET_MAX,
    BatchHeader,
    Bytes,
    header_at,
)
from controller.storage.disk import Disk, File, FileRange, NotCached, waiting
from controller.storage.errors import CorruptBatch, CorruptLog
from controller.storage.settings import UNLIMITED, LogSettings
from controller.storage.sparse_index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex, UnsoundIndex
from controller.storage.transactions import TXN_INDEX_SUFFIX, TransactionIndex
from statemachines.log_segment import SegmentState

if TYPE_CHECKING:
    from controller.storage.tiers import HddStore

LOOK_BYTES = 4 * 1024
PAGE_BYTES = 4 * 1024
DIRTY_MS = 1_000
"""How long a page counts as in the page cache after an append to it: the system begins to write it back later."""
RECENT_MS = 10_000
CHECK_BYTES = 1024 * 1024


class HeaderReader:
    """Reads headers of one file, and keeps the last piece. For one call, in which the file stays as it is."""

    __slots__ = ("_at", "_file", "_piece")

    def __init__(self, file: File) -> None:
        self._file, self._piece, self._at = file, b"", 0

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes, a header's at least unless the file ends."""
        skipped = position - self._at
        if not 0 <= skipped <= len(self._piece) - HEADER_BYTES:
            self._piece, self._at, skipped = self._file.read_at(position, length), position, 0
        return self._piece[skipped:] if skipped else self._piece


def headers_between(file: File | HeaderReader, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from `start`, which is where one begins, to `end`, where one ends.

    Raises CorruptBatch with the position in the file; CRCs are not looked at.
    """
    piece, piece_at = b"", start
    position = start
    while position < end:
        if position + HEADER_BYTES > piece_at + len(piece):
            piece, piece_at = file.read_at(position, min(LOOK_BYTES, end - position)), position
        try:
            header = header_at(piece, position - piece_at, end - position)
        except CorruptBatch as error:
            raise type(error)(position, error.reason) from None
        yield position, header
        position += header.size_bytes


class BatchDamage(msgspec.Struct, frozen=True):
    """Where a file stops being batches, and how."""

    position: int
    reason: str


def crc_holds(file: File, position: int, header: BatchHeader, piece_bytes: int = CHECK_BYTES) -> bool:
    crc = 0
    at, end = position + CRC_FROM, position + header.size_bytes
    while at < end:
        data = file.read_at(at, min(piece_bytes, end - at))
        if not data:
            return False
        crc = crc32c(data, crc)
        at += len(data)
    return crc == header.crc


def too_far(header: BatchHeader, base_offset: int) -> str:
    """No segment is given such a batch: the base offset, which no CRC covers, is another."""
    return f"base offset {header.base_offset}, too far from the segment's first, {base_offset}"


def check_batches(
    file: File, base_offset: int, accept: Callable[[int, BatchHeader], None], start: int = 0, end: int | None = None
) -> BatchDamage | None:
    """Hands each sound batch from `start` to `accept`, with its position, up to the first that is not: one whose
    shape or CRC is wrong, or whose offsets do not go on upwards from `base_offset` or are too far from it for the
    segment's indexes. None when all are sound."""
    expected = base_offset
    try:
        for position, header in headers_between(file, start, file.size() if end is None else end):
            if header.base_offset < expected:
                return BatchDamage(position, f"base offset {header.base_offset}, expected {expected} or more")
            if header.last_offset - base_offset > INT_MAX:
                return BatchDamage(position, too_far(header, base_offset))
            if not crc_holds(file, position, header):
                return BatchDamage(position, "CRC-32C of the batch is not the header's")
            accept(position, header)
            expected = header.next_offset
    except CorruptBatch as error:
        return BatchDamage(error.position, error.reason)
    return None


MARKS = 32
LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX = ".log", ".index", ".timeindex", ".snapshot"


def segment_path(directory: str, offset: int, suffix: str) -> str:
    return f"{directory}/{offset:020d}{suffix}"


def base_offset_of(name: str, suffix: str) -> int | None:
    """The offset in the name of a segment's file, as `segment_path` makes it; None for any other name."""
    stem = name[: -len(suffix)]
    if not name.endswith(suffix) or len(stem) != 20 or not (stem.isascii() and stem.isdecimal()):
        return None
    offset = int(stem)
    return offset if offset <= OFFSET_MAX else None


class Segment:
    """`next_offset` is -1 until the end was looked at (`find_end`, or `recover`). What an empty one has no use for is
    made when it has: a broker has thousands of them."""

    __slots__ = (
        "_aborted",
        "_directory",
        "_disk",
        "_index_interval_bytes",
        "_loaded",
        "_marks",
        "_max_timestamp_offset",
        "_offsets",
        "_recent_at",
        "_recent_before",
        "_recent_since_ms",
        "_sealed_ms",
        "_suffix",
        "_times",
        "_unindexed_bytes",
        "_written_ms",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp_ms",
        "max_timestamp_ms",
        "next_offset",
        "size_bytes",
        "state",
        "store",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, index_interval_bytes: int, now_ms: int, *, suffix: str = ""
    ) -> None:
        self.base_offset = base_offset
        self._suffix = suffix
        self._disk = disk
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self.file: File = disk.open(self.path)
        self.size_bytes = self.file.size()
        self.next_offset = base_offset if self.size_bytes == 0 else -1
        self._offsets: SparseIndex | None = None
        self._times: SparseIndex | None = None
        self._aborted: TransactionIndex | None = None
        self._loaded = self.size_bytes == 0
        self._unindexed_bytes = 0
        self._sealed_ms = -1
        self.created_ms = now_ms
        self.state = SegmentState.Active
        """Kept by a log on two tiers alone, as is `store`: the HDD with a copy of this segment, or with all of it."""
        self.store: HddStore | None = None
        self.first_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._recent_at = self._recent_before = self.size_bytes
        self._recent_since_ms = 0
        self._written_ms = -DIRTY_MS
        self._marks: dict[int, int] | None = None
        """Where the batches appended last begin, and those at which a read ended, by base offset: readers at the end,
        the high watermark, and who reads on ask for these."""

    @property
    def path(self) -> str:
        return self.path_of(LOG_SUFFIX)

    @property
    def disk(self) -> Disk:
        return self._disk

    def path_of(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix) + self._suffix

    @property
    def is_on_hdd(self) -> bool:
        """Its files are read and written on an HDD."""
        return self.store is not None and self._disk is self.store.disk

    @property
    def sealed_ms(self) -> int:
        """When the last record was appended, or the file changed otherwise."""
        if self._sealed_ms < 0:
            self._sealed_ms = self._disk.modified_ms(self.path)
        return self._sealed_ms

    def move_to(self, store: HddStore, directory: str, file: File) -> None:
        """Its files are read in that directory of an HDD from here on, its records from `file`. Ranges read before stay
        readable."""
        self._disk, self._directory, self.store, self.file = store.disk, directory, store, file
        self._offsets = self._times = self._aborted = None
        self._loaded = False

    @property
    def offsets(self) -> SparseIndex:
        if self._offsets is None:
            path = self.path_of(INDEX_SUFFIX)
            self._offsets = SparseIndex(self._disk, path, OFFSET_ENTRY)
        return self._offsets

    @property
    def times(self) -> SparseIndex:
        if self._times is None:
            path = self.path_of(TIME_INDEX_SUFFIX)
            self._times = SparseIndex(self._disk, path, TIME_ENTRY)
        return self._times

    @property
    def aborted(self) -> TransactionIndex:
        if self._aborted is None:
            path = self.path_of(TXN_INDEX_SUFFIX)
            self._aborted = TransactionIndex(self._disk, path, is_new=not self.size_bytes)
        return self._aborted

    # Appending

    def append(self, data: Bytes, headers: Sequence[BatchHeader], rest: Bytes = b"") -> None:
        """`data`, and `rest` after it, is the batches whose headers these are, with their offsets. One write."""
        position = self.size_bytes
        self.file.append(data, rest)
        if position == 0:
            self.first_timestamp_ms = headers[0].max_timestamp_ms
        for header in headers:
            self._note(position, header)
            self._mark(header.base_offset, position)
            position += header.size_bytes
        self.size_bytes = position

    def _mark(self, base_offset: int, position: int) -> None:
        marks = self._marks
        if marks is None:
            marks = self._marks = {}
        marks[base_offset] = position
        if len(marks) > MARKS:
            del marks[next(iter(marks))]

    def _note(self, position: int, header: BatchHeader) -> None:
        last_offset = header.last_offset
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms, self._max_timestamp_offset = header.max_timestamp_ms, last_offset
        if self._unindexed_bytes > self._index_interval_bytes:
            self.offsets.append(last_offset - self.base_offset, position)
            self._index_time()
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size_bytes
        self.next_offset = last_offset + 1

    def _index_time(self) -> None:
        last = self.times.last()
        if self.max_timestamp_ms > (NO_TIMESTAMP if last is None else last[0]):
            self.times.append(self.max_timestamp_ms, self._max_timestamp_offset - self.base_offset)

    def begin_append(self, now_ms: int, *, may_wait: bool) -> None:
        """Something is about to be appended, at this time. Unless it `may_wait`, raises NotCached if the append would
        first read the page that it begins within."""
        if not may_wait and self.size_bytes % PAGE_BYTES and not 0 <= now_ms - self._written_ms < DIRTY_MS:
            self.file.require_cached(self.size_bytes - 1, 1)
        self._written_ms = now_ms
        if not 0 <= now_ms - self._recent_since_ms < RECENT_MS:
            is_next = 0 <= now_ms - self._recent_since_ms < 2 * RECENT_MS
            self._recent_before = self._recent_at if is_next else self.size_bytes
            self._recent_at, self._recent_since_ms = self.size_bytes, now_ms

    def was_written_lately(self, position: int, now_ms: int) -> bool:
        """Whether everything from `position` on was appended within the last 2 * RECENT_MS: it is in the page cache,
        or there is no memory for anything."""
        return position >= self._recent_before and 0 <= now_ms - self._recent_since_ms < RECENT_MS

    # Opening

    def recover(self) -> BatchDamage | None:
        """Reads every batch, checks it, and builds the indexes anew; stops at the first damage, and leaves it there.
        What follows from its position on counts as not there until `cut` is called."""
        self._forget()
        damage = check_batches(self.file, self.base_offset, self._accept, end=self.size_bytes)
        # As when a segment is sealed: this may be one that was.
        self._index_time()
        return damage

    def _accept(self, position: int, header: BatchHeader) -> None:
        if position == 0:
            self.first_timestamp_ms = header.max_timestamp_ms
        self._note(position, header)

    def _forget(self) -> None:
        self.offsets.clear()
        self.times.clear()
        self._loaded = True
        self._unindexed_bytes = 0
        self.next_offset = self.base_offset
        self.first_timestamp_ms = self.max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset

    def find_end(self) -> None:
        """Learns `next_offset` and the largest timestamp from the indexes and what follows their last entry. Raises
        CorruptLog."""
        self._load()
        first = next(self._headers(0), None)
        if first is None:
            return
        self.first_timestamp_ms = first[1].max_timestamp_ms
        last = self.offsets.last()
        self.next_offset = self.base_offset  # it may be known already, where an index was built again
        for position, header in self._headers(0 if last is None else last[1]):
            if header.base_offset < self.next_offset:
                reason = f"base offset {header.base_offset}, expected {self.next_offset} or more"
                raise CorruptLog(self.path, position, reason)
            if header.last_offset - self.base_offset > INT_MAX:
                raise CorruptLog(self.path, position, too_far(header, self.base_offset))
            self.next_offset = header.next_offset
            if header.max_timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms, self._max_timestamp_offset = header.max_timestamp_ms, header.last_offset

    def _load(self) -> None:
        if self._loaded:
            return
        try:
            self.offsets.load()
            self.times.load()
            self._check_last_entries()
        except UnsoundIndex:
            self._rebuild()
            return
        self._loaded = True
        last = self.times.last()
        if last is not None and last[0] > self.max_timestamp_ms:
            self.max_timestamp_ms, self._max_timestamp_offset = last[0], last[1] + self.base_offset

    def _check_last_entries(self) -> None:
        """Raises UnsoundIndex if the last entry of one is not of a batch in this file."""
        last_offset, last_time = self.offsets.last(), self.times.last()
        if last_offset is not None and not self._begins_batch_of(last_offset[1], last_offset[0] + self.base_offset):
            raise UnsoundIndex(f"{self.path}: index entry {last_offset} is of another file")
        if last_time is None:
            # No batch has a timestamp, or else the file was lost.
            raise UnsoundIndex(f"{self.path}: no time index")
        offset = last_time[1] + self.base_offset
        before = self.offsets.floor(last_time[1])
        try:
            for _, header in headers_between(self.file, 0 if before is None else before[1], self.size_bytes):
                if header.last_offset >= offset:
                    if header.max_timestamp_ms == last_time[0] and header.base_offset <= offset:
                        return
                    break
        except CorruptBatch as error:
            raise UnsoundIndex(f"{self.path} at {error.position}: {error.reason}") from None
        raise UnsoundIndex(f"{self.path}: time index entry {last_time} is of another file")

    def _begins_batch_of(self, position: int, offset: int, reader: HeaderReader | None = None) -> bool:
        """Whether a batch that begins at `position` goes up to `offset`, or one after it does."""
        try:
            header = header_at((reader or self.file).read_at(position, LOOK_BYTES), 0, self.size_bytes - position)
        except CorruptBatch:
            return False
        return self.base_offset <= header.base_offset <= offset

    def _rebuild(self) -> None:
        next_offset = self.next_offset
        with waiting(self._disk):  # half of an index must not be left behind
            damage = self.recover()
        if damage is not None:
            raise CorruptLog(self.path, damage.position, damage.reason)
        # A segment before another ends where that begins, though its last batches may have been compacted away.
        self.next_offset = max(next_offset, self.next_offset)

    def write_indexes(self) -> None:
        """Their files are there and sound, built again if they were not."""
        self._load()
        self.unload()

    def unload(self) -> None:
        """Lets go of the indexes' memory."""
        if self._loaded and self.size_bytes:
            self.offsets.unload()
            self.times.unload()
            self._loaded = False
        if self._aborted is not None:
            self._aborted.unload()

    # Reading

    def _headers(self, start: int, reader: HeaderReader | None = None) -> Iterator[tuple[int, BatchHeader]]:
        try:
            yield from headers_between(reader or self.file, start, self.size_bytes)
        except CorruptBatch as error:
            raise CorruptLog(self.path, error.position, error.reason) from None

    def headers_from(self, offset: int, reader: HeaderReader | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) from the batch that holds `offset`, or the first after it. Raises CorruptLog."""
        self._load()
        reader = reader or HeaderReader(self.file)
        entry = self.offsets.floor(offset - self.base_offset)
        if entry is not None and not self._begins_batch_of(entry[1], entry[0] + self.base_offset, reader):
            self._rebuild()
            reader = None
            entry = self.offsets.floor(offset - self.base_offset)
        for position, header in self._headers(0 if entry is None else entry[1], reader):
            if header.last_offset >= offset:
                yield position, header

    def position_of(self, offset: int, reader: HeaderReader | None = None) -> int:
        """Where the batch that holds `offset`, or the first after it, begins; the end if there is none."""
        if offset >= self.next_offset >= 0:
            return self.size_bytes
        position = self.marked(offset)
        if position is None:
            position = next((position for position, _ in self.headers_from(offset, reader)), self.size_bytes)
        return position

    def marked(self, offset: int) -> int | None:
        """Where the batch begins whose first offset this is, if it is known without a look at the file."""
        return None if self._marks is None else self._marks.get(offset)

    def batch_bytes(self, position: int, reader: HeaderReader | None) -> int:
        """The size of the batch that begins there; 0 at the end."""
        return next((header.size_bytes for _, header in self._headers(position, reader)), 0)

    def last_batch_end(self, start: int, end: int, reader: HeaderReader | None = None) -> int:
        """Return where the last batch ends that lies between `start`, where one begins, and `end`, which is before the
        segment's; `start` if there is none, or if the index is wrong."""
        self._load()
        entry = self.offsets.floor_value(end)
        begin, before = start, OFFSET_MAX
        if entry is not None and entry[1] > start:
            begin, before = entry[1], entry[0] + self.base_offset
        try:
            for position, header in headers_between(reader or self.file, begin, self.size_bytes):
                if header.base_offset > before:
                    return start
                if position + header.size_bytes > end:
                    self._mark(header.base_offset, position)
                    return position
                before = OFFSET_MAX
        except CorruptBatch:
            pass
        except NotCached:
            self.file.require_cached(start, end - start)  # one job reads all of it in, not each header first
            raise
        return start

    def headers_since(self, timestamp_ms: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """From where the first batch with a record of this time or later, at `offset` or above, is to be sought."""
        self._load()
        entry = self.times.floor(timestamp_ms)
        return self.headers_from(max(offset, self.base_offset if entry is None else entry[1] + self.base_offset))

    # Ending

    def cut(self, position: int, next_offset: int) -> None:
        """Makes the file end at `position`, where the batch with `next_offset` would begin, and syncs that: what was
        cut off must not come back with the next crash."""
        self._load()
        self.file.truncate(position)
        self.file.sync()
        self.size_bytes, self.next_offset = position, next_offset
        self._unindexed_bytes = 0
        self._marks = None
        self.offsets.cut_keys(next_offset - self.base_offset)
        self.times.cut_values(next_offset - self.base_offset)
        last = self.times.last()
        self.max_timestamp_ms = NO_TIMESTAMP if last is None else last[0]
        self._max_timestamp_offset = self.base_offset if last is None else self.base_offset + last[1]
        self.aborted.cut(next_offset)
        # The batches after the last entry of the time index may have a later time.
        for _, header in self.headers_from(self._max_timestamp_offset):
            if header.max_timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms, self._max_timestamp_offset = header.max_timestamp_ms, header.last_offset
        if position == 0:
            self.first_timestamp_ms = NO_TIMESTAMP

    def sync(self, sealed: bool) -> None:
        """A sealed segment's indexes too: they are not built again once the recovery point is past them."""
        self.file.sync()
        if sealed:
            self.save_indexes()
            self.offsets.sync()
            self.times.sync()
            if self._aborted is not None:
                self._aborted.sync()

    def seal(self) -> None:
        """Nothing will be appended any more: `end`, and both indexes go to disk."""
        self.end()
        self.save_indexes()

    def end(self) -> None:
        """The time index gets its last entry, in memory."""
        self._load()
        self._index_time()
        self._marks = None
        self._sealed_ms = -1

    def save_indexes(self) -> None:
        if self._aborted is not None:
            self._aborted.save()
        if self._loaded:
            self.offsets.save()
            self.times.save()

    def close(self) -> None:
        self.file.close()

    def remove(self) -> None:
        """Off the disk. The file is not closed: ranges of it may be on their way out."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX):
            self._disk.remove(self.path_of(suffix))

    def rename(self, suffix: str) -> Segment:
        """The same segment with its files under other names; sealed, and this object is not used any more. Ranges of it
        stay readable."""
        has_aborted = bool(len(self.aborted))
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, *((TXN_INDEX_SUFFIX,) if has_aborted else ())):
            self._disk.rename(self.path_of(kind), segment_path(self._directory, self.base_offset, kind) + suffix)
        renamed = Segment(
            self._disk, self._directory, self.base_offset, self._index_interval_bytes, self.created_ms, suffix=suffix
        )
        renamed.next_offset = self.next_offset
        return renamed

    # What the rules look at

    @property
    def latest_timestamp_ms(self) -> int:
        """-1 if no batch has one."""
        self._load()
        return self.max_timestamp_ms

    @property
    def latest_ms(self) -> int:
        known_ms = self.latest_timestamp_ms
        return known_ms if known_ms >= 0 else self._disk.modified_ms(self.path)

    @property
    def offset_entries(self) -> int:
        return 0 if self._offsets is None else len(self._offsets)

    @property
    def time_entries(self) -> int:
        return 0 if self._times is None else len(self._times)


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


def rolls_before(
    segment: Segment, headers: Sequence[BatchHeader], size_bytes: int, settings: LogSettings, now_ms: int, home: str
) -> RollReason | None:
    """See `roll_reason`. `home`: the log's directory."""
    if headers[0].base_offset < segment.base_offset:
        return RollReason.OFFSET  # an empty one, made for a follower's append that was not made then
    timestamp_ms = headers[0].max_timestamp_ms
    if len(headers) > 1:
        timestamp_ms = max(header.max_timestamp_ms for header in headers)
    jitter_ms = roll_jitter_ms(home, segment.base_offset, settings) if settings.roll_jitter_ms else 0
    return roll_reason(segment, size_bytes, headers[-1].last_offset, timestamp_ms, settings, now_ms, jitter_ms)


class Removal(msgspec.Struct, frozen=True, eq=False):
    """The removal of segments' files. A directory that is not there has been deleted with them."""

    disk: Disk
    directory: str
    segments: tuple[Segment, ...]
    is_all: bool = False

    def __call__(self) -> None:
        try:
            if self.is_all:  # the file that takes its place must be there first
                self.disk.sync_names(self.directory)
            for segment in self.segments:
                segment.remove()
                # One by one: a crash that took a later one and gave back an earlier one would leave a gap.
                self.disk.sync_names(self.directory)
        except FileNotFoundError:
            return


def index_of(segments: Sequence[Segment], offset: int) -> int:
    """The segment that holds `offset`: the last that begins at or before it."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1
    return max(bisect_right(segments, offset, key=lambda one: one.base_offset) - 1, 0)


def range_from(
    segments: Sequence[Segment], offset: int, max_bytes: int, up_to: int, whole_first_batch: bool, now_ms: int
) -> FileRange:
    """See PartitionLog.read; `offset` is within the log, or its end."""
    last = len(segments) - 1
    index = last if offset >= segments[last].base_offset else index_of(segments, offset)
    while True:
        segment = segments[index]
        start, reader = segment.marked(offset), None
        if start is None:
            reader = HeaderReader(segment.file)
            start = segment.position_of(offset, reader)
        end = segment.position_of(up_to) if up_to < segment.next_offset else segment.size_bytes
        if start < end or index == last or up_to <= segment.next_offset:
            break
        index += 1
    is_recent = index == last and segment.was_written_lately(start, now_ms)
    length = end - start if end > start else 0
    if length <= max_bytes:
        return FileRange(segment.file.held(), start, length, 0, 0, is_recent)
    complete = segment.last_batch_end(start, start + max_bytes, reader) - start
    if complete:
        return FileRange(segment.file.held(), start, complete, max_bytes - complete, length - complete, is_recent)
    length = max(max_bytes, segment.batch_bytes(start, reader) if whole_first_batch else 0)
    return FileRange(segment.file.held(), start, length, 0, 0, is_recent)
