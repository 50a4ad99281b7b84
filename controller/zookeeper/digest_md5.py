"""SASL DIGEST-MD5 (RFC 2831) as ZooKeeper's clients and servers use it, both ends. Pure; nonces are given.

The server challenges, the client answers with a proof of its password, and the server proves that it knows it, too. The
realm and the URI are those that ZooKeeper's own code has; there is no layer of encryption: TLS is for that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

REALM, URI = "zk-sasl-md5", "zookeeper/zk-sasl-md5"
MESSAGE_MAX = 4_096
_COUNT, _PROTECTION = "00000001", "auth"
_FIELD = re.compile(r'\s*(?P<name>[\w-]+)=(?:"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<bare>[^,"]*))\s*(?:,|$)')


class DigestFailed(Exception):
    """The other end's message is no sound one, or it does not know the password."""


def fields_of(message: bytes) -> dict[str, str]:
    """Raises DigestFailed."""
    if len(message) > MESSAGE_MAX:
        raise DigestFailed(f"a message of {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise DigestFailed("a message that is not UTF-8") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _FIELD.match(text, at)
        if match is None or match["name"] in found:
            raise DigestFailed("a message that is no list of names and values")
        quoted = match["quoted"]
        found[match["name"]] = match["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = match.end()
    return found


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _hex(text: bytes) -> str:
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def _proof(user: str, password: str, realm: str, nonce: str, own_nonce: str, method: str) -> str:
    """`method`: AUTHENTICATE for the client's proof, empty for the server's."""
    secret = hashlib.md5(f"{user}:{realm}:{password}".encode(), usedforsecurity=False).digest()
    session = _hex(secret + f":{nonce}:{own_nonce}".encode())
    return _hex(f"{session}:{nonce}:{_COUNT}:{own_nonce}:{_PROTECTION}:{_hex(f'{method}:{URI}'.encode())}".encode())


class DigestClient:
    """One login. `nonce`: random, the client's own."""

    def __init__(self, user: str, password: str, nonce: str) -> None:
        self._user, self._password, self._nonce = user, password, nonce
        self._expected = ""

    def answer(self, challenge: bytes) -> bytes:
        """Answer the server's challenge. Raises DigestFailed."""
        fields = fields_of(challenge)
        nonce, realm = fields.get("nonce", ""), fields.get("realm", REALM)
        offered = {one.strip() for one in fields.get("qop", _PROTECTION).split(",")}
        if not nonce or fields.get("algorithm") != "md5-sess" or _PROTECTION not in offered:
            raise DigestFailed("a challenge that is none of DIGEST-MD5 with qop auth")
        given = (self._user, self._password, realm, nonce, self._nonce)
        self._expected = _proof(*given, "")
        quoted = {"username": self._user, "realm": realm, "nonce": nonce, "cnonce": self._nonce, "digest-uri": URI}
        parts = [f"{name}={_quoted(value)}" for name, value in quoted.items()]
        parts += [f"nc={_COUNT}", f"qop={_PROTECTION}", f"response={_proof(*given, 'AUTHENTICATE')}", "charset=utf-8"]
        return ",".join(parts).encode()

    def check(self, message: bytes) -> None:
        """Check the server's proof. Raises DigestFailed."""
        if not hmac.compare_digest(fields_of(message).get("rspauth", "").encode(), self._expected.encode()):
            raise DigestFailed("the server does not know the password")


class DigestServer:
    """One login. `users`: their passwords. `user` is set once it is proven."""

    def __init__(self, users: Mapping[str, str], nonce: str) -> None:
        self._users, self._nonce = users, nonce
        self._challenged = False
        self.user: str | None = None

    def answer(self, message: bytes) -> bytes:
        """The challenge, for a first message, or the proof for the client's. Raises DigestFailed."""
        if not self._challenged:
            self._challenged = True
            nonce = _quoted(self._nonce)
            return f'realm="{REALM}",nonce={nonce},qop="{_PROTECTION}",charset=utf-8,algorithm=md5-sess'.encode()
        fields = fields_of(message)
        user, own_nonce = fields.get("username", ""), fields.get("cnonce", "")
        expected = {"realm": REALM, "nonce": self._nonce, "digest-uri": URI, "nc": _COUNT, "qop": _PROTECTION}
        wrong = [name for name, value in expected.items() if fields.get(name) != value]
        password = self._users.get(user)
        given = (user, password or "", REALM, self._nonce, own_nonce)
        right = hmac.compare_digest(_proof(*given, "AUTHENTICATE").encode(), fields.get("response", "").encode())
        if password is None or wrong or not right or not own_nonce or self.user is not None:
            raise DigestFailed("a wrong password, no such user, or fields that do not fit the challenge")
        self.user = user
        return f"rspauth={_proof(*given, '')}".encode()
