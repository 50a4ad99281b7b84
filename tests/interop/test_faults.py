"""Mixed clusters that are disturbed while records are written, under either controller: nothing that was acknowledged
is lost or there twice, replicas are the same bytes, and every segment is sound for Kafka's DumpLogSegments."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.interop.conftest import Findings
from tests.interop.mixed import KINDS, Kind, MixedCluster
from tests.interop.test_shutdowns import complaints
from tests.interop.tools import succeed, written
from tests.interop.workload import Writer, await_identical, judge, read, segments
from tests.processes import eventually

ASSIGNMENT = ((1, 3, 2), (3, 1, 4), (2, 4, 3), (4, 2, 1))
BY_KIND = pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.value))


def restart(cluster: MixedCluster, broker: int, *topics: str) -> None:
    cluster.start_brokers([broker])
    cluster.await_healed(*topics)


def dump(cluster: MixedCluster, topic: str) -> int:
    """How many segments Kafka's tool finds sound, of every replica."""
    paths = [
        str(path)
        for partition, brokers in cluster.assignment(topic).items()
        for broker in brokers
        for path in segments(cluster, broker, topic, partition)
    ]
    printed = succeed(cluster, "kafka-dump-log", "--deep-iteration", "--files", ",".join(paths))
    assert "isvalid: false" not in printed
    assert printed.count("Starting offset:") == len(paths)
    return len(paths)


def settle(cluster: MixedCluster, writer: Writer, findings: Findings, what: str) -> None:
    """The end of each test: everything is judged."""
    writer.stop()
    cluster.await_healed(writer.topic)
    count = judge(cluster, writer)
    await_identical(cluster, writer.topic)
    sound = dump(cluster, writer.topic)
    assert complaints(cluster) == []
    findings.figure(f"{what}: {count:,} acknowledged records, none lost, none twice; {sound} segments sound")


@BY_KIND
@pytest.mark.timeout(900)
def test_kills(cluster: MixedCluster, kind: Kind, findings: Findings) -> None:
    """SIGKILL of each broker in turn, the controller among them."""
    cluster.move_controller(kind)
    topic = f"kills-{kind.value}"
    cluster.create(topic, ASSIGNMENT, min_insync_replicas="2")
    writer = Writer(cluster, topic)
    for broker in KINDS:
        writer.advances()
        cluster.brokers[broker].kill()
        writer.advances()
        restart(cluster, broker, topic)
    settle(cluster, writer, findings, f"kills, controller first {kind.value}")


@BY_KIND
@pytest.mark.timeout(900)
def test_rolling_restart(cluster: MixedCluster, kind: Kind, findings: Findings) -> None:
    """A controlled shutdown of each broker in turn; none is held back, since ISRs are full."""
    cluster.move_controller(kind)
    topic = f"rolling-{kind.value}"
    cluster.create(topic, ASSIGNMENT * 3, min_insync_replicas="2")
    writer = Writer(cluster, topic)
    for broker in KINDS:
        writer.advances()
        began = time.monotonic()
        assert cluster.brokers[broker].stop(60) in (0, 143)
        findings.figure(
            f"controlled shutdown of broker {broker} ({KINDS[broker].value}): {time.monotonic() - began:.1f} s"
        )
        writer.advances()
        restart(cluster, broker, topic)
    settle(cluster, writer, findings, f"rolling restart, controller first {kind.value}")


@BY_KIND
@pytest.mark.timeout(900)
def test_administration(cluster: MixedCluster, kind: Kind, tmp_path: Path, findings: Findings) -> None:
    """Reassignments across the kinds, preferred elections, DeleteRecords, and topics that are deleted meanwhile."""
    cluster.move_controller(kind)
    topic, other = f"administered-{kind.value}", f"deleted-{kind.value}"
    cluster.create(topic, ASSIGNMENT, min_insync_replicas="2")
    writer = Writer(cluster, topic)
    for turn in range(3):
        writer.advances()
        cluster.create(other, ASSIGNMENT)
        moved = {partition: [broker % 4 + 1 for broker in ids] for partition, ids in cluster.assignment(topic).items()}
        rows = [{"topic": topic, "partition": partition, "replicas": ids} for partition, ids in moved.items()]
        plan = written(tmp_path / f"{turn}.json", json.dumps({"version": 1, "partitions": rows}))
        succeed(cluster, "kafka-reassign-partitions", "--reassignment-json-file", plan, "--execute")
        eventually(
            lambda moved=moved: cluster.assignment(topic) == {key: tuple(ids) for key, ids in moved.items()},  # type: ignore[misc]
            "the replicas have moved",
            120,
        )
        succeed(cluster, "kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
        cluster.await_healed(topic)
        leaders = {partition: state.leader for partition, state in cluster.states(topic).items() if state is not None}
        assert leaders == {partition: ids[0] for partition, ids in moved.items()}
        cluster.delete(other)
        eventually(lambda: not any(segments(cluster, broker, other, 0) for broker in KINDS), "its files are gone", 120)
    settle(cluster, writer, findings, f"administration, controller first {kind.value}")
    before = read(cluster, topic, 0)
    half = TopicPartition(topic, 0, len(before) // 2)
    cluster.ask(lambda admin: admin.delete_records([half])[half])
    assert len(read(cluster, topic, 0)) < len(before)


@BY_KIND
@pytest.mark.timeout(900)
def test_unclean_election_across_the_kinds(cluster: MixedCluster, kind: Kind) -> None:
    """The leader of one kind dies alone in the ISR, and a replica of the other leads; both end as the same bytes."""
    cluster.move_controller(kind)
    leader, follower = (1, 3) if kind is Kind.KAFKAS else (4, 2)
    topic = f"unclean-{kind.value}"
    cluster.create(topic, [(leader, follower)], min_insync_replicas="1")
    writer = Writer(cluster, topic, idempotent=False)
    writer.advances()
    cluster.brokers[follower].kill()
    writer.advances(400)
    writer.stop()
    cluster.brokers[leader].kill()
    cluster.start_brokers([follower])
    eventually(lambda: _leader(cluster, topic) == -1, "nobody leads", 60)
    succeed(cluster, "kafka-leader-election", "--election-type", "unclean", "--topic", topic, "--partition", "0")
    eventually(lambda: _leader(cluster, topic) == follower, "the follower leads", 60)
    cluster.start_brokers([leader])
    cluster.await_healed(topic)
    await_identical(cluster, topic)
    assert dump(cluster, topic) == 2


def _leader(cluster: MixedCluster, topic: str) -> int | None:
    state = cluster.state(topic, 0)
    return None if state is None else state.leader
