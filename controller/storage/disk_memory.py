"""A disk in memory that forgets as a real one does: a crash takes what was not synced, or a part of it.

For the simulator, and for tests of recovery. What survives a crash is drawn from a `Draw`, so that one seed gives one
outcome. A synced file keeps its synced bytes; of the bytes appended since then any length may be left, and these may
be zeroed or garbled from some place on. A name that was created, renamed or removed since its directory was synced may
be as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.storage.batches import Bytes
from controller.storage.errors import AlreadyLocked


class Draw(Protocol):
    """What `crash` needs of a random.Random."""

    def randint(self, a: int, b: int) -> int: ...
    def random(self) -> float: ...
    def randbytes(self, n: int) -> bytes: ...


@dataclass(slots=True)
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    """How many bytes from the beginning are on the disk."""
    cut: bytes = b""
    """Synced bytes that were cut off after `synced`; they come back unless the file is synced again."""
    modified_ms: int = 0


class MemoryFile:
    __slots__ = ("_disk", "_inode", "_path")

    def __init__(self, disk: MemoryDisk, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path  # as it was opened: a rename stays within its log directory

    def append(self, data: Bytes) -> None:
        self._disk.touch(self._path)
        self._inode.data += data
        self._inode.modified_ms = self._disk.now_ms

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._inode.data[position : position + length])

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._disk.touch(self._path)
        inode = self._inode
        if size < inode.synced:
            inode.cut = bytes(inode.data[size : inode.synced]) + inode.cut
            inode.synced = size
        del inode.data[size:]

    def sync(self) -> None:
        self._disk.touch(self._path)
        self._inode.synced, self._inode.cut = len(self._inode.data), b""

    def fileno(self) -> int:
        raise OSError("a file in memory has no descriptor")

    def close(self) -> None:
        """Nothing is held."""


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class _Below:
    """Which names stand directly below each directory, those of directories on the way to a file among them, so that
    one directory is listed without a look at all others."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def add(self, path: str) -> None:
        for directory, name in _steps(path):
            names = self._counts.setdefault(directory, {})
            names[name] = names.get(name, 0) + 1

    def remove(self, path: str) -> None:
        for directory, name in _steps(path):
            names = self._counts[directory]
            names[name] -= 1
            if not names[name]:
                del names[name]

    def names(self, directory: str) -> Sequence[str]:
        return sorted(self._counts.get(directory, ()))


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Each directory above the path, with the name in it by which the path goes on."""
    while path:
        path, separator, name = path.rpartition("/")
        if separator:
            yield path, name


class MemoryDisk:
    """`fail_after`: so many changes are still carried out, and then every one is an OSError; None for never."""

    def __init__(self) -> None:
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        self._unsynced: dict[str, dict[str, None]] = {}
        """By directory, the names that the present and the synced ones may differ in."""
        self._directories: set[str] = set()
        self._below = _Below()
        self.locks: set[str] = set()
        self.now_ms = 0
        self.fail_after: int | None = None
        self.changes = 0

    def touch(self, path: str) -> None:
        """Counts a change of what is at `path`; OSError if it is one too many."""
        if self.fail_after is not None and self.changes >= self.fail_after:
            raise OSError("the disk has failed")
        self.changes += 1

    def open(self, path: str) -> MemoryFile:
        if path not in self._names:
            self.touch(path)
            self._put(path, _Inode(modified_ms=self.now_ms))
        return MemoryFile(self, self._names[path], path)

    def read(self, path: str) -> bytes:
        if path not in self._names:
            raise FileNotFoundError(path)
        return bytes(self._names[path].data)

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        self.touch(path)
        self._put(path, _Inode(bytearray(data), len(data) if durable else 0, modified_ms=self.now_ms))
        if durable:
            self._synced_names[path] = self._names[path]
            self._unsynced[path.rpartition("/")[0]].pop(path)

    def replace_soon(self, path: str, data: bytes) -> None:
        self.touch(path)
        self._put(path, _Inode(bytearray(data), len(data), modified_ms=self.now_ms))

    def _put(self, path: str, inode: _Inode) -> None:
        if path not in self._names:
            self._below.add(path)
        self._names[path] = inode
        self._unsynced.setdefault(path.rpartition("/")[0], {})[path] = None

    def _take(self, path: str) -> _Inode:
        self._below.remove(path)
        self._unsynced.setdefault(path.rpartition("/")[0], {})[path] = None
        return self._names.pop(path)

    def rename(self, path: str, new_path: str) -> None:
        self.touch(path)
        for name in [name for name in self._names if name == path or name.startswith(path + "/")]:
            self._put(new_path + name[len(path) :], self._take(name))
        if path in self._directories:
            for one in [one for one in self._directories if (one + "/").startswith(path + "/")]:
                self._remove_directory(one)
                self._add_directory(new_path + one[len(path) :])

    def remove(self, path: str) -> None:
        if path in self._names:
            self.touch(path)
            self._take(path)
        self._remove_directory(path)

    def names(self, directory: str) -> Sequence[str]:
        if directory not in self._directories:
            raise FileNotFoundError(directory)
        return self._below.names(directory)

    def make_directory(self, path: str) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            self._add_directory("/".join(parts[:count]))

    def _add_directory(self, path: str) -> None:
        if path not in self._directories:
            self._directories.add(path)
            self._below.add(path)

    def _remove_directory(self, path: str) -> None:
        if path in self._directories:
            self._directories.remove(path)
            self._below.remove(path)

    def sync_names(self, directory: str) -> None:
        self.touch(directory)
        inside = directory + "/"
        for parent in [one for one in self._unsynced if one == directory or one.startswith(inside)]:
            for path in self._unsynced.pop(parent):
                if path in self._names:
                    self._synced_names[path] = self._names[path]
                else:
                    self._synced_names.pop(path, None)

    def modified_ms(self, path: str) -> int:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._names[path].modified_ms

    def lock(self, path: str) -> _Lock:
        if path in self.locks:
            raise AlreadyLocked(f"{path}: another process has this log directory")
        self.locks.add(path)
        return _Lock(self, path)

    # Faults

    def crash(self, draw: Draw) -> None:
        """The machine loses power and comes back. Directories stay, and one whose removal was forgotten is back with
        its files; files opened before must not be used again."""
        names: dict[str, _Inode] = {}
        for path in sorted(self._names.keys() | self._synced_names.keys()):
            now, before = self._names.get(path), self._synced_names.get(path)
            kept = now if now is before or draw.random() < 0.5 else before
            if kept is not None:
                names[path] = kept
        torn: set[int] = set()
        for inode in names.values():
            if id(inode) not in torn:
                torn.add(id(inode))
                _tear(inode, draw)
        self._names, self._synced_names = names, dict(names)
        self._unsynced.clear()
        for path in names:
            self.make_directory(path.rpartition("/")[0])
        self._below = _Below()
        for path in (*names, *self._directories):
            self._below.add(path)
        self.locks.clear()
        self.fail_after = None

    def damage(self, path: str, position: int) -> None:
        """Flips every bit of one byte, synced or not."""
        self._names[path].data[position] ^= 0xFF


def _tear(inode: _Inode, draw: Draw) -> None:
    if inode.cut and draw.random() < 0.5:
        inode.data[inode.synced :] = inode.cut
    elif len(inode.data) > inode.synced:
        del inode.data[draw.randint(inode.synced, len(inode.data)) :]
        damaged_from = draw.randint(inode.synced, len(inode.data))
        kind = draw.randint(0, 2)
        if kind == 1:
            inode.data[damaged_from:] = bytes(len(inode.data) - damaged_from)
        elif kind == 2:
            inode.data[damaged_from:] = draw.randbytes(len(inode.data) - damaged_from)
    inode.synced, inode.cut = len(inode.data), b""
