"""The rules for a znode's path, as every ZooKeeper client and server has them (PathUtils). Pure.

A client checks before it sends: a server would answer a bad path with an error that does not name the fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PLAIN_BYTES = bytes(range(0x20, 0x7F)) + b"\n"
_FORBIDDEN = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\uffff]")


def validate_path(path: str) -> None:
    """Raises ValueError, naming the path and what is wrong with it."""
    if (
        isinstance(path, str)
        and path.startswith("/")
        and "//" not in path
        and "/." not in path
        and path.isascii()
        and path.isprintable()
        and not path.endswith("/")
    ):
        return  # nearly every path
    if not isinstance(path, str):
        raise ValueError(f"znode path {path!r}: expected a str")
    if not path.startswith("/"):
        raise ValueError(f"znode path {path!r}: must begin with /")
    if path == "/":
        return
    if path.endswith("/"):
        raise ValueError(f"znode path {path!r}: must not end with /")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise ValueError(f"znode path {path!r}: a name in it is {name!r}")
    if (match := _FORBIDDEN.search(path)) is not None:
        raise ValueError(f"znode path {path!r}: the character {match[0]!r} is not allowed")


def validate_paths(paths: Sequence[str]) -> None:
    """As `validate_path`, for many at once: looked at one by one only if all together they might hold a bad one."""
    if not paths:
        return
    lines = "\n".join(paths)
    plain = (
        lines.startswith("/")
        and not lines.endswith("/")
        and lines.count("\n") == lines.count("\n/") == len(paths) - 1
        and "/\n" not in lines
        and "//" not in lines
        and "/." not in lines
        and not lines.encode("utf-8", "surrogatepass").translate(None, delete=_PLAIN_BYTES)
    )
    if not plain:
        for path in paths:
            validate_path(path)


def validate_new_path(path: str, sequential: bool) -> None:
    """As `validate_path`, for a create: a sequential one's path is only the head of the name."""
    validate_path(path + "0" if sequential else path)
