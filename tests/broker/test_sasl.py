"""SASL on a listener: who gets in, and what else is answered before that."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from controller.broker.request_context import Respond
from controller.broker.security.bounded_notes import BoundedNotes
from controller.broker.security.principal import Requester
from controller.broker.security.sasl import FAILED, SaslListener, SaslSession
from controller.broker.security.sasl_settings import jaas_options, sasl_settings
from controller.broker.security.scram import (
    MECHANISMS,
    ScramClient,
    ScramCredential,
    ScramFailed,
    ScramServer,
    credential_of,
    parse_credential,
    salted,
)
from controller.broker.security.scram_store import is_user_name
from controller.clock import Future, VirtualClock
from controller.protocol.client import ApiVersionsRequest, MetadataRequest
from controller.protocol.codec import SUPPORTED, ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import joined
from controller.protocol.schema import RequestValue
from controller.protocol.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.test_control_plane import forged, markers

PASSWORD = "pencil"


@cache
def stored(mechanism: str) -> ScramCredential:
    return credential_of(mechanism, salted(mechanism, PASSWORD, b"salt", 4_096), b"salt", 4_096)


class Connection:
    def __init__(self, max_session_ms: int = 0) -> None:
        self.clock = VirtualClock()
        self.notes: list[str] = []
        self.passed: list[str] = []
        self.credentials = {("alice", mechanism): stored(mechanism) for mechanism in MECHANISMS}
        listener = SaslListener(
            ("PLAIN", *MECHANISMS),
            {"alice": PASSWORD},
            lambda user, mechanism: Future.resolved(self.credentials.get((user, mechanism))),
            lambda: "server-nonce",
            self.clock,
            lambda _level, text: self.notes.append(text),
            dict.fromkeys(("PLAIN", *MECHANISMS), max_session_ms),
        )
        self.session = SaslSession(listener, Requester("SASL", "10.0.0.9"), self._pass_on)

    def _pass_on(self, frame: bytes, respond: Respond, client: Requester) -> None:
        self.passed.append(str(client.principal))
        respond(())

    def raw(self, frame: bytes) -> Any:
        answers: list[Any] = []
        self.session.receive(frame, answers.append)
        self.clock.advance_to(self.clock.now_ms() + 1)
        (answer,) = answers
        return answer

    def ask(self, key: ApiKey, value: RequestValue, version: int = 1) -> Any:
        answer = self.raw(encode_request(RequestHeader(key, version, 1, "c"), value))
        return None if answer is None else (answer and decode_response(key, version, joined(answer))[1])

    def handshake(self, mechanism: str) -> int:
        return int(self.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism)).error_code)

    def send(self, message: bytes) -> Any:
        return self.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(message))

    def log_in(self, mechanism: str, user: str = "alice", password: str = PASSWORD) -> Any:
        assert self.handshake(mechanism) == 0
        if mechanism == "PLAIN":
            return self.send(f"\0{user}\0{password}".encode())
        client = ScramClient(mechanism, user, password, "client-nonce")
        challenge = self.send(client.first())
        if challenge.error_code:
            return challenge
        answer = self.send(client.final(bytes(challenge.auth_bytes)))
        if not answer.error_code:
            client.check(bytes(answer.auth_bytes))
        return answer

    def asks(self) -> bool:
        """Whether what a client asks is answered."""
        return self.ask(ApiKey.METADATA, MetadataRequest(None)) is not None


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
def test_a_user_with_the_password_gets_in(mechanism: str) -> None:
    connection = Connection()
    assert connection.ask(ApiKey.API_VERSIONS, ApiVersionsRequest()) == ()
    assert connection.log_in(mechanism).error_code == 0
    assert connection.asks()
    assert connection.passed == ["User:ANONYMOUS", "User:alice"]


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("eve", PASSWORD), ("", "")])
def test_no_one_else_does_and_is_not_told_why(mechanism: str, user: str, password: str) -> None:
    connection = Connection()
    answer = connection.log_in(mechanism, user, password)
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED)
    assert not connection.asks()
    assert connection.passed == []
    (line,) = connection.notes
    assert "10.0.0.9 on listener SASL failed" in line
    assert PASSWORD not in line
    assert connection.send(b"\0alice\0" + PASSWORD.encode()) is None, "nor by another attempt on the connection"


def test_nothing_is_answered_before_authentication() -> None:
    assert not Connection().asks()
    assert Connection().send(b"\0alice\0pencil").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert Connection().handshake("GSSAPI") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    halfway = Connection()
    assert halfway.handshake("PLAIN") == 0
    assert not halfway.asks()


ATTACKS = forged(2**31 - 1) | {ApiKey.WRITE_TXN_MARKERS: markers(2**31 - 1)}


@pytest.mark.parametrize("key", ATTACKS)
def test_who_is_not_authenticated_can_not_act_as_controller_or_coordinator(key: ApiKey) -> None:
    for begins in (False, True):
        connection = Connection()
        if begins:
            assert connection.handshake("SCRAM-SHA-256") == 0
        assert connection.ask(key, ATTACKS[key], SUPPORTED[key].last) is None
        (line,) = connection.notes
        assert f"API {int(key)} before authentication" in line
        assert connection.passed == []


def test_a_session_ends_and_is_renewed_by_the_same_user() -> None:
    connection = Connection(max_session_ms=1_000)
    assert connection.log_in("PLAIN").session_lifetime_ms == 1_000
    connection.clock.advance_to(connection.clock.now_ms() + 900)
    assert connection.log_in("SCRAM-SHA-256").session_lifetime_ms == 1_000
    connection.clock.advance_to(connection.clock.now_ms() + 900)
    assert connection.asks()
    connection.clock.advance_to(connection.clock.now_ms() + 200)
    assert not connection.asks()


def test_another_user_can_not_take_over_a_connection() -> None:
    connection = Connection()
    connection.credentials["bob", "SCRAM-SHA-256"] = stored("SCRAM-SHA-256")
    assert connection.log_in("PLAIN").error_code == 0
    assert connection.log_in("SCRAM-SHA-256", "bob").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not connection.asks()


def test_the_first_version_sends_the_messages_bare() -> None:
    connection = Connection()
    assert connection.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("PLAIN"), 0).error_code == 0
    assert connection.raw(f"\0alice\0{PASSWORD}".encode()) == [b""]
    assert connection.asks()


def test_frames_of_no_sense_close_the_connection_and_nothing_else() -> None:
    rng = random.Random(3)
    sound = [
        encode_request(RequestHeader(ApiKey.SASL_HANDSHAKE, 1, 1, "c"), SaslHandshakeRequest("SCRAM-SHA-256")),
        encode_request(RequestHeader(ApiKey.SASL_AUTHENTICATE, 2, 1, "c"), SaslAuthenticateRequest(b"n,,n=a,r=b")),
    ]
    for _ in range(300):
        connection = Connection()
        for frame in sound:
            damaged = bytearray(frame)
            for _ in range(rng.randrange(3)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            connection.raw(bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged) + 1)))]))
        assert "User:alice" not in connection.passed


def test_scram_messages_of_no_sense_are_refused() -> None:
    rng = random.Random(4)
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, "nonce")
    for _ in range(300):
        server = ScramServer("SCRAM-SHA-256", "server")
        first = bytearray(client.first())
        first[rng.randrange(len(first))] = rng.randrange(256)
        try:
            server.first(bytes(first))
            server.challenge(stored("SCRAM-SHA-256"))
            server.final(rng.randbytes(rng.randrange(80)))
        except ScramFailed:
            continue
        raise AssertionError("random bytes are no proof")


def test_the_exchange_of_rfc_7677() -> None:
    salt = bytes.fromhex("5b6d99689d123590") + b"\x8e\xec\xa0\x41\xb1\x12\x9f\x4f"
    client = ScramClient("SCRAM-SHA-256", "user", PASSWORD, "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.final(challenge).endswith(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert salt


def test_credentials_are_written_as_kafka_writes_them() -> None:
    credential = stored("SCRAM-SHA-512")
    text = credential.text()
    assert [part.partition("=")[0] for part in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]
    assert parse_credential(text) == credential
    with pytest.raises(ValueError, match="expected salt"):
        parse_credential("salt=x")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.B required username="x" password="y;=z";', {"username": "x", "password": "y;=z"}),
        ("a.B required\n user_a=b ;", {"user_a": "b"}),
        ("a.B required;", {}),
    ],
)
def test_jaas(text: str, options: dict[str, str]) -> None:
    assert jaas_options(text) == options


def test_wrong_settings_are_named_without_their_secrets() -> None:
    for given, says in (
        ({}, "sasl.enabled.mechanisms=GSSAPI: expected PLAIN"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, 'expected user_NAME="PASSWORD"'),
        ({"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": "hidden"}, "expected MODULE required"),
        ({"connections.max.reauth.ms": "-1"}, "a whole number"),
    ):
        settings, problems = sasl_settings(given, "S", between_brokers=False)
        assert settings is None
        assert any(says in problem for problem in problems), problems
        assert not any("hidden" in problem for problem in problems)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_what_no_znode_can_be_called_is_no_user_name(name: str) -> None:
    assert not is_user_name(name)


def test_lines_about_failures_are_bounded() -> None:
    clock = VirtualClock()
    lines: list[str] = []
    note = BoundedNotes(clock, lambda _level, line: lines.append(line))
    for number in range(1_000):
        note("warning", f"failure {number}")
    assert len(lines) == 100
    clock.advance_to(clock.now_ms() + 1_000)
    for number in range(1_000):
        note("warning", f"later {number}")
    assert lines[100:] == ["later 0 (900 such lines were left out before)", *(f"later {n}" for n in range(1, 10))]
