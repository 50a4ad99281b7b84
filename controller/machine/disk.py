"""A simulated machine's disk: an in-memory disk that outlives its broker's processes, and its faults.

`MemoryDisk` forgets as a real disk does: a crash takes what was not synced, or a part of it. What survives is drawn
from a `Draw`, so that one seed gives one outcome. A synced file keeps its synced bytes; of the bytes appended since
then any length may be left, and these may be zeroed or garbled from some place on. A name that was created, renamed or
removed since its directory was synced may be as before.

`SimulatedDisk` adds a machine: a killed process leaves what it had written to the machine, which syncs it later. What
the machine had not synced is lost when it loses power. A broken disk refuses every change and still serves reads,
because what was written stays there; so does a single broken directory, unless it is lost: then reads fail, too. A slow
disk makes its caller wait for each change, and a broker has one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from typing import Protocol, TypeAlias

import msgspec

from controller.storage.batches import Bytes
from controller.storage.disk import ANY_DEVICE, Device, NotCached
from controller.storage.errors import AlreadyLocked
from statemachines.device_model import DeviceQueue


class Draw(Protocol):
    """What `crash` needs of a random.Random."""

    def randint(self, a: int, b: int) -> int: ...
    def random(self) -> float: ...
    def randbytes(self, n: int) -> bytes: ...


class _Inode(msgspec.Struct, eq=False):
    data: bytes | bytearray = b""
    """A bytearray from the first change in place on: most files are written whole, and many hold the same."""
    synced: int = 0
    """How many bytes from the beginning are on the disk."""
    cut: bytes = b""
    """Synced bytes that were cut off after `synced`; they come back unless the file is synced again."""
    modified_ms: int = 0

    def changeable(self) -> bytearray:
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        return self.data


Files: TypeAlias = tuple[str | _Inode, ...]
"""Names, each followed by its file: most directories are a partition's with two, of which a dict would be the larger
part."""


def _named(files: Files, name: str) -> _Inode | None:
    try:
        found = files[files.index(name) + 1]
    except ValueError:
        return None
    assert isinstance(found, _Inode)
    return found


def _with(files: Files, name: str, inode: _Inode) -> Files:
    if name not in files:
        return (*files, name, inode)
    at = files.index(name)
    return (*files[:at], name, inode, *files[at + 2 :])


def _without(files: Files, name: str) -> Files:
    at = files.index(name)
    return files[:at] + files[at + 2 :]


def _names(files: Files) -> Iterator[str]:
    return (name for name in files[::2] if isinstance(name, str))


class _Directory:
    """`files`: what is in it. `synced`: those that are on the disk, which is the same object while they are the same.
    `made`: it was made itself, and is not only on the way to something. `inner`: the directories in it by their paths,
    gone ones that may come back among them."""

    __slots__ = ("files", "inner", "made", "path", "synced")

    def __init__(self, path: str) -> None:
        self.path = path
        self.made = False
        self.files: Files = ()
        self.synced: Files = self.files
        self.inner: dict[str, _Directory] | None = None

    @property
    def is_there(self) -> bool:
        return self.made or bool(self.files) or any(one.is_there for one in (self.inner or {}).values())

    @property
    def is_forgotten(self) -> bool:
        """Nothing of it is there, and nothing can come back."""
        return not (self.made or self.files or self.synced or self.inner)

    def listed(self) -> list[str]:
        if not self.inner:
            return self.listed_files()
        begins = len(self.path) + 1
        inner = [one.path[begins:] for one in self.inner.values() if one.made or one.is_there]
        return sorted({*_names(self.files), *inner})

    def listed_files(self) -> list[str]:
        return sorted(_names(self.files))

    def file(self, name: str) -> _Inode | None:
        return _named(self.files, name)

    def put(self, name: str, inode: _Inode) -> None:
        self.files = _with(self.files, name, inode)

    def put_synced(self, name: str, inode: _Inode) -> None:
        is_synced = self.synced is self.files
        self.files = _with(self.files, name, inode)
        self.synced = self.files if is_synced else _with(self.synced, name, inode)

    def take(self, name: str) -> _Inode:
        inode = self.file(name)
        assert inode is not None
        self.files = _without(self.files, name)
        return inode

    def full_path(self, name: str) -> str:
        return name if self.path is NOWHERE else f"{self.path}/{name}"


class MemoryFile:
    __slots__ = ("_directory", "_disk", "_inode", "_path")

    def __init__(self, disk: MemoryDisk, inode: _Inode, directory: str, path: str) -> None:
        self._path = path
        self._disk = disk
        self._inode = inode
        self._directory = directory  # where it was opened: a rename stays within its log directory

    def append(self, data: Bytes, rest: Bytes = b"") -> None:
        self._disk.touch(self._directory)
        inode = self._inode
        held = inode.changeable()
        held += data
        held += rest
        inode.modified_ms = self._disk.now_ms

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.look(self._directory)
        if self._disk.no_wait:
            self._disk.require_cached(self._path, length)
        return bytes(self._inode.data[position : position + length])

    def read_cached(self, position: int, length: int) -> bytes | None:
        try:
            self.require_cached(position, length)
        except NotCached:
            return None
        return self.read_at(position, length)

    def require_cached(self, position: int, length: int) -> None:
        self._disk.require_cached(self._path, length)

    def keeping(self, position: int, length: int) -> NotCached:
        return NotCached(self._disk.device_of(self._path), lambda _least=0: None, length, "nothing evicts it")

    def size(self) -> int:
        self._disk.look(self._directory)
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._disk.touch(self._directory)
        inode = self._inode
        if size < inode.synced:
            inode.cut = bytes(inode.data[size : inode.synced]) + inode.cut
            inode.synced = size
        del inode.changeable()[size:]

    def write_back(self, position: int, length: int) -> None:
        """Nothing is durable before `sync`."""

    def sync(self) -> None:
        self._disk.touch(self._directory)
        self._inode.synced, self._inode.cut = len(self._inode.data), b""

    def fileno(self) -> int:
        raise OSError("a file in memory has no descriptor")

    def held(self) -> MemoryFile:
        return self

    def close(self) -> None:
        """Nothing is held."""


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


NOWHERE = "\0"
"""The directory of a path that has none."""


def _split(path: str) -> tuple[str, str]:
    directory, separator, name = path.rpartition("/")
    return (directory if separator else NOWHERE), name


class MemoryDisk:
    """`fail_after`: so many changes are still carried out, and then every one is an OSError; None for never."""

    def __init__(self) -> None:
        self._directories: dict[str, _Directory] = {}
        self._unsynced: dict[str, None] = {}
        """Directories whose names may be others than the synced ones."""
        self.locks: set[str] = set()
        self.no_wait = False
        self.not_cached: set[str] = set()
        """Files of which reading something would wait."""
        self.now_ms = 0
        self.fail_after: int | None = None
        self.changes = 0

    def touch(self, path: str) -> None:
        """Counts a change of what is at `path`; OSError if it is one too many."""
        if self.fail_after is not None and self.changes >= self.fail_after:
            raise OSError("the disk has failed")
        self.changes += 1

    def look(self, path: str) -> None:
        """Before something at `path` is read; OSError if it can't be."""

    def device_of(self, path: str) -> Device:
        return ANY_DEVICE

    def ask(self, device: Device) -> None:
        """It answers."""

    def open(self, path: str) -> MemoryFile:
        self.look(path)
        above, name = _split(path)
        directory = self._directories.get(above) or self._added(above)
        inode = directory.file(name)
        if inode is None:
            self.touch(path)
            inode = _Inode(modified_ms=self.now_ms)
            self._put(directory, name, inode)
        return MemoryFile(self, inode, directory.path, path)

    def _inode(self, path: str) -> _Inode:
        self.look(path)
        above, name = _split(path)
        directory = self._directories.get(above)
        inode = None if directory is None else directory.file(name)
        if inode is None:
            raise FileNotFoundError(path)
        return inode

    def evict(self) -> None:
        """Nothing that is in files now is in memory, as after a while in which other files were used."""
        self.not_cached = {one.full_path(name) for one in self._directories.values() for name in _names(one.files)}

    def require_cached(self, path: str, length: int) -> None:
        """Raises NotCached."""
        if path in self.not_cached:

            def read_in(at_least: int = 0) -> None:
                self.not_cached.discard(path)

            raise NotCached(self.device_of(path), read_in, length, f"read of {length} bytes of {path}")

    def read(self, path: str) -> bytes:
        if self.no_wait:
            self.require_cached(path, len(self._inode(path).data))
        return bytes(self._inode(path).data)

    def replace(self, path: str, data: bytes | Callable[[], bytes], durable: bool = True) -> None:
        data = data() if callable(data) else data
        self.touch(path)
        directory, name = self._parent(path), _split(path)[1]
        inode = _Inode(bytes(data), len(data) if durable else 0, modified_ms=self.now_ms)
        if durable:
            directory.put_synced(sys.intern(name), inode)
        else:
            self._put(directory, name, inode)

    def replace_soon(self, path: str, data: bytes) -> None:
        self.touch(path)
        self._put(self._parent(path), _split(path)[1], _Inode(bytes(data), len(data), modified_ms=self.now_ms))

    def replace_derived(self, path: str, content: Callable[[], bytes]) -> None:
        self.replace(path, content(), durable=False)

    def give_way(self) -> None:
        """One thread does all."""

    def settle_derived(self, directory: str) -> None:
        """Nothing waits."""

    def _parent(self, path: str) -> _Directory:
        """The directory that the path is in, which is there from now on, if only as what is on the way."""
        above = _split(path)[0]
        return self._directories.get(above) or self._added(above)

    def _added(self, path: str) -> _Directory:
        directory = self._directories[path] = _Directory(path)
        above = _split(path)[0]
        if path is not NOWHERE and above is not NOWHERE:
            parent = self._directories.get(above) or self._added(above)
            if parent.inner is None:
                parent.inner = {}
            parent.inner[path] = directory
        return directory

    def _put(self, directory: _Directory, name: str, inode: _Inode) -> None:
        directory.put(sys.intern(name), inode)  # there are a few, in each of many directories
        self._unsynced[directory.path] = None

    def _take(self, directory: _Directory, name: str) -> _Inode:
        self._unsynced[directory.path] = None
        return directory.take(name)

    def rename(self, path: str, new_path: str) -> None:
        self.touch(path)
        above, name = _split(path)
        parent = self._directories.get(above)
        if parent is not None and parent.file(name) is not None:
            inode = self._take(parent, name)
            self._put(self._parent(new_path), _split(new_path)[1], inode)
        moved = self._directories.get(path)
        is_made = moved is not None and moved.made
        for directory in self._within(path, self._directories):
            new_directory = new_path + directory.path[len(path) :]
            for name in _names(directory.files):
                inode = self._take(directory, name)
                self._put(self._parent(f"{new_directory}/{name}"), name, inode)
            if is_made and directory.made:
                directory.made = False
                self._make(new_directory)
            self._forget(directory)

    def _within(self, path: str, paths: Collection[str]) -> list[_Directory]:
        """The directory at `path` and those below it, of those named."""
        at = self._directories.get(path)
        if at is not None and not at.inner:
            return [at] if path in paths else []
        inside = path + "/"
        there = [one for one in paths if (one == path or one.startswith(inside)) and one in self._directories]
        return [self._directories[one] for one in there]

    def remove(self, path: str) -> None:
        above, name = _split(path)
        parent = self._directories.get(above)
        if parent is not None and parent.file(name) is not None:
            self.touch(path)
            self._take(parent, name)
        directory = self._directories.get(path)
        if directory is not None:
            directory.made = False
            self._forget(directory)

    def names(self, directory: str) -> Sequence[str]:
        self.look(directory)
        found = self._directories.get(directory)
        if found is None or not found.made:
            raise FileNotFoundError(directory)
        return found.listed()

    def is_directory(self, path: str) -> bool:
        found = self._directories.get(path)
        return found is not None and found.is_there

    def make_directory(self, path: str) -> None:
        self._make(path)
        while "/" in path:
            path = path.rpartition("/")[0]
            self._make(path)

    def _make(self, path: str) -> None:
        directory = self._directories.get(path) or self._added(path)
        directory.made = True

    def _forget(self, directory: _Directory) -> None:
        if not directory.is_forgotten or directory.path not in self._directories:
            return
        del self._directories[directory.path]
        parent = self._directories.get(_split(directory.path)[0])
        if parent is not None and parent.inner is not None:
            del parent.inner[directory.path]
            self._forget(parent)

    def sync_names(self, directory: str) -> None:
        self.touch(directory)
        for one in self._within(directory, self._unsynced):
            del self._unsynced[one.path]
            one.synced = one.files
            self._forget(one)

    def sync_all(self, directories: Sequence[str]) -> None:
        for path in directories:
            directory = self._directories[path]
            for name in directory.listed_files():
                inode = directory.file(name)
                assert inode is not None
                inode.synced, inode.cut = len(inode.data), b""
            self.sync_names(path)

    def space(self, path: str) -> tuple[int, int]:
        return 0, 0

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def lock(self, path: str) -> _Lock:
        if path in self.locks:
            raise AlreadyLocked(f"{path}: another process has this log directory")
        self.locks.add(path)
        return _Lock(self, path)

    # Faults

    def crash(self, draw: Draw) -> None:
        """The machine loses power and comes back. Directories stay, and one whose removal was forgotten is back with
        its files; files opened before must not be used again."""
        kept: dict[str, _Inode] = {}
        before_and_now = {
            directory.full_path(name): (_named(directory.synced, name), directory.file(name))
            for directory in self._directories.values()
            for name in (*_names(directory.files), *_names(directory.synced))
        }
        for path, (before, now) in sorted(before_and_now.items(), key=itemgetter(0)):
            inode = now if now is before or draw.random() < 0.5 else before
            if inode is not None:
                kept[path] = inode
        self._keep_renamed(kept)
        torn: set[int] = set()
        for inode in kept.values():
            if id(inode) not in torn:
                torn.add(id(inode))
                _tear(inode, draw)
        made = [path for path, directory in self._directories.items() if directory.made]
        self._directories.clear()
        self._unsynced.clear()
        for path in made:
            self._make(path)
        for path, inode in kept.items():
            self.make_directory(path.rpartition("/")[0])
            self._parent(path).put_synced(_split(path)[1], inode)
        self.locks.clear()
        self.fail_after = None

    def _keep_renamed(self, kept: dict[str, _Inode]) -> None:
        """A file that was renamed within its directory has one of the two names: a rename is atomic."""
        there = {id(inode) for inode in kept.values()}
        for directory in self._directories.values():
            before = {id(inode) for inode in directory.synced[1::2]}
            for name in _names(directory.files):
                inode = _named(directory.files, name)
                if inode is not None and id(inode) in before and id(inode) not in there:
                    kept[directory.full_path(name)] = inode

    def damage(self, path: str, position: int) -> None:
        """Flips every bit of one byte, synced or not."""
        self._inode(path).changeable()[position] ^= 0xFF


