"""SASL OAUTHBEARER (RFC 7628, KIP-255): its messages, and what the claims of a token must be. Pure.

Who signed a token is checked before, by the host that has the keys (`controller/hosts/token_keys.py`). The messages and
the rules about times are those of Kafka 2.8's OAuthBearerSaslServer and OAuthBearerUnsecuredValidatorCallbackHandler;
issuer and audience are checked as Kafka does since 3.1 (KIP-768), whose names the settings have.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from controller.broker.security.principal import USER, Principal

OAUTHBEARER = "OAUTHBEARER"
TOKEN_MAX = 65_536
"""Characters of a token."""
NAME_MAX = 255
"""Characters of a principal's name, as OpenID Connect bounds `sub`."""
DUMMY = b"\x01"
"""What a client answers to the error before the exchange ends (RFC 7628, 3.2.3)."""
INVALID_TOKEN = b'{"status":"invalid_token"}'
LATEST_S = 1e11
"""A time after this, in seconds, is none."""

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIRS = r"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
_FIRST = re.compile(rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+)", re.ASCII)


class TokenRefused(Exception):
    """`says` to the client why; the text, for the log, has more."""

    def __init__(self, says: str, detail: str = "") -> None:
        super().__init__(f"{says}{': ' if detail else ''}{detail}")
        self.says = says


class Token(msgspec.Struct, frozen=True):
    """A token that is valid: whose it is, and the milliseconds for which it is valid still."""

    principal: Principal
    left_ms: int


CheckToken: TypeAlias = Callable[[str], Token]
"""Raises TokenRefused."""


class TokenRules(msgspec.Struct, frozen=True):
    """`issuer`, `audiences`: what `iss`, and one of `aud`, must be; empty: any. `claim` has the principal's name."""

    issuer: str = ""
    audiences: tuple[str, ...] = ()
    claim: str = "sub"
    skew_ms: int = 30_000

    def check(self, claims: Mapping[str, Any], now_ms: float) -> Token:
        """Raises TokenRefused. `now_ms`: since 1970. A token that is valid by the skew alone ends with the skew."""
        expires_ms = _time(claims, "exp")
        issued_ms, from_ms = _time(claims, "iat"), _time(claims, "nbf")
        if expires_ms is None:
            raise TokenRefused("the token has no expiry (exp)")
        left_ms = expires_ms - now_ms
        if left_ms + self.skew_ms <= 0:
            raise TokenRefused("the token has expired", f"{-left_ms / 1_000.0:.0f} s ago, of {self._named(claims)}")
        for name, at_ms in (("iat", issued_ms), ("nbf", from_ms)):
            if at_ms is not None and at_ms - self.skew_ms > now_ms:
                early = f"{name} is {(at_ms - now_ms) / 1_000.0:.0f} s ahead, of {self._named(claims)}"
                raise TokenRefused("the token is not valid yet", early)
        if issued_ms is not None and issued_ms >= expires_ms:
            raise TokenRefused("the token expires before it was issued")
        if self.issuer and claims.get("iss") != self.issuer:
            raise TokenRefused("the token is of another issuer", f"{claims.get('iss')!r:.100}")
        found = claims.get("aud")
        if self.audiences and not set(_texts(found)) & set(self.audiences):
            raise TokenRefused("the token is for another audience", f"{found!r:.100} of {self._named(claims)}")
        left_ms = left_ms if left_ms > 0 else left_ms + self.skew_ms
        return Token(Principal(USER, self._principal(claims)), max(1, int(left_ms)))

    def _named(self, claims: Mapping[str, Any]) -> str:
        return f"{claims.get(self.claim)!r:.100}"

    def _principal(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self.claim)
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > NAME_MAX:
            expected = f"expected 1 to {NAME_MAX} printable characters in the claim {self.claim}"
            raise TokenRefused("the token names no principal", expected)
        return name


def _texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(one for one in values if isinstance(one, str))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Milliseconds since 1970; None if the token does not have it."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LATEST_S:
        raise TokenRefused(f"the token's {name} is no time", f"{value!r:.50}")
    return value * 1_000.0


class OAuthSettings(msgspec.Struct, frozen=True):
    """Of a listener. `keys_file`: keys as JWKS or PEM; "" if unsecured tokens are accepted in their place. For the
    login to other brokers: `token_file`, or `own_claims` for unsecured tokens that are made here."""

    keys_file: str
    rules: TokenRules
    token_file: str = ""
    own_claims: Mapping[str, str] = {}
    own_lifetime_s: int = 3_600


# -- messages


def first_message(token: str) -> bytes:
    """The client's."""
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def parse_first_message(message: bytes) -> tuple[str, str]:
    """Return the token and the authorization id, "" if there is none. Extensions may be there, and mean nothing.
    Raises TokenRefused."""
    match = _FIRST.fullmatch(message.decode("latin-1"))
    if match is None:
        raise TokenRefused("expected a first message of OAUTHBEARER")
    pairs = [pair.partition("=") for pair in match["pairs"].split("\x01")[:-1]]
    values = {name: value for name, _, value in pairs}
    auth = _AUTH.fullmatch(values.get("auth", ""))
    if auth is None or len(values) < len(pairs) or auth["scheme"].lower() != "bearer":
        raise TokenRefused("expected one auth=Bearer TOKEN in the first message")
    if len(auth["token"]) > TOKEN_MAX:
        raise TokenRefused(f"the token has more than {TOKEN_MAX} characters")
    return auth["token"], (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")


# -- unsecured tokens (RFC 7519, 6), for tests


def unsecured_token(claims: Mapping[str, Any]) -> str:
    """A token without a signature."""
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def unsecured_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token without a signature. Raises TokenRefused."""
    head, _, rest = token.partition(".")
    body, dot, signature = rest.partition(".")
    if not dot or _decoded(head).get("alg") != "none" or signature:
        raise TokenRefused("expected an unsecured token", 'alg "none" and no signature')
    return _decoded(body)


def parse_claims(data: bytes) -> Mapping[str, Any]:
    """Return the object of a part of a token. Raises TokenRefused."""
    try:
        found = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TokenRefused("a part of the token is no JSON object")
    return found


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(part)).decode().rstrip("=")


def _decoded(part: str) -> Mapping[str, Any]:
    try:
        return parse_claims(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise TokenRefused("a part of the token is not base64url") from None
