"""Kafka's command-line tools against a mixed cluster, under either controller: a table by tool and operation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.conftest import Findings
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.tools import run, written
from tests.interop.workload import segments

OURS, KAFKAS = 1, 3


@dataclass(frozen=True, slots=True)
class Operation:
    """`arguments` takes the cluster and the folder for the tool's files. `prints`: a pattern in its output;
    `refused`: it is in its errors, and the exit status may be any."""

    tool: str
    what: str
    arguments: Callable[[MixedCluster, Path], list[str]]
    prints: str = ""
    given: str = ""
    refused: bool = False


def said(*arguments: str) -> Callable[[MixedCluster, Path], list[str]]:
    return lambda _cluster, _folder: list(arguments)


def words(text: str) -> Callable[[MixedCluster, Path], list[str]]:
    return said(*text.split())


def plan(*brokers: int) -> str:
    moved = [{"topic": "tools", "partition": 0, "replicas": list(brokers)}]
    return json.dumps({"version": 1, "partitions": moved})


def reassignment(flag: str, *brokers: int) -> Callable[[MixedCluster, Path], list[str]]:
    def arguments(_cluster: MixedCluster, folder: Path) -> list[str]:
        return ["--reassignment-json-file", written(folder / "plan.json", plan(*brokers)), flag]

    return arguments


def generate(_cluster: MixedCluster, folder: Path) -> list[str]:
    topics = written(folder / "topics.json", json.dumps({"version": 1, "topics": [{"topic": "tools"}]}))
    return ["--topics-to-move-json-file", topics, "--broker-list", "1,2,3,4", "--generate"]


def delete_records(_cluster: MixedCluster, folder: Path) -> list[str]:
    offsets = {"version": 1, "partitions": [{"topic": "tools", "partition": 0, "offset": 2}]}
    return ["--offset-json-file", written(folder / "offsets.json", json.dumps(offsets))]


def dump(broker: int) -> Callable[[MixedCluster, Path], list[str]]:
    def arguments(cluster: MixedCluster, _folder: Path) -> list[str]:
        return ["--files", ",".join(map(str, segments(cluster, broker, "tools", 0))), "--deep-iteration"]

    return arguments


def get_offsets(cluster: MixedCluster, _folder: Path) -> list[str]:
    return ["--broker-list", cluster.servers, "--topic", "tools"]


def perf(cluster: MixedCluster, _folder: Path) -> list[str]:
    properties = ["--producer-props", f"bootstrap.servers={cluster.servers}", "acks=all", "compression.type=zstd"]
    return ["--topic", "perf", "--num-records", "20000", "--record-size", "100", "--throughput", "-1", *properties]


def consume(partition: int, count: int) -> list[str]:
    where = ["--partition", str(partition), "--offset", "earliest"]
    return ["--topic", "tools", *where, "--max-messages", str(count), "--timeout-ms", "30000"]


def brokers_config(broker: int, *change: str) -> Callable[[MixedCluster, Path], list[str]]:
    return said("--entity-type", "brokers", "--entity-name", str(broker), *change)


def loggers(broker: int, *change: str) -> Callable[[MixedCluster, Path], list[str]]:
    return said("--entity-type", "broker-loggers", "--entity-name", str(broker), *change)


TOPIC = ("--entity-type", "topics", "--entity-name", "tools")
OPERATIONS = (
    Operation("kafka-broker-api-versions", "list", said(), r"AlterIsr|ALTER_ISR|\(id: 1"),
    Operation(
        "kafka-topics",
        "create",
        said("--create", "--topic", "tools", "--replica-assignment", "1:3:2"),
        "Created topic tools",
    ),
    Operation(
        "kafka-topics",
        "create with partitions, factor and config",
        words("--create --topic perf --partitions 4 --replication-factor 3 --config segment.bytes=1048576"),
        "Created topic perf",
    ),
    Operation("kafka-topics", "create again", said("--create", "--topic", "tools"), "already exists", refused=True),
    Operation("kafka-topics", "list", said("--list"), r"(?m)^tools$"),
    Operation("kafka-topics", "describe", said("--describe", "--topic", "tools"), r"Leader: 1\s+Replicas: 1,3,2"),
    Operation(
        "kafka-topics", "describe under-replicated", said("--describe", "--under-replicated-partitions"), r"\A\Z"
    ),
    Operation("kafka-topics", "add partitions", said("--alter", "--topic", "perf", "--partitions", "6")),
    Operation("kafka-console-producer", "produce", said("--topic", "tools"), given="one\ntwo\nthree\nfour\nfive\n"),
    Operation(
        "kafka-console-producer",
        "produce, acks=all and lz4",
        said("--topic", "tools", "--request-required-acks", "all", "--compression-codec", "lz4"),
        given="six\nseven\neight\nnine\n",
    ),
    Operation("kafka-console-consumer", "consume partition 0", said(*consume(0, 1)), r"one|six"),
    Operation("kafka-producer-perf-test", "20,000 records, acks=all, zstd", perf, r"20000 records sent"),
    Operation(
        "kafka-verifiable-producer",
        "100 records",
        said("--topic", "perf", "--max-messages", "100", "--acks", "-1"),
        r'"acked":100',
    ),
    Operation("kafka-get-offsets", "latest", get_offsets, r"tools:0:\d+"),
    Operation("kafka-log-dirs", "describe", said("--describe", "--broker-list", "1,3"), r'"broker":1.*"broker":3'),
    Operation("kafka-dump-log", "a segment of ours", dump(OURS), "isvalid: true"),
    Operation("kafka-dump-log", "a segment of Kafka's", dump(KAFKAS), "isvalid: true"),
    Operation(
        "kafka-configs", "topic, alter", said(*TOPIC, "--alter", "--add-config", "retention.ms=86400000"), "Comp"
    ),
    Operation("kafka-configs", "topic, describe", said(*TOPIC, "--describe"), "retention.ms=86400000"),
    Operation(
        "kafka-configs", "topic, delete", said(*TOPIC, "--alter", "--delete-config", "retention.ms"), "Completed"
    ),
    *(
        one
        for broker, whose in ((OURS, "ours"), (KAFKAS, "Kafka's"))
        for one in (
            Operation(
                "kafka-configs",
                f"broker of {whose}, alter num.io.threads",
                brokers_config(broker, "--alter", "--add-config", "num.io.threads=5,log.cleaner.threads=2"),
                "Completed updating",
            ),
            Operation(
                "kafka-configs",
                f"broker of {whose}, describe",
                brokers_config(broker, "--describe"),
                r"(?s)num\.io\.threads=5 .*DYNAMIC_BROKER_CONFIG",
            ),
            Operation(
                "kafka-configs",
                f"broker of {whose}, delete",
                brokers_config(broker, "--alter", "--delete-config", "num.io.threads,log.cleaner.threads"),
                "Completed updating",
            ),
            Operation(
                "kafka-configs",
                f"broker of {whose}, read-only",
                brokers_config(broker, "--alter", "--add-config", "broker.id=7"),
                "Cannot update",
                refused=True,
            ),
            Operation("kafka-configs", f"loggers of {whose}, describe", loggers(broker, "--describe"), r"root="),
            Operation(
                "kafka-configs",
                f"loggers of {whose}, alter",
                loggers(broker, "--alter", "--add-config", "root=WARN"),
                "Completed updating",
            ),
            Operation(
                "kafka-configs",
                f"loggers of {whose}, back",
                loggers(broker, "--alter", "--add-config", "root=INFO"),
                "Completed updating",
            ),
        )
    ),
    Operation(
        "kafka-configs",
        "all brokers, alter",
        said("--entity-type", "brokers", "--entity-default", "--alter", "--add-config", "log.retention.ms=90000000"),
        "Completed updating",
    ),
    Operation(
        "kafka-configs",
        "all brokers, delete",
        said("--entity-type", "brokers", "--entity-default", "--alter", "--delete-config", "log.retention.ms"),
        "Completed updating",
    ),
    Operation("kafka-reassign-partitions", "generate", generate, "Proposed partition reassignment"),
    Operation("kafka-reassign-partitions", "execute", reassignment("--execute", 4, 2, 1), "Successfully started"),
    Operation("kafka-reassign-partitions", "list", said("--list"), r"reassign"),
    Operation(
        "kafka-reassign-partitions", "verify", reassignment("--verify", 4, 2, 1), r"is complete|still in progress"
    ),
    Operation("kafka-reassign-partitions", "cancel", reassignment("--cancel", 4, 2, 1), r"None of|Successfully cancel"),
    Operation(
        "kafka-leader-election",
        "preferred, one partition",
        words("--election-type preferred --topic tools --partition 0"),
        r"Valid replica already elected|Successfully completed",
    ),
    Operation(
        "kafka-leader-election",
        "preferred, all partitions",
        said("--election-type", "preferred", "--all-topic-partitions"),
    ),
    Operation(
        "kafka-leader-election",
        "unclean, one partition",
        words("--election-type unclean --topic tools --partition 0"),
        r"Valid replica already elected",
    ),
    Operation("kafka-delete-records", "delete", delete_records, r"partition: tools-0\s+low_watermark: 2"),
    Operation("kafka-topics", "delete", said("--delete", "--topic", "perf")),
    Operation(
        "kafka-topics", "delete an unknown one", said("--delete", "--topic", "none"), "does not exist", refused=True
    ),
    Operation("kafka-topics", "delete the other", said("--delete", "--topic", "tools")),
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.value))
def test_tools(cluster: MixedCluster, kind: Kind, tmp_path: Path, findings: Findings) -> None:
    """One after the other, since each builds on those before; all of them are run, and what fails is listed."""
    cluster.move_controller(kind)
    wrong = []
    for one in OPERATIONS:
        output = run(cluster, one.tool, *one.arguments(cluster, tmp_path), given=one.given)
        printed = output.out + (output.err if one.refused or one.tool == "kafka-producer-perf-test" else "")
        held = bool(re.search(one.prints, printed.strip())) and (one.refused or output.status == 0)
        held = held and (one.refused or "Exception" not in output.err)
        findings.tool(one.tool, one.what, kind.value, held)
        if not held:
            wrong.append(f"{one.tool}, {one.what}: {output}")
        if one.what in ("create", "create with partitions, factor and config"):
            cluster.await_healed("tools")
    assert wrong == []
