"""`camerlengo bench purgatory`: Kafka's benchmark of its request purgatory, on this project's and on the old design.

On the virtual clock, how many requests a CPU second takes; on the machine's, up to which rate each design keeps up, in
how much memory, and what Python's collector takes. `--intervals`: what the purge interval costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from controller.cli.main import UsageError
from controller.cli.values import seed
from controller.timer import COMPILED
from controller.timer.purgatory import PURGE_INTERVAL
from tests.benchmarks.common import (
    ROOT,
    Line,
    Look,
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
from tests.benchmarks.purgatory_runs import (
    CHUNK,
    COLLECTOR_THRESHOLDS,
    OUT_OF_MEMORY,
    Load,
    MemorySample,
    PurgatoryRun,
    WrongAnswers,
    give_up_s,
    run_virtual,
)

PUBLISHED_NEW = 105_000
"""Requests a second at which the new design shows no degradation, few or many of them timing out; the most that was
asked of it. Source: Confluent, "Apache Kafka, Purgatory, and Hierarchical Timing Wheels", on the JVM."""
PUBLISHED_OLD = {"20/60 ms": 40_000, "200/400 ms": 25_000}
"""Where the old one saturates. Same source."""
DRAWN = ("new", "kafka-rule", "old", "load")
ABSENT = "-"
APART_LIMIT_S = 60.0
"""For what a process of a run does before and after its load."""


def run_apart(
    design: str,
    load: Load,
    *,
    collector: str = "broker",
    limit_mb: int | None = None,
    purge_interval: int = PURGE_INTERVAL,
) -> PurgatoryRun:
    """As `run_real`, in a process of its own. One that dies, or does not end in its time, comes to a run too, made of
    its samples."""
    asked = {
        "design": design,
        "load": asdict(load),
        "collector": collector,
        "limit_mb": limit_mb,
        "purge_interval": purge_interval,
    }
    command = [sys.executable, "-m", "tests.benchmarks.purgatory_runs", json.dumps(asked)]
    limit_s = give_up_s(load) + APART_LIMIT_S
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit_s, cwd=ROOT, check=False)
        written, status = done.stdout, f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        written, status = error.stdout or b"", f"killed after {limit_s:.0f} s"
    samples: list[MemorySample] = []
    for line in written.splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # the last line of one that died
            break
        if "wrong" in found:
            raise WrongAnswers(found["wrong"])
        if "sample" in found:
            samples.append(MemorySample(*found["sample"]))
        else:
            lists = {name: tuple(found["run"][name]) for name in ("gc_ms", "collections")}
            return PurgatoryRun(**found["run"] | lists, samples=tuple(samples))
    last = samples[-1] if samples else MemorySample(0.0, 0.0, 0, 0, 0, 0)
    return PurgatoryRun(
        design,
        "real",
        load.name,
        0,
        load.rate,
        0.0,
        0.0,
        0,
        0,
        None,
        purge_interval=purge_interval,
        end=f"process died: {status}",
        elapsed_s=last.s,
        samples=tuple(samples),
    )


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
    return f"{round(rate, -3 if rate >= 100_000 else -2):,.0f}"


def memory_table(runs: Sequence[PurgatoryRun], circumstances: str) -> list[str]:
    """A row for each run of the real clock; the most of each figure in the run, less what there was at its start."""
    head = [
        "load, requests/s",
        "design",
        "end",
        "resident MB",
        "outstanding",
        "completed but held",
        "collector, ms (runs), by generation",
        "collector, µs a request",
        "tracked objects",
        "blocks",
    ]
    rows = [
        [
            f"{one.load}, {_thousands(one.target)}",
            one.design,
            ending(one),
            f"{one.most('mb'):.1f}",
            f"{one.most('outstanding'):,}",
            f"{one.most('retained'):,}",
            ", ".join(f"{ms:.0f} ({runs})" for ms, runs in zip(one.gc_ms, one.collections, strict=True)),
            f"{sum(one.gc_ms) * 1e3 / one.number:.2f}" if one.number else ABSENT,
            f"{one.most('tracked'):,}",
            f"{one.most('blocks'):,}",
        ]
        for one in sorted(
            (one for one in runs if one.clock == "real"),
            key=lambda one: (one.load, round(one.target), DRAWN.index(one.design)),
        )
    ]
    return [*markdown(head, rows), "", circumstances]


def ending(one: PurgatoryRun) -> str:
    """How a run ended: when, at which rate, and what it then held where that was too much."""
    text = f"{one.end}, {one.elapsed_s:.1f} s, {_thousands(one.achieved)} requests/s"
    if one.end == OUT_OF_MEMORY and one.samples:
        last = one.samples[-1]
        text += f"; {last.outstanding:,} outstanding, {last.retained:,} completed but held"
    return text


def intervals_table(runs: Sequence[PurgatoryRun], circumstances: str) -> list[str]:
    """A row for each load and interval, the designs side by side."""
    designs = [design for design in DRAWN if any(one.design == design for one in runs)]
    of = {(one.load, round(one.target), one.purge_interval, one.design): one for one in runs}
    rows = [
        [f"{load}, {_thousands(target)}", f"{interval:,}", *(_interval_cell(of.get((*place, one))) for one in designs)]
        for place in dict.fromkeys(key[:3] for key in of)
        for load, target, interval in [place]
    ]
    return [*markdown(["load, requests/s", "purge interval", *designs], rows), "", circumstances]


def _interval_cell(one: PurgatoryRun | None) -> str:
    if one is None:
        return ABSENT
    cell = f"{one.cpu_us:.1f} µs CPU, {one.most('mb'):.1f} MB, {one.most('retained'):,} held, {one.purges:,} purges"
    return cell if one.late_ms is not None else f"{cell}; {ending(one)}"


def memory_panels(runs: Sequence[PurgatoryRun]) -> list[Panel]:
    """For each load: resident memory over time at the highest rate that all designs had, and the collector's time."""
    real = [one for one in runs if one.clock == "real" and one.design != "load"]
    found: list[Panel] = []
    for load in dict.fromkeys(one.load for one in real):
        of = {name: [one for one in real if (one.load, one.design) == (load, name)] for name in DRAWN}
        shown = [(name, rows, colour) for colour, (name, rows) in enumerate(of.items()) if rows]
        common = set.intersection(*({round(one.target) for one in rows} for _, rows, _ in shown))
        if common:
            rate = max(common)
            at_rate = [(one, colour) for _, rows, colour in shown for one in rows if round(one.target) == rate]
            lines = [_over_time(one, colour) for one, colour in at_rate]
            title = f"{load}, {_thousands(rate)} requests/s"
            found.append(Panel(title, "time (s)", "resident, above the start (MB)", lines))
        cost = [
            Line(name, [one.target for one in rows], [one.gc_ms_a_second for one in rows], colour)
            for name, rows, colour in shown
        ]
        found.append(Panel(load, "target (requests/s)", "collector (ms CPU a second)", cost))
    return found


