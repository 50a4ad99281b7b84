"""The purgatory's benchmark on the machine's clock: a design on its threads, beside those of the load."""

from __future__ import annotations

import threading
import time

import numpy as np

from controller.labs.old_purgatory import OldPurgatory
from controller.labs.thread_timer import ThreadTimer
from controller.labs.threaded_purgatory import ThreadedPurgatory
from tests.benchmarks.purgatory_load import Load, key_sets, requests
from tests.benchmarks.purgatory_runs import (
    NUL,
    Nowhere,
    Request,
    Run,
    Tally,
    WrongAnswers,
    collecting,
    in_time,
    kind_on_machine,
)

GIVE_UP_AFTER = 2.5
"""A run that takes so many times as long as its load lasts is broken off: the design has collapsed."""
ANSWERED_LIMIT_S = 5.0

Design = ThreadedPurgatory[str, Request] | OldPurgatory[str, Request] | Nowhere


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


class _RealLoad:
    """One thread hands requests in as they come, a second completes those whose condition holds; the design's own
    threads do the rest."""

    def __init__(self, load: Load, purgatory: Design) -> None:
        self.load = load
        self.purgatory = purgatory
        self.tally = Tally()
        (asked,) = requests(load, load.number)
        self.rows = in_time(asked, load) if isinstance(purgatory, Nowhere) else asked
        self.sets = key_sets(load)
        self.latency_ns = self.rows.latency_ms * 1_000_000
        self.last_ms = int(self.rows.arrival_ms[-1])
        self.handed = 0
        self.over = threading.Event()
        self.requests: list[Request | None] = [None] * load.number
        completes = self.rows.latency_ms < load.timeout_ms
        holds_ms = np.where(completes, self.rows.arrival_ms + self.rows.latency_ms, np.iinfo(np.int64).max)
        self.order = np.argsort(holds_ms, kind="stable")[: int(completes.sum())]
        self.holds_ms = holds_ms[self.order]
        self.ends_ms = int((self.rows.arrival_ms + np.minimum(self.rows.latency_ms, load.timeout_ms)).max())

    def hand_in(self, clock: _Real) -> None:
        bounds = np.searchsorted(self.rows.arrival_ms, np.arange(1, self.last_ms + 2)).tolist()
        made_of = kind_on_machine(self.tally)
        give_up_ms = int(self.last_ms * GIVE_UP_AFTER) + 1_000
        while self.handed < self.load.number:
            now_ms = clock.now_ms()
            if now_ms > give_up_ms:
                return
            end = bounds[min(now_ms, self.last_ms)]
            if end == self.handed:
                clock.nap()
                continue
            # At most so many at once, so that one who is late looks at the clock now and then.
            self._hand_in_rows(made_of, self.handed, min(end, self.handed + 1_000))

    def _hand_in_rows(self, made_of: type[Request], begin: int, end: int) -> None:
        now_ns, size, timeout_ms = time.monotonic_ns(), self.load.size, self.load.timeout_ms
        watch, sets, waiting = self.purgatory.try_complete_else_watch, self.sets, self.requests
        dues, chosen = (self.latency_ns[begin:end] + now_ns).tolist(), self.rows.key_set[begin:end].tolist()
        over_ns = now_ns + timeout_ms * 1_000_000
        for row, due_ns, key_set in zip(range(begin, end), dues, chosen, strict=True):
            request = made_of(timeout_ms)
            request.due = due_ns
            request.data = NUL * size
            watch(request, sets[key_set])
            if due_ns < over_ns:
                waiting[row] = request
        self.handed = end

    def complete(self, clock: _Real) -> None:
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


def run_real(design: str, load: Load, *, collector: bool = True) -> Run:
    """A design ("new", "old", or "load" for none) on threads and the machine's clock. WrongAnswers: more of them than
    requests."""
    timer = ThreadTimer() if design == "new" else None
    purgatory: Design = OldPurgatory() if design == "old" else Nowhere()
    if timer is not None:
        purgatory = ThreadedPurgatory(timer)
    real = _RealLoad(load, purgatory)
    late_ms: float | None = None
    try:
        with collecting(collector):
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
    answers = real.tally.answered
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
        real.tally.expired,
        purgatory.purges,
        late_ms,
    )
