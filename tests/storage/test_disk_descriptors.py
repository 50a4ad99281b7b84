"""Log files have few descriptors, however many there are, and what is read is never another file's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.storage import LogDirectory, LogSettings, PartitionLog
from controller.storage.disk import FileRange
from controller.storage.disk_files import FileDisk
from tests.processes import eventually
from tests.storage.batches import Clock, batch
from tests.storage.test_disk_closing import open_paths

LIMIT = 12
TINY = LogSettings(segment_bytes=100)
"""A segment for each batch."""


def open_logs(path: Path) -> int:
    return sum(one.startswith(str(path)) and one.removesuffix(" (deleted)").endswith(".log") for one in open_paths())


def tiny_segments(path: Path, count: int, disk: FileDisk) -> PartitionLog:
    log = PartitionLog(disk, str(path), TINY, Clock())
    for number in range(count):
        log.append_as_leader(batch(value=b"%d" % number), 0)
    return log


def test_many_segments_have_as_many_descriptors_as_the_limit(tmp_path: Path) -> None:
    disk = FileDisk(LIMIT)
    log = tiny_segments(tmp_path, 60, disk)
    assert len(log.segment_offsets) == 60
    assert open_logs(tmp_path) <= LIMIT
    for offset in (*range(60), *reversed(range(60))):
        assert b"%d" % offset in log.read(offset, 1 << 20).read()
    assert open_logs(tmp_path) <= LIMIT
    log.flush()
    log.truncate_to(30)
    log.append_as_leader(batch(value=b"again"), 0)
    log.close()
    eventually(lambda: open_logs(tmp_path) == 0, "removed files are closed on a thread")
    again = PartitionLog(FileDisk(LIMIT), str(tmp_path), TINY, Clock())
    assert again.log_end_offset == 31
    assert b"again" in again.read(30, 1 << 20).read()


def test_a_range_keeps_its_file_while_others_are_opened_and_it_is_removed(tmp_path: Path) -> None:
    disk = FileDisk(LIMIT)
    log = tiny_segments(tmp_path, 40, disk)
    held = [log.read(offset, 1 << 20) for offset in range(3)]
    numbers = [one.file.fileno() for one in held]
    log.delete_records_before(40, 40)
    assert log.apply_retention(40) == 39
    tiny_segments(tmp_path, 40, disk)
    assert [one.file.fileno() for one in held] == numbers
    assert all(b"%d" % offset in one.read() for offset, one in enumerate(held))


def test_too_many_held_ones_are_opened_for_each_piece(tmp_path: Path) -> None:
    log = tiny_segments(tmp_path, 60, FileDisk(LIMIT))
    ranges = [log.read(offset, 1 << 20) for offset in range(60)]
    assert open_logs(tmp_path) <= LIMIT * 7 // 3
    assert all(b"%d" % offset in one.read() for offset, one in enumerate(ranges))
    assert open_logs(tmp_path) <= LIMIT * 7 // 3
    del ranges
    gc.collect()
    assert open_logs(tmp_path) <= LIMIT


def test_another_file_of_the_name_is_not_taken_for_the_first(tmp_path: Path) -> None:
    disk = FileDisk(1)
    path = str(tmp_path / "one")
    first = disk.open(path)
    first.append(b"first")
    other = disk.open(str(tmp_path / "other"))
    os.rename(path, path + ".moved")
    with pytest.raises(FileNotFoundError):
        first.read_at(0, 5)
    assert not os.path.exists(path), "it is not made again"
    Path(path).write_bytes(b"other")
    with pytest.raises(OSError, match="another file has taken its place"):
        first.append(b"x")
    assert Path(path).read_bytes() == b"other"
    os.rename(path + ".moved", path)
    assert FileRange(first.held(), 0, 5).read() == b"first"
    other.close()
    first.close()
    assert len(disk.descriptors) == 0
    assert first.read_at(0, 1) == b"f", "a close that failed midway is tried again"


UNDER_A_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from pathlib import Path
from controller.storage import LogDirectory, LogSettings
from controller.storage.disk_files import FileDisk
from tests.storage.batches import Clock, batch
from tests.storage.test_disk_descriptors import TINY
directory = LogDirectory(FileDisk(), sys.argv[1], lambda _: TINY, Clock())
for number in range(150):
    directory.create(("t", number)).append_as_leader(batch(), 0)
for _ in range(150):
    directory.logs["t", 0].append_as_leader(batch(), 0)
directory.health.check()
assert all(len(log.read(0, 1 << 20).read()) for log in directory.logs.values())
directory.close()
again = LogDirectory(FileDisk(), sys.argv[1], lambda _: TINY, Clock())
again.health.check()
assert again.was_clean and len(again.logs) == 150 and again.logs["t", 0].log_end_offset == 151
"""


def test_partitions_and_segments_beyond_what_a_process_may_have_open(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", UNDER_A_LIMIT, str(tmp_path / "logs")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_an_index_that_is_written_leaves_no_descriptor(tmp_path: Path) -> None:
    disk = FileDisk(LIMIT)
    directory = LogDirectory(disk, str(tmp_path), lambda _: TINY, Clock())
    log = directory.create(("t", 0))
    for _ in range(30):
        log.append_as_leader(batch(), 0)
    log.flush()
    directory.close()
    assert len(disk.descriptors) == 0
