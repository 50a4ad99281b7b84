"""Opening a partition's directory: which files are its segments, what a crash left of them, and where the log ends.

After a clean shutdown only the end is checked, and whether the segments join. After a crash every batch from the
recovery point's segment on is read and checked, the torn end is cut off, and all that is kept is synced. Damage below
the recovery point is not caused by a crash and raises CorruptLog: to cut there would lose acknowledged records.

Sealed segments join if each begins with the batch that its name says and ends where the next begins. A segment that was
deleted, cut short, renamed or copied by hand would otherwise be served with a gap, or twice. Only a segment's first
batch and what follows its last index entry are read. Gaps are accepted where the batches show that Kafka's cleaner has
compacted the log.

Files of an interrupted log cleaner: `.cleaned` files are unfinished. A `.log.swap` file is finished and replaces the
segments whose offsets it covers, some of which may be `.deleted` already: without it their records are lost. Rules:
Kafka 2.8's Log.removeTempFilesAndCollectSwapFiles, completeSwapOperations (KAFKA-6264) and recoverLog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise

import msgspec

from controller.storage.batches import HEADER_BYTES, BatchHeader, header_at, headers_of
from controller.storage.checkpoints import (
    LEADER_EPOCHS,
    NO_TOPIC_ID,
    PARTITION_METADATA,
    LeaderEpochs,
    decode_epochs,
    decode_topic_id,
)
from controller.storage.disk import Disk
from controller.storage.errors import CorruptBatch, CorruptLog
from controller.storage.producer_states import ProducerStates, restore, snapshot_offsets
from controller.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    BatchDamage,
    Segment,
    base_offset_of,
    check_batches,
    headers_between,
    segment_path,
)
from controller.storage.settings import LogSettings
from controller.storage.sparse_index import OFFSET_ENTRY
from controller.storage.tiers import LogTiers, Unavailable, add_tiers
from controller.storage.transactions import TXN_INDEX_SUFFIX


class RecoveryVerdict(Enum):
    SOUND = "nothing to be done"
    CUT = "the end was never flushed: a crash tore it, and it is cut off"
    LOST = "what was flushed is damaged or gone"


def verdict_on(sound_until: int, damaged: bool, recovery_point: int) -> RecoveryVerdict:
    """On a log whose batches are sound up to the offset `sound_until`, and go on no further or are damaged there.

    Everything below `recovery_point` was synced. A crash cannot tear it, so to cut it off would silently lose
    acknowledged records; Kafka's recovery does not make the difference.
    """
    if sound_until < recovery_point:
        return RecoveryVerdict.LOST
    return RecoveryVerdict.CUT if damaged else RecoveryVerdict.SOUND


class LogCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """What the log directory's checkpoints say of a log."""

    recovery_point: int = 0
    """Everything below was synced."""
    log_start_offset: int = 0
    clean: bool = False
    """The last process closed the log, and nothing can be torn."""
    cleaned_to: int = -1
    """Up to which offset the log cleaner has cleaned the log; -1: it never began to."""
    is_new: bool = False
    """The directory was made just now, with others, and the caller syncs all of them together."""


NEW = LogCheckpoint(is_new=True)
FEW_NAMES = 8
"""A directory with more files has names that no other has."""


class Opened(msgspec.Struct, frozen=True):
    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    topic_id: bytes
    log_start_offset: int
    cut_bytes: int
    """What was torn, and is no more; 0 after a clean shutdown."""
    unavailable: Unavailable | None = None


def _ignore(_warning: str) -> None:
    pass


