"""The disks of in-process brokers: in memory, where faults can be injected, or a directory of the machine."""

from __future__ import annotations

import errno
from pathlib import Path

from controller.machine.disk import SimulatedDisk
from controller.storage.disk import Disk


class InProcessDisk(SimulatedDisk):
    """`full`: every change fails with ENOSPC."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def touch(self, path: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().touch(path)


def directory_disk(directory: Path) -> Disk:
    """Return the machine's file system; the directory is made."""
    from controller.storage.disk_files import FileDisk

    directory.mkdir(parents=True, exist_ok=True)
    return FileDisk()


def stop_disk(disk: Disk) -> None:
    """End the threads of a disk that has some."""
    stop = getattr(disk, "stop", None)
    if stop is not None:
        stop()
