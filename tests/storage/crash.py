"""Kills an appender in the middle of appends and rolls, tears what it had not flushed, and looks at what recovery makes
of it: `python -m tests.storage.crash --kills 200 --seed 1`.

The log goes on from life to life. Each time it must be a beginning of what was appended, byte for byte, no shorter than
the last flush that the appender told of.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from controller.storage import headers_of
from tests.storage.appender import PARTITION, made, open_directory
from tests.storage.life import read_all

FOLDER = "{}-{}".format(*PARTITION)


@dataclass(slots=True)
class Flushed:
    """What an appender told last: everything below `offset`, which is `size` bytes into segment `base`."""

    offset: int = 0
    base: int = 0
    size: int = 0


@dataclass(slots=True)
class Tally:
    kills: int = 0
    torn: int = 0
    """Lives whose files were damaged after the kill."""
    cut: int = 0
    """Lives after which recovery cut something off."""
    segments: int = 0
    end_offset: int = 0
    tears: dict[str, int] = field(default_factory=dict)


def live_and_die(path: str, seed: int, draw: random.Random, flushed: Flushed) -> None:
    """Runs an appender until it has told of a few flushes, and kills it wherever it is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.storage.appender", path, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "ready\n"
        for _ in range(draw.randint(0, 3)):
            _take(process.stdout.readline(), flushed)
        try:
            # Killed as a line arrives it would always die just after a flush.
            process.wait(draw.random() * 0.03)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            _take(line, flushed)
    assert process.returncode == -signal.SIGKILL


def _take(line: str, flushed: Flushed) -> None:
    if line.endswith("\n"):
        flushed.offset, flushed.base, flushed.size = map(int, line.split())


def _cut(data: bytearray, start: int, draw: random.Random) -> None:
    del data[draw.randint(start, len(data)) :]


def _zero(data: bytearray, start: int, draw: random.Random) -> None:
    first = draw.randint(start, len(data))
    data[first:] = bytes(len(data) - first)


def _garble(data: bytearray, start: int, draw: random.Random) -> None:
    first = draw.randint(start, len(data) - 1)
    last = draw.randint(first, len(data) - 1)
    data[first : last + 1] = bytes(byte ^ draw.randint(1, 255) for byte in data[first : last + 1])


def _extend(data: bytearray, _: int, draw: random.Random) -> None:
    data += bytes(draw.randint(1, 5000))


TEARS: tuple[Callable[[bytearray, int, random.Random], None], ...] = (_cut, _zero, _garble, _extend)


def tear(folder: Path, flushed: Flushed, draw: random.Random, tally: Tally) -> None:
    """What a power cut could have left: any file's bytes after the flush, and the indexes of what was not flushed."""
    damaged = False
    for log in sorted(folder.glob("*.log")):
        base = int(log.stem)
        if base < flushed.base or draw.random() < 0.3:
            continue
        start = flushed.size if base == flushed.base else 0
        data = bytearray(log.read_bytes())
        if start < len(data):
            how = draw.choice(TEARS)
            how(data, start, draw)
            log.write_bytes(data)
            tally.tears[how.__name__] = tally.tears.get(how.__name__, 0) + 1
            damaged = True
        for index in (log.with_suffix(".index"), log.with_suffix(".timeindex")):
            if index.exists() and draw.random() < 0.5:
                index.write_bytes(draw.randbytes(draw.randint(0, 100)))
    tally.torn += damaged


def check(path: str, seed: int, flushed: Flushed, before: list[bytes], tally: Tally) -> list[bytes]:
    """Recovers the log, and compares it with what was in it before this life and what this life appends."""
    directory = open_directory(path)
    try:
        assert directory.health.cause is None, directory.health.cause
        log = directory.create(PARTITION)
        assert log.log_end_offset >= flushed.offset, f"flushed to {flushed.offset}, ends at {log.log_end_offset}"
        held = read_all(log)
        assert held[: len(before)] == before, "what earlier lives left has changed"
        offset = headers_of(before[-1])[0].next_offset if before else 0
        for data in held[len(before) :]:
            assert data == made(seed, offset), f"the batch at {offset} is not the one appended"
            offset = headers_of(data)[0].next_offset
        assert offset == log.log_end_offset
        tally.cut += log.cut_bytes > 0
        tally.segments, tally.end_offset = len(log.segment_offsets), offset
        directory.checkpoint_recovery_points()
        flushed.offset, flushed.base, flushed.size = offset, log.segment_offsets[-1], log.active_bytes
    finally:
        # Not closed cleanly: the next life recovers again.
        directory.unlock()
    return held


def run(path: str, kills: int, seed: int) -> Tally:
    """AssertionError, with the seed and the life, where the log is not as it must be."""
    draw = random.Random(seed)
    tally, flushed = Tally(), Flushed()
    held: list[bytes] = []
    for life in range(kills):
        life_seed = seed * 100_000 + life
        live_and_die(path, life_seed, draw, flushed)
        tally.kills += 1
        tear(Path(path) / FOLDER, flushed, draw, tally)
        try:
            held = check(path, life_seed, flushed, held, tally)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, life {life}: {error}") from error
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="a file system to try; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as path:
        tally = run(os.path.join(path, "logs"), given.kills, given.seed)
    print(
        f"{tally.kills} kills, {tally.torn} of them with torn files ({tally.tears}), {tally.cut} with an end cut off; "
        f"{tally.end_offset} records in {tally.segments} segments, nothing lost that was flushed"
    )


if __name__ == "__main__":
    main()
