"""A partition's log on two tiers: its segments begin on an SSD, are copied to an HDD once sealed, and leave the SSD.

`TieredLog` is a `PartitionLog` whose segments have a state (`statemachines.log_segment`) and may lie on an HDD. Reads
find the segment by offset and read it where its state says; nothing that is read from an HDD is written to the SSD. The
long work is `copying`: a generator that yields calls for any thread, and goes on with what they return.

A copy never overtakes a truncation. The truncation gives the segment another state before it cuts and removes what the
copy has written; the copy compares the state on the log's own thread before each step and before it gives the `.log`
its name.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from controller.storage.batches import BatchHeader, Bytes, whole_bytes
from controller.storage.devices import FileChange
from controller.storage.disk import File, Health, NotCached, is_shortage, on_disk, waiting
from controller.storage.errors import DeviceUnavailable, LogOffline, OutOfResources, StorageError
from controller.storage.log import PartitionLog
from controller.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Removal,
    Segment,
    index_of,
    segment_path,
)
from controller.storage.tiers import COPYING, INDEX_SUFFIXES, HddStore, LogTiers, Unavailable, move
from controller.storage.transactions import TXN_INDEX_SUFFIX
from statemachines.log_segment import ON_SSD, SegmentState
from statemachines.tier_placement import Tier, append_tier

PIECE_BYTES = 256 * 1024
ANSWERED_MS = 200
"""How long a device that has answered counts as one that does not hang."""

TierSteps: TypeAlias = Generator[Callable[[], Any], Any, bool]
"""Calls for any thread; returns whether the copy was carried out. They are resumed with a call's result, or with its
exception."""


class TieredLog(PartitionLog):
    """`tiers` is never None. See PartitionLog."""

    __slots__ = ("tiers", "unavailable")
    tiers: LogTiers
    unavailable: Unavailable | None

    def _require_answer(self, what: str) -> None:
        """Before a change of files, which is made on the log's own thread, since tiers are that thread's. Where that
        must not wait, the device has just answered a job."""
        if self._disk.no_wait and not 0 <= self._now_ms() - self.tiers.answered_ms < ANSWERED_MS:
            raise NotCached(self._device, self._ask, 0, what)

    def _ask(self, at_least: int = 0) -> None:
        self._disk.ask(self._device)
        self.tiers.answered_ms = self._now_ms()

    def _carry_out(self, change: FileChange) -> None:
        self._require_answer(change.what)
        with waiting(self._disk):
            change()
            change.take()

    def let_go(self, high_watermark: int) -> tuple[int, Removal | None]:
        if self._let_go or self.deletable(high_watermark):
            self._require_answer(f"removal of segments of {self.directory}")
        return super().let_go(high_watermark)

    @property
    def _appends_to_ssd(self) -> bool:
        is_on_hdd = self._held is not None and self._active.is_on_hdd  # a log without a file gets it on the SSD
        return self.tiers.leaves(is_on_hdd=is_on_hdd) is is_on_hdd

    def _admitted(self, view: memoryview) -> int:
        """What fits on the SSD, at least one batch: it may never have room for all that was fetched at once."""
        whole = super()._admitted(view)
        if not self._appends_to_ssd:
            return whole
        return min(whole_bytes(view[: max(self.tiers.ssd.free_bytes, 0)]), whole) or whole

    def _append(self, data: Bytes, headers: list[BatchHeader], now_ms: int, rest: Bytes = b"") -> bool:
        ssd, size_bytes, is_counted = self.tiers.ssd, len(data) + len(rest), self._appends_to_ssd
        if is_counted:
            ssd.take(size_bytes)
        try:
            must_flush = super()._append(data, headers, now_ms, rest)
        except NotCached:
            ssd.used_bytes -= size_bytes if is_counted else 0  # it comes again
            raise
        if not (is_counted or self._active.is_on_hdd):
            ssd.used_bytes += size_bytes  # the segment on the HDD was full, and no HDD answers
        return must_flush

    def place(self, *, is_leader: bool) -> None:
        self.tiers.append_to = append_tier(is_leader, self.settings.followers_on)

    def _begin(self, base_offset: int, now_ms: int) -> Segment:
        tiers = self.tiers
        store = tiers.open_store() if tiers.append_to is Tier.HDD else None
        if store is None:
            return super()._begin(base_offset, now_ms)
        directory = store.directory(self.directory)
        segment = Segment(store.disk, directory, base_offset, self.settings.index_interval_bytes, now_ms)
        segment.store, segment.state = store, SegmentState.ActiveOnHdd
        # A start without this HDD must know that the log goes on there. One with it seeks the file: that is first.
        store.disk.sync_names(directory)
        tiers.require(base_offset, store)
        return segment

    def _roll(self, base_offset: int) -> None:
        sealed = self._active
        self.tiers.touched(sealed)  # its indexes get their names
        super()._roll(base_offset)
        if sealed.size_bytes:
            move(sealed, SegmentState.WithoutCache if sealed.is_on_hdd else SegmentState.OnlyCache)

    def _sync_names(self) -> None:
        self.tiers.touched(self._active)
        super()._sync_names()

    def _remove(self, segment: Segment) -> None:
        """At the log's end. An HDD that fails meanwhile must not bring it back."""
        store = segment.store
        try:
            self._remove_files(segment)
        except LogOffline:
            if store is None or store.is_online:
                raise
        if store is not None and not store.is_online:
            self.tiers.truncating(segment.base_offset)

    def _remove_files(self, segment: Segment) -> None:
        if segment.is_on_hdd and not segment.size_bytes:
            # The one on the SSD that takes its place may have its name, and no other. That is to be there first.
            self._disk.sync_names(self.directory)
        self.tiers.remove(segment)

    def _removal(self, segments: Sequence[Segment]) -> Removal:
        """At once: the tiers are the log's thread's."""
        self._sync_names()
        for segment in segments:
            self._remove_files(segment)
            self._sync_names()
        self._let_go = None
        return Removal(self._disk, self.directory, ())

    def _before_cut(self, end: int) -> None:
        self.tiers.truncating(max(end, 0))
        if end >= 0:
            self.tiers.reopen(self._segments[index_of(self._segments, end)])

    # The tiers

    @property
    def segments(self) -> list[Segment]:
        """From the oldest to the active one; not to be changed. Empty for a log without records."""
        return self._held or []

    @property
    def home_bytes(self) -> int:
        return self.ssd_bytes()

    def bytes_on_hdd(self, path: str) -> int:
        """Of the segments' records on the HDD with this log directory, copies included."""
        there = (SegmentState.Cached, SegmentState.WithoutCache, SegmentState.ActiveOnHdd)
        segments = [one for one in self._held or () if one.state in there]
        return sum(one.size_bytes for one in segments if one.store is not None and one.store.path == path)

    def ssd_bytes(self) -> int:
        """Of the segments' records on the SSD."""
        return sum(one.size_bytes for one in self._held or () if one.state in ON_SSD)

    def source(self, segment: Segment, suffix: str) -> File | None:
        """One of the files of a segment on the SSD, to be copied; None if it has none of that kind."""
        if suffix == LOG_SUFFIX:
            return segment.file
        try:
            self._disk.modified_ms(segment.path_of(suffix))  # `open` would make one
        except FileNotFoundError:
            return None
        return self._disk.open(segment.path_of(suffix))

    @on_disk
    def flush_sealed(self) -> None:
        """Make every segment but the active one durable, and move the recovery point to their end."""
        begin = self._active.base_offset
        if self.recovery_point >= begin:
            return
        for segment in self._segments[:-1]:
            if segment.next_offset > self.recovery_point:
                segment.sync(sealed=True)
        self._sync_names()
        self._write_epochs()
        self.recovery_point = max(self.recovery_point, begin)

    @on_disk
    def begin_copy(self, segment: Segment) -> HddStore | None:
        """Make a sealed segment ready to be copied: durable on the SSD, in state Copying. The HDD; None if the segment
        is not OnlyCache, if no HDD is online, or while the log is cleaned, which replaces its segments."""
        if segment.state is not SegmentState.OnlyCache or self.is_being_cleaned:
            return None
        self.tiers.remove_replaced()
        self.flush_sealed()
        segment.write_indexes()
        store = self.tiers.open_store()
        if store is not None:
            segment.store = store
            move(segment, SegmentState.Copying)
        return store

    @on_disk
    def evict(self, segment: Segment) -> bool:
        """Take a copied segment off the SSD: its place is noted durably, and from there it is read.

        False if the segment is not Cached, if its HDD is offline or hangs, or while the log is cleaned.
        """
        store = segment.store
        if segment.state is not SegmentState.Cached or store is None or self.is_being_cleaned:
            return False
        if not store.is_usable:
            return False
        directory = store.directory(self.directory)
        file = store.disk.open(segment_path(directory, segment.base_offset, LOG_SUFFIX))
        if file.size() != segment.size_bytes:
            self.tiers.drop_copy(segment)
            move(segment, SegmentState.OnlyCache)
            return False
        # Before the SSD's files go: a start without the HDD knows then that a part is missing. On the log's own
        # thread, since the checkpoint changes with truncations and deletions.
        self.tiers.require(segment.base_offset, store)
        segment.move_to(store, directory, file)
        move(segment, SegmentState.WithoutCache)
        for suffix in EVICTED:
            self._disk.remove(segment_path(self.directory, segment.base_offset, suffix))
            if suffix == LOG_SUFFIX:
                # If it came back without its index of aborted transactions, their records would count as committed.
                self._disk.sync_names(self.directory)
        return True

    def hdd_lost(self, store: HddStore) -> bool:
        """The HDD went offline: what it alone had can't be read any more. False if that leaves a hole, has taken the
        active segment, or a part of a compacted log, each record of which counts: such a log must not be served, and is
        offline from here on."""
        if self._held is None:
            return True
        with suppress(LogOffline, OutOfResources):
            self.end_cleaning()
        lost = [one for one in self._held if one.store is store and one.is_on_hdd]
        for segment in self._held:
            if segment.store is store and not segment.is_on_hdd:
                segment.store = None
                if segment.state in (SegmentState.Cached, SegmentState.Copying):
                    move(segment, SegmentState.OnlyCache)
        if not lost:
            return True
        for segment in lost:
            move(segment, SegmentState.Lost)
        if lost != self._held[: len(lost)] or len(lost) == len(self._held) or self.settings.compacted:
            self.health = Health(self.directory)
            self.health.fail(OSError(errno.EIO, f"the HDD {store.path}, which has a part of the log, is lost"))
            return False
        first = self.unavailable.first_offset if self.unavailable is not None else lost[0].base_offset
        del self._held[: len(lost)]
        self.unavailable = Unavailable(max(first, self.log_start_offset), self._held[0].base_offset, store.path)
        return True

    def abandon(self) -> None:
        for segment in self._held or ():
            move(segment, SegmentState.Deleting)
        super().abandon()


