"""`camerlengo bench WHAT`: one file a benchmark, `controller/cli/benches/WHAT.py`, imported when asked for.

Each has what a command has: `configure(parser)` and `run(arguments) -> int` (the exit status). What only its
run needs (matplotlib, above all) it imports in its run.
"""

from __future__ import annotations

import argparse
import importlib
import types
from collections.abc import Iterable

from controller.cli.requirements import Need
from controller.cli.subcommands import add_subcommands

BENCHMARKS = {  # with the line that --help shows
    "broker": "produce and consume through three broker processes with confluent-kafka",
    "controller": "failover, lost brokers and controlled shutdown over up to a million partitions, phase by phase",
    "loading": "loading partitions from a real ZooKeeper into the controller's context",
    "timer": "CPU time and memory of the timing wheel, compared with heapq, asyncio and sched",
    "purgatory": "delayed operations: sustained request rate and CPU time, new design and old",
    "schemes": "the seven timer schemes: cost by number of outstanding timers, and the cost model",
    "simulator": "the simulator: events per second, virtual seconds per second",
    "hostile": "attack three brokers with hostile requests while a probe measures",
}


def configure(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, "bench", "WHAT", BENCHMARKS, package="controller.cli.benches")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    own = getattr(_module(arguments.bench), "needs", None)
    found: Iterable[Need] = own(arguments) if own is not None else ()
    return found


def run(arguments: argparse.Namespace) -> int:
    status: int = _module(arguments.bench).run(arguments)
    return status


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(f"controller.cli.benches.{name}")
