"""What the timer schemes do, counted: comparisons of times a start, a stop and a tick, and migrations and memory of
wheels with and without units. For `camerlengo bench schemes`.

Intervals are `CountedTick`s, integers that count each comparison in which they, or times computed from them, take part.
So the code that is counted is the code that is measured, the standard library's heap included, and the same run gives
the same counts on every machine. Only the pure build of the wheel can be counted: mypyc's turns times into C integers.
"""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import SupportsIndex

from controller.cli.gc_tuning import collector_off
from controller.labs.schemes import CATALOGUE, CLOCK_UNITS, Entry, Scheme, SchemeTimer, SimpleWheel
from controller.timer.wheel import Bucket, TimerTask, TimingWheel, Wheel
from tests.benchmarks.common import markdown, progress

TURNS = 8
"""Where all timers are in one slot, they are due in so many turns of the wheel."""
STOPPED = 0.6
"""The share of timers that is stopped under the random load."""


class CountedTick(int):
    """An integer whose comparisons, and tests for 0, are counted in `compared`; arithmetic keeps the type."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountedTick.compared += 1
        return int.__lt__(self, other)

    def __le__(self, other: int) -> bool:
        CountedTick.compared += 1
        return int.__le__(self, other)

    def __gt__(self, other: int) -> bool:
        CountedTick.compared += 1
        return int.__gt__(self, other)

    def __ge__(self, other: int) -> bool:
        CountedTick.compared += 1
        return int.__ge__(self, other)

    def __eq__(self, other: object) -> bool:
        CountedTick.compared += 1
        return int.__eq__(self, other)

    def __bool__(self) -> bool:
        CountedTick.compared += 1
        return int.__bool__(self)

    __hash__ = int.__hash__

    def __add__(self, other: int) -> CountedTick:
        return CountedTick(int.__add__(self, other))

    __radd__ = __add__

    def __sub__(self, other: int) -> CountedTick:
        return CountedTick(int.__sub__(self, other))

    def __floordiv__(self, other: int) -> CountedTick:
        return CountedTick(int.__floordiv__(self, other))

    def __rshift__(self, other: int) -> CountedTick:
        return CountedTick(int.__rshift__(self, other))

    def __divmod__(self, other: int) -> tuple[CountedTick, int]:
        quotient, rest = int.__divmod__(self, other)
        return CountedTick(quotient), rest

    def __index__(self) -> int:
        return int.__index__(self)


Integer = Callable[[SupportsIndex], int]
"""`CountedTick`, or `int` where time is measured instead."""
Load = Callable[[Scheme, int, int, Integer], Iterator[tuple[str, Callable[[], object]]]]
"""From a scheme, a number of timers, a number of slots and the type of intervals to operations, each with its kind."""


def _nothing() -> None:
    """What every timer does."""


def _started(scheme: Scheme, intervals: Sequence[int], of: Integer) -> Iterator[tuple[str, Callable[[], object]]]:
    for interval in intervals:
        yield "start", partial(scheme.start, of(interval), _nothing)


def _start_into(made: list[SchemeTimer], scheme: Scheme, interval: int) -> None:
    made.append(scheme.start(interval, _nothing))


def random_load(scheme: Scheme, timers: int, slots: int, of: Integer) -> Iterator[tuple[str, Callable[[], object]]]:
    """Intervals uniform on 1 to 2n; STOPPED of the timers are stopped, the others expire."""
    random, made = Random(1), list[SchemeTimer]()
    for _ in range(timers):
        interval = of(random.randint(1, 2 * timers))
        yield "start", partial(_start_into, made, scheme, interval)
    for timer in random.sample(made, int(STOPPED * timers)):
        yield "stop", partial(scheme.stop, timer)
    yield from _until_empty(scheme)


def equal_load(scheme: Scheme, timers: int, slots: int, of: Integer) -> Iterator[tuple[str, Callable[[], object]]]:
    """One interval, 2n, for all, and a tick between two starts, as requests have one timeout."""
    for start in _started(scheme, [2 * timers] * timers, of):
        yield start
        yield "tick", scheme.tick
    yield from _until_empty(scheme)


def falling_load(scheme: Scheme, timers: int, slots: int, of: Integer) -> Iterator[tuple[str, Callable[[], object]]]:
    """2n, 2n - 1 and so on at one time: each is due before all others."""
    yield from _started(scheme, range(2 * timers, timers, -1), of)
    yield from _until_empty(scheme)


def one_slot_load(scheme: Scheme, timers: int, slots: int, of: Integer) -> Iterator[tuple[str, Callable[[], object]]]:
    """Multiples of the number of slots, from `TURNS` turns down to one: all timers hash to one slot."""
    yield from _started(scheme, [slots * (TURNS - TURNS * place // timers) for place in range(timers)], of)
    yield from _until_empty(scheme)


def _until_empty(scheme: Scheme) -> Iterator[tuple[str, Callable[[], object]]]:
    while len(scheme):
        yield "tick", scheme.tick


LOADS: Mapping[str, Load] = {
    "random": random_load,
    "equal": equal_load,
    "falling": falling_load,
    "one slot": one_slot_load,
}


@dataclass(frozen=True, slots=True)
class StepCount:
    """Comparisons of one kind of operation: the mean, and the most that a single one took."""

    operations: int = 0
    total: int = 0
    worst: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.operations if self.operations else 0.0


@dataclass(frozen=True, slots=True)
class SchemeSteps:
    """A scheme's comparisons under one load of `timers` timers, by the kind of the operation."""

    scheme: str
    load: str
    timers: int
    by_kind: Mapping[str, StepCount]

    @property
    def amortised(self) -> float:
        """Comparisons a timer, from its start to its end, the ticks included."""
        return sum(count.total for count in self.by_kind.values()) / self.timers


