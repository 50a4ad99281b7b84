"""Producers, flushes, consumers and copies on real files: the workload of a physical run, in one process.

    python -m controller.labs.tiers.driver < CONFIG

The process is in the memory cgroup that bounds the page cache. CONFIG is a pickled `DriverJob`. It prints a line when
the page cache is filled, and goes on after a line of input; it prints one when its threads run, one when the measured
time begins, and its latencies as a line of JSON at the end.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import pickle
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from queue import Queue
from typing import Any, TypeAlias

from controller.labs.tiers.fuse import ending_the_process
from controller.labs.tiers.placement import SPAN, Devices, FlushTurns, TieredStore, drawn, phases, store_of
from controller.labs.tiers.workload import DIRTY_SHARE, Architecture, Flush, LabWorkload, LogStorage
from controller.system import is_cached
from statemachines.tier_placement import FlushReason

Ahead: TypeAlias = "Queue[tuple[str, int]]"
"""Files and offsets of the chunks that a thread reads in the background."""
HOST_OPERATIONS = ("writes", "reads", "begun reads", "device reads")
"""In the order of `HostLatency`."""
PROBE_S = 0.02
PROBED_CHUNKS = 16
"""What probes read in the page cache."""
SETTLE_S = 0.3
"""Until what was asked for in advance is in the page cache."""
MAP_LOCKED, MADV_DONTNEED_LOCKED, PR_SET_TIMERSLACK = 0x2000, 24, 29
SYNC_ALL = 7
"""sync_file_range: wait for writes under way, write, and wait."""
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class DriverJob:
    load: LabWorkload
    architecture: Architecture
    flush: Flush
    seed: int
    mount: str
    cgroup: str


class LabDriver:
    """One thread for each producer, flush, consumer and copier."""

    def __init__(self, job: DriverJob) -> None:
        self.job = job
        self.load = load = job.load
        self.draws = drawn(load, job.seed)
        self.phase = self.draws.phase
        self.devices = Devices(load, phases(load, 0))
        self.placed = store_of(job.architecture.storage, self.devices)
        self.store = self.placed if isinstance(self.placed, TieredStore) else None
        self.lock = threading.Lock()
        self.chunk = round(load.chunk)
        self.window = self.chunk // load.windows
        self.data = os.urandom(self.chunk)
        self.written = [-1] * load.partitions
        self.unflushed = [0] * load.partitions
        homes = {self.placed.home(partition).name for partition in range(load.partitions)}
        self.turns = {home: FlushTurns(load) for home in homes}
        self.due = {home: threading.Event() for home in homes}
        self.address = cache(self.mapped)
        self.to_flush = [threading.Semaphore(0) for _ in range(load.partitions)]
        self.start = 0.0
        self.found: dict[str, Any] = {f"host {each}": [] for each in HOST_OPERATIONS}
        self.found |= {"writes": [], "cold": [], "jobs": [], "cold threads": [], "hot threads": []}

    # -- files

    def place(self, partition: int, number: int, kind: str) -> tuple[str, int]:
        """Return the file and the offset of a chunk."""
        at = SPAN // 2 + number + self.devices.shift(partition)
        segment, chunk = divmod(at, self.devices.per_segment)
        return f"{self.job.mount}/{kind}.{partition}.{segment}", chunk * self.chunk

    def kind(self, partition: int, number: int, write: bool = False) -> str:
        if self.store is not None:
            if write:
                return "ssd" if partition < self.load.leaders else "hdd"
            with self.lock:
                return "ssd" if self.store.on_ssd(partition, SPAN // 2 + number) else "hdd"
        return "hdd" if self.job.architecture.storage is LogStorage.Disk else "blk"

    def mapped(self, path: str) -> int:
        """Map a file; it stays open, too, as others do."""
        return mapped(os.open(path, os.O_RDONLY), self.devices.per_segment * self.chunk)

    def wait_until(self, due_s: float) -> None:
        while (left := self.start + due_s - time.monotonic()) > 0:
            time.sleep(left)

    def now(self) -> float:
        return time.monotonic() - self.start

    def fill_page_cache(self) -> None:
        """Read what the page cache would hold of the time before the start, oldest first, as the simulation's has it.

        Otherwise all real-time consumers would read the disks in the first seconds, and a disk that is once busy with
        many streams may stay so.
        """
        for chunk in self.devices.past(range(self.load.partitions), self.load.cache_s):
            partition, number = divmod(chunk, SPAN)
            path, at = self.place(partition, number - SPAN // 2, self.kind(partition, number - SPAN // 2))
            file = os.open(path, os.O_RDONLY)
            for part in range(at, at + self.chunk, self.window):  # the kernel reads no more ahead at once
                os.posix_fadvise(file, part, self.window, os.POSIX_FADV_WILLNEED)  # a read would be the first of two
            os.close(file)
        time.sleep(SETTLE_S)

    # -- producers

    def produce(self, partition: int) -> None:
        load, number, files = self.load, 0, opened(os.O_RDWR)
        if self.job.flush is Flush.Count:
            self.unflushed[partition] = self.draws.unflushed[partition]
        while True:
            due = (self.phase[partition] + number) * load.period_s
            self.wait_until(due)
            while self.unflushed[partition] * load.chunk * load.partitions > DIRTY_SHARE * load.page_cache:
                time.sleep(load.flush_every_s)
            path, at = self.place(partition, number, self.kind(partition, number, write=True))
            os.pwrite(files(path), self.data, at)
            done = self.now()  # what follows wakes other threads
            if self.store is not None and partition < load.leaders:
                with self.lock:
                    self.store.appended(partition, SPAN // 2 + number)
            self.written[partition] = number
            with self.lock:
                self.unflushed[partition] += 1
            reason = load.flush_reason(self.job.flush, self.unflushed[partition])
            if reason is FlushReason.COUNT:
                first = number - self.unflushed[partition] + 1
                for each in {
                    self.place(partition, at, self.kind(partition, at, write=True))[0] for at in (first, number)
                }:
                    os.fdatasync(files(each))
                done = self.now()
                self.unflushed[partition] = 0
            elif reason is FlushReason.RATE:
                home = self.placed.home(partition).name
                with self.lock:
                    self.turns[home].add(partition)
                self.due[home].set()
            self.note("writes", due, done)
            number += 1

    def pace(self, home: str) -> None:
        """Let the logs of a device write their slices, at the times that the rule says."""
        at = 0.0
        while True:
            with self.lock:
                turn = self.turns[home].next()
            if turn is None:
                self.due[home].wait()
                self.due[home].clear()
                at = max(at, self.now())
                continue
            partition, wait_s = turn
            self.to_flush[partition].release()
            at += wait_s
            self.wait_until(at)

    def flush(self, partition: int) -> None:
        """Write the slices of a log, each when it is due and the one before is written."""
        written, files, slices = 0, opened(os.O_RDWR), self.load.flush_slices
        nbytes = self.chunk // slices
        while True:
            self.to_flush[partition].acquire()
            number, slice_ = divmod(written, slices)
            path, at = self.place(partition, number, self.kind(partition, number, write=True))
            begin = ctypes.c_long(at + slice_ * nbytes)
            LIBC.sync_file_range(files(path), begin, ctypes.c_long(nbytes), SYNC_ALL)
            written += 1
            if slice_ + 1 == slices:
                with self.lock:
                    self.unflushed[partition] -= 1

    # -- consumers

    def consume(self, partition: int, lag: float) -> None:
        load, files, ahead = self.load, opened(os.O_RDONLY), self.ahead("hot")
        number = -math.ceil(lag / load.period_s)
        due = (self.phase[partition] + number) * load.period_s + lag
        reads: list[float] = []
        done = 0.0
        with self.lock:
            self.found["hot threads"].append(threading.get_native_id())
            self.found["jobs"].append(reads)
        while True:
            self.wait_until(max(due, done))
            while number > self.written[partition]:
                time.sleep(load.period_s / 4)
                due = self.now()
            path, at = self.place(partition, number, self.kind(partition, number))
            done = self.fetch(files(path), at, max(due, done), ahead, partition, number + 1)
            if done > load.warm_s:
                reads.append(done - due)
            due += load.period_s
            number += 1

    def fetch(self, file: int, at: int, begun: float, ahead: Ahead, partition: int, following: int) -> float:
        """Read a chunk, which may be on its way into the page cache, and have the following one read in the background
        once it is there. Return when its consumer has it."""
        ahead.join()
        is_there = is_cached(file, at, self.chunk, busy=False)
        if is_there:
            self.read_ahead(ahead, partition, following)
        done = self.receive(file, at, begun)
        if not is_there:
            self.read_ahead(ahead, partition, following)
        return done

    def receive(self, file: int, at: int, begun: float) -> float:
        """Read a chunk at the pace at which its consumer receives it, from when the fetch began; return when it has it.

        The network is waited for, and what a wait takes too long is not counted.
        """
        load, sent, ready = self.load, begun, begun
        for window in range(load.windows):
            if window:
                self.wait_until(max(sent, ready))
                begun = self.now()
            os.pread(file, self.window, at + window * self.window)
            ready = max(sent, ready) + self.now() - begun
            sent = max(sent, ready - load.sent_ahead_s) if window else ready
            sent += load.window_s
        self.wait_until(sent)
        return sent

    def ahead(self, kind: str) -> Ahead:
        """Return the queue of a thread that reads a consumer's next chunks in the background, as brokers do, and may
        keep those that are in the page cache there. A fetch of one waits until it is there."""
        chunks: Ahead = Queue()

        def read() -> None:
            files = opened(os.O_RDONLY)
            with self.lock:
                self.found[f"{kind} threads"].append(threading.get_native_id())
            while True:
                path, at = chunks.get()
                if is_cached(files(path), at, self.chunk, busy=False):
                    if self.job.architecture.keeps:
                        keep(self.address(path) + at, self.chunk)
                else:
                    for part in range(at, at + self.chunk, self.window):
                        os.pread(files(path), self.window, part)
                chunks.task_done()

        if self.load.fetch_ahead:
            threading.Thread(target=ending_the_process, args=(read,), daemon=True).start()
        return chunks

    def read_ahead(self, chunks: Ahead, partition: int, number: int) -> None:
        if self.load.fetch_ahead and number <= self.written[partition]:
            chunks.put(self.place(partition, number, self.kind(partition, number)))

    def lag(self, partition: int, job: int) -> None:
        load, due = self.load, self.draws.begin_s[job]
        bypass = self.job.architecture.bypass
        files, ahead = opened(os.O_RDONLY | (os.O_DIRECT if bypass else 0)), self.ahead("cold")
        buffer = mmap.mmap(-1, self.chunk)
        with self.lock:
            self.found["cold threads"].append(threading.get_native_id())
        while True:
            lag = next(self.draws.lags[job])
            number = int((due - lag) / load.period_s - self.phase[partition])
            while due - number * load.period_s >= load.least_lag_s / 1.25:
                self.wait_until(due)
                begun = self.now()
                path, at = self.place(partition, number, self.kind(partition, number))
                if bypass:
                    os.preadv(files(path), [buffer], at)
                    done = self.now() + load.window_s * load.windows
                    self.wait_until(done)
                else:
                    done = self.fetch(files(path), at, begun, ahead, partition, number + 1)
                self.note("cold", begun, done)
                number += 1
                due = max(due + next(self.draws.gaps[job]), begun)

    def copy(self, disk: int) -> None:
        """Copy segments to a disk, past the page cache, at most `copy_share` times as fast as leaders' data comes."""
        load, store = self.load, self.store
        assert store is not None
        piece = round(load.copy_piece)
        buffer = mmap.mmap(-1, piece)
        sources, targets = opened(os.O_RDONLY | os.O_DIRECT), opened(os.O_RDWR | os.O_DIRECT)
        pause = piece / load.copy_rate
        at = self.now()
        while True:
            with self.lock:
                segment = store.begin_copy(disk)
            if segment is None:
                time.sleep(pause)
                continue
            for position in range(0, self.devices.per_segment * self.chunk, piece):
                at = max(at, self.now() - pause) + pause
                name = f"{segment.partition}.{segment.number}"
                os.preadv(sources(f"{self.job.mount}/ssd.{name}"), [buffer], position)
                os.pwritev(targets(f"{self.job.mount}/hdd.{name}"), [buffer], position)
                self.wait_until(at)
            with self.lock:
                store.copied(segment)

    def probe(self, operation: str) -> None:
        """Measure what the host adds to an operation, of the page cache or past it, of a file that is on no device.

        As in the log, a write needs new pages, and a read that goes on in a file has the next chunk read ahead.
        """
        buffer, number = mmap.mmap(-1, self.window), 0
        flags = os.O_RDWR | (os.O_DIRECT if operation == "device reads" else 0)
        file = os.open(f"{self.job.mount}/mem.0.{HOST_OPERATIONS.index(operation)}", flags)
        if operation == "reads":  # locked, so that it is not in the lists of the page cache
            locked = mmap.mmap(file, PROBED_CHUNKS * self.chunk, mmap.MAP_SHARED | MAP_LOCKED, mmap.PROT_READ)
            assert locked
        due = HOST_OPERATIONS.index(operation) / len(HOST_OPERATIONS) * PROBE_S
        while True:
            self.wait_until(due)
            begun = due if operation in ("writes", "reads") else self.now()
            self.place(0, number, self.kind(0, number))
            at = number % (PROBED_CHUNKS if operation == "reads" else self.devices.per_segment) * self.chunk
            if operation == "writes":
                os.pwrite(file, self.data, at)
                done = self.now()
            elif operation == "device reads":
                os.preadv(file, [buffer], 0)
                done = self.now()
            else:
                done = self.receive(file, at, begun) - self.load.window_s * self.load.windows
            if at or operation != "begun reads":
                self.note(f"host {operation}", begun, done)
            if operation == "writes":
                LIBC.sync_file_range(file, ctypes.c_long(at), ctypes.c_long(self.chunk), SYNC_ALL)
            if operation in ("writes", "begun reads"):
                os.posix_fadvise(file, at, self.chunk, os.POSIX_FADV_DONTNEED)
            due = max(due + PROBE_S, begun)
            number += 1

    def note(self, what: str, due: float, done: float) -> None:
        if done > self.load.warm_s:
            self.found[what].append(done - due)

    # -- all

    def run(self) -> None:
        load = self.load
        self.fill_page_cache()
        print("prepared", flush=True)
        sys.stdin.buffer.readline()
        work: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        for partition in range(load.partitions):
            work.append((self.produce, (partition,)))
            if self.job.flush is Flush.Rate:
                work.append((self.flush, (partition,)))
        if self.job.flush is Flush.Rate:
            work += [(self.pace, (home,)) for home in self.turns]
        for job, (partition, lag) in enumerate(self.draws.jobs):
            if lag is None:
                work += [(self.lag, (partition, job))] if load.laggards else []
            elif load.real_time:
                work.append((self.consume, (partition, lag)))
        if self.store is not None:
            work += [(self.copy, (disk,)) for disk in range(load.hdds)]
        work += [(self.probe, (operation,)) for operation in HOST_OPERATIONS]
        self.start = time.monotonic() + 0.2
        for action, arguments in work:
            threading.Thread(target=action, args=arguments, daemon=True).start()
        self.wait_until(0.3)
        print("started", flush=True)
        self.wait_until(load.warm_s)
        print("measuring", flush=True)
        self.wait_until(load.warm_s + load.measured_s)
        print(json.dumps(self.found), flush=True)


