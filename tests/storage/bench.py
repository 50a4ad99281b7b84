"""What a bare append and a bare read cost: `python -m tests.storage.bench [--directory D]`.

CPU time of this process (user and system), no fsync but where it says so, best of three. The disk's own speed is not
measured: the bytes go to the page cache, as a broker's do.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

from controller.storage import LogSettings, PartitionLog
from controller.storage.disk_files import FileDisk
from tests.storage.batches import batch


def opened(path: str) -> PartitionLog:
    return PartitionLog(FileDisk(), path, LogSettings(), lambda: int(time.time() * 1000))


def best(work: Callable[[], int], times: int = 3) -> tuple[float, int]:
    """CPU seconds of the quickest run, and how many operations it was."""
    found = []
    for _ in range(times):
        started = time.process_time()
        count = work()
        found.append((time.process_time() - started, count))
    return min(found)


def appends(data: bytes, count: int) -> tuple[float, int]:
    def work() -> int:
        with tempfile.TemporaryDirectory(dir=DIRECTORY) as path:
            log = opened(path)
            for _ in range(count):
                log.append_as_leader(data, 1)
        return count

    return best(work)


def follows(data: bytes, count: int) -> tuple[float, int]:
    """`count` batches, as many at a time as a fetch of 1 MiB brings."""
    records = int.from_bytes(data[23:27]) + 1
    together = max(1, (1 << 20) // len(data))
    answers = []
    for first in range(0, count, together):
        offsets = range(first * records, (first + together) * records, records)
        answers.append(b"".join(offset.to_bytes(8) + data[8:] for offset in offsets))

    def work() -> int:
        with tempfile.TemporaryDirectory(dir=DIRECTORY) as path:
            log = opened(path)
            for answer in answers:
                log.append_as_follower(answer)
        return len(answers) * together

    return best(work)


def reads(path: str, data: bytes, count: int) -> tuple[tuple[float, int], tuple[float, int], int]:
    log = opened(path)
    for _ in range(count):
        log.append_as_leader(data, 1)
    records = int.from_bytes(data[23:27]) + 1
    end = log.log_end_offset

    def random_reads() -> int:
        offset = 1
        for _ in range(20_000):
            offset = offset * 7919 % end
            log.read(offset, 1 << 20)
        return 20_000

    def tail_reads() -> int:
        for _ in range(20_000):
            log.read(end - records, 1 << 20, up_to=end)
        return 20_000

    return best(random_reads), best(tail_reads), end


def recovery(path: str) -> tuple[float, int]:
    size = os.path.getsize(f"{path}/{0:020d}.log")

    def work() -> int:
        opened(path)
        return size

    return best(work)


def main() -> None:
    for name, count, value in (("one record of 100 B", 1, 100), ("16 KiB", 140, 100), ("1 MiB", 1000, 1024)):
        data = batch(count, value=bytes(value))
        repeats = min(20_000, 400_000_000 // len(data))
        seconds, done = appends(data, repeats)
        line = f"append as leader, a batch of {name} ({len(data)} bytes): {seconds / done * 1e6:.1f} us"
        print(f"{line}, {len(data) * done / seconds / 1e6:.0f} MB/s")
        seconds, done = follows(data, min(repeats, 200_000_000 // len(data)))
        print(f"  as follower, 1 MiB of such batches in one append: {seconds / done * 1e6:.1f} us a batch")
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as path:
        random_reads, tail_reads, _ = reads(path, batch(140, value=bytes(100)), 10_000)
        print(f"look-up of a random offset in 160 MB: {random_reads[0] / random_reads[1] * 1e6:.1f} us")
        print(f"look-up of the last batch, up to the end: {tail_reads[0] / tail_reads[1] * 1e6:.1f} us")
        seconds, size = recovery(path)
        print(f"recovery with every CRC checked: {size / seconds / 1e6:.0f} MB/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", help="where the logs go; a temporary folder by default")
    DIRECTORY = parser.parse_args().directory
    main()
