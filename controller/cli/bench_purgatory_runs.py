"""One run of the purgatory's benchmark: a load through a purgatory, on a virtual clock or on the machine's.

A request is completed by force once its condition holds, as Kafka's benchmark does it; nobody tells news of keys, so
every request stays in its watch lists until a purge. That each was answered once is checked in each run.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from controller.cli.bench_purgatory_load import Load, key_sets, requests
from controller.timer.old_purgatory import OldPurgatory
from controller.timer.operation import DelayedOperation
from controller.timer.purgatory import Purgatory
from controller.timer.threaded import ThreadTimer
from controller.timer.threaded_purgatory import ThreadedPurgatory
from controller.timer.virtual import VirtualTimer

GIVE_UP_AFTER = 2.5
"""A run that takes so many times as long as its load lasts is broken off: the design has collapsed."""
ANSWERED_LIMIT_S = 5.0
NAP_S = 0.0005
HELD = 0.95
WARM_MS = 1_000


class WrongAnswers(RuntimeError):
    """Requests were not answered once each: the figures of that run mean nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to. `target` and `achieved`: requests a second, as scheduled and as handed in; `late_ms`: how
    long after the schedule's last request had had its time all were answered, None if that was not waited for."""

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

    @property
    def held(self) -> bool:
        """Handed in at the target's rate, and all of it answered. Kafka's benchmark asks for the first alone."""
        return self.achieved >= HELD * self.target and self.late_ms is not None

    @property
    def cpu_us(self) -> float:
        """CPU time a request, the benchmark's own share included."""
        return self.cpu_s / self.number * 1e6


class _Tally:
    """Counters that any thread may count up, in one step each."""

    def __init__(self) -> None:
        self.answered = itertools.count()
        self.expired = itertools.count()


class _Request(DelayedOperation):
    """Its condition is a time. `_kind` of a run knows that run's clock and counters; an operation that carried them
    would be twice as dear to make, and the benchmark's own share is in its figures."""

    __slots__ = ("data", "due_ms")
    due_ms: int
    data: bytes


def _kind(now_ms: Callable[[], int], tally: _Tally) -> type[_Request]:
    answered, expired = tally.answered, tally.expired

    class Request(_Request):
        __slots__ = ()

        def try_complete(self) -> bool:
            return now_ms() >= self.due_ms and self.force_complete()

        def on_complete(self) -> None:
            next(answered)

        def on_expiration(self) -> None:
            next(expired)

    return Request


def _read(counter: Iterator[int]) -> int:
    return int(repr(counter)[len("count(") : -1])


