"""One broker's log storage in virtual time: producers, flushes, consumers and copies as events on models of devices."""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    phases,
    store_of,
)
from controller.labs.tiers.workload import DIRTY_SHARE, Architecture, Flush, LabWorkload
from statemachines.tier_placement import FlushReason


@dataclass(slots=True)
class Fetch:
    """A chunk that a consumer asked for. `then` gets the time when it has it."""

    partition: int
    number: int
    reader: int
    kind: str
    then: Callable[[float], None]


class LabBroker:
    """The events of one broker. `run` returns what was measured; the seed determines it."""

    def __init__(self, load: LabWorkload, architecture: Architecture, flush: Flush, seed: int) -> None:
        self.load = load
        self.flush = flush
        self.bypass, self.keeps = architecture.bypass, architecture.keeps
        self.random = random.Random(seed)
        self.draws = drawn(load, seed)
        self.phase = self.draws.phase
        self.devices = Devices(load, phases(load, 0))
        for device in (*self.devices.hdds, *self.devices.ssds):
            device.interval_s = load.sample_s
        for devices, late_s in ((self.devices.hdds, load.host.hdd_late_s), (self.devices.ssds, load.host.ssd_late_s)):
            for device in devices if late_s else ():
                device.late_s = partial(self.random.choice, late_s)
        self.store = store_of(architecture.storage, self.devices)
        self.store.later = self.at
        self.measured = LabMeasurement(interval_s=load.sample_s)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._given: defaultdict[str, float] = defaultdict(float)
        """The chunks that devices gave."""
        self._written = [-1] * load.partitions
        self._unflushed = [0] * load.partitions
        self._begun: dict[int, tuple[float, int]] = {}
        """The chunks of which only the first window was read ahead: when it is there, and the evictions by which it is
        evicted. Those of `_first_evicted` are there since, with a first window that is older than the rest."""
        self._first_evicted: dict[int, int] = {}
        self._coming: dict[int, list[Fetch]] = {}
        """The chunks that the broker reads ahead, each with the fetches that wait for it."""
        self.windows, self.window_s, self.sent_ahead_s = load.windows, load.window_s, load.sent_ahead_s
        self.slices = load.flush_slices
        self._turns: dict[str, FlushTurns] = {}
        self._slices_due = [0] * load.partitions
        self._flushed_slices = [0] * load.partitions
        self._now = 0.0
        self._by_kernel: list[dict[int, float]] = [{} for _ in range(load.partitions)]
        """By partition, the chunks that the kernel wrote before their flush, and when they were on the device."""
        self.cache = PageCache(int(load.page_cache / load.chunk), self._keeps)
        for chunk in self.devices.past(range(load.partitions), load.cache_s):
            self.cache.insert(chunk, 0.0)

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
            self._now = now
            action(now, *arguments)
        self.measured.count_reads(self._given)
        first, last = int(load.warm_s / self.measured.interval_s) + 1, int(end / self.measured.interval_s)
        for device in (*self.devices.hdds, *self.devices.ssds):
            self.measured.disk_writes[device.name] = [device.writes.get(at, 0.0) for at in range(first, last)]
        return self.measured

    def _reset(self) -> None:
        self.measured.clear()
        self._given.clear()

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
        self.at(self.random.random() * load.counted_s, self._balance)
        if isinstance(self.store, TieredStore):
            for disk in range(load.hdds):
                self.at(0.0, self._copy, self.store, disk, None, 0)

    def _balance(self, now: float) -> None:
        """The kernel counts what is on its lists."""
        self.cache.balance()
        self.at(now + self.load.counted_s, self._balance)

    # -- producers

    def _append(self, now: float, partition: int, number: int) -> None:
        """Append a chunk of produced records: it waits while too much is dirty, then goes to the page cache."""
        load = self.load
        due = (self.phase[partition] + number) * load.period_s
        if self._unflushed[partition] * load.chunk * load.partitions > DIRTY_SHARE * load.page_cache:
            self.at(now + load.flush_every_s, self._append, partition, number)
            return
        self._written[partition] = number
        self._unflushed[partition] += 1
        done = now + self._host_s(load.host.writes_s)
        self.cache.insert(chunk_of(partition, SPAN // 2 + number), done)
        if isinstance(self.store, TieredStore) and partition < load.leaders:
            self.store.appended(partition, SPAN // 2 + number)
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
        written = self._by_kernel[partition]
        for each in range(first, first + self._unflushed[partition]):
            if each not in written:
                written[each] = self.store.write(now, partition, each, self.load.chunk)
        self.at(max(now, *written.values()), self._flushed_by_count, partition, number, due)

    def _flushed_by_count(self, now: float, partition: int, number: int, due: float) -> None:
        self._unflushed[partition] = 0
        self._by_kernel[partition].clear()
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
        """Write one slice of a log, unless the kernel did; the next that is due follows when it is written."""
        chunk = SPAN // 2 + self._flushed_slices[partition] // self.slices
        if (done := self._by_kernel[partition].get(chunk)) is None:
            done = self.store.write(now, partition, chunk, self.load.chunk / self.slices)
        self.at(max(now, done), self._slice_written, partition)

    def _slice_written(self, now: float, partition: int) -> None:
        self._flushed_slices[partition] += 1
        if not self._flushed_slices[partition] % self.slices:
            self._unflushed[partition] -= 1
            self._by_kernel[partition].pop(SPAN // 2 + self._flushed_slices[partition] // self.slices - 1, None)
        self._slices_due[partition] -= 1
        if self._slices_due[partition]:
            self._write_slice(now, partition)

    def _keeps(self, chunk: int) -> bool:
        """Whether a chunk waits to be flushed. If it would be evicted meanwhile, the kernel writes all that waits, as
        it does when it finds nothing else to reclaim (`wakeup_flusher_threads` in mm/vmscan.c)."""
        partition, number = divmod(chunk, SPAN)
        if number <= SPAN // 2 + self._written[partition] - self._unflushed[partition]:
            return False
        if number not in self._by_kernel[partition]:
            for each in range(self.load.partitions):
                self._write_all(each)
        return True

    def _write_all(self, partition: int) -> None:
        """Write what waits to be flushed of a partition: the rest of the first chunk, and those behind it."""
        last, written = SPAN // 2 + self._written[partition], self._by_kernel[partition]
        left = 1 - self._flushed_slices[partition] % self.slices / self.slices
        for number in range(last - self._unflushed[partition] + 1, last + 1):
            if number not in written:
                written[number] = self.store.write(self._now, partition, number, left * self.load.chunk)
            left = 1.0

    # -- consumers

    def _fetch(self, now: float, fetch: Fetch) -> None:
        """Read a chunk for a consumer, from the page cache or at the pace at which the consumer receives it."""
        chunk = chunk_of(fetch.partition, SPAN // 2 + fetch.number)
        if chunk in self._coming:
            self._coming[chunk].append(fetch)
        elif self.bypass and fetch.kind == "cold":
            self._answer(self._from_device(now, fetch, 0, 1), fetch, self.windows)
        elif chunk in self.cache and not self._lost_first(chunk):
            self._answer(max(now, self.cache.ready_at(chunk) or 0.0), fetch, self.windows)
        elif chunk in self.cache:
            self.at(self._from_device(now, fetch, 0, self.windows), self._fetch, fetch)
        else:
            ready, come = self._first_window(now, fetch, chunk)
            self.cache.insert(chunk, ready, read=True)
            self.at(come, self._send, fetch, 0, now, ready)

    def _lost_first(self, chunk: int) -> bool:
        """Whether the first window of a chunk was evicted before the others. It is read now."""
        return self._first_evicted.pop(chunk, self.cache.evicted + 1) <= self.cache.evicted

    def _read_ahead(self, now: float, fetch: Fetch) -> None:
        """Begin to read the chunk behind an answered one in the background, or to keep it, as brokers do."""
        following = replace(fetch, number=fetch.number + 1)
        chunk = chunk_of(following.partition, SPAN // 2 + following.number)
        is_written = following.number <= self._written[following.partition]
        if self.keeps and chunk in self.cache and chunk not in self._coming:
            self.cache.keep(chunk)
        elif is_written and chunk not in self._coming and chunk not in self.cache:
            self._coming[chunk] = []
            ready, come = self._first_window(now, following, chunk)
            self.cache.insert(chunk, math.inf)
            begin = self._read_window if come == now else self._read_second
            self.at(come, begin, following, chunk, 0, ready)

    def _read_second(self, now: float, fetch: Fetch, chunk: int, window: int, ready: float) -> None:
        """Read the second window on its own, too: to Linux a first one that was not read ahead is a random read."""
        if self.windows > 1:
            window, ready = 1, self._from_device(now, fetch, 1, self.windows)
        self.at(ready, self._read_window, fetch, chunk, window, ready)

    def _read_window(self, now: float, fetch: Fetch, chunk: int, window: int, ready: float) -> None:
        """Come to a window in the background. Linux reads the next one, as in `_send`.

        If the chunk is evicted before the last one is there, all have to be read again: each is evicted before the
        fetch comes to it.
        """
        if window == self.windows:
            if chunk in self.cache:
                self.cache.read_in(chunk, now)
            for waiting in self._coming.pop(chunk):
                self._fetch(now, waiting)
            return
        following = ready
        if window + 1 < self.windows:
            following = self._from_device(now, fetch, window + 1, self.windows)
        else:
            self._read_first_window_ahead(now, fetch)
        self.at(max(now, ready), self._read_window, fetch, chunk, window + 1, following)

    def _first_window(self, now: float, fetch: Fetch, chunk: int) -> tuple[float, float]:
        """Return when the first window of a chunk is in memory, and when its reader has the next one read: when it has
        the first, or at once if the first was read ahead with the chunk before (`page_cache_sync_ra`)."""
        self._first_evicted.pop(chunk, None)
        ready, evicted = self._begun.pop(chunk, (0.0, 0))
        if evicted > self.cache.evicted:
            self._first_evicted[chunk] = evicted
            return ready, now
        ready = self._from_device(now, fetch, 0, self.windows)
        return ready, ready

    def _from_device(self, now: float, fetch: Fetch, window: int, windows: int) -> float:
        """Return when one of the windows of a chunk is in memory."""
        number = SPAN // 2 + fetch.number
        device, ready = self.store.read(now, fetch.partition, number, fetch.reader, window, windows)
        self._given[f"{fetch.kind} {device}"] += 1 / windows
        slower = self.load.host.device_reads_s
        return ready + self.random.choice(slower) if slower else ready

    def _send(self, now: float, fetch: Fetch, window: int, sent: float, ready: float) -> None:
        """Come to a window that is in memory from a time on, and read the next one, as Linux does when a reader comes
        to a window's first page, there or not (`filemap_get_pages`).

        `sent`: when the network could take the window. A file, so a segment, has a read-ahead of its own.
        """
        sent = max(sent, ready - self.sent_ahead_s if window else ready)
        if window + 1 < self.windows:
            following = self._from_device(now, fetch, window + 1, self.windows)
            received = sent + self.window_s
            self.at(max(received, ready), self._send, fetch, window + 1, received, following)
            return
        self._read_first_window_ahead(now, fetch)
        self._answer(sent, fetch, 1)

    def _read_first_window_ahead(self, now: float, fetch: Fetch) -> None:
        """Linux reads on in the file, beyond the fetch."""
        after, segment_of = SPAN // 2 + fetch.number + 1, self.devices.segment_of
        chunk = chunk_of(fetch.partition, after)
        is_there = fetch.number < self._written[fetch.partition] and chunk not in self.cache
        if is_there and segment_of(fetch.partition, after) == segment_of(fetch.partition, after - 1):
            next_fetch = replace(fetch, number=fetch.number + 1)
            ready = self._from_device(now, next_fetch, 0, self.windows)
            self._begun[chunk] = ready, self.cache.evicted + self.cache.inactive

    def _answer(self, sent: float, fetch: Fetch, windows: int) -> None:
        """The network takes the last windows of a chunk, from this time on."""
        host = self.load.host
        taken = self._host_s(host.reads_s if fetch.kind == "hot" else host.begun_reads_s)
        fetch.then(sent + windows * self.window_s + taken)
        if self.load.fetch_ahead and not (self.bypass and fetch.kind == "cold"):
            self.at(sent, self._read_ahead, fetch)

    def _host_s(self, measured: Sequence[float]) -> float:
        """Return the time of one operation on this side of the devices: the model's, or drawn from measured ones."""
        return self.random.choice(measured) if measured else self.load.memory_s + self.load.chunk / self.load.memory

    def _read_real_time(
        self, now: float, partition: int, job: int, number: int, due: float, reads: list[float]
    ) -> None:
        if number > self._written[partition]:
            waiting = now + self.load.period_s / 4
            self.at(waiting, self._read_real_time, partition, job, number, waiting, reads)
            return

        def received(done: float) -> None:
            reads.append(done - due)
            next_due = due + self.load.period_s
            self.at(max(done, next_due), self._read_real_time, partition, job, number + 1, next_due, reads)

        self._fetch(now, Fetch(partition, number, job, "hot", received))

    def _begin_lagging(self, now: float, partition: int, job: int) -> None:
        load = self.load
        lag = next(self.draws.lags[job])
        number = int((now - lag) / load.period_s - self.phase[partition])
        self._read_lagging(now, partition, job, number, now)

    def _read_lagging(self, now: float, partition: int, job: int, number: int, due: float) -> None:
        load = self.load
        if now - number * load.period_s < load.least_lag_s / 1.25:
            self._begin_lagging(now, partition, job)
            return

        def received(done: float) -> None:
            self.measured.cold_reads.append(done - now)
            next_due = max(due + next(self.draws.gaps[job]), now)
            self.at(max(done, next_due), self._read_lagging, partition, job, number + 1, next_due)

        self._fetch(now, Fetch(partition, number, job, "cold", received))

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
