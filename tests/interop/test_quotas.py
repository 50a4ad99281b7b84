"""Quotas set by Kafka's kafka-configs: through our broker and in ZooKeeper by Kafka's own code, for Kafka's clients."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from controller.broker.settings import address
from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.tools import MAINS, succeed
from tests.processes import eventually


@pytest.fixture(scope="module")
def ours(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """One broker of ours, so that every request is answered by it."""
    with MixedCluster(kafka, tmp_path_factory.mktemp("quotas"), kinds={1: Kind.OURS}) as running:
        running.start(Kind.OURS)
        eventually(lambda: is_known(running), "the broker knows of itself by its controller")
        running.create("quoted", [[1]])
        yield running


def is_known(cluster: MixedCluster) -> bool:
    """Whether a new client finds a broker. librdkafka does not ask again after an answer without any."""
    try:
        return bool(AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0}).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def with_zookeeper(cluster: MixedCluster, *arguments: str) -> str:
    """What kafka-configs prints when it reads and writes ZooKeeper itself."""
    output = cluster.kafka.run(MAINS["kafka-configs"], "--zookeeper", cluster.zookeeper.connect_string, *arguments)
    assert output.status == 0, output
    return output.out


def throttles(cluster: MixedCluster, client_id: str) -> list[float]:
    """The throttle times that librdkafka reports for a produce of 60 kB, in seconds."""
    times: list[float] = []

    def throttled(event: Any) -> None:
        times.append(event.throttle_time)

    settings = {"bootstrap.servers": cluster.servers, "client.id": client_id, "throttle_cb": throttled}
    producer = Producer(settings)
    producer.produce("quoted", os.urandom(60_000))
    assert producer.flush(60) == 0
    producer.poll(0)
    return times


def test_quotas_that_kafka_s_tool_sets_are_kept_shown_and_enforced(ours: MixedCluster) -> None:
    user = ("--entity-type", "users", "--entity-name", "CN=a b", "--entity-type", "clients", "--entity-default")
    rates = "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5,controller_mutation_rate=3"
    assert "Completed updating" in succeed(ours, "kafka-configs", "--alter", "--add-config", rates, *user)
    shown = succeed(ours, "kafka-configs", "--describe", *user)
    assert all(part in shown for part in ("producer_byte_rate=1024", "request_percentage=12.5")), shown
    shown = with_zookeeper(ours, "--describe", *user)
    assert all(part in shown for part in rates.split(",")[:3]), shown

    assert throttles(ours, "slow") == []
    client = ("--entity-type", "clients", "--entity-name", "slow")
    with_zookeeper(ours, "--alter", "--add-config", "producer_byte_rate=5000", *client)
    eventually(lambda: throttles(ours, "slow") != [], "the quota that Kafka's code wrote is enforced")
    assert throttles(ours, "fast") == []
    succeed(ours, "kafka-configs", "--alter", "--delete-config", "producer_byte_rate", *client)
    assert "producer_byte_rate" not in with_zookeeper(ours, "--describe", *client)


def test_limits_on_connections_that_kafka_s_tool_sets_are_shown_and_enforced(ours: MixedCluster) -> None:
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    limits = "listener.name.plaintext.max.connections=50,max.connections.per.ip=9"
    assert "Completed updating" in succeed(ours, "kafka-configs", "--alter", "--add-config", limits, *broker)
    shown = succeed(ours, "kafka-configs", "--describe", *broker)
    assert all(part in shown for part in limits.split(",")), shown
    shown = with_zookeeper(ours, "--describe", *broker)
    assert all(part in shown for part in limits.split(",")), shown
    host, port = address(ours.servers)
    opened = [socket.create_connection((host, port), 10) for _ in range(9)]
    try:
        eventually(lambda: not is_known(ours), "an address has nine connections")
    finally:
        for one in opened:
            one.close()
    names = "listener.name.plaintext.max.connections,max.connections.per.ip"
    eventually(lambda: is_known(ours), "there are places again")
    succeed(ours, "kafka-configs", "--alter", "--delete-config", names, *broker)
    assert "max.connections" not in with_zookeeper(ours, "--describe", *broker)
