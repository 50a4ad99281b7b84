"""Files that are replaced on another thread: the latest content, never after a replacement that came later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.storage import LogDirectory, LogOffline, LogSettings
from controller.storage.device_pools import Later
from controller.storage.disk_files import FileDisk
from tests.processes import eventually
from tests.storage.batches import Clock, batch

LIMIT_S = 30.0


class Gate:
    """A write that waits until it may, or fails."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.fails = False

    def write(self, path: str, data: bytes) -> None:
        self.begun.release()
        assert self.allowed.acquire(timeout=LIMIT_S)
        if self.fails:
            raise OSError("planted")
        self.written.append((path, data))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.allowed.release(100)


def test_of_what_waits_the_latest_alone_is_written(gate: Gate) -> None:
    later = Later(gate.write)
    later.put("a", b"1")
    assert gate.begun.acquire(timeout=LIMIT_S)
    for data in (b"2", b"3"):
        later.put("a", data)
        later.put("b", data)
    gate.allowed.release(3)
    eventually(lambda: len(gate.written) == 3, "all is written")
    assert gate.written == [("a", b"1"), ("a", b"3"), ("b", b"3")]


def test_once_settled_nothing_comes_later(gate: Gate) -> None:
    later = Later(gate.write)
    later.put("a", b"1")
    assert gate.begun.acquire(timeout=LIMIT_S)
    later.put("a", b"2")
    later.put("b", b"2")
    later.settle("b")  # it waits still: nothing to wait for
    settled = threading.Thread(target=later.settle, args=("a",))
    settled.start()
    assert settled.is_alive()
    gate.allowed.release()
    settled.join(LIMIT_S)
    assert gate.written == [("a", b"1")]


def test_a_failure_is_raised_to_the_next_who_asks_for_that_file(gate: Gate) -> None:
    later = Later(gate.write)
    gate.fails = True
    gate.allowed.release(2)
    for path in ("a", "b"):
        later.put(path, b"1")
        assert gate.begun.acquire(timeout=LIMIT_S)
    with pytest.raises(OSError, match="planted"):
        later.settle("a")
    later.settle("a")
    with pytest.raises(OSError, match="planted"):
        later.settle("b")


def test_a_deleted_partition_is_not_brought_back_by_a_checkpoint_that_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = LogDirectory(FileDisk(), str(tmp_path), lambda _: LogSettings(), Clock())
    for number in range(20):
        one = ("one", number)
        directory.create(one).append_as_leader(batch(), 0)
        directory.write_high_watermarks({one: number + 1}, soon=True)
        directory.delete(one)
        assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n0\n"
    directory.close()


def test_a_checkpoint_that_failed_takes_its_directory_offline_with_the_next(tmp_path: Path) -> None:
    directory = LogDirectory(FileDisk(), str(tmp_path), lambda _: LogSettings(), Clock())
    (tmp_path / "replication-offset-checkpoint.tmp").mkdir()
    directory.write_high_watermarks({("one", 0): 1}, soon=True)

    def offline() -> bool:
        try:
            directory.write_high_watermarks({("one", 0): 2}, soon=True)
            directory.write_high_watermarks({("one", 0): 3}, soon=True)
        except LogOffline:
            return True
        return False

    eventually(offline, "the directory is offline")
    directory.close()
