"""The workload of the published evaluation, by its ratios, and the six architectures that it compares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from statemachines.device_model import MB, READ_AHEAD_BYTES, DeviceModel, hdd_model, ssd_model
from statemachines.tier_placement import FLUSH_SLICE_BYTES, FlushReason, flush_reason, flush_slice_wait_ms


class LogStorage(Enum):
    """Where log data is: HDDs alone, behind a block cache on SSDs, or in segments that move from SSDs to HDDs."""

    Disk = "hdd"
    FlashCache = "flashcache"
    OpenCas = "opencas"
    Tiered = "tiered"


class Flush(Enum):
    """Count flushes a segment in the produce that completes so many records, Rate flushes it in the background."""

    Count = "count"
    Rate = "rate"


@dataclass(frozen=True, slots=True)
class Architecture:
    """`bypass`: reads of data older than the page cache keeps do not enter it (O_DIRECT, or fadvise DONTNEED)."""

    name: str
    storage: LogStorage
    bypass: bool = False

    @property
    def keeps(self) -> bool:
        """Whether brokers keep in the page cache what a reader asks for next. Kafka's do not, so HDDs and block caches
        run without."""
        return self.bypass or self.storage is LogStorage.Tiered


ARCHITECTURES = (
    Architecture("HDD", LogStorage.Disk),
    Architecture("FlashCache-like", LogStorage.FlashCache),
    Architecture("OpenCAS-like", LogStorage.OpenCas),
    Architecture("tiered", LogStorage.Tiered),
    Architecture("HDD, cold reads bypass", LogStorage.Disk, bypass=True),
    Architecture("tiered, cold reads bypass", LogStorage.Tiered, bypass=True),
)

DIRTY_SHARE = 0.2
"""Of the page cache, what may wait to be flushed before producers wait: Linux's `vm.dirty_ratio`."""
NEVER = 1 << 62
HDD, SSD = hdd_model(), ssd_model()
LAGGING_SHARE = 0.2
"""Of the jobs, those that lag by more than the page cache keeps: published."""

_SIZES = ("chunk", "read_ahead", "receive_buffer", "send_buffer", "segment", "record", "flush_slice", "copy_piece")
_LAGS = ("near_s", "least_lag_s", "most_lag_s")
_TIMES = (*_LAGS, "round_trip_s", "flush_every_s", "memory_s", "counted_s", "warm_s", "measured_s")


