"""A partition's log: segments one after another, an end at which batches are appended, a start that retention moves.

Plain synchronous code over a `Disk`; one caller at a time. The high watermark is the caller's: what is committed is a
matter of replication, not of files. What `append_*` returned is in the file but, before `flush`, not on the disk:
durability is the replicas', as in Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from controller.storage.batches import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Bytes,
    headers_of,
    place,
    set_max_timestamp,
    stamp,
    whole_bytes,
)
from controller.storage.checkpoints import LEADER_EPOCHS, EpochEnd, LeaderEpochs, encode_epochs
from controller.storage.compaction_rules import NEVER_CLEANED, CompactionState, UnderWay
from controller.storage.devices import FileChange, NotDone
from controller.storage.disk import ANY_DEVICE, Device, Disk, FileRange, Health, on_disk, or_offline, state_of, waiting
from controller.storage.errors import BadBatches, OffsetOutOfRange, OffsetsOutOfOrder
from controller.storage.log_validator import Checked, checking, done
from controller.storage.lookups import TimedBatch, batch_for_time
from controller.storage.producer_states import (
    ProducerStates,
    note_batch,
    require_allowed,
    restore,
    snapshot_offsets,
    take_snapshot,
)
from controller.storage.recovery import LogCheckpoint, open_files
from controller.storage.segment import (
    SNAPSHOT_SUFFIX,
    Removal,
    Segment,
    deletable,
    index_of,
    range_from,
    rolls_before,
    segment_path,
)
from controller.storage.settings import LogSettings
from controller.storage.tiers import LogTiers, Unavailable
from controller.storage.transactions import AbortedRange, Origin, aborted_between, markers_in

P = ParamSpec("P")
T = TypeVar("T")


class Appended(msgspec.Struct, frozen=True, gc=False):
    """`base_offset` to `last_offset` are the records'. `duplicate`: they were in the log before, and nothing was
    written. `log_append_time_ms` is -1 where the records keep their own time. `must_flush`: a flush that the settings
    ask for is left to the caller, which must not wait for the disk."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = NO_TIMESTAMP
    size_bytes: int = 0
    duplicate: bool = False
    must_flush: bool = False


NO_EPOCHS = LeaderEpochs()
"""Of every log that has none: nothing but a new epoch makes them others."""


def _do_nothing(*_: int) -> None:
    pass


