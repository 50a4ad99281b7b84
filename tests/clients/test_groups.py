"""Clients that subscribe to a cluster without consumer groups: an error at once, or a line in the broker's log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import confluent_kafka.admin
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import IncompatibleBrokerVersion as AioIncompatible
from kafka.errors import IncompatibleBrokerVersion

from controller.hosts.local_cluster import LocalCluster
from tests.clients.clients import CLIENTS, MANNERS
from tests.processes import DEADLINE_S, eventually

TOPIC = "unsubscribed"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, session_timeout_ms=20_000) as running:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 2})
        new = confluent_kafka.admin.NewTopic(TOPIC, 1, 1)
        admin.create_topics([new])[TOPIC].result(DEADLINE_S)
        yield running


def test_kafka_python_says_that_the_broker_is_incompatible(cluster: LocalCluster) -> None:
    servers = cluster.bootstrap_servers.split(",")
    with pytest.raises(IncompatibleBrokerVersion, match="FindCoordinator"):
        kafka.KafkaConsumer(TOPIC, bootstrap_servers=servers, group_id="g").poll(DEADLINE_S * 1_000)


def test_aiokafka_says_that_the_broker_is_incompatible(cluster: LocalCluster) -> None:
    async def subscribe() -> None:
        consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=cluster.bootstrap_servers, group_id="g")
        try:
            with pytest.raises(AioIncompatible, match="FindCoordinator"):
                await asyncio.wait_for(consumer.start(), DEADLINE_S)
        finally:
            await consumer.stop()

    asyncio.run(subscribe())


def test_librdkafka_waits_and_the_broker_says_why_once(cluster: LocalCluster) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "client.id": "waits", "log_level": 2}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    said = "client 'waits' looks for the coordinator of group 'g'. Consumer groups are not supported"

    def in_the_log() -> int:
        consumer.poll(0.1)
        return cluster.brokers[1].log_file.read_text().count(said)

    try:
        eventually(lambda: in_the_log() > 0, "the broker's log names the client")
        for _ in range(10):
            assert in_the_log() == 1
    finally:
        consumer.close()


def test_librdkafka_compresses_with_lz4(cluster: LocalCluster) -> None:
    """It takes FindCoordinator for the sign that a broker reads lz4, and would send batches uncompressed."""
    (confluent,) = [one for one in CLIENTS if one.name == "confluent-kafka"]
    values = [b"a" * 1_000] * 200
    confluent.produce(cluster.bootstrap_servers, TOPIC, values, MANNERS["lz4"])
    segments = list(cluster.folder.glob(f"logs-1/{TOPIC}-0/*.log"))
    assert 0 < sum(one.stat().st_size for one in segments) < 100_000
