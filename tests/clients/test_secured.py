"""Four clients over every protocol and mechanism of a cluster that trusts none of them, and what they get told."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import admin

from controller.hosts.local_cluster import BrokerChild
from controller.hosts.secured import ClientSettings
from controller.system import HeldPorts
from controller.zookeeper.embedded import EmbeddedZooKeeper
from tests.hosts.certificates import Authority
from tests.processes import eventually
from tests.programs import program

LIMIT_S = 30.0
TOPIC, SECRET = "open", "secret"
PLAIN_USERS = {"admin": "admin-pw", "alice": "alice-pw", "broker": "broker-pw", "ALICE": "alice-pw"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER = "OAUTHBEARER"
UNSECURED, UNSECURED_TLS = "UNSECURED", "UNSECURED_TLS"
"""Listeners that accept tokens without a signature."""
MAPPED = "MAPPED"
"""A listener with TLS whose rule makes another principal of alice."""
WAYS = [
    ("SSL", ""),
    *((protocol, one) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for one in (*MECHANISMS, OAUTHBEARER)),
]
WRONG = "wrong"
"""A password; as a token, one without the principal's claim."""


def listener_of(protocol: str, mechanism: str) -> str:
    if mechanism != OAUTHBEARER:
        return protocol
    return UNSECURED_TLS if protocol == "SASL_SSL" else UNSECURED


def unsigned(user: str, password: str) -> ClientSettings:
    """How clients in Python show a token."""
    claim = "name" if password == WRONG else "sub"
    parts = ({"alg": "none"}, {claim: user, "iat": time.time(), "exp": time.time() + 3_600})
    token = "".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "." for part in parts)
    return ClientSettings("", user, token, OAUTHBEARER, Path(ssl.get_default_verify_paths().cafile or ""))


@dataclass
class Secured:
    broker: BrokerChild
    ports: Mapping[str, int]
    folder: Path

    def options(
        self, protocol: str, mechanism: str = "", user: str = "alice", password: str = "alice-pw", listener: str = ""
    ) -> dict[str, Any]:
        """For librdkafka."""
        options: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener or listener_of(protocol, mechanism)]}",
            "security.protocol": protocol,
            "log_level": 0,
        }
        if "SSL" in protocol:
            options["ssl.ca.location"] = str(self.folder / "authority.crt")
        if protocol == "SSL":
            options["ssl.certificate.location"] = options["ssl.key.location"] = str(self.folder / f"{user}.pem")
        if mechanism == OAUTHBEARER:
            named = "principalClaimName=name " if password == WRONG else ""
            options |= {"sasl.mechanism": mechanism, "enable.sasl.oauthbearer.unsecure.jwt": "true"}
            options["sasl.oauthbearer.config"] = f"{named}principal={user}"
        elif mechanism:
            options |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return options

    def aiokafka_options(
        self, protocol: str, mechanism: str = "", user: str = "alice", password: str = "alice-pw", listener: str = ""
    ) -> dict[str, Any]:
        options = self.python_options(protocol, mechanism, user, password, listener)
        if mechanism == OAUTHBEARER:
            options["sasl_oauth_token_provider"] = unsigned(user, password).aiokafka["sasl_oauth_token_provider"]
        return options

    def python_options(
        self, protocol: str, mechanism: str = "", user: str = "alice", password: str = "alice-pw", listener: str = ""
    ) -> dict[str, Any]:
        """For kafka-python."""
        options: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{self.ports[listener or listener_of(protocol, mechanism)]}",
            "security_protocol": protocol,
        }
        if "SSL" in protocol:
            options["ssl_context"] = self.context(protocol, user)
        if mechanism == OAUTHBEARER:
            provider = unsigned(user, password).kafka_python["sasl_oauth_token_provider"]
            options |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": provider}
        elif mechanism:
            options |= {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password}
        return options

    def context(self, protocol: str, user: str = "alice") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "authority.crt"))
        if protocol == "SSL":
            context.load_cert_chain(self.folder / f"{user}.pem")
        return context

    def log(self) -> str:
        return self.broker.log_file.read_text(errors="replace")


LISTENERS = ("BROKERS", "SSL", "SASL_PLAINTEXT", "SASL_SSL", UNSECURED, UNSECURED_TLS, MAPPED)


