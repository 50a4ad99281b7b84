"""`camerlengo bench schemes`: start, stop and tick in each of the seven timer schemes, by number of outstanding timers,
and the mean interval at which a hierarchy becomes cheaper than a hashed wheel, measured and by the cost model. Then
what each scheme compares, counted, and wheels with units beside uniform ones (`scheme_steps`).

Everything runs in this process and this thread, with the cyclic collector off, for a given CPU time a figure. Intervals
are uniform, and a scheme is filled with what is left of them once it has run for long, so that it need not be warmed up
for the longest of them to end.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random

from controller.cli.gc_tuning import collector_off
from controller.cli.values import seed
from controller.labs.cost_model import UnitCosts, WheelMemory, crossing_interval, mean_migrations
from controller.labs.schemes import (
    CATALOGUE,
    Entry,
    HierarchicalWheels,
    Scheme,
    SchemeTimer,
    TreeOfTimers,
    UnorderedHashedWheel,
)
from controller.timer.wheel import COMPILED
from tests.benchmarks import common
from tests.benchmarks.scheme_steps import loads_table, measure_shapes, measure_steps, shapes_table, steps_table

FIRST_BATCH, MOST_BATCH = 8, 4_096
REPEATS = 3
FILLING_AT_MOST = 20
"""Where a start is dear and a tick is cheap, most of the time would go by outside of what is measured: it ends at so
many times the time that was asked for."""
DRAINED_AT_MOST = 50
"""A block of ticks lets go of a fiftieth of the timers before others take their place, outside of what is measured."""


@dataclass(frozen=True, slots=True)
class SchemeCosts:
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
    their ends, which even an ordered list takes in constant time; but at random into a tree, which that order would
    degenerate."""
    left = [max(math.ceil(longest * (1 - math.sqrt(random.random()))), 1) for _ in range(outstanding)]
    for interval in left if isinstance(scheme, TreeOfTimers) else sorted(left):
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


def measure_point(entry: Entry, outstanding: int, slots: int, budget_ns: int, seed: int) -> SchemeCosts:
    """Raises RuntimeError if the scheme lost count of its timers."""
    random, longest = Random(seed), 2 * outstanding
    scheme = entry.make(longest, slots)
    fill(scheme, outstanding, longest, random)
    with collector_off():
        start_ns, stop_ns = measure_start_and_stop(scheme, longest, budget_ns, random)
        tick_ns = measure_tick(scheme, longest, budget_ns, random)
    if len(scheme) != outstanding:
        raise RuntimeError(f"{entry.name}: {len(scheme)} timers of {outstanding} are left: the figures mean nothing")
    return SchemeCosts(entry.name, outstanding, start_ns, stop_ns, tick_ns)


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
    """One cost of each kind for the whole sweep, the median of what its rows give. Raises CouldNotRun if the machine
    was so busy that one came out as nothing or less."""
    memory, outstanding = sweep.memory, sweep.outstanding
    index_ns = statistics.median(work * memory.slots / outstanding for work in sweep.hashed_work_ns)
    migrate_ns = statistics.median(
        work * interval / (outstanding * _moves(memory, interval))
        for work, interval in zip(sweep.hierarchical_work_ns, sweep.intervals, strict=True)
    )
    if index_ns <= 0 or migrate_ns <= 0:
        raise common.CouldNotRun(f"costs of {index_ns:.1f} and {migrate_ns:.1f} ns: measure again on a quieter machine")
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


