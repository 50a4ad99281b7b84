"""Broker processes that hold records, with a real client: what it was told is there is read, also after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from controller.hosts.local_cluster import LocalCluster
from tests.processes import eventually

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One broker with a log directory."""
    with LocalCluster(brokers=1, session_timeout_ms=10_000) as running:
        yield running


def create(cluster: LocalCluster, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)


def produce(cluster: LocalCluster, topic: str, values: list[bytes], **config: object) -> list[int]:
    """The offset of each, in the order in which they were answered."""
    offsets: list[int] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset = message.offset()  # None: nobody was asked
        offsets.append(-1 if offset is None else offset)

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, **config})
    for value in values:
        producer.produce(topic, value, on_delivery=answered)
    assert producer.flush(DEADLINE_S) == 0
    return offsets


def consume(cluster: LocalCluster, topic: str, count: int) -> list[bytes | None]:
    """The first `count` values."""
    # Without commits: there is no group's coordinator, and a close that has something to commit waits long for one.
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "any", "enable.auto.commit": False}
    )
    values: list[bytes | None] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def read() -> bool:
            for message in consumer.consume(count - len(values), 1.0):
                assert message.error() is None, message.error()
                value = message.value()
                values.append(value if value is None else bytes(value))
            return len(values) >= count

        eventually(read, f"{count} records are read")
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_what_a_producer_sent_a_consumer_reads_in_order(cluster: LocalCluster, acks: str) -> None:
    topic = f"acks-{acks}"
    create(cluster, topic)
    values = [b"%d" % number for number in range(2_000)]
    offsets = produce(cluster, topic, values, acks=acks)
    if acks != "0":
        assert offsets == list(range(2_000))
    assert consume(cluster, topic, 2_000) == values


def test_records_are_there_after_a_kill_and_a_restart(cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "kept")
    values = [b"a" * 1_000, b"b" * 1_000]
    produce(cluster, "kept", values, acks="all")
    broker = cluster.brokers[1]
    broker.kill()
    broker.start()
    assert consume(cluster, "kept", 2) == values
    assert produce(cluster, "kept", [b"c"], acks="all") == [2]