def _over_time(one: PurgatoryRun, colour: int) -> Line:
    shown = one.samples[:: max(len(one.samples) // 40, 1)]
    return Line(one.design, [sample.s for sample in shown], [sample.mb for sample in shown], colour)


def interval_panels(runs: Sequence[PurgatoryRun]) -> list[Panel]:
    """For each load: CPU time and the most memory against the purge interval."""
    found: list[Panel] = []
    for load, target in dict.fromkeys((one.load, round(one.target)) for one in runs):
        cpu, memory = [], []
        for colour, design in enumerate(DRAWN):
            rows = [one for one in runs if (one.load, round(one.target), one.design) == (load, target, design)]
            if rows:
                intervals = [one.purge_interval for one in rows]
                look = Look.Dashed if design == "kafka-rule" else Look.Measured
                cpu.append(Line(design, intervals, [one.cpu_us for one in rows], colour, look))
                memory.append(Line(design, intervals, [one.most("mb") for one in rows], colour, look))
        title = f"{load}, {_thousands(target)} requests/s"
        found.append(Panel(title, "purge interval", "CPU time (µs a request)", cpu, log_x=True))
        found.append(Panel(title, "purge interval", "resident, above the start (MB)", memory, log_x=True))
    return found


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


RATES = (12_500, 25_000, 40_000, 105_000)
LOADS = "20/60,200/400"
NUMBER = 1_000_000
"""Requests of a run in the published benchmark."""
COLLAPSED = 0.6
"""A design that achieves less of its target is asked for the highest rate only."""
LIMIT_MB = 200
"""The heap of the published benchmark."""
PLOT_PNG, MEMORY_PNG, INTERVALS_PNG = "purgatory.png", "purgatory-memory.png", "purgatory-intervals.png"
TABLE, MEMORY_TABLE, INTERVALS_TABLE = "purgatory", "purgatory-memory", "purgatory-intervals"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Requests come with exponential gaps and wait for a condition, which holds after a log-normal time, or for"
        " their timeout. Real clock: one thread hands in, one completes, the design's own expire; a rate is held if"
        " at least 95% of it is achieved and all are answered. Each run is a process of its own with limited memory."
        " Virtual clock: one thread, as fast as it goes."
    )
    parser.add_argument("--clock", choices=("real", "virtual", "both"), default="both", help="clock of the runs (both)")
    parser.add_argument(
        "--designs",
        type=subset(*DRAWN),
        default=("new", "old"),
        metavar="LIST",
        help="any of new, kafka-rule (new, without a purge share), old (both real clock) and load, the load generator"
        " alone, at the highest rate (new,old)",
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
    add_count(parser, "--number", NUMBER, "requests per run")
    add_count(parser, "--memory-mb", LIMIT_MB, "memory that a run may use, real clock, in MB above its start")
    parser.add_argument(
        "--intervals",
        type=integers(),
        metavar="LIST",
        help="measure the designs (not load) with each of these purge intervals instead, real clock",
    )
    add_count(parser, "--virtual-rate", 105_000, "requests per virtual second")
    checked = "keys checked for completion each ms, virtual clock; 0 as in Kafka's benchmark"
    add_count(parser, "--news", 0, checked, least=0)
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of arrivals, latencies and keys (1)")
    parser.add_argument(
        "--collector",
        choices=tuple(COLLECTOR_THRESHOLDS),
        default="broker",
        help="thresholds of Python's cyclic garbage collector: a broker's, Python's default, or off (broker)",
    )
    plots = f"{PLOT_PNG} and {MEMORY_PNG} (real clock), or {INTERVALS_PNG}"
    add_output(parser, plots, "docs/purgatory.md", [TABLE, MEMORY_TABLE, INTERVALS_TABLE])


needs = plots_needed


def run(arguments: argparse.Namespace) -> int:
    loads, designs, collector = _loads(arguments), arguments.designs, arguments.collector
    load_before = os.getloadavg()[0]
    runs: list[PurgatoryRun] = []
    of_rates = [loads(rate, arguments.number) for rate in arguments.rates]
    if arguments.intervals is not None:
        runs += _interval_runs([one for one in designs if one != "load"], of_rates, arguments)
    else:
        if arguments.clock != "real":
            for design in designs:
                for load in loads(arguments.virtual_rate, arguments.number) if design in ("new", "load") else ():
                    runs.append(run_virtual(load, design=design, collector=collector, progress=_progress_of(load)))
                    _tell(runs[-1])
        if arguments.clock != "virtual":
            runs += _real_runs(designs, of_rates, collector, arguments.memory_mb)
    found = figures(runs, arguments)
    show(arguments, found, table(found))
    _write(runs, arguments, load_before)
    return 0


def _write(runs: Sequence[PurgatoryRun], arguments: argparse.Namespace, load_before: float) -> None:
    """Plots and tables, as far as they are asked for and there are runs for them."""
    sweep = arguments.intervals is not None
    if arguments.plots is not None and sweep:
        save(arguments.plots / INTERVALS_PNG, "What the purge interval costs", interval_panels(runs), columns=2)
    elif arguments.plots is not None and arguments.clock != "virtual":
        save(arguments.plots / PLOT_PNG, "Request purgatory: the new design and the old", panels(runs), columns=2)
        save(arguments.plots / MEMORY_PNG, "Memory, and Python's collector", memory_panels(runs), columns=2)
    if arguments.page is None:
        return
    notes = (
        f"{arguments.number:,} requests a run, collector: {arguments.collector}, {'compiled' if COMPILED else 'pure'}."
        f" {circumstances(load_before)}"
    )
    if sweep:
        put_table(arguments.page, INTERVALS_TABLE, intervals_table(runs, notes))
    else:
        put_table(arguments.page, TABLE, page_table(runs, notes))
        if arguments.clock != "virtual":
            put_table(arguments.page, MEMORY_TABLE, memory_table(runs, f"{arguments.memory_mb} MB a run. {notes}"))


def _real_runs(
    designs: Sequence[str], loads_of_rates: Sequence[Sequence[Load]], collector: str, limit_mb: int
) -> list[PurgatoryRun]:
    """The designs in turns, by load and rate. One that collapses is asked for no more than the highest rate, for which
    memory is compared; the generator of the load by itself is for that one only."""
    runs: list[PurgatoryRun] = []
    for loads in zip(*loads_of_rates, strict=True):
        collapsed = {"load"} & set(designs)
        for load in loads:
            for design in designs:
                if design in collapsed and load is not loads[-1]:
                    continue
                progress(f"{load.name}, {load.rate} requests/s: {design}")
                runs.append(run_apart(design, load, collector=collector, limit_mb=limit_mb))
                _tell(runs[-1])
                if runs[-1].achieved < COLLAPSED * runs[-1].target or runs[-1].end == OUT_OF_MEMORY:
                    collapsed.add(design)
    return runs


def _interval_runs(
    designs: Sequence[str], loads_of_rates: Sequence[Sequence[Load]], arguments: argparse.Namespace
) -> list[PurgatoryRun]:
    """The designs in turns, by load, rate and purge interval."""
    runs: list[PurgatoryRun] = []
    for loads in zip(*loads_of_rates, strict=True):
        for load in loads:
            for interval in arguments.intervals:
                for design in designs:
                    progress(f"{load.name}, {load.rate} requests/s, interval {interval}: {design}")
                    runs.append(
                        run_apart(
                            design,
                            load,
                            collector=arguments.collector,
                            limit_mb=arguments.memory_mb,
                            purge_interval=interval,
                        )
                    )
                    _tell(runs[-1])
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

    at(arguments.virtual_rate, arguments.number)
    return at


def figures(runs: Sequence[PurgatoryRun], arguments: argparse.Namespace) -> dict[str, Any]:
    """All runs, and for each design and load of the real clock the highest rate that it held."""
    held: dict[str, float] = {}
    for one in runs:
        if one.clock == "real" and arguments.intervals is None:
            name = f"{one.design}, {one.load}"
            held[name] = max(held.get(name, 0.0), one.target if one.held else 0.0)
    return {
        "benchmark": "purgatory",
        "python": platform.python_version(),
        "compiled": COMPILED,
        "collector": arguments.collector,
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
    values["ending"] = ending(one) if one.clock == "real" else "virtual"
    values["most_mb"] = one.most("mb")
    return values | {"target": round(one.target), "achieved": round(one.achieved)}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"timeout {found['timeout_ms']} ms, {found['keys_of_each']} keys of {found['keys']}, {found['size']} bytes;"
        f" Python {found['python']}, {'compiled' if found['compiled'] else 'pure'},"
        f" collector: {found['collector']}",
        f"{'design':<12}{'clock':<9}{'50th/75th':<13}{'requests':>10}{'target/s':>10}{'achieved/s':>12}"
        f"{'CPU µs':>8}{'GC ms':>8}{'MB':>8}{'expired':>9}{'late ms':>9}  ",
    ]
    lines += [_row(values) for values in found["runs"]]
    lines += [f"held by {name}: {f'{rate} requests/s' if rate else 'none'}" for name, rate in found["held"].items()]
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> str:
    late = "-" if one["late_ms"] is None else f"{one['late_ms']:.0f}"
    real = one["clock"] == "real"
    verdict = ("held" if one["held"] else "not held") if real else "a CPU second"
    if real and one["late_ms"] is None:
        verdict += f": {one['ending']}"
    if one["best"] is not None:
        verdict += f", {one['best']:.0f} in the fastest {CHUNK}"
    return (
        f"{one['design']:<12}{one['clock']:<9}{one['load']:<13}{one['number']:>10}{one['target'] if real else '-':>10}"
        f"{one['achieved']:>12}{one['cpu_us']:>8.2f}{sum(one['gc_ms']):>8.0f}{one['most_mb']:>8.1f}"
        f"{one['expired'] / max(one['number'], 1):>9.0%}{late:>9}  {verdict}"
    )
