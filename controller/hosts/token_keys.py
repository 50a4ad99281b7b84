"""The keys that sign tokens of OAUTHBEARER, from a file, and the check of a token's signature.

The file is a JWKS (RFC 7517) or has public keys or certificates as PEM; it is read again when it has changed. Needs
`joserfc` (the extra `secure`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, import_key

from controller.broker.security.oauth import TokenRefused, parse_claims
from controller.hosts.tls import RELOAD_S, BadCertificates

ISSUER, AUDIENCE = "camerlengo", "kafka"
"""Of the tokens of clusters on this machine."""
ALGORITHMS = (*("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"))
"""With public keys alone: who can check a token must not be able to make one."""
KEYS_MAX, FILE_BYTES_MAX = 32, 1024 * 1024
_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


def load_keys(path: Path) -> tuple[Key, ...]:
    """Raises BadCertificates, which names the file."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
        found: list[Any] = [match[0] for match in _PEM.finditer(data)] or msgspec.json.decode(data)["keys"]
        keys = tuple(map(_imported, found))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, JoseError) as error:
        expected = "expected public keys as JWKS or PEM"
        raise BadCertificates(f"{path}: {expected}: {type(error).__name__}: {error}") from error
    usable = tuple(key for key in keys if key.get("use") in (None, "sig"))
    if not 1 <= len(usable) <= KEYS_MAX:
        raise BadCertificates(f"{path}: expected 1 to {KEYS_MAX} keys that sign, found {len(usable)}")
    if any(key.is_private for key in usable):
        raise BadCertificates(f"{path}: expected public keys alone, found a private or symmetric one")
    return usable


def _imported(one: Any) -> Key:
    if isinstance(one, dict):
        return import_key(one)
    for kind in ("EC", "RSA"):
        with suppress(JoseError, ValueError, TypeError):
            return import_key(one, kind)
    return import_key(one, "OKP")


class TokenKeys:
    """The keys of one file. The first time they are read at once: BadCertificates. `note` logs later readings; if one
    fails, the keys before stay in use."""

    def __init__(self, path: Path, now_s: Callable[[], float], note: Callable[[str, str], None]) -> None:
        self._path = path
        self._now_s = now_s
        self._note = note
        self._registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        self._stamp = self._stamped()
        self._keys = load_keys(path)
        self._looked_s = now_s()

    def _stamped(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _current(self) -> tuple[Key, ...]:
        now_s = self._now_s()
        if now_s - self._looked_s >= RELOAD_S:
            self._looked_s = now_s
            stamp = self._stamped()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._keys = load_keys(self._path)
                    self._note("info", f"keys of tokens were loaded again: {self._path}")
                except BadCertificates as error:
                    self._note("error", f"keys of tokens stay as they were: {error}")
        return self._keys

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the keys has signed. Raises TokenRefused."""
        keys = self._current()
        try:
            signed = jws.extract_compact(token.encode(), registry=self._registry)
            headers = signed.headers()
            algorithm, kid = headers["alg"], headers.get("kid")
            if algorithm not in ALGORITHMS:
                raise TokenRefused("the token's signature is not accepted", f"algorithm {algorithm!r:.50}")
            fitting = [key for key in keys if kid is None or key.kid in (None, kid)]
            if any(self._signed_by(key, signed) for key in fitting):
                return parse_claims(signed.payload)
        except (JoseError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise TokenRefused("the token is malformed", f"{type(error).__name__}: {str(error)!r:.100}") from None
        which = "none of the keys" if fitting else f"no key with kid {kid!r:.100}"
        raise TokenRefused("the token's signature is not accepted", f"{which} of {self._path}")

    def _signed_by(self, key: Key, signed: jws.CompactSignature) -> bool:
        try:
            return bool(jws.validate_compact(signed, key, registry=self._registry))
        except (JoseError, ValueError, TypeError):  # of another type, for another use, or a header that is wrong
            return False


class TokenIssuer:
    """Makes tokens with a new key. `keys_file` gets the key to check them by. `expected`: settings of brokers. Not for
    production."""

    expected: Mapping[str, str] = MappingProxyType(
        {"sasl.oauthbearer.expected.issuer": ISSUER, "sasl.oauthbearer.expected.audience": AUDIENCE}
    )

    def __init__(self, keys_file: Path) -> None:
        self.keys_file = keys_file
        self._key = ECKey.generate_key("P-256", {"kid": "1", "use": "sig"})
        keys_file.write_bytes(msgspec.json.encode({"keys": [self._key.as_dict(private=False)]}))

    def token(self, user: str, life_s: float = 365 * 86_400, **claims: Any) -> str:
        """`life_s` below 0: it has expired. `claims`: further ones, or in place of these."""
        ends_s = int(time.time() + life_s)
        body = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "exp": ends_s, **claims}
        return str(jws.serialize_compact({"alg": "ES256", "kid": "1"}, msgspec.json.encode(body), self._key))
