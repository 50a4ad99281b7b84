"""Removed files: the name goes at once, the blocks on a thread, and what is on its way out of one stays readable."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from controller.storage.disk import FileRange
from controller.storage.disk_files import Closing, FileDisk
from tests.processes import eventually


def open_paths() -> list[str]:
    """What this process has open."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:
            continue  # the directory's own
    return found


def test_descriptors_are_closed_in_order_on_a_thread_once_something_was_removed() -> None:
    closed: list[tuple[int, str]] = []
    closing = Closing(lambda fd: closed.append((fd, threading.current_thread().name)))
    closing.close(1)
    assert closed == [(1, threading.current_thread().name)]
    closing.begin()
    closing.begin()
    closing.close(2)
    closing.close(3)
    eventually(lambda: len(closed) == 3, "both are closed")
    assert closed[1:] == [(2, "disk-closing"), (3, "disk-closing")]


def test_a_removed_file_is_gone_at_once_and_let_go_with_its_last_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closers: list[str] = []
    close = os.close

    def noted(fd: int) -> None:
        closers.append(threading.current_thread().name)
        close(fd)

    monkeypatch.setattr(os, "close", noted)
    disk = FileDisk()
    path = str(tmp_path / "old.log")
    file = disk.open(path)
    file.append(b"records")
    on_its_way = FileRange(file.held(), 0, 7)
    disk.remove(path)
    assert not os.path.exists(path)
    del file
    assert on_its_way.read() == b"records"
    assert any(one.startswith(path) for one in open_paths())
    del on_its_way
    eventually(lambda: not any(one.startswith(path) for one in open_paths()), "its blocks are given back")
    assert set(closers) == {"disk-closing"}


def test_what_is_not_there_is_none_to_remove(tmp_path: Path) -> None:
    disk = FileDisk()
    disk.remove(str(tmp_path / "file"))
    disk.make_directory(str(tmp_path / "folder"))
    disk.remove(str(tmp_path / "folder"))
    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_that_cannot_be_closed_does_not_end_the_thread() -> None:
    """A network file system or FUSE writes back what is left at the close, and may refuse it."""
    closed: list[int] = []

    def close(fd: int) -> None:
        closed.append(fd)
        if fd == 1:
            raise OSError(errno.EIO, "no such file any more")

    closing = Closing(close)
    closing.begin()
    closing.close(1)
    closing.close(2)
    closing.stop()
    assert closed == [1, 2]
