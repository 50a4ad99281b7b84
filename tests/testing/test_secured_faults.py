"""Secured clusters under faults: clients and brokers go on, over SASL_SSL and with sessions that end soon."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import admin

from controller.broker.security.sasl import SaslListener
from controller.broker.settings import address
from controller.hosts.secured import ClientSettings, Security
from controller.testing import Kafka
from controller.testing.memory_host import MemoryHost
from tests.processes import eventually
from tests.programs import program
from tests.testing.clients import QUIET

pytest.importorskip("cryptography", reason="the extra `secure`")
LIMIT_S = 30.0
TOPIC = "payments"
SESSION_MS = 400
"""connections.max.reauth.ms: several sessions of every connection end in a test."""


class Writer(Protocol):
    def send(self, value: bytes) -> None:
        """Return once the record is acknowledged."""

    def close(self) -> None: ...


class Confluent:
    def __init__(self, client: ClientSettings, **options: Any) -> None:
        self._producer = confluent_kafka.Producer(client.confluent | QUIET | {"enable.idempotence": True} | options)

    def error(self, value: bytes = b"x") -> Any:
        """Send a record, and return what it came to: None if it is acknowledged."""
        errors: list[Any] = []
        self._producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _message: errors.append(error))
        assert self._producer.flush(LIMIT_S) == 0
        return errors[0]

    def poll(self) -> bool:
        self._producer.poll(0.02)
        return True

    def send(self, value: bytes) -> None:
        assert self.error(value) is None

    def close(self) -> None:
        pass


class KafkaPython:
    def __init__(self, client: ClientSettings) -> None:
        self._producer = kafka_python.KafkaProducer(**client.kafka_python, enable_idempotence=True)

    def send(self, value: bytes) -> None:
        self._producer.send(TOPIC, value, partition=0).get(LIMIT_S)

    def close(self) -> None:
        self._producer.close(5)


class Aiokafka:
    def __init__(self, client: ClientSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._producer: Any = self._run(self._start(client))

    async def _start(self, client: ClientSettings) -> Any:
        producer = AIOKafkaProducer(**client.aiokafka, enable_idempotence=True)
        await producer.start()
        return producer

    def _run(self, task: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(LIMIT_S)

    def send(self, value: bytes) -> None:
        self._run(self._producer.send_and_wait(TOPIC, value, partition=0))

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


WRITERS: dict[str, Callable[[ClientSettings], Writer]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


def sasl(kafka: Kafka, broker: int, listener: str) -> SaslListener:
    host = kafka._host
    assert isinstance(host, MemoryHost)
    incarnation = host._brokers[broker].incarnation
    assert incarnation is not None
    return incarnation.server.sasl[listener]


@pytest.fixture
def short_sessions() -> Iterator[Kafka]:
    settings = {"connections.max.reauth.ms": SESSION_MS, "min.insync.replicas": 2}
    with Kafka(3, security=True, settings=settings) as kafka:
        kafka.create_topic(TOPIC, 1, 3)
        yield kafka


def read(client: ClientSettings, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(client.confluent | QUIET | {"group.id": "reader"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, LIMIT_S)]
    finally:
        consumer.close()


def test_brokers_authenticate_again_before_their_sessions_end(short_sessions: Kafka) -> None:
    kafka = short_sessions
    leader = kafka.leader(TOPIC)
    assert leader is not None
    kafka.wait_until(lambda: sasl(kafka, leader, "BROKERS").authenticated_again >= 8)
    assert sasl(kafka, leader, "BROKERS").authenticated <= 3  # two followers and the controller, once each
    assert "before authentication" not in kafka.timeline()
    assert sorted(kafka.isr(TOPIC)) == [1, 2, 3]


# -- changes of access under traffic


def access(user: str, permission: Any) -> Any:
    pattern = (admin.ResourceType.TOPIC, TOPIC, admin.ResourcePatternType.LITERAL)
    return admin.AclBinding(*pattern, f"User:{user}", "*", admin.AclOperation.WRITE, permission)


def administrator(kafka: Kafka) -> Any:
    return admin.AdminClient(kafka.client_settings("admin").confluent | QUIET)


def create(kafka: Kafka, binding: Any) -> None:
    client = administrator(kafka)  # its requests fail when it is collected
    client.create_acls([binding])[binding].result(LIMIT_S)


def remove_user(kafka: Kafka, user: str) -> None:
    deletion = admin.UserScramCredentialDeletion(user, admin.ScramMechanism.SCRAM_SHA_512)
    client = administrator(kafka)
    client.alter_user_scram_credentials([deletion])[user].result(LIMIT_S)


def certificate(kafka: Kafka) -> bytes:
    """What the broker presents to a new connection."""
    context = ssl.create_default_context(cafile=str(kafka.client_settings().authority))
    with socket.create_connection(address(kafka.broker(1).address), LIMIT_S) as connection:
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as encrypted:
            found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def changed() -> Iterator[Kafka]:
    with Kafka(1, security=Security(users=("alice", "bob"))) as kafka:
        kafka.create_topic(TOPIC)
        for user in ("alice", "bob"):
            create(kafka, access(user, admin.AclPermissionType.ALLOW))
        yield kafka


def test_a_new_certificate_is_presented_to_new_connections_and_others_go_on(changed: Kafka) -> None:
    other = Confluent(changed.client_settings())
    other.send(b"before")
    listener, before = sasl(changed, 1, "SASL_SSL"), certificate(changed)
    made = listener.authenticated
    changed.replace_certificate(1)
    eventually(lambda: certificate(changed) != before, "the new certificate is presented", LIMIT_S)
    assert "certificates were loaded again" in changed.timeline() + str(changed.records)
    other.send(b"after")
    assert listener.authenticated == made, "on the connection that there was"
    Confluent(changed.client_settings()).send(b"on a new connection")


def test_a_denied_topic_is_refused_on_the_connection_that_there_is(changed: Kafka) -> None:
    alice, other = (Confluent(changed.client_settings(user)) for user in ("alice", "client"))
    alice.send(b"alice")
    other.send(b"other")
    listener = sasl(changed, 1, "SASL_SSL")
    made, deny = listener.authenticated, access("alice", admin.AclPermissionType.DENY)
    create(changed, deny)
    eventually(lambda: "TOPIC_AUTHORIZATION_FAILED" in repr(alice.error()), "alice is refused", LIMIT_S)
    other.send(b"other")
    assert listener.authenticated <= made + 2, "the administrator's alone: librdkafka makes two"
    assert "Principal = User:alice is Denied Operation = Write" in changed.timeline() + str(changed.records)


def test_a_removed_user_stays_on_its_connection_and_gets_no_other(changed: Kafka) -> None:
    bob = Confluent(changed.client_settings("bob"))
    bob.send(b"bob")
    remove_user(changed, "bob")
    gone = sasl(changed, 1, "SASL_SSL").read_credential
    eventually(lambda: gone("bob", "SCRAM-SHA-512").result() is None, "the notice has arrived", LIMIT_S)
    bob.send(b"on the connection that there was")
    failing = Confluent(changed.client_settings("bob"), **{"message.timeout.ms": 1_000})
    assert failing.error() is not None
    assert "no such user" in changed.timeline()
    Confluent(changed.client_settings()).send(b"another user")


def test_users_get_in_while_the_broker_is_cut_off_from_zookeeper(changed: Kafka) -> None:
    changed.broker(1).partition_from("zookeeper")
    try:
        Confluent(changed.client_settings()).send(b"on a new connection")
    finally:
        changed.broker(1).heal()


def test_a_removed_user_is_refused_when_its_session_ends(short_sessions: Kafka) -> None:
    kafka = short_sessions
    said: list[str] = []
    removed = Confluent(kafka.client_settings(), error_cb=lambda error: said.append(str(error)))
    other = Confluent(kafka.client_settings("admin"))
    removed.send(b"removed")
    remove_user(kafka, "client")
    eventually(lambda: removed.poll() and "Invalid username or password" in str(said), "its session ends", LIMIT_S)
    assert "'client': no such user" in kafka.timeline()
    other.send(b"another user")


def test_clients_go_on_while_the_leader_and_the_controller_are_killed(short_sessions: Kafka) -> None:
    kafka = short_sessions
    writers = {name: make(kafka.client_settings()) for name, make in WRITERS.items()}
    sent = []
    try:
        for number in range(12):
            if number == 4:
                kafka.broker(kafka.wait_for_leader(TOPIC)).kill()
            elif number == 8:
                kafka.restore()
                assert kafka.controller is not None
                kafka.broker(kafka.controller).kill()
            for name, writer in writers.items():
                value = f"{name} {number}".encode()
                writer.send(value)
                sent.append(value)
    finally:
        for writer in writers.values():
            writer.close()
    kafka.restore()
    assert read(kafka.client_settings(), len(sent)) == sent
    assert sorted(kafka.isr(TOPIC)) == [1, 2, 3]


@pytest.mark.programs
def test_kcat_goes_on_while_the_leader_and_the_controller_are_killed(short_sessions: Kafka) -> None:
    kafka = short_sessions
    words = [program("kcat"), *kafka.client_settings().kcat, "-t", TOPIC, "-p", "0"]
    producer = subprocess.Popen([*words, "-P", "-E", "-X", "enable.idempotence=true"], stdin=subprocess.PIPE)
    assert producer.stdin is not None
    sent = [f"record {number}".encode() for number in range(1_000)]
    producer.stdin.write(b"\n".join(sent[:300]) + b"\n")
    producer.stdin.flush()
    kafka.broker(kafka.wait_for_leader(TOPIC)).kill()
    producer.stdin.write(b"\n".join(sent[300:600]) + b"\n")
    producer.stdin.flush()
    kafka.restore()
    assert kafka.controller is not None
    kafka.broker(kafka.controller).kill()
    producer.stdin.write(b"\n".join(sent[600:]) + b"\n")
    producer.stdin.close()
    assert producer.wait(LIMIT_S) == 0
    kafka.restore()
    consume = [*words, "-C", "-e", "-q", "-o", "beginning"]
    found = subprocess.run(consume, check=True, timeout=LIMIT_S, capture_output=True).stdout
    assert found.splitlines() == sent
