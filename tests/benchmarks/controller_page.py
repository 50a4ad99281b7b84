"""The results of `camerlengo bench controller` as text: for a terminal, for a page's tables and for plots. Values in,
text out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.benchmarks.controller_runs import BrokerGone, ControlledShutdown, Failover
from tests.benchmarks.election import Elected
from tests.benchmarks.pages import markdown
from tests.benchmarks.plots import Line, Panel

T = TypeVar("T")

KAFKA_MS = {10_000: 1_400.0, 50_000: 5_400.0, 100_000: 8_100.0}
"""Kafka 2.8.2's failovers, measured on such a machine: quiet, its JVM warm, medians."""
ABSENT = "-"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """`first`: in a fresh process; `runs`: those after it, of which the median counts."""

    name: str
    partitions: int
    first: T
    runs: tuple[T, ...]

    def median(self, figure: Callable[[T], float]) -> float:
        return statistics.median(figure(one) for one in self.runs)

    def spread(self, figure: Callable[[T], float]) -> str:
        return _spread([figure(one) for one in self.runs])


@dataclass(frozen=True, slots=True)
class Figures:
    failovers: tuple[Measured[Failover], ...]
    others: tuple[Measured[BrokerGone] | Measured[ControlledShutdown], ...]
    elected: tuple[Elected, ...]


def phase_medians(measured: Measured[Failover]) -> dict[str, float]:
    names = [name for name, _ in measured.runs[0].phases]
    return {name: statistics.median(dict(one.phases)[name] for one in measured.runs) for name in names}


def _controller_cpu(one: Failover | BrokerGone | ControlledShutdown) -> float:
    return one.cpu.controller_ms


def _zookeeper_cpu(one: Failover | BrokerGone | ControlledShutdown) -> float:
    return one.cpu.zookeeper_ms


# -- failovers: a column a size


def _failover_rows(measured: Sequence[Measured[Failover]]) -> list[list[str]]:
    def row(name: str, cell: Callable[[Measured[Failover]], str]) -> list[str]:
        return [name, *map(cell, measured)]

    rows = [
        row("failover, ms", lambda one: one.spread(lambda run: run.total_ms)),
        row("the first in its process, ms", lambda one: f"{one.first.total_ms:,.0f}"),
        row("until brokers have answered, ms", lambda one: f"{one.median(lambda run: run.told_ms):,.0f}"),
        row("CPU of the controller, ms", lambda one: one.spread(_controller_cpu)),
        row("CPU of ZooKeeper, ms", lambda one: one.spread(_zookeeper_cpu)),
        row("a partition, µs", lambda one: f"{one.median(lambda run: run.total_ms) * 1_000 / one.partitions:,.1f}"),
        row(
            "CPU of both a partition, µs",
            lambda one: (
                f"{one.median(lambda run: run.cpu.controller_ms + run.cpu.zookeeper_ms) * 1_000 / one.partitions:,.1f}"
            ),
        ),
        row("most memory of the controller, MB", lambda one: f"{one.runs[-1].peak_mb:,.0f}"),
        row(
            "Kafka 2.8.2, ms", lambda one: f"{KAFKA_MS[one.partitions]:,.0f}" if one.partitions in KAFKA_MS else ABSENT
        ),
    ]
    phases = [phase_medians(one) for one in measured]
    rows += [[f"phase: {name}", *(f"{of[name]:,.1f}" for of in phases)] for name in phases[0]]
    return rows


# -- the others: a row each


def _other_rows(figures: Figures) -> list[list[str]]:
    rows = []
    for one in figures.others:
        if isinstance(one.first, BrokerGone):
            ends = [("last new leader", lambda run: run.led_ms), ("last ISR without it", lambda run: run.shrunk_ms)]
        else:
            ends = [("answered", lambda run: run.succeeded_ms)]
        rows += [
            [f"{one.name}: {end}", one.spread(of), one.spread(_controller_cpu), one.spread(_zookeeper_cpu)]
            for end, of in ends
        ]
    if figures.elected:
        clock, cpu = _spread([one.ms for one in figures.elected]), _spread([one.cpu_ms for one in figures.elected])
        rows.append(["1,000,000 partitions of RF 3 elected in columns", clock, cpu, ABSENT])
    return rows


OTHER_HEAD = ["", "ms", "CPU of the controller, ms", "CPU of ZooKeeper, ms"]


def page_tables(figures: Figures, circumstances: str) -> list[list[str]]:
    """Two tables; how they came about is below the second."""
    sizes = [f"{one.partitions:,}" for one in figures.failovers]
    failovers = markdown(["partitions", *sizes], _failover_rows(figures.failovers)) if sizes else []
    others = markdown(OTHER_HEAD, _other_rows(figures))
    return [failovers, [*others, "", f"Medians (least to most) of {_runs(figures)} runs. {circumstances}"]]


def _runs(figures: Figures) -> int:
    return max((len(one.runs) for one in (*figures.failovers, *figures.others)), default=len(figures.elected))


def text(figures: Figures) -> str:
    """For a terminal: the same rows, in columns."""
    lines: list[str] = []
    if figures.failovers:
        sizes = [f"{one.partitions:,}" for one in figures.failovers]
        lines += [*_aligned([["partitions", *sizes], *_failover_rows(figures.failovers)]), ""]
    rows = _other_rows(figures)
    return "\n".join([*lines, *(_aligned([OTHER_HEAD, *rows]) if rows else [])])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        row[0].ljust(widths[0])
        + "".join(f"  {cell.rjust(width)}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def panels(figures: Figures) -> list[Panel]:
    """Time by partitions beside Kafka's, and what it costs of the processors."""
    sizes = [one.partitions for one in figures.failovers]
    kafka = [size for size in sizes if size in KAFKA_MS]
    lines = [Line("camerlengo", sizes, [one.median(lambda run: run.total_ms) / 1_000 for one in figures.failovers], 0)]
    if kafka:
        lines.append(Line("Kafka 2.8.2", kafka, [KAFKA_MS[size] / 1_000 for size in kafka], 1))
    cpu = [
        Line(
            "the controller",
            sizes,
            [one.median(_controller_cpu) * 1_000 / one.partitions for one in figures.failovers],
            0,
        ),
        Line("ZooKeeper", sizes, [one.median(_zookeeper_cpu) * 1_000 / one.partitions for one in figures.failovers], 2),
    ]
    return [
        Panel("From /controller gone to the end", "partitions", "seconds", lines, log_x=True, log_y=True),
        Panel("Processor time", "partitions", "µs a partition", cpu, log_x=True),
    ]
