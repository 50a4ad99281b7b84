"""The machine's own file system as a `Disk`. The broker's core must not import this module, since it imports `os`.

A broker has many segments, most of them idle, and a process may have a thousand descriptors for all of its files and
connections. `Descriptors` keeps the most recently used files open, up to a limit. A `CachedFile` that was closed is
opened again when it is needed. A sender holds a file's descriptor (`held`), so that it is not reused for another file;
where too many are held, it gets the cached file, which is opened again for each piece that is sent.

Two daemon threads keep slow calls away from the broker's thread. One closes removed files: with the last descriptor the
system frees the blocks, about a quarter of a second for a gigabyte. The other replaces small files, since a sync takes
tens of milliseconds: it writes only the latest content of a file, and retries if descriptors or memory run short.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import TypeAlias

from controller.storage.batches import Bytes
from controller.storage.device_pools import Later
from controller.storage.disk import Device, NotCached, is_shortage, state_of
from controller.storage.errors import AlreadyLocked
from controller.system import (
    MAY_MOVE_OPEN_FILES,
    OPEN_FLAGS,
    append,
    descriptor_limit,
    is_cached,
    keep_in_cache,
    read_at,
    read_cached,
    read_from_device,
    read_into_cache,
    read_nothing_ahead,
    reads_without_waiting,
    sync_data,
    sync_directory,
    sync_file,
    sync_file_system,
    try_lock,
    write_back,
)


class Closing:
    """`close` closes a descriptor. Descriptors are closed in the order in which they were handed over."""

    def __init__(self, close: Callable[[int], None]) -> None:
        self._close = close
        # Unlike a lock, its put may come in the middle of another put: files are let go by the collector, too.
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()

    def begin(self) -> None:
        """From here on descriptors are closed on the thread. Safe to call twice, on any thread but in a finalizer."""
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="disk-closing", daemon=True)
                self._thread.start()

    def close(self, fd: int) -> None:
        """Soon; at once, as long as nothing was removed. May be called by a finalizer."""
        if self._thread is None:
            self._close(fd)
        else:
            self._waiting.put(fd)

    def stop(self) -> None:
        """End the thread, once it has closed what waits. From then on descriptors are closed at once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(_NO_MORE)
            thread.join()

    def _work(self) -> None:
        while (fd := self._waiting.get()) != _NO_MORE:
            with suppress(OSError):  # the descriptor is closed; what the file system could not write back is removed
                self._close(fd)


_NO_MORE = -1


_numbers = count()
_FLAGS = os.O_RDWR | os.O_APPEND | OPEN_FLAGS


class _NoWait(threading.local):
    is_set = False


def device_of_number(number: int) -> Device:
    """The device with this `st_dev`."""
    return Device(f"{os.major(number)}:{os.minor(number)}" if hasattr(os, "major") else str(number))


Identity: TypeAlias = tuple[int, int]
"""A file's device and inode."""
CHECKED_S = 0.002
"""How long what was found in the page cache counts as there: from a read to the sending of its answer, as a rule. The
system may evict anything at any time, and some do so steadily (Linux' DAMON)."""
KNOWN_S = 1.0
"""How long bytes count as read in to their end. On a file system that cannot read without waiting they are taken to be
there. Elsewhere each page is asked for, but not read to find out whether it is still being read."""
KNOWN_MAX = 64
WINDOW_BYTES = 2 * 1024 * 1024
BUSY_S = 5.0
BUSY_MAX = 4_000
READ_AHEAD_BYTES = 4 * 1024 * 1024
"""The system is taken to read no further ahead of what it is asked for."""
ONE_READER_BYTES = 4 * READ_AHEAD_BYTES
"""What is missing so far behind what was read in last is missing to the same reader, for whom the system read ahead."""


