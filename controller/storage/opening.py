"""Opening a partition's directory: which files are its segments, what a crash left of them, and where the log ends.

After a clean shutdown only the end is looked at. After a crash every batch from the recovery point's segment on is
read and checked, the torn end is cut off, and all that is kept is synced. Damage below the recovery point is no
crash's doing, and raises CorruptLog: to cut there would be to lose what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from controller.storage.epochs import EpochStart, LeaderEpochs
from controller.storage.errors import CorruptLog
from controller.storage.producers import ProducerStates
from controller.storage.rules import Verdict, verdict_on
from controller.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from controller.storage.settings import LogSettings
from controller.storage.snapshots import restore, snapshot_offsets


@dataclass(frozen=True, slots=True)
class Known:
    """What the log directory's checkpoints say of a log."""

    recovery_point: int = 0
    """Everything below was synced."""
    log_start_offset: int = 0
    clean: bool = False
    """The last process closed the log, and nothing can be torn."""


quick(Known)


NOTHING_KNOWN = Known()


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


def open_files(disk: Disk, directory: str, settings: LogSettings, known: Known, now_ms: int) -> Opened:
    """Raises CorruptLog and OSError."""
    names = disk.names(directory)
    found = _files(tuple(names))
    segments = _segments(disk, directory, found, settings, now_ms)
    epochs = LeaderEpochs(_epochs(disk, directory) if LEADER_EPOCHS in names else ())
    cut_bytes = 0
    # One empty segment that begins where all was synced, as most of a broker's logs: there is nothing that a crash
    # could have done to it.
    is_bare = len(segments) == 1 and not segments[0].size_bytes and segments[0].base_offset == known.recovery_point
    if segments and not is_bare:
        cut_bytes = _settle(disk, directory, segments, epochs, known)
    elif not segments and known.recovery_point > known.log_start_offset:
        raise CorruptLog(directory, 0, f"no segment, though offsets up to {known.recovery_point} were flushed")
    if not segments or known.log_start_offset > segments[-1].next_offset:
        # Records were deleted by request up to an offset whose records a crash took.
        _remove(segments)
        segments = [Segment(disk, directory, known.log_start_offset, settings.index_interval_bytes, now_ms)]
        disk.sync_names(directory)
    log_end_offset = segments[-1].next_offset
    epochs.truncate_from_end(log_end_offset)
    log_start_offset = max(known.log_start_offset, segments[0].base_offset)
    epochs.truncate_from_start(log_start_offset)
    snapshots = snapshot_offsets(disk.names(directory)) if found.snapshots else []  # a cut has removed some
    if is_bare and not snapshots:
        producers = ProducerStates()
    else:
        producers = restore(disk, directory, snapshots, segments, log_end_offset)
    topic_id = _topic_id(disk, directory) if PARTITION_METADATA in names else NO_TOPIC_ID
    return Opened(segments, epochs, producers, topic_id, log_start_offset, cut_bytes)


@dataclass(frozen=True, slots=True)
class _Files:
    """What a directory's files are by their names: segments, by base offset; what is of no segment that is there, or
    was left over; whether there are snapshots."""

    bases: tuple[int, ...]
    useless: tuple[str, ...]
    snapshots: bool


@lru_cache(maxsize=1_000)  # most of a broker's logs have files of the very same names
def _files(names: tuple[str, ...]) -> _Files:
    bases = tuple(sorted(int(name.removesuffix(LOG_SUFFIX)) for name in names if _is_segment(name)))
    stems = {f"{base:020d}" for base in bases}
    useless = [
        name
        for name in names
        if name.endswith(_LEFT_OVER) or (name.endswith(_DERIVED) and name.rpartition(".")[0] not in stems)
    ]
    return _Files(bases, tuple(useless), bool(snapshot_offsets(names)))


def _segments(disk: Disk, directory: str, files: _Files, settings: LogSettings, now_ms: int) -> list[Segment]:
    for name in files.useless:
        disk.remove(f"{directory}/{name}")
    segments = [Segment(disk, directory, base, settings.index_interval_bytes, now_ms) for base in files.bases]
    for segment, after in pairwise(segments):
        segment.next_offset = after.base_offset
    return segments


_DERIVED = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_LEFT_OVER = (".tmp", ".deleted")


def _is_segment(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdecimal()


def _settle(disk: Disk, directory: str, segments: list[Segment], epochs: LeaderEpochs, known: Known) -> int:
    """Makes `segments` those that are kept, with their ends known. How many bytes were cut off."""
    if known.clean:
        cut_bytes = 0
        segments[-1].find_end()
    else:
        cut_bytes = _recover(disk, directory, segments, epochs, known.recovery_point)
    last = segments[-1]
    if verdict_on(last.next_offset, False, known.recovery_point) is Verdict.LOST:
        reason = f"the log ends at offset {last.next_offset}, though offsets up to {known.recovery_point} were flushed"
        raise CorruptLog(last.path, last.size_bytes, reason)
    return cut_bytes


def _recover(disk: Disk, directory: str, segments: list[Segment], epochs: LeaderEpochs, recovery_point: int) -> int:
    first = 0
    if len(segments) > 1:
        first = max((index for index, one in enumerate(segments) if one.base_offset <= recovery_point), default=0)
    cut_bytes = 0
    for index in range(first, len(segments)):
        segment = segments[index]
        damage = segment.recover() if segment.size_bytes else None
        after = segments[index + 1 : index + 2]
        joins = not after or after[0].base_offset == segment.next_offset
        if damage is None and joins:
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
    if not segment.size_bytes:
        return
    for _, header in segment.headers_from(segment.base_offset):
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)


def _remove(segments: Sequence[Segment]) -> None:
    """The newest first, so that what a crash leaves is a log without a gap."""
    for segment in reversed(segments):
        segment.remove()


def _epochs(disk: Disk, directory: str) -> list[EpochStart]:
    path = f"{directory}/{LEADER_EPOCHS}"
    return decode_epochs(path, disk.read(path))


def _topic_id(disk: Disk, directory: str) -> bytes:
    path = f"{directory}/{PARTITION_METADATA}"
    return decode_topic_id(path, disk.read(path))
