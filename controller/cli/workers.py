"""Seeds shared by several processes, which end with this one, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from controller.cli.interrupts import begin_worker, signals_held

AT_ONCE = 5
"""Seeds that a process takes at a time."""

Result = TypeVar("Result")


def each_seed(work: Callable[[int], Result], seeds: range, jobs: int) -> Iterator[Result]:
    """Yield each seed's result, in the seeds' order. `work` and its results are pickled where `jobs` is above 1."""
    if jobs == 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(min(jobs, len(seeds)), initializer=begin_worker) as pool:
        # The pool queues all that it is given, so that a long range is given in parts.
        for part in _parts(seeds, jobs * AT_ONCE * 20):
            with signals_held():
                results: Iterable[Result] = pool.map(work, part, chunksize=AT_ONCE)
            yield from results


def _parts(seeds: range, size: int) -> Iterator[range]:
    for begin in range(0, len(seeds), size):
        yield seeds[begin : begin + size]