@contextmanager
def _collector(on: bool) -> Iterator[None]:
    """What is there before the run is no garbage of it; whether the cyclic collector runs in it."""
    gc.collect()
    gc.freeze()
    if not on:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def run_virtual(load: Load, *, collector: bool = True, progress: Callable[[int], None] = lambda _: None) -> Run:
    """The new design on one thread, as fast as it goes; `achieved` is requests a CPU second. WrongAnswers."""
    timer = VirtualTimer()
    purgatory: Purgatory[str, _Request] = Purgatory(timer)
    tally = _Tally()
    made_of = _kind(lambda: timer.now_ms, tally)
    sets = key_sets(load)
    wait_ms = load.timeout_ms
    ring: list[list[_Request]] = [[] for _ in range(wait_ms)]
    cpu_s = best = 0.0
    done = 0
    with _collector(collector):
        blocks = sys.getallocatedblocks()
        for chunk in requests(load):
            first_ms = max(timer.now_ms, int(chunk.arrival_ms[0]))
            last_ms = int(chunk.arrival_ms[-1])
            bounds = np.searchsorted(chunk.arrival_ms, np.arange(first_ms + 1, last_ms + 2)).tolist()
            latencies, chosen = chunk.latency_ms.tolist(), [sets[number] for number in chunk.key_set.tolist()]
            started_s = time.process_time()
            _quiet_until(timer, ring, first_ms)
            _feed(timer, purgatory, made_of, load, ring, (first_ms, bounds, latencies, chosen))
            chunk_s = time.process_time() - started_s
            cpu_s += chunk_s
            done += len(latencies)
            if first_ms > WARM_MS:
                best = max(best, len(latencies) / chunk_s)
            progress(done)
        started_s = time.process_time()
        _quiet_until(timer, ring, timer.now_ms + wait_ms + 1)
        cpu_s += time.process_time() - started_s
        purgatory.purge()
        del chunk, latencies, chosen, bounds
        gc.collect()
        left = sys.getallocatedblocks() - blocks
    expired = _read(tally.expired)
    if _read(tally.answered) != load.number or purgatory.delayed or purgatory.watched:
        raise WrongAnswers(f"{load.name}: {_read(tally.answered)} answers to {load.number} requests")
    rate = load.number / cpu_s
    return Run(
        "new",
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


def _feed(
    timer: VirtualTimer,
    purgatory: Purgatory[str, _Request],
    made_of: type[_Request],
    load: Load,
    ring: list[list[_Request]],
    chunk: tuple[int, list[int], list[int], list[tuple[str, ...]]],
) -> None:
    """One chunk, millisecond by millisecond: what is over, what holds, what comes."""
    first_ms, bounds, latencies, chosen = chunk
    watch, wait_ms, size = purgatory.try_complete_else_watch, load.timeout_ms, load.size
    begin = 0
    for now_ms, end in enumerate(bounds, first_ms):
        timer.advance_to(now_ms)
        due = ring[now_ms % wait_ms]
        for request in due:
            request.force_complete()
        due.clear()
        for row in range(begin, end):
            latency_ms = latencies[row]
            request = made_of(wait_ms)
            request.due_ms = now_ms + latency_ms
            request.data = bytes(size)
            if not watch(request, chosen[row]) and latency_ms < wait_ms:
                ring[request.due_ms % wait_ms].append(request)
        begin = end


def _quiet_until(timer: VirtualTimer, ring: list[list[_Request]], until_ms: int) -> None:
    """Milliseconds in which nothing comes."""
    for now_ms in range(timer.now_ms, until_ms):
        timer.advance_to(now_ms)
        due = ring[now_ms % len(ring)]
        for request in due:
            request.force_complete()
        due.clear()


class _Real:
    """The machine's monotonic clock."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() - self.start_ns) // 1_000_000


class _RealLoad:
    """One thread hands requests in as they come, a second completes those whose condition holds; the design's own
    threads do the rest."""

    def __init__(self, load: Load, purgatory: ThreadedPurgatory[str, _Request] | OldPurgatory[str, _Request]) -> None:
        self.load = load
        self.purgatory = purgatory
        self.tally = _Tally()
        (self.rows,) = requests(load, load.number)
        self.sets = key_sets(load)
        self.last_ms = int(self.rows.arrival_ms[-1])
        self.handed = 0
        self.over = threading.Event()
        self.requests: list[_Request | None] = [None] * load.number
        completes = self.rows.latency_ms < load.timeout_ms
        holds_ms = np.where(completes, self.rows.arrival_ms + self.rows.latency_ms, np.iinfo(np.int64).max)
        self.order = np.argsort(holds_ms, kind="stable")[: int(completes.sum())]
        self.holds_ms = holds_ms[self.order]
        self.ends_ms = int((self.rows.arrival_ms + np.minimum(self.rows.latency_ms, load.timeout_ms)).max())

    def hand_in(self, clock: _Real) -> None:
        bounds = np.searchsorted(self.rows.arrival_ms, np.arange(1, self.last_ms + 2)).tolist()
        made_of = _kind(clock.now_ms, self.tally)
        give_up_ms = int(self.last_ms * GIVE_UP_AFTER) + 1_000
        while self.handed < self.load.number:
            now_ms = clock.now_ms()
            if now_ms > give_up_ms:
                return
            end = bounds[min(now_ms, self.last_ms)]
            if end == self.handed:
                time.sleep(NAP_S)
                continue
            # At most so many at once, so that one who is late looks at the clock now and then.
            self._hand_in_rows(made_of, clock, self.handed, min(end, self.handed + 1_000))

    def _hand_in_rows(self, made_of: type[_Request], clock: _Real, begin: int, end: int) -> None:
        now_ms, size, timeout_ms = clock.now_ms(), self.load.size, self.load.timeout_ms
        watch, sets, waiting = self.purgatory.try_complete_else_watch, self.sets, self.requests
        latencies, chosen = self.rows.latency_ms[begin:end].tolist(), self.rows.key_set[begin:end].tolist()
        for row, latency_ms, key_set in zip(range(begin, end), latencies, chosen, strict=True):
            request = made_of(timeout_ms)
            request.due_ms = now_ms + latency_ms
            request.data = bytes(size)
            watch(request, sets[key_set])
            if latency_ms < timeout_ms:
                waiting[row] = request
        self.handed = end

    def complete(self, clock: _Real) -> None:
        done, due = 0, len(self.order)
        while done < due and not self.over.is_set():
            end = min(int(np.searchsorted(self.holds_ms, clock.now_ms(), side="right")), done + 1_000)
            rows = self.order[done:end].tolist()
            for row in rows:
                request = self.requests[row]
                if request is None:  # whoever hands in is late
                    break
                self.requests[row] = None
                request.force_complete()
                done += 1
            if done < end or not rows:
                time.sleep(NAP_S)

    def answered_by(self, limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while _read(self.tally.answered) < self.handed and time.monotonic() < deadline_s:
            time.sleep(0.002)
        return _read(self.tally.answered) == self.handed


def run_real(design: str, load: Load, *, collector: bool = True) -> Run:
    """A design ("new" or "old") on threads and the machine's clock. WrongAnswers: more of them than requests."""
    timer = ThreadTimer() if design == "new" else None
    purgatory: ThreadedPurgatory[str, _Request] | OldPurgatory[str, _Request]
    purgatory = OldPurgatory() if timer is None else ThreadedPurgatory(timer)
    real = _RealLoad(load, purgatory)
    late_ms: float | None = None
    try:
        with _collector(collector):
            started_s, clock = time.process_time(), _Real()
            completing = threading.Thread(target=real.complete, args=(clock,), daemon=True)
            completing.start()
            real.hand_in(clock)
            elapsed_s = (time.monotonic_ns() - clock.start_ns) / 1e9
            if real.handed == load.number and real.answered_by(ANSWERED_LIMIT_S):
                late_ms = clock.now_ms() - real.ends_ms
            real.over.set()
            completing.join()
            cpu_s = time.process_time() - started_s
    finally:
        if isinstance(purgatory, OldPurgatory):
            purgatory.close()
        elif timer is not None:
            timer.close()
    answers = _read(real.tally.answered)
    if answers > real.handed:
        raise WrongAnswers(f"{load.name}: {answers} answers to {real.handed} requests")
    return Run(
        design,
        "real",
        load.name,
        real.handed,
        load.number / (real.last_ms / 1_000),
        real.handed / elapsed_s,
        cpu_s,
        _read(real.tally.expired),
        purgatory.purges,
        late_ms,
    )
