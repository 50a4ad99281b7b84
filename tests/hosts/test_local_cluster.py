"""Three broker processes over ZooKeeper, as real clients see them: confluent-kafka, kafka-python, kcat."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewPartitions
from confluent_kafka.admin import NewTopic as ConfluentTopic
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

from controller.broker.settings import Address
from controller.hosts.local_cluster import BrokerChild, LocalCluster, ask_metadata
from controller.protocol.client import MetadataResponse
from controller.protocol.framing import framed
from tests.broker.test_requests import BAD_FRAMES
from tests.processes import eventually
from tests.programs import needs_programs, program

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, session_timeout_ms=10_000) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: LocalCluster) -> LocalCluster:
    """The cluster with all its brokers, whatever the test before did to them."""
    for broker in running.brokers.values():
        if not broker.running:
            broker.start()
    deadline = time.monotonic() + DEADLINE_S
    for broker in running.brokers.values():
        broker.await_ready(deadline)
    running.await_metadata(deadline)
    return running


def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})


def create(cluster: LocalCluster, topic: ConfluentTopic) -> None:
    client = admin(cluster)  # named: its end would end the request
    client.create_topics([topic])[topic.topic].result(DEADLINE_S)


def at(broker: BrokerChild) -> Address:
    address = broker.ready_at()
    assert address is not None
    return address


def seen_by(cluster: LocalCluster, number: int) -> MetadataResponse:
    return ask_metadata(at(cluster.brokers[number]), DEADLINE_S)


def leaders(response: MetadataResponse, topic: str) -> dict[int, int]:
    return {
        partition.partition_index: partition.leader_id
        for found in response.topics
        if found.name == topic
        for partition in found.partitions
    }


def epochs(response: MetadataResponse, topic: str) -> dict[int, int]:
    return {
        partition.partition_index: partition.leader_epoch
        for found in response.topics
        if found.name == topic
        for partition in found.partitions
    }


def test_confluent_kafka_creates_expands_and_lists_topics(cluster: LocalCluster) -> None:
    client = admin(cluster)
    client.create_topics([ConfluentTopic("orders", 6, 3)])["orders"].result(DEADLINE_S)
    client.create_partitions([NewPartitions("orders", 8)])["orders"].result(DEADLINE_S)
    for broker in cluster.brokers:
        eventually(lambda broker=broker: len(leaders(seen_by(cluster, broker), "orders")) == 8, "each broker knows it")  # type: ignore[misc]
    listed: ClusterMetadata = client.list_topics(timeout=DEADLINE_S)
    assert sorted(listed.brokers) == [1, 2, 3]
    assert listed.controller_id in (1, 2, 3)
    partitions = listed.topics["orders"].partitions
    assert sorted(partitions) == list(range(8))
    for partition in partitions.values():
        assert sorted(partition.replicas) == sorted(partition.isrs) == [1, 2, 3]
        assert partition.leader == partition.replicas[0], "a new partition is led by its preferred replica"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (ConfluentTopic("orders/again", 1, 1), "TOPIC_EXCEPTION"),
        (ConfluentTopic("wide", 1, 4), "INVALID_REPLICATION_FACTOR"),
        (ConfluentTopic("none", 0, 1), "INVALID_PARTITIONS"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.topic,
)
def test_confluent_kafka_is_told_what_is_wrong(cluster: LocalCluster, topic: ConfluentTopic, error: str) -> None:
    with pytest.raises(KafkaException) as caught:
        create(cluster, topic)
    assert caught.value.args[0].name() == error


def test_kafka_python_creates_and_lists_topics(cluster: LocalCluster) -> None:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        client.create_topics([NewTopic("payments", 3, 2)])
        # The answer came when the controller's own metadata had it; whoever is asked next may be a moment later.
        eventually(lambda: "payments" in client.list_topics(), "the topic is listed")
        eventually(
            lambda: (
                [
                    (partition["leader_id"] in (1, 2, 3), len(partition["isr_nodes"]))
                    for partition in client.describe_topics(["payments"])[0]["partitions"]
                ]
                == [(True, 2)] * 3
            ),
            "the topic is described with its leaders",
        )
        with pytest.raises(TopicAlreadyExistsError):
            client.create_topics([NewTopic("payments", 3, 2)])
        described = client.describe_cluster()
        assert sorted(broker["broker_id"] for broker in described["brokers"]) == [1, 2, 3]
    finally:
        client.close()


@needs_programs
def test_kcat_lists_brokers_topics_and_leaders(cluster: LocalCluster) -> None:
    create(cluster, ConfluentTopic("listed", 2, 3))
    for broker in cluster.brokers:
        eventually(lambda broker=broker: len(leaders(seen_by(cluster, broker), "listed")) == 2, "each broker knows it")  # type: ignore[misc]
    shown = subprocess.run(
        [program("kcat", "kafkacat"), "-L", "-b", cluster.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    assert "3 brokers:" in shown
    assert "(controller)" in shown
    assert 'topic "listed" with 2 partitions:' in shown
    assert "partition 0, leader" in shown


def moved_to(seen: MetadataResponse, topic: str, brokers: list[int]) -> bool:
    """Whether these brokers alone are there and lead, each partition in its second leader epoch."""
    there = sorted(broker.node_id for broker in seen.brokers) == sorted(brokers)
    return there and set(leaders(seen, topic).values()) <= set(brokers) and set(epochs(seen, topic).values()) == {1}


def test_sigterm_moves_every_leader_before_the_broker_goes(cluster: LocalCluster) -> None:
    """Also of the controller itself, which resigns last. A leader that was moved has its epoch raised once; that of
    one who died is raised twice."""
    name = "moved"
    create(cluster, ConfluentTopic(name, 9, 3))
    controller = seen_by(cluster, 1).controller_id
    others = [number for number in cluster.brokers if number != controller]
    eventually(lambda: all(len(leaders(seen_by(cluster, other), name)) == 9 for other in others), "all know the topic")
    before = leaders(seen_by(cluster, others[0]), name)
    assert controller in before.values()
    assert cluster.brokers[controller].stop(DEADLINE_S) == 0
    for other in others:
        eventually(lambda other=other: moved_to(seen_by(cluster, other), name, others), "all is moved")  # type: ignore[misc]
    eventually(lambda: seen_by(cluster, others[0]).controller_id in others, "another controller is elected")


def test_a_second_sigterm_ends_a_broker_whose_shutdown_hangs(cluster: LocalCluster) -> None:
    controller = seen_by(cluster, 1).controller_id
    leaving = next(number for number in cluster.brokers if number != controller)
    broker = cluster.brokers[leaving]
    cluster.brokers[controller].pause()  # it takes the request, and answers nothing
    try:
        os.kill(broker.pid, signal.SIGTERM)
        last_start = f"broker {leaving} ready"
        eventually(
            lambda: "is shutting down" in broker.log_file.read_text().rpartition(last_start)[2], "it is shutting down"
        )
        assert broker.running
        os.kill(broker.pid, signal.SIGTERM)
        eventually(lambda: not broker.running, "it is gone")
        assert broker.exit_status == 128 + signal.SIGTERM
    finally:
        cluster.brokers[controller].resume()


def test_a_killed_controller_is_replaced_and_its_partitions_led_again(cluster: LocalCluster) -> None:
    name = "survives"
    create(cluster, ConfluentTopic(name, 6, 2))
    controller = seen_by(cluster, 1).controller_id
    other = next(number for number in cluster.brokers if number != controller)
    cluster.brokers[controller].kill()
    assert cluster.brokers[controller].exit_status == -9

    def recovered() -> bool:
        seen = seen_by(cluster, other)
        led = leaders(seen, name)
        return seen.controller_id not in (controller, -1) and len(led) == 6 and not {controller, -1} & set(led.values())

    eventually(recovered, "a new controller, and leaders that live")


def test_a_paused_broker_comes_back_in_a_new_life(cluster: LocalCluster) -> None:
    """It sleeps through the end of its session: on waking it registers anew and is told everything again (S29)."""
    controller = seen_by(cluster, 1).controller_id
    paused, other = [number for number in cluster.brokers if number != controller][:2]
    cluster.brokers[paused].pause()
    eventually(lambda: len(seen_by(cluster, other).brokers) == 2, "its session has ended")
    cluster.brokers[paused].resume()
    cluster.await_metadata(time.monotonic() + DEADLINE_S)
    assert cluster.brokers[paused].running


@pytest.mark.parametrize("frame", [*BAD_FRAMES.values()], ids=[*BAD_FRAMES])
def test_a_bad_frame_closes_its_connection_and_the_broker_lives_on(cluster: LocalCluster, frame: bytes) -> None:
    with closing(socket.create_connection(at(cluster.brokers[1]), DEADLINE_S)) as connection:
        connection.sendall(framed(frame))
        assert connection.recv(1) == b""
    assert len(seen_by(cluster, 1).brokers) == 3


@pytest.mark.parametrize("size", [100 * 1024 * 1024 + 1, 2**31 - 1, -1])
def test_an_oversized_frame_closes_its_connection_and_the_broker_lives_on(cluster: LocalCluster, size: int) -> None:
    with closing(socket.create_connection(at(cluster.brokers[1]), DEADLINE_S)) as connection:
        connection.sendall(struct.pack(">i", size))
        assert connection.recv(1) == b""
    assert len(seen_by(cluster, 1).brokers) == 3


def test_a_start_waits_for_a_zookeeper_that_is_slower_than_the_sessions_are_long() -> None:
    with LocalCluster(brokers=1, session_timeout_ms=500) as cluster:
        broker = cluster.brokers[1]
        broker.kill()
        cluster.zookeeper.pause()
        broker.start()
        until = time.monotonic() + 4.0  # the process needs one or two to begin
        while time.monotonic() < until:
            broker.require_running()
            time.sleep(0.02)
        cluster.zookeeper.resume()
        broker.await_ready(time.monotonic() + DEADLINE_S)
