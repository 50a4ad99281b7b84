"""The figures of a run, the same for the simulation and for the physical runs, and the runs that are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

import numpy as np

from controller.labs.tiers.workload import Architecture, Flush, HostLatency, LabWorkload

Figures: TypeAlias = dict[str, float]

BANDS_S = (0.010, 0.050, 0.100, 0.500)
"""Bounds of the five bands of a real-time job's p99, in seconds at the published scale."""


PEAK, PEAK_1_S = "peak over mean of disk writes", "peak over mean by the second"


class Case(Enum):
    """Which consumers read: the published case 1, and case 2 without and with the lagging ones."""

    Lagging = "lagging only"
    RealTime = "real-time only"
    Both = "real-time and lagging"

    def of(self, load: LabWorkload) -> LabWorkload:
        return replace(load, laggards=self is not Case.RealTime, real_time=self is not Case.Lagging)


@dataclass(frozen=True, slots=True)
class LabRun:
    """One cell of the comparison."""

    architecture: Architecture
    flush: Flush
    case: Case

    def __str__(self) -> str:
        return f"{self.architecture.name}, flush by {self.flush.value}, {self.case.value}"


@dataclass(slots=True)
class LabMeasurement:
    """What one broker did in the measured time. Latencies in seconds, from when an operation was due.

    `chunks` counts reads by kind of job and device ("cold hdd", "hot memory", ...), `disk_writes` has the bytes written
    by device and interval, `host` what a physical run's probes of the host took, `page_cache` the bytes that it had.
    """

    writes: list[float] = field(default_factory=list)
    cold_reads: list[float] = field(default_factory=list)
    job_reads: list[list[float]] = field(default_factory=list)
    chunks: dict[str, int] = field(default_factory=dict)
    disk_writes: dict[str, list[float]] = field(default_factory=dict)
    interval_s: float = 0.1
    host: HostLatency = field(default_factory=HostLatency)
    page_cache: float = math.nan

    @property
    def real_time_reads(self) -> list[float]:
        return [latency for job in self.job_reads for latency in job]

    def clear(self) -> None:
        """Forget what was counted while the caches became steady."""
        self.writes.clear()
        self.cold_reads.clear()
        for job in self.job_reads:
            job.clear()

    def count_reads(self, given: Mapping[str, float]) -> None:
        """Count the chunks that devices gave, by kind of job and device; the rest of the reads was in memory."""
        for kind, reads in (("cold", self.cold_reads), ("hot", self.real_time_reads)):
            hdd, ssd = (round(given.get(f"{kind} {device}", 0)) for device in ("hdd", "ssd"))
            memory = max(0, len(reads) - hdd - ssd)
            self.chunks |= {f"{kind} hdd": hdd, f"{kind} ssd": ssd, f"{kind} memory": memory}


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else math.nan


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def bands(jobs: Iterable[Sequence[float]], bounds: Sequence[float] = BANDS_S) -> list[float]:
    """Return the share of jobs whose p99 is in each of the bands that the bounds make."""
    found = [sum(percentile(job, 0.99) >= bound for bound in bounds) for job in jobs if job]
    return [found.count(band) / max(1, len(found)) for band in range(len(bounds) + 1)]


def peak_over_mean(intervals: Sequence[float]) -> float:
    """Return the most that was written in an interval over the mean of all, NaN if nothing was."""
    average = mean(intervals)
    return max(intervals) / average if average and average > 0 else math.nan


def joined(intervals: Sequence[float], count: int) -> list[float]:
    """Return the sums of so many intervals each; what is left at the end is not in them."""
    return [sum(intervals[at : at + count]) for at in range(0, len(intervals) - count + 1, count)]


def figures(nodes: Sequence[LabMeasurement], chunk: float, measured_s: float, time_ratio: float = 1.0) -> Figures:
    """Return the figures of a cluster of these brokers: milliseconds, MB/s a broker, shares of 1.

    Times of a scaled run are divided by `time_ratio`, so that runs at all scales have the published unit.
    """
    writes = [one / time_ratio for node in nodes for one in node.writes]
    cold = [one / time_ratio for node in nodes for one in node.cold_reads]
    jobs = [[one / time_ratio for one in job] for node in nodes for job in node.job_reads]
    hot = [one for job in jobs for one in job]
    counted = {kind: sum(node.chunks.get(kind, 0) for node in nodes) for kind in nodes[0].chunks}
    from_hdd, from_ssd = (sum(counted[f"{kind} {source}"] for kind in ("cold", "hot")) for source in ("hdd", "ssd"))
    hot_reads = sum(counted[f"hot {source}"] for source in ("hdd", "ssd", "memory"))
    all_reads = sum(counted.values())
    mb = chunk / 1e6 / measured_s / len(nodes)
    seconds = max(1, round(1.0 / nodes[0].interval_s))
    disks = [series for node in nodes for name, series in node.disk_writes.items() if sum(series)]
    found = {
        "write mean ms": 1e3 * mean(writes),
        "write p99 ms": 1e3 * percentile(writes, 0.99),
        "cold read mean ms": 1e3 * mean(cold),
        "cold read p99 ms": 1e3 * percentile(cold, 0.99),
        "cold MB/s": mb * sum(counted[f"cold {source}"] for source in ("hdd", "ssd", "memory")),
        "HDD MB/s": mb * from_hdd,
        "HDD share": from_hdd / all_reads if all_reads else math.nan,
        "SSD hit rate": from_ssd / (from_ssd + from_hdd) if from_ssd + from_hdd else math.nan,
        "real-time mean ms": 1e3 * mean(hot),
        "real-time p99 ms": 1e3 * percentile(hot, 0.99),
        "real-time HDD share": counted["hot hdd"] / hot_reads if hot_reads else math.nan,
        PEAK: statistics.median(map(peak_over_mean, disks)) if disks else math.nan,
        PEAK_1_S: statistics.median(peak_over_mean(joined(each, seconds)) for each in disks) if disks else math.nan,
    }
    return found | {f"band {at + 1}": share for at, share in enumerate(bands(jobs))} if hot else found
