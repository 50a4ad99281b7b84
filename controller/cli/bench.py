"""`camerlengo bench WHAT`: one file a benchmark, `controller/cli/benches/WHAT.py`, imported when asked for.

Each has what a command has: `HELP`, `configure(parser)` and `run(arguments) -> int` (the exit status). What only its
run needs (matplotlib, above all) it imports in its run.
"""

from __future__ import annotations

import argparse
import importlib
import types
from collections.abc import Iterable

from controller.cli.requirements import Need

HELP = "measure: this library's parts, beside what else does the same work"

BENCHMARKS = (  # one a line, in the order of --help
    "broker",
    "controller",
    "loading",
    "timer",
    "purgatory",
    "schemes",
    "simulator",
    "hostile",
)


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    for name in BENCHMARKS:
        module = _module(name)
        module.configure(kinds.add_parser(name, help=module.HELP))


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    own = getattr(_module(arguments.bench), "needs", None)
    found: Iterable[Need] = own(arguments) if own is not None else ()
    return found


def run(arguments: argparse.Namespace) -> int:
    status: int = _module(arguments.bench).run(arguments)
    return status


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(f"controller.cli.benches.{name}")