def settings_of(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in PLAIN_USERS.items())
    own = 'username="broker" password="broker-pw"'
    jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {own} {users};"
    given = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "BROKERS:SASL_SSL,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,"
        f"{UNSECURED}:SASL_PLAINTEXT,{UNSECURED_TLS}:SASL_SSL,{MAPPED}:SSL",
        "listener.name.mapped.ssl.client.auth": "required",
        "listener.name.mapped.ssl.principal.mapping.rules": "RULE:^CN=alice$/mallory/,DEFAULT",
        "listener.name.unsecured.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.unsecured.camerlengo.sasl.oauthbearer.allow.unsecured.tokens": "true",
        "listener.name.unsecured_tls.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.unsecured_tls.camerlengo.sasl.oauthbearer.allow.unsecured.tokens": "true",
        "inter.broker.listener.name": "BROKERS",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.crt"),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin;User:broker",
        "offsets.topic.replication.factor": "1",
    }
    passwords = [name for name in ports if name not in ("SSL", UNSECURED, UNSECURED_TLS, MAPPED)]
    given |= {f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas for name in passwords}
    return given


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("pki")
    authority, other = Authority(folder), Authority(folder, "other")
    for name in ("broker", "alice", "eve"):
        authority.sign(name, f"/CN={name}")
    authority.sign("late", "/CN=alice", days=-1)
    other.sign("stranger", "/CN=alice")
    held = HeldPorts(len(LISTENERS))
    ports = dict(zip(LISTENERS, held.numbers, strict=True))
    given = settings_of(folder, ports)
    with EmbeddedZooKeeper(fsync=False) as zookeeper:
        own = {"zookeeper.connect": zookeeper.connect_string, "log.dirs": str(folder / "logs")}
        broker = BrokerChild(1, given | own, folder)
        broker.start()
        try:
            broker.await_ready(time.monotonic() + 2 * LIMIT_S)
            made = Secured(broker, ports, folder)
            prepare(made)
            yield made
        finally:
            broker.kill()
            held.release()


