"""SASL OAUTHBEARER on a listener: its messages, which tokens are believed, and for how long."""

from __future__ import annotations

import random
from typing import Any

import pytest

from controller.broker.request_context import Respond
from controller.broker.security.oauth import (
    DUMMY,
    INVALID_TOKEN,
    OAUTHBEARER,
    TokenRefused,
    TokenRules,
    first_message,
    parse_first_message,
    unsecured_claims,
    unsecured_token,
)
from controller.broker.security.principal import Requester
from controller.broker.security.sasl import SaslListener, SaslSession
from controller.broker.security.sasl_settings import ALLOW_UNSECURED, sasl_settings
from controller.clock import Future, VirtualClock
from controller.protocol.client import MetadataRequest
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import joined
from controller.protocol.schema import RequestValue
from controller.protocol.security import SaslAuthenticateRequest, SaslHandshakeRequest

NOW_S = 1_700_000_000
RULES = TokenRules("https://issuer", ("kafka",), "sub", 30_000)
CLAIMS: dict[str, Any] = {
    "sub": "alice",
    "iss": "https://issuer",
    "aud": ["kafka", "other"],
    "iat": NOW_S - 60,
    "exp": NOW_S + 600,
}


class Connection:
    def __init__(self, max_session_ms: int = 0) -> None:
        self.clock = VirtualClock(epoch_ms=NOW_S * 1_000)
        self.notes: list[str] = []
        self.passed: list[str] = []
        self.listener = SaslListener(
            (OAUTHBEARER,),
            {},
            lambda _user, _mechanism: Future.resolved(None),
            lambda: "nonce",
            self.clock,
            lambda _level, text: self.notes.append(text),
            {OAUTHBEARER: max_session_ms},
            lambda token: RULES.check(unsecured_claims(token), self.clock.wall_ms()),
        )
        self.session = SaslSession(self.listener, Requester("SASL", "10.0.0.9"), self._pass_on)

    def _pass_on(self, frame: bytes, respond: Respond, client: Requester) -> None:
        self.passed.append(str(client.principal))
        respond(())

    def raw(self, frame: bytes) -> Any:
        answers: list[Any] = []
        self.session.receive(frame, answers.append)
        (answer,) = answers
        return answer

    def ask(self, key: ApiKey, value: RequestValue, version: int = 1) -> Any:
        answer = self.raw(encode_request(RequestHeader(key, version, 1, "c"), value))
        return None if answer is None else (answer and decode_response(key, version, joined(answer))[1])

    def send(self, message: bytes) -> Any:
        return self.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(message))

    def log_in(self, **changed: Any) -> Any:
        assert self.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(OAUTHBEARER)).error_code == 0
        return self.send(first_message(token(**changed)))

    def asks(self) -> bool:
        return self.ask(ApiKey.METADATA, MetadataRequest(None)) is not None


def token(**changed: Any) -> str:
    return unsecured_token({name: value for name, value in (CLAIMS | changed).items() if value is not None})


