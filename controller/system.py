"""Calls of the operating system that Linux, macOS and Windows have under different names, or not at all.

Callers import nothing of one system alone (`fcntl`, `resource`, `msvcrt`), so that they run on all three.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

OPEN_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""For every `os.open`: children do not inherit the descriptor, and bytes are not changed."""
MAY_MOVE_OPEN_FILES: Final = sys.platform != "win32"
"""False: a file that is open, and a directory above it, can be neither renamed nor removed nor replaced."""
OPEN_MAX: Final = 10_240
"""The most descriptors that macOS lets a process ask for, whatever the hard limit says."""


def descriptor_limit() -> int | None:
    """Return how many descriptors the process may have (the soft limit), None if there is no limit."""
    if sys.platform == "win32":
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one. Raises OSError or ValueError if the system refuses."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if sys.platform == "darwin" and not 0 <= hard <= OPEN_MAX:
            hard = OPEN_MAX
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def give_way() -> None:
    """From here on this thread has one priority less than others of its process, which would wait for it otherwise
    where they share a CPU, if it has real-time priority. Nothing changes with usual scheduling."""
    if sys.platform == "linux" and (priority := os.sched_getparam(0).sched_priority) > 1:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.sched_getscheduler(0), os.sched_param(priority - 1))


def try_lock(fd: int) -> bool:
    """Lock an open file exclusively, until it is closed. Return False if it is locked through another descriptor."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def sync_data(fd: int) -> None:
    """Put a file's bytes and length on the disk. `fd` must be open for writing on Windows."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # its fsync leaves the bytes in the drive's cache
        except OSError:  # a file system without it
            os.fsync(fd)
    elif sys.platform == "win32":
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def write_back(fd: int, position: int, length: int) -> None:
    """Have the system begin to write a range of a file to the disk. Nothing happens where there is no such call
    (sync_file_range, Linux), or it fails: `sync_data` still writes all, and reports errors."""
    if sys.platform == "linux":
        if not _sync_file_range:
            import ctypes  # rarely needed, and slow to import

            _sync_file_range.append(getattr(ctypes.CDLL(None), "sync_file_range", _nothing_written))
            _sync_file_range.append(ctypes.c_int64)
        call, offset = _sync_file_range
        call(fd, offset(position), offset(length), SYNC_FILE_RANGE_WRITE)


SYNC_FILE_RANGE_WRITE: Final = 2
"""Without waiting: that would take errors away from `sync_data`."""
_sync_file_range: Final[list[Callable[..., Any]]] = []


def _nothing_written(*_: object) -> int:
    return 0


def sync_file(path: str) -> None:
    """`sync_data` of a file that is not open."""
    fd = os.open(path, OPEN_FLAGS | (os.O_RDONLY if MAY_MOVE_OPEN_FILES else os.O_RDWR))
    try:
        sync_data(fd)
    finally:
        os.close(fd)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Put the names in a directory on the disk. Windows has no call for that, and its file system journals names."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path: str) -> bool:
    """Put the whole file system of a directory on the disk. Return False where the system has no call for that."""
    if sys.platform != "linux":
        return False
    import ctypes  # rarely needed, and slow to import

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)
    return True


def allow_reuse(sock: socket.socket) -> None:
    """Let a socket be bound to an address on which closed connections still wait for their end (TIME_WAIT).

    Windows lets it without an option; there, SO_REUSEADDR would share the port with sockets that listen.
    """
    if sys.platform != "win32":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


LOOPBACK = "127.0.0.1"
CAN_HOLD = sys.platform == "linux"


