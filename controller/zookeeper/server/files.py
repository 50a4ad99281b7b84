"""The data directory of a ZooKeeper server: its lock, and the calls that make files and names durable."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_LOCK_NAME: Final = "lock"


class DataDirectoryInUse(Exception):
    """Another server, of this process or another one, has the data directory."""


class AppendedFile:
    """A file that is written at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FLAGS, 0o644)

    def append(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError, and part of it may have been written."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def sync(self) -> None:
        """Put the file's bytes and length on the disk. Raises OSError, after which the content is unknown."""
        _sync_data(self._fd)

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
        self._lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | _FLAGS, 0o644)
        if not _try_lock(self._lock):
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
        fd = os.open(self.path / name, os.O_RDWR | _FLAGS)
        try:
            os.ftruncate(fd, size)
            _sync_data(fd)
        finally:
            os.close(fd)

    def rename(self, name: str, new_name: str) -> None:
        (self.path / name).replace(self.path / new_name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        """Make the names of created, renamed and removed files durable. Windows has no call for it."""
        if sys.platform == "win32":
            return
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Release the directory for another server. May be called again."""
        fd, self._lock = self._lock, -1
        if fd != -1:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    """Lock an open file until it is closed; return False if it is locked through another descriptor."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _sync_data(fd: int) -> None:
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # its fsync leaves the bytes in the drive's cache
            return
        except OSError:  # a file system without it
            pass
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)
