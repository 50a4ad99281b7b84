"""Measurements for `camerlengo bench schemes`: CPU time of a scheme's operations with n timers outstanding.

Everything runs in this process and this thread, with the cyclic collector off, for a given CPU time a figure. Intervals
are uniform, and a scheme is filled with what is left of them once it has run for long, so that it need not be warmed up
for the longest of them to end.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from random import Random

from controller.cli.gc_tuning import collector_off
from controller.labs.cost_model import UnitCosts, WheelMemory, crossing_interval, mean_migrations
from controller.labs.schemes import Entry, HierarchicalWheels, Scheme, SchemeTimer, UnorderedHashedWheel

FIRST_BATCH, MOST_BATCH = 8, 4_096
REPEATS = 3
FILLING_AT_MOST = 20
"""Where a start is dear and a tick is cheap, most of the time would go by outside of what is measured: it ends at so
many times the time that was asked for."""
DRAINED_AT_MOST = 50
"""A block of ticks lets go of a fiftieth of the timers before others take their place, outside of what is measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """CPU time in ns of one start, one stop and one tick in which one timer expires on the average, with `outstanding`
    timers on intervals of 1 to twice as many ticks."""

    scheme: str
    outstanding: int
    start_ns: float
    stop_ns: float
    tick_ns: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """CPU time in ns a tick of schemes 6 and 7 at several mean intervals (ticks), and `work`, what of it visiting and
    migrating take: without what a wheel takes that has a slot for every tick, where timers only expire."""

    outstanding: int
    memory: WheelMemory
    intervals: list[int]
    hashed_ns: list[float]
    hierarchical_ns: list[float]
    hashed_work_ns: list[float]
    hierarchical_work_ns: list[float]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Costs (ns) of a visit and of a migration, and the mean intervals (ticks) at which both schemes cost the same:
    `bound` with m migrations a timer, `predicted` with their mean, and as measured."""

    costs: UnitCosts
    bound: float
    predicted: float
    measured: float | None


def nothing() -> None:
    """What every timer does: the schemes are measured, not the action."""


def fill(scheme: Scheme, outstanding: int, longest: int, random: Random) -> None:
    """As after a long run with intervals uniform on 1 to `longest`: many timers have little left. In the order of
    their ends, which even an ordered list takes in constant time."""
    left = (math.ceil(longest * (1 - math.sqrt(random.random()))) for _ in range(outstanding))
    for interval in sorted(max(one, 1) for one in left):
        scheme.start(interval, nothing)


def measure_tick(scheme: Scheme, longest: int, budget_ns: int, random: Random) -> float:
    """ns a tick, in a filled scheme that is kept filled."""
    spent, ticks, block = 0, 0, FIRST_BATCH
    most = max(FIRST_BATCH, longest // (2 * DRAINED_AT_MOST))
    enough = time.process_time_ns() + FILLING_AT_MOST * budget_ns
    while spent < budget_ns and time.process_time_ns() < enough:
        spent += _block(scheme, longest, block, random)
        ticks += block
        block = _next_batch(block, most, spent, budget_ns)
    return spent / ticks


def _kept_filled(scheme: Scheme, longest: int, ticks: int, random: Random) -> float:
    """As `measure_tick`, for as many ticks."""
    spent, done = 0, 0
    most = max(FIRST_BATCH, longest // (2 * DRAINED_AT_MOST))
    while done < ticks:
        block = min(most, ticks - done)
        spent += _block(scheme, longest, block, random)
        done += block
    return spent / ticks


def _block(scheme: Scheme, longest: int, ticks: int, random: Random) -> int:
    """ns that `ticks` ticks take; then as many timers as expired are started."""
    outstanding = len(scheme)
    began = time.process_time_ns()
    for _ in range(ticks):
        scheme.tick()
    spent = time.process_time_ns() - began
    gone = outstanding - len(scheme)
    for _ in range(gone):
        scheme.start(random.randint(1, longest), nothing)
    return spent


def measure_start_and_stop(scheme: Scheme, longest: int, budget_ns: int, random: Random) -> tuple[float, float]:
    """ns a start and a stop, in random order, of timers beside those that are there and stay there."""
    starting = stopping = operations = 0
    batch = FIRST_BATCH
    most = max(FIRST_BATCH, min(MOST_BATCH, len(scheme) // 10))
    while starting + stopping < 2 * budget_ns:
        intervals = [random.randint(1, longest) for _ in range(batch)]
        timers: list[SchemeTimer] = []
        began = time.process_time_ns()
        for interval in intervals:
            timers.append(scheme.start(interval, nothing))
        starting += time.process_time_ns() - began
        random.shuffle(timers)
        began = time.process_time_ns()
        for timer in timers:
            scheme.stop(timer)
        stopping += time.process_time_ns() - began
        operations += batch
        batch = _next_batch(batch, most, starting + stopping, budget_ns)
    return starting / operations, stopping / operations


def _next_batch(batch: int, most: int, spent_ns: int, budget_ns: int) -> int:
    """Twice as many, as long as that is not what would use the time up."""
    return min(2 * batch, most) if spent_ns < budget_ns // 4 else batch


def measure_point(entry: Entry, outstanding: int, slots: int, budget_ns: int, seed: int) -> Point:
    """Raises RuntimeError if the scheme lost count of its timers."""
    random, longest = Random(seed), 2 * outstanding
    scheme = entry.make(longest, slots)
    fill(scheme, outstanding, longest, random)
    with collector_off():
        start_ns, stop_ns = measure_start_and_stop(scheme, longest, budget_ns, random)
        tick_ns = measure_tick(scheme, longest, budget_ns, random)
    if len(scheme) != outstanding:
        raise RuntimeError(f"{entry.name}: {len(scheme)} timers of {outstanding} are left: the figures mean nothing")
    return Point(entry.name, outstanding, start_ns, stop_ns, tick_ns)


def measure_interval(outstanding: int, memory: WheelMemory, interval: int, seed: int) -> tuple[float, ...]:
    """ns a tick of scheme 6, of scheme 7, and of a wheel that has a slot for every tick: the expiries alone.

    Each is the least of REPEATS, measured in turns, over as many ticks as the second wheel of scheme 7 takes to turn
    (or the longest interval, if that is shorter), so that each time has its share of what comes down from the third.
    """
    longest = 2 * interval
    schemes: tuple[Scheme, ...] = (
        UnorderedHashedWheel(memory.slots),
        HierarchicalWheels(memory.slots // memory.wheels),
        UnorderedHashedWheel(longest),
    )
    ticks = min((memory.slots // memory.wheels) ** 2, longest)
    random = Random(seed)
    for scheme in schemes:
        fill(scheme, outstanding, longest, random)
    with collector_off():
        rounds = [[_kept_filled(scheme, longest, ticks, random) for scheme in schemes] for _ in range(REPEATS)]
    return tuple(min(column) for column in zip(*rounds, strict=True))


def sweep_of(outstanding: int, memory: WheelMemory, ticks_ns: dict[int, tuple[float, ...]]) -> Sweep:
    """From `measure_interval`'s figures by mean interval."""
    intervals = sorted(ticks_ns)
    hashed, hierarchical, expiries = (
        list(column) for column in zip(*(ticks_ns[one] for one in intervals), strict=True)
    )
    return Sweep(
        outstanding,
        memory,
        intervals,
        hashed,
        hierarchical,
        [all_ns - expiries_ns for all_ns, expiries_ns in zip(hashed, expiries, strict=True)],
        [all_ns - expiries_ns for all_ns, expiries_ns in zip(hierarchical, expiries, strict=True)],
    )


