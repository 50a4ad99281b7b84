"""SCRAM (RFC 5802) with SHA-256 and SHA-512, both ends, and Kafka's form of its credentials. Pure.

The server keeps neither the password nor what it could be proved with: a salt, an iteration count, and two keys
(`ScramCredential`). Each end of an exchange is an object whose methods take the other's messages in their order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

import msgspec

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The names of the hashes, by mechanism."""
LEAST_ITERATIONS = 4_096
MOST_ITERATIONS = 16_384
"""Kafka's bounds of what an administrator may set."""


class ScramFailed(Exception):
    """The other end's message is no sound one, or it does not know the password."""


class ScramCredential(msgspec.Struct, frozen=True):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def text(self) -> str:
        """As in the config of a user's znode."""
        keys = (("salt", self.salt), ("stored_key", self.stored_key), ("server_key", self.server_key))
        return ",".join(f"{name}={_b64(value)}" for name, value in keys) + f",iterations={self.iterations}"


def parse_credential(text: str) -> ScramCredential:
    """Raises ValueError; it does not show the text."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        salt, stored, server = (
            base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        return ScramCredential(salt, stored, server, int(parts["iterations"]))
    except (KeyError, ValueError, binascii.Error):
        raise ValueError("a SCRAM credential: expected salt, stored_key, server_key and iterations") from None


def credential_of(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """From what AlterUserScramCredentials carries."""
    name = MECHANISMS[mechanism]
    client_key = _hmac(name, salted_password, b"Client Key")
    server_key = _hmac(name, salted_password, b"Server Key")
    return ScramCredential(salt, hashlib.new(name, client_key).digest(), server_key, iterations)


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)


def _hmac(name: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, name)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ScramFailed("a message that is not base64") from None


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a message that is not UTF-8") from None


_FIRST = re.compile(
    r"(?P<gs2>n,(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<name>[^,]*),r=(?P<nonce>[!-+\--~]+)(?:,.*)?)", re.S
)
_FINAL = re.compile(r"(?P<unproved>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[^p].*)?),p=(?P<proof>[^,]*)", re.S)
MESSAGE_MAX = 8_192


class ScramServer:
    """One exchange. `user` is known after `first`; then `challenge` and `final`."""

    def __init__(self, mechanism: str, nonce: str) -> None:
        self._hash = MECHANISMS[mechanism]
        self._nonce = nonce
        self.user = ""
        self._gs2 = self._bare = self._challenge = ""
        self._credential: ScramCredential | None = None

    def first(self, message: bytes) -> str:
        """Take the client's first message, and return the user's name."""
        match = _FIRST.fullmatch(_text(message[: MESSAGE_MAX + 1])) if len(message) <= MESSAGE_MAX else None
        if match is None:
            raise ScramFailed("a first message that is none of SCRAM")
        user = match["name"].replace("=2C", ",").replace("=3D", "=")
        if match["authzid"] and match["authzid"].removeprefix("a=") != match["name"]:
            raise ScramFailed("an authorization id that is not the user")
        self.user, self._gs2, self._bare = user, match["gs2"], match["bare"]
        self._nonce = match["nonce"] + self._nonce
        return user

    def challenge(self, credential: ScramCredential) -> bytes:
        self._credential = credential
        self._challenge = f"r={self._nonce},s={_b64(credential.salt)},i={credential.iterations}"
        return self._challenge.encode()

    def final(self, message: bytes) -> bytes:
        """Return the server's last message, if the client has the password."""
        credential = self._credential
        match = _FINAL.fullmatch(_text(message)) if len(message) <= MESSAGE_MAX else None
        if match is None or credential is None:
            raise ScramFailed("a last message that is none of SCRAM")
        # As Kafka: librdkafka before 2.2 repeats its own nonce before the whole of ours.
        if not match["nonce"].endswith(self._nonce) or match["binding"] != _b64(self._gs2.encode()):
            raise ScramFailed("a last message of another exchange")
        signed = f"{self._bare},{self._challenge},{match['unproved']}".encode()
        signature = _hmac(self._hash, credential.stored_key, signed)
        proof = _unb64(match["proof"])
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        if len(proof) != len(signature) or not hmac.compare_digest(
            hashlib.new(self._hash, key).digest(), credential.stored_key
        ):
            raise ScramFailed("a wrong password")
        return b"v=" + _b64(_hmac(self._hash, credential.server_key, signed)).encode()


class ScramClient:
    """One exchange: `first`, `final` with the server's challenge, `check` with its last message."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._hash = MECHANISMS[mechanism]
        self._password = password
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._nonce = nonce
        self._expected = b""

    def first(self) -> bytes:
        return b"n,," + self._bare.encode()

    def final(self, challenge: bytes) -> bytes:
        text = _text(challenge)
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        nonce, iterations = parts.get("r", ""), parts.get("i", "")
        if not nonce.startswith(self._nonce) or not iterations.isdecimal() or not 1 <= int(iterations) <= 10**7:
            raise ScramFailed("a challenge that is none of SCRAM")
        password = salted(self._mechanism, self._password, _unb64(parts.get("s", "")), int(iterations))
        unproved = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{unproved}".encode()
        client_key = _hmac(self._hash, password, b"Client Key")
        signature = _hmac(self._hash, hashlib.new(self._hash, client_key).digest(), signed)
        self._expected = _hmac(self._hash, _hmac(self._hash, password, b"Server Key"), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{unproved},p={_b64(proof)}".encode()

    def check(self, last: bytes) -> None:
        if not hmac.compare_digest(last, b"v=" + _b64(self._expected).encode()):
            raise ScramFailed("a server that does not have the user's credential")
