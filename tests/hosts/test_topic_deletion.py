"""Topics deleted on broker processes over ZooKeeper, as real clients ask for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic
from kafka.admin import KafkaAdminClient

from controller.hosts.local_cluster import LocalCluster, ask_metadata
from controller.protocol.client import MetadataResponse
from tests.processes import eventually

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, session_timeout_ms=10_000) as running:
        running.await_metadata(time.monotonic() + DEADLINE_S)
        yield running


def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})


def create(cluster: LocalCluster, name: str, replicas: int = 3) -> None:
    client = admin(cluster)  # named: its end would end the request
    client.create_topics([ConfluentTopic(name, 4, replicas)])[name].result(DEADLINE_S)


def made_again(cluster: LocalCluster, name: str) -> bool:
    """Refused while the last of the one before is being removed."""
    try:
        create(cluster, name)
    except KafkaException:
        return False
    return True


def metadata_of(cluster: LocalCluster, number: int) -> MetadataResponse:
    address = cluster.brokers[number].ready_at()
    assert address is not None
    return ask_metadata(address, DEADLINE_S)


def topics_of(cluster: LocalCluster, number: int) -> set[str]:
    return {topic.name for topic in metadata_of(cluster, number).topics}


def test_clients_delete_topics_and_make_them_again(cluster: LocalCluster) -> None:
    create(cluster, "orders")
    create(cluster, "kept")
    client = admin(cluster)
    client.delete_topics(["orders"], operation_timeout=DEADLINE_S)["orders"].result(DEADLINE_S)
    for number in cluster.brokers:
        eventually(lambda number=number: topics_of(cluster, number) == {"kept"}, "each broker forgets it")  # type: ignore[misc]

    eventually(lambda: made_again(cluster, "orders"), "the name is free")
    other = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    other.delete_topics(["orders", "kept"])
    other.close()
    for number in cluster.brokers:
        eventually(lambda number=number: topics_of(cluster, number) == set(), "each broker forgets both")  # type: ignore[misc]


def test_a_topic_that_is_not_there_is_unknown(cluster: LocalCluster) -> None:
    client = admin(cluster)
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        client.delete_topics(["nothing"])["nothing"].result(DEADLINE_S)


def test_a_deletion_waits_for_a_killed_broker(cluster: LocalCluster) -> None:
    create(cluster, "late")
    controller = metadata_of(cluster, 1).controller_id
    victim = next(number for number in cluster.brokers if number != controller)
    cluster.brokers[victim].kill()
    client = admin(cluster)
    client.delete_topics(["late"], operation_timeout=DEADLINE_S)["late"].result(DEADLINE_S)
    cluster.brokers[victim].start()
    cluster.brokers[victim].await_ready(time.monotonic() + DEADLINE_S)
    # A broker that was told nothing yet knows no topic either, and a new client that asks it waits for long.
    cluster.await_metadata(time.monotonic() + DEADLINE_S)
    eventually(lambda: "late" not in topics_of(cluster, victim), "the broker that came back forgets it")

    eventually(lambda: made_again(cluster, "late"), "the name is free, so every replica was deleted")
