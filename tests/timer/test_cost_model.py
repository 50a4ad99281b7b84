"""The cost model against Varghese and Lauck's statements, by hand-worked figures, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from controller.labs.cost_model import (
    Choice,
    CostModelError,
    TimerLoad,
    UnitCosts,
    WheelMemory,
    choose,
    crossing_interval,
    hashed_cost,
    hierarchical_cost,
    mean_migrations,
)
from controller.timer import TimingWheel
from controller.timer.wheel import Bucket, TimerTask

COSTS = UnitCosts(index=2.0, migrate=6.0)


@pytest.mark.parametrize(
    ("outstanding", "interval", "slots", "wheels", "hashed", "hierarchical", "choice"),
    [
        (1_000, 100, 256, 3, 7.8125, 180.0, Choice.HashedWheel),
        (1_000, 10_000, 256, 3, 7.8125, 1.8, Choice.HierarchicalWheels),
        (1_000, 10_000, 4_096, 3, 0.48828125, 1.8, Choice.HashedWheel),
        (2_000, 10_000, 256, 3, 15.625, 3.6, Choice.HierarchicalWheels),
        (1_000, 10_000, 256, 1, 7.8125, 0.6, Choice.HierarchicalWheels),
        (0, 10_000, 256, 3, 0.0, 0.0, Choice.HierarchicalWheels),
        (0, 100, 256, 3, 0.0, 0.0, Choice.HashedWheel),
    ],
)
def test_costs_a_tick_and_what_to_take(
    outstanding: int, interval: int, slots: int, wheels: int, hashed: float, hierarchical: float, choice: Choice
) -> None:
    verdict = choose(TimerLoad(outstanding, interval), WheelMemory(slots, wheels), COSTS)
    assert verdict.hashed == pytest.approx(hashed)
    assert verdict.hierarchical == pytest.approx(hierarchical)
    assert verdict.choice is choice


@pytest.mark.parametrize("slots", [16, 256, 10_000])
@pytest.mark.parametrize("wheels", [1, 3, 5])
def test_both_cost_the_same_at_the_crossing_and_only_there(slots: int, wheels: int) -> None:
    memory = WheelMemory(slots, wheels)
    at = crossing_interval(memory, COSTS)
    assert at == wheels * slots * 3
    work = TimerLoad(777, at)
    assert hashed_cost(work, memory, COSTS) == pytest.approx(hierarchical_cost(work, memory, COSTS))
    assert choose(work, memory, COSTS).choice is Choice.HashedWheel
    assert choose(TimerLoad(777, at * 0.99), memory, COSTS).choice is Choice.HashedWheel
    assert choose(TimerLoad(777, at * 1.01), memory, COSTS).choice is Choice.HierarchicalWheels


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UnitCosts(0.0, 1.0), "index cost 0.0: expected more than 0"),
        (lambda: UnitCosts(1.0, -1.0), "migration cost -1.0: expected more than 0"),
        (lambda: UnitCosts(1.0, float("nan")), "migration cost nan"),
        (lambda: TimerLoad(-1, 10), "outstanding timers -1: expected 0 or more"),
        (lambda: TimerLoad(float("inf"), 10), "outstanding timers inf"),
        (lambda: TimerLoad(1, 0), "mean interval 0: expected more than 0"),
        (lambda: WheelMemory(10, 0), "wheels 0: expected 1 or more"),
        (lambda: WheelMemory(5, 3), "slots 5: expected 2 or more for each of 3 wheels"),
        (lambda: mean_migrations(0, 20), "longest interval 0"),
        (lambda: mean_migrations(10, 1), "wheel size 1"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        make()


class _Counting(TimingWheel):
    moved = 0

    def _bring_down(self, *arguments: Any) -> None:
        bucket = next(one for one in arguments if isinstance(one, Bucket))
        task = bucket._next
        while task is not None and task is not bucket:
            self.moved += 1
            task = task._next
        super()._bring_down(*arguments)


@pytest.mark.parametrize(("longest", "wheel_size"), [(20, 20), (400, 20), (4_000, 8), (30_000, 20), (5_000, 256)])
def test_migrations_are_what_a_wheel_does(longest: int, wheel_size: int) -> None:
    """Within a tenth of a move: where in its turn a wheel stands at the start also counts."""
    random = Random(3)
    wheel = _Counting(1, wheel_size)
    for _ in range(4_000):
        wheel.start(TimerTask(), random.randint(1, longest))
    while wheel.turn(longest):
        while wheel.take() is not None:
            pass
    assert wheel.moved / 4_000 == pytest.approx(mean_migrations(longest, wheel_size), abs=0.1)
