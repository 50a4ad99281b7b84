"""Where the chunks of a broker's log are written and read, by architecture: devices, block cache, segments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from controller.labs.tiers.caches import BlockCache, WritePolicy
from controller.labs.tiers.workload import LabWorkload, LogStorage
from statemachines.device_model import DeviceQueue
from statemachines.log_segment import ON_SSD, Active, Cached, Copying, OnlyCache, SegmentState, WithoutCache
from statemachines.tier_placement import Tier, append_tier, next_to_copy, read_tier, to_evict

EVICT_TO = 0.95
"""Of the SSDs' capacity, what eviction goes down to once they are full."""

SPAN = 1 << 24
"""Chunks are numbered from a partition's beginning: `partition * SPAN + number`."""


def chunk_of(partition: int, number: int) -> int:
    return partition * SPAN + number


@dataclass(frozen=True, slots=True)
class LabDraws:
    """What a seed decides before a run begins, the same in a simulation as on devices.

    `phase`: of a period, when a partition's chunks are due. `unflushed`: the chunks that wait for a flush by count.
    `jobs`: partition and lag in seconds of each job, None for a lagging one; both kinds are spread evenly. `begin_s`:
    when a lagging job reads first. `lags`: its lags in seconds, each when it begins anew. `gaps`: the seconds from when
    one of its fetches is due to when the next one is.
    """

    phase: list[float]
    unflushed: list[int]
    jobs: list[tuple[int, float | None]]
    begin_s: list[float]
    lags: list[Iterator[float]]
    gaps: list[Iterator[float]]


def drawn(load: LabWorkload, seed: int) -> LabDraws:
    draws = Random(seed)
    lagging = round(load.jobs * load.lagging)
    mean = load.near_s / math.log(1 / load.lagging)
    longest = 1 - math.exp(-load.near_s / mean)
    return LabDraws(
        [draws.random() for _ in range(load.partitions)],
        [draws.randrange(load.flush_chunks) for _ in range(load.partitions)],
        [(job % load.leaders, None) for job in range(lagging)]
        + [(job % load.leaders, -mean * math.log(1 - draws.random() * longest)) for job in range(load.jobs - lagging)],
        [draws.random() * load.period_s for _ in range(lagging)],
        [_uniform(Random(f"{seed} {job}"), load.least_lag_s, load.most_lag_s) for job in range(lagging)],
        [_uniform(Random(f"{seed} {job} fetches"), 0.0, 2 * load.period_s / load.catch_up) for job in range(lagging)],
    )


def _uniform(draws: Random, least: float, most: float) -> Iterator[float]:
    while True:
        yield draws.uniform(least, most)


def phases(load: LabWorkload, seed: int) -> list[float]:
    """Return by how much of a segment each partition's segments are shifted, the jitter of their rolls."""
    return [Random(f"{seed} {partition}").random() for partition in range(load.partitions)]


