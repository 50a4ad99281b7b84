"""The disk as storage uses it: the `Disk` and `File` interfaces, devices, and the health of a log directory.

`disk_files.FileDisk` is a machine's own file system. The simulator's `MemoryDisk` keeps everything in memory and can
lose what was not synced. Nothing here imports `os`. Paths are texts with `/` between the
parts. A failure of the disk is an OSError.

`Health` says whether a log directory can be trusted; the directory and all of its logs share it. The first CorruptLog,
or OSError of the disk itself, takes all of them offline, for good: after a failed write or sync the content of the
files is unknown, and a second sync may succeed without having written anything. A shortage of the process's or the
machine's resources does not affect the files: it raises OutOfResources, and is temporary.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from controller.storage.batches import Bytes
from controller.storage.errors import CorruptLog, LogOffline, OutOfResources

SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
"""Error numbers that are not the disk's. Any other, an unknown one included, is taken for a failed disk: EIO, ENOSPC,
EDQUOT, EROFS, ..., and a file that is missing or may not be opened."""


def is_shortage(error: OSError) -> bool:
    """Whether the process or the machine lacks descriptors or memory, rather than the disk having failed."""
    return error.errno in SHORTAGES


class Health:
    """`warnings`: what the start repaired or left as it was, for the log."""

    __slots__ = ("_on_failure", "cause", "directory", "warnings")

    def __init__(self, directory: str, on_failure: Callable[[Exception], None] | None = None) -> None:
        self.directory = directory
        self.cause: Exception | None = None
        self.warnings: list[str] = []
        self._on_failure = on_failure

    def warn(self, warning: str) -> None:
        self.warnings.append(warning)

    def check(self) -> None:
        if self.cause is not None:
            raise LogOffline(self.directory, self.cause)

    def fail(self, cause: Exception) -> LogOffline:
        """Take the directory offline; `on_failure` is called with the first cause alone."""
        if self.cause is None:
            self.cause = cause
            if self._on_failure is not None:
                self._on_failure(cause)
        return LogOffline(self.directory, self.cause)


class LogHealth(Health):
    """The health of one log of a log directory. A cause that `is_alone` accepts takes this log offline and no other;
    any other cause takes the directory offline."""

    __slots__ = ("_alone", "_is_alone", "_of_directory")

    def __init__(
        self,
        directory: str,
        of_directory: Health,
        is_alone: Callable[[Exception], bool],
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self._of_directory = of_directory
        self._is_alone = is_alone
        self._alone: Exception | None = None
        super().__init__(directory, on_failure)

    @property
    def cause(self) -> Exception | None:
        return self._alone or self._of_directory.cause

    @cause.setter
    def cause(self, cause: Exception | None) -> None:
        self._alone = cause

    def warn(self, warning: str) -> None:
        self._of_directory.warn(warning)

    def fail(self, cause: Exception) -> LogOffline:
        if self._alone is None and not self._is_alone(cause):
            return self._of_directory.fail(cause)
        return super().fail(cause)


class HasHealth(Protocol):
    @property
    def health(self) -> Health: ...


S = TypeVar("S", bound=HasHealth)
P = ParamSpec("P")
R = TypeVar("R")


def on_disk(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """For what touches the disk: raises LogOffline at once when offline, and instead of an OSError or CorruptLog;
    OutOfResources instead of an OSError for want of descriptors or memory. After that the method may be called again:
    each leaves what it had not done yet as it was."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        health = self.health
        if health.cause is not None:
            raise LogOffline(health.directory, health.cause)
        try:
            return method(self, *args, **kwargs)
        except (OSError, CorruptLog) as error:
            if isinstance(error, OSError) and is_shortage(error):
                raise OutOfResources(health.directory, error) from error
            raise health.fail(error) from error

    return run


