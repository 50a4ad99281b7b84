"""`camerlengo bench schemes`: what start, stop and tick cost in each of the seven timer schemes, by how many timers are
outstanding, and where a hierarchy comes to be cheaper than a hashed wheel, as measured and as the cost model has it."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from controller.cli.main import UsageError
from controller.cli.requirements import PLOTS, Need
from controller.cli.values import integer, output_folder, seed
from controller.labs.cost_model import WheelMemory
from controller.labs.schemes import CATALOGUE
from tests.benchmarks.plots import Line, Look, Mark, Panel, PlotsUnavailable, save
from tests.benchmarks.schemes_measure import (
    Crossing,
    Point,
    Sweep,
    crossing_of,
    measure_interval,
    measure_point,
    model_lines,
    sweep_of,
)

COULD_NOT_RUN = 3
LEAST_OUTSTANDING = 100
INTERVALS = (500, 1_000, 2_000, 4_000, 8_000, 16_000)
"""Mean intervals of the sweep, in ticks."""
WHEELS = 3
OPERATIONS = ("start", "stop", "tick")
CURVES_PNG, CROSSING_PNG = "timer-schemes.png", "timer-crossing.png"
COLOUR_OF = {"heap, lazy stop": 2, "heap, indexed": 2} | {
    entry.name: entry.number - 1 for entry in CATALOGUE if entry.number != 3
}
"""By the scheme's number, so that both heaps share one."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "CPU time of one start, one stop and one tick in each of Varghese and Lauck's schemes, in this process, with"
        " the cyclic collector off; then CPU time a tick of schemes 6 and 7 at several mean intervals, beside what the"
        " cost model has for them."
    )
    parser.add_argument(
        "--most", type=integer(), default=100_000, metavar="N", help="maximum number of outstanding timers (100000)"
    )
    parser.add_argument(
        "--slots", type=integer(), default=256, metavar="M", help="slots of the schemes that hash (256)"
    )
    parser.add_argument(
        "--outstanding", type=integer(), default=50_000, metavar="N", help="outstanding timers in the sweep (50000)"
    )
    parser.add_argument(
        "--cpu-ms", type=integer(), default=100, metavar="MS", help="CPU time for each figure of the curves (100)"
    )
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of the intervals (1)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--plots", type=output_folder, metavar="DIR", help=f"write {CURVES_PNG} and {CROSSING_PNG} there"
    )


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return PLOTS if arguments.plots is not None else ()


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    budget_ns = arguments.cpu_ms * 1_000_000
    memory = WheelMemory(arguments.slots - arguments.slots % WHEELS, WHEELS)
    try:
        if arguments.plots is not None:
            arguments.plots.mkdir(parents=True, exist_ok=True)
        points = list(_points(arguments.most, arguments.slots, budget_ns, arguments.seed))
        sweep = _sweep(arguments.outstanding, memory, arguments.seed)
        crossing = crossing_of(sweep)
        if arguments.plots is not None:
            save(
                arguments.plots / CURVES_PNG,
                f"Timer schemes, {arguments.slots} slots",
                curve_panels(points),
                same_y=True,
            )
            save(arguments.plots / CROSSING_PNG, "Hashed wheel or hierarchy", [crossing_panel(sweep, crossing)])
    except (PlotsUnavailable, OSError, RuntimeError) as error:
        print(f"camerlengo bench: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    print(json.dumps(document(points, sweep, crossing), indent=2) if arguments.json else table(points, sweep, crossing))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name, least in (("most", LEAST_OUTSTANDING), ("slots", 64), ("outstanding", 1_000), ("cpu_ms", 1)):
        value = getattr(arguments, name)
        if value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")


def sizes(most: int) -> list[int]:
    """100, 300, 1000, 3000 and so on, up to `most`."""
    steps = [LEAST_OUTSTANDING * 10**power * factor for power in range(9) for factor in (1, 3)]
    return [size for size in steps if size <= most]


def _points(most: int, slots: int, budget_ns: int, seed: int) -> Iterator[Point]:
    for outstanding in sizes(most):
        for entry in CATALOGUE:
            _progress(f"{outstanding} timers: {entry.name}")
            yield measure_point(entry, outstanding, slots, budget_ns, seed)
    _progress("")


def _sweep(outstanding: int, memory: WheelMemory, seed: int) -> Sweep:
    figures = {}
    for interval in INTERVALS:
        _progress(f"mean interval {interval}")
        figures[interval] = measure_interval(outstanding, memory, interval, seed)
    _progress("")
    return sweep_of(outstanding, memory, figures)


def _progress(words: str) -> None:
    """One line that is written over, on a terminal; a line each where it is not."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
    elif words:
        print(f"{time.process_time():7.1f} s CPU  {words}", file=sys.stderr, flush=True)


def document(points: Sequence[Point], sweep: Sweep, crossing: Crossing) -> dict[str, object]:
    """All figures: ns of CPU time, intervals in ticks."""
    return {
        "benchmark": "schemes",
        "points": [asdict(point) for point in points],
        "sweep": asdict(sweep),
        "crossing": asdict(crossing),
    }


def table(points: Sequence[Point], sweep: Sweep, crossing: Crossing) -> str:
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


def curve_panels(points: Sequence[Point]) -> list[Panel]:
    panels = []
    for operation in OPERATIONS:
        lines = []
        for entry in CATALOGUE:
            mine = [point for point in points if point.scheme == entry.name]
            lines.append(
                Line(
                    f"{entry.number} {entry.name}",
                    [point.outstanding for point in mine],
                    [getattr(point, f"{operation}_ns") / 1_000 for point in mine],
                    COLOUR_OF[entry.name],
                    Look.Dashed if entry.name == "heap, indexed" else Look.Measured,
                )
            )
        panels.append(Panel(operation, "outstanding timers", "CPU time, µs", lines, log_x=True, log_y=True))
    return panels


def crossing_panel(sweep: Sweep, crossing: Crossing) -> Panel:
    hashed, most, mean = model_lines(sweep, crossing)

    def line(name: str, values: Sequence[float], colour: int, look: Look) -> Line:
        return Line(name, sweep.intervals, [value / 1_000 for value in values], colour, look)

    marks = [Mark(crossing.predicted, "equal, predicted", look=Look.Computed)]
    if crossing.measured is not None:
        marks.insert(0, Mark(crossing.measured, "equal, measured"))
    memory = sweep.memory
    return Panel(
        f"{sweep.outstanding:,} timers, {memory.slots} slots, {memory.wheels} wheels",
        "mean interval, ticks",
        "CPU time a tick, without expiries, µs",
        [
            line("6 hashed wheel", sweep.hashed_work_ns, 5, Look.Points),
            line("6 model: n c(index) / M", hashed, 5, Look.Computed),
            line("7 hierarchy", sweep.hierarchical_work_ns, 1, Look.Points),
            line("7 model, mean migrations", mean, 1, Look.Computed),
            line("7 model, at most: n m c(migrate) / T", most, 3, Look.Computed),
        ],
        log_x=True,
        log_y=True,
        marks=marks,
    )
