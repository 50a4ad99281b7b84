"""A cluster whose users have tokens: three clients, sessions that end, and tokens that are not accepted.

kcat asks no server for signed tokens here (its librdkafka is without curl): tests/clients/test_secured.py has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from controller.broker.security.oauth import OAUTHBEARER
from controller.hosts.secured import ClientSettings, Security
from controller.hosts.token_keys import TokenIssuer
from controller.testing import Kafka
from tests.testing import test_secured as clients
from tests.testing.test_secured_faults import Confluent, sasl

SESSION_MS = 2_500
"""Long enough that a busy machine leaves time to authenticate again: from 85% of it on."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    settings = {"connections.max.reauth.ms": SESSION_MS}
    with Kafka(2, security=Security(mechanism=OAUTHBEARER), settings=settings) as kafka:
        kafka.create_topic(clients.TOPIC, 1, 2)
        yield kafka


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_each_client_writes_and_reads_with_its_token(kafka: Kafka, client: str) -> None:
    clients.CLIENTS[client](kafka.client_settings(), clients.TOPIC, client.encode())
    assert sorted(kafka.isr(clients.TOPIC)) == [1, 2]


def test_brokers_and_clients_authenticate_again_before_their_sessions_end(kafka: Kafka) -> None:
    leader = kafka.leader(clients.TOPIC)
    assert leader is not None
    failed = sasl(kafka, leader, "SASL_SSL").failed
    writer = Confluent(kafka.client_settings())
    writer.send(b"before")
    before = sasl(kafka, leader, "SASL_SSL").authenticated_again
    kafka.wait_until(lambda: writer.poll() and sasl(kafka, leader, "SASL_SSL").authenticated_again >= before + 2)
    writer.send(b"after")
    kafka.wait_until(lambda: sasl(kafka, leader, "BROKERS").authenticated_again >= 2)
    assert sorted(kafka.isr(clients.TOPIC)) == [1, 2]
    assert (sasl(kafka, leader, "BROKERS").failed, sasl(kafka, leader, "SASL_SSL").failed) == (0, failed)


TOKENS: Mapping[str, tuple[Callable[[TokenIssuer], str], str]] = {
    "wrong signature": (
        lambda issuer: issuer.token("client").rpartition(".")[0] + "." + issuer.token("admin").rpartition(".")[2],
        "the token's signature is not accepted",
    ),
    "expired": (lambda issuer: issuer.token("client", -60), "the token has expired"),
    "wrong audience": (lambda issuer: issuer.token("client", aud="other"), "the token is for another audience"),
    "wrong issuer": (lambda issuer: issuer.token("client", iss="other"), "the token is of another issuer"),
}


def with_token(kafka: Kafka, made: Callable[[TokenIssuer], str]) -> ClientSettings:
    security = kafka._host.security
    assert security is not None
    assert security.issuer is not None
    return replace(kafka.client_settings(), password=made(security.issuer))


@pytest.mark.parametrize("failure", TOKENS)
@pytest.mark.parametrize("client", clients.ERRORS)
def test_a_token_that_is_refused_is_an_error_of_the_client_and_a_line_of_the_broker(
    kafka: Kafka, client: str, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """aiokafka 0.14 takes the error of RFC 7628 for success; the broker then closes the connection, as Kafka does."""
    made, says = TOKENS[failure]
    before = kafka.timeline().count(says)
    error = clients.ERRORS[client](with_token(kafka, made)) + caplog.text
    assert ("Unable to bootstrap" if client == "aiokafka" else f"Authentication failed: {says}") in error
    assert kafka.timeline().count(says) > before