def open_files(
    disk: Disk,
    directory: str,
    settings: LogSettings,
    known: LogCheckpoint,
    now_ms: int,
    warn: Callable[[str], None] = _ignore,
    tiers: LogTiers | None = None,
) -> Opened:
    """Raises CorruptLog and OSError, and LogOffline if an HDD that is not there has the log's middle or its end.
    `warn` is called with what was repaired or left alone."""
    names = disk.names(directory)
    found = _files_of(names)
    if found.of_the_cleaner and complete_swaps(disk, directory, names, warn, tiers):
        names = disk.names(directory)
        found = _files_of(names)
    for name in found.strange:
        warn(f"{directory}/{name}: not the name of a segment, left alone")
    segments = _segments(disk, directory, found, settings, now_ms)
    unavailable = None
    if tiers is not None:
        unavailable = add_tiers(segments, tiers, settings, known.log_start_offset, now_ms, warn)
    epochs = _epochs(disk, directory, names, segments, known, warn)
    cut_bytes = 0
    unsound_from = None
    if segments and not known.clean:
        unsound_from = segments[_first_to_recover(segments, known.recovery_point)].base_offset
    # One empty segment that begins where all was synced, as most of a broker's logs: there is nothing that a crash
    # could have done to it.
    is_bare = len(segments) == 1 and not segments[0].size_bytes and segments[0].base_offset == known.recovery_point
    if segments and not is_bare:
        cut_bytes = _settle(disk, directory, names, segments, epochs, known, tiers)
    elif not segments and known.recovery_point > known.log_start_offset:
        raise CorruptLog(directory, 0, f"no segment, though offsets up to {known.recovery_point} were flushed")
    if segments and known.log_start_offset > segments[-1].next_offset:
        begin, end, start = segments[0].base_offset, segments[-1].next_offset, known.log_start_offset
        wrong = f"{directory}: the log start offset {start} is above the log's end {end}"
        if known.clean:  # nothing was lost, so the checkpoint is wrong
            warn(f"{wrong}, and is ignored")
            known = msgspec.structs.replace(known, log_start_offset=0)
        else:
            # Records were deleted by request up to an offset whose records a crash took.
            warn(f"{wrong}; the offsets {begin} to {end} are removed, and the log begins at {start}")
            _remove(segments, tiers)
            segments = []
    if not segments:
        segments = [Segment(disk, directory, known.log_start_offset, settings.index_interval_bytes, now_ms)]
        if not known.is_new:
            disk.sync_names(directory)
    if tiers is not None:
        tiers.reopen(segments[-1])
    log_end_offset = segments[-1].next_offset
    epochs.truncate_from_end(log_end_offset)
    first_offset = segments[0].base_offset if unavailable is None else unavailable.first_offset
    log_start_offset = max(known.log_start_offset, first_offset)
    if known.clean and epochs.entries() and epochs.entries()[0].start_offset < first_offset:
        # What retention deletes it takes out of the epochs too.
        begin, end = epochs.entries()[0].start_offset, first_offset
        warn(f"{directory}: the segments with offsets {begin} to {end} are missing; the log begins at {end}")
    epochs.truncate_from_start(log_start_offset)
    if tiers is not None or tuple(one.base_offset for one in segments) != found.bases:
        names = disk.names(directory)  # snapshots were removed with their segments
    snapshots = snapshot_offsets(names) if found.snapshots else []
    if is_bare and not snapshots:
        producers = ProducerStates()
    else:
        producers = restore(disk, directory, snapshots, segments, log_end_offset, unsound_from)
        if unsound_from is not None:
            _sync_aborted(disk, directory, [one for one in segments[:-1] if one.base_offset >= unsound_from])
    topic_id = _topic_id(disk, directory) if PARTITION_METADATA in names else NO_TOPIC_ID
    return Opened(segments, epochs, producers, topic_id, log_start_offset, cut_bytes, unavailable)


class _Files(msgspec.Struct, frozen=True):
    """What a directory's files are by their names: segments, by base offset; what is of no segment that is there, or
    was left over; whether there are snapshots, or files of the log cleaner's; `.log` files of another name than a
    segment's."""

    bases: tuple[int, ...]
    useless: tuple[str, ...]
    snapshots: bool
    of_the_cleaner: bool
    strange: tuple[str, ...]


