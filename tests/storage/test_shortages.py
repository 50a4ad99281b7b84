"""Without a file descriptor an operation fails by itself: the log directory stays online and the operation succeeds
later. What is the disk's own takes the directory offline."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.storage import LogDirectory, LogOffline, LogSettings, OutOfResources, PartitionLog, headers_of
from controller.storage import disk_files as disk_files_module
from controller.storage.disk_files import FileDisk
from tests.processes import eventually
from tests.storage.batches import Clock, batch

KEY = ("t", 0)
SETTINGS = LogSettings(segment_bytes=300, index_interval_bytes=100, retention_bytes=600)
CAUSES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing loses power here, and syncs would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)


@contextmanager
def short_of_descriptors(monkeypatch: pytest.MonkeyPatch, after: int, cause: int = errno.EMFILE) -> Iterator[None]:
    """Files and directories can be opened `after` times more, and then not."""
    left = [after]

    def limited(opens: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if left[0] <= 0:
                raise OSError(cause, os.strerror(cause), arguments[0])
            left[0] -= 1
            return opens(*arguments, **named)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", limited(os.open))
        patch.setattr(os, "listdir", limited(os.listdir))
        patch.setattr(disk_files_module, "open", limited(open), raising=False)
        yield


def opened(path: Path) -> LogDirectory:
    return LogDirectory(FileDisk(), str(path), lambda _: SETTINGS, Clock())


def filled(path: Path) -> LogDirectory:
    """Nine records, flushed, in several segments."""
    directory = opened(path)
    log = directory.create(KEY)
    for _ in range(9):
        log.append_as_leader(batch(), 1)
    log.flush()
    directory.checkpoint_recovery_points()
    return directory


def append(directory: LogDirectory) -> None:
    """Enough for a roll."""
    for _ in range(4):
        directory.logs[KEY].append_as_leader(batch(), 1)


OPERATIONS: dict[str, Callable[[LogDirectory], object]] = {
    "append": append,
    "roll": lambda directory: directory.logs[KEY].roll(),
    "flush": lambda directory: directory.logs[KEY].flush(),
    "read": lambda directory: [directory.logs[KEY].read(offset, 100).read() for offset in range(9)],
    "create": lambda directory: directory.create(("other", 0), bytes(range(16))),
    "delete": lambda directory: directory.delete(KEY) if KEY in directory.logs else None,
    "purge": LogDirectory.purge_deleted,
    "checkpoint": LogDirectory.checkpoint_recovery_points,
    "close": LogDirectory.close,
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: errno.errorcode[cause])
@pytest.mark.parametrize("name", [*OPERATIONS])
def test_an_operation_succeeds_once_there_are_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cause: int
) -> None:
    failures = 0
    for after in range(20):
        directory = filled(tmp_path / str(after))
        if name == "flush":
            append(directory)
        end, said = directory.logs[KEY].log_end_offset, ""
        try:
            with short_of_descriptors(monkeypatch, after, cause):
                OPERATIONS[name](directory)
        except OutOfResources as error:
            said = str(error)
        if said:
            failures += 1
            assert os.strerror(cause) in said
            assert directory.health.cause is None
            OPERATIONS[name](directory)
        if KEY in directory.logs and name != "close":
            check(directory.logs[KEY], end)
        if name == "delete":
            assert KEY not in directory.logs
            assert directory.purge_deleted() == 1
        directory.unlock()
        again = opened(tmp_path / str(after))
        assert again.health.cause is None
        if KEY in again.logs:
            check(again.logs[KEY], end)
        again.unlock()
    assert failures or name in ("read", "purge")


def check(log: PartitionLog, end: int) -> None:
    """No record is missing and none is there twice."""
    assert log.log_end_offset >= end
    for offset in range(log.log_end_offset):
        (header, *_) = headers_of(log.read(offset, 1).read())
        assert header.base_offset == offset


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: errno.errorcode[cause])
def test_a_start_without_descriptors_raises_and_gives_the_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: int
) -> None:
    filled(tmp_path).unlock()
    refused = 0
    for after in range(40):
        try:
            with short_of_descriptors(monkeypatch, after, cause):
                directory = opened(tmp_path)
        except OutOfResources:
            refused += 1
            continue
        assert directory.health.cause is None
        check(directory.logs[KEY], 9)
        directory.unlock()
    assert refused > 3


@pytest.mark.parametrize("cause", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, None])
def test_what_is_the_disks_own_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: int | None
) -> None:
    directory = filled(tmp_path)
    with short_of_descriptors(monkeypatch, 0, 0 if cause is None else cause), pytest.raises(LogOffline):
        append(directory)
    assert isinstance(directory.health.cause, OSError)


def test_a_checkpoint_put_off_is_written_once_there_are_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.storage.device_pools.AGAIN_S", 0.01)
    directory = filled(tmp_path)
    tried = threading.Event()
    replace = FileDisk._replace

    def short(self: FileDisk, path: str, data: bytes, durable: bool = True) -> None:
        tried.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    checkpoint = tmp_path / "replication-offset-checkpoint"
    directory._disk._later(f"{directory.path}/").whole._write = lambda path, data: short(directory._disk, path, data)  # type: ignore[attr-defined,arg-type]
    directory.write_high_watermarks({KEY: 7}, soon=True)
    assert tried.wait(30)
    directory._disk._later(f"{directory.path}/").whole._write = lambda path, data: replace(directory._disk, path, data)  # type: ignore[attr-defined,arg-type]
    eventually(lambda: checkpoint.exists() and checkpoint.read_text() == "0\n1\nt 0 7\n", "it is written")
    directory.unlock()