class HeldPorts:
    """`count` distinct free ports of the loopback address; the first is `first`, unless that is 0. Raises OSError if
    another program has that.

    After a port was bound with number 0 and released, another process may get it at once: as another test's server, or
    as the local end of a connection. Linux lets a socket that does not listen share its port with a listener if both
    set SO_REUSEADDR, and assigns such a port to no other socket. So there the port is held until `release`. Elsewhere
    it is free again at once."""

    def __init__(self, count: int, first: int = 0) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for number in (first, *(0 for _ in range(count - 1))):
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(held)
                allow_reuse(held)
                held.bind((LOOPBACK, number))
            self.numbers: tuple[int, ...] = tuple(held.getsockname()[1] for held in self._sockets)
        except OSError:
            self.release()
            raise
        if not CAN_HOLD:
            self.release()

    def release(self) -> None:
        """Lets go. Safe to call twice."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


_position = threading.Lock()
"""Where reads and writes share a position, one of them at a time."""


def read_at(fd: int, length: int, position: int) -> bytes:
    """Read at a position, as `os.pread`."""
    if sys.platform == "win32":
        with _position:
            os.lseek(fd, position, os.SEEK_SET)
            return os.read(fd, length)
    else:
        return os.pread(fd, length, position)


HAS_NOWAIT: Final = hasattr(os, "RWF_NOWAIT") and hasattr(os, "preadv")
"""Whether the system can be asked to read only what is in the page cache (Linux)."""


def read_cached(fd: int, length: int, position: int, *, busy: Callable[[int, int], bool]) -> bytes | None:
    """Read at a position what is in the page cache, without waiting for the disk. None if not all of it is, up to the
    file's end. A file system that has no such read (FUSE) is asked which pages are there; `busy` is called with the
    position and the length, see `is_cached`.
    Where neither the system nor the file system can tell, read it, as `read_at`."""
    if sys.platform != "linux" or not HAS_NOWAIT:
        return read_at(fd, length, position)
    data = bytearray(length)
    try:
        got = os.preadv(fd, [data], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in _NO_NOWAIT:
            raise
        present = _all_present(fd, position, position + length)
        waits = present is False or (present and busy(position, length))
        return None if waits else read_at(fd, length, position)
    if got == length:
        return bytes(data)
    return bytes(data[:got]) if position + got >= os.fstat(fd).st_size else None


def read_into_cache(fd: int, position: int, length: int, *, ahead: bool) -> int:
    """Read a part of these bytes so that they are in the page cache. Return how many; 0 at the file's end. Without
    `ahead` (see `read_nothing_ahead`) they are asked for at once: splice asks for a few pages at a time."""
    if not hasattr(os, "preadv"):
        return len(read_at(fd, min(length, READ_IN_BYTES), position))
    length = min(length, READ_IN_BYTES)
    if sys.platform == "linux":
        if not ahead:
            os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)
        # Unlike preadv, sendfile copies nothing. A file system that cannot splice, and a shortage, are left to preadv.
        with suppress(OSError), open(os.devnull, "wb", buffering=0) as nowhere:
            return os.sendfile(nowhere.fileno(), fd, position, length)
    with memoryview(_unread) as unread, unread[:length] as part:
        return os.preadv(fd, [part], position)


def read_nothing_ahead(fd: int) -> None:
    """From here on the system reads what is asked for through this descriptor, and no more (POSIX_FADV_RANDOM)."""
    if sys.platform == "linux":
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


READ_IN_BYTES: Final = 1024 * 1024 + 64 * 1024
"""In one call, which is one wait in the queue of the device."""
_unread: Final = mmap.mmap(-1, READ_IN_BYTES)
"""Threads write to it at the same time: its content is never read, and it has no memory before."""


def is_cached(fd: int, position: int, length: int, *, busy: bool) -> bool:
    """Return False if a read of these bytes would wait for the disk. Where neither the system nor the file system can
    tell, True. `busy`: something else may be reading the file in.

    A small range is read, without waiting. Of a large one the presence of each page is asked for (cachestat).
    A page that is there may still be being read: if the file is busy each page is asked for that (mincore), otherwise
    the ends are read, where what is read ahead would be. A busy file of a file system that cannot read without waiting
    (FUSE) is taken to be waited for.
    """
    if sys.platform != "linux" or not HAS_NOWAIT:
        return True
    end = position + length
    if length > len(_SCRATCH):
        # First: a read of a missing byte, even one that must not wait, makes the system read its surroundings.
        present = _all_present(fd, position, end)
        if present is False:
            return False
        if present and not busy:
            return _reads_now(fd, position, position + 1) is not False and _reads_now(fd, end - 1, end) is not False
        if _reads_now(fd, position, position + 1) and _all_up_to_date(fd, position, length):
            return True
    reads = _reads_now(fd, position, end)
    if reads is not None:
        return reads
    present = _all_present(fd, position, end)
    return present is None or (present and not busy)


def _all_present(fd: int, position: int, end: int) -> bool | None:
    """Whether the page cache has each page of a range, perhaps while it is still being read. None if the system can't
    tell."""
    if end <= position:
        return True
    present = _cached_pages(fd, position, end - position)
    return None if present is None else present >= (end - 1) // _PAGE_BYTES - position // _PAGE_BYTES + 1


def _reads_now(fd: int, position: int, end: int) -> bool | None:
    """Whether a read that does not wait comes to `end`, or to the file's. None where the file system has no such
    read."""
    try:
        while position < end:
            asked = min(end - position, len(_SCRATCH))
            got = os.preadv(fd, [_SCRATCH[:asked]], position, os.RWF_NOWAIT)
            if not got:
                return True  # which a reader of the range finds
            if got < asked:
                return position + got >= os.fstat(fd).st_size
            position += got
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_NOWAIT:
            raise
        return None
    return True


def reads_without_waiting(fd: int, position: int) -> bool:
    """Whether the file system can be asked to read what is in the page cache alone; True if that is not known."""
    return sys.platform != "linux" or not HAS_NOWAIT or _reads_now(fd, position, position + 1) is not None


_SCRATCH: Final = memoryview(bytearray(64 * 1024))
_PAGE_BYTES: Final = 4096 if sys.platform == "win32" else os.sysconf("SC_PAGE_SIZE")
_CACHESTAT: Final = 451
"""Its number on all architectures."""
_cachestat: list[Callable[[int, int, int], int | None]] = []


def _cached_pages(fd: int, position: int, length: int) -> int | None:
    """How many pages of the range are in the page cache, those being read included. None if the system can't tell."""
    if not _cachestat:
        _cachestat.append(_made_cachestat())
    return _cachestat[0](fd, position, length)


