"""The cleaning of one log: of the records with the same key the last is kept.

`Cleaning.steps` is a generator: what it yields is to be called on any thread, one after the other, and what it does
itself must be done on the thread that uses the log. It reads sealed segments, writes what is left of a group of them
into one `.cleaned` segment, and puts that in their place:

1. The log is synced from the first dirty segment on: a record must not be dropped for a later one, or because of a
   transaction's marker, that a crash could still take.
2. The `.cleaned` files are written, sealed and synced.
3. They are renamed to `.swap`, and the directory is synced: from here on a start completes the replacement.
4. Readers get the new segment, the old files are removed, and the directory is synced.
5. `.swap` is dropped from the names, and the directory is synced.

The last batch of each group is kept, if need be without records, so that a segment ends where the next begins and a
follower reaches the log's end. Otherwise as Kafka 2.8's Cleaner and Log.replaceSegments.

Of a log on two tiers, segments are read where they are, and what is left of them is written to the SSD. Between steps 2
and 3 copies of the old segments are removed; between 3 and 4 `tier-checkpoint` forgets those that an HDD alone had.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
from crc32c import crc32c

from controller.storage.batches import CRC_FROM, HEADER_BYTES, BatchHeader, header_at
from controller.storage.compaction_filter import BatchFilter, CleanedTransactions, LastBatch, last_batches, note_keys
from controller.storage.compaction_rules import DirtyRange, groups
from controller.storage.disk import Device, Disk, File, NotCached
from controller.storage.errors import CorruptBatch, LogOffline, OutOfResources, StorageError
from controller.storage.offset_map import OffsetMap
from controller.storage.recovery import CLEANED, SWAP
from controller.storage.segment import Segment, headers_between
from controller.storage.settings import LONG_MAX, LogSettings
from controller.storage.tiers import HddFile, move
from statemachines.log_segment import OnlyCache

if TYPE_CHECKING:
    from controller.storage.log import PartitionLog

R = TypeVar("R")
Work: TypeAlias = Callable[[], Any]
"""To be called on any thread; what it returns is sent back, what it raises is thrown."""


class OffsetMapTooSmall(StorageError):
    """One batch has more keys than the map holds (log.cleaner.dedupe.buffer.size)."""


class CleanerLimits(msgspec.Struct, frozen=True):
    """`keys_max`: of the offset map. `piece_bytes`: read by one piece of work, unless a batch is larger.
    `records_bytes_max`: of a batch's records when decompressed."""

    keys_max: int
    piece_bytes: int = 128 * 1024
    records_bytes_max: int = 1024**3


class CleanedBytes(msgspec.Struct):
    """What a cleaning has done so far. `read`: in both passes; `copied`: of those, in the second."""

    read: int = 0
    copied: int = 0
    written: int = 0
    records_before: int = 0
    records_after: int = 0


def first_timestamps_ms(segments: Sequence[Segment], first_dirty: int, settings: LogSettings) -> list[int]:
    """Of the first batches of the sealed segments from `first_dirty` on, which are read only where there is a
    max.compaction.lag.ms to compare them with."""
    if settings.max_compaction_lag_ms == LONG_MAX:
        return []
    dirty = [one for one in segments[:-1] if one.next_offset > first_dirty]
    heads = [next(headers_between(one.file, 0, one.size_bytes), None) for one in dirty]
    return [head[1].max_timestamp_ms for head in heads if head is not None]


class _HddFailed(Exception):
    """An HDD with a segment, and not the SSD."""

    def __init__(self, segment: Segment, error: OSError) -> None:
        super().__init__(error)
        self.segment = segment
        self.error = error


def _in_file(segment: Segment, call: Callable[[File], R]) -> R:
    """On any thread. Raises _HddFailed."""
    file = segment.file
    if not isinstance(file, HddFile):
        return call(file)
    try:
        return call(file.raw())
    except OSError as error:
        raise _HddFailed(segment, error) from error


def _sync(segment: Segment) -> None:
    _in_file(segment, lambda file: file.sync())


class _Phase(Enum):
    IDLE = "no segment is being replaced"
    WRITING = "the .cleaned files are being written"
    NAMED = "the .swap files are complete"
    IN_PLACE = "the .swap files have taken the place of the old ones"


