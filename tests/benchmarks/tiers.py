"""`camerlengo lab tiers`: six architectures of a broker's log storage under the same workloads."""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from typing import Any

from controller.cli.values import integer
from controller.cli.workers import each_seed
from controller.labs.tiers.figures import (
    PEAK,
    PEAK_1_S,
    Case,
    Figures,
    LabMeasurement,
    LabRun,
    figures,
    mean,
    percentile,
)
from controller.labs.tiers.physical import PhysicalUnavailable, Rig, pages_memory_out, physical_load
from controller.labs.tiers.simulation import LabBroker
from controller.labs.tiers.workload import ARCHITECTURES, Flush, LabWorkload
from statemachines.device_model import HDD_CURVE
from tests.benchmarks import common, tiers_plots

PAGE = "docs/tiers.md"
NODES = 3
P99, OVER = "real-time p99 ms", "p99 over without lagging"
NOTHING = 0.005
SCALED = ("cold read mean ms", "real-time mean ms", "HDD share", "SSD hit rate")
LAGGING_COLUMNS = (
    "write mean ms",
    "write p99 ms",
    "cold read mean ms",
    "cold read p99 ms",
    "cold MB/s",
    "HDD MB/s",
    "HDD share",
    "SSD hit rate",
    PEAK,
    PEAK_1_S,
)
BOTH_COLUMNS = (
    "write mean ms",
    "real-time mean ms",
    P99,
    "real-time HDD share",
    OVER,
    *(f"band {band}" for band in range(1, 6)),
)
PHYSICAL_COLUMNS = (*LAGGING_COLUMNS[:-2], "real-time mean ms", P99, "real-time HDD share", OVER, PEAK, PEAK_1_S)
TABLES = {
    "tiers, lagging only": (Case.Lagging, LAGGING_COLUMNS),
    "tiers, real-time and lagging": (Case.Both, BOTH_COLUMNS),
}
GRADIENT, HOST = "tiers, concurrent readers", "tiers, host"
AGREEMENT, SCALES = "tiers, physical and simulated", "tiers, two scales"
LINES_MODELS, LINES_DEVICES = "tiers, lines on models", "tiers, lines on devices"
COMPARED = (
    "cold read mean ms",
    "cold MB/s",
    "HDD MB/s",
    "HDD share",
    "SSD hit rate",
    "real-time mean ms",
    P99,
    "real-time HDD share",
    "write mean ms",
    PEAK,
    PEAK_1_S,
)
FEW_JOBS = 4
"""Of an HDD, in more runs on devices with and without lagging consumers in turn: see `physical_load`."""
TRAFFICS_MB = (50, 75, 100, 135, 170, 200)
CLOSE, DIFFERENT = 1.3, 1.1
"""Values agree within 30%; an order counts where the simulated values differ by more than 10%."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares HDDs, two block caches, the tiered log, and HDDs and the tiered log with cold reads that bypass the"
        " page cache: latencies, hit rates, shares of the HDDs, bands of real-time jobs, writes of the disks over time."
    )
    parser.add_argument("--simulated", action="store_true", help="run on models of the devices, the default")
    parser.add_argument(
        "--physical", action="store_true", help="run on throttled devices of this machine: Linux, root, cgroups v1"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: a minute, 3 with --physical")
    common.add_count(parser, "--seed", 1, "seed of the simulation", least=0)
    parser.add_argument("--cache-mb", type=_cache_mb, default=128, metavar="N", help="physical page cache (128)")
    common.add_output(
        parser,
        "latencies, shares and disk writes as plots",
        page=PAGE,
        tables=[*TABLES, AGREEMENT, SCALES, GRADIENT, HOST, LINES_MODELS, LINES_DEVICES],
    )


def _cache_mb(text: str) -> int:
    found = integer(32, 1024)(text)
    if found % 32:  # a window of read-ahead is whole pages
        raise argparse.ArgumentTypeError(f"expected a multiple of 32 from 32 to 1024, got {text}")
    return found


needs = common.plots_needed


def runs(flushes: Sequence[Flush] = tuple(Flush), cases: Sequence[Case] = tuple(Case)) -> list[LabRun]:
    return [LabRun(each, flush, case) for each in ARCHITECTURES for flush in flushes for case in cases]


@dataclass(frozen=True, slots=True)
class LabCell:
    """One simulated run: a broker for each load, with times in the published unit if divided by `time_ratio`."""

    loads: tuple[LabWorkload, ...]
    run: LabRun
    time_ratio: float = 1.0


def _simulate(cells: Sequence[LabCell], seed: int, at: int) -> Figures:
    cell, run, measured = cells[at], cells[at].run, []
    for node, load in enumerate(cell.loads, seed * NODES):
        measured.append(LabBroker(run.case.of(load), run.architecture, run.flush, node).run())
    return figures(measured, cell.loads[0].chunk, cell.loads[0].measured_s, cell.time_ratio)


def simulated(cells: Sequence[LabCell], seed: int) -> list[Figures]:
    """Run the cells in processes, one a core. The seed determines the figures."""
    found = []
    for cell, each in zip(
        cells, each_seed(partial(_simulate, cells, seed), range(len(cells)), os.cpu_count() or 1), strict=True
    ):
        common.progress(f"simulated: {cell.run}")
        found.append(each)
    return found


def physical(load: LabWorkload, cells: Sequence[LabRun], seed: int, nodes: int) -> dict[LabRun, list[LabMeasurement]]:
    """Carry out each cell on the devices of this machine, for one broker after the other. Raises CouldNotRun."""
    found: dict[LabRun, list[LabMeasurement]] = {run: [] for run in cells}
    try:
        with Rig(load) as rig:
            for node in range(nodes):
                for run in cells:
                    common.progress(f"physical, broker {node + 1} of {nodes}: {run}")
                    found[run].append(rig.run(run, seed * NODES + node))
    except (PhysicalUnavailable, OSError) as error:
        raise common.CouldNotRun(str(error)) from error
    return found


def host_rows(measured: Mapping[LabRun, Sequence[LabMeasurement]]) -> Iterator[list[str]]:
    """Yield what operations without a device took on the host while the cells ran, over all cells."""
    yield ["operation", "measured", "mean ms", "p50 ms", "p99 ms", "median of the runs' means, ms", "largest mean, ms"]
    hosts = [node.host for nodes in measured.values() for node in nodes]
    for name, of_runs in {
        "write in memory": [host.writes_s for host in hosts],
        "read in memory": [host.reads_s for host in hosts],
        "read in memory, from its beginning": [host.begun_reads_s for host in hosts],
        "read of a device that takes no time": [host.device_reads_s for host in hosts],
        "service of an HDD, beyond its model": [host.hdd_late_s for host in hosts],
        "service of an SSD, beyond its model": [host.ssd_late_s for host in hosts],
    }.items():
        values = [each for run in of_runs for each in run]
        means = [mean(run) for run in of_runs if run] or [math.nan]
        shown = (mean(values), percentile(values, 0.5), percentile(values, 0.99), statistics.median(means), max(means))
        yield [name, str(len(values)), *(_cell(1e3 * each) for each in shown)]


def gradient(load: LabWorkload) -> Iterator[list[str]]:
    """Yield the MB/s of concurrent readers of one throttled device, in the unit of the published scale."""
    published = LabWorkload()
    yield ["readers", "HDD as published", "HDD measured", "SSD model", "SSD measured"]
    try:
        with Rig(load) as rig:
            for readers, as_published in HDD_CURVE:
                common.progress(f"physical: {readers} readers")
                hdd = rig.concurrent_reads("hdd", readers) * published.hdd.bandwidth / load.hdd.bandwidth
                ssd = rig.concurrent_reads("ssd", readers) * published.ssd.bandwidth / load.ssd.bandwidth
                model = published.ssd.bandwidth / 1e6
                yield [str(readers), *(f"{each:.0f}" for each in (as_published, hdd, model, ssd))]
    except (PhysicalUnavailable, OSError) as error:
        raise common.CouldNotRun(str(error)) from error


def with_ratios(found: Mapping[LabRun, Figures]) -> dict[LabRun, Figures]:
    """Add the real-time p99 with lagging consumers over that without."""
    ratios = {
        run: {OVER: each[P99] / found[replace(run, case=Case.RealTime)][P99]}
        for run, each in found.items()
        if run.case is Case.Both
    }
    return {run: each | ratios.get(run, {}) for run, each in found.items()}


def verdicts(
    found: Mapping[LabRun, Figures], p99_ratios: Mapping[int, Mapping[str, Sequence[float]]]
) -> Iterator[list[str]]:
    """Yield each line that the tiered log is held against, what was found, and whether it holds.

    `p99_ratios`: by jobs per HDD, what the function of that name returns.
    """

    def of(name: str, column: str, case: Case, flush: Flush = Flush.Rate) -> float:
        run = next((run for run in found if (run.architecture.name, run.case, run.flush) == (name, case, flush)), None)
        return math.nan if run is None else found[run].get(column, math.nan)

    def below(column: str, case: Case, flush: Flush) -> float:
        return 100 * (1 - of("tiered", column, case, flush) / of("HDD", column, case, flush))

    rows: list[tuple[str, float, str, float]] = []
    for case in (Case.Lagging, Case.Both):
        for flush in Flush:
            where = f"{case.value}, flush by {flush.value}"
            rows.append((f"read time below HDD's, %: {where}", below("cold read mean ms", case, flush), ">=", 80))
        where = f"{case.value}, flush by count"
        rows.append((f"write time below HDD's, %: {where}", below("write mean ms", case, Flush.Count), ">=", 80))
    for jobs, (name, sign, limit) in product(p99_ratios, (("tiered", "<=", 1.1), ("HDD", ">=", 10.0))):
        ratios = p99_ratios[jobs].get(name, [])
        what = (
            f"real-time p99 with lagging consumers over without: {name}, {jobs} jobs per HDD, median of {len(ratios)}"
        )
        rows.append((what, statistics.median(ratios) if ratios else math.nan, sign, limit))
    for case in (Case.RealTime, Case.Both):
        rows.append((f"peak over mean of disk writes by rate: {case.value}", of("tiered", PEAK, case), "<=", 1.5))
    rows.append(("HDD share of real-time reads", of("tiered", "real-time HDD share", Case.Both), "<=", 0))
    yield ["line", "found", "limit", "holds"]
    for what, value, sign, limit in rows:
        if not math.isnan(value):
            holds = value >= limit if sign == ">=" else value <= limit
            yield [what, _cell(value), f"{sign} {limit:g}", "yes" if holds else "no"]


def p99_ratios(nodes: Sequence[Mapping[LabRun, Figures]]) -> dict[str, list[float]]:
    """Return by architecture each broker's real-time p99 with lagging consumers over that without, flushed by rate."""
    ratios: dict[str, list[float]] = {}
    for each in nodes:
        for run, one in each.items():
            without = replace(run, case=Case.RealTime)
            if run.case is Case.Both and run.flush is Flush.Rate and without in each:
                ratios.setdefault(run.architecture.name, []).append(one[P99] / each[without][P99])
    return ratios