def longest_of(timers: int, slots: int) -> int:
    return max(2 * timers, TURNS * slots)


def count_steps(entry: Entry, load: str, timers: int, slots: int) -> SchemeSteps:
    scheme = entry.make(longest_of(timers, slots), slots)
    totals: dict[str, list[int]] = {"start": [], "stop": [], "tick": []}
    for kind, operation in LOADS[load](scheme, timers, slots, CountedTick):
        before = CountedTick.compared
        operation()
        totals[kind].append(CountedTick.compared - before)
    by_kind = {kind: StepCount(len(each), sum(each), max(each, default=0)) for kind, each in totals.items()}
    return SchemeSteps(entry.name, load, timers, by_kind)


def cpu_us(entry: Entry, timers: int, slots: int) -> float:
    """CPU time a timer under the random load, from its start to its end, with the load's own."""
    scheme = entry.make(longest_of(timers, slots), slots)
    with collector_off():
        began = time.process_time_ns()
        for _, operation in random_load(scheme, timers, slots, int):
            operation()
        return (time.process_time_ns() - began) / timers / 1_000


FACTOR = 4
"""The amortised cost is counted again with so many times the timers."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """`loads` by scheme and load; `few`, random with fewer timers than slots; `more`, random with FACTOR times the
    timers; `cpu_us` a timer by scheme."""

    timers: int
    slots: int
    loads: Mapping[str, Mapping[str, SchemeSteps]]
    few: Mapping[str, SchemeSteps]
    more: Mapping[str, SchemeSteps]
    cpu_us: Mapping[str, float]


def measure_steps(timers: int, slots: int) -> StepFigures:
    loads, few, more, us = {}, {}, {}, {}
    for entry in CATALOGUE:
        progress(f"comparisons: {entry.name}")
        loads[entry.name] = {load: count_steps(entry, load, timers, slots) for load in LOADS}
        few[entry.name] = count_steps(entry, "random", slots // 4, slots)
        more[entry.name] = count_steps(entry, "random", FACTOR * timers, slots)
        us[entry.name] = cpu_us(entry, timers, slots)
    return StepFigures(timers, slots, loads, few, more, us)


def steps_table(found: StepFigures) -> list[str]:
    head = ["", "start, mean", "worst", "stop, mean", "worst", "tick, mean", "worst"]
    head += [f"amortised, n = {found.timers:,}", f"n = {FACTOR * found.timers:,}", "CPU µs a timer"]
    rows = []
    for entry in CATALOGUE:
        loads = found.loads[entry.name]
        row = [f"{entry.number} {entry.name}"]
        for kind in ("start", "stop", "tick"):
            row.append(f"{loads['random'].by_kind[kind].mean:,.1f}")
            row.append(f"{max(one.by_kind[kind].worst for one in loads.values()):,}")
        row += [f"{loads['random'].amortised:,.1f}", f"{found.more[entry.name].amortised:,.1f}"]
        rows.append([*row, f"{found.cpu_us[entry.name]:,.1f}"])
    return markdown(head, rows)


def loads_table(found: StepFigures) -> list[str]:
    head = ["start: mean / worst", *LOADS, f"random, n = {found.slots // 4}"]
    rows = []
    for entry in CATALOGUE:
        if entry.number in (2, 3, 5):
            each = [*(found.loads[entry.name][load] for load in LOADS), found.few[entry.name]]
            cells = [f"{one.by_kind['start'].mean:,.1f} / {one.by_kind['start'].worst:,}" for one in each]
            rows.append([f"{entry.number} {entry.name}", *cells])
    return markdown(head, rows)


DAY = 86_400
REACH = math.prod(CLOCK_UNITS)
"""Seconds in 100 days."""
SHAPES: Mapping[str, int | Sequence[int]] = {
    "units: 60, 60, 24, 100": CLOCK_UNITS,
    "uniform: 4 wheels of 55": (55,) * 4,
    "uniform: 6 wheels of 20, Kafka's size": (20,) * 6,
}


@dataclass(frozen=True, slots=True)
class WheelShape:
    """Wheels for intervals of up to 100 days in seconds. `migrations` a timer, on the average and at most; CPU times a
    timer in ns, of its start with its slot, and of its whole way until it is taken to be run (None: not measured)."""

    name: str
    wheels: int
    slots: int
    memory_bytes: int
    migrations: float
    most_migrations: int
    start_ns: float
    life_ns: float | None


def measure_shapes(timers: int) -> list[WheelShape]:
    found = [_flat(timers)]
    for name, sizes in SHAPES.items():
        progress(f"100 days, {name}")
        found.append(_shape(name, sizes, timers))
    return found


def _intervals(timers: int) -> list[int]:
    random = Random(1)
    return [random.randint(1, REACH) for _ in range(timers)]


def _flat(timers: int) -> WheelShape:
    """A slot a second. A day's is made, and a hundred times its memory is given; the start costs the same."""
    with collector_off():
        tracemalloc.start()
        wheel = SimpleWheel(DAY)
        memory = tracemalloc.get_traced_memory()[0] * (REACH // DAY)
        tracemalloc.stop()
        intervals = [max(interval // (REACH // DAY), 1) for interval in _intervals(timers)]
        began = time.process_time_ns()
        for interval in intervals:
            wheel.start(interval, _nothing)
        return WheelShape("flat", 1, REACH, memory, 0, 0, (time.process_time_ns() - began) / timers, None)


def counting_wheel(sizes: int | Sequence[int]) -> tuple[TimingWheel, dict[TimerTask, int]]:
    """A wheel in ticks of a second, and how often each of its tasks has migrated."""
    moved: dict[TimerTask, int] = {}

    class Counting(TimingWheel):
        def _bring_down(self, wheel: Wheel, bucket: Bucket) -> None:
            task = bucket._next
            while task is not None and task is not bucket:
                moved[task] = moved.get(task, 0) + 1
                task = task._next
            super()._bring_down(wheel, bucket)

    return Counting(1, sizes), moved


def _shape(name: str, sizes: int | Sequence[int], timers: int) -> WheelShape:
    intervals = _intervals(timers)
    with collector_off():
        tracemalloc.start()
        wheel = TimingWheel(1, sizes)
        wheel.start(last := TimerTask(), REACH)
        wheel.turn(0)
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        wheel.cancel(last)
        tasks = [TimerTask() for _ in range(timers)]
        began = time.process_time_ns()
        for task, interval in zip(tasks, intervals, strict=True):
            wheel.start(task, interval)
            wheel.turn(0)  # the slot is searched by the start, as published
        started = time.process_time_ns() - began
        _run_down(wheel)
        life = time.process_time_ns() - began
    slots, levels = 0, 0
    level: Wheel | None = wheel._lowest
    while level is not None:
        slots, levels, level = slots + len(level.buckets), levels + 1, level.above
    counting, moved = counting_wheel(sizes)
    for interval in intervals:
        counting.start(TimerTask(), interval)
    _run_down(counting)
    return WheelShape(
        name, levels, slots, memory, sum(moved.values()) / timers, max(moved.values()), started / timers, life / timers
    )


def _run_down(wheel: TimingWheel) -> None:
    """Turn until nothing is left, from bucket to bucket."""
    while wheel.turn(REACH):
        while wheel.take() is not None:
            pass


def shapes_table(found: Sequence[WheelShape]) -> list[str]:
    head = ["100 days in seconds", "wheels", "slots", "memory, kB", "migrations, mean", "at most"]
    head += ["start, CPU µs", "to the end, CPU µs"]
    rows = [
        [
            one.name,
            str(one.wheels),
            f"{one.slots:,}",
            f"{one.memory_bytes / 1_000:,.0f}",
            f"{one.migrations:.2f}",
            str(one.most_migrations),
            f"{one.start_ns / 1_000:.1f}",
            "not measured" if one.life_ns is None else f"{one.life_ns / 1_000:.1f}",
        ]
        for one in found
    ]
    return markdown(head, rows)