def _files(names: tuple[str, ...]) -> _Files:
    bases = tuple(sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None))
    stems = {f"{base:020d}" for base in bases}
    useless = [
        name
        for name in names
        if name.endswith(_LEFT_OVER) or (name.endswith(_DERIVED) and name.rpartition(".")[0] not in stems)
    ]
    strange = [name for name in names if name.endswith(LOG_SUFFIX) and base_offset_of(name, LOG_SUFFIX) is None]
    of_the_cleaner = any(name.endswith((SWAP, CLEANED)) for name in names)
    return _Files(bases, tuple(useless), bool(snapshot_offsets(names)), of_the_cleaner, tuple(strange))


_few_files = lru_cache(maxsize=256)(_files)
"""Most of a broker's logs have the same few names."""


def _files_of(names: Sequence[str]) -> _Files:
    return _few_files(tuple(names)) if len(names) <= FEW_NAMES else _files(tuple(names))


def _segments(disk: Disk, directory: str, files: _Files, settings: LogSettings, now_ms: int) -> list[Segment]:
    for name in files.useless:
        disk.remove(f"{directory}/{name}")
    segments = [Segment(disk, directory, base, settings.index_interval_bytes, now_ms) for base in files.bases]
    for segment, after in pairwise(segments):
        segment.next_offset = after.base_offset
    return segments


_DERIVED = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_LEFT_OVER = (".tmp", ".deleted")


def _settle(
    disk: Disk,
    directory: str,
    names: Sequence[str],
    segments: list[Segment],
    epochs: LeaderEpochs,
    known: LogCheckpoint,
    tiers: LogTiers | None,
) -> int:
    """Makes `segments` those that are kept, with their ends known. How many bytes were cut off."""
    joins = Joins(tuple(segments), known)
    if known.clean:
        cut_bytes = 0
        check_joins(names, segments, len(segments), joins)
        segments[-1].find_end()
    else:
        first = _first_to_recover(segments, known.recovery_point)
        check_joins(names, segments[: first + 1], first, joins)
        cut_bytes = _recover(disk, directory, segments, first, epochs, known.recovery_point, joins, tiers)
    last = segments[-1]
    if verdict_on(last.next_offset, False, known.recovery_point) is RecoveryVerdict.LOST:
        reason = f"the log ends at offset {last.next_offset}, though offsets up to {known.recovery_point} were flushed"
        raise CorruptLog(last.path, last.size_bytes, reason)
    return cut_bytes


def _first_to_recover(segments: Sequence[Segment], recovery_point: int) -> int:
    """The index of the segment that the recovery point lies in."""
    return max((index for index, one in enumerate(segments) if one.base_offset <= recovery_point), default=0)


def _recover(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    first: int,
    epochs: LeaderEpochs,
    recovery_point: int,
    joins: Joins,
    tiers: LogTiers | None,
) -> int:
    cut_bytes = 0
    for index in range(first, len(segments)):
        segment = segments[index]
        damage = segment.recover() if segment.size_bytes else None
        beginning = joins.wrong_beginning(segment)
        if beginning is not None or not segment.size_bytes:
            damage, segment.next_offset = beginning, segment.base_offset  # and not where the next begins
        after = segments[index + 1 : index + 2]
        if damage is None and (not after or joins.join(segment.next_offset, after[0])):
            if after:
                segment.next_offset = after[0].base_offset  # what was compacted away ends there too
            continue
        position = segment.size_bytes if damage is None else damage.position
        reason = f"the next segment begins at {after[0].base_offset}" if damage is None else damage.reason
        if verdict_on(segment.next_offset, True, recovery_point) is RecoveryVerdict.LOST:
            raise CorruptLog(segment.path, position, f"{reason} (flushed up to offset {recovery_point})")
        cut_bytes = segment.size_bytes - position + sum(one.size_bytes for one in segments[index + 1 :])
        _remove(segments[index + 1 :], tiers)
        del segments[index + 1 :]
        if tiers is not None:
            tiers.reopen(segment)
        segment.cut(position, segment.next_offset)
        break
    epochs.truncate_from_end(segments[-1].next_offset)
    for segment in segments[first:]:
        _assign_epochs(segment, epochs)
    if segments[-1].next_offset > recovery_point or cut_bytes:
        for segment in segments[first:]:
            segment.sync(sealed=segment is not segments[-1])
        disk.sync_names(directory)
        if tiers is not None:
            for segment in segments[first:]:
                tiers.touched(segment)
            tiers.sync_names()
    return cut_bytes


