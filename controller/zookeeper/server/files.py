"""The data directory of a ZooKeeper server: its lock, and the calls that make files and names durable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from controller.system import OPEN_FLAGS, sync_data, sync_directory, try_lock

_LOCK_NAME: Final = "lock"


class DataDirectoryInUse(Exception):
    """Another server, of this process or another one, has the data directory."""


class AppendedFile:
    """A file that is written at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | OPEN_FLAGS, 0o644)

    def append(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError, and part of it may have been written."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def sync(self) -> None:
        """Put the file's bytes and length on the disk. Raises OSError, after which the content is unknown."""
        sync_data(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class DataDirectory:
    """The files of one server. Only one `DataDirectory` of a path is open at a time, on the whole machine.

    Raises OSError if the directory can't be made or opened, and DataDirectoryInUse.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o644)
        if not try_lock(self._lock):
            os.close(self._lock)
            raise DataDirectoryInUse(f"{path}: another ZooKeeper server uses this data directory")

    def open(self, name: str) -> AppendedFile:
        """Open a file to append to, and create it if it is not there; `sync_names` makes its name durable."""
        return AppendedFile(self.path / name)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def truncate(self, name: str, size: int) -> None:
        """Cut a file to `size` bytes, durably."""
        fd = os.open(self.path / name, os.O_RDWR | OPEN_FLAGS)
        try:
            os.ftruncate(fd, size)
            sync_data(fd)
        finally:
            os.close(fd)

    def rename(self, name: str, new_name: str) -> None:
        (self.path / name).replace(self.path / new_name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        """Make the names of created, renamed and removed files durable."""
        sync_directory(self.path)

    def close(self) -> None:
        """Release the directory for another server. May be called again."""
        fd, self._lock = self._lock, -1
        if fd != -1:
            os.close(fd)