def _tear(inode: _Inode, draw: Draw) -> None:
    data = inode.changeable()
    if inode.cut and draw.random() < 0.5:
        data[inode.synced :] = inode.cut
    elif len(data) > inode.synced:
        del data[draw.randint(inode.synced, len(data)) :]
        damaged_from = draw.randint(inode.synced, len(data))
        kind = draw.randint(0, 2)
        if kind == 1:
            data[damaged_from:] = bytes(len(data) - damaged_from)
        elif kind == 2:
            data[damaged_from:] = draw.randbytes(len(data) - damaged_from)
    inode.synced, inode.cut = len(data), b""


def _ignore_wait(_for_ms: float) -> None:
    pass


def _is_in(path: str, directories: tuple[str, ...]) -> bool:
    return any((path + "/").startswith(directory + "/") for directory in directories)


class SlowedDevice:
    """A device whose jobs take time. `waiting` has what ends each job before its time: `end` calls it once the device
    is slow no more. Jobs that come before the last of them is over are still behind them."""

    def __init__(self, queue: DeviceQueue) -> None:
        self.queue = queue
        self.waiting: dict[Callable[[], None], None] = {}
        self.is_slow = True

    def end(self) -> None:
        self.is_slow = False
        for end in list(self.waiting):
            end()


class SimulatedDisk(MemoryDisk):
    """`a_change_ms`: the duration of each change; `waits` is called with that time, after which the caller goes on.
    `devices`: by log directory, the device that it lies on alone, while it is slow; the jobs of others take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.a_change_ms = 0.0
        self.devices: dict[str, SlowedDevice] = {}
        self.waits: Callable[[float], None] = _ignore_wait
        self._broken_directories: tuple[str, ...] = ()
        self._broken_for_good: tuple[str, ...] = ()
        self._unreadable: tuple[str, ...] = ()

    def device_of(self, path: str) -> Device:
        return Device(path)

    def touch(self, path: str) -> None:
        broken = self._broken_directories
        if broken and _is_in(path, broken):
            raise OSError("the directory has failed")
        super().touch(path)
        if self.a_change_ms:
            self.waits(self.a_change_ms)

    def look(self, path: str) -> None:
        if self._unreadable and _is_in(path, self._unreadable):
            raise OSError("the directory is lost")

    @property
    def broken(self) -> bool:
        """As a whole, or a directory of it."""
        return self.fail_after is not None or bool(self._broken_directories)

    def fail(self) -> None:
        self.fail_after = self.changes

    @property
    def broken_directories(self) -> tuple[str, ...]:
        return self._broken_directories

    def fail_directory(self, directory: str, *, for_good: bool = False, unreadable: bool = False) -> None:
        self._broken_directories += (directory,)
        if unreadable:
            self._unreadable += (directory,)
        if for_good:
            self._broken_for_good += (directory,)

    def repair(self) -> None:
        self.fail_after = None
        self.a_change_ms = 0.0
        for path, device in list(self.devices.items()):
            device.end()
            self.let_go(path)
        self._broken_directories = self._broken_for_good
        self._unreadable = tuple(one for one in self._unreadable if one in self._broken_for_good)

    def let_go(self, path: str) -> None:
        """Jobs of this device take no time any more, if it is slow no more and has none left."""
        device = self.devices.get(path)
        if device is not None and not device.is_slow and not device.waiting:
            del self.devices[path]

    def process_ended(self) -> None:
        """Whoever had it open has not any more, and its jobs never end."""
        for path, device in list(self.devices.items()):
            device.waiting.clear()
            self.let_go(path)
        self.locks.clear()
        self.waits = _ignore_wait