def _sync_aborted(disk: Disk, directory: str, segments: Sequence[Segment]) -> None:
    """The recovery point is the log's end from now on: after another crash these are not made again."""
    made = [one for one in segments if len(one.aborted)]
    for segment in made:
        segment.aborted.save()
        segment.aborted.sync()
    if made:
        disk.sync_names(directory)


def _assign_epochs(segment: Segment, epochs: LeaderEpochs) -> None:
    """The checkpoint may not have the epochs of what was appended since it was written."""
    try:
        for _, header in headers_between(segment.file, 0, segment.size_bytes):
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
    except CorruptBatch:
        return  # judged by the recovery, or met by a reader


def _remove(segments: Sequence[Segment], tiers: LogTiers | None) -> None:
    """The newest first, so that what a crash leaves is a log without a gap."""
    for segment in reversed(segments):
        if tiers is None:
            segment.remove()
        else:
            tiers.remove(segment)


def _epochs(
    disk: Disk,
    directory: str,
    names: Sequence[str],
    segments: Sequence[Segment],
    known: LogCheckpoint,
    warn: Callable[[str], None],
) -> LeaderEpochs:
    """As the checkpoint has them. Where it is damaged, or missing after a clean shutdown, they are read from the
    batches, of which each has the epoch of its leader; Kafka takes the log directory offline."""
    path = f"{directory}/{LEADER_EPOCHS}"
    if LEADER_EPOCHS in names:
        try:
            return LeaderEpochs(decode_epochs(path, disk.read(path)))
        except CorruptLog as error:
            warn(f"{error}; the leader epochs are read from the batches")
    elif not known.clean:
        return LeaderEpochs()  # there were none when the log was last flushed
    epochs = LeaderEpochs()
    for segment in segments:
        _assign_epochs(segment, epochs)
    if LEADER_EPOCHS not in names and epochs.entries():
        warn(f"{path} is missing; the leader epochs are read from the batches")
    return epochs


def _topic_id(disk: Disk, directory: str) -> bytes:
    path = f"{directory}/{PARTITION_METADATA}"
    return decode_topic_id(path, disk.read(path))


class Joins:
    """The segments of one log, in which compaction may have left gaps.

    Where the log cleaner's checkpoint names the log, gaps are accepted up to the offset that it names, and up to the
    recovery point if the batches show compaction: above both, a segment that is missing was taken by a crash. Where it
    does not, the batches alone say whether the log was compacted, which is looked up once."""

    def __init__(self, segments: Sequence[Segment], known: LogCheckpoint) -> None:
        self._segments = segments
        self._known = known
        self._compacted: bool | None = None

    @property
    def is_compacted(self) -> bool:
        if self._compacted is None:
            self._compacted = _is_compacted(self._segments)
        return self._compacted

    def wrong_beginning(self, segment: Segment) -> BatchDamage | None:
        """Damage if the segment's first batch is not the one that its name says."""
        if not segment.size_bytes:
            return None
        try:
            first = header_at(segment.file.read_at(0, HEADER_BYTES), 0, segment.size_bytes)
        except CorruptBatch as error:
            return BatchDamage(0, error.reason)
        if first.base_offset == segment.base_offset:
            return None
        if first.base_offset > segment.base_offset and (self._known.cleaned_to >= 0 or self.is_compacted):
            return None
        return BatchDamage(0, f"the first batch has base offset {first.base_offset}, expected {segment.base_offset}")

    def join(self, end: int, after: Segment) -> bool:
        """Whether `after` may follow a segment that ends at `end`."""
        begins = after.base_offset
        if end >= begins or begins <= self._known.cleaned_to:
            return end <= begins
        may_have_gaps = self._known.cleaned_to < 0 or begins <= self._known.recovery_point
        return may_have_gaps and self.is_compacted


