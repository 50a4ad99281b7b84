"""The tree of a large cluster, written into a ZooKeeper for `camerlengo bench`: topics, their partitions' states, and
registrations that no session owns. Batches of fenced writes, several in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.clock import Clock
from controller.core.leadership import Won, elect
from controller.core.queue import EventQueue
from controller.zookeeper import paths
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import (
    BrokerEndpoint,
    BrokerRegistration,
    PartitionState,
    TopicAssignment,
    encode_broker_registration,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import Create

WRITING_LIMIT_S = 600.0
SESSION_TIMEOUT_MS = 30_000
TOPIC_ID = "AAAAAAAAQACAAAAAAAAAAQ"


@dataclass(frozen=True, slots=True)
class TreeSize:
    """`partitions` in all, dealt out evenly over `topics`; each has `replication_factor` of `brokers` replicas."""

    topics: int
    partitions: int
    replication_factor: int
    brokers: int

    def partitions_of(self, topic: int) -> int:
        return self.partitions // self.topics + (topic < self.partitions % self.topics)

    def names(self) -> list[tuple[str, int]]:
        """(topic, partition) of every partition."""
        sizes = [(f"topic-{topic:06d}", self.partitions_of(topic)) for topic in range(self.topics)]
        return [(name, partition) for name, size in sizes for partition in range(size)]


def write_tree(hosts: str, size: TreeSize, clock: Clock) -> None:
    """Raises what a write raises, and TimeoutError."""
    client = ZooKeeperClient(KazooConnection(hosts, clock, SESSION_TIMEOUT_MS), clock, EventQueue(1))
    try:
        wait(client.start(), WRITING_LIMIT_S)
        run(BrokerWrites(client).ensure_persistent_paths(), WRITING_LIMIT_S)
        outcome = run(elect(client, 1, clock), WRITING_LIMIT_S)
        assert isinstance(outcome, Won), outcome
        run(client.create_rows(outcome.leadership, list(_znodes(size))), WRITING_LIMIT_S)
    finally:
        wait(client.close(), WRITING_LIMIT_S)


def _znodes(size: TreeSize) -> Iterator[Create]:
    """Parents before their children."""
    for broker in range(1, size.brokers + 1):
        endpoint = BrokerEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9091 + broker)
        data = encode_broker_registration(BrokerRegistration(broker, (endpoint,)))
        yield Create(paths.broker(broker), data)
    for topic in range(size.topics):
        name = f"topic-{topic:06d}"
        assignment = {partition: _replicas(size, topic + partition) for partition in range(size.partitions_of(topic))}
        yield Create(paths.topic(name), encode_topic_assignment(TopicAssignment(TOPIC_ID, assignment)))
        yield Create(paths.partitions(name), None)
        for partition, replicas in assignment.items():
            state = encode_partition_state(PartitionState(replicas[0], 0, replicas, 1))
            yield Create(paths.partition(name, partition), None)
            yield Create(paths.partition_state(name, partition), state)


def _replicas(size: TreeSize, start: int) -> tuple[int, ...]:
    return tuple((start + step) % size.brokers + 1 for step in range(size.replication_factor))
