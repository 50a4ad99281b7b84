"""`camerlengo bench kafka`: throughput of three brokers of this project and of three of Kafka 2.8, alternating.

Both clusters run during the whole benchmark, each with a ZooKeeper of its own, the same settings and the same clients
(`broker_worker`). Only one of them has work at a time. `KAFKA_HOME` names the Kafka.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.cli.requirements import CLIENTS, Need, zookeeper_server
from controller.cli.values import number
from controller.hosts.local_cluster import LocalCluster
from tests.benchmarks import common
from tests.benchmarks.broker import BROKERS, PARTITIONS, SETTINGS, BrokerBench, Setup, Work, figures

OURS, KAFKAS = "camerlengo", "Kafka"
SIDES = ("produce", "consume")
SETUPS = (Setup(1, "1"), Setup(3, "all"))
TABLE = "kafka"
COMMON_SETTINGS = SETTINGS | {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",  # a client of Kafka's looks for its group, though it has none
    "offsets.topic.replication.factor": "1",
}
"""Of both clusters. Everything else has its default, which is Kafka's."""
HEAD = ("", "size", "produced/s", "Kafka", "ratio", "consumed/s", "Kafka", "ratio")
CPU_HEAD = ("", "size", "produce", "Kafka", "consume", "Kafka", "client", "with Kafka", "a Fetch", "Kafka")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts three brokers of this project and three of Kafka 2.8 (KAFKA_HOME: a release or a build from source,"
        " run with the options of Kafka's own start script), each with an Apache ZooKeeper. A client in a fresh"
        " process produces to a topic of three partitions, another consumes it. The two clusters take turns, run by"
        " run; one more run of each comes first and does not count. Needs confluent-kafka."
    )
    parser.add_argument(
        "--sizes", type=common.integers(), default=(100, 1024), metavar="N,...", help="record sizes (100,1024)"
    )
    parser.add_argument("--megabytes", type=number(), default=300.0, metavar="N", help="MB produced in each run (300)")
    common.add_count(parser, "--runs", 5, "number of runs of each cluster; the output has medians")
    parser.add_argument(
        "--consumer",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the consumer, with both clusters",
    )
    common.add_output(parser, page="docs/broker.md", tables=(TABLE,))
    common.add_zookeeper_jars(parser)


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=VALUE")
    return name, value


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return (*CLIENTS, *zookeeper_server(arguments.zookeeper_jars))


def run(arguments: argparse.Namespace) -> int:
    from tests.benchmarks.broker_worker import CONSUMER, PRODUCER
    from tests.interop.kafka import FULL_SPEED, Kafka, KafkaCluster, jars_of

    try:
        jars = jars_of(os.environ.get("KAFKA_HOME"))
    except ValueError as error:
        raise common.CouldNotRun(str(error)) from None
    load = os.getloadavg()[0]
    zookeeper = arguments.zookeeper_jars
    with (
        tempfile.TemporaryDirectory(prefix="camerlengo-kafka-") as folder,
        LocalCluster(BROKERS, zookeeper="java", zookeeper_jars=zookeeper, settings=COMMON_SETTINGS) as ours,
        KafkaCluster(
            Kafka(jars, Path(folder), FULL_SPEED), BROKERS, zookeeper_jars=zookeeper, settings=COMMON_SETTINGS
        ) as kafkas,
    ):
        rows = compare({OURS: BrokerBench(ours), KAFKAS: BrokerBench(kafkas)}, arguments)
    found = {
        "benchmark": "kafka",
        "partitions": PARTITIONS,
        "runs": arguments.runs,
        "megabytes": arguments.megabytes,
        "producer": PRODUCER,
        "consumer": CONSUMER | dict(arguments.consumer),
        "circumstances": common.circumstances(load),
        "rows": rows,
    }
    common.show(arguments, found, table(found))
    if arguments.page is not None:
        common.put_table(arguments.page, TABLE, page_table(found))
    return 0


