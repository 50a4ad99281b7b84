"""The common parts of the purgatory benchmark's runs: the requests, their tally, and a run's result.

A request is completed by force once its condition holds, as in Kafka's benchmark. No key is ever checked for
completion, so every request stays in its watch lists until a purge. Each run checks that every request was answered
exactly once.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from controller.labs.virtual_timer import VirtualTimer
from controller.timer.purgatory import DelayedOperation
from tests.benchmarks.purgatory_load import Load, Requests

HELD = 0.95
NUL = b"\0"
COLLECTOR_THRESHOLDS = (50_000, 20, 100)
"""Those of a broker's process."""


class WrongAnswers(RuntimeError):
    """Requests were not answered once each: the figures of that run mean nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to. `design`: "new", "old", or "load" for the generator of the load by itself. `target` and
    `achieved`: requests a second, as scheduled and as handed in; `late_ms`: how long after the schedule's last request
    had had its time all were answered, None if that was not waited for."""

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


class Request(DelayedOperation):
    """Its condition is a time, `due`, in the unit of the run's clock. Kinds of it know the run's clock and counters: a
    request that carried them would be twice as dear to make, and the benchmark's own share is in its figures."""

    __slots__ = ("data", "due")
    due: int
    data: bytes


def kind_on(timer: VirtualTimer, tally: Tally) -> type[Request]:
    answers, expirations = tally.answers, tally.expirations

    class OnTimer(Request):
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


def kind_on_machine(tally: Tally) -> type[Request]:
    """`due`: in monotonic nanoseconds."""
    now_ns, answers, expirations = time.monotonic_ns, tally.answers, tally.expirations

    class OnMachine(Request):
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

    def try_complete_else_watch(self, operation: Request, keys: Collection[str]) -> bool:
        return False

    def check_and_complete(self, key: str) -> int:
        return 0

    def purge(self) -> int:
        return 0


def in_time(rows: Requests, load: Load) -> Requests:
    """Return the requests with every condition met before the timeout at the latest, so that none expires."""
    return replace(rows, latency_ms=np.minimum(rows.latency_ms, load.timeout_ms - 1))


@contextmanager
def collecting(on: bool) -> Iterator[None]:
    """What is there before the run is no garbage of it. `on`: the cyclic collector runs in it as it does in a broker's
    process; else not at all."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    if on:
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
    else:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
