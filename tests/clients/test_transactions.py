"""Transactions with real clients: all or nothing is read, and they go on when brokers are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from controller.testing import Kafka
from tests.processes import DEADLINE_S

TOPIC, PARTITIONS = "orders", 3


def producer(servers: str, transactional_id: str, **settings: object) -> confluent_kafka.Producer:
    config = {"bootstrap.servers": servers, "transactional.id": transactional_id, "log_level": 2, **settings}
    begun = confluent_kafka.Producer(config)
    begun.init_transactions(DEADLINE_S)
    return begun


def read_committed(servers: str, topic: str, count: int, partitions: int = PARTITIONS) -> list[bytes]:
    """As many records, or those that there are up to the last stable offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    read: list[bytes] = []
    ended: set[int | None] = set()
    until = time.monotonic() + DEADLINE_S
    while (len(read) < count or len(ended) < partitions) and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            read.append(message.value() or b"")
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return sorted(read)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    with Kafka(brokers=3) as running:
        running.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        yield running


def test_what_is_committed_is_read_and_what_is_aborted_is_not(cluster: Kafka) -> None:
    cluster.create_topic("one", partitions=PARTITIONS, replication_factor=3)
    writer = producer(cluster.bootstrap_servers, "first")
    for number in range(4):
        writer.begin_transaction()
        for partition in range(PARTITIONS):
            writer.produce("one", b"%d-%d" % (number, partition), partition=partition)
        if number % 2:
            writer.abort_transaction(DEADLINE_S)
        else:
            writer.commit_transaction(DEADLINE_S)
    expected = sorted(b"%d-%d" % (number, partition) for number in (0, 2) for partition in range(PARTITIONS))
    assert read_committed(cluster.bootstrap_servers, "one", len(expected)) == expected