class _Busy:
    """The windows of files that something is or was lately read in from: a page of them may be in the page cache before
    it is read. Safe on any thread."""

    def __init__(self) -> None:
        self._read_in_s: dict[tuple[Identity, int], float] = {}
        self._reading: tuple[tuple[Identity, int, int], ...] = ()
        """What threads read in now, which takes as long as the device takes: file, from and to."""
        self.changing = threading.Lock()

    @contextmanager
    def reading(self, file: Identity, position: int, end: int) -> Iterator[None]:
        """While bytes are read in."""
        entry = (file, position, end + READ_AHEAD_BYTES)
        with self.changing:
            self._reading += (entry,)
        try:
            yield
        finally:
            self.note(file, position, end)
            with self.changing:
                self._reading = tuple(one for one in self._reading if one is not entry)

    def note(self, file: Identity, position: int, end: int) -> None:
        times, now_s = self._read_in_s, time.monotonic()
        if len(times) >= BUSY_MAX:
            for key, read_in_s in list(times.items()):
                if read_in_s < now_s - BUSY_S:
                    times.pop(key, None)
        for window in _windows(position, end + READ_AHEAD_BYTES):
            times[file, window] = now_s

    def has_now(self, file: Identity, position: int, end: int) -> bool:
        """Whether a thread reads in some of these bytes, or the system may read them ahead for it."""
        return any(file == read and begin < end and position < until for read, begin, until in self._reading)

    def has(self, file: Identity, position: int, end: int, now_s: float) -> bool:
        times = self._read_in_s
        return bool(times) and any(
            now_s - times.get((file, window), -BUSY_S) < BUSY_S for window in _windows(position, end)
        )


def _windows(position: int, end: int) -> range:
    """Where the windows of a range begin."""
    return range(position - position % WINDOW_BYTES, end, WINDOW_BYTES)


_busy = _Busy()


def _not_cached(file: OpenFile | CachedFile, identity: Identity, position: int, length: int) -> NotCached:
    _busy.note(identity, position, position + length)
    what = f"read of {length} bytes at {position} of {file.path}"

    def read_in(at_least: int = 0) -> None:
        file.read_in(position, max(length, at_least))

    return NotCached(device_of_number(identity[0]), read_in, length, what)


_no_wait = _NoWait()


