"""One broker's log storage in virtual time: producers, flushes, consumers and copies as events on models of devices."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from controller.labs.tiers.caches import PageCache
from controller.labs.tiers.figures import LabMeasurement
from controller.labs.tiers.placement import (
    SPAN,
    Devices,
    FlushTurns,
    LabSegment,
    TieredStore,
    chunk_of,
    drawn,
    lags_of,
    phases,
    store_of,
)
from controller.labs.tiers.workload import DIRTY_SHARE, Architecture, Flush, LabWorkload
from statemachines.tier_placement import FlushReason


class LabBroker:
    """The events of one broker. `run` returns what was measured; the seed determines it."""

    def __init__(self, load: LabWorkload, architecture: Architecture, flush: Flush, seed: int) -> None:
        self.load = load
        self.flush = flush
        self.bypass = architecture.bypass
        self.random = random.Random(seed)
        self.draws = drawn(load, seed)
        self.phase = self.draws.phase
        self.lags = lags_of(load, seed)
        self.devices = Devices(load, phases(load, 0))
        for device in (*self.devices.hdds, *self.devices.ssds):
            device.interval_s = load.sample_s
        for devices, late_s in ((self.devices.hdds, load.host.hdd_late_s), (self.devices.ssds, load.host.ssd_late_s)):
            for device in devices if late_s else ():
                device.late_s = partial(self.random.choice, late_s)
        self.store = store_of(architecture.storage, self.devices)
        self.store.later = self.at
        self.cache = PageCache(int(load.page_cache / load.chunk), load.page_lists)
        for chunk in self.devices.past(range(load.partitions), load.cache_s):
            self.cache.insert(chunk, 0.0)
        self.measured = LabMeasurement(interval_s=load.sample_s)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._written = [-1] * load.partitions
        self._unflushed = [0] * load.partitions
        self._ahead: set[int] = set()
        self._turns: dict[str, FlushTurns] = {}
        self._slices_due = [0] * load.partitions
        self._flushed_slices = [0] * load.partitions

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, action, arguments))

    def run(self) -> LabMeasurement:
        load = self.load
        self._start()
        end = load.warm_s + load.measured_s
        measuring = False
        while self._events[0][0] < end:
            now, _, action, arguments = heapq.heappop(self._events)
            if not measuring and now >= load.warm_s:
                measuring = True
                self._reset()
            action(now, *arguments)
        first, last = int(load.warm_s / self.measured.interval_s) + 1, int(end / self.measured.interval_s)
        for device in (*self.devices.hdds, *self.devices.ssds):
            self.measured.disk_writes[device.name] = [device.writes.get(at, 0.0) for at in range(first, last)]
        return self.measured

    def _reset(self) -> None:
        self.measured.clear()
        self.store.from_hdd = self.store.from_ssd = 0

    def _start(self) -> None:
        load = self.load
        self._reset()
        for partition in range(load.partitions):
            self.at(self.phase[partition] * load.period_s, self._append, partition, 0)
            if self.flush is Flush.Count:
                self._unflushed[partition] = self.draws.unflushed[partition]
        for job, (partition, lag) in enumerate(self.draws.jobs):
            if lag is None:
                if load.laggards:
                    self.at(self.draws.begin_s[job], self._begin_lagging, partition, job)
            elif load.real_time:
                reads: list[float] = []
                self.measured.job_reads.append(reads)
                behind = math.ceil(lag / load.period_s)
                due = (self.phase[partition] - behind) * load.period_s + lag
                self.at(due, self._read_real_time, partition, job, -behind, due, reads)
        if isinstance(self.store, TieredStore):
            for disk in range(load.hdds):
                self.at(0.0, self._copy, self.store, disk, None, 0)

    # -- producers

    def _append(self, now: float, partition: int, number: int) -> None:
        """Append a chunk of produced records: it waits while too much is dirty, then goes to the page cache."""
        load = self.load
        due = (self.phase[partition] + number) * load.period_s
        if self._unflushed[partition] * load.chunk * load.partitions > DIRTY_SHARE * load.page_cache:
            self.at(now + load.flush_every_s, self._append, partition, number)
            return
        self._written[partition] = number
        done = now + self._host_s(load.host.writes_s)
        self.cache.insert(chunk_of(partition, SPAN // 2 + number), done)
        if isinstance(self.store, TieredStore) and partition < load.leaders:
            self.store.appended(partition, SPAN // 2 + number)
        self._unflushed[partition] += 1
        reason = load.flush_reason(self.flush, self._unflushed[partition])
        if reason is FlushReason.COUNT:
            self.at(done, self._flush_by_count, partition, number, due)
            return
        if reason is FlushReason.RATE:
            home = self.store.home(partition).name
            turns = self._turns.setdefault(home, FlushTurns(load))
            turns.add(partition)
            if not turns.is_running:
                turns.is_running = True
                self.at(done, self._flush_by_rate, turns)
        self.measured.writes.append(done - due)
        self.at(max(now, due + load.period_s), self._append, partition, number + 1)

    def _flush_by_count(self, now: float, partition: int, number: int, due: float) -> None:
        """Write what is to be flushed, all at once as `fdatasync` does. The produce that began it is answered then."""
        first = SPAN // 2 + number - self._unflushed[partition] + 1
        chunks = range(first, first + self._unflushed[partition])
        done = max(self.store.write(now, partition, each, self.load.chunk) for each in chunks)
        self.at(done, self._flushed_by_count, partition, number, due)

    def _flushed_by_count(self, now: float, partition: int, number: int, due: float) -> None:
        self._unflushed[partition] = 0
        self.measured.writes.append(now - due)
        self.at(max(now, due + self.load.period_s), self._append, partition, number + 1)

    def _flush_by_rate(self, now: float, turns: FlushTurns) -> None:
        """Have the next slice of a device's logs written, in the background."""
        turn = turns.next()
        turns.is_running = turn is not None
        if turn is not None:
            partition, wait_s = turn
            self._slices_due[partition] += 1
            if self._slices_due[partition] == 1:
                self._write_slice(now, partition)
            self.at(now + wait_s, self._flush_by_rate, turns)

    def _write_slice(self, now: float, partition: int) -> None:
        """Write one slice of a log; the next that is due follows when it is written."""
        chunk = self._flushed_slices[partition] // self.load.flush_slices
        done = self.store.write(now, partition, SPAN // 2 + chunk, self.load.chunk / self.load.flush_slices)
        self.at(done, self._slice_written, partition)

    def _slice_written(self, now: float, partition: int) -> None:
        self._flushed_slices[partition] += 1
        self._unflushed[partition] -= self._flushed_slices[partition] % self.load.flush_slices == 0
        self._slices_due[partition] -= 1
        if self._slices_due[partition]:
            self._write_slice(now, partition)

    # -- consumers

    def _read(self, now: float, partition: int, number: int, reader: int, kind: str, fill: bool) -> float:
        """Return when a chunk is with its consumer."""
        chunk = chunk_of(partition, SPAN // 2 + number)
        ready = self.cache.ready_at(chunk)
        host, missed = self.load.host, 0.0
        if ready is None:
            missed = self.random.choice(host.device_reads_s) if host.device_reads_s else 0.0
            before = self.store.from_hdd
            ready = self.store.read(now, partition, SPAN // 2 + number, reader)
            self.measured.chunks[f"{kind} hdd" if self.store.from_hdd > before else f"{kind} ssd"] += 1
            if fill:
                self.cache.insert(chunk, ready, read=True)
                self._read_ahead(now, partition, number, reader, kind)
        elif chunk in self._ahead:
            self._ahead.discard(chunk)
            self._read_ahead(now, partition, number, reader, kind)
        else:
            self.measured.chunks[f"{kind} memory"] += 1
        return max(now, ready) + missed + self._host_s(host.reads_s if kind == "hot" else host.begun_reads_s)

    def _host_s(self, measured: Sequence[float]) -> float:
        """Return the time of one operation on this side of the devices: the model's, or drawn from measured ones."""
        return self.random.choice(measured) if measured else self.load.memory_s + self.load.chunk / self.load.memory

    def _read_ahead(self, now: float, partition: int, number: int, reader: int, kind: str) -> None:
        """Read the chunks after this one, which are counted as what the reader read from the device."""
        for after in range(number + 1, number + 1 + self.load.read_ahead):
            chunk = chunk_of(partition, SPAN // 2 + after)
            if chunk not in self.cache and after <= self._written[partition]:
                before = self.store.from_hdd
                self.cache.insert(chunk, self.store.read(now, partition, SPAN // 2 + after, reader))
                self._ahead.add(chunk)
                self.measured.chunks[f"{kind} hdd" if self.store.from_hdd > before else f"{kind} ssd"] += 1

    def _read_real_time(
        self, now: float, partition: int, job: int, number: int, due: float, reads: list[float]
    ) -> None:
        if number > self._written[partition]:
            waiting = now + self.load.period_s / 4
            self.at(waiting, self._read_real_time, partition, job, number, waiting, reads)
            return
        done = self._read(now, partition, number, job, "hot", fill=True)
        reads.append(done - due)
        due += self.load.period_s
        self.at(max(done, due), self._read_real_time, partition, job, number + 1, due, reads)

    def _begin_lagging(self, now: float, partition: int, job: int) -> None:
        load = self.load
        lag = next(self.lags[job])
        number = int((now - lag) / load.period_s - self.phase[partition])
        self._read_lagging(now, partition, job, number, now)

    def _read_lagging(self, now: float, partition: int, job: int, number: int, due: float) -> None:
        load = self.load
        if now - number * load.period_s < load.least_lag_s / 1.25:
            self._begin_lagging(now, partition, job)
            return
        done = self._read(now, partition, number, job, "cold", fill=not self.bypass)
        self.measured.cold_reads.append(done - now)
        due = max(due + load.period_s / load.catch_up, now)
        self.at(max(done, due), self._read_lagging, partition, job, number + 1, due)

    # -- copies of the tiered log

    def _copy(self, now: float, store: TieredStore, disk: int, segment: LabSegment | None, copied: float) -> None:
        """Copy a piece of a segment to this HDD, at most `copy_share` times as fast as leaders' data comes."""
        load = self.load
        if segment is not None and copied >= segment.size_bytes:
            store.copied(segment)
            segment = None
        if segment is None:
            segment, copied = store.begin_copy(disk), 0.0
        due = now + load.copy_piece / load.copy_rate
        if segment is None:
            self.at(due, self._copy, store, disk, None, 0.0)
            return
        read = self.devices.ssd(segment.partition).submit(now, "copy", load.copy_piece)
        self.at(read, self._copy_write, store, disk, segment, copied, due)

    def _copy_write(
        self, now: float, store: TieredStore, disk: int, segment: LabSegment, copied: float, due: float
    ) -> None:
        done = self.devices.hdds[disk].submit(now, "copy", self.load.copy_piece, write=True)
        self.at(max(done, due), self._copy, store, disk, segment, copied + self.load.copy_piece)