def compare(benches: Mapping[str, BrokerBench], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every row on both clusters in turn, `arguments.runs` times and once before, and return the rows' figures."""
    rows = [(setup, size) for size in arguments.sizes for setup in SETUPS]
    works: dict[tuple[Setup, int, str, str], list[Work]] = {
        (setup, size, side, name): [] for setup, size in rows for side in SIDES for name in benches
    }
    for turn in range(arguments.runs + 1):
        for setup, size in rows:
            records = records_of(arguments.megabytes, size)
            for name in list(benches)[:: -1 if turn % 2 else 1]:
                common.progress(f"run {turn} of {arguments.runs}: {setup}, {size} bytes, {name}")
                produced, consumed = run_once(benches[name], setup, size, records, dict(arguments.consumer))
                if turn:
                    works[setup, size, "produce", name].append(produced)
                    works[setup, size, "consume", name].append(consumed)
    common.progress("")
    return [
        {"replication_factor": setup.replication_factor, "acks": setup.acks, "size": size}
        | {side: {name: figures(works[setup, size, side, name], records) for name in benches} for side in SIDES}
        for setup, size in rows
        for records in [records_of(arguments.megabytes, size)]
    ]


def records_of(megabytes: float, size: int) -> int:
    return max(int(megabytes * 1e6 / size), PARTITIONS)


def run_once(
    bench: BrokerBench, setup: Setup, size: int, records: int, consumer: Mapping[str, str]
) -> tuple[Work, Work]:
    with bench.topic(setup) as topic:
        produced = bench.work("produce", topic=topic, acks=setup.acks, records=records, size=size)
        return produced, bench.work("consume", topic=topic, records=records, config=consumer)


def ratio(row: Mapping[str, Any], side: str) -> float:
    """The median rate of this project's brokers over that of Kafka's."""
    ours, kafkas = (float(row[side][name]["records_per_s"]["median"]) for name in (OURS, KAFKAS))
    return round(ours / kafkas, 2)


def rate_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The cells below HEAD: medians, with the least and the most."""
    rows = []
    for row in found["rows"]:
        cells = [str(Setup(row["replication_factor"], row["acks"])), str(row["size"])]
        for side in SIDES:
            for name in (OURS, KAFKAS):
                rate = row[side][name]["records_per_s"]
                cells.append(f"{rate['median']:,} ({rate['min'] / 1000:,.0f}k to {rate['max'] / 1000:,.0f}k)")
            cells.append(f"{ratio(row, side):.2f}")
        rows.append(cells)
    return rows


def cpu_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The cells below CPU_HEAD: us a record of all brokers, of the consumer, and us a Fetch of all brokers."""
    return [
        [
            str(Setup(row["replication_factor"], row["acks"])),
            str(row["size"]),
            *(f"{row[side][name]['cpu_us_a_record']:.2f}" for side in SIDES for name in (OURS, KAFKAS)),
            *(f"{row['consume'][name]['client_cpu_us_a_record']:.2f}" for name in (OURS, KAFKAS)),
            *(f"{row['consume'][name]['cpu_us_a_request']:.0f}" for name in (OURS, KAFKAS)),
        ]
        for row in found["rows"]
    ]


def notes(found: Mapping[str, Any]) -> list[str]:
    """How the figures came about: the clients' settings, the amount, the machine."""
    return [
        f"Medians of {found['runs']} alternating runs of {found['megabytes']:g} MB each (least to most);"
        f" {BROKERS} brokers and {found['partitions']} partitions.",
        f"Producer, both: {_settings(found['producer'])}. Consumer, both: {_settings(found['consumer'])}.",
        found["circumstances"],
    ]


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"`{name}={str(value).lower() if isinstance(value, bool) else value}`" for name, value in settings.items()
    )


CPU_TITLE = "CPU in us a record: of all brokers, of the consumer; in us a Fetch: of all brokers"


def table(found: Mapping[str, Any]) -> str:
    parts: Sequence[str] = [
        common.aligned([HEAD, *rate_rows(found)]),
        CPU_TITLE,
        common.aligned([CPU_HEAD, *cpu_rows(found)]),
        *notes(found),
    ]
    return "\n".join(parts)


def page_table(found: Mapping[str, Any]) -> list[str]:
    return [
        *common.markdown(HEAD, rate_rows(found)),
        "",
        f"{CPU_TITLE}.",
        "",
        *common.markdown(CPU_HEAD, cpu_rows(found)),
        "",
        *notes(found),
    ]