def opened(flags: int) -> Callable[[str], int]:
    """Return a function that opens each file once. All stay open: FUSE writes all of a file that is closed, by a reader
    too, and lets the thread wait."""
    return cache(partial(os.open, flags=flags))


def mapped(file: int, nbytes: int) -> int:
    """Return the address at which a file is from now on. FUSE writes all of a file that is unmapped, and meanwhile no
    thread of the process can map memory."""
    address = LIBC.mmap(None, ctypes.c_size_t(nbytes), mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    return int(address)


def keep(address: int, nbytes: int) -> None:
    """Do what `controller.system.keep_in_cache` does to bytes of a file that stays mapped. A mapping is split for good
    at each place where that begins or ends: FUSE's are not merged."""
    begin, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    if LIBC.mlock(begin, size) or LIBC.madvise(begin, size, MADV_DONTNEED_LOCKED) or LIBC.munlock(begin, size):
        raise OSError(ctypes.get_errno(), f"keeping {nbytes} bytes: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    job: DriverJob = pickle.load(sys.stdin.buffer)
    (Path(job.cgroup) / "cgroup.procs").write_text("0")
    number = os.stat(job.mount).st_dev
    write_back = Path(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}")
    (write_back / "max_ratio").write_text("100")
    if (write_back / "strict_limit").exists():
        (write_back / "strict_limit").write_text("0")  # FUSE's own: the kernel would write back much earlier
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    LIBC.prctl(PR_SET_TIMERSLACK, 1)  # for threads, too: waits end on time
    threading.stack_size(1 << 18)
    sys.setswitchinterval(0.0005)
    LabDriver(job).run()
    os._exit(0)


if __name__ == "__main__":
    main()
