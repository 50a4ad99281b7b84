"""`camerlengo bench purgatory`: Kafka's benchmark of its request purgatory, on this project's and on the old design.

On the virtual clock, how many requests a CPU second takes; on the machine's, up to which rate each design keeps up.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from controller.cli.main import UsageError
from controller.cli.values import seed
from controller.timer import COMPILED
from tests.benchmarks.common import (
    Line,
    Mark,
    Panel,
    add_count,
    add_output,
    circumstances,
    integers,
    markdown,
    note,
    plots_needed,
    progress,
    put_table,
    save,
    show,
    subset,
)
from tests.benchmarks.purgatory_runs import CHUNK, Load, PurgatoryRun, run_real, run_virtual

PUBLISHED_NEW = 105_000
"""Requests a second at which the new design shows no degradation, few or many of them timing out; the most that was
asked of it. Source: Confluent, "Apache Kafka, Purgatory, and Hierarchical Timing Wheels", on the JVM."""
PUBLISHED_OLD = {"20/60 ms": 40_000, "200/400 ms": 25_000}
"""Where the old one saturates. Same source."""
DRAWN = ("new", "old", "load")
ABSENT = "-"


def page_table(runs: Sequence[PurgatoryRun], circumstances: str) -> list[str]:
    """A column a load, a row for each thing that is asked of the figures; then how they came about."""
    loads = list(dict.fromkeys(one.load for one in runs))
    rows: list[list[str]] = []
    for design in DRAWN:
        real = [one for one in runs if (one.clock, one.design) == ("real", design)]
        if real:
            named = "the load by itself" if design == "load" else f"{design} design"
            of = [[one for one in real if one.load == load] for load in loads]
            rows.append([f"{named} holds", *(_held(some) for some in of)])
            rows.append([f"{named}, the most asked", *(_most(some) for some in of)])
        virtual = [one for one in runs if (one.clock, one.design) == ("virtual", design)]
        if virtual:
            named = "the load by itself" if design == "load" else f"{design} design"
            cells = [[one for one in virtual if one.load == load] for load in loads]
            rows.append([f"{named}, virtual clock", *(_virtual(some) for some in cells)])
    published = [
        f"{PUBLISHED_NEW:,}; the old {PUBLISHED_OLD[load]:,}" if load in PUBLISHED_OLD else ABSENT for load in loads
    ]
    rows.append(["published: the new holds", *published])
    return [*markdown(["50th/75th percentile", *loads], rows), "", circumstances]


def _held(runs: Sequence[PurgatoryRun]) -> str:
    held = [one.target for one in runs if one.held]
    return f"{_thousands(max(held))} requests/s" if held else f"not {_thousands(min(one.target for one in runs))}"


def _most(runs: Sequence[PurgatoryRun]) -> str:
    most = max(runs, key=lambda one: one.target)
    late = "never all answered" if most.late_ms is None else f"the last answer {most.late_ms:.0f} ms late"
    return f"{_thousands(most.achieved)} of {_thousands(most.target)}, {late}; {most.cpu_us:.1f} µs CPU a request"


def _virtual(runs: Sequence[PurgatoryRun]) -> str:
    if not runs:
        return ABSENT
    best = runs[0].best
    fastest = "" if best is None else f", {best:,.0f} in the fastest 50,000"
    return f"{runs[0].achieved:,.0f} requests a CPU second{fastest}"


def _thousands(rate: float) -> str:
    """To three digits or so: a schedule drawn at random is a little off the rate that it was drawn for."""
    return f"{round(rate, -3 if rate >= 10_000 else -2):,.0f}"


def panels(runs: Sequence[PurgatoryRun]) -> list[Panel]:
    """For each load: achieved against target with the published marks, and CPU time against target."""
    real = [one for one in runs if one.clock == "real"]
    found: list[Panel] = []
    for load in dict.fromkeys(one.load for one in real):
        of = {design: [one for one in real if (one.load, one.design) == (load, design)] for design in DRAWN}
        shown = [(design, rows, colour) for colour, (design, rows) in enumerate(of.items()) if rows]
        targets = {design: [one.target for one in rows] for design, rows, _ in shown}
        achieved = [Line(design, targets[design], [one.achieved for one in rows], at) for design, rows, at in shown]
        cpu = [Line(design, targets[design], [one.cpu_us for one in rows], at) for design, rows, at in shown]
        marks = [Mark(PUBLISHED_NEW, "published: the new still holds", 0)]
        if load in PUBLISHED_OLD:
            marks.append(Mark(PUBLISHED_OLD[load], "published: the old saturates", 1))
        title = f"50th/75th percentile {load}"
        found.append(Panel(title, "target (requests/s)", "achieved (requests/s)", achieved, diagonal=True, marks=marks))
        found.append(Panel(title, "target (requests/s)", "CPU time (µs a request)", cpu))
    return found


RATES = (10_000, 20_000, 30_000, 40_000, 60_000, 80_000, 105_000, 120_000)
LOADS = "20/60,200/400"
SECONDS_OF_LOAD = 3
COLLAPSED = 0.6
"""A design that achieves less of its target is not asked for more."""
PLOT_PNG = "purgatory.png"
TABLE = "purgatory"
DESIGNS = ("new", "old", "load")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Requests come with exponential gaps and wait for a condition, which holds after a log-normal time, or for"
        " their timeout. Real clock: one thread hands in, one completes, the design's own expire; a rate is held if"
        " at least 95% of it is achieved and all are answered. Virtual clock: one thread, as fast as it goes."
    )
    parser.add_argument("--clock", choices=("real", "virtual", "both"), default="both", help="clock of the runs (both)")
    parser.add_argument(
        "--designs",
        type=subset(*DESIGNS),
        default=("new", "old"),
        metavar="LIST",
        help="any of new, old (real clock) and load, the load generator alone (new,old)",
    )
    parser.add_argument(
        "--rates",
        type=integers(),
        default=RATES,
        metavar="LIST",
        help=f"requests per second, real clock ({','.join(map(str, RATES))})",
    )
    parser.add_argument(
        "--percentiles", default=LOADS, metavar="LIST", help=f"p50/p75 of the time to completion in ms ({LOADS})"
    )
    add_count(parser, "--timeout-ms", 200, "timeout of each request in ms")
    add_count(parser, "--keys", 100, "total number of keys")
    add_count(parser, "--keys-of-each", 3, "keys that a request watches")
    add_count(parser, "--size", 100, "size of a request in bytes", least=0)
    default = f"requests per run (those of {SECONDS_OF_LOAD} seconds; virtual clock: 1000000)"
    add_count(parser, "--number", None, default)
    add_count(parser, "--virtual-rate", 105_000, "requests per virtual second")
    checked = "keys checked for completion each ms, virtual clock; 0 as in Kafka's benchmark"
    add_count(parser, "--news", 0, checked, least=0)
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of arrivals, latencies and keys (1)")
    parser.add_argument(
        "--no-collector", action="store_true", help="disable Python's cyclic garbage collector in each run"
    )
    add_output(parser, f"{PLOT_PNG} (real clock)", "docs/purgatory.md", [TABLE])


needs = plots_needed


def run(arguments: argparse.Namespace) -> int:
    loads, rates, designs = _loads(arguments), arguments.rates, arguments.designs
    collector = not arguments.no_collector
    load_before = os.getloadavg()[0]
    runs: list[PurgatoryRun] = []
    if arguments.clock != "real":
        for design in designs:
            for load in loads(arguments.virtual_rate, arguments.number or 1_000_000) if design != "old" else ():
                runs.append(run_virtual(load, design=design, collector=collector, progress=_progress_of(load)))
                _tell(runs[-1])
    if arguments.clock != "virtual":
        runs += _real_runs(
            designs, [loads(rate, arguments.number or SECONDS_OF_LOAD * rate) for rate in rates], collector
        )
    found = figures(runs, arguments)
    show(arguments, found, table(found))
    if arguments.plots is not None and arguments.clock != "virtual":
        save(arguments.plots / PLOT_PNG, "Request purgatory: the new design and the old", panels(runs), columns=2)
    if arguments.page is not None:
        build = "compiled" if COMPILED else "pure"
        notes = f"{build.capitalize()}, collector {'on' if collector else 'off'}. {circumstances(load_before)}"
        put_table(arguments.page, TABLE, page_table(runs, notes))
    return 0


def _real_runs(designs: Sequence[str], loads_of_rates: Sequence[Sequence[Load]], collector: bool) -> list[PurgatoryRun]:
    """By design and load, up to the rate at which it collapses."""
    runs: list[PurgatoryRun] = []
    for design in designs:
        for loads in zip(*loads_of_rates, strict=True):
            for load in loads:
                runs.append(run_real(design, load, collector=collector))
                _tell(runs[-1])
                if runs[-1].achieved < COLLAPSED * runs[-1].target:
                    break
    return runs


def _progress_of(load: Load) -> Callable[[int], None]:
    return lambda done: progress(f"{load.name}: {done * 100 // load.number}%")


def _tell(done: PurgatoryRun) -> None:
    note(_row(_values(done)))


def _loads(arguments: argparse.Namespace) -> Any:
    """What makes the loads of one rate: `(rate, number) -> list[Load]`. UsageError."""

    def at(rate: int, number: int) -> list[Load]:
        try:
            return [
                Load(
                    rate,
                    float(low),
                    float(high),
                    number,
                    arguments.timeout_ms,
                    arguments.keys,
                    arguments.keys_of_each,
                    arguments.size,
                    arguments.seed,
                    arguments.news,
                )
                for low, _, high in (words.partition("/") for words in arguments.percentiles.split(","))
            ]
        except ValueError as error:
            raise UsageError(str(error)) from error

    at(arguments.virtual_rate, 1 if arguments.number is None else arguments.number)
    return at


def figures(runs: Sequence[PurgatoryRun], arguments: argparse.Namespace) -> dict[str, Any]:
    """All runs, and for each design and load of the real clock the highest rate that it held."""
    held: dict[str, float] = {}
    for one in runs:
        if one.clock == "real":
            name = f"{one.design}, {one.load}"
            held[name] = max(held.get(name, 0.0), one.target if one.held else 0.0)
    return {
        "benchmark": "purgatory",
        "python": platform.python_version(),
        "compiled": COMPILED,
        "collector": not arguments.no_collector,
        "timeout_ms": arguments.timeout_ms,
        "keys": arguments.keys,
        "keys_of_each": arguments.keys_of_each,
        "size": arguments.size,
        "seed": arguments.seed,
        "news": arguments.news,
        "held": {name: round(rate) for name, rate in held.items()},
        "runs": [_values(one) for one in runs],
    }


def _values(one: PurgatoryRun) -> dict[str, Any]:
    values = asdict(one) | {"cpu_us": round(one.cpu_us, 2), "held": one.held, "cpu_s": round(one.cpu_s, 3)}
    values["best"] = None if one.best is None else round(one.best)
    return values | {"target": round(one.target), "achieved": round(one.achieved)}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"timeout {found['timeout_ms']} ms, {found['keys_of_each']} keys of {found['keys']}, {found['size']} bytes;"
        f" Python {found['python']}, {'compiled' if found['compiled'] else 'pure'},"
        f" collector {'on' if found['collector'] else 'off'}",
        f"{'design':<8}{'clock':<9}{'50th/75th':<13}{'requests':>10}{'target/s':>10}{'achieved/s':>12}"
        f"{'CPU µs':>8}{'expired':>9}{'late ms':>9}  ",
    ]
    lines += [_row(values) for values in found["runs"]]
    lines += [f"held by {name}: {f'{rate} requests/s' if rate else 'none'}" for name, rate in found["held"].items()]
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> str:
    late = "-" if one["late_ms"] is None else f"{one['late_ms']:.0f}"
    real = one["clock"] == "real"
    verdict = ("held" if one["held"] else "not held") if real else "a CPU second"
    if one["best"] is not None:
        verdict += f", {one['best']:.0f} in the fastest {CHUNK}"
    return (
        f"{one['design']:<8}{one['clock']:<9}{one['load']:<13}{one['number']:>10}{one['target'] if real else '-':>10}"
        f"{one['achieved']:>12}{one['cpu_us']:>8.2f}{one['expired'] / one['number']:>9.0%}{late:>9}  {verdict}"
    )
