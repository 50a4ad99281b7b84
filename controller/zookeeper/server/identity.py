"""The identities of a connection, and the access that they have: world, ip, x509, sasl, digest and auth, as ZooKeeper
has them."""

from __future__ import annotations

import ipaddress

from controller.zookeeper.memory.database import ClientIdentity, digest_id
from controller.zookeeper.operations import ACL, OPEN_ACL, InvalidACL


class ConnectionIdentity(ClientIdentity):
    """A connection's address, the name in its certificate, the user that has logged in by SASL, and the digests that it
    has proven. It grows with each `addAuth`. `over_tls`: ACLs may name certificates."""

    __slots__ = ("address", "certificate", "over_tls", "sasl_user")

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.certificate: str | None = None
        self.sasl_user: str | None = None
        self.over_tls = False

    @property
    def own(self) -> list[tuple[str, str]]:
        """Schemes and ids of whom the connection itself has authenticated."""
        named = (("x509", self.certificate), ("sasl", self.sasl_user))
        return [(scheme, name) for scheme, name in named if name is not None]

    def add(self, scheme: str, credential: bytes) -> bool:
        """Take a credential; return whether the server knows the scheme."""
        if scheme == "ip":
            return True
        if scheme != "digest":
            return False
        text = credential.decode("utf-8", "replace")
        proven = digest_id(text if ":" in text else f"{text}:")
        if proven not in self.ids:
            self.ids = (*self.ids, proven)
        return True

    def may(self, acl: tuple[ACL, ...], permission: int) -> bool:
        if super().may(acl, permission):
            return True
        return any(
            entry.permissions & permission
            and (
                (entry.scheme == "ip" and _in_network(self.address, entry.id))
                or (entry.scheme in ("sasl", "x509") and (entry.scheme, entry.id) in self.own)
            )
            for entry in acl
        )

    def resolve(self, acl: tuple[ACL, ...] | None, path: str) -> tuple[ACL, ...]:
        if not acl or acl == OPEN_ACL:
            if acl:
                return OPEN_ACL
            raise InvalidACL(path)
        resolved: dict[ACL, None] = {}
        for entry in acl:
            if entry.scheme == "ip":
                if _network(entry.id) is None:
                    raise InvalidACL(path)
                resolved[entry] = None
            elif entry.id and (entry.scheme == "sasl" or (entry.scheme == "x509" and self.over_tls)):
                resolved[entry] = None
            elif entry.scheme == "auth" and self.own:
                resolved.update((ACL(entry.permissions, scheme, name), None) for scheme, name in self.own)
                if self.ids:
                    resolved.update(dict.fromkeys(super().resolve((entry,), path)))
            else:
                resolved.update(dict.fromkeys(super().resolve((entry,), path)))
        return OPEN_ACL if tuple(resolved) == OPEN_ACL else tuple(resolved)

    def described(self) -> list[tuple[str, str]]:
        """Return (scheme, user) of each identity, as `whoAmI` answers it."""
        return [("ip", self.address), *self.own, *(("digest", each.partition(":")[0]) for each in self.ids)]


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _in_network(address: str, text: str) -> bool:
    network = _network(text)
    return network is not None and ipaddress.ip_address(address) in network
