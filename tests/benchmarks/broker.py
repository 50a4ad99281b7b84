"""`camerlengo bench broker`: how much three broker processes take in and give out, how soon, and for how much CPU."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from controller.cli.main import UsageError
from controller.cli.requirements import CLIENTS, Need, zookeeper_server
from controller.cli.values import integer, number_from
from controller.zookeeper.embedded import EmbeddedServerUnavailable
from tests.benchmarks.broker_runs import BROKERS, PARTITIONS, SETTINGS, Bench, Setup, Work

COULD_NOT_RUN = 3
SETUPS = tuple(Setup(replicas, acks) for replicas in (1, 3) for acks in ("1", "all"))
PERCENTILES = (50, 99, 99.9)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper and three brokers on loopback. For each replication factor and acks, a client in a fresh"
        " process produces to a topic of three partitions and another consumes it, as fast as they go; then one"
        " produces at a steady rate, one record a request, and takes the time to each acknowledgement. The brokers'"
        " CPU is that of all three, replication included. Needs confluent-kafka."
    )
    parser.add_argument("--sizes", type=_counts, default=(100, 1024), metavar="N,...", help="record sizes (100,1024)")
    parser.add_argument(
        "--megabytes", type=number_from(), default=100.0, metavar="N", help="megabytes produced in each run (100)"
    )
    parser.add_argument(
        "--runs", type=integer(), default=3, metavar="N", help="number of runs; the output has medians (3)"
    )
    parser.add_argument(
        "--rate", type=integer(), default=500, metavar="N", help="records per second of the latency runs (500)"
    )
    parser.add_argument(
        "--seconds", type=number_from(), default=10.0, metavar="S", help="duration of each latency run (10; 0: none)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--zookeeper-jars", metavar="DIR", type=Path, help="directory of ZooKeeper's jars (PySpark's)")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(integer(1)(part) for part in text.split(","))


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return (*CLIENTS, *zookeeper_server(arguments.zookeeper_jars))


def run(arguments: argparse.Namespace) -> int:
    for name, least in (("megabytes", 0.001), ("runs", 1), ("rate", 1), ("seconds", 0)):
        if getattr(arguments, name) < least:
            raise UsageError(f"--{name} {getattr(arguments, name):g}: expected {least:g} or more")
    from controller.hosts.local_cluster import LocalCluster

    try:
        cluster = LocalCluster(brokers=BROKERS, zookeeper_jars=arguments.zookeeper_jars, settings=SETTINGS)
    except EmbeddedServerUnavailable as error:
        print(f"camerlengo bench: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    with cluster:
        bench = Bench(cluster)
        throughput = [throughput_row(bench, setup, size, arguments) for size in arguments.sizes for setup in SETUPS]
        latency = [latency_row(bench, setup, arguments) for setup in SETUPS] if arguments.seconds else []
    found = {"benchmark": "broker", "partitions": PARTITIONS, "throughput": throughput, "latency": latency}
    print(json.dumps(found, indent=2) if arguments.json else table(found))
    return 0


def throughput_row(bench: Bench, setup: Setup, size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    records = max(int(arguments.megabytes * 1e6 / size), PARTITIONS)
    produced: list[Work] = []
    consumed: list[Work] = []
    for _ in range(arguments.runs):
        with bench.topic(setup) as topic:
            produced.append(bench.work("produce", topic=topic, acks=setup.acks, records=records, size=size))
            consumed.append(bench.work("consume", topic=topic, records=records))
    return {
        "replication_factor": setup.replication_factor,
        "acks": setup.acks,
        "size": size,
        "records": records,
        "produce": figures(produced, records),
        "consume": figures(consumed, records),
    }


def figures(runs: Sequence[Work], records: int) -> dict[str, Any]:
    """Medians, with the least and the most of the rates."""
    rates = [records / work.seconds for work in runs]
    return {
        "records_per_s": _spread(rates),
        "cpu_us_a_record": round(statistics.median(work.cpu_s * 1e6 / records for work in runs), 3),
        "client_cpu_us_a_record": round(statistics.median(work.client_cpu_s * 1e6 / records for work in runs), 3),
        "cpu_us_a_request": round(statistics.median(work.cpu_s * 1e6 / max(work.requests, 1) for work in runs), 1),
        "records_a_request": round(statistics.median(records / max(work.requests, 1) for work in runs), 1),
    }


def _spread(values: Sequence[float]) -> dict[str, int]:
    return {"median": round(statistics.median(values)), "min": round(min(values)), "max": round(max(values))}


LATENCY_BYTES = 1024


def latency_row(bench: Bench, setup: Setup, arguments: argparse.Namespace) -> dict[str, Any]:
    records = max(int(arguments.rate * arguments.seconds), 1)
    with bench.topic(setup) as topic:
        work = bench.work(
            "latency", topic=topic, acks=setup.acks, records=records, size=LATENCY_BYTES, per_second=arguments.rate
        )
    return {
        "replication_factor": setup.replication_factor,
        "acks": setup.acks,
        "size": LATENCY_BYTES,
        "records": records,
        "records_per_s": arguments.rate,
        "latency_ms": {f"p{percent:g}": percentile(work.latency_ms, percent) for percent in PERCENTILES}
        | {"max": round(max(work.latency_ms), 2)},
        "cpu_us_a_request": round(work.cpu_s * 1e6 / max(work.requests, 1), 1),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many per cent of all are not above."""
    ordered = sorted(values)
    index = max(-(-len(ordered) * percent // 100), 1) - 1
    return round(ordered[int(index)], 2)


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{BROKERS} brokers, {found['partitions']} partitions; CPU us a record: of all brokers, of the client;"
        " a request: of all brokers",
        f"{'':<16}{'size':>6}{'produced/s':>12}{'brokers':>9}{'client':>8}{'a request':>11}"
        f"{'consumed/s':>12}{'brokers':>9}{'client':>8}{'a request':>11}",
    ]
    for row in found["throughput"]:
        name = str(Setup(row["replication_factor"], row["acks"]))
        sides = "".join(
            f"{side['records_per_s']['median']:>12,}{side['cpu_us_a_record']:>9.2f}"
            f"{side['client_cpu_us_a_record']:>8.2f}{side['cpu_us_a_request']:>11.0f}"
            for side in (row["produce"], row["consume"])
        )
        lines.append(f"{name:<16}{row['size']:>6}{sides}")
    if found["latency"]:
        first = found["latency"][0]
        lines.append(f"produce latency at {first['records_per_s']} records/s of {first['size']} bytes, ms")
        lines.append(f"{'':<16}{'p50':>8}{'p99':>8}{'p99.9':>8}{'max':>8}{'us/request':>12}")
    for row in found["latency"]:
        name = str(Setup(row["replication_factor"], row["acks"]))
        shown = "".join(f"{value:>8.1f}" for value in row["latency_ms"].values())
        lines.append(f"{name:<16}{shown}{row['cpu_us_a_request']:>12.0f}")
    return "\n".join(lines)