def _made_cachestat() -> Callable[[int, int, int], int | None]:
    import ctypes  # slow to import

    syscall = ctypes.PyDLL(None, use_errno=True).syscall  # it never waits, so it keeps the GIL
    asked_type, found_type = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5

    def cachestat(fd: int, position: int, length: int) -> int | None:
        found = found_type()
        return None if syscall(_CACHESTAT, fd, asked_type(position, length), found, 0) else found[0]

    def unknown(fd: int, position: int, length: int) -> int | None:
        return None

    syscall(_CACHESTAT, -1, asked_type(0, 1), found_type(), 0)
    return cachestat if ctypes.get_errno() == errno.EBADF else unknown


def _all_up_to_date(fd: int, position: int, length: int) -> bool:
    """Whether the page cache has each page of a range, and none is still being read. False, too, if that is not known.
    Not for FUSE, which writes all of a file that is unmapped. The file is to be open for writing: of another's mincore
    says that all is there."""
    import ctypes

    calls = _mapping_calls(keeps_gil=True)  # none of them waits
    with _mapped(calls, fd, position, length) as (at, size):
        found = ctypes.create_string_buffer(-(-size // _PAGE_BYTES))
        return at is not None and calls.mincore(at, size, found) == 0 and found.raw.count(1) == len(found)


@contextmanager
def _mapped(calls: Any, fd: int, position: int, length: int) -> Iterator[tuple[int | None, int]]:
    """Where the pages of a range are mapped, None if they can't be, and their size in bytes."""
    begin = position - position % _PAGE_BYTES
    size = position + length - begin
    at = calls.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, begin)
    if at in (None, (1 << 8 * struct.calcsize("P")) - 1):  # MAP_FAILED
        yield None, size
        return
    try:
        yield at, size
    finally:
        calls.munmap(at, size)


@cache
def _mapping_calls(*, keeps_gil: bool) -> Any:
    """The C library, of which mmap, munmap, mlock and mincore may be called."""
    import ctypes  # slow to import

    libc, size = (ctypes.PyDLL if keeps_gil else ctypes.CDLL)(None), ctypes.c_size_t
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    libc.mlock.argtypes = libc.munmap.argtypes = (ctypes.c_void_p, size)
    libc.mincore.argtypes = (ctypes.c_void_p, size, ctypes.c_char_p)
    return libc


def keep_in_cache(fd: int, position: int, length: int) -> None:
    """Have the page cache evict these bytes as late as if they had just been read in; what is missing is read in.

    Pages that were locked in memory are at the beginning of Linux's list when they are unlocked (`munlock_folio`).
    Nothing happens on other systems, and where the process may not lock so much memory (`ulimit -l`).
    """
    if sys.platform != "linux":
        return
    calls = _mapping_calls(keeps_gil=False)
    with _mapped(calls, fd, position, length) as (at, size):
        if at is not None:
            calls.mlock(at, size)


_NO_NOWAIT: Final = frozenset((errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL))


def read_from_device(path: str) -> None:
    """Read the first bytes of a file from its device, past the page cache, where the system and the file system can."""
    if sys.platform != "linux":
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | OPEN_FLAGS)
    except OSError:
        return  # there is no such file, or no such read
    try:
        with mmap.mmap(-1, _DIRECT_BYTES) as page:  # such a read needs an aligned buffer
            os.preadv(fd, [page], 0)
    except OSError:
        return  # an answer, too
    finally:
        os.close(fd)


_DIRECT_BYTES: Final = 4096


def append(fd: int, data: bytes | bytearray | memoryview, rest: bytes | bytearray | memoryview = b"") -> int:
    """Write both at the end of a file that was opened with O_APPEND, as `os.write`; perhaps not all of it."""
    if sys.platform == "win32":
        with _position:
            return os.write(fd, data)
    else:
        return os.writev(fd, (data, rest)) if rest else os.write(fd, data)
