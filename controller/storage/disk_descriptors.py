"""Files that have a descriptor only while they are used: of a broker's many segments most lie idle, and a process may
have a thousand descriptors for all of its files and connections.

`Descriptors` keeps the files used last open, up to a limit. A `CachedFile` that was closed by it is opened again when
it is needed. Who sends from a file holds its descriptor (`held`), so that it is not another file's by then; where too
many are held, it gets the cached file, which is opened again for each piece that is sent.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from itertools import count
from typing import TypeAlias

from controller.storage.batches import Bytes
from controller.storage.disk_closing import Closing

_numbers = count()
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class OpenFile:
    """One descriptor. `closing` closes it when no reference to it is left; without it, it is closed at once."""

    __slots__ = ("_closing", "_fd", "path")

    def __init__(self, path: str, closing: Closing | None = None, *, create: bool = True) -> None:
        self._fd = -1
        self._closing = closing
        self.path = path
        self._fd = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o644)

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

    def held(self) -> OpenFile:
        return self

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def __del__(self) -> None:
        # A removed segment's file is closed here, once the last range of it is released: if it were closed earlier, its
        # descriptor could be another file's by the time sendfile uses it.
        if self._closing is None:
            self.close()
            return
        fd, self._fd = self._fd, -1
        if fd != -1:
            self._closing.close(fd)


class _Counted(OpenFile):
    """Known to its `Descriptors` for as long as it is open, by whomever."""

    __slots__ = ("_live", "left_cache")

    def __init__(self, path: str, closing: Closing, create: bool, live: set[int]) -> None:
        self._live = live
        self.left_cache = False
        super().__init__(path, closing, create=create)
        live.add(id(self))

    def __del__(self) -> None:
        self._live.discard(id(self))
        if self.left_cache and self._fd != -1 and os.fstat(self._fd).st_nlink:
            self.close()  # at once: there are no blocks to give back
        super().__del__()


Identity: TypeAlias = tuple[int, int]
"""A file's device and inode."""


class Descriptors:
    """Descriptors of cached files: `limit` at most, besides those that are held. A file that is held may leave the
    cache; when a third of `limit` have, none is held any more. So there are 7/3 of `limit` at the worst.

    May be used by several threads. A finalizer may call `forget`, so nothing here takes a lock.
    """

    def __init__(self, limit: int, closing: Closing) -> None:
        self.limit = limit
        self._held_max = limit // 3
        self._closing = closing
        self._open: OrderedDict[int, _Counted] = OrderedDict()
        """By the number of the cached file, the one used last at the end."""
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def may_hold(self) -> bool:
        return len(self._live) - len(self._open) < self._held_max

    def find(self, number: int) -> OpenFile | None:
        found = self._open.get(number)
        if found is not None:
            try:  # noqa: SIM105 - each use of a file comes here, and `suppress` would take half of its time
                self._open.move_to_end(number)
            except KeyError:
                pass  # another thread may just have let go of it
        return found

    def open(self, number: int, path: str, *, create: bool) -> OpenFile:
        """OSError."""
        try:
            opened = _Counted(path, self._closing, create, self._live)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            self._shrink(len(self._open) // 2)
            opened = _Counted(path, self._closing, create, self._live)
        self._open[number] = opened
        self._shrink(self.limit)
        return opened

    def forget(self, number: int) -> OpenFile | None:
        return self._open.pop(number, None)

    def _shrink(self, most: int) -> None:
        while len(self._open) > most:
            try:
                _, oldest = self._open.popitem(last=False)
            except KeyError:
                return
            oldest.left_cache = True


class CachedFile:
    """See `disk.File`. An OSError of any call: the file was moved, removed or replaced while it had no descriptor.
    `close` gives the descriptor back; what is done after it opens the file again."""

    __slots__ = ("_descriptors", "_identity", "_number", "path")

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self.path = path
        self._number = next(_numbers)
        self._descriptors = descriptors
        self._identity = _identity(descriptors.open(self._number, path, create=True))

    def _opened(self) -> OpenFile:
        found = self._descriptors.find(self._number)
        return found if found is not None else self._open_again()

    def _open_again(self) -> OpenFile:
        opened = self._descriptors.open(self._number, self.path, create=False)
        if _identity(opened) != self._identity:
            self._descriptors.forget(self._number)
            raise OSError(errno.ESTALE, "another file has taken its place", self.path)
        return opened

    def append(self, data: Bytes) -> None:
        self._opened().append(data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._opened().read_at(position, length)

    def size(self) -> int:
        return self._opened().size()

    def truncate(self, size: int) -> None:
        self._opened().truncate(size)

    def sync(self) -> None:
        self._opened().sync()

    def fileno(self) -> int:
        return self._opened().fileno()

    def held(self) -> OpenFile | CachedFile:
        return self._opened() if self._descriptors.may_hold else self

    def close(self) -> None:
        opened = self._descriptors.forget(self._number)
        if opened is not None:
            opened.close()

    def __del__(self) -> None:
        self._descriptors.forget(self._number)


def _identity(file: OpenFile) -> Identity:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino
