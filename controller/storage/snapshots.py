"""Producer states on disk: written when a segment begins and when a log is closed, read and caught up when it is
opened or truncated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.storage.disk import Disk
from controller.storage.errors import CorruptLog
from controller.storage.producers import ProducerStates
from controller.storage.segment import SNAPSHOT_SUFFIX, Segment, base_offset_of, segment_path


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Of what is in a log's directory. Ascending."""
    return sorted([offset for name in names if (offset := base_offset_of(name, SNAPSHOT_SUFFIX)) is not None])


def take_snapshot(disk: Disk, directory: str, offset: int, producers: ProducerStates, *, soon: bool = False) -> None:
    """Write the producer states as of log end offset `offset`. The file is not synced: its CRC shows whether it is
    complete. With `soon`, it may be encoded and written after this returns; if that fails, there is no snapshot."""
    path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
    if soon:
        disk.replace_derived(path, producers.encoder())
    else:
        disk.replace(path, producers.encode(), durable=False)


def restore(
    disk: Disk, directory: str, snapshots: Sequence[int], segments: Sequence[Segment], log_end_offset: int
) -> ProducerStates:
    """The states at the log's end: from the newest of the `snapshots` that can be read, and the headers after it.
    Those that are beyond the end, or can't be read, are removed."""
    states, offset = ProducerStates(), 0
    for found in reversed(snapshots):
        path = segment_path(directory, found, SNAPSHOT_SUFFIX)
        if found > log_end_offset:
            disk.remove(path)
            continue
        try:
            states, offset = ProducerStates.decode(path, disk.read(path)), found
            break
        except CorruptLog:  # of a derived file: what it held is in the log
            disk.remove(path)
    for segment in segments:
        if segment.next_offset > offset and segment.size_bytes:
            for _, header in segment.headers_from(offset):
                states.update(header)
    return states
