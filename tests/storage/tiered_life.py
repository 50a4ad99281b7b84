"""The life of a log on two tiers, in memory, with power cuts at every step of copies and evictions, against a model.

`python -m tests.storage.tiered_life --runs 10000` runs so many seeds; each raises AssertionError where log and model
part. Checked after each operation and each crash: the log is what was appended, every segment is whole on the tiers
that its state says, no file is left over, and none is counted twice.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable
from random import Random

from controller.machine.disk import MemoryDisk
from controller.storage import LogDirectory, LogSettings
from controller.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, base_offset_of
from controller.storage.tiered_log import TieredLog, TierSteps, copying
from controller.storage.tiers import COPYING
from statemachines.log_segment import ON_SSD, SegmentState
from statemachines.tier_placement import Tier, next_to_copy, to_evict
from tests.storage.batches import Clock
from tests.storage.life import SETTINGS, Life

HDDS = ("hdd1", "hdd2")


class OnTwoTiers:
    """A log's copies and evictions, and the check of where its segments are. `folder`: its directory's name."""

    folder: str
    disk: MemoryDisk
    clock: Clock
    draw: Random
    directory: LogDirectory
    copy: TierSteps | None = None
    lost: frozenset[str] = frozenset()
    """HDDs that are offline."""

    def open_tiers(self, settings: LogSettings) -> LogDirectory:
        self.copy = None
        self.hdds = [LogDirectory(self.disk, path, lambda _: settings, self.clock) for path in HDDS]
        for one in self.hdds:
            if one.path in self.lost:
                one.health.fail(OSError(errno.EIO, "lost"))
        stores = [one.as_store() for one in self.hdds]
        directory = LogDirectory(self.disk, "logs", lambda _: settings, self.clock, stores=stores)
        assert directory.health.cause is None, directory.health.cause
        return directory

    @property
    def tiered(self) -> TieredLog:
        (log,) = self.directory.logs.values()
        assert isinstance(log, TieredLog)
        return log

    def copy_a_step(self) -> None:
        """One step of a copy: what comes next may be a truncation, an append or a crash."""
        self.disk.now_ms = self.clock.now_ms
        if self.copy is None:
            segment = self._next_to_copy()
            if segment is None:
                return
            self.copy = copying(self.tiered, segment)
            self._resume(None)
        else:
            self._resume(self.call)

    def _next_to_copy(self) -> Segment | None:
        log = self.tiered
        usable = any(store.is_usable for store in log.tiers.stores)
        return next_to_copy(log.segments) if usable and not log.is_being_cleaned else None

    def _resume(self, call: Callable[[], object] | None) -> None:
        assert self.copy is not None
        try:
            if call is None:
                self.call = self.copy.send(None)
                return
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - the copy decides what it means
                self.call = self.copy.throw(error)
            else:
                self.call = self.copy.send(result)
        except StopIteration:
            self.copy = None
        except BaseException:
            self.copy = None
            raise

    def copy_all(self) -> None:
        while self.copy is not None or self._next_to_copy() is not None:
            self.copy_a_step()

    def evict(self) -> None:
        log = self.tiered
        used = log.ssd_bytes()
        for segment in to_evict(log.segments, used, used // 2, used // 3):
            log.evict(segment)

    def place(self) -> None:
        self.tiered.tiers.append_to = self.draw.choice(list(Tier))

    def hang(self) -> None:
        """An HDD answers no more, or again."""
        store = self.draw.choice(self.tiered.tiers.stores)
        store.answers = not store.answers

    def check_placement(self) -> None:
        """Each segment is whole where its state says, and nowhere else."""
        log, folder = self.tiered, f"{self.folder}-tier"
        hdds = [hdd for hdd in HDDS if hdd not in self.lost]
        on_ssd = sizes(self.disk, f"logs/{self.folder}")
        on_hdd = {base: (hdd, size) for hdd in hdds for base, size in sizes(self.disk, f"{hdd}/{folder}").items()}
        for segment in log.segments:
            check_segment(segment, segment is log.segments[-1], on_ssd, on_hdd)
            check_indexes(self.disk, segment)
            if segment.state is SegmentState.Cached:
                name = f"{segment.base_offset:020d}{LOG_SUFFIX}"
                copy = self.disk.read(f"{on_hdd[segment.base_offset][0]}/{folder}/{name}")
                assert copy == self.disk.read(f"logs/{self.folder}/{name}"), f"{name}: another copy"
        known = set(log.segment_offsets)
        assert set(on_ssd) <= known, "an orphan on the SSD"
        assert set(on_hdd) <= known, "an orphan on an HDD"
        count = sum(len(sizes(self.disk, f"{hdd}/{folder}")) for hdd in hdds)
        assert count == len(on_hdd), "a segment is on two HDDs"
        if self.copy is None:
            left = [name for hdd in hdds for name in listed(self.disk, f"{hdd}/{folder}") if name.endswith(COPYING)]
            assert not left, left


class TieredLife(OnTwoTiers, Life):
    folder = "lives-0"

    def _open(self) -> LogDirectory:
        return self.open_tiers(SETTINGS)

    def operations(self) -> list[Callable[[], None]]:
        return [
            *super().operations(),
            *[self.copy_a_step] * 14,
            self.copy_all,
            *[self.evict] * 3,
            self.place,
            self.hang,
        ]

    def close(self) -> None:
        super().close()
        for one in self.hdds:
            one.close()

    def check(self, end: int) -> None:
        self.check_placement()
        super().check(end)

    def checked_step(self) -> None:
        self.step()
        if self.directory.health.cause is None:
            self.check_placement()


def check_segment(segment: Segment, is_last: bool, on_ssd: dict[int, int], on_hdd: dict[int, tuple[str, int]]) -> None:
    base, state = segment.base_offset, segment.state
    active = (SegmentState.Active, SegmentState.ActiveOnHdd)
    assert is_last == (state in active), f"{base} is {state.name}"
    assert (state in ON_SSD) == (base in on_ssd), f"{base} is {state.name}"
    if state in ON_SSD:
        assert on_ssd[base] == segment.size_bytes
    if state in (SegmentState.Cached, SegmentState.WithoutCache, SegmentState.ActiveOnHdd):
        assert on_hdd[base][1] == segment.size_bytes, f"{base} is {state.name}"
    if state in (SegmentState.OnlyCache, SegmentState.Active):
        assert base not in on_hdd, f"{base} is {state.name}"


def check_indexes(disk: MemoryDisk, segment: Segment) -> None:
    """A segment that an HDD alone has was sealed there, or copied with what was derived from it."""
    if segment.state is SegmentState.WithoutCache:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = segment.path_of(suffix)
            assert path.rpartition("/")[2] in listed(disk, path.rpartition("/")[0]), f"{path} is missing"


def listed(disk: MemoryDisk, directory: str) -> list[str]:
    try:
        return list(disk.names(directory))
    except FileNotFoundError:
        return []


def sizes(disk: MemoryDisk, directory: str) -> dict[int, int]:
    return {
        base: len(disk.read(f"{directory}/{name}"))
        for name in listed(disk, directory)
        if (base := base_offset_of(name, LOG_SUFFIX)) is not None
    }


def run(seed: int, steps: int = 100) -> TieredLife:
    life = TieredLife(seed)
    for _ in range(steps):
        life.checked_step()
    return life


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.tiered_life", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    chosen = parser.parse_args(arguments)
    states: dict[str, int] = {}
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        try:
            life = run(seed)
        except BaseException:
            print(f"seed {seed}", file=sys.stderr)
            raise
        for segment in life.tiered.segments:
            states[segment.state.name] = states.get(segment.state.name, 0) + 1
    print(f"{chosen.runs} runs from seed {chosen.seed}; segments at their ends: {states}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