def agreement(real: Mapping[LabRun, Figures], model: Mapping[LabRun, Figures]) -> Iterator[list[str]]:
    """Yield a row for each figure: how often values are within 30%, and how often two architectures have one order."""
    yield ["figure", "values", "within 30%", "pairs that differ", "in the same order", "median physical / simulated"]
    for name in COMPARED:
        both = {run: (real[run].get(name, math.nan), model[run].get(name, math.nan)) for run in real}
        both = {run: pair for run, pair in both.items() if not any(map(math.isnan, pair))}
        close = [pair for pair in both.values() if _ratio(*pair) <= CLOSE]
        pairs = [
            (one, other)
            for (a, one), (b, other) in combinations(both.items(), 2)
            if (a.flush, a.case) == (b.flush, b.case) and _ratio(one[1], other[1]) > DIFFERENT
        ]
        same = [1 for one, other in pairs if (one[0] < other[0]) == (one[1] < other[1])]
        ratios = [pair[0] / pair[1] for pair in both.values() if pair[0] and pair[1]]
        middle = f"{statistics.median(ratios):.2f}" if ratios else "-"
        yield [name, str(len(both)), str(len(close)), str(len(pairs)), str(len(same)), middle]


def agreement_verdicts(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the two lines on agreement, over all figures of the table `agreement`."""
    values, close, pairs, same = (sum(int(row[at]) for row in rows[1:]) for at in range(1, 5))
    held = {True: "yes", False: "no"}
    yield ["physical within 30% of simulated, values", f"{close} of {values}", "all", held[close == values]]
    yield ["two architectures in one order, pairs", f"{same} of {pairs}", "all", held[same == pairs]]


def _ratio(one: float, other: float) -> float:
    """Return how many times as large the larger one is; 1 for two zeros, and for what is next to nothing."""
    if max(one, other) < NOTHING:
        return 1.0
    return max(one, other) / min(one, other) if min(one, other) > 0 else math.inf


def scales(seed: int, published: Mapping[LabRun, Figures]) -> Iterator[list[str]]:
    """Yield the figures at the published scale and of half a broker with a thousandth of the bytes."""
    load = _quick(LabWorkload()).scaled(1 / 1000, 0.01)
    run_list = runs([Flush.Rate], [Case.Both])
    found = simulated([LabCell((load,), run, 0.01) for run in run_list], seed)
    yield ["architecture", *(f"{name}, {scale}" for name in SCALED for scale in ("published", "scaled"))]
    for run, other in zip(run_list, found, strict=True):
        one = published[run]
        yield [run.architecture.name, *(_cell(each[name]) for name in SCALED for each in (one, other))]


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
    written: dict[str, list[list[str]]] = {}
    found: dict[str, Any] = {}
    if arguments.physical:
        with_few_jobs = physical_load(arguments.cache_mb, FEW_JOBS)
        load = physical_load(arguments.cache_mb)
        if arguments.quick:
            load = replace(with_few_jobs, warm_s=6.0, measured_s=5.0)
        nodes = 1 if arguments.quick else NODES
        alternating = runs([Flush.Rate], [Case.RealTime, Case.Both])
        cells = alternating if arguments.quick else runs()
        measured = physical(load, cells, arguments.seed, nodes)
        by_jobs = {load.jobs // load.hdds: measured}
        if not arguments.quick:
            compared = [run for run in alternating if run.architecture.name in ("HDD", "tiered")]
            by_jobs[FEW_JOBS] = physical(with_few_jobs, compared, arguments.seed, nodes)
        written[GRADIENT] = [*gradient(load)]
        real = with_ratios({run: figures(each, load.chunk, load.measured_s) for run, each in measured.items()})
        of_hosts = [
            LabCell(tuple(replace(load, host=node.host, page_cache=node.page_cache) for node in each), run)
            for run, each in measured.items()
        ]
        model = with_ratios(dict(zip(cells, simulated(of_hosts, arguments.seed), strict=True)))
        written[HOST] = [*host_rows(measured)]
        written["physical"] = [*table(real, Case.Both, PHYSICAL_COLUMNS)]
        written["simulated, of the same size"] = [*table(model, Case.Both, PHYSICAL_COLUMNS)]
        written[AGREEMENT] = [*agreement(real, model)]
        ratios_by_jobs = {
            jobs: p99_ratios(
                [
                    {run: figures([each[node]], load.chunk, load.measured_s) for run, each in those.items()}
                    for node in range(nodes)
                ]
            )
            for jobs, those in by_jobs.items()
        }
        written[LINES_DEVICES] = [*verdicts(real, ratios_by_jobs), *agreement_verdicts(written[AGREEMENT])]
        found = {"physical": rows(real), "simulated": rows(model), "ratios": load.ratios()}
        if arguments.plots is not None:
            tiers_plots.agreement(arguments.plots, real, model, COMPARED)
            tiers_plots.disk_writes(
                arguments.plots / "tiers-writes-physical.png",
                "Throttled devices",
                {run: each[0] for run, each in measured.items()},
            )
    if arguments.simulated or not arguments.physical:
        load = LabWorkload()
        nodes = 1 if arguments.quick else NODES
        if arguments.quick:
            load = _quick(load)
        results = simulated([LabCell((load,) * nodes, run) for run in runs()], arguments.seed)
        model = with_ratios(dict(zip(runs(), results, strict=True)))
        written |= {name: [*table(model, case, columns)] for name, (case, columns) in TABLES.items()}
        written[LINES_MODELS] = [*verdicts(model, {load.jobs // load.hdds: p99_ratios([model])})]
        written[SCALES] = [*scales(arguments.seed, model)]
        found |= {"runs": rows(model), "ratios": load.ratios()}
        if arguments.plots is not None:
            _plot_simulated(arguments)
    common.progress("")
    where = common.circumstances(before)
    if arguments.physical and pages_memory_out():
        where += " DAMON pages memory out on this machine."
    for name in written.keys() & {LINES_MODELS, LINES_DEVICES}:
        written[name].append([f"measured: {where}", "", "", ""])
    if arguments.page is not None:
        for name in written.keys() & {*TABLES, AGREEMENT, SCALES, GRADIENT, HOST, LINES_MODELS, LINES_DEVICES}:
            common.put_table(arguments.page, name, common.markdown(written[name][0], written[name][1:]))
    ratios = "\n".join(f"{name}: {value:.3g}" for name, value in load.ratios().items())
    parts = [f"{name}\n{common.aligned(lines)}" for name, lines in written.items()]
    common.show(arguments, found | {"circumstances": where}, "\n\n".join([*parts, ratios, where]))
    return 0


def _quick(load: LabWorkload) -> LabWorkload:
    """Return half of a broker, measured for a third of the time once the page cache is steady."""
    return replace(load.scaled(1.0, 1.0, 0.5), measured_s=load.measured_s / 3)


def _plot_simulated(arguments: argparse.Namespace) -> None:
    whole = LabWorkload()
    cells = [
        LabCell((_quick(whole.at_traffic(traffic * 1e6)),), run)
        for traffic in TRAFFICS_MB
        for run in runs(cases=[Case.Both])
    ]
    found = simulated(cells, arguments.seed)
    tiers_plots.by_traffic(arguments.plots, TRAFFICS_MB, [cell.run for cell in cells], found)
    chosen = {run: LabBroker(Case.RealTime.of(_quick(whole)), run.architecture, run.flush, arguments.seed).run()
              for run in runs(cases=[Case.RealTime])}  # fmt: skip
    tiers_plots.disk_writes(arguments.plots / "tiers-writes.png", "Models of the devices", chosen)


def rows(found: Mapping[LabRun, Figures]) -> list[dict[str, Any]]:
    return [
        {"architecture": run.architecture.name, "flush": run.flush.value, "case": run.case.value, **each}
        for run, each in found.items()
    ]
