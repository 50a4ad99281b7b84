"""A certificate authority for clusters on this machine: keys and certificates as PEM files, for their owner alone.

Needs `cryptography` (the extra `secure`). Not for production: the authority's key is a file beside those that it signs.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
AUTHORITY_LIFE = datetime.timedelta(days=3_650)
LIFE = datetime.timedelta(days=365)
SKEW = datetime.timedelta(hours=1)
"""A certificate is valid from this long before now: clocks differ."""


def write_secret(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 in one step: who reads it meanwhile reads the file before it, or this one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class Authority:
    """An authority with a new key. `certificate`: the file that clients trust, `NAME.crt`; its key is in `NAME.key`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.certificate = folder / f"{name}.crt"
        now = datetime.datetime.now(datetime.UTC)
        signs = _key_usage(key_cert_sign=True, crl_sign=True)
        made = (
            _builder(self._name, self._name, self._key.public_key(), now - SKEW, now + AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(signs, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._identifier = made.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        write_secret(folder / f"{name}.key", _private(self._key))

    def issue(
        self,
        name: str,
        *,
        common_name: str | None = None,
        hosts: Sequence[str] = LOOPBACK_HOSTS,
        life: datetime.timedelta = LIFE,
    ) -> Path:
        """Write a new key (PKCS #8) and its certificate to the file `NAME.pem`, in one step, and return it. `life`
        below 0: the certificate has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        began = now - SKEW + min(life, datetime.timedelta())
        signed = (
            _builder(_named(common_name or name), self._name, key.public_key(), began, now + life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(purposes, critical=False)
            .add_extension(alternatives, critical=False)
            .add_extension(by, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self._folder / f"{name}.pem"
        write_secret(path, _private(key) + signed.public_bytes(serialization.Encoding.PEM))
        return path


def _builder(subject: Any, issuer: Any, key: Any, begins: datetime.datetime, ends: datetime.datetime) -> Any:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(common_name: str) -> Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(**allowed: bool) -> Any:
    names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign"
    names += " crl_sign encipher_only decipher_only"
    return x509.KeyUsage(**(dict.fromkeys(names.split(), False) | allowed))


def _private(key: Any) -> bytes:
    """PKCS #8, the one form that Kafka reads from PEM."""
    plain = serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
