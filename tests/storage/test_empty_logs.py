"""What an empty log takes: a broker has thousands of them, and a simulated estate a million."""

from __future__ import annotations

import tracemalloc

from controller.storage import LogDirectory, LogSettings
from controller.storage.disk_memory import MemoryDisk
from tests.storage.batches import batch

LOGS = 100
AT_MOST_BYTES = 1_600
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
