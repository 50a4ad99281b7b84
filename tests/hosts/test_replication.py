"""Three broker processes that hold each other's records, real clients, and a leader killed while it is written to:
whatever was acknowledged by all is read back, from whoever leads."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from controller.hosts.local_cluster import LocalCluster
from tests.processes import eventually

DEADLINE_S = 60.0
PARTITIONS = 3
RECORDS = 3_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"min.insync.replicas": "2"}
    with LocalCluster(brokers=3, session_timeout_ms=10_000, settings=settings) as running:
        yield running


class Writer:
    """Writes numbered values, acks=all, and keeps which of them were acknowledged."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "acks": "all",
                "linger.ms": 2,
                "max.in.flight.requests.per.connection": 1,
                "log_level": 2,
            }
        )
        self._topic = topic
        self._next = 0
        self.acknowledged: list[bytes] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % self._next
            self._next += 1
            partition = self._next % PARTITIONS
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._answered)
            self._producer.poll(0)

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value = message.value()
        assert value is not None
        self.acknowledged.append(bytes(value))

    def finish(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0
        assert len(self.acknowledged) == self._next

    def poll(self) -> None:
        self._producer.poll(0.01)


def states(cluster: LocalCluster, topic: str) -> dict[int, tuple[int, int]]:
    """Partition to leader and the size of its ISR."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}).list_topics(topic, DEADLINE_S)
    return {index: (one.leader, len(one.isrs)) for index, one in found.topics[topic].partitions.items()}


def await_replicas(cluster: LocalCluster, topic: str) -> None:
    def complete() -> bool:
        found = states(cluster, topic)
        return len(found) == PARTITIONS and all(size == 3 for _, size in found.values())

    eventually(complete, "every ISR has all three")


def read_all(cluster: LocalCluster, topic: str) -> list[bytes]:
    # Without commits: there is no group's coordinator, and a close that has something to commit waits long for one.
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "any", "enable.auto.commit": False, "log_level": 2}
    )
    values: list[bytes] = []
    try:
        for index in range(PARTITIONS):
            at = TopicPartition(topic, index, 0)
            _, end = consumer.get_watermark_offsets(at, DEADLINE_S)
            consumer.assign([at])
            values += read_to(consumer, end)
    finally:
        consumer.close()
    return values


def read_to(consumer: Consumer, end: int) -> list[bytes]:
    values: list[bytes] = []
    until = time.monotonic() + DEADLINE_S
    while len(values) < end:
        assert time.monotonic() < until, f"{len(values)} of {end} records were read"
        for message in consumer.consume(end - len(values), 1.0):
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            values.append(bytes(value))
    return values


def test_what_all_acknowledged_outlives_the_kill_of_a_leader_and_then_of_the_next(cluster: LocalCluster) -> None:
    topic = "killed"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(DEADLINE_S)
    writer = Writer(cluster, topic)
    for _ in range(2):
        before = len(writer.acknowledged)
        writer.write(RECORDS)
        while len(writer.acknowledged) < before + RECORDS // 3:
            writer.poll()
        leader = cluster.brokers[states(cluster, topic)[0][0]]
        leader.kill()
        writer.write(RECORDS)
        writer.finish()
        values = read_all(cluster, topic)
        assert set(writer.acknowledged) <= set(values)
        leader.start()
        leader.await_ready(time.monotonic() + DEADLINE_S)
        await_replicas(cluster, topic)
        assert set(writer.acknowledged) <= set(read_all(cluster, topic))
