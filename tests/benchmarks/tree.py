"""The tree of a large cluster, written into a ZooKeeper for `camerlengo bench`: topics, their partitions' states, and
registrations that no session owns. Batches of fenced writes, several in flight."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.clock import Clock
from controller.core.leadership import Won, elect
from controller.core.queue import EventQueue
from controller.zookeeper import paths
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.codecs import (
    BrokerEndpoint,
    BrokerRegistration,
    PartitionStateZnode,
    TopicAssignment,
    encode_broker_registration,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import Create

WRITING_LIMIT_S = 600.0
SESSION_TIMEOUT_MS = 30_000
TOPICS_AT_ONCE = 500
"""Written together: of millions of znodes only so many are in memory at a time."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """`partitions` in all, dealt out evenly over `topics`; each has `replication_factor` of `brokers` replicas. They
    are led by all brokers in turn or, if `led_by` names one, by that alone."""

    topics: int
    partitions: int
    replication_factor: int
    brokers: int
    led_by: int | None = None

    def partitions_of(self, topic: int) -> int:
        return self.partitions // self.topics + (topic < self.partitions % self.topics)

    def names(self) -> list[tuple[str, int]]:
        """(topic, partition) of every partition."""
        sizes = [(f"topic-{topic:06d}", self.partitions_of(topic)) for topic in range(self.topics)]
        return [(name, partition) for name, size in sizes for partition in range(size)]

    def replicas(self, topic: int, partition: int) -> tuple[int, ...]:
        """The first of them leads, and all are in sync."""
        place = topic + partition
        if self.led_by is None:
            return tuple((place + step) % self.brokers + 1 for step in range(self.replication_factor))
        others = [broker for broker in range(1, self.brokers + 1) if broker != self.led_by]
        followers = (others[(place + step) % len(others)] for step in range(self.replication_factor - 1))
        return (self.led_by, *followers)


def write_tree(hosts: str, size: TreeSize, clock: Clock) -> None:
    """Raises what a write raises, and TimeoutError."""
    client = ZooKeeperClient(KazooConnection(hosts, clock, SESSION_TIMEOUT_MS), clock, EventQueue(1))
    try:
        wait(client.start(), WRITING_LIMIT_S)
        run(BrokerWrites(client).ensure_persistent_paths(), WRITING_LIMIT_S)
        outcome = run(elect(client, 1, clock), WRITING_LIMIT_S)
        assert isinstance(outcome, Won), outcome
        ports = {broker: 9091 + broker for broker in range(1, size.brokers + 1)}
        run(client.create_rows(outcome.leadership, registrations(ports)), WRITING_LIMIT_S)
        write_partitions(client, outcome.leadership, size)
    finally:
        wait(client.close(), WRITING_LIMIT_S)


def registrations(ports: Mapping[int, int]) -> list[Create]:
    """Of brokers on this machine, by id."""
    rows = []
    for broker, port in sorted(ports.items()):
        endpoint = BrokerEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)
        rows.append(Create(paths.broker(broker), encode_broker_registration(BrokerRegistration(broker, (endpoint,)))))
    return rows


def write_partitions(client: ZooKeeperClient, leadership: Leadership, size: TreeSize) -> None:
    for first in range(0, size.topics, TOPICS_AT_ONCE):
        topics = range(first, min(first + TOPICS_AT_ONCE, size.topics))
        run(client.create_rows(leadership, list(znodes(size, topics))), WRITING_LIMIT_S)


def znodes(size: TreeSize, topics: range) -> Iterator[Create]:
    """Parents before their children."""
    for topic in topics:
        name = f"topic-{topic:06d}"
        assignment = {partition: size.replicas(topic, partition) for partition in range(size.partitions_of(topic))}
        yield Create(paths.topic(name), encode_topic_assignment(TopicAssignment(topic_id_text(topic), assignment)))
        yield Create(paths.partitions(name), None)
        for partition, replicas in assignment.items():
            yield Create(paths.partition(name, partition), None)
            yield Create(paths.partition_state(name, partition), first_state(replicas))


def topic_id_text(topic: int) -> str:
    return base64.urlsafe_b64encode((topic + 1).to_bytes(16, "big")).rstrip(b"=").decode()


def first_state(replicas: tuple[int, ...]) -> bytes:
    return encode_partition_state(PartitionStateZnode(replicas[0], 0, replicas, 1))
