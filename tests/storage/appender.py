"""A bare appender, to be killed: `python -m tests.storage.appender DIRECTORY SEED`.

Appends batches whose bytes follow from the seed and their offset, rolls small segments, flushes now and then, and says
on standard output, a line each, what it has flushed: the offset, the active segment's base and its size then.
"""

from __future__ import annotations

import random
import sys
import time

from controller.storage import LogDirectory, LogSettings
from controller.storage.disk_files import FileDisk
from tests.storage.batches import START_MS, batch

PARTITION = ("kills", 0)
SETTINGS = LogSettings(segment_bytes=20_000, index_interval_bytes=512, retention_ms=-1)


def open_directory(path: str) -> LogDirectory:
    return LogDirectory(FileDisk(), path, lambda _: SETTINGS, lambda: int(time.time() * 1000))


def made(seed: int, offset: int) -> bytes:
    """The batch that begins at `offset` in the life with this seed."""
    draw = random.Random(f"{seed} {offset}")
    value = draw.randbytes(draw.choice([0, 20, 100, 400, 3000]))
    return batch(
        draw.randint(1, 6),
        base_offset=offset,
        value=value,
        timestamp_ms=START_MS + offset,
        leader_epoch=seed % 100_000,
    )


def main(path: str, seed: int) -> None:
    draw = random.Random(seed)
    directory = open_directory(path)
    directory.health.check()
    log = directory.create(PARTITION)
    print("ready", flush=True)
    while True:
        offset = log.log_end_offset
        data = made(seed, offset)
        if draw.random() < 0.5:
            log.append_as_leader(data, seed % 100_000)
        else:
            log.append_as_follower(data)
        if draw.random() < 0.02:
            log.flush()
            last = log.segment_offsets[-1]
            print(log.log_end_offset, last, log.active_bytes, flush=True)
            if draw.random() < 0.3:
                directory.checkpoint_recovery_points()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
