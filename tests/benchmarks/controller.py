"""`camerlengo bench controller`: how long a controller takes over many partitions, on a real ZooKeeper, with brokers
that acknowledge at once: a failover, a broker that is gone, a broker that shuts down, an election in columns."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controller.cli.main import UsageError
from controller.cli.requirements import PLOTS, Need, zookeeper_server
from controller.cli.values import integer, output_folder
from controller.zookeeper.embedded import EmbeddedServerUnavailable
from tests.benchmarks.controller_page import Figures, Measured, page_tables, panels, text
from tests.benchmarks.controller_runs import Bench, BrokerGone, ControlledShutdown, Failover, bench
from tests.benchmarks.election import MOST_PARTITIONS, elect_in_columns
from tests.benchmarks.pages import NoSuchTable, page_with, put_table
from tests.benchmarks.plots import PlotsUnavailable, save
from tests.benchmarks.tree import TreeSize

COULD_NOT_RUN = 3
SIZES = "10000,50000,100000,400000,1000000"
PARTS = ("failover", "broker-gone", "shutdown", "election")
BROKERS = 3
PLOT_PNG = "controller-scale.png"
TABLES = ("controller failover", "controller brokers")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper that writes through to the disk, three brokers that acknowledge at once, and a controller"
        " that stands by, each in a process of its own. failover: /controller is deleted, until the failover's end,"
        " partitions of one replica. broker-gone: a registration is deleted, until the last new leader is in ZooKeeper,"
        " partitions of two replicas. shutdown: request to answer. election: leaders of partitions of three"
        " replicas decided in columns, half the brokers dead. The first failover of each process is reported"
        " separately; the other figures are medians."
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="LIST", help=f"parts to run ({','.join(PARTS)})")
    parser.add_argument(
        "--sizes", default=SIZES, metavar="LIST", help=f"numbers of partitions of the failovers ({SIZES})"
    )
    parser.add_argument(
        "--partitions", type=integer(), default=10_000, metavar="N", help="partitions of the other parts (10000)"
    )
    parser.add_argument("--topic-size", type=integer(), default=50, metavar="N", help="partitions per topic (50)")
    parser.add_argument("--runs", type=integer(), default=5, metavar="N", help="measured runs, after a warm-up (5)")
    parser.add_argument(
        "--heap-mb", type=integer(16), metavar="N", help="initial and maximum heap of ZooKeeper's JVM (Java's default)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plots", type=output_folder, metavar="DIR", help=f"write {PLOT_PNG} to DIR")
    parser.add_argument(
        "--page",
        type=page_with(*TABLES),
        metavar="FILE",
        help="replace the tables in this page, such as docs/controller-scale.md",
    )
    parser.add_argument("--zookeeper-jars", metavar="DIR", type=Path, help="directory of ZooKeeper's jars (PySpark's)")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    plots = PLOTS if arguments.plots is not None else ()
    return (*zookeeper_server(arguments.zookeeper_jars), *plots)


def run(arguments: argparse.Namespace) -> int:
    parts, sizes = _parts(arguments), _sizes(arguments)
    load_before = os.getloadavg()[0]
    try:
        figures = _measure(arguments, parts, sizes)
    except EmbeddedServerUnavailable as error:
        print(f"camerlengo bench: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    print(json.dumps(_as_json(figures, arguments), indent=2) if arguments.json else text(figures))
    try:
        if arguments.plots is not None and figures.failovers:
            arguments.plots.mkdir(parents=True, exist_ok=True)
            save(arguments.plots / PLOT_PNG, "Failover over so many partitions", panels(figures), columns=2)
        if arguments.page is not None:
            for name, lines in zip(TABLES, page_tables(figures, _circumstances(load_before)), strict=True):
                put_table(arguments.page, name, lines)
    except (PlotsUnavailable, NoSuchTable, OSError) as error:
        print(f"camerlengo bench: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    return 0


def _parts(arguments: argparse.Namespace) -> list[str]:
    wanted: list[str] = arguments.only.split(",")
    for part in wanted:
        if part not in PARTS:
            raise UsageError(f"--only {part}: expected one of {', '.join(PARTS)}")
    for name in ("runs", "partitions", "topic_size"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: expected 1 or more")
    return wanted


def _sizes(arguments: argparse.Namespace) -> list[int]:
    try:
        sizes = sorted({int(word) for word in arguments.sizes.split(",")})
    except ValueError as error:
        raise UsageError(f"--sizes {arguments.sizes}: expected integers separated by commas") from error
    if sizes[0] < 1:
        raise UsageError(f"--sizes {arguments.sizes}: expected 1 or more")
    return sizes


def _measure(arguments: argparse.Namespace, parts: list[str], sizes: list[int]) -> Figures:
    def size(partitions: int, replication_factor: int, led_by: int | None = None) -> TreeSize:
        topics = -(-partitions // arguments.topic_size)
        return TreeSize(topics, partitions, replication_factor, BROKERS, led_by)

    def measure(tree: TreeSize, name: str, one: Any) -> Measured[Any]:
        with bench(tree, arguments.zookeeper_jars, arguments.heap_mb) as made:
            runs = []
            for number in range(arguments.runs + 1):
                runs.append(one(made))
                _tell(f"{name}, {tree.partitions} partitions, run {number}: {runs[-1]}")
        return Measured(name, tree.partitions, runs[0], tuple(runs[1:]))

    many = arguments.partitions
    failovers = [measure(size(number, 1), "failover", _fail_over) for number in sizes if "failover" in parts]
    others = []
    if "broker-gone" in parts:
        third = f"broker gone that led {len(range(BROKERS - 1, many, BROKERS))} of {many}"
        others.append(measure(size(many, 2), third, _lose_broker))
        others.append(measure(size(many, 2, BROKERS), f"broker gone that led all {many}", _lose_broker))
    if "shutdown" in parts:
        others.append(measure(size(many, 2, BROKERS), f"controlled shutdown of the leader of {many}", _shut_down))
    elected = elect_in_columns(MOST_PARTITIONS, arguments.runs) if "election" in parts else ()
    return Figures(tuple(failovers), tuple(others), elected)


def _fail_over(made: Bench) -> Failover:
    done = made.fail_over()
    made.take_back()
    return done


def _lose_broker(made: Bench) -> BrokerGone:
    made.fail_over()
    done = made.lose_broker(BROKERS)
    made.take_back()
    made.put_back()
    return done


def _shut_down(made: Bench) -> ControlledShutdown:
    made.fail_over()
    done = made.shut_down_broker(BROKERS)
    made.take_back()
    made.put_back()
    return done


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _circumstances(load_before: float) -> str:
    """Load averages are of the minute before the runs and of their last."""
    return (
        f"Python {platform.python_version()}; {os.cpu_count()} cores, load average {load_before:.1f} before the runs"
        f" and {os.getloadavg()[0]:.1f} at their end; commit {_commit()}."
    )


def _commit() -> str:
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _as_json(figures: Figures, arguments: argparse.Namespace) -> dict[str, Any]:
    return {"benchmark": "controller", "runs": arguments.runs, **asdict(figures)}
