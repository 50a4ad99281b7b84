"""What is in the page cache is read without waiting; what is not is read in by another thread first."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from controller import system
from controller.storage import LogSettings, PartitionLog, disk_files
from controller.storage.disk import NotCached
from controller.storage.disk_files import CachedFile, FileDisk
from tests.processes import eventually
from tests.storage.batches import batch

MEGABYTE = 1024 * 1024


@pytest.fixture
def disk() -> FileDisk:
    return FileDisk()


@pytest.fixture
def file(disk: FileDisk, tmp_path: Path) -> CachedFile:
    """Of a megabyte, none of which is in the page cache."""
    made = disk.open(str(tmp_path / "file"))
    made.append(bytes(MEGABYTE))
    made.sync()
    if not system.HAS_NOWAIT:
        pytest.skip("the system can't tell what is in its page cache")
    os.posix_fadvise(made.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if system.is_cached(made.fileno(), 0, MEGABYTE, busy=True):
        pytest.skip("the file system does not evict")
    return made


def test_what_is_not_in_the_page_cache_is_named_and_read_in(disk: FileDisk, file: CachedFile, tmp_path: Path) -> None:
    with pytest.raises(NotCached, match=f"read of {MEGABYTE} bytes at 0 of {tmp_path}/file") as found:
        file.require_cached(0, MEGABYTE)
    assert found.value.device == disk.device_of(str(tmp_path))
    assert found.value.size_bytes == MEGABYTE
    found.value.read_in()
    file.require_cached(0, MEGABYTE)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("splices", [True, False])
def test_all_that_is_asked_for_is_read_in(
    file: CachedFile, monkeypatch: pytest.MonkeyPatch, ahead: bool, splices: bool
) -> None:
    if not splices:

        def sendfile(*_: object) -> int:
            raise OSError(errno.EINVAL, "this file system cannot splice")

        monkeypatch.setattr(os, "sendfile", sendfile)
    end = MEGABYTE - 1000
    position = 1000
    while position < end and (got := system.read_into_cache(file.fileno(), position, end - position, ahead=ahead)):
        position += got
    assert position == end
    assert system.is_cached(file.fileno(), 1000, end - 1000, busy=True)
    assert system.read_into_cache(file.fileno(), MEGABYTE, 1, ahead=ahead) == 0


def test_a_hole_within_a_range_is_found(file: CachedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_files, "CHECKED_S", 0.0)
    file.read_at(0, MEGABYTE)
    file.require_cached(0, MEGABYTE)
    os.posix_fadvise(file.fileno(), 512 * 1024, 64 * 1024, os.POSIX_FADV_DONTNEED)
    with pytest.raises(NotCached):
        file.require_cached(0, MEGABYTE)
    file.require_cached(0, 512 * 1024)


@pytest.mark.parametrize("cachestat", [True, False])
@pytest.mark.parametrize("busy", [True, False])
def test_ranges_of_any_place_and_length(
    file: CachedFile, monkeypatch: pytest.MonkeyPatch, cachestat: bool, busy: bool
) -> None:
    if not cachestat:
        monkeypatch.setattr(system, "_cachestat", [lambda _fd, _position, _length: None])
    fd = file.fileno()
    for position, length in ((0, 1), (4095, 2), (100_000, 300_000), (MEGABYTE - 1, 1), (0, MEGABYTE)):

        def is_evicted(position: int = position, length: int = length) -> bool:  # a busy system keeps pages for a while
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return not system.is_cached(fd, position, length, busy=busy)

        eventually(is_evicted, f"{length} bytes at {position} are evicted")
        file.read_in(position, length)
        assert system.is_cached(fd, position, length, busy=busy), (position, length)


def test_a_busy_range_is_not_copied_to_find_out_whether_it_is_there(
    file: CachedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: read all of it. That took 0.16 ms of the broker's thread for half a megabyte, twice for each answer."""
    if sys.platform != "linux":
        pytest.skip("asked for page by page on Linux alone")
    copied: list[int] = []

    def preadv(fd: int, buffers: Sequence[memoryview], *rest: int) -> int:
        copied.append(got := real(fd, buffers, *rest))
        return got

    real = os.preadv
    file.read_in(0, MEGABYTE)
    monkeypatch.setattr(os, "preadv", preadv)
    assert system.is_cached(file.fileno(), 1_000, MEGABYTE - 1_000, busy=True)
    assert sum(copied) == 1
    assert not system._all_up_to_date(file.fileno(), 1_000, MEGABYTE), "a page more than the file has"
    os.posix_fadvise(file.fileno(), 512 * 1024, 64 * 1024, os.POSIX_FADV_DONTNEED)
    assert not system._all_up_to_date(file.fileno(), 1_000, MEGABYTE - 1_000)