LEAST_OUTSTANDING = 100
INTERVALS = (500, 1_000, 2_000, 4_000, 8_000, 16_000)
"""Mean intervals of the sweep, in ticks."""
WHEELS = 3
OPERATIONS = ("start", "stop", "tick")
TABLES = ("scheme costs", "scheme growth", "crossing", "comparisons", "comparisons of a start", "wheels for 100 days")
CURVES_PNG, CROSSING_PNG = "timer-schemes.png", "timer-crossing.png"
COLOUR_OF = {entry.name: entry.number - 1 for entry in CATALOGUE}
"""By the scheme's number, so that all heaps and trees share one."""
LOOK_OF = {
    "heap, indexed": common.Look.Dashed,
    "tree, unbalanced": common.Look.Points,
    "tree, balanced": common.Look.Computed,
    "hashed wheel, 2^k slots": common.Look.Dashed,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "CPU time of one start, one stop and one tick in each of Varghese and Lauck's schemes, in this process, with"
        " the cyclic collector off; then CPU time a tick of schemes 6 and 7 at several mean intervals, beside what the"
        " cost model has for them; then comparisons of times, counted, and wheels for 100 days with and without units."
    )
    common.add_count(parser, "--most", 100_000, "maximum number of outstanding timers", least=LEAST_OUTSTANDING)
    common.add_count(parser, "--slots", 256, "slots of the schemes that hash", least=64)
    common.add_count(parser, "--outstanding", 50_000, "outstanding timers in the sweep", least=1_000)
    common.add_count(parser, "--cpu-ms", 100, "CPU time for each figure of the curves, in ms")
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of the intervals (1)")
    common.add_count(parser, "--counted", 1_000, "number of timers whose comparisons are counted", least=10)
    common.add_output(parser, f"{CURVES_PNG} and {CROSSING_PNG}", "docs/timer.md", TABLES)


needs = common.plots_needed


def run(arguments: argparse.Namespace) -> int:
    if COMPILED:
        raise common.CouldNotRun("the wheel is compiled: comparisons can be counted in the pure build only")
    load_before = os.getloadavg()[0]
    memory = WheelMemory(arguments.slots - arguments.slots % WHEELS, WHEELS)
    points = list(_points(arguments.most, arguments.slots, arguments.cpu_ms * 1_000_000, arguments.seed))
    sweep = _sweep(arguments.outstanding, memory, arguments.seed)
    crossing = crossing_of(sweep)
    if arguments.plots is not None:
        title = f"Timer schemes, {arguments.slots} slots"
        common.save(arguments.plots / CURVES_PNG, title, curve_panels(points), same_y=True)
        common.save(arguments.plots / CROSSING_PNG, "Hashed wheel or hierarchy", [crossing_panel(sweep, crossing)])
    steps = measure_steps(arguments.counted, arguments.slots)
    shapes = measure_shapes(arguments.outstanding)
    common.progress("")
    counted = {"steps": asdict(steps), "shapes": [asdict(shape) for shape in shapes]}
    words = [table(points, sweep, crossing), aligned_markdown(steps_table(steps))]
    words += [aligned_markdown(loads_table(steps)), aligned_markdown(shapes_table(shapes))]
    common.show(arguments, document(points, sweep, crossing) | counted, "\n\n".join(words))
    if arguments.page is not None:
        for name, lines in (
            ("scheme costs", costs_table(points, common.circumstances(load_before))),
            ("scheme growth", growth_table(points)),
            ("crossing", crossing_table(sweep, crossing)),
            ("comparisons", steps_table(steps)),
            ("comparisons of a start", loads_table(steps)),
            ("wheels for 100 days", shapes_table(shapes)),
        ):
            common.put_table(arguments.page, name, lines)
    return 0


