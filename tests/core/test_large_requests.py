"""No request to a controller makes one to ZooKeeper that no server takes: split, or refused before anything is done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.core.events import AlterReassignmentsRequested, CreatePartitionsRequested, CreateTopicsRequested
from controller.core.leadership import ControllerSettings
from controller.protocol.admin import AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from controller.protocol.errors import ErrorCode
from controller.trace import ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, decode_reassignments, decode_topic_assignment
from controller.zookeeper.row_writes import ZNODE_BYTES_MAX
from tests.core.driving import Cluster, Host


def sound(host: Host) -> None:
    assert host.failures() == []
    assert host.trace.of(ControllerResigned) == []
    assert host.controller.active


def create(cluster: Cluster, host: Host, topic: CreatableTopic, *, validate_only: bool = False) -> tuple[int, str]:
    answers: list[Any] = []
    host.events.put(CreateTopicsRequested(CreateTopicsRequest((topic,), 1_000, validate_only), 5, answers.append))
    cluster.settle()
    result = answers[0].topics[0]
    return result.error_code, result.error_message or ""


def reassign(cluster: Cluster, host: Host, wanted: dict[str, dict[int, tuple[int, ...]]]) -> dict[int, int]:
    """How many partitions were answered with each error."""
    answers: list[Any] = []
    topics = tuple(
        ReassignableTopic(name, tuple(ReassignablePartition(one, target) for one, target in partitions.items()))
        for name, partitions in wanted.items()
    )
    host.events.put(AlterReassignmentsRequested(AlterPartitionReassignmentsRequest(topics), answers.append))
    cluster.settle()
    counts: dict[int, int] = {}
    for topic in answers[0].responses:
        for one in topic.partitions:
            assert bool(one.error_message) == bool(one.error_code)
            counts[one.error_code] = counts.get(one.error_code, 0) + 1
    return counts


def put_topic(cluster: Cluster, name: str, replicas: list[int], more: int, topic_id: str | None = "") -> None:
    """A topic of one partition whose znode has so many bytes in a field that is not known, and is kept."""
    fields = {"partitions": {"0": replicas}, "version": 3, "more": "x" * more}
    cluster.put(paths.topic(name), json.dumps(fields | ({"topic_id": topic_id} if topic_id else {})).encode())


def held(cluster: Cluster, name: str) -> TopicAssignment:
    row = cluster.server.row(paths.topic(name))
    assert row is not None
    return decode_topic_assignment(row.path, row.data)


def test_topic_ids_for_large_topics_are_more_than_one_request() -> None:
    """1.6 MB in all; the last has no room for one."""
    cluster = Cluster()
    for number in range(40):
        put_topic(cluster, f"topic-{number}", [1], 40_000, None)
    put_topic(cluster, "full", [1], ZNODE_BYTES_MAX - 60, None)
    host = cluster.host(1)
    sound(host)
    assert all(held(cluster, f"topic-{number}").topic_id is not None for number in range(40))
    assert held(cluster, "full").topic_id is None
    assert len(cluster.states()) == 41
    cluster.check()


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("partitions", [200_000, 2**31 - 1])
def test_partitions_that_no_znode_holds_are_refused(partitions: int, validate_only: bool) -> None:
    cluster = Cluster()
    host = cluster.host(1)
    cluster.topic("t", {0: (1,)})
    cluster.settle()
    error, message = create(cluster, host, CreatableTopic("big", partitions, 1), validate_only=validate_only)
    assert error == ErrorCode.INVALID_PARTITIONS
    assert f"{partitions} partitions take more than {8 * partitions} bytes" in message
    assert f"expected {ZNODE_BYTES_MAX} at most" in message
    answers: list[Any] = []
    asked = CreatePartitionsRequest((CreatePartitionsTopic("t", partitions),), 1_000, validate_only)
    host.events.put(CreatePartitionsRequested(asked, answers.append))
    cluster.settle()
    assert answers[0].results[0].error_code == ErrorCode.INVALID_PARTITIONS
    assert cluster.server.children(paths.BROKER_TOPICS) == ("t",)
    sound(host)


def test_an_assignment_a_config_and_a_factor_that_no_znode_holds_are_refused() -> None:
    cluster = Cluster()
    host = cluster.host(1)
    replicas = tuple(range(2**31 - 127, 2**31 - 1))
    many = tuple(CreatableReplicaAssignment(number, replicas) for number in range(1_000))
    assert create(cluster, host, CreatableTopic("big", -1, -1, many))[0] == ErrorCode.INVALID_PARTITIONS
    wide = (CreatableReplicaAssignment(0, tuple(range(130))),)
    assert create(cluster, host, CreatableTopic("wide", -1, -1, wide))[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    config = (CreatableTopicConfig("follower.replication.throttled.replicas", ",".join(["1:1"] * 300_000)),)
    assert create(cluster, host, CreatableTopic("set", 1, 1, (), config))[0] == ErrorCode.INVALID_CONFIG
    assert create(cluster, host, CreatableTopic("many", 1, 32_767))[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.server.children(paths.BROKER_TOPICS) == ()
    assert cluster.server.children(paths.CONFIG_TOPICS) == ()
    sound(host)


def test_reassignments_of_large_topics_are_more_than_one_request() -> None:
    """Asked for by the znode first, so that the first request takes that out too (KAFKA-9089)."""
    cluster = Cluster()
    cluster.register(2, 3, 4)
    for number in range(40):
        put_topic(cluster, f"topic-{number}", [2, 1], 40_000)
    host = cluster.host(1, ControllerSettings(reassignments_in_cluster=1))
    host.answering = True
    asked = [{"topic": f"topic-{number}", "partition": 0, "replicas": [3, 1]} for number in range(40)]
    cluster.put(paths.REASSIGN_PARTITIONS, json.dumps({"version": 1, "partitions": asked}).encode())
    cluster.settle()
    assert held(cluster, "topic-0").adding == {0: (3,)}, "and the others wait"
    # Another order gains no replica, and need not wait.
    assert reassign(cluster, host, {f"topic-{number}": {0: (1, 2)} for number in range(1, 40)}) == {0: 39}
    assert [held(cluster, f"topic-{number}").partitions for number in range(1, 40)] == [{0: (1, 2)}] * 39
    row = cluster.server.row(paths.REASSIGN_PARTITIONS)
    assert row is not None
    assert list(decode_reassignments(row.path, row.data).replicas) == [("topic-0", 0)]
    sound(host)


def test_reassignments_that_wait_and_do_not_fit_are_refused() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", dict.fromkeys(range(1000), (2, 1)))
    host = cluster.host(1, ControllerSettings(reassignments_in_cluster=1))
    host.answering = True
    first = {"topic": "t", "partition": 0, "replicas": [3, 1]}
    fields = {"version": 1, "partitions": [first], "more": "x" * (ZNODE_BYTES_MAX - 20_000)}
    cluster.put(paths.REASSIGN_PARTITIONS, json.dumps(fields).encode())
    cluster.settle()
    assert held(cluster, "t").adding == {0: (3,)}
    wanted: dict[int, tuple[int, ...]] = dict.fromkeys(range(1, 1_000), (3, 1))
    assert reassign(cluster, host, {"t": wanted}) == {int(ErrorCode.POLICY_VIOLATION): 999}
    row = cluster.server.row(paths.REASSIGN_PARTITIONS)
    assert row is not None
    assert len(decode_reassignments(row.path, row.data).replicas) == 1
    assert reassign(cluster, host, {"t": dict.fromkeys(range(1, 100), (3, 1))}) == {0: 99}
    row = cluster.server.row(paths.REASSIGN_PARTITIONS)
    assert row is not None
    assert len(decode_reassignments(row.path, row.data).replicas) == 100
    sound(host)


def test_a_reassignment_that_its_topics_znode_could_not_hold_is_refused() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    put_topic(cluster, "t", [2, 1], ZNODE_BYTES_MAX - 120)
    put_topic(cluster, "u", [2, 1], 10)
    host = cluster.host(1)
    host.answering = True
    assert reassign(cluster, host, {"t": {0: (3, 1)}, "u": {0: (3, 1)}}) == {0: 1, int(ErrorCode.POLICY_VIOLATION): 1}
    assert (held(cluster, "t").adding, held(cluster, "u").adding) == ({}, {0: (3,)})
    sound(host)


def test_a_request_in_zookeeper_that_a_topics_znode_could_not_hold_is_taken_out() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    put_topic(cluster, "t", [2, 1], ZNODE_BYTES_MAX - 120)
    put_topic(cluster, "u", [2, 1], 10)
    host = cluster.host(1)
    host.answering = True
    asked = [{"topic": name, "partition": 0, "replicas": [3, 1]} for name in ("t", "u")]
    cluster.put(paths.REASSIGN_PARTITIONS, json.dumps({"version": 1, "partitions": asked}).encode())
    cluster.settle()
    assert (held(cluster, "t").adding, held(cluster, "u").adding) == ({}, {0: (3,)})
    row = cluster.server.row(paths.REASSIGN_PARTITIONS)
    assert row is not None
    assert list(decode_reassignments(row.path, row.data).replicas) == [("u", 0)]
    assert any("topic t is not reassigned: its znode would have" in note for note in host.notes("warning"))
    sound(host)
