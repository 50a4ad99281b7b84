"""What an empty log takes: a broker has thousands of them, and a simulated estate a million."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from controller.machine.disk import MemoryDisk
from controller.storage import LogDirectory, LogSettings
from controller.storage.disk_files import FileDisk
from controller.storage.segment import Segment
from tests.storage.batches import batch

LOGS = 100
AT_MOST_BYTES = 1_200
"""With its three files on the disk in memory."""


def test_an_empty_log_takes_little_until_something_is_written_to_it() -> None:
    directory = LogDirectory(MemoryDisk(), "/logs", lambda _topic: LogSettings(), lambda: 1_700_000_000_000)
    directory.create(("first", 0))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(LOGS):
            log = directory.create(("t", number), b"0123456789abcdef")
            log.assign_epoch(3, 0)
            log.flush()
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took / LOGS < AT_MOST_BYTES
    assert directory.health.cause is None
    log = directory.logs["t", 7]
    log.append_as_leader(batch(2), 3)
    assert log.log_end_offset == 2
    assert directory.logs["t", 8].log_end_offset == 0


def test_a_log_without_a_batch_has_no_file_open_and_is_what_it_was_when_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Segment] = []
    closed: list[Segment] = []
    open_segment, close_segment = Segment.__init__, Segment.close

    def opens(segment: Segment, *arguments: object) -> None:
        opened.append(segment)
        open_segment(segment, *arguments)  # type: ignore[arg-type]

    def closes(segment: Segment) -> None:
        closed.append(segment)
        close_segment(segment)

    monkeypatch.setattr(Segment, "__init__", opens)
    monkeypatch.setattr(Segment, "close", closes)
    directory = LogDirectory(FileDisk(), str(tmp_path), lambda _topic: LogSettings(), lambda: 1_700_000_000_000)
    log = directory.create(("t", 0))
    assert (log.is_bare, log.size_bytes, log.active_bytes, log.segment_offsets) == (True, 0, 0, (0,))
    assert len(log.producers) == 0
    assert not log.truncate_to(0)
    assert not log.truncate_to(5)
    assert directory.apply_retention({("t", 0): 0}) == 0
    assert opened == closed, "nothing so far has needed it"
    log.append_as_leader(batch(2), 0)
    assert (log.is_bare, log.segment_offsets, len(opened), len(closed)) == (False, (0,), 2, 1)
    assert log.size_bytes == log.active_bytes == (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size > 0
    directory.close()
    again = LogDirectory(FileDisk(), str(tmp_path), lambda _topic: LogSettings(), lambda: 1_700_000_000_000)
    assert again.logs["t", 0].log_end_offset == 2
    again.close()


def test_logs_without_an_epoch_share_what_says_so_and_one_that_gets_an_epoch_has_its_own() -> None:
    directory = LogDirectory(MemoryDisk(), "/logs", lambda _topic: LogSettings(), lambda: 1_700_000_000_000)
    first, second = directory.create(("t", 0)), directory.create(("t", 1))
    assert first.epochs is second.epochs
    first.assign_epoch(3, 0)
    first.append_as_leader(batch(1), 3)
    second.restart_at(7)
    assert (first.epochs.latest, second.epochs.latest) == (3, -1)
