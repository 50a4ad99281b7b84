"""Access control of the in-memory model: ZooKeeper's ACL rules for `world`, `digest` and `auth`.

Pure: no tree, no session. Other schemes (ip, sasl, x509) are refused as by a server that does not know them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Final

from controller.zookeeper.errors import InvalidACL, NoAuth
from controller.zookeeper.operations import ACL, OPEN_ACL, PERM_READ

READ_ONLY_ACL: Final[tuple[ACL, ...]] = (ACL(PERM_READ, "world", "anyone"),)


def digest_id(credential: str) -> str:
    """The id that an ACL of scheme `digest` names for the credential "user:password"."""
    user, separator, _ = credential.partition(":")
    if not separator:
        raise ValueError(f"digest credential for {credential!r}: expected user:password")
    return f"{user}:{base64.b64encode(hashlib.sha1(credential.encode()).digest()).decode()}"


class ClientIdentity:
    """A client's proven identity, and the default ACL of the znodes that it creates."""

    __slots__ = ("default_acl", "ids")

    def __init__(self, auth: Sequence[tuple[str, str]] = (), default_acl: tuple[ACL, ...] | None = None) -> None:
        for scheme, _ in auth:
            if scheme != "digest":
                raise ValueError(f"auth scheme {scheme!r}: the in-memory server knows only digest")
        self.ids: tuple[str, ...] = tuple(digest_id(credential) for _, credential in auth)
        self.default_acl = OPEN_ACL if default_acl is None else default_acl

    def may(self, acl: tuple[ACL, ...], permission: int) -> bool:
        if acl is OPEN_ACL:
            return True
        return any(
            entry.permissions & permission
            and (entry.scheme == "world" or (entry.scheme == "digest" and entry.id in self.ids))
            for entry in acl
        )

    def demand(self, acl: tuple[ACL, ...], permission: int, path: str) -> None:
        if acl is not OPEN_ACL and not self.may(acl, permission):
            raise NoAuth(path)

    def resolve(self, acl: tuple[ACL, ...] | None, path: str) -> tuple[ACL, ...]:
        """The ACL that a znode created with `acl` is given: `auth` becomes the client's own ids, what is double is
        dropped. Raises InvalidACL where a server would."""
        if acl is None:
            acl = self.default_acl
        if acl is OPEN_ACL:
            return acl
        resolved: dict[ACL, None] = {}
        for entry in acl:
            if entry.scheme == "world" and entry.id == "anyone":
                resolved[entry] = None
            elif entry.scheme == "auth" and self.ids:
                resolved.update(dict.fromkeys(ACL(entry.permissions, "digest", each) for each in self.ids))
            elif entry.scheme == "digest" and len(entry.id.split(":")) == 2:
                resolved[entry] = None
            else:
                raise InvalidACL(path)
        if not resolved:
            raise InvalidACL(path)
        return OPEN_ACL if tuple(resolved) == OPEN_ACL else tuple(resolved)