def test_the_principal_of_the_token_gets_in() -> None:
    connection = Connection()
    answer = connection.log_in()
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
    assert connection.asks()
    assert connection.passed == ["User:alice"]
    assert connection.notes == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"exp": NOW_S - 31}, "the token has expired"),
        ({"exp": None}, "the token has no expiry"),
        ({"exp": True}, "the token's exp is no time"),
        ({"exp": "tomorrow"}, "the token's exp is no time"),
        ({"exp": 10**400}, "the token's exp is no time"),
        ({"exp": -1}, "the token's exp is no time"),
        ({"nbf": NOW_S + 31}, "the token is not valid yet"),
        ({"iat": NOW_S + 31}, "the token is not valid yet"),
        ({"iat": NOW_S + 20, "exp": NOW_S + 10}, "the token expires before it was issued"),
        ({"iss": "https://other"}, "the token is of another issuer"),
        ({"iss": None}, "the token is of another issuer"),
        ({"aud": "other"}, "the token is for another audience"),
        ({"aud": None}, "the token is for another audience"),
        ({"aud": [["kafka"]]}, "the token is for another audience"),
        ({"sub": None}, "the token names no principal"),
        ({"sub": " "}, "the token names no principal"),
        ({"sub": "a\nPrincipal = User:b"}, "the token names no principal"),
        ({"sub": "a" * 256}, "the token names no principal"),
        ({"sub": 7}, "the token names no principal"),
    ],
)
def test_a_token_that_is_not_valid_is_refused_as_rfc_7628_has_it(changed: dict[str, Any], says: str) -> None:
    connection = Connection()
    answer = connection.log_in(**changed)
    assert (answer.error_code, answer.auth_bytes) == (0, INVALID_TOKEN)
    (line,) = connection.notes
    assert f"authentication of 10.0.0.9 on listener SASL failed: OAUTHBEARER: {says}" in line
    assert "\n" not in line
    answer = connection.send(DUMMY)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message.startswith(f"Authentication failed: {says}")
    assert connection.send(first_message(token())) is None, "one attempt for a connection"
    assert not connection.asks()
    assert (len(connection.notes), connection.listener.failed, connection.passed) == (1, 1, [])


@pytest.mark.parametrize("second", ["token", "handshake", "metadata"])
def test_after_the_error_no_second_attempt_is_answered(second: str) -> None:
    connection = Connection()
    connection.log_in(aud="other")
    if second == "token":
        assert connection.send(first_message(token())).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    elif second == "handshake":
        assert connection.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(OAUTHBEARER)) is None
    else:
        assert not connection.asks()
    assert not connection.asks()
    assert (connection.passed, len(connection.notes)) == ([], 1)


def test_clocks_may_differ_by_the_skew() -> None:
    for changed in ({"exp": NOW_S - 29}, {"nbf": NOW_S + 29}, {"iat": NOW_S + 29}):
        assert Connection().log_in(**changed).auth_bytes == b""


@pytest.mark.parametrize(
    ("max_session_ms", "expires_s", "lifetime_ms"),
    [(0, 600, 0), (60_000, 600, 60_000), (3_600_000, 600, 600_000), (60_000, -20, 10_000)],
)
def test_a_session_lasts_as_long_as_the_token_and_the_setting_allow(
    max_session_ms: int, expires_s: int, lifetime_ms: int
) -> None:
    """0: sessions do not end, as in Kafka 2.8. A token that is valid by the skew alone: as long as the skew lasts."""
    connection = Connection(max_session_ms)
    assert connection.log_in(exp=NOW_S + expires_s).session_lifetime_ms == lifetime_ms
    connection.clock.advance_to(connection.clock.now_ms() + (lifetime_ms or 10_000_000) - 1)
    assert connection.asks()
    if lifetime_ms:
        connection.clock.advance_to(connection.clock.now_ms() + 2)
        assert not connection.asks()


def test_a_session_is_renewed_by_a_new_token_of_the_same_principal() -> None:
    connection = Connection(60_000)
    connection.log_in()
    connection.clock.advance_to(connection.clock.now_ms() + 50_000)
    assert connection.log_in(exp=NOW_S + 700).session_lifetime_ms == 60_000
    connection.clock.advance_to(connection.clock.now_ms() + 50_000)
    assert connection.asks()
    answer = connection.log_in(sub="bob")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: User:bob in place of User:alice"
    assert not connection.asks()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", ("a.b.c", "")),
        (b"n,a=alice,\x01auth=bearer  a.b.\x01\x01", ("a.b.", "alice")),
        (b"n,a=a=2Cb=3D,\x01auth=Bearer a\x01\x01", ("a", "a,b=")),
        (b"n,,\x01traceId=1 2\x01auth=Bearer a\x01host=x=y\x01\x01", ("a", "")),
    ],
)
def test_first_messages(message: bytes, expected: tuple[str, str]) -> None:
    assert parse_first_message(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        b"",
        DUMMY,
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,,\x01x1=a\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 65_537 + b"\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 50_000,
    ],
)
def test_messages_of_no_sense_are_refused_at_once(message: bytes) -> None:
    connection = Connection()
    connection.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(OAUTHBEARER))
    answer = connection.send(message)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message.startswith("Authentication failed: ")
    assert not connection.asks()
    assert len(connection.notes) == 1