def prepare(secured: Secured) -> None:
    administrator = admin.AdminClient(secured.options("SASL_SSL", "PLAIN", "admin", "admin-pw"))
    eventually(lambda: administrator.list_topics(timeout=LIMIT_S).controller_id == 1, "the broker is the controller")
    topics = [admin.NewTopic(name, 1, 1) for name in (TOPIC, SECRET)]
    for created in administrator.create_topics(topics, operation_timeout=LIMIT_S).values():
        created.result(LIMIT_S)
    sha = {"SCRAM-SHA-256": admin.ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": admin.ScramMechanism.SCRAM_SHA_512}
    for mechanism in sha.values():
        credential = admin.UserScramCredentialUpsertion(
            "alice", admin.ScramCredentialInfo(mechanism, 4096), b"alice-pw"
        )
        for altered in administrator.alter_user_scram_credentials([credential]).values():
            altered.result(LIMIT_S)
    described = administrator.describe_user_scram_credentials(["alice"])["alice"].result(LIMIT_S)
    assert len(described.scram_credential_infos) == 2
    kinds = (admin.AclOperation.READ, admin.AclOperation.WRITE)
    pattern = (admin.ResourceType.TOPIC, TOPIC, admin.ResourcePatternType.LITERAL)
    rules = [admin.AclBinding(*pattern, "User:alice", "*", kind, admin.AclPermissionType.ALLOW) for kind in kinds]
    group = (admin.ResourceType.GROUP, "unused", admin.ResourcePatternType.LITERAL, "User:alice", "*")
    rules.append(admin.AclBinding(*group, admin.AclOperation.READ, admin.AclPermissionType.ALLOW))
    for made in administrator.create_acls(rules).values():
        made.result(LIMIT_S)


# -- clients: one record each, there and back


def by_confluent(secured: Secured, protocol: str, mechanism: str, value: bytes) -> bool:
    producer = confluent_kafka.Producer(secured.options(protocol, mechanism))
    producer.produce(TOPIC, value, partition=0)
    assert producer.flush(LIMIT_S) == 0
    consumer = confluent_kafka.Consumer(secured.options(protocol, mechanism) | {"group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    try:
        while (message := consumer.poll(LIMIT_S)) is not None:
            assert message.error() is None, message.error()
            if message.value() == value:
                return True
        return False
    finally:
        consumer.close()


def by_kafka_python(secured: Secured, protocol: str, mechanism: str, value: bytes) -> bool:
    options = secured.python_options(protocol, mechanism)
    producer = kafka.KafkaProducer(**options, enable_idempotence=False)
    producer.send(TOPIC, value, partition=0).get(LIMIT_S)
    producer.close(5)
    consumer = kafka.KafkaConsumer(**options, consumer_timeout_ms=int(LIMIT_S * 1_000), auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(TOPIC, 0)])
    consumer.seek(kafka.TopicPartition(TOPIC, 0), 0)
    try:
        return any(message.value == value for message in consumer)
    finally:
        consumer.close()


def by_aiokafka(secured: Secured, protocol: str, mechanism: str, value: bytes) -> bool:
    async def there_and_back() -> bool:
        options = secured.aiokafka_options(protocol, mechanism)
        producer = AIOKafkaProducer(**options)
        await producer.start()
        await producer.send_and_wait(TOPIC, value, partition=0)
        await producer.stop()
        consumer = AIOKafkaConsumer(**options, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioTopicPartition(TOPIC, 0)])
        try:
            while (await asyncio.wait_for(consumer.getone(), LIMIT_S)).value != value:
                pass
            return True
        finally:
            await consumer.stop()

    return asyncio.run(there_and_back())


def by_kcat(secured: Secured, protocol: str, mechanism: str, value: bytes) -> bool:
    words = kcat_words(secured.options(protocol, mechanism))
    subprocess.run([*words, "-P"], input=value, check=True, timeout=LIMIT_S)
    read = subprocess.run(
        [*words, "-C", "-e", "-q", "-o", "beginning"], check=True, timeout=LIMIT_S, capture_output=True
    )
    return value in read.stdout.splitlines()


def kcat_words(options: Mapping[str, Any]) -> list[str]:
    words = [program("kcat"), "-t", TOPIC, "-p", "0"]
    for name, text in options.items():
        words += ["-b", text] if name == "bootstrap.servers" else ["-X", f"{name}={text}"]
    return words


CLIENTS = {"confluent-kafka": by_confluent, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_record_goes_there_and_back(secured: Secured, client: str, protocol: str, mechanism: str) -> None:
    assert CLIENTS[client](secured, protocol, mechanism, f"{client} {protocol} {mechanism}".encode())


@pytest.mark.programs
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_a_record_goes_there_and_back_by_kcat(secured: Secured, protocol: str, mechanism: str) -> None:
    assert by_kcat(secured, protocol, mechanism, f"kcat {protocol} {mechanism}".encode())


# -- unsecured tokens of librdkafka's own, where they are accepted


def unsecured(secured: Secured, claims: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{secured.ports[UNSECURED]}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": claims,
        "log_level": 0,
    }


@pytest.mark.programs
def test_kcat_with_an_unsecured_token(secured: Secured) -> None:
    def kcat(claims: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
        words = kcat_words(unsecured(secured, claims))
        return subprocess.run([*words, *how.pop("words")], timeout=LIMIT_S, capture_output=True, check=False, **how)

    assert kcat("principal=alice", words=["-P"], input=b"unsecured").returncode == 0
    assert b"unsecured" in kcat("principal=alice", words=["-C", "-e", "-q", "-o", "beginning"]).stdout.splitlines()
    denied = kcat("principal=eve", words=["-P"], input=b"x")
    assert denied.returncode != 0
    assert b"authorization failed" in denied.stderr.lower()
    refused = kcat("principalClaimName=name principal=alice", words=["-P"], input=b"x")
    assert refused.returncode != 0
    assert b"Authentication failed: the token names no principal" in refused.stderr


def test_an_unsecured_token_without_the_claim_is_refused(secured: Secured) -> None:
    claims = "principalClaimName=name principal=alice"
    assert "Authentication failed: the token names no principal" in failure(unsecured(secured, claims))
    line = "listener UNSECURED failed: OAUTHBEARER: the token names no principal"
    eventually(lambda: line in secured.log(), line)
    assert "listener UNSECURED accepts unsecured tokens: each client is who it says it is" in secured.log()


# -- refusals: a clear error in the client, one line in the broker's log


def failure(options: dict[str, Any], topic: str = TOPIC) -> str:
    """What librdkafka says when it can't write."""
    said: list[str] = []
    producer = confluent_kafka.Producer(options | {"error_cb": lambda error: said.append(str(error)), "log_level": 0})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _message: said.append(str(error)))
    eventually(lambda: producer.poll(0.1) is None or bool(said), "an error")
    producer.purge()
    return "\n".join(said)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password(secured: Secured, mechanism: str) -> None:
    before = secured.log().count("authentication of 127.0.0.1")
    assert "Authentication failed" in failure(secured.options("SASL_PLAINTEXT", mechanism, password="wrong"))
    eventually(lambda: secured.log().count("authentication of 127.0.0.1") > before, "a line in the log")
    assert "wrong" not in secured.log().replace("a wrong password", "")


@pytest.mark.parametrize("name", ["late", "stranger"])
def test_a_certificate_that_is_not_trusted(secured: Secured, name: str) -> None:
    assert "SSL" in failure(secured.options("SSL", user=name))
    eventually(lambda: "TLS handshake with 127.0.0.1 on listener SSL failed" in secured.log(), "a line in the log")


def test_a_client_that_does_not_know_the_authority(secured: Secured) -> None:
    options = secured.options("SASL_SSL", "PLAIN") | {"ssl.ca.location": str(secured.folder / "other.crt")}
    assert "certificate verify failed" in failure(options)


@pytest.mark.parametrize(("user", "topic"), [("eve", TOPIC), ("alice", SECRET)])
def test_a_denied_topic(secured: Secured, user: str, topic: str) -> None:
    assert "authorization failed" in failure(secured.options("SSL", user=user), topic).lower()
    who = f"Principal = User:{user} is Denied Operation = Describe from host = 127.0.0.1"
    line = f"{who} on resource = Topic:LITERAL:{topic}"
    eventually(lambda: line in secured.log(), line)


# -- who is authenticated, but is not whom the ACLs name


def kafka_pythons_error(options: dict[str, Any]) -> str:
    try:
        producer = kafka.KafkaProducer(**options, enable_idempotence=False, bootstrap_timeout_ms=1_000)
        try:
            producer.send(TOPIC, b"x", partition=0).get(LIMIT_S)
        finally:
            producer.close(1)
    except kafka.errors.KafkaError as error:
        return repr(error)
    return ""


def aiokafkas_error(options: dict[str, Any]) -> str:
    async def write() -> None:
        async with AIOKafkaProducer(**options) as producer:
            await producer.send_and_wait(TOPIC, b"x", partition=0)

    try:
        asyncio.run(write())
    except AioError as error:
        return repr(error)
    return ""


WRONG_PRINCIPALS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "a rule that maps to another": ({"protocol": "SSL", "listener": MAPPED, "user": "alice"}, "User:mallory"),
    "the super user's certificate without a rule": (
        {"protocol": "SSL", "listener": MAPPED, "user": "broker"},
        "User:CN=broker",
    ),
    "another user": ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "user": "ALICE"}, "User:ALICE"),
}