class OpenFile:
    """One descriptor. `closing` closes it when no reference to it is left; without it, it is closed at once."""

    __slots__ = ("_checked", "_closing", "_fd", "_has_readers", "_identity", "_known", "_read_in", "_waits", "path")

    def __init__(self, path: str, closing: Closing | None = None, *, create: bool = True) -> None:
        self._fd = -1
        self._identity: Identity | None = None
        self._checked = (0, 0, 0.0)
        """The range that was found in the page cache last: from, to, and until when that counts."""
        self._waits = False
        """The file system cannot read without waiting; known once something was read in."""
        self._known: list[tuple[int, int, float]] = []
        """What was read in, to its end: from, to, and until when that counts."""
        self._read_in = (0, 0)
        """The latest range that was read in."""
        self._has_readers = False
        self._closing = closing
        self.path = path
        self._fd = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o644)

    def append(self, data: Bytes, rest: Bytes = b"") -> None:
        written = append(self._fd, data, rest)
        if written < len(data) + len(rest):
            data = b"".join((data, rest))
            size = self.size() - written
            try:
                with memoryview(data) as view:
                    while written < len(data):
                        written += append(self._fd, view[written:])
            except OSError:
                os.ftruncate(self._fd, size)  # the caller may go on, and what is appended next begins here
                raise

    def read_at(self, position: int, length: int) -> bytes:
        data = read_at(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := read_at(self._fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        self._checked = (0, 0, 0.0)
        self._known.clear()
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        sync_data(self._fd)

    def write_back(self, position: int, length: int) -> None:
        write_back(self._fd, position, length)

    def read_cached(self, position: int, length: int) -> bytes | None:
        return read_cached(self._fd, length, position, busy=self._is_busy)

    def _is_busy(self, position: int, length: int) -> bool:
        """Whether something may be reading these bytes in, so that pages that are there may have to be waited for."""
        file, end, now_s = self.identity, position + length, time.monotonic()
        if self._known and self._was_read_in(position, end, now_s):
            return not self._waits and _busy.has_now(file, position, end)
        return _busy.has_now(file, position, end) or _busy.has(file, position, end, now_s)

    def require_cached(self, position: int, length: int) -> None:
        end, now_s = position + length, time.monotonic()
        begin, until, until_s = self._checked if now_s < self._checked[2] else (position, position, now_s + CHECKED_S)
        if begin <= position and end <= until:
            return
        if not is_cached(self._fd, position, length, busy=self._is_busy(position, length)):
            self.missed(position, length)
            raise _not_cached(self, self.identity, position, length)
        adjoins = begin <= end and position <= until  # an answer and what is read ahead of the next one
        self._checked = (
            (min(begin, position), max(until, end), until_s) if adjoins else (position, end, now_s + CHECKED_S)
        )

    def keeping(self, position: int, length: int) -> NotCached:
        def keep(_at_least: int = 0) -> None:
            if reads_without_waiting(self._fd, position):  # not FUSE, which writes all of a file that is unmapped
                keep_in_cache(self._fd, position, length)

        what = f"{length} bytes at {position} of {self.path}"
        return NotCached(device_of_number(self.identity[0]), keep, length, what)

    def _was_read_in(self, position: int, end: int, now_s: float) -> bool:
        """Whether these bytes were lately read in, to their end, and none was missing since."""
        for begin, until, until_s in sorted(self._known):
            if begin <= position < until and now_s < until_s:
                position = until
        return position >= end

    def missed(self, position: int, length: int) -> None:
        """Bytes are missing: to look for them may have made the system read them, and what follows, again."""
        if not self._waits:
            end = position + length + (0 if self._has_readers else READ_AHEAD_BYTES)
            with _busy.changing:
                self._known = [one for one in self._known if one[1] <= position or end <= one[0]]

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            stat = os.fstat(self._fd)
            self._identity = (stat.st_dev, stat.st_ino)
        return self._identity

    def read_in(self, position: int, length: int) -> None:
        """Read bytes so that they are in the page cache. Once there are readers at several places the system reads
        nothing ahead: for N of them that would be N times megabytes, and each waits for the others'."""
        begin, until = self._read_in
        if not self._has_readers and until and not begin <= position < until + ONE_READER_BYTES:
            self._has_readers = True
            read_nothing_ahead(self._fd)
        at, end = position, position + length
        with _busy.reading(self.identity, position, end):
            while at < end and (got := read_into_cache(self._fd, at, end - at, ahead=not self._has_readers)):
                at += got
        self._read_in = (position, at)
        if not self._known:
            self._waits = not reads_without_waiting(self._fd, position)
        with _busy.changing:  # a list of its own: the broker's thread may be looking at the other
            self._known = [*self._known[1 - KNOWN_MAX :], (position, at, time.monotonic() + KNOWN_S)]

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
        return MAY_MOVE_OPEN_FILES and len(self._live) - len(self._open) < self._held_max

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

    def close_below(self, path: str) -> None:
        """Close a file, or the files in a directory, before the path is moved: see `MAY_MOVE_OPEN_FILES`."""
        for number, opened in list(self._open.items()):
            if opened.path == path or opened.path.startswith(path + "/"):
                self.forget(number)
                opened.close()

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

    __slots__ = ("_descriptors", "_identity", "_number", "_state", "path")

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self.path = path
        self._number = next(_numbers)
        self._descriptors = descriptors
        self._identity = descriptors.open(self._number, path, create=True).identity
        self._state = state_of(device_of_number(self._identity[0]))

    def _opened(self) -> OpenFile:
        found = self._descriptors.find(self._number)
        return found if found is not None else self._open_again()

    def _open_again(self) -> OpenFile:
        opened = self._descriptors.open(self._number, self.path, create=False)
        if opened.identity != self._identity:
            self._descriptors.forget(self._number)
            raise OSError(errno.ESTALE, "another file has taken its place", self.path)
        return opened

    def _opened_already(self) -> OpenFile:
        """Raises NotCached: opening a file may wait for the disk."""
        found = self._descriptors.find(self._number)
        if found is not None:
            return found
        raise NotCached(device_of_number(self._identity[0]), self._reopen, 0, f"opening of {self.path}")

    def _reopen(self, at_least: int = 0) -> None:
        self._opened()

    def append(self, data: Bytes, rest: Bytes = b"") -> None:
        if not _no_wait.is_set:
            self._opened().append(data, rest)
            return
        opened, state = self._opened_already(), self._state
        if state.overdue:
            # A write to the page cache may wait too, for a page's write-back or the journal. Ask the device first.
            raise NotCached(device_of_number(self._identity[0]), self._ask, 0, f"append to {self.path}")
        state.is_written = True
        opened.append(data, rest)

    def _ask(self, at_least: int = 0) -> None:
        read_from_device(self.path)

    def read_at(self, position: int, length: int) -> bytes:
        if not _no_wait.is_set:
            return self._opened().read_at(position, length)
        opened = self._opened_already()
        data = opened.read_cached(position, length)
        if data is None:
            opened.missed(position, length)
            raise _not_cached(self, self._identity, position, length)
        return data

    def read_cached(self, position: int, length: int) -> bytes | None:
        return self._opened().read_cached(position, length)

    def require_cached(self, position: int, length: int) -> None:
        self._opened_already().require_cached(position, length)

    def keeping(self, position: int, length: int) -> NotCached:
        return self._opened_already().keeping(position, length)

    def read_in(self, position: int, length: int) -> None:
        self._opened().read_in(position, length)

    def size(self) -> int:
        return self._opened().size()

    def truncate(self, size: int) -> None:
        self._opened().truncate(size)

    def sync(self) -> None:
        self._opened().sync()

    def write_back(self, position: int, length: int) -> None:
        with suppress(OSError):  # it was removed
            self._opened().write_back(position, length)

    def fileno(self) -> int:
        return self._opened().fileno()

    def held(self) -> OpenFile | CachedFile:
        if not self._descriptors.may_hold:
            return self
        return self._opened_already() if _no_wait.is_set else self._opened()

    def close(self) -> None:
        opened = self._descriptors.forget(self._number)
        if opened is not None:
            opened.close()

    def __del__(self) -> None:
        self._descriptors.forget(self._number)


SYNC_TOGETHER_FROM = 8
"""Directories from which on their whole file system is synced, where the system can: each sync by itself waits for the
journal."""


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
OPEN_FILES_UNLIMITED = 1 << 16 if MAY_MOVE_OPEN_FILES else 1 << 11
"""Without a limit. Windows has none; its C runtime opens 8,192 files."""


def open_files_default() -> int:
    limit = descriptor_limit()
    return OPEN_FILES_UNLIMITED if limit is None else max(limit // OPEN_FILES_SHARE, OPEN_FILES_MIN)


def _read_in(path: str, at_least: int = 0) -> None:
    with open(path, "rb") as file:
        file.read()


GIVE_WAY_RATIO = 3.0
"""How long a thread with a long computation sleeps, relative to the CPU time that it has used since it last did."""
GIVE_WAY_LEAST_S, GIVE_WAY_MOST_S = 0.0001, 0.01
"""The least is long enough for a thread that waits for the interpreter to wake up."""


class _Computing(threading.local):
    """`until_s`: the thread's CPU time when it gave way last."""

    until_s = 0.0


_computing = _Computing()


class _Later:
    """Of one device."""

    def __init__(self, disk: FileDisk) -> None:
        self.whole: Later[bytes] = Later(disk._replace)
        self.derived: Later[Callable[[], bytes]] = Later(disk.derive)


class FileDisk:
    """The files of the operating system. `open_files_max` limits the descriptors of files that no connection sends
    from; see `disk_files.py`."""

    def __init__(self, open_files_max: int | None = None) -> None:
        self._any_device = _Later(self)
        self._by_device: dict[Device, _Later] = {}
        self._below: dict[str, _Later] = {}
        """By directory that `device_of` was asked about: a device that hangs does not keep the others' files back."""
        self._replaced = threading.Condition()
        self._replacing: set[str] = set()
        self._closing = Closing(os.close)
        self.descriptors = Descriptors(
            open_files_default() if open_files_max is None else open_files_max, self._closing
        )

    def stop(self) -> None:
        """End the disk's threads, once what waits is done. It can be used on."""
        for later in (self._any_device, *self._by_device.values()):
            later.whole.stop()
            later.derived.stop()
        self._closing.stop()

    def device_of(self, path: str) -> Device:
        device = device_of_number(os.stat(path).st_dev)
        later = self._by_device.get(device) or self._by_device.setdefault(device, _Later(self))
        self._below[f"{path}/"] = later
        return device

    def ask(self, device: Device) -> None:
        later = self._by_device.get(device)
        for above, one in list(self._below.items()):
            if one is later:
                read_from_device(f"{above}meta.properties")

    def _later(self, path: str) -> _Later:
        return next((later for above, later in self._below.items() if path.startswith(above)), self._any_device)

    def open(self, path: str) -> CachedFile:
        return CachedFile(path, self.descriptors)

    @property
    def no_wait(self) -> bool:
        return _no_wait.is_set

    @no_wait.setter
    def no_wait(self, value: bool) -> None:
        _no_wait.is_set = value

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            if not _no_wait.is_set:
                return file.read()
            stat = os.fstat(file.fileno())
            data = read_cached(file.fileno(), stat.st_size, 0, busy=lambda _position, _length: False)
        if data is None:
            device = device_of_number(stat.st_dev)
            raise NotCached(device, partial(_read_in, path), stat.st_size, f"read of {path}")
        return data

    def replace(self, path: str, data: bytes | Callable[[], bytes], durable: bool = True) -> None:
        later = self._later(path)
        later.whole.settle(path)
        later.derived.settle(path)
        self._replace(path, data, durable)

    def replace_soon(self, path: str, data: bytes) -> None:
        self._later(path).whole.put(path, data)

    def replace_derived(self, path: str, content: Callable[[], bytes]) -> None:
        self._later(path).derived.put(path, content)

    def give_way(self) -> None:
        used_s = time.thread_time() - _computing.until_s
        time.sleep(min(max(used_s * GIVE_WAY_RATIO, GIVE_WAY_LEAST_S), GIVE_WAY_MOST_S))
        _computing.until_s = time.thread_time()

    def settle_derived(self, directory: str) -> None:
        self._later(f"{directory}/").derived.settle_below(directory)

    def derive(self, path: str, content: Callable[[], bytes]) -> None:
        try:
            self._replace(path, content(), durable=False)
        except OSError as error:
            if is_shortage(error):
                raise  # it is tried again

    def _replace(self, path: str, data: bytes | Callable[[], bytes], durable: bool = True) -> None:
        with self._replaced:
            self._replaced.wait_for(lambda: path not in self._replacing)
            self._replacing.add(path)
        try:
            self._write_beside(path, data() if callable(data) else data, durable)
        finally:
            with self._replaced:
                self._replacing.discard(path)
                self._replaced.notify_all()

    def _write_beside(self, path: str, data: bytes, durable: bool) -> None:
        beside = path + ".tmp"
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                sync_data(file.fileno())
        self.rename(beside, path)
        if durable:
            self.sync_names(os.path.dirname(path))

    def rename(self, path: str, new_path: str) -> None:
        if not MAY_MOVE_OPEN_FILES:
            self.descriptors.close_below(path)
            self.descriptors.close_below(new_path)
        os.replace(path, new_path)

    def remove(self, path: str) -> None:
        self._later(path).derived.settle(path)
        try:
            if os.path.isdir(path):
                os.rmdir(path)
            elif MAY_MOVE_OPEN_FILES:
                self._remove_file(path)
            else:
                self.descriptors.close_below(path)
                os.unlink(path)
        except FileNotFoundError:
            return

    def _remove_file(self, path: str) -> None:
        try:
            # Kept open until its name is removed, so that the last close frees the blocks, and not the unlink.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | OPEN_FLAGS)
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
        sync_directory(directory)

    def sync_all(self, directories: Sequence[str]) -> None:
        if len(directories) >= SYNC_TOGETHER_FROM and sync_file_system(directories[0]):
            return
        for directory in directories:
            for name in os.listdir(directory):
                sync_file(f"{directory}/{name}")
            self.sync_names(directory)

    def space(self, path: str) -> tuple[int, int]:
        usage = shutil.disk_usage(path)
        return usage.total, usage.free

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> _HeldLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o644)
        try:
            locked = try_lock(fd)
        except OSError:
            os.close(fd)
            raise
        if not locked:
            os.close(fd)
            raise AlreadyLocked(f"{path}: another process has this log directory")
        return _HeldLock(fd)
