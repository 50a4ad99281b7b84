"""Kafka's tools for groups, and its programs that measure and verify, against brokers of this project alone.

A group of VerifiableConsumer is there while kafka-consumer-groups looks at it. At the end its partition of
`__consumer_offsets` is compacted, and Kafka's kafka-dump-log reads the cleaned segments.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from controller.storage.checkpoints import decode_offsets
from controller.zookeeper.server.server import ZooKeeperServer
from tests.interop.conftest import Findings
from tests.interop.kafka import QUICK_START, Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.test_transactions import begin
from tests.interop.tools import MAINS, run
from tests.interop.workload import segments
from tests.processes import eventually

LIMIT_S = 60.0
RECORDS = 2_000
OFFSETS, STATES = "__consumer_offsets", "__transaction_state"
OURS = {1: Kind.OURS, 2: Kind.OURS}
SETTINGS = {
    "offsets.topic.replication.factor": "2",
    "offsets.topic.segment.bytes": "16384",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.segment.bytes": "16384",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
}


@contextmanager
def verifiable_consumer(cluster: MixedCluster, group: str) -> Iterator[Path]:
    """One that runs: the file with its events, each a line of JSON."""
    words = ("--bootstrap-server", cluster.servers, "--topic", "perf", "--group-id", group)
    options = ("-Xmx200m", *QUICK_START)
    command = cluster.kafka.command("tool", options, MAINS["kafka-verifiable-consumer"], *words, "--enable-autocommit")
    path = cluster.folder / f"{group}.events"

    def start(output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)

    with path.open("wb") as output:
        process = start(output)
        try:
            yield path
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def events(path: Path, name: str) -> list[dict[str, object]]:
    lines = path.read_text().splitlines()
    return [found for line in lines if line.endswith("}") for found in [json.loads(line)] if found["name"] == name]


class Tools:
    """Runs one tool after the other; `wrong` says which have failed."""

    def __init__(self, cluster: MixedCluster, findings: Findings) -> None:
        self._cluster = cluster
        self._findings = findings
        self.wrong: list[str] = []

    def run(self, tool: str, what: str, words: str, prints: str, *, errors: bool = False) -> str:
        """`words` may have `{servers}`; `prints`: a pattern of the output; `errors`: the exit status may be any."""
        output = run(self._cluster, tool, *words.format(servers=self._cluster.servers).split())
        printed = output.out + output.err
        held = bool(re.search(prints, printed)) and (errors or output.status == 0)
        self._findings.tool(tool, what, Kind.OURS.value, held)
        if not held:
            self.wrong.append(f"{tool}, {what}, expected {prints}: {output}")
        return printed

    def groups(self, what: str, words: str, prints: str, *, errors: bool = False) -> str:
        return self.run("kafka-consumer-groups", what, words, prints, errors=errors)


@pytest.mark.timeout(900)
def test_kafkas_tools_for_groups_work_on_our_brokers(kafka: Kafka, tmp_path: Path, findings: Findings) -> None:
    zookeeper = ZooKeeperServer(max_session_timeout_ms=60_000)
    with MixedCluster(kafka, tmp_path, SETTINGS, kinds=OURS, zookeeper=zookeeper) as cluster:
        begin(cluster)
        cluster.create("perf", [(1, 2), (2, 1)])
        tools = Tools(cluster, findings)
        measure(tools)
        look_at_a_group(cluster, tools)
        change_a_group(tools)
        dump_compacted(cluster, tools)
        assert tools.wrong == [], "\n".join(tools.wrong)


def measure(tools: Tools) -> None:
    """The programs that write, read and time records."""
    tools.run(
        "kafka-producer-perf-test",
        "transactions (--transactional-id)",
        f"--topic perf --num-records {RECORDS} --record-size 100 --throughput -1 --transactional-id perf"
        " --transaction-duration-ms 50 --producer-props acks=all bootstrap.servers={servers}",
        f"{RECORDS} records sent",
    )
    tools.run(
        "kafka-verifiable-producer",
        "acks=all",
        "--topic perf --max-messages 500 --acks -1",
        r'"acked":500',
        errors=True,
    )
    tools.run(
        "kafka-consumer-perf-test",
        "subscribe and read",
        f"--topic perf --messages {RECORDS} --group measured --timeout 30000",
        rf"(?m)^\d{{4}}-.*, {RECORDS + 500}, |, 2[0-9]{{3}}, ",
    )
    tools.run(
        "kafka-end-to-end-latency", "200 records, acks=all", "{servers} perf 200 all 100", r"Percentiles: 50th = \d+"
    )


def look_at_a_group(cluster: MixedCluster, tools: Tools) -> None:
    """While VerifiableConsumer is a member, and after it has left."""
    with verifiable_consumer(cluster, "verified") as path:
        eventually(lambda: bool(events(path, "partitions_assigned")), "partitions are assigned", LIMIT_S)
        read = RECORDS + 500

        def consumed() -> bool:
            return sum(int(str(one["count"])) for one in events(path, "records_consumed")) >= read

        eventually(consumed, f"{read} records are consumed", LIMIT_S)

        def committed() -> bool:
            asked = [ConsumerGroupTopicPartitions("verified", [TopicPartition("perf", one) for one in (0, 1)])]
            found = cluster.ask(lambda admin: admin.list_consumer_group_offsets(asked)["verified"])
            return all(one.offset >= 0 for one in found.topic_partitions)

        eventually(committed, "auto-commit has committed, for the first time after 5 s", LIMIT_S)
        tools.groups("list", "--list", r"(?m)^verified$")
        tools.groups("list with states", "--list --state", r"(?m)^verified\s+Stable")
        tools.groups("list, by state", "--list --state Empty", r"(?m)^measured\s+Empty")
        tools.groups(
            "describe",
            "--describe --group verified",
            r"verified\s+perf\s+0\s+\d+\s+\d+\s+\d+\s+consumer-verified-\S+\s+/127\.0\.0\.1\s",
        )
        tools.groups("describe offsets", "--describe --offsets --group verified", r"verified\s+perf\s+1\s+\d+")
        members = r"verified\s+\S+\s+/127\.0\.0\.1\s+\S+\s+2\s+perf\(0,1\)"
        tools.groups("describe members", "--describe --members --verbose --group verified", members)
        tools.groups("describe state", "--describe --state --group verified", r"verified\s+\S+.*range\s+Stable\s+1")
        tools.groups("describe all groups", "--describe --all-groups", r"(?s)verified.*measured|measured.*verified")
        tools.groups(
            "reset offsets of a group with members",
            "--reset-offsets --group verified --topic perf --to-earliest --execute",
            "can only be reset if the group 'verified' is inactive",
            errors=True,
        )
        tools.groups("delete a group with members", "--delete --group verified", "GroupNotEmptyException", errors=True)
        tools.groups(
            "delete offsets of a topic with members",
            "--delete-offsets --group verified --topic perf",
            "GroupSubscribedToTopicException|subscribed to",
            errors=True,
        )
    findings = events(path, "shutdown_complete")
    tools.run("kafka-topics", "list after the group", "--list", "perf")
    if not findings:
        tools.wrong.append(f"VerifiableConsumer has not shut down: {path.read_text()[-500:]}")


def change_a_group(tools: Tools) -> None:
    reset = "--reset-offsets --group verified --topic perf"
    tools.groups("describe, no members", "--describe --group verified", "has no active members")
    for what, how in (
        ("to earliest, dry run", "--to-earliest --dry-run"),
        ("to latest", "--to-latest --execute"),
        ("to offset", "--to-offset 10 --execute"),
        ("shift by", "--shift-by -3 --execute"),
        ("to datetime", "--to-datetime 2020-01-01T00:00:00.000 --execute"),
        ("by duration", "--by-duration PT1H --execute"),
        ("to current", "--to-current --execute"),
    ):
        tools.groups(f"reset offsets, {what}", f"{reset} {how}", r"verified\s+perf\s+0\s+\d+")
    tools.groups("reset offsets, export", f"{reset} --to-offset 7 --export --dry-run", r"(?m)^\"?perf\"?,0,7")
    tools.groups("reset offsets, to offset 5", f"{reset}:0 --to-offset 5 --execute", r"verified\s+perf\s+0\s+5")
    tools.groups("describe the offset", "--describe --group verified", r"verified\s+perf\s+0\s+5\s")
    deleted = r"(?s)Request succeed.*perf\s+0\s+Successful"
    tools.groups("delete offsets", "--delete-offsets --group verified --topic perf:0", deleted)
    tools.groups("delete", "--delete --group measured", r"Deletion of requested consumer groups \('measured'\)")
    tools.groups(
        "delete an unknown one", "--delete --group none", "GroupIdNotFoundException|does not exist", errors=True
    )
    listed = tools.groups("list after deletion", "--list", r"(?m)^verified$")
    if "measured" in listed:
        tools.wrong.append(f"a deleted group is listed: {listed}")


def dump_compacted(cluster: MixedCluster, tools: Tools) -> None:
    """Commit until a segment is full and cleaned; Kafka's tool decodes what is left."""
    for topic, decoder, prints in (
        (OFFSETS, "--offsets-decoder", r"key: (\{?.*verified|offset_commit::group=verified)"),
        (STATES, "--transaction-log-decoder", r"key: transaction_metadata::transactionalId=perf payload: "),
    ):
        leader = next(iter(cluster.assignment(topic)[0]))
        for _ in range(200):
            if cleaned_to(cluster, leader, topic) > 0:
                break
            write_more(cluster, topic)
        else:
            tools.wrong.append(f"{topic} is not compacted")
        files = ",".join(map(str, segments(cluster, leader, topic, 0)))
        dumped = tools.run("kafka-dump-log", f"{topic}, compacted", f"--files {files} {decoder}", prints)
        if "isvalid: true" not in dumped or "isvalid: false" in dumped:
            tools.wrong.append(f"kafka-dump-log finds a batch of {topic} unsound")


def cleaned_to(cluster: MixedCluster, broker: int, topic: str) -> int:
    path = cluster.data_dir(broker) / "cleaner-offset-checkpoint"
    return decode_offsets(str(path), path.read_bytes()).get((topic, 0), 0) if path.exists() else 0


def write_more(cluster: MixedCluster, topic: str) -> None:
    """Commits, in transactions: both internal topics grow."""
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.servers, "transactional.id": "perf", "log_level": 2}
    )
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.servers, "group.id": "verified", "log_level": 2})
    producer.init_transactions(LIMIT_S)
    for number in range(20):
        producer.begin_transaction()
        offsets = [confluent_kafka.TopicPartition("perf", index, number) for index in (0, 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), LIMIT_S)
        producer.commit_transaction(LIMIT_S)
    consumer.close()