def check_wrong_principal(secured: Secured, wrong: str, error: Callable[[Mapping[str, str]], str]) -> None:
    how, principal = WRONG_PRINCIPALS[wrong]
    line = f"Principal = {principal} is Denied Operation = Describe from host = 127.0.0.1"
    before = secured.log().count(line)
    assert re.search("(?i)topic ?authorization ?failed", error(how))
    eventually(lambda: secured.log().count(line) > before, line)


ERRORS: Mapping[str, Callable[[Secured, Mapping[str, str]], str]] = {
    "confluent-kafka": lambda secured, how: failure(secured.options(**how)),
    "kafka-python": lambda secured, how: kafka_pythons_error(secured.python_options(**how)),
    "aiokafka": lambda secured, how: aiokafkas_error(secured.aiokafka_options(**how)),
}


@pytest.mark.parametrize("wrong", WRONG_PRINCIPALS)
@pytest.mark.parametrize("client", ERRORS)
def test_a_wrong_principal(secured: Secured, client: str, wrong: str) -> None:
    check_wrong_principal(secured, wrong, partial(ERRORS[client], secured))


def kcats_error(secured: Secured, how: Mapping[str, str]) -> str:
    words = [*kcat_words(secured.options(**how)), "-P"]
    done = subprocess.run(words, input=b"x", timeout=LIMIT_S, capture_output=True, check=False)
    assert done.returncode != 0
    return done.stderr.decode()


@pytest.mark.programs
@pytest.mark.parametrize("wrong", WRONG_PRINCIPALS)
def test_a_wrong_principal_by_kcat(secured: Secured, wrong: str) -> None:
    check_wrong_principal(secured, wrong, partial(kcats_error, secured))


# -- each client, each protocol and mechanism: what is refused

REFUSED = [
    *(("SSL", "", name) for name in ("late", "stranger")),
    *((protocol, mechanism, WRONG) for protocol, mechanism in WAYS if mechanism),
]
"""With whose certificate, or that the password or token is wrong."""
SAYS = {"": "(?i)certificate|alert|ssl", OAUTHBEARER: "Authentication failed: the token names no principal"}
PASSWORD_SAYS = "(?i)invalid username or password|authentication ?failed"
CLOSED = "Unable to bootstrap"
"""aiokafka 0.14 says no more of a connection that is closed after TLS's or a token's exchange (docs/security.md)."""


@pytest.mark.programs
@pytest.mark.parametrize(("protocol", "mechanism", "wrong"), REFUSED)
@pytest.mark.parametrize("client", [*ERRORS, "kcat"])
def test_each_client_is_refused_each_way_and_says_why(
    secured: Secured, client: str, protocol: str, mechanism: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    how = {"protocol": protocol, "mechanism": mechanism}
    how |= {"password": WRONG} if mechanism else {"user": wrong}
    listener = listener_of(protocol, mechanism)
    line = f"on listener {listener} failed: {mechanism}" if mechanism else f"on listener {listener} failed: "
    before = secured.log().count(line)
    error = ERRORS.get(client, kcats_error)(secured, how)
    says = CLOSED if client == "aiokafka" and mechanism in ("", OAUTHBEARER) else SAYS.get(mechanism, PASSWORD_SAYS)
    assert re.search(says, error + caplog.text), error + caplog.text
    eventually(lambda: secured.log().count(line) > before, line)
