"""`camerlengo bench purgatory`: Kafka's benchmark of its request purgatory, on this project's and on the old design.

On the virtual clock, how many requests a CPU second takes; on the machine's, up to which rate each design keeps up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from controller.cli.main import UsageError
from controller.cli.requirements import PLOTS, Need
from controller.cli.values import integer, output_folder, seed
from controller.timer import COMPILED
from tests.benchmarks.pages import NoSuchTable, page_with, put_table
from tests.benchmarks.plots import PlotsUnavailable, save
from tests.benchmarks.purgatory_load import CHUNK, Load
from tests.benchmarks.purgatory_page import page_table, panels
from tests.benchmarks.purgatory_real import run_real
from tests.benchmarks.purgatory_runs import Run
from tests.benchmarks.purgatory_virtual import run_virtual

COULD_NOT_RUN = 3
RATES = "10000,20000,30000,40000,60000,80000,105000,120000"
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
        default="new,old",
        metavar="LIST",
        help="any of new, old (real clock) and load, the load generator alone (new,old)",
    )
    parser.add_argument("--rates", default=RATES, metavar="LIST", help=f"requests per second, real clock ({RATES})")
    parser.add_argument(
        "--percentiles", default=LOADS, metavar="LIST", help=f"p50/p75 of the time to completion in ms ({LOADS})"
    )
    parser.add_argument("--timeout-ms", type=integer(), default=200, metavar="MS", help="timeout of each request (200)")
    parser.add_argument("--keys", type=integer(), default=100, metavar="N", help="total number of keys (100)")
    parser.add_argument(
        "--keys-of-each", type=integer(), default=3, metavar="N", help="keys that a request watches (3)"
    )
    parser.add_argument("--size", type=integer(), default=100, metavar="BYTES", help="size of a request (100)")
    parser.add_argument(
        "--number",
        type=integer(),
        metavar="N",
        help=f"requests per run (those of {SECONDS_OF_LOAD} seconds; virtual clock: 1000000)",
    )
    parser.add_argument(
        "--virtual-rate", type=integer(), default=105_000, metavar="N", help="requests per virtual second (105000)"
    )
    parser.add_argument(
        "--news",
        type=integer(),
        default=0,
        metavar="N",
        help="keys checked for completion each ms, virtual clock (0, as in Kafka's benchmark)",
    )
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of arrivals, latencies and keys (1)")
    parser.add_argument(
        "--no-collector", action="store_true", help="disable Python's cyclic garbage collector in each run"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plots", type=output_folder, metavar="DIR", help=f"write {PLOT_PNG} to DIR (real clock)")
    parser.add_argument(
        "--page",
        type=page_with(TABLE),
        metavar="FILE",
        help=f"replace the table {TABLE} in this page, such as docs/purgatory.md",
    )


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return PLOTS if arguments.plots is not None else ()


def run(arguments: argparse.Namespace) -> int:
    loads, rates, designs = _loads(arguments), _rates(arguments), _designs(arguments)
    collector = not arguments.no_collector
    load_before = os.getloadavg()[0]
    runs: list[Run] = []
    if arguments.clock != "real":
        for design in designs:
            for load in loads(arguments.virtual_rate, arguments.number or 1_000_000) if design != "old" else ():
                runs.append(run_virtual(load, design=design, collector=collector, progress=_Progress(load)))
                _tell(runs[-1])
    if arguments.clock != "virtual":
        runs += _real_runs(
            designs, [loads(rate, arguments.number or SECONDS_OF_LOAD * rate) for rate in rates], collector
        )
    found = figures(runs, arguments)
    print(json.dumps(found, indent=2) if arguments.json else table(found))
    try:
        if arguments.plots is not None and arguments.clock != "virtual":
            arguments.plots.mkdir(parents=True, exist_ok=True)
            save(arguments.plots / PLOT_PNG, "Request purgatory: the new design and the old", panels(runs), columns=2)
        if arguments.page is not None:
            put_table(arguments.page, TABLE, page_table(runs, circumstances(found, load_before)))
    except (PlotsUnavailable, NoSuchTable, OSError) as error:
        print(f"camerlengo bench: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    return 0


def circumstances(found: dict[str, Any], load_before: float) -> str:
    """`load_before`: how many threads of the machine wanted to run, in the minute before the runs."""
    build = "compiled" if found["compiled"] else "pure"
    return (
        f"Python {found['python']}, {build}, collector {'on' if found['collector'] else 'off'}; {os.cpu_count()} cores,"
        f" load average {load_before:.1f} before the runs."
    )


def _real_runs(designs: Sequence[str], loads_of_rates: Sequence[Sequence[Load]], collector: bool) -> list[Run]:
    """By design and load, up to the rate at which it collapses."""
    runs: list[Run] = []
    for design in designs:
        for loads in zip(*loads_of_rates, strict=True):
            for load in loads:
                runs.append(run_real(design, load, collector=collector))
                _tell(runs[-1])
                if runs[-1].achieved < COLLAPSED * runs[-1].target:
                    break
    return runs


class _Progress:
    def __init__(self, load: Load) -> None:
        self._load = load

    def __call__(self, done: int) -> None:
        print(f"\r{self._load.name}: {done * 100 // self._load.number}%", end="\r", file=sys.stderr, flush=True)


def _tell(done: Run) -> None:
    print(_row(_values(done)), file=sys.stderr, flush=True)


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


def _rates(arguments: argparse.Namespace) -> list[int]:
    try:
        rates = sorted({int(word) for word in arguments.rates.split(",")})
    except ValueError as error:
        raise UsageError(f"--rates {arguments.rates}: expected integers separated by commas") from error
    if rates[0] < 1:
        raise UsageError(f"--rates {arguments.rates}: expected 1 or more")
    return rates


def _designs(arguments: argparse.Namespace) -> list[str]:
    designs: list[str] = arguments.designs.split(",")
    for design in designs:
        if design not in DESIGNS:
            raise UsageError(f"--designs {arguments.designs}: expected some of {', '.join(DESIGNS)}")
    return designs


def figures(runs: Sequence[Run], arguments: argparse.Namespace) -> dict[str, Any]:
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


def _values(one: Run) -> dict[str, Any]:
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