def aligned_markdown(lines: Sequence[str]) -> str:
    """A Markdown table as aligned text."""
    return common.aligned([[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "---" not in line])


def costs_table(points: Sequence[SchemeCosts], state: str) -> list[str]:
    """CPU µs of a start and a tick with 1,000 timers (or the fewest) and with the most, and the state of the run."""
    counts = sorted({point.outstanding for point in points})
    few, most = 1_000 if 1_000 in counts else counts[0], counts[-1]
    found = {(point.scheme, point.outstanding): point for point in points}
    head = [""]
    for operation in ("start", "stop", "tick"):
        head += [f"{operation}, n = {few:,}", f"n = {most:,}"]
    rows = []
    for entry in CATALOGUE:
        row = [f"{entry.number} {entry.name}"]
        for operation in ("start", "stop", "tick"):
            row += [f"{getattr(found[entry.name, count], f'{operation}_ns') / 1_000:,.1f}" for count in (few, most)]
        rows.append(row)
    return [*common.markdown(head, rows), "", state]


def growth_table(points: Sequence[SchemeCosts]) -> list[str]:
    counts = sorted({point.outstanding for point in points})
    found = {(point.scheme, point.outstanding): point for point in points}
    rows = []
    for entry in CATALOGUE:
        powers = [
            growth(counts, [getattr(found[entry.name, count], f"{operation}_ns") for count in counts]).strip()
            for operation in ("start", "tick")
        ]
        rows.append([f"{entry.number} {entry.name}", entry.start, powers[0], entry.tick, powers[1]])
    return common.markdown(["", "start, published", "measured", "tick, published", "measured"], rows)


def crossing_table(sweep: Sweep, crossing: Crossing) -> list[str]:
    hashed, most, mean = model_lines(sweep, crossing)
    head = ["mean interval T, ticks", "6, measured", "model", "7, measured", "model, mean migrations"]
    head.append(f"model, {sweep.memory.wheels} migrations")
    rows = [
        [f"{row[0]:,}", *(f"{value / 1_000:.1f} µs" for value in row[1:])]
        for row in zip(
            sweep.intervals, sweep.hashed_work_ns, hashed, sweep.hierarchical_work_ns, mean, most, strict=True
        )
    ]
    measured = "nowhere in this sweep" if crossing.measured is None else f"{crossing.measured:,.0f} ticks"
    costs = crossing.costs
    return [
        *common.markdown(head, rows),
        "",
        f"c(index) is {costs.index:.0f} ns and c(migrate) {costs.migrate:.0f} ns, medians of the rows. Both schemes",
        f"cost the same at a mean interval of {measured} as measured, {crossing.predicted:,.0f} as predicted with",
        f"the mean of the migrations, {crossing.bound:,.0f} with the bound.",
    ]


def sizes(most: int) -> list[int]:
    """100, 300, 1000, 3000 and so on, up to `most`."""
    steps = [LEAST_OUTSTANDING * 10**power * factor for power in range(9) for factor in (1, 3)]
    return [size for size in steps if size <= most]


def _points(most: int, slots: int, budget_ns: int, seed: int) -> Iterator[SchemeCosts]:
    for outstanding in sizes(most):
        for entry in CATALOGUE:
            common.progress(f"{outstanding} timers: {entry.name}")
            yield measure_point(entry, outstanding, slots, budget_ns, seed)
    common.progress("")


def _sweep(outstanding: int, memory: WheelMemory, seed: int) -> Sweep:
    figures = {}
    for interval in INTERVALS:
        common.progress(f"mean interval {interval}")
        figures[interval] = measure_interval(outstanding, memory, interval, seed)
    common.progress("")
    return sweep_of(outstanding, memory, figures)


def document(points: Sequence[SchemeCosts], sweep: Sweep, crossing: Crossing) -> dict[str, object]:
    """All figures: ns of CPU time, intervals in ticks."""
    return {
        "benchmark": "schemes",
        "points": [asdict(point) for point in points],
        "sweep": asdict(sweep),
        "crossing": asdict(crossing),
    }


def table(points: Sequence[SchemeCosts], sweep: Sweep, crossing: Crossing) -> str:
    counts = sorted({point.outstanding for point in points})
    names = [entry.name for entry in CATALOGUE]
    lines = []
    for operation in OPERATIONS:
        found = {(point.scheme, point.outstanding): getattr(point, f"{operation}_ns") for point in points}
        heads = "".join(f"{count:>11,}" for count in counts)
        lines.append(f"{'ns a ' + operation + ', timers:':<26}{heads}{'growth':>8}")
        for name in names:
            costs_ns = [found[name, count] for count in counts]
            lines.append(f"{name:<26}" + "".join(f"{cost:>11,.0f}" for cost in costs_ns) + growth(counts, costs_ns))
        lines.append("")
    hashed, most, mean = model_lines(sweep, crossing)
    memory = sweep.memory
    lines.append(f"work a tick in ns, {sweep.outstanding:,} timers, {memory.slots} slots, {memory.wheels} wheels")
    lines.append(f"{'mean interval':>13}{'6':>12}{'model':>12}{'7':>12}{'model':>12}{'at most':>12}")
    for row in zip(sweep.intervals, sweep.hashed_work_ns, hashed, sweep.hierarchical_work_ns, mean, most, strict=True):
        lines.append(f"{row[0]:>13,}" + "".join(f"{value:>12,.0f}" for value in row[1:]))
    costs = crossing.costs
    measured = "not within the sweep" if crossing.measured is None else f"{crossing.measured:,.0f}"
    lines += [
        f"c(index) {costs.index:.0f} ns, c(migrate) {costs.migrate:.0f} ns: medians of the rows",
        f"equal at a mean interval of {measured} ticks; predicted {crossing.predicted:,.0f},"
        f" with {memory.wheels} migrations a timer {crossing.bound:,.0f}",
    ]
    return "\n".join(lines)


def growth(counts: Sequence[int], costs_ns: Sequence[float]) -> str:
    """The power of n with which a cost grows, from a tenth of the timers to all of them: 0 is constant, 1 is O(n)."""
    tenth = counts[-1] // 10
    if tenth not in counts:
        return f"{'-':>8}"
    return f"{math.log10(costs_ns[-1] / costs_ns[counts.index(tenth)]):>8.2f}"


def curve_panels(points: Sequence[SchemeCosts]) -> list[common.Panel]:
    panels = []
    for operation in OPERATIONS:
        lines = []
        for entry in CATALOGUE:
            mine = [point for point in points if point.scheme == entry.name]
            lines.append(
                common.Line(
                    f"{entry.number} {entry.name}",
                    [point.outstanding for point in mine],
                    [getattr(point, f"{operation}_ns") / 1_000 for point in mine],
                    COLOUR_OF[entry.name],
                    LOOK_OF.get(entry.name, common.Look.Measured),
                )
            )
        panels.append(common.Panel(operation, "outstanding timers", "CPU time, µs", lines, log_x=True, log_y=True))
    return panels


def crossing_panel(sweep: Sweep, crossing: Crossing) -> common.Panel:
    hashed, most, mean = model_lines(sweep, crossing)

    def line(name: str, values: Sequence[float], colour: int, look: common.Look) -> common.Line:
        return common.Line(name, sweep.intervals, [value / 1_000 for value in values], colour, look)

    marks = [common.Mark(crossing.predicted, "equal, predicted", look=common.Look.Computed)]
    if crossing.measured is not None:
        marks.insert(0, common.Mark(crossing.measured, "equal, measured"))
    memory = sweep.memory
    return common.Panel(
        f"{sweep.outstanding:,} timers, {memory.slots} slots, {memory.wheels} wheels",
        "mean interval, ticks",
        "CPU time a tick, without expiries, µs",
        [
            line("6 hashed wheel", sweep.hashed_work_ns, 5, common.Look.Points),
            line("6 model: n c(index) / M", hashed, 5, common.Look.Computed),
            line("7 hierarchy", sweep.hierarchical_work_ns, 1, common.Look.Points),
            line("7 model, mean migrations", mean, 1, common.Look.Computed),
            line("7 model, at most: n m c(migrate) / T", most, 3, common.Look.Computed),
        ],
        log_x=True,
        log_y=True,
        marks=marks,
    )
