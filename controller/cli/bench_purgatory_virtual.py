"""The purgatory's benchmark on a virtual clock: one thread, as fast as it goes."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import numpy as np

from controller.cli.bench_purgatory_load import Load, key_sets, requests
from controller.cli.bench_purgatory_runs import (
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
from controller.timer.purgatory import Purgatory
from controller.timer.virtual import VirtualTimer

WARM_MS = 1_000

Ring = list[list[Request]]
"""The requests whose condition comes to hold, by the millisecond in which it does, modulo the timeout."""


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
    ring: Ring = [[] for _ in range(wait_ms)]
    cpu_s = best = 0.0
    done = 0
    with collecting(collector):
        blocks = sys.getallocatedblocks()
        for asked in requests(load):
            chunk = in_time(asked, load) if design == "load" else asked
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
        del asked, chunk, latencies, chosen, bounds
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


def _feed(
    timer: VirtualTimer,
    purgatory: Purgatory[str, Request] | Nowhere,
    made_of: type[Request],
    load: Load,
    ring: Ring,
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
        for latency_ms, keys in zip(latencies[begin:end], chosen[begin:end], strict=True):
            request = made_of(wait_ms)
            request.due = due_ms = now_ms + latency_ms
            request.data = NUL * size
            if not watch(request, keys) and latency_ms < wait_ms:
                ring[due_ms % wait_ms].append(request)
        begin = end


def _quiet_until(timer: VirtualTimer, ring: Ring, until_ms: int) -> None:
    """Milliseconds in which nothing comes."""
    for now_ms in range(timer.now_ms, until_ms):
        timer.advance_to(now_ms)
        due = ring[now_ms % len(ring)]
        for request in due:
            request.force_complete()
        due.clear()
