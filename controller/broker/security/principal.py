"""Principals, and what a broker knows of the client that sent a request. Pure."""

from __future__ import annotations

import msgspec

USER = "User"


class Principal(msgspec.Struct, frozen=True, cache_hash=True):
    """Who a connection is authenticated as: `User:alice`. Kafka's KafkaPrincipal."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Of a connection whose security protocol authenticates no client."""


def parse_principal(text: str) -> Principal:
    """Return the principal of `TYPE:NAME`. Raises ValueError, naming the text and what was expected."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"principal {text!r}: expected TYPE:NAME, such as User:alice")
    return Principal(kind, name)


class Requester(msgspec.Struct, frozen=True, cache_hash=True):
    """The sender of a request: the listener that its connection came in by, its address and its principal."""

    listener: str
    host: str = "127.0.0.1"
    principal: Principal = ANONYMOUS

    def __str__(self) -> str:
        return f"{self.principal} from {self.host} on listener {self.listener}"