def or_offline(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Below `on_disk`, for what would leave the log in pieces if it stopped midway: a shortage takes the directory
    offline too."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except (OSError, OutOfResources) as error:
            raise self.health.fail(error) from error

    return run


class Device(msgspec.Struct, frozen=True):
    """`name`: unique within the process, for people: `8:1` (major and minor number) on the real host."""

    name: str

    def __str__(self) -> str:
        return self.name


class DeviceState:
    """What the threads of a process tell one another about a device. `overdue`: the pools in which an operation of it
    takes long, so that nothing else should wait for it. `is_written`: it was written to since a pool looked last."""

    __slots__ = ("is_written", "overdue")

    def __init__(self) -> None:
        self.overdue: set[int] = set()
        self.is_written = False


_STATES: dict[Device, DeviceState] = {}


def state_of(device: Device) -> DeviceState:
    """The one of this process."""
    return _STATES.get(device) or _STATES.setdefault(device, DeviceState())


ANY_DEVICE = Device("memory")
"""Of a disk that does not distinguish devices."""


class NotCached(Exception):
    """A read would wait for the device, and its caller must not (`Disk.no_wait`). `read_in` reads the bytes, on any
    thread, so that they are in memory when the caller tries again; it is a job of `device`. With a number, it reads at
    least so many from there on, since the caller goes on reading."""

    def __init__(self, device: Device, read_in: Callable[..., None], size_bytes: int, what: str) -> None:
        super().__init__(what)
        self.device = device
        self.read_in = read_in
        self.size_bytes = size_bytes


class File(Protocol):
    """One file, opened to read and append."""

    def append(self, data: Bytes, rest: Bytes = b"") -> None:
        """Writes at the end, all of `data` and `rest`, with one write where the system can."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the file's end."""

    def read_cached(self, position: int, length: int) -> bytes | None:
        """As `read_at`; None if that is known to wait for the disk."""

    def require_cached(self, position: int, length: int) -> None:
        """Raise NotCached if reading these bytes is known to wait for the disk."""

    def keeping(self, position: int, length: int) -> NotCached:
        """The job that has these bytes evicted from memory as late as if it had just read them in."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """When it returns, the file's bytes and length are on the disk. Its name is not: `Disk.sync_names`."""

    def write_back(self, position: int, length: int) -> None:
        """Begin to write these bytes to the disk, so that `sync` has less to write. A hint, which never fails."""

    def fileno(self) -> int:
        """For sendfile. OSError where the file is none of the system's."""

    def held(self) -> File:
        """The file for a `FileRange`: as far as descriptors suffice, it stays readable after `remove` of its path."""

    def close(self) -> None:
        """Safe to call twice."""


class Disk(Protocol):
    @property
    def no_wait(self) -> bool:
        """While it is True, `File.read_at` and `read` raise NotCached where they would wait for the disk. Set for a few
        calls of one thread, and seen by that thread alone."""

    @no_wait.setter
    def no_wait(self, value: bool) -> None: ...

    def device_of(self, path: str) -> Device:
        """The device that a directory, or the one that it will be made in, lies on. OSError."""

    def ask(self, device: Device) -> None:
        """Return once the device has answered a read, which no cache may do for it. On any thread."""

    def open(self, path: str) -> File:
        """Opened to read and append; created if it is not there."""

    def read(self, path: str) -> bytes:
        """A whole small file. FileNotFoundError."""

    def replace(self, path: str, data: bytes | Callable[[], bytes], durable: bool = True) -> None:
        """The whole file at once. `durable`: after a crash it is the new one; else anything, so that the reader must
        be able to tell. A function is called once no other thread writes this file."""

    def replace_soon(self, path: str, data: bytes) -> None:
        """As `replace`, but perhaps only after this returned; a `replace` that follows comes after it, or instead.
        After a crash the file is the new one or the one before. OSError, also where an earlier one of this path
        failed."""

    def replace_derived(self, path: str, content: Callable[[], bytes]) -> None:
        """As `replace`, not durable, but perhaps only after this returned, and not at all if that fails: what the file
        would hold can be had otherwise. `content` may be called on another thread."""

    def give_way(self) -> None:
        """Called by a job between short pieces of a long computation: others that wait for the interpreter go on."""

    def settle_derived(self, directory: str) -> None:
        """When it returns, no `replace_derived` of a file in `directory` is carried out any more."""

    def rename(self, path: str, new_path: str) -> None: ...

    def remove(self, path: str) -> None:
        """A file, or an empty directory. One that is not there is none to remove."""

    def names(self, directory: str) -> Sequence[str]:
        """What is in a directory, sorted. FileNotFoundError."""

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there, or a link to one."""

    def make_directory(self, path: str) -> None:
        """With the ones above it; one that exists is left alone."""

    def sync_names(self, directory: str) -> None:
        """When it returns, what was created, renamed and removed in `directory` is on the disk."""

    def sync_all(self, directories: Sequence[str]) -> None:
        """`sync` of every file in these directories and `sync_names` of each, which takes about as long for many as
        for one."""

    def space(self, path: str) -> tuple[int, int]:
        """The size of the file system that a directory is on, and what is free of it, in bytes; 0 for the size: no
        limit is known. OSError."""

    def modified_ms(self, path: str) -> int:
        """Wall time of the last change. FileNotFoundError."""

    def lock(self, path: str) -> Lock:
        """Raises AlreadyLocked if another process has it."""


def sync_file(disk: Disk, path: str) -> None:
    """`File.sync` of a file that is not open."""
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


@contextmanager
def waiting(disk: Disk) -> Iterator[None]:
    """What is done within waits for the disk even if `no_wait` is set: it must not stop midway."""
    no_wait, disk.no_wait = disk.no_wait, False
    try:
        yield
    finally:
        disk.no_wait = no_wait


class Lock(Protocol):
    def release(self) -> None: ...


class FileRange(msgspec.Struct, frozen=True):
    """Bytes of a log that need not be read to be sent: `file.fileno()` from `position`, `length` of them.

    A range stays readable when its segment is removed, unless too many files are sent from at once. It is not protected
    from a truncation: a broker that truncates a log does not lead it any more, and data sent after that is cut off or
    fails its CRC check at the receiver.

    `cut_bytes`: how much of the batch behind it was left out, since not all of it was allowed. `left_bytes`: what else
    could have been read of the file, behind it, if more had been allowed. `is_recent`: it was appended in the last
    seconds, and is in the page cache.
    """

    file: File
    position: int
    length: int
    cut_bytes: int = 0
    left_bytes: int = 0
    is_recent: bool = False

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.length)
