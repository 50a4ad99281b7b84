"""`camerlengo bench WHAT`: run a benchmark, `tests/benchmarks/WHAT.py`, from a source checkout. Wheels have none.

Each has what a command has: `configure(parser)` and `run(arguments) -> int` (the exit status), and it is imported when
it is chosen.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path

from controller.cli.main import COULD_NOT_RUN
from controller.cli.requirements import Need
from controller.cli.subcommands import add_subcommands

BENCHMARKS = {  # with the line that --help shows
    "broker": "produce and consume through three broker processes with confluent-kafka",
    "kafka": "produce and consume through three brokers of this project and of Kafka 2.8 (KAFKA_HOME), in turn",
    "controller": "failover, lost brokers and controlled shutdown over up to a million partitions, phase by phase",
    "loading": "loading partitions from ZooKeeper into the controller's context",
    "timer": "CPU time and memory of the timing wheel, compared with heapq, asyncio and sched",
    "purgatory": "delayed operations: sustained request rate and CPU time, new design and old",
    "schemes": "the seven timer schemes: cost by number of outstanding timers, and the cost model",
    "simulator": "the simulator: events per second, virtual seconds per second",
    "connections": "tens of thousands of connections with waiting fetches: memory, CPU, time until all are answered",
    "watches": "watches in ZooKeeper, and events for a change of the cluster, by the number of brokers",
    "testing": "a cluster inside a test's process: CPU of a start, recovery of a leader, what is left behind",
    "peers": "clusters for tests side by side: this one, librdkafka's mock cluster and Tansu",
    "cold-reads": "produce and fetch beside readers of records that a slow device must read (Linux, root)",
    "groups": "consumer groups of a thousand members: rebalances, heartbeats, commits (beside Kafka with KAFKA_HOME)",
    "compaction": "MB/s of the log cleaner, and producing beside it (beside Kafka with KAFKA_HOME)",
    "security": "TLS, SASL_SSL, 10,000 ACLs and quotas: throughput, p99 and CPU as ratios to PLAINTEXT",
    "hostile": "attack three brokers with hostile requests while a probe measures",
}
CHECKOUT = Path(__file__).parents[2]


def in_source_checkout() -> bool:
    return (CHECKOUT / "tests" / "benchmarks").is_dir()


def configure(parser: argparse.ArgumentParser) -> None:
    configure_as(parser, BENCHMARKS)


def configure_as(parser: argparse.ArgumentParser, modules: Mapping[str, str]) -> None:
    """Add a subcommand for each of `modules` of tests/benchmarks, which maps a name to its line of help."""
    if not in_source_checkout():
        parser.add_argument("words", nargs=argparse.REMAINDER, help="the benchmarks are in a source checkout only")
        return
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    add_subcommands(parser, "bench", "WHAT", modules, package="tests.benchmarks")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    if not in_source_checkout():
        return ()
    own = getattr(_module(arguments.bench), "needs", None)
    found: Iterable[Need] = own(arguments) if own is not None else ()
    return found


def run(arguments: argparse.Namespace) -> int:
    if not in_source_checkout():
        print(f"camerlengo {arguments.command}: benchmarks need a source checkout of camerlengo", file=sys.stderr)
        return COULD_NOT_RUN
    from controller.zookeeper.embedded import EmbeddedServerUnavailable
    from tests.benchmarks.common import CouldNotRun, make_folder

    try:
        if getattr(arguments, "plots", None) is not None:
            make_folder(arguments.plots)
        status: int = _module(arguments.bench).run(arguments)
    except (CouldNotRun, EmbeddedServerUnavailable) as error:
        print(f"camerlengo {arguments.command}: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    return status


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(f"tests.benchmarks.{name.replace('-', '_')}")
