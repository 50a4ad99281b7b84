"""Kafka's command-line tools by the names of its scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.interop.kafka import Output
from tests.interop.mixed import MixedCluster

MAINS: Mapping[str, str] = {
    "kafka-topics": "kafka.admin.TopicCommand",
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-reassign-partitions": "kafka.admin.ReassignPartitionsCommand",
    "kafka-leader-election": "kafka.admin.LeaderElectionCommand",
    "kafka-delete-records": "kafka.admin.DeleteRecordsCommand",
    "kafka-log-dirs": "kafka.admin.LogDirsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "kafka.tools.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-get-offsets": "kafka.tools.GetOffsetShell",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-consumer-groups": "kafka.admin.ConsumerGroupCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-consumer-perf-test": "kafka.tools.ConsumerPerformance",
    "kafka-end-to-end-latency": "kafka.tools.EndToEndLatency",
}
WITHOUT_SERVER = frozenset(
    ["kafka-dump-log", "kafka-producer-perf-test", "kafka-get-offsets", "kafka-end-to-end-latency"]
)


def run(cluster: MixedCluster, tool: str, *arguments: str, given: str = "") -> Output:
    """With the cluster's servers, where the tool takes them as `--bootstrap-server`."""
    servers = () if tool in WITHOUT_SERVER else ("--bootstrap-server", cluster.servers)
    return cluster.kafka.run(MAINS[tool], *servers, *arguments, given=given)


def succeed(cluster: MixedCluster, tool: str, *arguments: str, given: str = "") -> str:
    """What the tool printed. AssertionError unless its exit status is 0."""
    output = run(cluster, tool, *arguments, given=given)
    assert output.status == 0, f"{tool} {' '.join(arguments)}: {output}"
    return output.out


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
