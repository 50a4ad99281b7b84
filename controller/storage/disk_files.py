"""The machine's own file system, as storage asks for it. The broker's core must not import it, since it imports `os`: a
host makes a `FileDisk` and hands it in."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Callable, Sequence

from controller.storage.disk_closing import Closing
from controller.storage.disk_descriptors import CachedFile, Descriptors
from controller.storage.disk_later import Later
from controller.storage.errors import AlreadyLocked
from controller.storage.health import is_shortage

SYNC_TOGETHER_FROM = 8
"""Directories from which on their whole file system is synced, where the system has a call for that."""
_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class _HeldLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)


OPEN_FILES_SHARE = 6
"""The default share of the process's descriptors, one in so many, for log files that no connection sends from."""
OPEN_FILES_MIN = 16


def open_files_default() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft // OPEN_FILES_SHARE, OPEN_FILES_MIN) if soft != resource.RLIM_INFINITY else 1 << 16


class FileDisk:
    """The files of the operating system. `open_files_max` limits the descriptors of files that no connection sends
    from; see `disk_descriptors.py`."""

    def __init__(self, open_files_max: int | None = None) -> None:
        self._later: Later[bytes] = Later(self._replace)
        self._derived: Later[Callable[[], bytes]] = Later(self._derive)
        self._closing = Closing(os.close)
        self.descriptors = Descriptors(
            open_files_default() if open_files_max is None else open_files_max, self._closing
        )

    def open(self, path: str) -> CachedFile:
        return CachedFile(path, self.descriptors)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        self._later.settle(path)
        self._derived.settle(path)
        self._replace(path, data, durable)

    def replace_soon(self, path: str, data: bytes) -> None:
        self._later.put(path, data)

    def replace_derived(self, path: str, content: Callable[[], bytes]) -> None:
        self._derived.put(path, content)

    def settle_derived(self, directory: str) -> None:
        self._derived.settle_below(directory)

    def _derive(self, path: str, content: Callable[[], bytes]) -> None:
        try:
            self._replace(path, content(), durable=False)
        except OSError as error:
            if is_shortage(error):
                raise  # it is tried again

    def _replace(self, path: str, data: bytes, durable: bool = True) -> None:
        beside = path + ".tmp"
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fdatasync(file.fileno())
        os.replace(beside, path)
        if durable:
            self.sync_names(os.path.dirname(path))

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def remove(self, path: str) -> None:
        self._derived.settle(path)
        try:
            if os.path.isdir(path):
                os.rmdir(path)
                return
            # Kept open until its name is removed, so that the last close frees the blocks, and not the unlink.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        except OSError as error:
            if not is_shortage(error) and error.errno != errno.ELOOP:
                raise
            # Needs no descriptor, and a removal is often one step of several. A link is removed, wherever it leads.
            os.unlink(path)
            return
        self._closing.begin()
        try:
            os.unlink(path)
        finally:
            self._closing.close(fd)

    def names(self, directory: str) -> Sequence[str]:
        return sorted(os.listdir(directory))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def sync_names(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, directories: Sequence[str]) -> None:
        if len(directories) >= SYNC_TOGETHER_FROM and _syncfs is not None:
            # All of the file system at once: each sync by itself waits for the journal.
            fd = os.open(directories[0], os.O_RDONLY | os.O_DIRECTORY)
            try:
                if _syncfs(fd):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), directories[0])
            finally:
                os.close(fd)
            return
        for directory in directories:
            for name in os.listdir(directory):
                fd = os.open(f"{directory}/{name}", os.O_RDONLY)
                try:
                    os.fdatasync(fd)
                finally:
                    os.close(fd)
            self.sync_names(directory)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> _HeldLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise AlreadyLocked(f"{path}: another process has this log directory") from None
        return _HeldLock(fd)