def crossing_of(sweep: Sweep) -> Crossing:
    """One cost of each kind for the whole sweep, the median of what its rows give. Raises RuntimeError if the machine
    was so busy that one came out as nothing or less."""
    memory, outstanding = sweep.memory, sweep.outstanding
    index_ns = statistics.median(work * memory.slots / outstanding for work in sweep.hashed_work_ns)
    migrate_ns = statistics.median(
        work * interval / (outstanding * _moves(memory, interval))
        for work, interval in zip(sweep.hierarchical_work_ns, sweep.intervals, strict=True)
    )
    if index_ns <= 0 or migrate_ns <= 0:
        raise RuntimeError(f"costs of {index_ns:.1f} and {migrate_ns:.1f} ns: measure again on a quieter machine")
    costs = UnitCosts(index_ns, migrate_ns)
    bound = crossing_interval(memory, costs)
    return Crossing(costs, bound, _predicted(memory, bound), measured_crossing(sweep))


def _moves(memory: WheelMemory, interval: float) -> float:
    return mean_migrations(max(round(2 * interval), 1), memory.slots // memory.wheels)


def _predicted(memory: WheelMemory, bound: float) -> float:
    """The T at which T is what the model says with T's own mean of migrations: found by halving, as both sides grow
    with T and the bound is the most that it can be."""
    a_migration = bound / memory.wheels
    low, high = 0.0, bound
    while high - low > 1e-3 * bound:
        middle = (low + high) / 2
        if middle < a_migration * _moves(memory, middle):
            low = middle
        else:
            high = middle
    return high


def measured_crossing(sweep: Sweep) -> float | None:
    """Where the hierarchy's work comes to be less than the hashed wheel's, between two intervals on logarithmic axes;
    None if that is not within the sweep."""
    ratios = [
        math.log(max(hierarchical, 1e-3) / max(hashed, 1e-3))
        for hierarchical, hashed in zip(sweep.hierarchical_work_ns, sweep.hashed_work_ns, strict=True)
    ]
    for here in range(len(ratios) - 1):
        before, after = ratios[here], ratios[here + 1]
        if before > 0 >= after:
            share = before / (before - after)
            return math.exp(math.log(sweep.intervals[here]) * (1 - share) + math.log(sweep.intervals[here + 1]) * share)
    return None


def model_lines(sweep: Sweep, crossing: Crossing) -> tuple[list[float], list[float], list[float]]:
    """ns a tick as the model has it at the sweep's intervals: scheme 6, scheme 7 at most, scheme 7 on the average."""
    memory, costs, outstanding = sweep.memory, crossing.costs, sweep.outstanding
    hashed = [outstanding * costs.index / memory.slots for _ in sweep.intervals]
    migration = [outstanding * costs.migrate / interval for interval in sweep.intervals]
    most = [memory.wheels * one for one in migration]
    mean = [_moves(memory, interval) * one for interval, one in zip(sweep.intervals, migration, strict=True)]
    return hashed, most, mean
