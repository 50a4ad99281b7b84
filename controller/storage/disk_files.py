"""The machine's own file system, as storage asks for it. The only file of this room that imports `os`, and so one that
the broker's core must not import: a host makes a `FileDisk` and hands it in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

from controller.storage.batches import Bytes
from controller.storage.disk_closing import Closing
from controller.storage.disk_later import Later
from controller.storage.errors import AlreadyLocked
from controller.storage.health import is_shortage


class OpenFile:
    """`closing` closes what nobody refers to any more; at once, if not given."""

    __slots__ = ("_closing", "_fd", "path")

    def __init__(self, path: str, closing: Closing | None = None) -> None:
        self._fd = -1
        self._closing = closing
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, data: Bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):
            size = self.size() - written
            try:
                with memoryview(data) as rest:
                    while written < len(data):
                        written += os.write(self._fd, rest[written:])
            except OSError:
                os.ftruncate(self._fd, size)  # the caller may go on, and what is appended next begins here
                raise

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def __del__(self) -> None:
        # A removed segment's file is closed here, once the last range that was read from it is gone: closed earlier,
        # its descriptor could be another file's by the time sendfile comes to it.
        if self._closing is None:
            self.close()
            return
        fd, self._fd = self._fd, -1
        if fd != -1:
            self._closing.close(fd)


class _HeldLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)


class FileDisk:
    def __init__(self) -> None:
        self._later = Later(self._replace)
        self._closing = Closing(os.close)

    def open(self, path: str) -> OpenFile:
        return OpenFile(path, self._closing)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        self._later.settle(path)
        self._replace(path, data, durable)

    def replace_soon(self, path: str, data: bytes) -> None:
        self._later.put(path, data)

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
        try:
            if os.path.isdir(path):
                os.rmdir(path)
                return
            # Held until its name is gone, so that not the unlink but the last close gives the blocks back.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            if not is_shortage(error):
                raise
            os.unlink(path)  # needs no descriptor, and a removal is often one step of several
            return
        self._closing.begin()
        try:
            os.unlink(path)
        finally:
            self._closing.close(fd)

    def names(self, directory: str) -> Sequence[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def sync_names(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

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
