"""`camerlengo bench loading`: how fast a new controller takes a large cluster in, beside kazoo's own reads."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from controller.cli.main import UsageError
from controller.cli.requirements import Need, zookeeper_server
from controller.cli.values import integer
from controller.hosts.network import NetworkThread
from controller.zookeeper.embedded import EmbeddedServerUnavailable, EmbeddedZooKeeper
from tests.benchmarks.tree import TreeSize, write_tree

COULD_NOT_RUN = 3
WORKER_LIMIT_S = 600


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper, writes a cluster into it, and loads it as a new controller does, each time in a fresh"
        " process: read, decoded, watched and in the context. kazoo's own pipelined reads of the same state znodes"
        " are timed beside it."
    )
    parser.add_argument(
        "--partitions", type=integer(), default=100_000, metavar="N", help="total number of partitions (100000)"
    )
    parser.add_argument("--topics", type=integer(), default=2_000, metavar="N", help="number of topics (2000)")
    parser.add_argument(
        "--replication-factor", type=integer(), default=3, metavar="N", help="replicas of each partition (3)"
    )
    parser.add_argument("--brokers", type=integer(), default=3, metavar="N", help="registered brokers (3)")
    parser.add_argument("--runs", type=integer(), default=5, metavar="N", help="runs, each in a new process (5)")
    parser.add_argument(
        "--peer-runs", type=integer(), default=1, metavar="N", help="runs of kazoo's reads (1; 0: none)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--zookeeper-jars", metavar="DIR", type=Path, help="directory of ZooKeeper's jars (PySpark's)")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return zookeeper_server(arguments.zookeeper_jars)


def run(arguments: argparse.Namespace) -> int:
    size = _size(arguments)
    try:
        server = EmbeddedZooKeeper(jars=arguments.zookeeper_jars)
    except EmbeddedServerUnavailable as error:
        print(f"camerlengo bench: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    network = NetworkThread()
    network.start()
    try:
        with server:
            write_tree(server.connect_string, size, network.clock)
            loads = [_worker("load", server.connect_string) for _ in range(arguments.runs)]
            peers = [
                _worker("kazoo", server.connect_string, str(size.topics), str(size.partitions))
                for _ in range(arguments.peer_runs)
            ]
    finally:
        network.stop()
    found = figures(size, loads, peers)
    print(json.dumps(found, indent=2) if arguments.json else table(found))
    return 0


def _size(arguments: argparse.Namespace) -> TreeSize:
    for name in ("partitions", "topics", "replication_factor", "brokers", "runs"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: expected 1 or more")
    if arguments.peer_runs < 0:
        raise UsageError(f"--peer-runs {arguments.peer_runs}: expected 0 or more")
    if arguments.replication_factor > arguments.brokers:
        raise UsageError(f"--replication-factor {arguments.replication_factor}: expected at most --brokers")
    if arguments.topics > arguments.partitions:
        raise UsageError(f"--topics {arguments.topics}: expected at most --partitions")
    return TreeSize(arguments.topics, arguments.partitions, arguments.replication_factor, arguments.brokers)


def _worker(*words: str) -> dict[str, Any]:
    """A fresh process's answer. Raises CalledProcessError, with what it said on its standard error shown."""
    command = [sys.executable, "-m", "tests.benchmarks.worker", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=WORKER_LIMIT_S, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def figures(size: TreeSize, loads: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most of each phase in ms; `ratio`: kazoo's median for the states alone over ours for all."""
    for answer in (*loads, *peers):
        if answer["states"] != size.partitions:
            raise RuntimeError(f"{answer['states']} of {size.partitions} states were read: the figures mean nothing")
    found: dict[str, Any] = {
        "benchmark": "loading",
        "partitions": size.partitions,
        "topics": size.topics,
        "replication_factor": size.replication_factor,
        "brokers": size.brokers,
        "runs": len(loads),
        "load_ms": _spread([answer["ms"] for answer in loads]),
        "kazoo_get_async_ms": _spread([answer["ms"] for answer in peers]) if peers else None,
        "ratio": None,
    }
    if peers:
        found["ratio"] = found["kazoo_get_async_ms"]["states"]["median"] / found["load_ms"]["total"]["median"]
    return found


def _spread(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        phase: {
            "median": round(statistics.median(run[phase] for run in runs), 1),
            "min": round(min(run[phase] for run in runs), 1),
            "max": round(max(run[phase] for run in runs), 1),
        }
        for phase in runs[0]
    }


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['partitions']} partitions in {found['topics']} topics, replication factor"
        f" {found['replication_factor']}; {found['runs']} fresh processes",
        f"{'phase':<40}{'median ms':>12}{'min':>10}{'max':>10}",
    ]
    last = {"total": "load: total", "cpu": "load: CPU of its process"}
    rows = [(f"load: {phase}", spread) for phase, spread in found["load_ms"].items() if phase not in last]
    rows += [(name, found["load_ms"][phase]) for phase, name in last.items()]
    if found["kazoo_get_async_ms"] is not None:
        rows.append(("kazoo get_async: states alone", found["kazoo_get_async_ms"]["states"]))
        rows.append(("kazoo get_async: CPU of its process", found["kazoo_get_async_ms"]["cpu"]))
    lines += [f"{name:<40}{one['median']:>12.1f}{one['min']:>10.1f}{one['max']:>10.1f}" for name, one in rows]
    if found["ratio"] is not None:
        lines.append(f"kazoo's reads of the states alone take {found['ratio']:.1f} times as long as the whole load")
    return "\n".join(lines)
