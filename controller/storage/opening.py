"""Opening a partition's directory: which files are its segments, what a crash left of them, and where the log ends.

After a clean shutdown only the end is looked at, and whether the segments join. After a crash every batch from the
recovery point's segment on is read and checked, the torn end is cut off, and all that is kept is synced. Damage below
the recovery point is no crash's doing, and raises CorruptLog: to cut there would be to lose what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from controller.quick import quick
from controller.storage.checkpoints import (
    LEADER_EPOCHS,
    NO_TOPIC_ID,
    PARTITION_METADATA,
    decode_epochs,
    decode_topic_id,
)
from controller.storage.disk import Disk
from controller.storage.epochs import LeaderEpochs
from controller.storage.errors import CorruptBatch, CorruptLog
from controller.storage.joins import Joins, check_joins
from controller.storage.producers import ProducerStates
from controller.storage.rules import Verdict, verdict_on
from controller.storage.scan import headers_between
from controller.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, base_offset_of
from controller.storage.settings import LogSettings
from controller.storage.snapshots import restore, snapshot_offsets
from controller.storage.swaps import CLEANED, SWAP, complete_swaps


@dataclass(frozen=True, slots=True)
class Known:
    """What the log directory's checkpoints say of a log."""

    recovery_point: int = 0
    """Everything below was synced."""
    log_start_offset: int = 0
    clean: bool = False
    """The last process closed the log, and nothing can be torn."""
    is_new: bool = False
    """The directory was made just now, with others, and the caller syncs all of them together."""


quick(Known)


NEW = Known(is_new=True)
FEW_NAMES = 8
"""A directory with more files has names that no other has."""


@dataclass(frozen=True, slots=True)
class Opened:
    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    topic_id: bytes
    log_start_offset: int
    cut_bytes: int
    """What was torn, and is no more; 0 after a clean shutdown."""


quick(Opened)


def _ignore(_warning: str) -> None:
    pass


def open_files(
    disk: Disk,
    directory: str,
    settings: LogSettings,
    known: Known,
    now_ms: int,
    warn: Callable[[str], None] = _ignore,
) -> Opened:
    """Raises CorruptLog and OSError. `warn` is called with what was repaired or left alone."""
    names = disk.names(directory)
    found = _files_of(names)
    if found.of_the_cleaner and complete_swaps(disk, directory, names, warn):
        names = disk.names(directory)
        found = _files_of(names)
    for name in found.strange:
        warn(f"{directory}/{name}: not the name of a segment, left alone")
    segments = _segments(disk, directory, found, settings, now_ms)
    epochs = _epochs(disk, directory, names, segments, known, warn)
    cut_bytes = 0
    # One empty segment that begins where all was synced, as most of a broker's logs: there is nothing that a crash
    # could have done to it.
    is_bare = len(segments) == 1 and not segments[0].size_bytes and segments[0].base_offset == known.recovery_point
    if segments and not is_bare:
        cut_bytes = _settle(disk, directory, names, segments, epochs, known)
    elif not segments and known.recovery_point > known.log_start_offset:
        raise CorruptLog(directory, 0, f"no segment, though offsets up to {known.recovery_point} were flushed")
    if segments and known.log_start_offset > segments[-1].next_offset:
        begin, end, start = segments[0].base_offset, segments[-1].next_offset, known.log_start_offset
        wrong = f"{directory}: the log start offset {start} is above the log's end {end}"
        if known.clean:  # nothing was lost, so the checkpoint is wrong
            warn(f"{wrong}, and is ignored")
            known = replace(known, log_start_offset=0)
        else:
            # Records were deleted by request up to an offset whose records a crash took.
            warn(f"{wrong}; the offsets {begin} to {end} are removed, and the log begins at {start}")
            _remove(segments)
            segments = []
    if not segments:
        segments = [Segment(disk, directory, known.log_start_offset, settings.index_interval_bytes, now_ms)]
        if not known.is_new:
            disk.sync_names(directory)
    log_end_offset = segments[-1].next_offset
    epochs.truncate_from_end(log_end_offset)
    log_start_offset = max(known.log_start_offset, segments[0].base_offset)
    if known.clean and epochs.entries() and epochs.entries()[0].start_offset < segments[0].base_offset:
        # What retention deletes it takes out of the epochs too.
        begin, end = epochs.entries()[0].start_offset, segments[0].base_offset
        warn(f"{directory}: the segments with offsets {begin} to {end} are missing; the log begins at {end}")
    epochs.truncate_from_start(log_start_offset)
    if tuple(one.base_offset for one in segments) != found.bases:
        names = disk.names(directory)  # snapshots were removed with their segments
    snapshots = snapshot_offsets(names) if found.snapshots else []
    if is_bare and not snapshots:
        producers = ProducerStates()
    else:
        producers = restore(disk, directory, snapshots, segments, log_end_offset)
    topic_id = _topic_id(disk, directory) if PARTITION_METADATA in names else NO_TOPIC_ID
    return Opened(segments, epochs, producers, topic_id, log_start_offset, cut_bytes)


@dataclass(frozen=True, slots=True)
class _Files:
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


_DERIVED = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_LEFT_OVER = (".tmp", ".deleted")


def _settle(
    disk: Disk, directory: str, names: Sequence[str], segments: list[Segment], epochs: LeaderEpochs, known: Known
) -> int:
    """Makes `segments` those that are kept, with their ends known. How many bytes were cut off."""
    joins = Joins(tuple(segments))
    if known.clean:
        cut_bytes = 0
        check_joins(disk, directory, names, segments, len(segments), joins)
        segments[-1].find_end()
    else:
        first = _first_to_recover(segments, known.recovery_point)
        check_joins(disk, directory, names, segments[: first + 1], first, joins)
        cut_bytes = _recover(disk, directory, segments, first, epochs, known.recovery_point, joins)
    last = segments[-1]
    if verdict_on(last.next_offset, False, known.recovery_point) is Verdict.LOST:
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
            continue
        position = segment.size_bytes if damage is None else damage.position
        reason = f"the next segment begins at {after[0].base_offset}" if damage is None else damage.reason
        if verdict_on(segment.next_offset, True, recovery_point) is Verdict.LOST:
            raise CorruptLog(segment.path, position, f"{reason} (flushed up to offset {recovery_point})")
        cut_bytes = segment.size_bytes - position + sum(one.size_bytes for one in segments[index + 1 :])
        _remove(segments[index + 1 :])
        del segments[index + 1 :]
        segment.cut(position, segment.next_offset)
        break
    epochs.truncate_from_end(segments[-1].next_offset)
    for segment in segments[first:]:
        _assign_epochs(segment, epochs)
    if segments[-1].next_offset > recovery_point or cut_bytes:
        for segment in segments[first:]:
            segment.sync(sealed=segment is not segments[-1])
        disk.sync_names(directory)
    return cut_bytes


def _assign_epochs(segment: Segment, epochs: LeaderEpochs) -> None:
    """The checkpoint may not have the epochs of what was appended since it was written."""
    try:
        for _, header in headers_between(segment.file, 0, segment.size_bytes):
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
    except CorruptBatch:
        return  # judged by the recovery, or met by a reader


def _remove(segments: Sequence[Segment]) -> None:
    """The newest first, so that what a crash leaves is a log without a gap."""
    for segment in reversed(segments):
        segment.remove()


def _epochs(
    disk: Disk,
    directory: str,
    names: Sequence[str],
    segments: Sequence[Segment],
    known: Known,
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