@dataclass(frozen=True, slots=True)
class HostLatency:
    """Seconds of operations that need no device, as measured on a host; empty: the model's constants.

    `writes_s` and `reads_s` are of a chunk in memory, from when they were due, so they include the wait for a core;
    `begun_reads_s` are of the same reads from when they began, all without the network. `device_reads_s`: what a read
    of `read_ahead` bytes takes besides the device. `hdd_late_s` and `ssd_late_s`: by how much the services of devices
    took longer than the model's.
    """

    writes_s: tuple[float, ...] = ()
    reads_s: tuple[float, ...] = ()
    begun_reads_s: tuple[float, ...] = ()
    device_reads_s: tuple[float, ...] = ()
    hdd_late_s: tuple[float, ...] = ()
    ssd_late_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LabWorkload:
    """One broker of a cluster in which each partition has `replicas` replicas. Bytes, seconds.

    The published figures are the defaults: 80 GB of page cache, 170 MB/s, lags of 10 to 150 minutes, a fifth of the
    jobs lagging, 2 SSDs and 10 HDDs. The others are ours. 20 partitions per HDD: a disk that is flushed at 40 MB/s by
    2 MB/s a segment has 20 active ones. `ssd_time`: the SSDs hold the leaders' data of so many longest lags. A lagging
    job reads `catch_up` times as fast as its partition is written, at random times so that jobs do not stay in step,
    and begins anew when it has caught up. The others lag by up to `near_s`, the 8 minutes that the page cache holds,
    exponentially so that a fifth would lag by more. An HDD takes copies `copy_share` times as fast as leaders' data
    comes, `copy_piece` bytes at a time, as brokers do. A flush by rate writes `flush_slice` bytes at a time, spread
    over `flush_every_s`. `sample_s`: interval of the disks' writes; `counted_s`: that at which the kernel sees how long
    the lists of its page cache are (`FLUSH_TIME` in mm/memcontrol.c).

    Reads are those of Kafka's consumer with its defaults. Nearly all jobs lag by more than 1.2 s, so each fetch is as
    large as it may be, `chunk` (`max.partition.fetch.bytes`). The consumer's `receive_buffer` (`receive.buffer.bytes`)
    goes over the network each `round_trip_s`, half a millisecond within a data centre. The broker sends from the page
    cache at that pace, with up to `send_buffer` (`socket.send.buffer.bytes`) not yet acknowledged; `read_ahead` bytes
    are read ahead. `fetch_ahead`: the broker reads the chunk behind an answered one in the background, as ours does and
    Kafka's does not.
    """

    page_cache: float = 80 * 1024 * MB
    traffic: float = 170 * MB
    hdds: int = 10
    ssds: int = 2
    partitions: int = 200
    replicas: int = 3
    jobs: int = 200
    lagging: float = LAGGING_SHARE
    near_s: float = 482.0
    least_lag_s: float = 600.0
    most_lag_s: float = 9_000.0
    ssd_time: float = 1.2
    catch_up: float = 5.0
    chunk: float = 1024 * 1024
    read_ahead: float = READ_AHEAD_BYTES
    receive_buffer: float = 64 * 1024
    send_buffer: float = 100 * 1024
    round_trip_s: float = 0.0005
    fetch_ahead: bool = True
    segment: float = 1_000 * MB
    record: float = 1_000.0
    flush_records: int = 50_000
    flush_rate: float = 2 * MB
    flush_every_s: float = 1.0
    flush_slice: float = FLUSH_SLICE_BYTES
    copy_share: float = 1.1
    copy_piece: float = 256 * 1024
    sample_s: float = 0.1
    counted_s: float = 2.0
    memory: float = 5_000 * MB
    memory_s: float = 0.00005
    host: HostLatency = HostLatency()
    warm_s: float = 300.0
    measured_s: float = 300.0
    laggards: bool = True
    real_time: bool = True
    hdd: DeviceModel = HDD
    ssd: DeviceModel = SSD

    @property
    def cache_s(self) -> float:
        """Seconds of traffic that the page cache holds: 80 * 1024 / 170 = 482 at the published figures."""
        return self.page_cache / self.traffic

    @property
    def leaders(self) -> int:
        return self.partitions // self.replicas

    @property
    def ssd_bytes(self) -> float:
        """Capacity of all SSDs together."""
        return self.ssd_time * self.most_lag_s * self.traffic * self.leaders / self.partitions

    @property
    def copy_rate(self) -> float:
        """Bytes a second at which one HDD takes copies while a segment waits."""
        return self.copy_share * self.traffic * self.leaders / self.partitions / self.hdds

    @property
    def period_s(self) -> float:
        """Seconds between two chunks of a partition."""
        return self.chunk * self.partitions / self.traffic

    @property
    def windows(self) -> int:
        """Reads of `read_ahead` bytes that a fetch consists of."""
        return max(1, round(self.chunk / self.read_ahead))

    @property
    def window_s(self) -> float:
        """Seconds in which a consumer receives `read_ahead` bytes that are in memory."""
        return self.chunk / self.windows / self.receive_buffer * self.round_trip_s

    @property
    def sent_ahead_s(self) -> float:
        """Seconds that the network takes for what is in a full send buffer besides what is on its way."""
        return max(0.0, self.send_buffer / self.receive_buffer - 1) * self.round_trip_s

    @property
    def flush_chunks(self) -> int:
        """Chunks that a flush by count writes."""
        return max(1, round(self.flush_records * self.record / self.chunk))

    def flush_reason(self, flush: Flush, chunks: int) -> FlushReason | None:
        """Return why a partition with so many unflushed chunks is flushed now, None if it is not."""
        size = round(chunks * self.chunk)
        count, rate = (
            (self.flush_records, NEVER)
            if flush is Flush.Count
            else (NEVER, round(self.flush_rate * self.flush_every_s))
        )
        return flush_reason(round(size / self.record), size, 0, count, NEVER, rate)

    @property
    def flush_slices(self) -> int:
        """Slices of a chunk that is flushed by rate."""
        return max(1, math.ceil(self.chunk / self.flush_slice))

    def slice_wait_s(self, slices: int, logs: int) -> float:
        """Seconds from one slice of a device to its next, with so many waiting of so many partitions."""
        size, spread_ms = self.chunk / self.flush_slices, self.flush_every_s * 1000
        return flush_slice_wait_ms(slices * size, size, logs, self.flush_rate, spread_ms) / 1000

    def at_traffic(self, traffic: float) -> LabWorkload:
        """Return the workload with another traffic and the same devices, caches and lags."""
        return replace(self, traffic=traffic, ssd_time=self.ssd_time * self.traffic / traffic)

    def scaled(self, bytes_ratio: float, time_ratio: float, nodes_ratio: float = 1.0) -> LabWorkload:
        """Return the workload whose bytes and seconds are these times the ratios, on `nodes_ratio` times the devices,
        partitions and jobs; page cache and traffic follow the number of devices."""
        rate = bytes_ratio / time_ratio
        sizes = {name: getattr(self, name) * bytes_ratio for name in _SIZES}
        times = {name: getattr(self, name) * time_ratio for name in _TIMES}
        rates = {name: getattr(self, name) * rate for name in ("flush_rate", "memory")}
        return replace(
            self,
            page_cache=self.page_cache * bytes_ratio * nodes_ratio,
            traffic=self.traffic * rate * nodes_ratio,
            hdds=max(1, round(self.hdds * nodes_ratio)),
            ssds=max(1, round(self.ssds * nodes_ratio)),
            partitions=max(self.replicas, round(self.partitions * nodes_ratio)),
            jobs=max(5, round(self.jobs * nodes_ratio)),
            hdd=self.hdd.scaled(bytes_ratio, time_ratio),
            ssd=self.ssd.scaled(bytes_ratio, time_ratio),
            **(sizes | times | rates),
        )

    def ratios(self) -> dict[str, float]:
        """Return what two scales must share for their figures to coincide."""
        return {
            "least lag over cache time": self.least_lag_s / self.cache_s,
            "longest lag over cache time": self.most_lag_s / self.cache_s,
            "SSD time of leaders' data over longest lag": self.ssd_time,
            "HDD bandwidth, one reader, over traffic": self.hdds * self.hdd.bandwidth / self.traffic,
            "SSD bandwidth over traffic": self.ssds * self.ssd.bandwidth / self.traffic,
            "share of lagging jobs": self.lagging,
            "HDDs per SSD": self.hdds / self.ssds,
            "jobs per HDD": self.jobs / self.hdds,
            "SSD bandwidth over a consumer's network": self.ssd.bandwidth * self.round_trip_s / self.receive_buffer,
            "fetch over read-ahead": self.windows,
            "fetch over page cache": self.chunk / self.page_cache,
        }
