"""Kills an appender to a log on two tiers with SIGKILL: `python -m tests.storage.tiered_crash --kills 200 --seed 1`.

After each kill the log is what was appended, no shorter than what was flushed, and each segment is where its state
says. The log goes on from life to life.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from controller.storage import headers_of
from controller.storage.segment import LOG_SUFFIX, base_offset_of
from controller.storage.tiered_log import TieredLog
from controller.storage.tiers import COPYING
from statemachines.log_segment import ON_SSD, SegmentState
from tests.storage.appender import PARTITION, made
from tests.storage.life import read_all
from tests.storage.tiered_appender import open_tiers

FOLDER = "{}-{}".format(*PARTITION)


def live_and_die(path: str, seed: int, draw: random.Random) -> int:
    """Run an appender for a while and kill it wherever it is. Returns the offset that it said it had flushed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.storage.tiered_appender", path, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    flushed = 0
    with process, process.stdout:
        assert process.stdout.readline() == "ready\n"
        lines = [process.stdout.readline() for _ in range(draw.randint(0, 4))]
        try:
            process.wait(draw.random() * 0.03)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        lines += list(process.stdout)
    assert process.returncode == -signal.SIGKILL
    for line in lines:
        flushed = int(line) if line.endswith("\n") else flushed
    return flushed


def check(path: str, seed: int, flushed: int, before: list[bytes]) -> tuple[list[bytes], Counter[str], bool]:
    """Recover. Returns what the log holds, the states of its segments, and whether a copy was cut short by the kill."""
    cut_short = any(Path(path).glob(f"*/*{COPYING}")) or any(Path(path).glob(f"*/*/*{COPYING}"))
    directory, hdds = open_tiers(path)
    try:
        assert directory.health.cause is None, directory.health.cause
        log = directory.create(PARTITION)
        assert isinstance(log, TieredLog)
        assert log.log_end_offset >= flushed, f"flushed to {flushed}, ends at {log.log_end_offset}"
        held = read_all(log)
        assert held[: len(before)] == before, "what earlier lives left has changed"
        offset = headers_of(before[-1])[0].next_offset if before else 0
        for data in held[len(before) :]:
            assert data == made(seed, offset), f"the batch at {offset} is not the one appended"
            offset = headers_of(data)[0].next_offset
        check_files(Path(path), log)
        directory.checkpoint_recovery_points()
        return held, Counter(segment.state.name for segment in log.segments), cut_short
    finally:
        for one in (directory, *hdds):
            one.unlock()


def check_files(path: Path, log: TieredLog) -> None:
    on_ssd = bases(path / "ssd" / FOLDER)
    on_hdds = [base for hdd in ("hdd1", "hdd2") for base in bases(path / hdd / f"{FOLDER}-tier")]
    assert on_ssd == [one.base_offset for one in log.segments if one.state in ON_SSD]
    with_hdd = (SegmentState.Cached, SegmentState.WithoutCache, SegmentState.ActiveOnHdd)
    assert sorted(on_hdds) == [one.base_offset for one in log.segments if one.state in with_hdd]
    assert not list(path.glob(f"*/*/*{COPYING}"))


def bases(folder: Path) -> list[int]:
    names = [one.name for one in folder.iterdir()] if folder.exists() else []
    return sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)


def run(path: str, kills: int, seed: int) -> tuple[Counter[str], int, int]:
    """Returns the states of the segments at the end, how many copies were cut short, and the batches."""
    draw = random.Random(seed)
    held: list[bytes] = []
    states: Counter[str] = Counter()
    cut_short = 0
    for life in range(kills):
        life_seed = seed * 100_000 + life
        try:
            flushed = live_and_die(path, life_seed, draw)
            held, states, was_cut = check(path, life_seed, flushed, held)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, life {life}: {error!r}") from error
        cut_short += was_cut
    return states, cut_short, len(held)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.tiered_crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as path:
        states, cut_short, batches = run(path, chosen.kills, chosen.seed)
    print(f"{chosen.kills} kills, {cut_short} within a copy; {batches} batches, segments at the end: {dict(states)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
