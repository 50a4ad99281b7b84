"""Which of two schemes to take: hashed wheel with unordered buckets (6) or hierarchical wheels (7).

The model is Varghese and Lauck's ("Hashed and Hierarchical Timing Wheels", 1997, on scheme 7). With n timers
outstanding, whose intervals are T ticks on the average, and M slots in all:

* scheme 6 visits every timer once a turn: n * c(index) / M a tick;
* scheme 7, with the slots dealt out over m wheels, moves every timer m times at most while it lives:
  n * m * c(migrate) / T a tick.

n is on both sides, so it says how much is at stake and not which to take. Small T and large M favour the sixth, large
T and small M the seventh. They cost the same where T * c(index) = m * M * c(migrate).

What both pay alike (start, stop, the expiry itself) is left out, and so is what a tick costs when nothing is
outstanding. Pure arithmetic: nothing is measured here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class CostModelError(ValueError):
    """A quantity that the model has no meaning for; the message names it, its value and what was expected."""


class Choice(Enum):
    """By the scheme's number."""

    HashedWheel = 6
    HierarchicalWheels = 7


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """In any unit of time, the same for both: what comes out is in it.

    `index`: to visit one timer in a bucket of scheme 6 and count its rounds down. `migrate`: to move one timer from a
    bucket of scheme 7 to a finer one. How to come by them: `camerlengo bench schemes` measures both.
    """

    index: float
    migrate: float

    def __post_init__(self) -> None:
        _positive("index cost", self.index)
        _positive("migration cost", self.migrate)


@dataclass(frozen=True, slots=True)
class TimerLoad:
    """`outstanding`: n, timers pending at a time. `mean_interval`: T, in ticks, of those that are started (as far as
    they live: a timer that is stopped early counts with the time that it was there)."""

    outstanding: float
    mean_interval: float

    def __post_init__(self) -> None:
        if not (self.outstanding >= 0 and math.isfinite(self.outstanding)):
            raise CostModelError(f"outstanding timers {self.outstanding}: expected 0 or more")
        _positive("mean interval", self.mean_interval)


@dataclass(frozen=True, slots=True)
class WheelMemory:
    """`slots`: M, buckets in all. `wheels`: m, how many wheels scheme 7 deals them out over; for intervals up to some
    length, `controller.labs.schemes.wheels_needed` gives the least."""

    slots: int
    wheels: int

    def __post_init__(self) -> None:
        if self.wheels < 1:
            raise CostModelError(f"wheels {self.wheels}: expected 1 or more")
        if self.slots < 2 * self.wheels:
            raise CostModelError(f"slots {self.slots}: expected 2 or more for each of {self.wheels} wheels")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each costs a tick, in the unit of the costs given, and the cheaper one; if they are equal, the hashed wheel,
    which is the simpler."""

    hashed: float
    hierarchical: float
    choice: Choice


def hashed_cost(work: TimerLoad, memory: WheelMemory, costs: UnitCosts) -> float:
    """Of scheme 6, a tick."""
    return work.outstanding * costs.index / memory.slots


def hierarchical_cost(work: TimerLoad, memory: WheelMemory, costs: UnitCosts) -> float:
    """Of scheme 7, a tick, at most."""
    return work.outstanding * memory.wheels * costs.migrate / work.mean_interval


def choose(work: TimerLoad, memory: WheelMemory, costs: UnitCosts) -> Comparison:
    hashed, hierarchical = hashed_cost(work, memory, costs), hierarchical_cost(work, memory, costs)
    # Compared without n, which would make everything equal where nothing is outstanding.
    favours_hashed = work.mean_interval <= crossing_interval(memory, costs)
    return Comparison(hashed, hierarchical, Choice.HashedWheel if favours_hashed else Choice.HierarchicalWheels)


def crossing_interval(memory: WheelMemory, costs: UnitCosts) -> float:
    """T, in ticks, at which both cost the same: above it the hierarchy is cheaper."""
    return memory.wheels * memory.slots * costs.migrate / costs.index


def mean_migrations(longest: int, wheel_size: int) -> float:
    """How many times a timer of scheme 7 moves down, on the average, if intervals are uniform on 1 to `longest` ticks:
    an estimate that takes the place of the bound m. A timer that starts k wheels up goes down k times at most: it jumps
    over a wheel in between if too little is left of its interval, as it is for one in `wheel_size`.

    CostModelError: `longest` below 1, `wheel_size` below 2.
    """
    if longest < 1:
        raise CostModelError(f"longest interval {longest}: expected 1 or more")
    if wheel_size < 2:
        raise CostModelError(f"wheel size {wheel_size}: expected 2 or more")
    moves, span, lands = 0.0, wheel_size, 1.0
    while span < longest:
        moves += (1 - span / longest) * lands
        span *= wheel_size
        lands = 1 - 1 / wheel_size
    return moves


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise CostModelError(f"{name} {value}: expected more than 0")
