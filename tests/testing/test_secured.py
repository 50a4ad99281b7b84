"""Secured clusters in a test's process: four clients, what one without credentials gets, and where the keys are."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioError
from kafka.errors import KafkaError as PythonError

from controller.hosts.local_cluster import ask_broker
from controller.hosts.secured import ClientSettings, Security
from controller.protocol.codec import SUPPORTED, ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.schema import ResponseValue
from controller.testing import Kafka, UnsupportedByHost
from controller.testing.host import ClusterOptions
from controller.testing.memory_host import MemoryHost
from tests.broker.test_access import codes
from tests.broker.test_control_plane import forged, markers, stop_replica
from tests.processes import eventually
from tests.programs import program
from tests.testing.clients import QUIET

pytest.importorskip("cryptography", reason="the extra `secure`")
LIMIT_S = 30.0
TOPIC = "payments"


@pytest.fixture(scope="module")
def secured() -> Iterator[Kafka]:
    with Kafka(3, security=Security(users=("eve",))) as kafka:
        kafka.create_topic(TOPIC, 1, 3)
        yield kafka


# -- clients: a record each, there and back


def by_confluent(client: ClientSettings, topic: str, value: bytes) -> None:
    producer = confluent_kafka.Producer(client.confluent | QUIET | {"acks": "all"})
    producer.produce(topic, value, partition=0)
    assert producer.flush(LIMIT_S) == 0
    consumer = confluent_kafka.Consumer(client.confluent | QUIET | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        while (message := consumer.poll(LIMIT_S)) is not None and message.value() != value:
            pass
        assert message is not None
    finally:
        consumer.close()


def by_kafka_python(client: ClientSettings, topic: str, value: bytes) -> None:
    producer = kafka_python.KafkaProducer(**client.kafka_python, acks="all")
    producer.send(topic, value, partition=0).get(LIMIT_S)
    producer.close(5)
    consumer = kafka_python.KafkaConsumer(**client.kafka_python, consumer_timeout_ms=int(LIMIT_S * 1_000))
    consumer.assign([kafka_python.TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    try:
        assert any(message.value == value for message in consumer)
    finally:
        consumer.close()


def by_aiokafka(client: ClientSettings, topic: str, value: bytes) -> None:
    async def there_and_back() -> None:
        async with AIOKafkaProducer(**client.aiokafka, acks="all") as producer:
            await producer.send_and_wait(topic, value, partition=0)
        async with AIOKafkaConsumer(topic, **client.aiokafka, auto_offset_reset="earliest") as consumer:
            while (await asyncio.wait_for(consumer.getone(), LIMIT_S)).value != value:
                pass

    asyncio.run(there_and_back())


def by_kcat(client: ClientSettings, topic: str, value: bytes) -> None:
    words = [program("kcat"), *client.kcat, "-t", topic, "-p", "0"]
    subprocess.run([*words, "-P"], input=value, check=True, timeout=LIMIT_S)
    consume = [*words, "-C", "-e", "-q", "-o", "beginning"]
    read = subprocess.run(consume, check=True, timeout=LIMIT_S, capture_output=True)
    assert value in read.stdout.splitlines()


CLIENTS = {"confluent-kafka": by_confluent, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_writes_and_reads_with_the_settings_made_for_it(secured: Kafka, client: str) -> None:
    CLIENTS[client](secured.client_settings(), TOPIC, client.encode())
    assert sorted(secured.isr(TOPIC)) == [1, 2, 3]


@pytest.mark.programs
def test_kcat_writes_and_reads_with_the_settings_made_for_it(secured: Kafka) -> None:
    by_kcat(secured.client_settings(), TOPIC, b"kcat")


# -- without credentials, or with wrong ones


def confluents_error(options: dict[str, Any]) -> str:
    said: list[str] = []
    given = options | {"error_cb": lambda error: said.append(str(error)), "message.timeout.ms": 2_000, "log_level": 0}
    producer = confluent_kafka.Producer(given)
    producer.produce(TOPIC, b"x", partition=0, on_delivery=lambda error, _message: said.append(str(error)))
    eventually(lambda: producer.poll(0.1) is None or bool(said), "an error", LIMIT_S)
    producer.purge()
    producer.flush(LIMIT_S)
    return "\n".join(said)


def test_a_client_without_credentials_gets_an_error(secured: Kafka) -> None:
    client = secured.client_settings()
    plain = {"bootstrap.servers": secured.bootstrap_servers}
    assert "brokers are down" in confluents_error(plain)
    assert "listener SASL_SSL failed: what the client sends is not TLS" in secured.timeline()
    tls_alone = plain | {"security.protocol": "SSL", "ssl.ca.location": str(client.authority)}
    assert confluents_error(tls_alone)
    assert "listener SASL_SSL failed: API 3 before authentication" in secured.timeline()
    wrong = client.confluent | {"sasl.password": "wrong"}
    assert "Authentication failed: Invalid username or password" in confluents_error(wrong)
    with pytest.raises(PythonError):
        kafka_python.KafkaProducer(bootstrap_servers=secured.bootstrap_servers, bootstrap_timeout_ms=1_000)

    async def connect() -> None:
        await AIOKafkaProducer(bootstrap_servers=secured.bootstrap_servers).start()

    with pytest.raises(AioError, match="Unable to bootstrap"):
        asyncio.run(connect())


HUGE = 2**31 - 1
ATTACKS = (*forged(HUGE).items(), (ApiKey.WRITE_TXN_MARKERS, markers(HUGE)), (ApiKey.STOP_REPLICA, stop_replica(1)))


@pytest.mark.parametrize("listener", ["SASL_SSL", "BROKERS"])
def test_attacks_as_controller_or_coordinator_change_nothing(secured: Kafka, listener: str) -> None:
    """Before authentication, and by a user without ClusterAction; also on the listener of the brokers."""
    security = secured._host.security
    assert security is not None
    before = (secured.leader(TOPIC), secured.isr(TOPIC), secured.controller)
    assert isinstance(secured._host, MemoryHost)
    incarnation = secured._host._brokers[1].incarnation
    assert incarnation is not None
    (port,) = (one.port for one in incarnation.settings.advertised if one.name == listener)
    context = ssl.create_default_context(cafile=str(secured.client_settings().authority))
    for key, request in ATTACKS:
        version = SUPPORTED[key].last

        def ask(secure: Callable[[socket.socket, str], socket.socket]) -> ResponseValue:
            return ask_broker(("127.0.0.1", port), key, version, request, LIMIT_S, secure)  # noqa: B023

        with pytest.raises((ConnectionError, ssl.SSLError)):
            ask(lambda connection, name: context.wrap_socket(connection, server_hostname=name))
        answer = ask(lambda connection, name: security.connect(connection, name, "eve"))
        assert "CLUSTER_AUTHORIZATION_FAILED" in {ErrorCode(code).name for code in codes(answer)}
    assert (secured.leader(TOPIC), secured.isr(TOPIC), secured.controller) == before
    by_kafka_python(secured.client_settings(), TOPIC, b"after the attacks")


def kafka_pythons_error(client: ClientSettings) -> str:
    try:
        producer = kafka_python.KafkaProducer(**client.kafka_python, bootstrap_timeout_ms=1_000)
        try:
            producer.send(TOPIC, b"x", partition=0).get(LIMIT_S)
        finally:
            producer.close(1)
    except PythonError as error:
        return repr(error)
    return ""


def aiokafkas_error(client: ClientSettings) -> str:
    async def write() -> None:
        async with AIOKafkaProducer(**client.aiokafka) as producer:
            await producer.send_and_wait(TOPIC, b"x", partition=0)

    try:
        asyncio.run(write())
    except AioError as error:
        return repr(error)
    return ""


def kcats_error(client: ClientSettings) -> str:
    words = [program("kcat"), *client.kcat, "-t", TOPIC, "-p", "0", "-P"]
    done = subprocess.run(words, input=b"x", timeout=LIMIT_S, capture_output=True, check=False)
    assert done.returncode != 0
    return done.stderr.decode()


ERRORS: dict[str, Callable[[ClientSettings], str]] = {
    "confluent-kafka": lambda client: confluents_error(client.confluent),
    "kafka-python": kafka_pythons_error,
    "aiokafka": aiokafkas_error,
}
TLS_FAILED = "TLS handshake with 127.0.0.1 on listener SASL_SSL failed"
"""With TLS's alert, where the client sends one."""
FAILURES = {
    "wrong password": ("Invalid username or password", "SCRAM-SHA-512 of 'client': a wrong password"),
    "no such user": ("Invalid username or password", "SCRAM-SHA-512 of 'nobody': no such user"),
    "unknown authority": ("(?i)certificate.?verify.?failed", TLS_FAILED),
    "expired certificate": ("(?i)certificate.?verify.?failed", TLS_FAILED),
    "denied topic": ("(?i)topic.?authorization.?failed", "Principal = User:eve is Denied Operation = Describe"),
}
"""By what is wrong: what the client says, in its error or its log, and what the broker's log says."""


