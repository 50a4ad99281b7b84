"""`camerlengo lab tiers`: six architectures of a broker's log storage under the same workloads."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from controller.cli.workers import each_seed
from controller.labs.tiers.figures import Case, LabMeasurement, LabRun, figures
from controller.labs.tiers.simulation import LabBroker
from controller.labs.tiers.workload import ARCHITECTURES, Flush, LabWorkload
from tests.benchmarks.common import (
    add_count,
    add_output,
    aligned,
    circumstances,
    markdown,
    plots_needed,
    progress,
    put_table,
    show,
)

PAGE = "docs/tiers.md"
NODES = 3
QUICK = 0.4
P99, OVER = "real-time p99 ms", "p99 over without lagging"
Figures: TypeAlias = dict[str, float]
LAGGING_COLUMNS = (
    "write mean ms",
    "write p99 ms",
    "cold read mean ms",
    "cold read p99 ms",
    "cold MB/s",
    "HDD MB/s",
    "HDD share",
    "SSD hit rate",
    "peak over mean of disk writes",
)
BOTH_COLUMNS = (
    "write mean ms",
    "real-time mean ms",
    P99,
    "real-time HDD share",
    OVER,
    *(f"band {band}" for band in range(1, 6)),
)
TABLES = {
    "tiers, lagging only": (Case.Lagging, LAGGING_COLUMNS),
    "tiers, real-time and lagging": (Case.Both, BOTH_COLUMNS),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares HDDs, two block caches, the tiered log, and HDDs and the tiered log with cold reads that bypass the"
        " page cache: latencies, hit rates, shares of the HDDs, bands of real-time jobs, writes of the disks over time."
    )
    parser.add_argument("--simulated", action="store_true", help="run on models of the devices, the default")
    parser.add_argument("--quick", action="store_true", help="one broker, and shorter: a minute at most")
    add_count(parser, "--seed", 1, "seed of the simulation", least=0)
    add_output(parser, page=PAGE, tables=[*TABLES])
    parser.set_defaults(plots=None)


needs = plots_needed


def runs() -> list[LabRun]:
    return [LabRun(each, flush, case) for each in ARCHITECTURES for flush in Flush for case in Case]


def simulate_node(load: LabWorkload, run: LabRun, seed: int) -> LabMeasurement:
    return LabBroker(run.case.of(load), run.architecture, run.flush, seed).run()


def _simulate(load: LabWorkload, seed: int, nodes: int, cell: int) -> Figures:
    run = runs()[cell]
    measured = [simulate_node(load, run, seed * NODES + node) for node in range(nodes)]
    return figures(measured, load.chunk, load.measured_s)


def simulated(load: LabWorkload, seed: int, nodes: int) -> dict[LabRun, Figures]:
    """Run every cell in processes, one a core. The seed determines the figures."""
    cells = runs()
    found = {}
    results = each_seed(partial(_simulate, load, seed, nodes), range(len(cells)), os.cpu_count() or 1)
    for run, result in zip(cells, results, strict=True):
        progress(f"simulated: {run}")
        found[run] = result
    return with_ratios(found)


def with_ratios(found: Mapping[LabRun, Figures]) -> dict[LabRun, Figures]:
    """Add the real-time p99 with lagging consumers over that without."""
    ratios = {
        run: {OVER: each[P99] / found[replace(run, case=Case.RealTime)][P99]}
        for run, each in found.items()
        if run.case is Case.Both
    }
    return {run: each | ratios.get(run, {}) for run, each in found.items()}


def table(found: Mapping[LabRun, Figures], case: Case, columns: Sequence[str]) -> Iterator[list[str]]:
    yield ["architecture", "flush by", *columns]
    for run, each in found.items():
        if run.case is case:
            yield [run.architecture.name, run.flush.value, *(_cell(each.get(name, math.nan)) for name in columns)]


def _cell(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def run(arguments: argparse.Namespace) -> int:
    before = os.getloadavg()[0]
    load = LabWorkload()
    if arguments.quick:
        load = replace(load, warm_s=load.warm_s * QUICK, measured_s=load.measured_s * QUICK)
    found = simulated(load, arguments.seed, 1 if arguments.quick else NODES)
    progress("")
    where = circumstances(before)
    if arguments.page is not None:
        for name, (case, columns) in TABLES.items():
            head, *rows = table(found, case, columns)
            put_table(arguments.page, name, markdown(head, rows))
    parts = [f"{name}\n{aligned([*table(found, case, columns)])}" for name, (case, columns) in TABLES.items()]
    ratios = "\n".join(f"{name}: {value:.3g}" for name, value in load.ratios().items())
    show(arguments, as_json(load, found, where), "\n\n".join([*parts, ratios, where]))
    return 0


def as_json(load: LabWorkload, found: Mapping[LabRun, Figures], where: str) -> dict[str, Any]:
    return {
        "ratios": load.ratios(),
        "runs": [
            {"architecture": run.architecture.name, "flush": run.flush.value, "case": run.case.value, **each}
            for run, each in found.items()
        ],
        "circumstances": where,
    }