def test_an_authorization_id_is_the_principals() -> None:
    for authzid, error in (("alice", ErrorCode.NONE), ("admin", ErrorCode.SASL_AUTHENTICATION_FAILED)):
        connection = Connection()
        connection.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(OAUTHBEARER))
        assert connection.send(f"n,a={authzid},\x01auth=Bearer {token()}\x01\x01".encode()).error_code == error


def test_random_bytes_are_no_token() -> None:
    rng = random.Random(5)
    sound = first_message(token())
    for _ in range(500):
        damaged = bytearray(sound)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            text, _ = parse_first_message(
                bytes(damaged[: rng.randrange(len(damaged) + 1)] if rng.random() < 0.3 else damaged)
            )
            RULES.check(unsecured_claims(text), NOW_S * 1_000.0)
        except TokenRefused:
            continue


@pytest.mark.parametrize(
    "text", ["", "..", "a", "a.b", "e30.e30.", "eyJhbGciOiJub25lIn0.W10.", "eyJhbGciOiJub25lIn0.e30.x"]
)
def test_what_is_no_unsecured_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        unsecured_claims(text)


# -- settings

KEYS = "sasl.oauthbearer.jwks.endpoint.url"
OAUTH = {"sasl.enabled.mechanisms": OAUTHBEARER, "sasl.mechanism.inter.broker.protocol": OAUTHBEARER}


def test_settings_are_kafkas() -> None:
    given = OAUTH | {
        KEYS: "file:///keys.json",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka, other",
        "listener.name.s.oauthbearer.sasl.oauthbearer.sub.claim.name": "client_id",
        "sasl.oauthbearer.clock.skew.seconds": "5",
        "listener.name.s.sasl.oauthbearer.token.endpoint.url": "file:///token",
        "listener.name.s.oauthbearer.connections.max.reauth.ms": "1000",
    }
    settings, problems = sasl_settings(given, "S", between_brokers=True)
    assert problems == []
    assert settings is not None
    assert settings.oauth is not None
    assert settings.oauth.rules == TokenRules("https://issuer", ("kafka", "other"), "client_id", 5_000)
    assert (settings.oauth.keys_file, settings.oauth.token_file) == ("/keys.json", "/token")
    assert settings.max_session_ms == {OAUTHBEARER: 1_000}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, f"expected {KEYS}, or {ALLOW_UNSECURED}=true without keys"),
        ({KEYS: "https://issuer/keys"}, f"{KEYS}=https://issuer/keys: expected file:///PATH"),
        ({KEYS: "file:///k", ALLOW_UNSECURED: "true"}, f"{ALLOW_UNSECURED}=true: expected false"),
        ({ALLOW_UNSECURED: "yes"}, f"{ALLOW_UNSECURED}=yes: expected true or false"),
        ({KEYS: "file:///k", "sasl.oauthbearer.clock.skew.seconds": "-1"}, "expected 0 to 3600"),
        ({KEYS: "file:///k"}, "expected sasl.oauthbearer.token.endpoint.url"),
        (
            {
                ALLOW_UNSECURED: "true",
                "listener.name.s.oauthbearer.sasl.jaas.config": 'a.B required unsecuredValidatorRequiredScope="x";',
            },
            "unsecuredValidatorRequiredScope: expected unsecuredLoginStringClaim_NAME",
        ),
    ],
)
def test_wrong_settings_are_named(given: dict[str, str], says: str) -> None:
    settings, problems = sasl_settings(OAUTH | given, "S", between_brokers=True)
    assert settings is None
    assert any(says in problem for problem in problems), problems