@pytest.fixture(scope="module")
def expired() -> Iterator[Kafka]:
    """A broker whose certificate has expired while it ran."""
    with Kafka(1, security=True) as kafka:
        security = kafka._host.security
        assert security is not None
        security.authority.issue("broker-1", life=-timedelta(days=1))
        eventually(lambda: "verify failed" in confluents_error(kafka.client_settings().confluent), "it has expired")
        yield kafka


def check_failure(
    kafka: Kafka, failure: str, error: Callable[[ClientSettings], str], folder: Path, log: pytest.LogCaptureFixture
) -> None:
    client = kafka.client_settings("eve" if failure == "denied topic" else "client")
    if failure == "wrong password":
        client = replace(client, password="wrong")
    elif failure == "no such user":
        client = replace(client, user="nobody")
    elif failure == "unknown authority":
        from controller.hosts.certificates import Authority

        client = replace(client, authority=Authority(folder, "other").certificate)
    in_client, in_broker = FAILURES[failure]
    before = str(kafka.records).count(in_broker)
    eventually(lambda: re.search(in_client, error(client) + log.text) is not None, in_client)
    eventually(lambda: str(kafka.records).count(in_broker) > before, "a line in the broker's log", LIMIT_S)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("client", ERRORS)
def test_a_failure_is_an_error_of_the_client_and_a_line_of_the_broker(
    secured: Kafka, expired: Kafka, client: str, failure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = expired if failure == "expired certificate" else secured
    check_failure(kafka, failure, ERRORS[client], tmp_path, caplog)


@pytest.mark.programs
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_an_error_of_kcat_and_a_line_of_the_broker(
    secured: Kafka, expired: Kafka, failure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = expired if failure == "expired certificate" else secured
    check_failure(kafka, failure, kcats_error, tmp_path, caplog)


def test_a_user_that_is_not_there_is_named(secured: Kafka) -> None:
    with pytest.raises(KeyError, match=r"user 'bob': expected one of \['admin', 'broker', 'client', 'eve'\]"):
        secured.client_settings("bob")
    with pytest.raises(ValueError, match="user 'admin': expected a printable ASCII name other than"):
        Security(users=("admin",))
    with pytest.raises(ValueError, match="mechanism 'PLAIN': expected SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"):
        Security(mechanism="PLAIN")
    with Kafka() as plain:
        with pytest.raises(RuntimeError, match=r"Kafka\(security=True\)"):
            plain.client_settings()


# -- files


def test_keys_are_for_their_owner_alone_and_go_with_the_cluster(tmp_path: Path) -> None:
    with Kafka(2, security=True, directory=tmp_path) as kafka:
        folder = kafka.client_settings().authority.parent
        assert folder == tmp_path / "secrets"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert sorted(modes) == ["authority.crt", "authority.key", "broker-1.pem", "broker-2.pem"]
        assert {name: mode for name, mode in modes.items() if name != "authority.crt"} == dict.fromkeys(
            ["authority.key", "broker-1.pem", "broker-2.pem"], 0o600
        )
        ssl.create_default_context(cafile=str(folder / "authority.crt"))
    assert not folder.exists()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "controller.hosts.certificates", None)
    with pytest.raises(ModuleNotFoundError, match=r"a secured cluster needs .*camerlengo\[secure\]"):
        Kafka(1, security=True).start()


def test_a_host_that_cannot_secure_its_listeners_says_so() -> None:
    from controller.testing.docker_host import DockerHost

    with pytest.raises(UnsupportedByHost, match="can't secure its listeners"):
        DockerHost(ClusterOptions(1, {}, None, 6_000, None, 30.0, Security()), files=[])