def check_joins(names: Sequence[str], segments: Sequence[Segment], begun: int, joins: Joins) -> None:
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
        end = _end(present, segment)
        if not joins.join(end, after):
            reason = f"the segment ends at offset {end}, but the next one begins at {after.base_offset}"
            raise CorruptLog(segment.path, segment.size_bytes, reason)


def _end(present: frozenset[str], segment: Segment) -> int:
    """The offset after the segment's last batch; its base offset if it has none. Raises CorruptLog."""
    start = 0
    index_name = f"{segment.base_offset:020d}{INDEX_SUFFIX}"
    if index_name in present or segment.is_on_hdd:
        start = _last_indexed(segment)
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


def _last_indexed(segment: Segment) -> int:
    """Where the batch of the index's last entry begins; 0 if the index does not tell."""
    file = segment.disk.open(segment.path_of(INDEX_SUFFIX))
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


SWAP, CLEANED = ".swap", ".cleaned"


def complete_swaps(
    disk: Disk, directory: str, names: Sequence[str], warn: Callable[[str], None], tiers: LogTiers | None = None
) -> bool:
    """Puts each `.log.swap` in its place and removes what else the cleaner left. Whether anything was done. Raises
    CorruptLog, with the swap file left as it is."""
    swaps = [name for name in names if name.endswith(SWAP)]
    cleaned = [name for name in names if name.endswith(CLEANED)]
    if not swaps and not cleaned:
        return False
    unfinished = [base for name in cleaned if (base := _base(name, CLEANED)) is not None]
    for name in swaps:
        base = _base(name, SWAP)
        if base is None or (unfinished and base >= min(unfinished)):
            disk.remove(f"{directory}/{name}")  # an index, which is built again, or half of a split
        else:
            _complete(disk, directory, base, names, tiers)
            warn(f"{directory}/{name}: an interrupted replacement of segments by the log cleaner was completed")
    for name in cleaned:
        disk.remove(f"{directory}/{name}")
    disk.sync_names(directory)
    return True


def _base(name: str, suffix: str) -> int | None:
    """The base offset of a `.log.swap` or `.log.cleaned`; None for an index's."""
    return base_offset_of(name.removesuffix(suffix), LOG_SUFFIX)


def _complete(disk: Disk, directory: str, base: int, names: Sequence[str], tiers: LogTiers | None) -> None:
    path = segment_path(directory, base, LOG_SUFFIX)
    file, end = disk.open(path + SWAP), base
    try:

        def accept(_position: int, header: BatchHeader) -> None:
            nonlocal end
            end = header.next_offset

        damage = check_batches(file, base, accept)
    finally:
        file.close()
    if damage is not None:
        raise CorruptLog(path + SWAP, damage.position, damage.reason)
    if tiers is not None:
        tiers.replaced(base, end)
    covered = [one for name in names if (one := base_offset_of(name, LOG_SUFFIX)) is not None and base < one < end]
    for one in covered:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            disk.remove(segment_path(directory, one, suffix))
    # Without the index of aborted transactions: their records are gone, and so may be their markers.
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        disk.remove(segment_path(directory, base, suffix))
    disk.sync_names(directory)  # an index that is removed must not come back beside the new segment
    disk.rename(path + SWAP, path)
