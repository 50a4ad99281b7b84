"""Keys of tokens from files: which signatures are accepted, and what a broker logs in to others with."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from controller.broker.security.oauth import (
    OAUTHBEARER,
    OAuthSettings,
    TokenRefused,
    TokenRules,
    unsecured_claims,
    unsecured_token,
)
from controller.broker.security.principal import Requester
from controller.broker.security.sasl import SaslListener, SaslSession
from controller.broker.security.sasl_settings import SaslSettings
from controller.clock import Future, VirtualClock
from controller.hosts.login import Login, LoginFailed, read_token
from controller.hosts.tls import BadCertificates
from controller.hosts.token_keys import FILE_BYTES_MAX, KEYS_MAX, TokenKeys, load_keys
from controller.protocol.codec import RequestHeader, request_head, response_body
from controller.protocol.framing import joined

FIRST, SECOND = (ECKey.generate_key("P-256", {"kid": kid}) for kid in ("first", "second"))
CLAIMS: Mapping[str, Any] = {"sub": "broker", "exp": 2_000_000_000}


def signed(key: Key, algorithm: str = "ES256", claims: Mapping[str, Any] = CLAIMS, **head: Any) -> str:
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return str(jws.serialize_compact({"alg": algorithm, **head}, json.dumps(claims), key, registry=registry))


def jwks(*keys: Key, private: bool = False) -> str:
    return json.dumps({"keys": [key.as_dict(private=private) for key in keys]})


def pem(key: Key) -> str:
    return str(key.as_pem(private=False).decode())


class Keys:
    def __init__(self, path: Path, text: str) -> None:
        self.path, self.notes, self.now_s = path, [], 0.0  # type: Path, list[str], float
        path.write_text(text)
        self.keys = TokenKeys(path, lambda: self.now_s, lambda level, line: self.notes.append(f"{level} {line}"))

    def refusal(self, token: str) -> str:
        with pytest.raises(TokenRefused) as refused:
            self.keys.claims(token)
        return str(refused.value)


@pytest.mark.parametrize("text", [lambda: jwks(FIRST, SECOND), lambda: pem(FIRST) + "\n" + pem(SECOND)])
def test_a_token_that_a_key_of_the_file_signed_is_accepted(tmp_path: Path, text: Callable[[], str]) -> None:
    keys = Keys(tmp_path / "keys", text())
    for key, head in ((FIRST, {"kid": "first"}), (SECOND, {}), (SECOND, {"kid": "second", "typ": "JWT", "own": 1})):
        assert keys.keys.claims(signed(key, **head)) == CLAIMS
    other = ECKey.generate_key("P-256", {"kid": "first"})
    assert "signature is not accepted" in keys.refusal(signed(other, kid="first"))
    first, _, last = signed(FIRST).split(".")
    forged = unsecured_token({**CLAIMS, "sub": "admin"}).split(".")[1]
    assert "signature is not accepted" in keys.refusal(f"{first}.{forged}.{last}")


def test_the_kid_chooses_the_key(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys", jwks(FIRST, SECOND))
    assert "no key with kid 'third'" in keys.refusal(signed(FIRST, kid="third"))
    assert "none of the keys" in keys.refusal(signed(FIRST, kid="second"))


def test_a_client_can_not_choose_a_weaker_algorithm(tmp_path: Path) -> None:
    """Nor none, nor one in which the public key is the secret."""
    keys = Keys(tmp_path / "keys", pem(FIRST))
    assert "algorithm 'none'" in keys.refusal(unsecured_token(CLAIMS))
    signed_part = "eyJhbGciOiJIUzI1NiJ9." + unsecured_token(CLAIMS).split(".")[1]
    by_public_key = hmac.digest(pem(FIRST).encode(), signed_part.encode(), "sha256")
    forged = f"{signed_part}.{base64.urlsafe_b64encode(by_public_key).decode().rstrip('=')}"
    assert "algorithm 'HS256'" in keys.refusal(forged)
    assert "algorithm ['ES256']" in keys.refusal("eyJhbGciOlsiRVMyNTYiXX0.e30.AA")


@pytest.mark.parametrize("token", ["", "a", "a.b.c", "..", "e30.e30.", "W10.e30.AA", "eyJhbGciOiJFUzI1NiJ9.e30."])
def test_what_is_no_signed_token_is_refused(tmp_path: Path, token: str) -> None:
    assert Keys(tmp_path / "keys", pem(FIRST)).refusal(token)


def test_rsa_keys_of_a_provider(tmp_path: Path) -> None:
    key = RSAKey.generate_key(2048, {"kid": "r", "use": "sig", "alg": "RS256"})
    keys = Keys(tmp_path / "keys", json.dumps({"keys": [key.as_dict(private=False), FIRST.as_dict(private=False)]}))
    assert keys.keys.claims(signed(key, "RS256", kid="r")) == CLAIMS
    assert "signature is not accepted" in keys.refusal(signed(RSAKey.generate_key(2048), "PS256", kid="r"))


def test_keys_are_loaded_again_when_the_file_changes(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys", jwks(FIRST))
    token = signed(SECOND, kid="second")
    keys.refusal(token)
    keys.path.write_text(jwks(SECOND))
    keys.refusal(token)
    keys.now_s = 1.0
    assert keys.keys.claims(token) == CLAIMS
    assert "no key with kid" in keys.refusal(signed(FIRST, kid="first"))
    keys.path.write_text("{")
    keys.now_s = 2.0
    assert keys.keys.claims(token) == CLAIMS, "the keys before stay in use"
    assert [line.split(":")[0] for line in keys.notes] == [
        "info keys of tokens were loaded again",
        "error keys of tokens stay as they were",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected public keys as JWKS or PEM"),
        ('{"keys": []}', "expected 1 to 32 keys"),
        ('{"keys": [{"kty": "none"}]}', "expected public keys as JWKS or PEM"),
        ("[" * 2_000, "expected public keys as JWKS or PEM"),
        (jwks(FIRST, private=True), "found a private or symmetric one"),
        (jwks(OctKey.generate_key(256)), "found a private or symmetric one"),
        (json.dumps({"keys": [FIRST.as_dict(private=False, use="enc")]}), "found 0"),
        (jwks(*[FIRST] * (KEYS_MAX + 1)), "expected 1 to 32 keys"),
        (" " * (FILE_BYTES_MAX + 1), "more than"),
    ],
    ids=["empty", "no key", "no type", "deep", "private", "symmetric", "encrypts", "many", "long"],  # keys are random
)
def test_a_file_without_usable_keys_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(BadCertificates, match=says) as failed:
        load_keys(path)
    assert str(path) in str(failed.value)
    with pytest.raises(BadCertificates, match="none"):
        load_keys(tmp_path / "none")


# -- between brokers


def log_in(oauth: OAuthSettings, check: Callable[[str], Mapping[str, Any]]) -> tuple[float | None, str]:
    """Return after how long to log in again, and as whom."""
    clock = VirtualClock(epoch_ms=1_900_000_000_000)
    listener = SaslListener(
        (OAUTHBEARER,),
        {},
        lambda _user, _mechanism: Future.resolved(None),
        lambda: "nonce",
        clock,
        lambda _level, _line: None,
        {OAUTHBEARER: 1_000_000},
        lambda token: oauth.rules.check(check(token), clock.wall_ms()),
    )
    passed: list[str] = []
    session = SaslSession(listener, Requester("B"), lambda _frame, _respond, who: passed.append(str(who.principal)))
    login = Login(SaslSettings((OAUTHBEARER,), {}, OAUTHBEARER, None, {}, oauth))

    async def ask(header: RequestHeader, body: bytes) -> bytes:
        answers: list[Any] = []
        session.receive(request_head(header) + body, answers.append)
        return response_body(header.api_key, header.api_version, joined(answers[0]))[1]

    try:
        login.on(ask).send(None)
    except StopIteration as done:
        session.receive(b"\x00\x03", lambda _parts: None)
        return done.value, passed[0]
    raise AssertionError("a login that waits")


def test_a_broker_logs_in_with_the_token_of_a_file_which_is_read_each_time(tmp_path: Path) -> None:
    keys, token = Keys(tmp_path / "keys", jwks(FIRST)), tmp_path / "token"
    oauth = OAuthSettings(str(keys.path), TokenRules(), str(token))
    with pytest.raises(LoginFailed, match="expected a token"):
        log_in(oauth, keys.keys.claims)
    token.write_text(signed(FIRST, claims={"sub": "broker", "exp": 1_900_000_100}) + "\n")
    assert log_in(oauth, keys.keys.claims) == (85_000.0, "User:broker")
    token.write_text(signed(SECOND))
    with pytest.raises(LoginFailed, match="Authentication failed: the token's signature is not accepted"):
        log_in(oauth, keys.keys.claims)


def test_a_broker_makes_its_own_unsecured_token_where_they_are_accepted() -> None:
    oauth = OAuthSettings("", TokenRules(skew_ms=10**12), own_claims={"sub": "broker"}, own_lifetime_s=60)
    claims = unsecured_claims(read_token(oauth))
    assert (claims["sub"], claims["exp"] - claims["iat"]) == ("broker", 60)
    assert log_in(oauth, unsecured_claims)[1] == "User:broker"