class Devices:
    """The disks of one broker, and where a partition's data is on them."""

    def __init__(self, load: LabWorkload, phase: list[float]) -> None:
        self.load = load
        self.phase = phase
        self.hdds = [DeviceQueue(f"hdd{at}", load.hdd) for at in range(load.hdds)]
        self.ssds = [DeviceQueue(f"ssd{at}", load.ssd) for at in range(load.ssds)]
        self.per_segment = max(1, round(load.segment / load.chunk))
        """Chunks of a segment."""

    def shift(self, partition: int) -> int:
        """Chunks by which the segments of a partition begin earlier than another's: the jitter of their rolls."""
        return int(self.phase[partition] * self.per_segment)

    def segment_of(self, partition: int, number: int) -> int:
        """Return the segment of a chunk. Segments roll with jitter, not all partitions' at one time."""
        return (number + self.shift(partition)) // self.per_segment

    def hdd(self, partition: int) -> DeviceQueue:
        return self.hdds[partition % len(self.hdds)]

    def ssd(self, partition: int) -> DeviceQueue:
        return self.ssds[partition % len(self.hdds) * len(self.ssds) // len(self.hdds)]

    def past(self, partitions: range, seconds: float) -> Iterator[int]:
        """Yield the chunks of the last seconds before 0, in the order in which they were written."""
        for back in range(int(seconds / self.load.period_s), 0, -1):
            for partition in partitions:
                yield chunk_of(partition, SPAN // 2 - back)


class FlushTurns:
    """The slices that wait to be flushed by rate on one device, log after log in the order in which they became due."""

    def __init__(self, load: LabWorkload) -> None:
        self.load = load
        self.is_running = False
        self._waiting: dict[int, int] = {}

    def add(self, partition: int) -> None:
        """A chunk of a partition is due."""
        self._waiting[partition] = self._waiting.get(partition, 0) + self.load.flush_slices

    def next(self) -> tuple[int, float] | None:
        """Return the partition whose slice is due now, and the seconds until the next one is; None if none waits."""
        if not self._waiting:
            return None
        wait_s = self.load.slice_wait_s(sum(self._waiting.values()), len(self._waiting))
        partition = next(iter(self._waiting))
        self._waiting[partition] -= 1
        if not self._waiting[partition]:
            del self._waiting[partition]
        return partition, wait_s


class DiskStore:
    """HDDs alone."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.later: Callable[..., None] = lambda _time, _action, *_arguments: None
        """Calls an action at a time, with that time and the arguments."""

    def write(self, now: float, partition: int, number: int, nbytes: float) -> float:
        """Write a chunk of a partition or a part of it; return when it is on stable storage."""
        return self.devices.hdd(partition).submit(now, ("write", partition), nbytes, write=True)

    def home(self, partition: int) -> DeviceQueue:
        """Return the device of the file system that a partition is written to: its flushes by rate are paced."""
        return self.devices.hdd(partition)

    def read(
        self, now: float, partition: int, number: int, reader: object, part: int = 0, parts: int = 1
    ) -> tuple[str, float]:
        """Read a part of a chunk that is not in the page cache; return from where, and when it is in memory."""
        return "hdd", self.devices.hdd(partition).submit(now, reader, self.devices.load.chunk / parts)


class CachedStore(DiskStore):
    """HDDs behind a block cache on the SSDs. A block is a chunk, numbered as in the files of a physical run."""

    def __init__(self, devices: Devices, policy: WritePolicy, ways: int | None) -> None:
        super().__init__(devices)
        load = devices.load
        blocks = int(load.ssd_bytes / load.chunk)
        self.ways = ways
        self.cache = BlockCache(blocks, policy, ways)
        self._to_clean: list[deque[int]] = [deque() for _ in devices.hdds]
        self._cleaning_until = [0.0] * load.hdds
        if policy is not WritePolicy.WriteAround:
            past = devices.past(range(load.partitions), 1.1 * load.ssd_bytes / load.traffic)
            held = [chunk + devices.shift(chunk // SPAN) for chunk in past]
            dirty = held[-int(0.2 * blocks) :] if policy is WritePolicy.WriteBack else ()
            self.cache.preload(held, dirty)

    def config(self) -> dict[str, Any]:
        """Return what the file system of a physical run needs to begin with an equal cache."""
        return {
            "policy": self.cache.policy.value,
            "blocks": self.cache.capacity,
            "ways": self.ways,
            "held": [*self.cache.blocks()],
            "dirty": [*self.cache.dirty_blocks()],
        }

    def _block(self, partition: int, number: int) -> int:
        return chunk_of(partition, number + self.devices.shift(partition))

    def write(self, now: float, partition: int, number: int, nbytes: float) -> float:
        done = now
        work = self.cache.write(self._block(partition, number))
        if work.fast:
            done = max(done, self.devices.ssd(partition).submit(now, ("write", partition), nbytes, write=True))
        if work.slow:
            done = max(done, self.devices.hdd(partition).submit(now, ("write", partition), nbytes, write=True))
        self._clean(now, work.cleaned)
        return done

    def read(
        self, now: float, partition: int, number: int, reader: object, part: int = 0, parts: int = 1
    ) -> tuple[str, float]:
        work = self.cache.read(self._block(partition, number), part, parts)
        nbytes = self.devices.load.chunk / parts
        self._clean(now, work.cleaned)
        if work.fast:
            return "ssd", self.devices.ssd(partition).submit(now, reader, nbytes)
        done = self.devices.hdd(partition).submit(now, reader, nbytes)
        self.later(done, self._fill, partition, reader, nbytes)
        return "hdd", done

    def _fill(self, now: float, partition: int, reader: object, nbytes: float) -> None:
        self.devices.ssd(partition).submit(now, reader, nbytes, write=True)

    def _clean(self, now: float, blocks: list[int]) -> None:
        """Queue dirty blocks, and write those of each disk one after the other."""
        for block in blocks:
            disk = block // SPAN % len(self._to_clean)
            self._to_clean[disk].append(block)
            self._clean_next(now, disk)

    def _clean_next(self, now: float, disk: int) -> None:
        if self._to_clean[disk] and self._cleaning_until[disk] <= now:
            owner, chunk = self._to_clean[disk].popleft() // SPAN, self.devices.load.chunk
            self.devices.ssd(owner).submit(now, "clean", chunk)
            self._cleaning_until[disk] = self.devices.hdd(owner).submit(now, "clean", chunk, write=True)
            self.later(self._cleaning_until[disk], self._clean_next, disk)


@dataclass(slots=True)
class LabSegment:
    """A leader's segment that an SSD has or had: the facts of `tier_placement.PlacedSegment`."""

    partition: int
    number: int
    state: SegmentState
    size_bytes: int
    sealed_ms: int


class TieredStore(DiskStore):
    """Leaders write to the SSDs, followers to the HDDs. The rules of copies and evictions are `tier_placement`'s."""

    def __init__(self, devices: Devices) -> None:
        super().__init__(devices)
        load = devices.load
        self.segments: dict[tuple[int, int], LabSegment] = {}
        self._uncopied: list[list[LabSegment]] = [[] for _ in devices.hdds]
        held = int(load.ssd_bytes * EVICT_TO / load.segment) // max(1, load.leaders)
        for each in range(load.leaders):
            last = self.devices.segment_of(each, SPAN // 2 - 1)
            for back in range(held - 1, -1, -1):
                self._add(each, last - back, Cached if back else Active)

    def _add(self, partition: int, segment: int, state: SegmentState) -> None:
        chunks = (segment + 1) * self.devices.per_segment - self.devices.shift(partition) - SPAN // 2
        ends = chunks * self.devices.load.period_s
        size = round(self.devices.load.segment)
        self.segments[partition, segment] = LabSegment(partition, segment, state, size, round(1000 * ends))

    def home(self, partition: int) -> DeviceQueue:
        is_leader = partition < self.devices.load.leaders
        on_hdd = append_tier(is_leader, followers_on=Tier.HDD) is Tier.HDD
        return self.devices.hdd(partition) if on_hdd else self.devices.ssd(partition)

    def write(self, now: float, partition: int, number: int, nbytes: float) -> float:
        return self.home(partition).submit(now, ("write", partition), nbytes, write=True)

    def read(
        self, now: float, partition: int, number: int, reader: object, part: int = 0, parts: int = 1
    ) -> tuple[str, float]:
        if not self.on_ssd(partition, number):
            return super().read(now, partition, number, reader, part, parts)
        return "ssd", self.devices.ssd(partition).submit(now, reader, self.devices.load.chunk / parts)

    def on_ssd(self, partition: int, number: int) -> bool:
        segment = self.segments.get((partition, self.devices.segment_of(partition, number)))
        return segment is not None and read_tier(segment.state) is Tier.SSD

    def appended(self, partition: int, number: int) -> None:
        """A chunk was appended: if it is the first of a segment, the one before became inactive."""
        before = self.devices.segment_of(partition, number - 1)
        if self.devices.segment_of(partition, number) != before:
            self.rolled(partition, before)

    def rolled(self, partition: int, segment: int) -> None:
        """A segment became inactive, and the next one active."""
        self.segments[partition, segment].state = OnlyCache
        self._uncopied[partition % len(self._uncopied)].append(self.segments[partition, segment])
        self._add(partition, segment + 1, Active)

    def begin_copy(self, disk: int) -> LabSegment | None:
        """Return the segment that is now copied to this HDD, if any waits."""
        if (segment := next_to_copy(self._uncopied[disk])) is not None:
            self._uncopied[disk].remove(segment)
            segment.state = Copying
        return segment

    def copied(self, segment: LabSegment) -> None:
        """The whole segment is on the HDD; the oldest of such segments leave SSDs that are too full."""
        segment.state = Cached
        on_ssd = [each for each in self.segments.values() if each.state in ON_SSD]
        full = self.devices.load.ssd_bytes
        for each in to_evict(on_ssd, sum(one.size_bytes for one in on_ssd), round(full), round(EVICT_TO * full)):
            each.state = WithoutCache


def store_of(storage: LogStorage, devices: Devices) -> DiskStore:
    if storage is LogStorage.Disk:
        return DiskStore(devices)
    if storage is LogStorage.Tiered:
        return TieredStore(devices)
    if storage is LogStorage.FlashCache:
        blocks = int(devices.load.ssd_bytes / devices.load.chunk)
        return CachedStore(devices, WritePolicy.WriteBack, min(512, blocks))
    return CachedStore(devices, WritePolicy.WriteThrough, None)