def test_what_was_found_is_looked_for_again_since_the_system_may_evict_it(
    disk: FileDisk, file: CachedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: count what was found or read in as there for a second. DAMON evicted pages within milliseconds."""
    looks: list[tuple[int, int]] = []

    def is_cached(fd: int, position: int, length: int, *, busy: bool) -> bool:
        looks.append((position, length))
        return system.is_cached(fd, position, length, busy=busy)

    monkeypatch.setattr(disk_files, "is_cached", is_cached)
    monkeypatch.setattr(disk_files, "CHECKED_S", 1e6)
    file.read_in(0, MEGABYTE)
    file.require_cached(0, 600_000)
    file.require_cached(100, 500_000)  # an answer is sent at once
    file.require_cached(600_000, 400_000)  # what is read ahead of the next
    file.require_cached(0, 600_000)
    file.require_cached(500_000, 500_000)
    assert looks == [(0, 600_000), (600_000, 400_000)]
    file._opened()._checked = (0, 0, 0.0)
    monkeypatch.setattr(disk_files, "CHECKED_S", 0.0)
    file.require_cached(0, MEGABYTE)
    os.posix_fadvise(file.fileno(), 512 * 1024, 64 * 1024, os.POSIX_FADV_DONTNEED)
    with pytest.raises(NotCached):
        file.require_cached(0, MEGABYTE)
    disk.no_wait = True
    try:
        assert file.read_at(10, 100) == bytes(100)
        with pytest.raises(NotCached):
            file.read_at(540_000, 100)
    finally:
        disk.no_wait = False


def test_a_window_is_busy_for_as_long_as_a_device_takes(file: CachedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages are in the page cache before they are read."""
    monkeypatch.setattr(disk_files, "BUSY_S", 0.0)
    seen: list[bool] = []

    def is_cached(fd: int, position: int, length: int, *, busy: bool) -> bool:
        seen.append(busy)
        return True

    def read_in(fd: int, position: int, length: int, *, ahead: bool) -> int:
        file.require_cached(100, 100)
        return length

    monkeypatch.setattr(disk_files, "CHECKED_S", 0.0)
    monkeypatch.setattr(disk_files, "is_cached", is_cached)
    monkeypatch.setattr(disk_files, "read_into_cache", read_in)
    file.read_in(0, MEGABYTE)
    file.require_cached(100, 100)
    assert seen == [True, False]


def test_what_was_read_in_to_its_end_is_not_read_again_to_ask_for_it(
    file: CachedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: take all that lies near to what was read in for busy. For each answer its megabyte was copied twice."""
    seen: list[bool] = []

    def is_cached(fd: int, position: int, length: int, *, busy: bool) -> bool:
        seen.append(busy)
        return system.is_cached(fd, position, length, busy=busy)

    monkeypatch.setattr(disk_files, "CHECKED_S", 0.0)
    monkeypatch.setattr(disk_files, "is_cached", is_cached)
    file.read_in(300_000, 300_000)
    file.read_in(0, 300_000)
    file.require_cached(10_000, 590_000)
    with disk_files._busy.reading(file._opened().identity, 400_000, 500_000):
        file.require_cached(300_000, 200_000)
        file.require_cached(0, 300_000)
    with suppress(NotCached):
        file.require_cached(10_000, 600_000)  # with some that were not read in
    file.read_in(0, 600_000)
    file._opened().missed(700_000, 100)
    file.require_cached(10_000, 590_000)
    file._opened().missed(300_000, 100)  # the system may read them again
    file.require_cached(10_000, 590_000)
    assert seen == [False, True, False, True, False, True]


def test_what_is_missing_counts_as_read_in_no_more(file: CachedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_files, "CHECKED_S", 0.0)
    opened, now_s = file._opened(), time.monotonic()
    file.read_in(0, 600_000)
    assert opened._was_read_in(0, 600_000, now_s)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with pytest.raises(NotCached):
        file.require_cached(0, 600_000)
    assert not opened._was_read_in(0, 1, now_s)


@pytest.mark.parametrize("length", [100, 70_000, 600_000])
def test_a_file_system_that_cannot_read_without_waiting_is_asked_for_what_was_read_in(
    disk: FileDisk, file: CachedFile, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """FUSE, and most network file systems: only a job finds out."""
    preadv = os.preadv

    def without_flags(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return preadv(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", without_flags)
    monkeypatch.setattr(disk_files, "CHECKED_S", 0.0)
    with pytest.raises(NotCached) as found:
        file.require_cached(1_000, length)
    found.value.read_in(length + 5_000)
    file.require_cached(1_000, length)
    disk.no_wait = True
    try:
        assert file.read_at(900 + length, 100) == bytes(100)
    finally:
        disk.no_wait = False


def test_once_there_are_several_readers_nothing_is_read_ahead(
    file: CachedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    advised: list[int] = []
    monkeypatch.setattr(disk_files, "read_nothing_ahead", advised.append)
    monkeypatch.setattr(disk_files, "ONE_READER_BYTES", 4096)
    for position in (200_000, 300_000, 401_000):
        file.read_in(position, 100_000)
        assert advised == []
    file.read_in(0, 100_000)
    file.read_in(600_000, 100_000)
    assert advised == [file.fileno()]


def test_a_file_that_is_read_in_does_not_make_others_busy(
    disk: FileDisk, file: CachedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = disk.open(str(tmp_path / "other"))
    other.append(bytes(MEGABYTE))
    seen: list[bool] = []

    def is_cached(fd: int, position: int, length: int, *, busy: bool) -> bool:
        seen.append(busy)
        return True

    monkeypatch.setattr(disk_files, "is_cached", is_cached)
    file.read_in(0, 100)
    file.require_cached(200, 100)
    other.require_cached(0, 100)
    assert seen == [True, False]


def test_a_reader_that_must_not_wait_reads_what_is_there_and_no_more(disk: FileDisk, file: CachedFile) -> None:
    disk.no_wait = True
    try:
        with pytest.raises(NotCached):
            file.read_at(0, 10)
        with pytest.raises(NotCached):
            disk.read(file.path)
        assert _read_in_and(file, lambda: file.read_at(MEGABYTE - 5, 10)) == bytes(5)
        assert _read_in_and(file, lambda: disk.read(file.path)) == bytes(MEGABYTE)
    finally:
        disk.no_wait = False


def _read_in_and(file: CachedFile, read: Callable[[], bytes]) -> bytes:
    """A busy system may evict pages before they are read: they are read in again then, as a broker does."""
    for _ in range(20):
        file.read_in(0, MEGABYTE)
        with suppress(NotCached):
            return read()
    raise AssertionError("pages do not stay in the page cache")


def test_a_system_that_cannot_tell_reads_as_before(file: CachedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "HAS_NOWAIT", False)
    file.require_cached(0, MEGABYTE)
    assert system.read_cached(file.fileno(), 10, 0, busy=lambda _position, _length: False) == bytes(10)


def test_what_was_written_lately_is_asked_for_when_it_is_sent(disk: FileDisk, file: CachedFile, tmp_path: Path) -> None:
    """Planted: take it for cached then, too. Where the page cache is small, it may be evicted within seconds."""
    (tmp_path / "log").mkdir()
    log = PartitionLog(disk, str(tmp_path / "log"), LogSettings(), lambda: 0)
    log.append_as_leader(batch(value=bytes(MEGABYTE // 2)), 0)
    log.flush()
    found = log.read_cached(0, 2 * MEGABYTE)
    os.posix_fadvise(found.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with pytest.raises(NotCached):
        found.file.require_cached(found.position, found.length)


@pytest.mark.parametrize(("position", "length"), [(0, MEGABYTE), (4_097, 1), (MEGABYTE - 1, 1), (500_000, MEGABYTE)])
def test_what_is_kept_is_in_the_page_cache(file: CachedFile, position: int, length: int) -> None:
    """In whole pages, up to the file's end. Which eviction it survives: `tests/labs/test_tiers_physical.py`."""

    def is_kept() -> bool:  # a busy system may evict it at once
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.keeping(position, length).read_in()
        return system.is_cached(file.fileno(), position, min(length, MEGABYTE - position), busy=False)

    eventually(is_kept, f"{length} bytes at {position} are there")


def test_what_can_not_be_kept_is_left_as_it_is(tmp_path: Path) -> None:
    """A directory, a pipe and a file that is closed can't be mapped."""
    read_end, write_end = os.pipe()
    directory = os.open(tmp_path, os.O_RDONLY)
    for fd in (read_end, write_end, directory, 10_000):
        system.keep_in_cache(fd, 0, MEGABYTE)
    for fd in (read_end, write_end, directory):
        os.close(fd)