class PartitionLog:
    """Opens `directory`, which exists, and recovers it; CorruptLog and OSError are raised as LogOffline.

    `now_ms` returns wall time. `keep_recovery_point` must have written `recovery_point` durably when it returns: it is
    called before a truncation below it. `settings` may be replaced at any time. `producers_added` is called with the
    number of producer ids that are new in this log; those known when it was opened do not count. `flush_soon` is called
    when a log is to be flushed by rate, and returns False if the log must do it itself, now.
    """

    __slots__ = (
        "_began_ms",
        "_change",
        "_compaction",
        "_device",
        "_disk",
        "_flush_soon",
        "_held",
        "_keep_recovery_point",
        "_kept",
        "_let_go",
        "_new_names",
        "_now_ms",
        "_producers",
        "_producers_added",
        "_unflushed_bytes",
        "cut_bytes",
        "directory",
        "epochs",
        "health",
        "last_flush_ms",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "settings",
        "topic_id",
    )
    tiers: LogTiers | None = None
    """Of a log on two tiers (`TieredLog`), which has a slot for it, as for `unavailable`; None for any other."""
    unavailable: Unavailable | None = None

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: LogSettings,
        now_ms: Callable[[], int],
        *,
        known: LogCheckpoint | None = None,
        health: Health | None = None,
        keep_recovery_point: Callable[[], None] | None = None,
        producers_added: Callable[[int], None] | None = None,
        tiers: LogTiers | None = None,
        flush_soon: Callable[[PartitionLog], bool] | None = None,
        device: Device = ANY_DEVICE,
    ) -> None:
        self.directory = directory
        self._device = device
        self._change: FileChange | None = None
        self._kept: FileChange | None = None
        self._flush_soon = flush_soon
        if tiers is not None:
            self.tiers = tiers  # type: ignore[misc]
        self._producers_added = producers_added or _do_nothing
        self.settings = settings
        self.health = health or Health(directory)
        self._disk = disk
        self._now_ms = now_ms
        self._let_go: list[Segment] | None = None
        self._keep_recovery_point = keep_recovery_point or _do_nothing
        self._compaction: CompactionState | None = None
        if known is not None and known.cleaned_to != NEVER_CLEANED:
            self._compaction = CompactionState(known.cleaned_to)
        self._open(known or LogCheckpoint())

    @on_disk
    def _open(self, known: LogCheckpoint) -> None:
        now_ms = self._now_ms()
        opened = open_files(self._disk, self.directory, self.settings, known, now_ms, self.health.warn, self.tiers)
        if self.tiers is not None:
            self.unavailable = opened.unavailable  # type: ignore[misc]
        self._held: list[Segment] | None = opened.segments
        """None while there is one without a batch, which is opened when something is done with it: of a broker's many
        logs most lie idle."""
        self._began_ms = now_ms
        self.epochs = opened.epochs if opened.epochs.entries() or opened.epochs.changed else NO_EPOCHS
        self._producers = opened.producers if len(opened.producers) else None
        self.topic_id = opened.topic_id
        self.log_start_offset = opened.log_start_offset
        self.cut_bytes = opened.cut_bytes
        """The number of bytes that recovery cut off, for the log."""
        self.log_end_offset = self._active.next_offset
        self.recovery_point = max(self.log_end_offset if not known.clean else known.recovery_point, 0)
        self.last_flush_ms = now_ms
        self._unflushed_bytes = 0
        self._new_names = False
        self._write_epochs()
        if self.is_bare and self._active.store is None:
            self._active.close()
            self._held = None

    @property
    def _segments(self) -> list[Segment]:
        if self._held is None:
            interval_bytes = self.settings.index_interval_bytes
            self._held = [Segment(self._disk, self.directory, self.log_end_offset, interval_bytes, self._began_ms)]
        return self._held

    @property
    def known_producers(self) -> ProducerStates | None:
        """None if none were asked for."""
        return self._producers

    @property
    def producers(self) -> ProducerStates:
        """Made when they are asked for: most logs are not written to."""
        if self._producers is None:
            self._producers = ProducerStates()
        return self._producers

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._held or ())

    @property
    def home_bytes(self) -> int:
        """In its own log directory."""
        return self.size_bytes

    @property
    def is_bare(self) -> bool:
        """One segment with nothing in it: there is nothing that retention could take."""
        return self._held is None or (len(self._held) == 1 and not self._held[0].size_bytes)

    @property
    def active_bytes(self) -> int:
        """Of the segment that is appended to."""
        return 0 if self._held is None else self._active.size_bytes

    @property
    def unflushed_bytes(self) -> int:
        return self._unflushed_bytes

    @property
    def segment_offsets(self) -> tuple[int, ...]:
        """The base offset of each segment."""
        if self._held is None:
            return (self.log_end_offset,)
        return tuple(segment.base_offset for segment in self._held)

    @property
    def segments(self) -> Sequence[Segment]:
        """For the log cleaner; the last is the active one."""
        return self._segments

    @property
    def cleaned_to(self) -> int:
        """Below it the log cleaner has been, and segments may have gaps; NEVER_CLEANED: it has not begun."""
        return NEVER_CLEANED if self._compaction is None else self._compaction.cleaned_to

    @property
    def is_being_cleaned(self) -> bool:
        return self._compaction is not None and self._compaction.under_way is not None

    def cleaning_begins(self, cleaning: UnderWay) -> None:
        """It is settled before what it reads is cut off or removed; until it ends, retention waits."""
        self._compaction = CompactionState(max(self.cleaned_to, 0), cleaning)

    def cleaning_ends(self, cleaned_to: int) -> None:
        self._compaction = CompactionState(min(cleaned_to, self.log_end_offset))

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """From now on `new` is read in place of `old`, which lie next to one another."""
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = [new]

    @on_disk
    def end_cleaning(self) -> None:
        """End a cleaning early that is under way."""
        self._settle_cleaning()

    def _settle_cleaning(self) -> None:
        compaction = self._compaction
        if compaction is not None and compaction.under_way is not None:
            self._compaction = CompactionState(compaction.cleaned_to)
            compaction.under_way.settle()

    @on_disk
    def segment_times(self) -> tuple[tuple[int, int], ...]:
        """The base offset of each segment, and its largest timestamp (when its file was changed, where no batch has
        one)."""
        return tuple((segment.base_offset, segment.latest_ms) for segment in self._segments)

    # Changes by jobs

    @on_disk
    def settle(self) -> None:
        """Take the result of a change that a job carries out. NotDone: it has not ended."""
        self._settle()

    def _settle(self, *, appends: bool = False) -> None:
        """Before another change; `appends`: before an append. Without `Disk.no_wait` it waits for the job."""
        change = self._change
        if change is None or (appends and change.appends and not change.ended):
            return
        if not change.ended and self._disk.no_wait:
            raise NotDone(self._device, change, self.directory)
        change()
        while not change.ended:
            self._disk.give_way()
        self._change = None
        change.take()

    def _carry_out(self, change: FileChange) -> None:
        """Here, or in a job: then NotDone, and it is done when that is settled."""
        if self._disk.no_wait:
            self._change = change
            raise NotDone(self._device, change, self.directory)
        change()
        change.take()

    def _require_open(self, *, appends: bool = False) -> None:
        """See `_held`. An append opens the file itself unless the device is slow: acks=0 clients may close after it."""
        if self._held is None and self._disk.no_wait and (not appends or state_of(self._device).overdue):
            self._settle()
            self._carry_out(FileChange(lambda: self._segments, _do_nothing, f"opening of {self.directory}"))

    # Appending

    @on_disk
    def append_as_leader(self, batches: Bytes, leader_epoch: int) -> Appended:
        """`checking` and `append_checked` in one."""
        return self.append_checked(done(self.checking(batches)), leader_epoch)

    def checking(self, batches: Bytes, origin: Origin = Origin.CLIENT) -> Generator[int, None, Checked]:
        """See `log_validator.checking`; with this log's settings, and without a look at what it holds."""
        return checking(batches, self.settings, self._now_ms(), origin)

    @on_disk
    def append_checked(self, checked: Checked, leader_epoch: int, origin: Origin = Origin.CLIENT) -> Appended:
        """Give the batches the next offsets and this epoch, and write them with one write.

        The buffer is left alone: what is changed is copied. A batch that an idempotent producer sent before is answered
        with its first offsets.

        Raises:
            SequenceOutOfOrder, ProducerFenced, InvalidTransactionState, CoordinatorFenced: nothing has changed.
        """
        batches, headers, latest = checked
        now_ms = self._now_ms()
        if any(header.producer_id >= 0 for header in headers):
            known = require_allowed(self.producers, headers, markers_in(batches, headers), origin)
            if known is not None:
                must_flush = self.log_end_offset - self.recovery_point >= self.settings.flush_messages
                return Appended(known.base_offset, known.last_offset, duplicate=True, must_flush=must_flush)
        keeps_time = not self.settings.log_append_time and headers[0].max_timestamp_ms == latest[0]
        copies_header = len(headers) == 1 and keeps_time and not headers[0].is_control  # and no more, as a rule
        end = HEADER_BYTES if copies_header else len(batches)
        data, rest = bytearray(batches[:end]), memoryview(batches)[end:]
        placed: list[BatchHeader] = []
        position, offset = 0, self.log_end_offset
        for header, latest_ms in zip(headers, latest, strict=True):
            header = place(data, position, header, offset, leader_epoch)
            if self.settings.log_append_time:
                header = stamp(data, position, header, now_ms)
            elif header.max_timestamp_ms != latest_ms:
                header = set_max_timestamp(data, position, header, latest_ms)  # as Kafka's leader does
            placed.append(header)
            position, offset = position + header.size_bytes, header.next_offset
        must_flush = self._append(data, placed, now_ms, rest)
        stamped_ms = now_ms if self.settings.log_append_time else NO_TIMESTAMP
        return Appended(placed[0].base_offset, offset - 1, stamped_ms, position, must_flush=must_flush)

    @on_disk
    def append_as_follower(self, batches: Bytes) -> Appended:
        """Appends what a leader's log holds from this log's end on, with its offsets and epochs.

        What follows the last whole batch is left alone, since an answer to a fetch may end anywhere, and what an SSD
        has no room for. Raises CorruptBatch, OffsetsOutOfOrder, and BadBatches if not one batch is whole.
        """
        with memoryview(batches) as view, view[: self._admitted(view)] as data:
            headers = headers_of(data)
            if not headers:
                raise BadBatches(0, f"{len(view)} bytes without a whole batch")
            is_empty = self.log_start_offset == self.log_end_offset
            if is_empty and headers[0].base_offset < self.log_end_offset <= headers[0].last_offset:
                # Records were deleted up to an offset within a batch, and a leader sends batches whole.
                self.restart_at(headers[0].base_offset)
            position, expected = 0, self.log_end_offset
            for header in headers:
                if header.base_offset < expected:
                    raise OffsetsOutOfOrder(position, f"base offset {header.base_offset}, expected {expected} or more")
                position, expected = position + header.size_bytes, header.next_offset
            must_flush = self._append(data, headers, self._now_ms())
        return Appended(headers[0].base_offset, expected - 1, size_bytes=position, must_flush=must_flush)

    def _admitted(self, view: memoryview) -> int:
        """How many bytes of what a leader sent are appended: whole batches."""
        return whole_bytes(view)

    def _append(self, data: Bytes, headers: list[BatchHeader], now_ms: int, rest: Bytes = b"") -> bool:
        """Append `data`, and `rest` after it, with one write. Returns whether the caller must flush."""
        size_bytes = len(data) + len(rest)
        if self._change is not None:
            self._settle(appends=True)
        if self._held is None:
            self._require_open(appends=True)
        settings = self.settings
        active = self._active
        reason = rolls_before(active, headers, size_bytes, settings, now_ms, self.directory)
        if reason is not None or (self.tiers is not None and self.tiers.leaves(is_on_hdd=active.is_on_hdd)):
            self._settle()
            self._roll(headers[0].base_offset)
            active = self._active
        active.begin_append(now_ms, may_wait=not self._disk.no_wait)
        active.append(data, headers, rest)
        latest = self.epochs.latest
        markers = markers_in(data, headers) if len(headers) > 1 or headers[0].producer_id >= 0 else ()
        for index, header in enumerate(headers):
            if header.leader_epoch != latest:
                self._assign(header.leader_epoch, header.base_offset)
                latest = header.leader_epoch
            if header.producer_id >= 0:
                is_new = note_batch(self.producers, header, markers[index], now_ms, active)
                self.producers.keep_newest(self.settings.producer_ids_max)
                if is_new:
                    self._producers_added(1)
        self.log_end_offset = headers[-1].next_offset
        self._unflushed_bytes += size_bytes
        if self.has_unflushed_records or (
            self._unflushed_bytes >= settings.flush_bytes_per_second
            and not (self._flush_soon is not None and self._flush_soon(self))
        ):
            if self._disk.no_wait:
                return True
            self.flush()
        return False

    @on_disk
    def roll(self) -> None:
        """Begins a new segment at the log's end, unless the last one is empty."""
        self._settle()
        if self._active.size_bytes:
            self._roll(self.log_end_offset)

    def _roll(self, base_offset: int) -> None:
        self.producers.expire(self._now_ms(), self.settings.producer_id_expiration_ms)
        if self._active.size_bytes:
            self._active.end()
        then = partial(take_snapshot, self._disk, self.directory, base_offset, self.producers, soon=True)
        self._carry_out(FileChange(partial(self._roll_files, base_offset), then, f"roll of {self.directory}"))

    def _roll_files(self, base_offset: int) -> None:
        sealed = self._active
        if sealed.size_bytes:
            sealed.save_indexes()
            if self.recovery_point >= self.log_end_offset:
                # Once there is a later segment, no flush and no recovery looks at this one's indexes again.
                sealed.sync(sealed=True)
                self._sync_names()
        # Opened before the empty one goes: without a descriptor for it the log stays as it was.
        begun = self._begin(base_offset, self._now_ms())
        self._new_names = True
        if sealed.size_bytes:
            self._segments.append(begun)
        else:
            self._segments[-1] = begun
            if begun.path != sealed.path:  # it may have had to begin where it was
                self._remove(sealed)

    # What a log on two tiers does otherwise

    def _begin(self, base_offset: int, now_ms: int) -> Segment:
        return Segment(self._disk, self.directory, base_offset, self.settings.index_interval_bytes, now_ms)

    def _remove(self, segment: Segment) -> None:
        segment.remove()

    def place(self, *, is_leader: bool) -> None:
        """What is appended next, as a leader or a follower, begins on the tier for that."""

    def _before_cut(self, end: int) -> None:
        """The recovery point is below `end`, and nothing is cut yet."""

    # Flushing

    @property
    def has_unflushed_records(self) -> bool:
        """As many as flush.messages says, or more."""
        return self.log_end_offset - self.recovery_point >= self.settings.flush_messages

    @on_disk
    def flush(self, up_to: int | None = None) -> None:
        """All that was appended is on the disk when it returns, and `recovery_point` is the log's end. Nothing is done
        if it is at `up_to` already.

        The order matters: the recovery point says that what lies below it can't have been torn.
        """
        self._settle()
        if up_to is not None and self.recovery_point >= up_to:
            return
        end, size_bytes, segments = self.log_end_offset, self._unflushed_bytes, []
        if self.recovery_point < end or self._new_names:
            segments = self._segments[index_of(self._segments, self.recovery_point) :]
        call, then = partial(self._flush_files, segments), partial(self._flushed, end, size_bytes)
        self._carry_out(FileChange(call, then, f"flush of {self.directory}", appends=True))

    def _flush_files(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.sync(sealed=segment is not segments[-1])
        if self._new_names:
            self._sync_names()
        self._write_epochs()

    def _flushed(self, end: int, size_bytes: int) -> None:
        self.recovery_point = end
        self._unflushed_bytes -= size_bytes
        self.last_flush_ms = self._now_ms()

    def _sync_names(self) -> None:
        self._disk.sync_names(self.directory)
        if self.tiers is not None:
            self.tiers.sync_names()
        self._new_names = False

    def _write_epochs(self) -> None:
        if self.epochs.changed:
            self.epochs.changed = False  # first: an append may change it while a job writes
            self._disk.replace(f"{self.directory}/{LEADER_EPOCHS}", encode_epochs(self.epochs.entries()))

    @on_disk
    def close(self) -> None:
        """Flushes, writes indexes and a producer snapshot, and closes the files. A range read before can't be read
        any more."""
        self._settle_cleaning()
        self.flush()
        self._active.seal()
        self._active.sync(sealed=True)
        self._disk.settle_derived(self.directory)
        take_snapshot(self._disk, self.directory, self.log_end_offset, self.producers)
        self._sync_names()
        for segment in self._segments:
            segment.save_indexes()
            segment.close()

    def abandon(self) -> None:
        """The partition is being deleted: lets go of the files as they are. LogOffline from here on."""
        self._held, self._compaction = [], None
        self._disk.settle_derived(self.directory)
        self.health = Health(self.directory)
        self.health.fail(FileNotFoundError(f"{self.directory} is deleted"))

    # Reading

    @on_disk
    def read(
        self, offset: int, max_bytes: int, up_to: int | None = None, *, whole_first_batch: bool = True
    ) -> FileRange:
        """Where the batches from the one that holds `offset` on lie: at most `max_bytes` of them, all below the
        offset `up_to` (the log's end by default), from one segment. Length 0 when there are none.

        Kafka's rules for what a consumer must cope with: the first batch may begin before `offset`;
        `whole_first_batch` lets a first batch that is larger than `max_bytes` through whole, otherwise it is cut short.
        A later batch that would be cut short is left out, which Kafka sends as far as it may: no reader can use it.
        Raises OffsetOutOfRange.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
        limit = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
        if self.unavailable is not None:
            self.unavailable.check(offset)
        self._require_open()
        if limit <= offset:
            return FileRange(self._active.file.held(), 0, 0)
        return range_from(self._segments, offset, max_bytes, limit, whole_first_batch, self._now_ms())

    def read_cached(
        self, offset: int, max_bytes: int, up_to: int | None = None, *, whole_first_batch: bool = True
    ) -> FileRange:
        """As `read`, for a caller that must not wait for the disk, neither now nor when it sends the range. Raises
        NotCached: when its `read_in` has returned, the same call is likely to succeed."""
        self._disk.no_wait = True
        try:
            found = self.read(offset, max_bytes, up_to, whole_first_batch=whole_first_batch)
        finally:
            self._disk.no_wait = False
        if found.length and not found.is_recent:
            found.file.require_cached(found.position, found.length)
        return found

    def attempt(self, may_wait: bool, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `call` does. Unless it `may_wait`, raises NotCached where it would wait for the disk."""
        self._disk.no_wait = not may_wait
        try:
            return call(*args, **kwargs)
        finally:
            self._disk.no_wait = False

    @on_disk
    def batch_for_timestamp(self, timestamp_ms: int, from_offset: int = 0) -> TimedBatch | None:
        """Return the first batch from `from_offset` on that may have a record of this time or later, or None. Its
        `find`, which may take long, determines whether it has one."""
        first = max(from_offset, self.log_start_offset)
        if self.unavailable is not None:
            self.unavailable.check(first)
        return batch_for_time(self._segments, timestamp_ms, first)

    # Transactions

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """See ProducerStates.first_unstable_offset; not below the log's start."""
        first = None if self._producers is None else self._producers.first_unstable_offset(high_watermark)
        return None if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction has ended, and its end is replicated."""
        first = None if self._producers is None else self.first_unstable_offset(high_watermark)
        return high_watermark if first is None else min(first, high_watermark)

    def segment_end(self, offset: int) -> int:
        """Where the segment that holds `offset` ends: a read goes no further."""
        following = bisect_right(self.segment_offsets, offset)
        return self.segment_offsets[following] if following < len(self.segment_offsets) else self.log_end_offset

    def may_have_aborted(self, offset: int) -> bool:
        """Whether `aborted_transactions` from this offset on may find any; the disk is not asked."""
        return any(not one.aborted.is_empty for one in self._segments[index_of(self._segments, offset) :])

    @on_disk
    def aborted_transactions(self, offset: int, up_to: int) -> list[AbortedRange]:
        """The aborted transactions that have records from `offset` up to below `up_to`."""
        later = self._segments[index_of(self._segments, offset) :]
        return aborted_between((segment.aborted for segment in later), offset, up_to)

    # Leader epochs

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A leader's first word in an epoch, before it has appended anything in it."""
        if epoch != self.epochs.latest:
            self._assign(epoch, start_offset)

    def _assign(self, epoch: int, start_offset: int) -> None:
        if self.epochs is NO_EPOCHS:
            self.epochs = LeaderEpochs()
        self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The answer to OffsetForLeaderEpoch."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # Truncating

    def _keep_before_cut(self, end: int) -> None:
        """What a truncation to `end` cuts must not count as flushed any more, durably: a recovery point above the new
        end would make the next torn tail look like a loss. Where the caller must not wait, a job writes that, which
        shows that the device answers, too."""
        self._settle()
        lowered = end < self.recovery_point
        self.recovery_point = min(end, self.recovery_point)
        kept, self._kept = self._kept, None
        if kept is not None and kept.is_done and not lowered:
            kept.take()
        elif self._disk.no_wait:
            self._kept = FileChange(self._keep_recovery_point, _do_nothing, f"truncation of {self.directory}")
            raise NotDone(self._device, self._kept, self.directory)
        elif lowered or kept is not None:
            self._keep_recovery_point()

    def _truncated_end(self, offset: int) -> int:
        """Where the log would end after `truncate_to(offset)`: a batch goes whole, so perhaps before `offset`."""
        if offset >= self.log_end_offset or offset <= self.segment_offsets[0]:
            return min(offset, self.log_end_offset)
        segment = self._segments[index_of(self._segments, offset)]
        for _, header in segment.headers_from(offset):
            return min(offset, header.base_offset)
        return offset

    @on_disk
    @or_offline
    def truncate_to(self, offset: int) -> bool:
        """Cuts off what is at `offset` and after, and the batch that `offset` lies within. True if anything was.

        When it returns the cut is on the disk: what was cut can't come back with a crash.
        """
        self._settle()
        if offset >= self.log_end_offset:
            # An epoch in which this log was a leader's and appended nothing starts at the end, and the next leader does
            # not have it. If it were kept, each answer would make the follower truncate at its end, for ever.
            self.epochs.truncate_from_end(self.log_end_offset)
            if self.epochs.changed:
                self._carry_out(FileChange(self._write_epochs, _do_nothing, f"leader epochs of {self.directory}"))
            return False
        if offset < self.segment_offsets[0]:
            self.restart_at(offset)
            return True
        self._keep_before_cut(self._truncated_end(offset))
        with waiting(self._disk):
            self._settle_cleaning()
            end = self._truncated_end(offset)
            self._keep_before_cut(end)  # the cleaning may have removed the batch that began there
            self._before_cut(end)
            while len(self._segments) > 1 and self._active.base_offset > end:
                self._remove(self._segments.pop())
            self._active.cut(self._active.position_of(end), end)
            self._after_cut(end)
        return True

    @on_disk
    @or_offline
    def restart_at(self, offset: int) -> None:
        """Lets everything go and begins again, empty, at `offset`: the leader has nothing as old as this log's end."""
        self._keep_before_cut(0)
        with waiting(self._disk):
            self._settle_cleaning()
            now_ms = self._now_ms()
            self._before_cut(-1)
            while self._segments:
                self._remove(self._segments.pop())
            self._held = [self._begin(offset, now_ms)]
            self.log_start_offset = offset
            self.epochs.clear()
            for found in snapshot_offsets(self._disk.names(self.directory)):
                self._disk.remove(segment_path(self.directory, found, SNAPSHOT_SUFFIX))
            self._after_cut(offset)

    def _after_cut(self, end: int) -> None:
        self._disk.settle_derived(self.directory)  # what was cut off must not come back with a snapshot
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        if self._compaction is not None:
            self._compaction = CompactionState(min(self.cleaned_to, end))
        self.epochs.truncate_from_end(end)
        snapshots = snapshot_offsets(self._disk.names(self.directory))
        self._producers = restore(self._disk, self.directory, snapshots, self._segments, end)
        self._producers_added(len(self._producers))
        self._write_epochs()
        self._sync_names()

    # Deleting

    @on_disk
    def delete_records_before(self, offset: int, high_watermark: int) -> bool:
        """DeleteRecords, and a follower's way to its leader's log start: readers begin at `offset` from now on. The
        files go with `apply_retention`. True if the start moved. Raises OffsetOutOfRange above the high watermark."""
        if offset > min(high_watermark, self.log_end_offset):
            raise OffsetOutOfRange(offset, self.log_start_offset, high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    @on_disk
    @or_offline
    def apply_retention(self, high_watermark: int) -> int:
        """`let_go`, and the removal of what it let go. How many segments."""
        count, removal = self.let_go(high_watermark)
        if removal is not None:
            removal()
            self._new_names = False  # the removal has synced them, and nothing was made meanwhile
            self.removed(removal)
        return count

    @on_disk
    def deletable(self, high_watermark: int) -> int:
        """How many segments the settings let go now, the oldest first. It may load their indexes."""
        return deletable(self._segments, self.log_start_offset, high_watermark, self.settings, self._now_ms())

    @on_disk
    @or_offline
    def let_go(self, high_watermark: int) -> tuple[int, Removal | None]:
        """Forget the segments that the settings let go, the oldest first, and producers, too. How many, and what
        removes their files, on any thread, before anything else is made in the log directory. `removed` takes it when
        that is done; if it was not, it is the next one's to do: a gap must not be left."""
        self._settle()
        now_ms = self._now_ms()
        if self._producers is not None:
            self._producers.expire(now_ms, self.settings.producer_id_expiration_ms)
        if self.is_being_cleaned:
            return 0, self._removal(self._let_go) if self._let_go else None
        count = self.deletable(high_watermark)
        if count == len(self._segments):
            self._roll(self.log_end_offset)
        if count:
            going = self._segments[:count]
            del self._segments[:count]
            self._let_go = [*(self._let_go or ()), *going]
            first = self._segments[0].base_offset
            self.log_start_offset = max(self.log_start_offset, first)
            self.recovery_point = max(self.recovery_point, first)
            self.epochs.truncate_from_start(self.log_start_offset)
        elif len(self._segments) > 1:
            self._segments[0].unload()
        return count, self._removal(self._let_go) if self._let_go else None

    def _removal(self, segments: Sequence[Segment]) -> Removal:
        return Removal(self._disk, self.directory, tuple(segments), self._new_names)

    @property
    def has_files_to_remove(self) -> bool:
        """Whether segments were let go whose removal was not done."""
        return bool(self._let_go)

    def removed(self, removal: Removal) -> None:
        """The files are off the disk."""
        self._let_go = [one for one in self._let_go or () if one not in removal.segments] or None

    @on_disk
    @or_offline
    def not_removed(self, error: OSError) -> None:
        """Take the directory offline, by what a removal raised."""
        raise error
