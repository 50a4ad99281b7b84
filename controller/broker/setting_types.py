"""What a setting's text may say: one small parser a type, each telling what it expected.

Pure: text in, value out, or `Unfit` with the expectation in words. Which settings there are is in `settings.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Setting: TypeAlias = tuple[str, str | None, Callable[[str], Any]]
"""A setting's field, the text that is its default (None: it may be missing), and its type."""

Address: TypeAlias = tuple[str, int]
"""A host (a name, or an IPv6 address without its brackets) and a port."""


class Unfit(ValueError):
    """The text is no value of the type; says what was expected."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where one listener binds, or is reached. `host` "" is every interface when binding, and this machine's own name
    when advertised; `port` 0 is one that the system picks."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{_host_text(self.host)}:{self.port}"


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def address_text(address: Address) -> str:
    return f"{_host_text(address[0])}:{address[1]}"


def integer(least: int = -INT_MAX - 1, most: int = INT_MAX) -> Callable[[str], int]:
    if most in (INT_MAX, LONG_MAX):
        expected = "a whole number" if least < -INT_MAX else f"a whole number, {least} or more"
    else:
        expected = f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]+", text) is None or not least <= int(text) <= most:
            raise Unfit(expected)
        return int(text)

    return parse


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise Unfit("true or false")
    return text.lower() == "true"


def text(value: str) -> str:
    return value


def filled(value: str) -> str:
    if not value:
        raise Unfit("something")
    return value


def names(value: str) -> tuple[str, ...]:
    """A comma-separated list; empty parts are left out, as Kafka does."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


_LISTENER = re.compile(r"(?P<name>[^:/]+)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>[0-9]+)")


def listeners(value: str) -> tuple[Listener, ...]:
    found: list[Listener] = []
    for part in names(value):
        match = _LISTENER.fullmatch(part)
        if match is None or int(match["port"]) > 65535:
            raise Unfit(
                f"NAME://HOST:PORT with a port up to 65535 (HOST may be empty), separated by commas; not {part!r}"
            )
        found.append(Listener(match["name"].upper(), match["host"], int(match["port"])))
    if len({listener.name for listener in found}) < len(found):
        raise Unfit("each listener's name once")
    ports = [listener.port for listener in found if listener.port]
    if len(set(ports)) < len(ports):
        raise Unfit("each port once")
    return tuple(found)


def name_map(value: str) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for part in names(value):
        key, colon, mapped = part.rpartition(":")
        if not colon or not key.strip() or not mapped.strip():
            raise Unfit(f"NAME:PROTOCOL, separated by commas; not {part!r}")
        pairs.append((key.strip().upper(), mapped.strip().upper()))
    return tuple(pairs)


_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]+)")


def address(value: str) -> Address:
    match = _ADDRESS.fullmatch(value.strip())
    if match is None or int(match["port"]) > 65535:
        raise Unfit(f"HOST:PORT with a port up to 65535; not {value.strip()!r}")
    return match["six"] or match["host"], int(match["port"])


def address_map(value: str) -> tuple[tuple[Address, Address], ...]:
    pairs: list[tuple[Address, Address]] = []
    for part in names(value):
        meant, equals, dialled = part.partition("=")
        if not equals:
            raise Unfit(f"HOST:PORT=HOST:PORT, separated by commas; not {part!r}")
        pairs.append((address(meant), address(dialled)))
    if len({meant for meant, _ in pairs}) < len(pairs):
        raise Unfit("each address to dial otherwise once")
    return tuple(pairs)


_CHROOT = re.compile(r"(/[^/]+)+")


def connect_string(value: str) -> str:
    """HOST[:PORT],HOST[:PORT]...[/chroot]; one chroot, at the end, for all."""
    hosts, slash, chroot = value.partition("/")
    if not names(hosts) or (slash and _CHROOT.fullmatch(slash + chroot) is None):
        raise Unfit("HOST:PORT,HOST:PORT... and perhaps a /chroot at the end")
    for host in names(hosts):
        bare = re.fullmatch(r"\[[0-9a-fA-F:.%]+\]|[^:\[\]]+", host) is not None
        address(host if not bare else f"{host}:2181")
    return value


def credentials(value: str) -> str:
    user, colon, password = value.partition(":")
    if not (user and colon and password):
        raise Unfit("USER:PASSWORD")
    return value
