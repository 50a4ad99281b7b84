"""A cluster whose partitions are reassigned: how it is asked, how replicas come into sync, and what is on its way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from controller.core.events import AlterIsrRequested, AlterReassignmentsRequested, ListReassignmentsRequested
from controller.core.leadership import ControllerSettings
from controller.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from controller.protocol.control import AlterIsrPartition, AlterIsrRequest, AlterIsrTopic
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_reassignments, decode_topic_assignment
from statemachines.reassignment import Assignment
from tests.core.deleting import answering
from tests.core.driving import Cluster, Host

Wanted = Mapping[int, "tuple[int, ...] | None"]


def two_of_three(settings: ControllerSettings | None = None) -> tuple[Cluster, Host]:
    """t-0 on brokers 2 and 3, led by 2; t-1 on 3 and 2, led by 3. Broker 1 is the controller, 4 is there too."""
    cluster, host = answering(1, 2, 3, 4, settings=settings)
    cluster.topic("t", {0: (2, 3), 1: (3, 2)})
    cluster.settle()
    return cluster, host


def ask_by_znode(cluster: Cluster, wanted: Mapping[int, Sequence[int]], topic: str = "t") -> None:
    """As kafka-reassign-partitions did."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(target)} for partition, target in wanted.items()
    ]
    cluster.put(paths.REASSIGN_PARTITIONS, json.dumps({"version": 1, "partitions": partitions}).encode())
    cluster.settle()


def put_request(host: Host, wanted: Wanted, topic: str = "t") -> list[Any]:
    asked = tuple(ReassignablePartition(partition, target) for partition, target in wanted.items())
    answers: list[Any] = []
    request = AlterPartitionReassignmentsRequest((ReassignableTopic(topic, asked),))
    host.events.put(AlterReassignmentsRequested(request, answers.append))
    return answers


def ask(cluster: Cluster, host: Host, wanted: Wanted, topic: str = "t") -> dict[int, int]:
    """The errors, by partition."""
    answers = put_request(host, wanted, topic)
    cluster.settle()
    (answer,) = answers
    assert answer.error_code == 0
    return {one.partition_index: one.error_code for of in answer.responses for one in of.partitions}


def listed(cluster: Cluster, host: Host) -> dict[str, Assignment]:
    """What the controller says is on its way."""
    answers: list[Any] = []
    host.events.put(ListReassignmentsRequested(ListPartitionReassignmentsRequest(None), answers.append))
    cluster.settle()
    (answer,) = answers
    assert answer.error_code == 0
    return {
        f"{topic.name}-{one.partition_index}": Assignment(one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }


def assignment(cluster: Cluster, partition: int, topic: str = "t") -> Assignment:
    """What the topic's znode says, and nothing else."""
    row = cluster.server.row(paths.topic(topic))
    assert row is not None
    found = decode_topic_assignment(row.path, row.data)
    return Assignment(found.partitions[partition], found.adding.get(partition, ()), found.removing.get(partition, ()))


def asked(cluster: Cluster) -> dict[tuple[str, int], tuple[int, ...]] | None:
    """What stands in /admin/reassign_partitions; None if there is no such znode."""
    row = cluster.server.row(paths.REASSIGN_PARTITIONS)
    return None if row is None else dict(decode_reassignments(row.path, row.data).replicas)


def put_in_sync(cluster: Cluster, host: Host, partition: int, *brokers: int, topic: str = "t") -> list[Any]:
    """The leader asks for these to be the ISR, from what the state says now."""
    leader, epoch, _, version = cluster.states()[f"{topic}-{partition}"]
    row = cluster.server.row(paths.broker(leader))
    assert row is not None
    change = AlterIsrTopic(topic, (AlterIsrPartition(partition, epoch, brokers, version),))
    answers: list[Any] = []
    host.events.put(AlterIsrRequested(AlterIsrRequest(leader, (change,), row.stat.czxid), answers.append))
    return answers


def in_sync(cluster: Cluster, host: Host, partition: int, *brokers: int, topic: str = "t") -> None:
    answers = put_in_sync(cluster, host, partition, *brokers, topic=topic)
    cluster.settle()
    (answer,) = answers
    assert [one.error_code for of in answer.topics for one in of.partitions] == [0], answer


def led(cluster: Cluster) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Leader and ISR of each partition."""
    return {name: (leader, isr) for name, (leader, _, isr, _) in cluster.states().items()}
