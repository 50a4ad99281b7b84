"""The names of certificates' subjects, as Java shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a certificate's subject, as Python's ssl gives it, in the form of RFC 2253, which is Java's."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    return escaped[:-1] + "\\ " if escaped.endswith(" ") and len(escaped) > 1 else escaped
