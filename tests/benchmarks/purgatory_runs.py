"""The runs of `camerlengo bench purgatory`: the load, the requests, on the machine's clock or virtual.

The load is that of Kafka's TestPurgatoryPerformance: gaps are exponential, latencies log-normal, given by two of their
percentiles, both in whole milliseconds. Everything is drawn before it is needed, in columns, so that the measured loops
draw nothing.

A request is completed by force once its condition holds, as in Kafka's benchmark. No key is ever checked for
completion, so every request stays in its watch lists until a purge. Each run checks that every request was answered
exactly once.

A run on the machine's clock is made in a process of its own, `python -m tests.benchmarks.purgatory_runs`, with limited
memory. It writes a line of JSON for each sample of its memory and one for the run, so that a process that died leaves
its samples.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.labs.old_purgatory import OldPurgatory
from controller.labs.thread_timer import ThreadTimer
from controller.labs.threaded_purgatory import ThreadedPurgatory
from controller.labs.virtual_timer import VirtualTimer
from controller.timer.purgatory import PURGE_INTERVAL, PURGE_SHARE, DelayedOperation, Purgatory, log_failed_operation

QUARTILE = 0.67448975
"""The 75th percentile of the standard normal distribution."""
KEY_SETS = 4_096
CHUNK = 50_000


@dataclass(frozen=True, slots=True)
class Load:
    """`rate`: requests a second; percentiles and `timeout_ms` in ms; `size`: bytes that each request holds; `news`: how
    many keys have news each millisecond, in turns (on the virtual clock; in Kafka's benchmark none ever has)."""

    rate: int
    percentile_50_ms: float
    percentile_75_ms: float
    number: int
    timeout_ms: int = 200
    keys: int = 100
    keys_of_each: int = 3
    size: int = 100
    seed: int = 1
    news: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "number", "timeout_ms", "keys", "keys_of_each"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        if self.keys_of_each > self.keys:
            raise ValueError(f"keys_of_each {self.keys_of_each}: expected at most {self.keys}, which is all there are")
        if not 0 < self.percentile_50_ms < self.percentile_75_ms:
            raise ValueError(
                f"percentiles {self.percentile_50_ms:g}/{self.percentile_75_ms:g}: expected the 50th below the 75th"
            )
        for name in ("size", "news"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 or more")

    @property
    def name(self) -> str:
        return f"{self.percentile_50_ms:g}/{self.percentile_75_ms:g} ms"


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Requests in the order in which they come, a row each: when, how long until its condition holds, its key set."""

    arrival_ms: NDArray[np.int64]
    latency_ms: NDArray[np.int64]
    key_set: NDArray[np.int64]


def key_sets(load: Load) -> list[tuple[str, ...]]:
    """What requests watch: each as many different keys as they have."""
    rng = np.random.default_rng(load.seed)
    names = [f"key {number}" for number in range(load.keys)]
    return [
        tuple(names[number] for number in rng.choice(load.keys, load.keys_of_each, replace=False).tolist())
        for _ in range(KEY_SETS)
    ]


def requests(load: Load, chunk: int = CHUNK) -> Iterator[LoadRows]:
    """All of the load's requests, `chunk` at a time. The same load gives the same requests."""
    rng = np.random.default_rng([load.seed, load.rate])
    mean = np.log(load.percentile_50_ms)
    deviation = (np.log(load.percentile_75_ms) - mean) / QUARTILE
    now_ms = 0.0
    for left in range(load.number, 0, -chunk):
        count = min(chunk, left)
        arrivals = now_ms + np.cumsum(rng.exponential(1_000 / load.rate, count))
        now_ms = float(arrivals[-1])
        latencies = np.minimum(np.exp(rng.normal(mean, deviation, count)), 1e12)
        yield LoadRows(
            arrivals.astype(np.int64), latencies.astype(np.int64), rng.integers(0, KEY_SETS, count, dtype=np.int64)
        )


HELD = 0.95
NUL = b"\0"
COLLECTOR_THRESHOLDS = {"broker": (50_000, 20, 100), "default": (700, 10, 10), "off": (0, 0, 0)}


class WrongAnswers(RuntimeError):
    """Requests were not answered once each: the figures of that run mean nothing."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The process `s` seconds after the load began. `mb`: resident MB (of 2^20 bytes) more than at the start.
    `outstanding`: requests handed in and not answered; `retained`: answered requests that watch lists still hold.
    `blocks`: allocated blocks of memory, and `tracked`: objects that the cyclic collector tracks, more than at the
    start."""

    s: float
    mb: float
    outstanding: int
    retained: int
    blocks: int
    tracked: int


ALL_ANSWERED = "all answered"
NOT_ALL_ANSWERED = "not all answered"
GAVE_UP = "gave up"
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class PurgatoryRun:
    """What one run came to. `design`: "new", "kafka-rule" (the new one, which purges by Kafka's rule), "old", or "load"
    for the generator of the load by itself. `target` and `achieved`: requests a second, as scheduled and as handed in;
    `late_ms`: how long after the schedule's last request had had its time all were answered, None if that was not
    waited for."""

    design: str
    clock: str
    load: str
    number: int
    target: float
    achieved: float
    cpu_s: float
    expired: int
    purges: int
    late_ms: float | None
    blocks_left: int | None = None
    """Blocks of memory that are in use after the run and were not before it."""
    best: float | None = None
    """`achieved` of the fastest chunk, on a machine that others use too; its first second is not among them."""
    purge_interval: int = PURGE_INTERVAL
    end: str = ALL_ANSWERED
    elapsed_s: float = 0.0
    """Of the real clock, until the last was handed in or the run was ended."""
    gc_ms: tuple[float, ...] = (0.0, 0.0, 0.0)
    """CPU time of the cyclic collector, by generation."""
    collections: tuple[int, ...] = (0, 0, 0)
    samples: tuple[MemorySample, ...] = ()

    @property
    def held(self) -> bool:
        """Handed in at the target's rate, and all of it answered. Kafka's benchmark asks for the first alone."""
        return self.achieved >= HELD * self.target and self.late_ms is not None

    @property
    def cpu_us(self) -> float:
        """CPU time a request, the benchmark's own share included."""
        return self.cpu_s / self.number * 1e6 if self.number else 0.0

    @property
    def gc_ms_a_second(self) -> float:
        return sum(self.gc_ms) / self.elapsed_s if self.elapsed_s else 0.0

    def most(self, name: str) -> float:
        """The greatest value of a field of `samples`; 0 without any."""
        return max((getattr(sample, name) for sample in self.samples), default=0)


class Tally:
    """Counters that any thread may count up, in one step each."""

    def __init__(self) -> None:
        self.answers = itertools.count()
        self.expirations = itertools.count()

    @property
    def answered(self) -> int:
        return _read(self.answers)

    @property
    def expired(self) -> int:
        return _read(self.expirations)


def _read(counter: Iterator[int]) -> int:
    return int(repr(counter)[len("count(") : -1])


class TimedRequest(DelayedOperation):
    """Its condition is a time, `due`, in the unit of the run's clock. Kinds of it know the run's clock and counters: a
    request that carried them would be twice as dear to make, and the benchmark's own share is in its figures."""

    __slots__ = ("data", "due")
    due: int
    data: bytes


def kind_on(timer: VirtualTimer, tally: Tally) -> type[TimedRequest]:
    answers, expirations = tally.answers, tally.expirations

    class OnTimer(TimedRequest):
        __slots__ = ()

        def try_complete(self) -> bool:
            if timer.now_ms >= self.due:  # as a condition of `and`, CPython 3.11 would compare them as any objects
                return self.force_complete()
            return False

        def on_complete(self) -> None:
            next(answers)

        def on_expiration(self) -> None:
            next(expirations)

    return OnTimer


def kind_on_machine(tally: Tally) -> type[TimedRequest]:
    """`due`: in monotonic nanoseconds."""
    now_ns, answers, expirations = time.monotonic_ns, tally.answers, tally.expirations

    class OnMachine(TimedRequest):
        __slots__ = ()

        def try_complete(self) -> bool:
            if now_ns() >= self.due:  # as above
                return self.force_complete()
            return False

        def on_complete(self) -> None:
            next(answers)

        def on_expiration(self) -> None:
            next(expirations)

    return OnMachine


class Nowhere:
    """In a purgatory's place it shows what the generator of the load takes by itself, which then completes all: see
    `in_time`."""

    delayed = watched = purges = 0

    def try_complete_else_watch(self, operation: TimedRequest, keys: Collection[str]) -> bool:
        return False

    def check_and_complete(self, key: str) -> int:
        return 0

    def purge(self) -> int:
        return 0


def in_time(rows: LoadRows, load: Load) -> LoadRows:
    """Return the requests with every condition met before the timeout at the latest, so that none expires."""
    return replace(rows, latency_ms=np.minimum(rows.latency_ms, load.timeout_ms - 1))


@contextmanager
def collecting(collector: str) -> Iterator[None]:
    """What is there before the run is no garbage of it. The cyclic collector runs in it as it does in a "broker"'s
    process, with Python's "default" thresholds, or is "off"."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    if collector == "off":
        gc.disable()
    gc.set_threshold(*COLLECTOR_THRESHOLDS[collector])
    try:
        yield
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


GIVE_UP_AFTER = 2.5
GIVE_UP_S = 120.0
"""A run that takes so many times as long as its load lasts, and so many seconds, is broken off: the design has
collapsed."""
ANSWERED_LIMIT_S = 5.0
MB = 1 << 20
RESERVE = 4 * MB
"""Bytes that are freed when memory has run out."""
STACK = MB // 2
SAMPLE_S, SAMPLES = 0.1, 200
"""How often memory is sampled: in seconds at the least, and about how often in a run at the most."""
TRACKED_S = 1.0
"""How often tracked objects are counted, which takes some ms where there are many."""

Design = ThreadedPurgatory[str, TimedRequest] | OldPurgatory[str, TimedRequest] | Nowhere


def give_up_s(load: Load) -> float:
    return max(load.number / load.rate * GIVE_UP_AFTER, GIVE_UP_S)


class _Real:
    """The machine's monotonic clock."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() - self.start_ns) // 1_000_000

    def nap(self) -> None:
        """Until the next whole millisecond: nothing is due before."""
        time.sleep((1_000_000 - (time.monotonic_ns() - self.start_ns) % 1_000_000) / 1e9)


class CollectorTimes:
    """CPU time and number of the cyclic collector's runs by generation, while it is in `gc.callbacks`."""

    def __init__(self) -> None:
        self.ns = [0, 0, 0]
        self.collections = [0, 0, 0]
        self._began_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        # The thread's own time: other threads may get the interpreter between the two calls.
        if phase == "start":
            self._began_ns = time.thread_time_ns()
        else:
            self.ns[info["generation"]] += time.thread_time_ns() - self._began_ns
            self.collections[info["generation"]] += 1


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / MB


class MemoryLimit:
    """A limit on the process's writable private memory, `limit_mb` more than at its start (RLIMIT_DATA, which address
    space that is only reserved does not count towards). After a MemoryError there is a reserve, with which the run can
    end in order."""

    def __init__(self) -> None:
        self.reached = False
        self._reserve: bytearray | None = None
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def set(self, limit_mb: int) -> None:
        self._reserve = bytearray(RESERVE)
        status = Path("/proc/self/status").read_text(encoding="ascii")
        (now_kb,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (now_kb * 1_024 + limit_mb * MB, self._before[1]))

    def lift(self) -> None:
        self._reserve = None
        resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def exhausted(self) -> None:
        """Any thread: after a MemoryError. The limit stays until nothing more is handed in."""
        self._reserve = None
        self.reached = True


class _RealLoad:
    """One thread hands requests in as they come, a second completes those whose condition holds; the design's own
    threads do the rest."""

    def __init__(self, load: Load, purgatory: Design, memory: MemoryLimit) -> None:
        self.load = load
        self.memory = memory
        self.purgatory = purgatory
        self.tally = Tally()
        (asked,) = requests(load, load.number)
        self.rows = in_time(asked, load) if isinstance(purgatory, Nowhere) else asked
        self.sets = key_sets(load)
        self.latency_ns = self.rows.latency_ms * 1_000_000
        self.last_ms = int(self.rows.arrival_ms[-1])
        self.handed = 0
        self.over = threading.Event()
        self.requests: list[TimedRequest | None] = [None] * load.number
        completes = self.rows.latency_ms < load.timeout_ms
        holds_ms = np.where(completes, self.rows.arrival_ms + self.rows.latency_ms, np.iinfo(np.int64).max)
        self.order = np.argsort(holds_ms, kind="stable")[: int(completes.sum())]
        self.holds_ms = holds_ms[self.order]
        self.ends_ms = int((self.rows.arrival_ms + np.minimum(self.rows.latency_ms, load.timeout_ms)).max())
        self.bounds = np.searchsorted(self.rows.arrival_ms, np.arange(1, self.last_ms + 2)).tolist()

    def hand_in(self, clock: _Real) -> None:
        made_of = kind_on_machine(self.tally)
        give_up_ms = give_up_s(self.load) * 1_000
        while self.handed < self.load.number:
            now_ms = clock.now_ms()
            if now_ms > give_up_ms or self.memory.reached:
                return
            end = self.bounds[min(now_ms, self.last_ms)]
            if end == self.handed:
                clock.nap()
                continue
            # At most so many at once, so that one who is late looks at the clock now and then.
            self._hand_in_rows(made_of, self.handed, min(end, self.handed + 1_000))

    def _hand_in_rows(self, made_of: type[TimedRequest], begin: int, end: int) -> None:
        now_ns, size, timeout_ms = time.monotonic_ns(), self.load.size, self.load.timeout_ms
        watch, sets, waiting = self.purgatory.try_complete_else_watch, self.sets, self.requests
        dues, chosen = (self.latency_ns[begin:end] + now_ns).tolist(), self.rows.key_set[begin:end].tolist()
        over_ns = now_ns + timeout_ms * 1_000_000
        row = begin
        try:
            for row, due_ns, key_set in zip(range(begin, end), dues, chosen, strict=True):
                request = made_of(timeout_ms)
                request.due = due_ns
                request.data = NUL * size
                watch(request, sets[key_set])
                if due_ns < over_ns:
                    waiting[row] = request
            row = end
        finally:
            self.handed = row

    @property
    def outstanding(self) -> int:
        return max(self.handed - self.tally.answered, 0)

    def complete(self, clock: _Real) -> None:
        try:
            self._complete(clock)
        except MemoryError:
            self.memory.exhausted()

    def _complete(self, clock: _Real) -> None:
        done, due, waiting = 0, len(self.order), self.requests
        while done < due and not self.over.is_set():
            end = min(int(np.searchsorted(self.holds_ms, clock.now_ms(), side="right")), done + 1_000)
            rows = self.order[done:end].tolist()
            for row in rows:
                request = waiting[row]
                if request is None:  # the submitting thread is late
                    break
                waiting[row] = None
                request.force_complete()
                done += 1
            if done < end or not rows:
                clock.nap()

    def answered_by(self, limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while self.tally.answered < self.handed and time.monotonic() < deadline_s:
            time.sleep(0.002)
        return self.tally.answered == self.handed


class _Sampler:
    """Samples the process's memory on a thread of its own while a run goes on."""

    def __init__(self, real: _RealLoad, tell: Callable[[MemorySample], None]) -> None:
        self._real = real
        self._tell = tell
        self._every_s = max(SAMPLE_S, real.last_ms / 1_000 / SAMPLES)
        self._began_s = self._tracked_at_s = time.monotonic()
        self._tracked_at_start = self._tracked = len(gc.get_objects())
        self._blocks_at_start = sys.getallocatedblocks()
        self._mb_at_start = _resident_mb()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[MemorySample] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The last sample is of this moment."""
        self._over.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._sample()
            except MemoryError:
                self._real.memory.exhausted()
                return

    def _sample(self) -> None:
        real, now_s = self._real, time.monotonic()
        if now_s - self._tracked_at_s >= TRACKED_S or self._over.is_set():
            self._tracked_at_s = now_s
            self._tracked = len(gc.get_objects())
        outstanding = real.outstanding
        sample = MemorySample(
            round(now_s - self._began_s, 3),
            round(_resident_mb() - self._mb_at_start, 2),
            outstanding,
            max(real.purgatory.watched // real.load.keys_of_each - outstanding, 0),
            sys.getallocatedblocks() - self._blocks_at_start,
            self._tracked - self._tracked_at_start,
        )
        self.samples.append(sample)
        self._tell(sample)


@contextmanager
def _design(name: str, purge_interval: int, memory: MemoryLimit) -> Iterator[Design]:
    """The purgatory of a design, with its threads; MemoryErrors of those reach `memory`."""

    def failed(operation: DelayedOperation, error: Exception) -> None:
        if isinstance(error, MemoryError):
            memory.exhausted()
        else:
            log_failed_operation(operation, error)

    def thread_failed(failure: threading.ExceptHookArgs) -> None:
        if issubclass(failure.exc_type, MemoryError):
            memory.exhausted()
        else:
            hook_before(failure)

    hook_before, threading.excepthook = threading.excepthook, thread_failed
    try:
        if name == "load":
            yield Nowhere()
        elif name == "old":
            old: OldPurgatory[str, TimedRequest] = OldPurgatory(purge_interval=purge_interval, on_error=failed)
            try:
                yield old
            finally:
                old.close()
        else:
            share = 0.0 if name == "kafka-rule" else PURGE_SHARE
            with ThreadTimer(on_error=lambda _, error: memory.exhausted()) as timer:
                yield ThreadedPurgatory(timer, purge_interval=purge_interval, purge_share=share, on_error=failed)
    finally:
        threading.excepthook = hook_before


def run_real(
    design: str,
    load: Load,
    *,
    collector: str = "broker",
    limit_mb: int | None = None,
    purge_interval: int = PURGE_INTERVAL,
    tell: Callable[[MemorySample], None] = lambda _: None,
) -> PurgatoryRun:
    """A design ("new", "kafka-rule", "old", or "load" for none) on threads and the machine's clock. `limit_mb`: of
    memory, more than at the start, which ends the run; in this process. WrongAnswers: more of them than requests."""
    late_ms: float | None = None
    memory, times = MemoryLimit(), CollectorTimes()
    with _design(design, purge_interval, memory) as purgatory:
        real = _RealLoad(load, purgatory, memory)
        with collecting(collector):
            sampler = _Sampler(real, tell)
            if limit_mb is not None:
                memory.set(limit_mb)
            gc.callbacks.append(times)
            try:
                started_s, clock = time.process_time(), _Real()
                completing = threading.Thread(target=real.complete, args=(clock,), daemon=True)
                completing.start()
                sampler.start()
                try:
                    real.hand_in(clock)
                except MemoryError:
                    memory.exhausted()
                elapsed_s = (time.monotonic_ns() - clock.start_ns) / 1e9
                end = GAVE_UP
                if memory.reached:
                    memory.lift()
                    end = OUT_OF_MEMORY
                elif real.handed == load.number:
                    end = ALL_ANSWERED if real.answered_by(ANSWERED_LIMIT_S) else NOT_ALL_ANSWERED
                if end == ALL_ANSWERED:
                    late_ms = clock.now_ms() - real.ends_ms
                sampler.stop()
                real.over.set()
                completing.join()
                cpu_s = time.process_time() - started_s
            finally:
                gc.callbacks.remove(times)
                memory.lift()
        answers = real.tally.answered
        if answers > real.handed:
            raise WrongAnswers(f"{load.name}: {answers} answers to {real.handed} requests")
        return PurgatoryRun(
            design,
            "real",
            load.name,
            real.handed,
            load.number / (real.last_ms / 1_000),
            real.handed / elapsed_s,
            cpu_s,
            real.tally.expired,
            purgatory.purges,
            late_ms,
            purge_interval=purge_interval,
            end=end,
            elapsed_s=elapsed_s,
            gc_ms=tuple(ns / 1e6 for ns in times.ns),
            collections=tuple(times.collections),
            samples=tuple(sampler.samples),
        )


def main(words: list[str]) -> int:
    """One run in a process of its own: see `run_apart` of `tests/benchmarks/purgatory.py`."""
    asked: dict[str, Any] = json.loads(words[0])
    threading.stack_size(STACK)  # the limit counts all of it

    def tell(sample: MemorySample) -> None:
        values = [getattr(sample, name) for name in MemorySample.__slots__]
        os.write(1, f"{json.dumps({'sample': values})}\n".encode())

    try:
        load = Load(**asked.pop("load"))
        run = asdict(run_real(asked.pop("design"), load, tell=tell, **asked))
    except WrongAnswers as error:
        print(json.dumps({"wrong": str(error)}), flush=True)
        return 1
    del run["samples"]
    print(json.dumps({"run": run}), flush=True)
    return 0


WARM_MS = 1_000

Ring = list[list[TimedRequest]]
"""The requests whose condition comes to hold, by the millisecond in which it does, modulo the timeout. One list more is
for those whose timeout comes first."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Requests in the order in which they come; by the end of millisecond `first_ms` + n, `bounds[n]` of them have.

    Of each, when its condition holds, what it watches, and its list of the ring.
    """

    first_ms: int
    bounds: list[int]
    due_ms: list[int]
    keys: list[tuple[str, ...]]
    slots: list[list[TimedRequest]]


def run_virtual(
    load: Load, *, design: str = "new", collector: str = "broker", progress: Callable[[int], None] = lambda _: None
) -> PurgatoryRun:
    """The new design (or "load", for none) on one thread, as fast as it goes; `achieved` is requests a CPU second.
    WrongAnswers."""
    timer = VirtualTimer()
    purgatory: Purgatory[str, TimedRequest] | Nowhere = Nowhere() if design == "load" else Purgatory(timer)
    tally = Tally()
    made_of = kind_on(timer, tally)
    sets = key_sets(load)
    wait_ms = load.timeout_ms
    news = cycle(sorted({key for keys in sets for key in keys}))
    ring: Ring = [[] for _ in range(wait_ms + 1)]
    cpu_s = best = 0.0
    done = 0
    with collecting(collector):
        blocks = sys.getallocatedblocks()
        for asked in requests(load):
            chunk = in_time(asked, load) if design == "load" else asked
            ready = _chunk(chunk, max(timer.now_ms, int(chunk.arrival_ms[0])), wait_ms, sets, ring)
            started_s = time.process_time()
            _quiet_until(timer, ring, ready.first_ms)
            _feed(timer, purgatory, made_of, load, ring, ready, news)
            chunk_s = time.process_time() - started_s
            cpu_s += chunk_s
            done += len(ready.keys)
            if ready.first_ms > WARM_MS:
                best = max(best, len(ready.keys) / chunk_s)
            progress(done)
        started_s = time.process_time()
        _quiet_until(timer, ring, timer.now_ms + wait_ms + 1)
        cpu_s += time.process_time() - started_s
        purgatory.purge()
        del asked, chunk, ready
        gc.collect()
        left = sys.getallocatedblocks() - blocks
    expired = tally.expired
    if tally.answered != load.number or purgatory.delayed or purgatory.watched:
        raise WrongAnswers(f"{load.name}: {tally.answered} answers to {load.number} requests")
    rate = load.number / cpu_s
    return PurgatoryRun(
        design,
        "virtual",
        load.name,
        load.number,
        load.rate,
        rate,
        cpu_s,
        expired,
        purgatory.purges,
        None,
        left,
        best or None,
    )


def _chunk(rows: LoadRows, first_ms: int, wait_ms: int, sets: list[tuple[str, ...]], ring: Ring) -> _Chunk:
    due_ms = rows.arrival_ms + rows.latency_ms
    slots = np.where(rows.latency_ms < wait_ms, due_ms % wait_ms, wait_ms)
    times: dict[int, int] = {}  # equal times are one object: a number need not be one for each request
    bounds = np.searchsorted(rows.arrival_ms, np.arange(first_ms + 1, int(rows.arrival_ms[-1]) + 2))
    return _Chunk(
        first_ms,
        bounds.tolist(),
        [times.setdefault(time_ms, time_ms) for time_ms in due_ms.tolist()],
        [sets[number] for number in rows.key_set.tolist()],
        [ring[number] for number in slots.tolist()],
    )


def _feed(
    timer: VirtualTimer,
    purgatory: Purgatory[str, TimedRequest] | Nowhere,
    made_of: type[TimedRequest],
    load: Load,
    ring: Ring,
    chunk: _Chunk,
    news: Iterator[str],
) -> None:
    """One chunk, millisecond by millisecond: what is over, what holds, which keys have news, what comes."""
    watch, wait_ms, size = purgatory.try_complete_else_watch, load.timeout_ms, load.size
    begin = 0
    for now_ms, end in enumerate(chunk.bounds, chunk.first_ms):
        timer.advance_to(now_ms)
        due = ring[now_ms % wait_ms]
        for request in due:
            request.force_complete()
        due.clear()
        for _ in range(load.news):
            purgatory.check_and_complete(next(news))
        now = slice(begin, end)
        for due_ms, keys, slot in zip(chunk.due_ms[now], chunk.keys[now], chunk.slots[now], strict=True):
            request = made_of(wait_ms)
            request.due = due_ms
            request.data = NUL * size
            if not watch(request, keys):
                slot.append(request)
        ring[-1].clear()
        begin = end


def _quiet_until(timer: VirtualTimer, ring: Ring, until_ms: int) -> None:
    """Milliseconds in which nothing comes."""
    for now_ms in range(timer.now_ms, until_ms):
        timer.advance_to(now_ms)
        due = ring[now_ms % (len(ring) - 1)]
        for request in due:
            request.force_complete()
        due.clear()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
