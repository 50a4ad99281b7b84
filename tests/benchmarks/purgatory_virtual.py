"""The purgatory's benchmark on a virtual clock: one thread, as fast as it goes."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from controller.labs.virtual_timer import VirtualTimer
from controller.timer.purgatory import Purgatory
from tests.benchmarks.purgatory_load import Load, Requests, key_sets, requests
from tests.benchmarks.purgatory_runs import (
    NUL,
    Nowhere,
    Request,
    Run,
    Tally,
    WrongAnswers,
    collecting,
    in_time,
    kind_on,
)

WARM_MS = 1_000

Ring = list[list[Request]]
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
    slots: list[list[Request]]


def run_virtual(
    load: Load, *, design: str = "new", collector: bool = True, progress: Callable[[int], None] = lambda _: None
) -> Run:
    """The new design (or "load", for none) on one thread, as fast as it goes; `achieved` is requests a CPU second.
    WrongAnswers."""
    timer = VirtualTimer()
    purgatory: Purgatory[str, Request] | Nowhere = Nowhere() if design == "load" else Purgatory(timer)
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
    return Run(
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


def _chunk(
    rows: Requests,
    first_ms: int,
    wait_ms: int,
    sets: list[tuple[str, ...]],
    ring: Ring,
) -> _Chunk:
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
    purgatory: Purgatory[str, Request] | Nowhere,
    made_of: type[Request],
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