class Cleaning:
    """One cleaning of `log`, of `dirty`. `end`: where it ended, once its steps are over."""

    def __init__(self, disk: Disk, log: PartitionLog, dirty: DirtyRange, limits: CleanerLimits, now_ms: int) -> None:
        self.end = dirty.first_dirty
        self.done = CleanedBytes()
        self.is_settled = False
        """It was ended early: its steps must not go on."""
        self.device: Device | None = None
        """Of the next call, if that is an HDD's; None: the log directory's."""
        self._disk = disk
        self._log = log
        self._dirty = dirty
        self._limits = limits
        self._now_ms = now_ms
        self._offsets = OffsetMap(limits.keys_max)
        self._phase = _Phase.IDLE
        self._new: Segment | None = None
        self._is_changed = False
        self._last: Mapping[int, LastBatch] = {}
        """As of before the log is synced: a later one may be lost by a crash."""

    def steps(self) -> Generator[Work, Any, None]:
        """Raises CorruptBatch, OffsetMapTooSmall and OSError, also those of the calls that it yields; on two tiers
        LogOffline and OutOfResources, which may be an HDD's, and SsdFull."""
        log, dirty = self._log, self._dirty
        log.cleaning_begins(self)
        self._last = last_batches(log.known_producers)
        sealed = [one for one in log.segments[:-1] if one.base_offset < dirty.end]
        if not sealed:
            return
        aborted = yield from self._cached(partial(log.aborted_transactions, sealed[0].base_offset, dirty.end))
        dirty_ones = [one for one in sealed if one.next_offset > dirty.first_dirty]
        for segment in log.segments[log.segments.index(dirty_ones[0]) :]:
            yield from self._on(segment, partial(_sync, segment))
        yield partial(self._disk.sync_names, log.directory)
        since = CleanedTransactions([one for one in aborted if one.last_offset >= dirty.first_dirty])
        yield from self._map(dirty_ones, since)
        end = self._offsets.latest_offset + 1
        if end <= dirty.first_dirty:
            raise OffsetMapTooSmall(f"a batch at offset {dirty.first_dirty} has more than {self._limits.keys_max} keys")
        yield self._sort_offsets
        to_clean = [one for one in sealed if one.base_offset < end]
        transactions = CleanedTransactions(aborted)
        for group in groups(to_clean, to_clean[-1].next_offset, log.settings):
            yield from self._clean(group, transactions)
        self.end = end

    @property
    def map_percent(self) -> float:
        """How full the offset map is."""
        return 100 * len(self._offsets) / self._limits.keys_max

    # On two tiers

    def _on(self, segment: Segment, call: Callable[[], R]) -> Generator[Work, Any, R]:
        """What the call returns, which uses the segment's file."""
        self.device = segment.store.device if segment.store is not None and segment.is_on_hdd else None
        try:
            result: R = yield call
        except _HddFailed as failed:
            store = failed.segment.store
            raise failed.error if store is None else store.failure(failed.error) from failed
        finally:
            self.device = None
        return result

    def _cached(self, read: Callable[[], R]) -> Generator[Work, Any, R]:
        """What `read` of the log returns. What it would wait for is read in first."""
        for _ in range(3 * len(self._log.segments)):
            try:
                return self._log.attempt(False, read)
            except NotCached as missing:
                self.device = missing.device
                with suppress(OSError):  # the read itself meets it
                    yield missing.read_in
                self.device = None
        return read()

    # The keys

    def _map(self, segments: Sequence[Segment], transactions: CleanedTransactions) -> Generator[Work, Any, None]:
        offsets = self._offsets
        for segment in segments:
            first: int = yield from self._cached(partial(segment.position_of, self._dirty.first_dirty))
            position: int | None = first
            while position is not None and position < segment.size_bytes:
                position = yield from self._on(segment, partial(self._map_piece, segment, position, transactions))
            if position is None:
                return
            # Nothing is between the segment's last batch and the next segment.
            offsets.latest_offset = max(offsets.latest_offset, segment.next_offset - 1)

    def _sort_offsets(self) -> None:
        for _ in self._offsets.latest_offsets():
            self._disk.give_way()

    def _map_piece(self, segment: Segment, position: int, transactions: CleanedTransactions) -> int | None:
        """Where the next piece begins; None once the map is full."""
        batches, position = self._read(segment, position)
        for header, batch in batches:
            first, limit = self._dirty.first_dirty, self._limits.records_bytes_max
            if not note_keys(header, batch, self._offsets, transactions, first, limit):
                return None
            self._disk.give_way()
        return position

    def _read(self, segment: Segment, position: int) -> tuple[list[tuple[BatchHeader, memoryview]], int]:
        """The whole batches from `position` on, and where they end. Raises CorruptBatch, which names no file."""
        left = segment.size_bytes - position

        def read(length: int) -> memoryview:
            return memoryview(_in_file(segment, lambda file: file.read_at(position, length)))

        data = read(min(self._limits.piece_bytes, left))
        first = header_at(data, 0, left)
        if first.size_bytes > len(data):
            data = read(first.size_bytes)
        found: list[tuple[BatchHeader, memoryview]] = []
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = header_at(data, at, left - at)
            batch = data[at : at + header.size_bytes]
            if len(batch) < header.size_bytes:
                break
            if crc32c(batch[CRC_FROM:]) != header.crc:
                raise CorruptBatch(position + at, f"CRC-32C of the batch is not the header's, in {segment.path}")
            found.append((header, batch))
            at += header.size_bytes
        if not found:
            raise CorruptBatch(position, f"a batch of {first.size_bytes} bytes is cut short, in {segment.path}")
        self.done.read += at
        return found, position + at

    # The segments

    def _clean(self, group: Sequence[Segment], transactions: CleanedTransactions) -> Generator[Work, Any, None]:
        log, last = self._log, self._last
        self._phase, self._is_changed = _Phase.WRITING, len(group) > 1
        new: Segment = yield partial(self._begin, group[0].base_offset)
        self._new = new
        transactions.on_kept = new.aborted.append
        settings = log.settings
        rules = BatchFilter(
            self._offsets,
            transactions,
            self._now_ms,
            settings.delete_retention_ms,
            self._limits.records_bytes_max,
            self._dirty.first_dirty,
        )
        # What of the group is on the SSD makes room for what is left of it.
        room = sum(segment.size_bytes for segment in group if not segment.is_on_hdd)
        for segment in group:
            position = 0
            while position < segment.size_bytes:
                piece = partial(self._copy_piece, segment, position, rules, last, segment is group[-1])
                position = yield from self._on(segment, piece)
                if log.tiers is not None and new.size_bytes > room:
                    log.tiers.ssd.take(new.size_bytes - room)
                    room = new.size_bytes
        if not self._is_changed:
            self._drop()
            return
        yield partial(self._seal, new)
        yield from self._replace(group, new)

    def _begin(self, base_offset: int) -> Segment:
        interval_bytes, now_ms = self._log.settings.index_interval_bytes, self._now_ms
        left = Segment(self._disk, self._log.directory, base_offset, interval_bytes, now_ms, suffix=CLEANED)
        left.remove()  # of a cleaning that was ended
        return Segment(self._disk, self._log.directory, base_offset, interval_bytes, now_ms, suffix=CLEANED)

    def _copy_piece(
        self, segment: Segment, position: int, rules: BatchFilter, last: Mapping[int, LastBatch], is_last: bool
    ) -> int:
        batches, position = self._read(segment, position)
        kept: list[bytes | memoryview] = []
        headers: list[BatchHeader] = []
        at_end = is_last and position >= segment.size_bytes
        for header, batch in batches:
            of_producer = last.get(header.producer_id) if header.producer_id >= 0 else None
            left = rules.filtered(header, batch, of_producer, at_end and header is batches[-1][0])
            self._is_changed |= left is None or left[0] is not batch
            self.done.records_before += header.record_count
            self.done.copied += header.size_bytes
            if left is not None:
                kept.append(left[0])
                headers.append(left[1])
                self.done.records_after += left[1].record_count
            self._disk.give_way()
        if headers and self._new is not None:
            data = b"".join(kept)
            self._new.append(data, headers)
            self.done.written += len(data)
        return position

    @staticmethod
    def _seal(new: Segment) -> None:
        new.seal()
        new.sync(sealed=True)

    def _replace(self, group: Sequence[Segment], new: Segment) -> Generator[Work, Any, None]:
        log, sync_names = self._log, partial(self._disk.sync_names, self._log.directory)
        tiers = log.tiers
        new.next_offset = group[-1].next_offset
        if tiers is not None:
            tiers.before_replacing(group)
        self._new = swap = new.rename(SWAP)
        self._phase = _Phase.NAMED
        yield sync_names
        log.settle()  # a flush by a job may be about to sync what is removed next
        if tiers is not None:
            tiers.replaced(swap.base_offset, swap.next_offset)
        log.replace_segments(group, swap)
        self._phase = _Phase.IN_PLACE
        if tiers is not None:
            tiers.remove_group(group)
        else:
            for old in group:
                old.remove()
        yield sync_names
        self._take_names(swap)
        yield sync_names

    def _take_names(self, swap: Segment) -> None:
        self._log.settle()
        new, tiers = swap.rename(""), self._log.tiers
        if tiers is not None:
            move(new, OnlyCache)
        self._log.replace_segments([swap], new)
        self._phase, self._new = _Phase.IDLE, None
        if tiers is not None:
            with suppress(LogOffline, OutOfResources):  # of an HDD: a start with it removes them
                tiers.remove_replaced()

    def _drop(self) -> None:
        if self._new is not None:
            self._new.remove()
        self._phase, self._new = _Phase.IDLE, None

    def settle(self) -> None:
        """End it early, before what it reads is cut off or closed; the files are as before, or as after."""
        self.is_settled = True
        phase = self._phase
        if phase is _Phase.IN_PLACE and self._new is not None:
            self._disk.sync_names(self._log.directory)
            self._take_names(self._new)
        else:
            self._drop()
        if phase in (_Phase.NAMED, _Phase.IN_PLACE):
            # What was removed must not come back and take the place of segments that are cut off next.
            self._disk.sync_names(self._log.directory)
