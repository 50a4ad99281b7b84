"""What Kafka's log cleaner leaves in a directory when its broker ends while segments are replaced.

`.cleaned` files are unfinished. A `.log.swap` file is finished and takes the place of the segments whose offsets it
covers, some of which may be `.deleted` already: without it their records are lost. Rules: Kafka 2.8's
Log.removeTempFilesAndCollectSwapFiles and completeSwapOperations (KAFKA-6264).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.storage.batches import BatchHeader
from controller.storage.disk import Disk
from controller.storage.errors import CorruptLog
from controller.storage.scan import check_batches
from controller.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, base_offset_of, segment_path

SWAP, CLEANED = ".swap", ".cleaned"


def complete_swaps(disk: Disk, directory: str, names: Sequence[str], warn: Callable[[str], None]) -> bool:
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
            _complete(disk, directory, base, names)
            warn(f"{directory}/{name}: an interrupted replacement of segments by the log cleaner was completed")
    for name in cleaned:
        disk.remove(f"{directory}/{name}")
    disk.sync_names(directory)
    return True


def _base(name: str, suffix: str) -> int | None:
    """The base offset of a `.log.swap` or `.log.cleaned`; None for an index's."""
    return base_offset_of(name.removesuffix(suffix), LOG_SUFFIX)


def _complete(disk: Disk, directory: str, base: int, names: Sequence[str]) -> None:
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
    covered = [one for name in names if (one := base_offset_of(name, LOG_SUFFIX)) is not None and base < one < end]
    for one in covered:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            disk.remove(segment_path(directory, one, suffix))
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.remove(segment_path(directory, base, suffix))
    disk.rename(path + SWAP, path)