class _Cancelled(Exception):
    """The segment was truncated or deleted while it was copied."""


class _SourceFailed(Exception):
    """The SSD, not the HDD."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def copying(log: TieredLog, segment: Segment) -> TierSteps:
    """Copy a sealed segment to an HDD: records, indexes and producer snapshot, in pieces of `PIECE_BYTES`.

    The order makes a crash at any step harmless. What the SSD has is durable first; the copy is written under other
    names and synced; its indexes get their names, and these are synced; then the `.log` gets its name, which is synced.
    Only then is the segment Cached. Raises LogOffline, of the SSD's log directory or of the HDD's, and OutOfResources;
    nothing of an unfinished copy is left then, if the HDD allows.
    """
    store = log.begin_copy(segment)
    if store is None:
        return False
    try:
        yield from _copy(log, segment, store)
    except _SourceFailed as failed:
        is_wanted = _is_copied_to(segment, store)
        _give_up(log, segment, store)
        if not is_wanted:
            return False  # it was cut or removed while it was read
        if is_shortage(failed.error):
            raise OutOfResources(log.directory, failed.error) from failed
        raise log.health.fail(failed.error) from failed
    except (_Cancelled, OSError, StorageError) as error:
        is_wanted = _is_copied_to(segment, store)
        _give_up(log, segment, store, answers=not isinstance(error, DeviceUnavailable))
        if not is_wanted or isinstance(error, _Cancelled):
            return False  # with the directory its files may be gone, too
        if isinstance(error, OSError):
            raise store.failure(error) from error
        raise
    return True


def _is_copied_to(segment: Segment, store: HddStore) -> bool:
    return segment.state is SegmentState.Copying and segment.store is store


def _go_on(segment: Segment, store: HddStore) -> None:
    if not _is_copied_to(segment, store):
        raise _Cancelled


def _give_up(log: TieredLog, segment: Segment, store: HddStore, *, answers: bool = True) -> None:
    """Remove what was written, if the HDD `answers`: otherwise the next copy or start does it. Of a segment that is not
    to be copied any more that is the unfinished copy alone: what has the segment's names may be another one's."""
    is_wanted = _is_copied_to(segment, store)
    if is_wanted:
        segment.store = None
        move(segment, SegmentState.OnlyCache)
    if answers and store.is_online and log.health.cause is None:
        try:
            log.tiers.remove_files(store, segment.base_offset, unfinished_only=not is_wanted)
        except (LogOffline, OutOfResources):
            return  # the next start removes them


def _copy(log: TieredLog, segment: Segment, store: HddStore) -> Generator[Callable[[], Any], Any, None]:
    directory = store.directory(log.directory)
    written: list[str] = []
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
        source = log.source(segment, suffix)
        if source is None:
            continue
        path = segment_path(directory, segment.base_offset, suffix)
        target = store.raw.open(path + COPYING)
        target.truncate(0)
        yield from _copy_file(source, target, lambda: _go_on(segment, store))
        yield target.sync
        target.close()
        _go_on(segment, store)
        written.append(path)
    for path in written[1:]:
        store.raw.rename(path + COPYING, path)
    yield partial(store.raw.sync_names, directory)
    _go_on(segment, store)
    # Between the check and the name nothing else runs: from here on a truncation removes the copy under its own name.
    store.raw.rename(written[0] + COPYING, written[0])
    yield partial(store.raw.sync_names, directory)
    _go_on(segment, store)
    move(segment, SegmentState.Cached)


def _copy_file(source: File, target: File, go_on: Callable[[], None]) -> Generator[Callable[[], Any], Any, None]:
    size, position = source.size(), 0
    while position < size:
        length = min(PIECE_BYTES, size - position)
        yield partial(_copy_piece, source, target, position, length)
        go_on()
        position += length


def _copy_piece(source: File, target: File, position: int, length: int) -> int:
    try:
        data = source.read_at(position, length)
    except OSError as error:
        raise _SourceFailed(error) from error
    if len(data) != length:
        raise _SourceFailed(OSError(errno.EIO, f"{length} bytes expected at {position} of a segment, got {len(data)}"))
    target.append(data)
    return length


EVICTED = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
"""Of the files of an evicted segment. Its producer snapshot, which is small, stays with the log's checkpoints: a
truncation begins from it."""
