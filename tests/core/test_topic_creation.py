"""CreateTopics and CreatePartitions: what is written, and what is refused with which error."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.events import CreatePartitionsRequested, CreateTopicsRequested
from controller.core.leadership import ControllerSettings
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
)
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import TopicWrites
from controller.zookeeper.codecs import decode_config, decode_topic_assignment
from controller.zookeeper.operations import BadVersion, NoNode
from tests.core.driving import Cluster, Host
from tests.core.test_broker_changes import cluster_of


def create(cluster: Cluster, host: Host, *topics: CreatableTopic, validate_only: bool = False) -> list[Any]:
    answers: list[Any] = []
    request = CreateTopicsRequest(topics, validate_only=validate_only)
    host.events.put(CreateTopicsRequested(request, 7, answers.append))
    cluster.settle()
    (answer,) = answers
    return list(answer.topics)


def expand(
    cluster: Cluster, host: Host, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[CreatePartitionsTopicResult]:
    answers: list[Any] = []
    host.events.put(CreatePartitionsRequested(CreatePartitionsRequest(topics, 1_000, validate_only), answers.append))
    cluster.settle()
    (answer,) = answers
    return list(answer.results)


def test_a_topic_is_placed_written_and_comes_to_life() -> None:
    cluster, host = cluster_of(1, 2, 3)
    configs = (CreatableTopicConfig("retention.ms", "1000"), CreatableTopicConfig("cleanup.policy", "compact"))
    (result,) = create(cluster, host, CreatableTopic("t", 6, 2, configs=configs))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 6, 2)
    assert [(one.name, one.value) for one in result.configs] == [
        ("retention.ms", "1000"),
        ("cleanup.policy", "compact"),
    ]
    row = cluster.server.row(paths.topic("t"))
    config = cluster.server.row(paths.config_topic("t"))
    assert row is not None
    assert config is not None
    assignment = decode_topic_assignment(row.path, row.data)
    assert sorted(replicas[0] for replicas in assignment.partitions.values()) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(replicas)) == 2 for replicas in assignment.partitions.values())
    assert decode_config(config.path, config.data).config == {"retention.ms": "1000", "cleanup.policy": "compact"}
    states = cluster.states()
    assert {f"t-{one}": (replicas[0], 0, replicas, 0) for one, replicas in assignment.partitions.items()} == states
    cluster.check()


def test_replicas_are_spread_over_racks() -> None:
    cluster = Cluster()
    cluster.register(2, rack="a")
    cluster.register(3, 4, rack="b")
    host = cluster.host(1, rack="a")
    create(cluster, host, CreatableTopic("t", 12, 2))
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert {tuple(sorted(racks[one] for one in state[2])) for state in cluster.states().values()} == {("a", "b")}


def test_defaults_stand_in_for_what_is_not_said() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    host = cluster.host(1, ControllerSettings(num_partitions=4, default_replication_factor=3))
    (result,) = create(cluster, host, CreatableTopic("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 3)
    assert len(cluster.states()) == 4


def test_an_explicit_assignment_is_kept_as_it_is() -> None:
    cluster, host = cluster_of(1, 2)
    explicit = (CreatableReplicaAssignment(1, (2, 1)), CreatableReplicaAssignment(0, (1, 2)))
    (result,) = create(cluster, host, CreatableTopic("t", -1, -1, assignments=explicit))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 2)
    assert cluster.states() == {"t-0": (1, 0, (1, 2), 0), "t-1": (2, 0, (2, 1), 0)}


def assigned(*replicas: tuple[int, ...], first: int = 0) -> tuple[CreatableReplicaAssignment, ...]:
    return tuple(CreatableReplicaAssignment(first + place, one) for place, one in enumerate(replicas))


REFUSED_TOPICS = [
    (CreatableTopic("there", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
    (CreatableTopic("damaged", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
    (CreatableTopic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreatableTopic("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreatableTopic("a/b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreatableTopic("ü", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreatableTopic("a" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreatableTopic("dotted_name", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (CreatableTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
    (CreatableTopic("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
    (CreatableTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    (CreatableTopic("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    (CreatableTopic("t", 1, -1, assignments=assigned((1,))), ErrorCode.INVALID_REQUEST),
    (CreatableTopic("t", -1, -1, assignments=assigned((1,), first=1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreatableTopic("t", -1, -1, assignments=assigned((1, 1))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreatableTopic("t", -1, -1, assignments=assigned((1,), (1, 2))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreatableTopic("t", -1, -1, assignments=assigned(())), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreatableTopic("t", -1, -1, assignments=assigned((-1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (CreatableTopic("t", 1, 1, configs=(CreatableTopicConfig("no.such", "1"),)), ErrorCode.INVALID_CONFIG),
    (
        CreatableTopic("t", 1, 1, configs=(CreatableTopicConfig("unclean.leader.election.enable", "maybe"),)),
        ErrorCode.INVALID_CONFIG,
    ),
    (CreatableTopic("t", 1, 1, configs=(CreatableTopicConfig("retention.ms", None),)), ErrorCode.INVALID_REQUEST),
]


REFUSED_TOPICS += [
    (CreatableTopic("t", 1, 126), ErrorCode.INVALID_REPLICATION_FACTOR),
    (CreatableTopic("t", 1, 127), ErrorCode.INVALID_REPLICATION_FACTOR),
    (CreatableTopic("t", -1, 1, assignments=assigned((1,))), ErrorCode.INVALID_REQUEST),
]
WORDS = [
    "Topic 'there' already exists.",
    "Topic 'damaged' already exists.",
    "Topic name is illegal, it can't be empty",
    'Topic name cannot be "." or ".."',
    "it contains a character other than",
    "it contains a character other than",
    "it can't be longer than 249 characters",
    "Topic 'dotted_name' collides with existing topics: dotted.name",
    "0 partitions: expected 1 or more",
    "-2 partitions: expected 1 or more",
    "replication factor 0: expected 1 or more",
    "replication factor 3 is larger than the 2 available brokers",
    "Both numPartitions or replicationFactor and replicasAssignments were set.",
    "partitions should be a consecutive 0-based integer sequence",
    "Bad or duplicate replicas: [1, 1] names a broker twice",
    "All partitions should have the same number of replicas",
    "Bad or duplicate replicas: it has no replicas",
    "Bad or duplicate replicas: [-1]: expected broker ids",
    "Unknown topic config name: no.such",
    "Invalid value maybe for configuration unclean.leader.election.enable",
    "Null value not supported for topic configs",
    "replication factor 126 is larger than the 2 available brokers",
    "replication factor 127: expected 126 at most",
    "Both numPartitions or replicationFactor and replicasAssignments were set.",
]
"""What each is refused with."""


def scene() -> tuple[Cluster, Host]:
    cluster, host = cluster_of(1, 2)
    cluster.topic("there", {0: (1, 2)})
    cluster.topic("dotted.name", {0: (1,)})
    cluster.put(paths.topic("damaged"), b"{")
    cluster.settle()
    return cluster, host


@pytest.mark.parametrize(
    ("topic", "error", "words"),
    [(topic, error, words) for (topic, error), words in zip(REFUSED_TOPICS, WORDS, strict=True)],
)
def test_a_topic_that_cant_be_is_refused_and_the_one_beside_it_made(
    topic: CreatableTopic, error: ErrorCode, words: str
) -> None:
    cluster, host = scene()
    before = cluster.server.children(paths.BROKER_TOPICS) or ()
    refused, made = create(cluster, host, topic, CreatableTopic("beside", 1, 2))
    assert (refused.name, refused.error_code) == (topic.name, error)
    assert words in refused.error_message
    assert made.error_code == 0
    assert cluster.server.children(paths.BROKER_TOPICS) == tuple(sorted((*before, "beside")))


def test_only_validated_nothing_is_written() -> None:
    cluster, host = scene()
    zxid = cluster.server.zxid
    good, bad = create(cluster, host, CreatableTopic("t", 2, 2), CreatableTopic("there", 1, 1), validate_only=True)
    assert isinstance(good, CreatableTopicResult)
    assert (good.error_code, good.num_partitions, bad.error_code) == (0, 2, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert [
        result.error_code for result in expand(cluster, host, CreatePartitionsTopic("there", 4), validate_only=True)
    ] == [0]
    assert cluster.server.zxid == zxid


def test_a_topic_that_another_makes_first_exists() -> None:
    """Its znode is there, its event is still on the way."""
    cluster, host = scene()
    answers: list[Any] = []
    host.events.put(CreateTopicsRequested(CreateTopicsRequest((CreatableTopic("t", 1, 1),)), 7, answers.append))
    cluster.topic("t", {0: (2,)})
    cluster.settle()
    assert answers[0].topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
    (again,) = create(cluster, host, CreatableTopic("t", 1, 1))
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    cluster.topic_config("there", retention_ms="5")


def test_partitions_are_added_and_the_rest_of_the_znode_kept() -> None:
    cluster, host = scene()
    row = cluster.server.row(paths.topic("there"))
    assert row is not None
    assert row.data is not None
    cluster.put(row.path, row.data[:-1] + b',"more":1}')
    placed, explicit = expand(
        cluster,
        host,
        CreatePartitionsTopic("there", 3),
        CreatePartitionsTopic("dotted.name", 2, (CreatePartitionsAssignment((2,)),)),
    )
    assert (placed.error_code, explicit.error_code) == (0, 0)
    row = cluster.server.row(paths.topic("there"))
    assert row is not None
    assert row.data is not None
    assert row.data.endswith(b'"more":1}')
    known = decode_topic_assignment(row.path, row.data).partitions
    assert known[0] == (1, 2)
    assert sorted(known) == [0, 1, 2]
    assert cluster.states()["dotted.name-1"] == (2, 0, (2,), 0)
    assert {f"there-{partition}" for partition in range(3)} <= set(cluster.states())


@pytest.mark.parametrize(
    ("topic", "error", "words"),
    [
        (
            CreatePartitionsTopic("nowhere", 2),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'nowhere' does not exist.",
        ),
        (CreatePartitionsTopic("there", 1), ErrorCode.INVALID_PARTITIONS, "Topic already has 1 partitions."),
        (
            CreatePartitionsTopic("there", 0),
            ErrorCode.INVALID_PARTITIONS,
            "has 1 partitions, which is higher than the requested 0.",
        ),
        (
            CreatePartitionsTopic("there", 3, (CreatePartitionsAssignment((1, 2)),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Increasing the number of partitions by 2 but 1 assignments provided.",
        ),
        (
            CreatePartitionsTopic("there", 2, (CreatePartitionsAssignment((1,)),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All partitions should have the same number of replicas",
        ),
        (
            CreatePartitionsTopic("there", 2, (CreatePartitionsAssignment((1, 9)),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unknown broker(s) in replica assignment: [9].",
        ),
        (CreatePartitionsTopic("damaged", 2), ErrorCode.UNKNOWN_SERVER_ERROR, "/brokers/topics/damaged"),
        (CreatePartitionsTopic("moving", 2), ErrorCode.REASSIGNMENT_IN_PROGRESS, "Topic 'moving' is being reassigned."),
        (
            CreatePartitionsTopic("gap", 3),
            ErrorCode.INVALID_PARTITIONS,
            "Topic 'gap' is not numbered from 0 without a gap.",
        ),
    ],
)
def test_partitions_that_cant_be_are_refused(topic: CreatePartitionsTopic, error: ErrorCode, words: str) -> None:
    cluster, host = scene()
    cluster.put(
        paths.topic("moving"),
        b'{"partitions":{"0":[1,2]},"adding_replicas":{"0":[2]},"removing_replicas":{},"version":3}',
    )
    cluster.topic("gap", {0: (1,), 2: (1,)})
    cluster.settle()
    zxid = cluster.server.zxid
    (refused,) = expand(cluster, host, topic)
    assert (refused.name, refused.error_code) == (topic.name, error)
    assert words in (refused.error_message or "")
    assert cluster.server.zxid == zxid


@pytest.mark.parametrize("error", [BadVersion, NoNode])
def test_partitions_of_a_topic_that_changes_meanwhile_are_refused(
    error: type[BadVersion | NoNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(self: TopicWrites, topic: str, data: bytes, version: int) -> None:
        raise error(paths.topic(topic))

    cluster, host = cluster_of(1, 2)
    cluster.topic("t", {0: (1,)})
    cluster.settle()
    monkeypatch.setattr(TopicWrites, "add_partitions", changed)
    (result,) = expand(cluster, host, CreatePartitionsTopic("t", 2))
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert "changed or deleted" in (result.error_message or "")
    cluster.check()
