"""`camerlengo lab WHAT`: an experiment on a published design, `tests/benchmarks/WHAT.py`, from a source checkout."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from controller.cli import bench
from controller.cli.requirements import Need

LABS = {  # with the line that --help shows
    "tiers": "six architectures of a broker's log storage: HDDs, block caches, segments on SSDs and HDDs",
    "advise": "which setting to change for a latency target, by the model of the latency lab",
    "latency": "the parts of a record's latency: measured on a cluster, and at published size in virtual time",
}


def configure(parser: argparse.ArgumentParser) -> None:
    bench.configure_as(parser, LABS)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return bench.needs(arguments)


def run(arguments: argparse.Namespace) -> int:
    return bench.run(arguments)
