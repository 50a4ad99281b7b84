"""ACLs as Kafka's AclAuthorizer keeps them: znodes, notices of changes, and the writes of both.

/kafka-acl/TYPE/NAME holds the ACLs of the resource of that name, /kafka-acl-extended/prefixed/TYPE/NAME those of all
whose names begin so. Who changes them leaves a notice, in /kafka-acl-changes as `TYPE:NAME`, or in
/kafka-acl-extended-changes as JSON, by which the brokers read the znode again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.codecs import ID, STRING, FieldReader
from controller.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Create,
    DamagedZnode,
    Delete,
    NodeExists,
    NoNode,
    SetData,
    Write,
)

LITERAL, PREFIXED = "LITERAL", "PREFIXED"
ACL_VERSION = 1


class AclRow(msgspec.Struct, frozen=True, rename="camel"):
    """One ACL in Kafka's spelling: `User:alice`, `Allow`, `Read`, `*`."""

    principal: str
    permission_type: str
    operation: str
    host: str


class AclResource(msgspec.Struct, frozen=True):
    """What a znode is about: a type in Kafka's spelling (`Topic`), a name, and LITERAL or PREFIXED."""

    resource_type: str
    name: str
    pattern_type: str = LITERAL

    @property
    def path(self) -> str:
        root = paths.ACLS if self.pattern_type == LITERAL else paths.PREFIXED_ACLS
        return f"{root}/{self.resource_type}/{self.name}"


_ROWS = msgspec.json.Decoder(tuple[AclRow, ...])
_TYPES = {name.upper(): name for name in paths.ACL_RESOURCE_TYPES} | {
    "TRANSACTIONAL_ID": "TransactionalId",
    "DELEGATION_TOKEN": "DelegationToken",
}
_SCREAMING = {"TransactionalId": "TRANSACTIONAL_ID", "DelegationToken": "DELEGATION_TOKEN"}

ACL_PATHS: tuple[str, ...] = (
    paths.ACLS,
    paths.ACL_CHANGES,
    paths.EXTENDED_ACLS,
    paths.PREFIXED_ACLS,
    paths.EXTENDED_ACL_CHANGES,
    *(f"{root}/{kind}" for root in (paths.ACLS, paths.PREFIXED_ACLS) for kind in paths.ACL_RESOURCE_TYPES),
)
"""What an authorizer makes sure of, parents first."""


def decode_acls(path: str, data: bytes | None) -> tuple[AclRow, ...]:
    """A znode that holds nothing has no ACLs. Raises DamagedZnode, also for a version that is not known."""
    if not data:
        return ()
    fields = FieldReader(path, "ACLs of version 1", data)
    version = fields.take("version", ID)
    if version != ACL_VERSION:
        raise fields.damaged(f"version {version}")
    return fields.take("acls", _ROWS)


def encode_acls(rows: Sequence[AclRow]) -> bytes:
    return msgspec.json.encode({"version": ACL_VERSION, "acls": rows})


def decode_acl_change(path: str, data: bytes | None) -> AclResource:
    """Raises DamagedZnode."""
    if path.startswith(f"{paths.ACL_CHANGES}/"):
        try:
            kind, colon, name = (data or b"").decode().partition(":")
        except UnicodeDecodeError:
            kind = colon = name = ""
        if not (colon and kind.upper() in _TYPES):
            raise DamagedZnode(path, "a change of ACLs, TYPE:NAME", data)
        return AclResource(_TYPES[kind.upper()], name)
    fields = FieldReader(path, "a change of ACLs", data)
    version = fields.take("version", ID)
    kind, name = fields.take("resourceType", STRING), fields.take("name", STRING)
    pattern_type = fields.take("patternType", STRING).upper()
    if version > ACL_VERSION or kind.upper() not in _TYPES or pattern_type not in (LITERAL, PREFIXED):
        raise fields.damaged("an unknown version or type")
    return AclResource(_TYPES[kind.upper()], name, pattern_type)


def encode_acl_change(resource: AclResource) -> bytes:
    kind = _SCREAMING.get(resource.resource_type, resource.resource_type.upper())
    if resource.pattern_type == LITERAL:
        return f"{kind}:{resource.name}".encode()
    change = {"version": 1, "resourceType": kind, "name": resource.name, "patternType": resource.pattern_type}
    return msgspec.json.encode(change)


def acl_resource_of(path: str) -> AclResource | None:
    """The resource of an ACL znode's path; None for any other path."""
    for root, pattern_type in ((paths.PREFIXED_ACLS, PREFIXED), (paths.ACLS, LITERAL)):
        kind, slash, name = path.removeprefix(f"{root}/").partition("/")
        if path.startswith(f"{root}/") and slash and kind in paths.ACL_RESOURCE_TYPES:
            return AclResource(kind, name, pattern_type)
    return None


class AclWrites(BrokerWrites):
    """As `BrokerWrites`: every method can be called again after it failed."""

    async def ensure_acl_paths(self) -> None:
        await self.ensure(ACL_PATHS)

    async def change_acls(
        self, resource: AclResource, change: Callable[[tuple[AclRow, ...]], tuple[AclRow, ...]]
    ) -> tuple[AclRow, ...]:
        """Replace the resource's ACLs by `change` of them, leave a notice if they are others now, and return them.
        Raises DamagedZnode: ACLs that can't be read are not overwritten."""
        path = resource.path
        changed = False

        async def attempt() -> tuple[AclRow, ...]:
            nonlocal changed
            row = await self._look(path)
            before = () if row is None else decode_acls(path, row.data)
            after = change(before)
            write: Write
            if row is not None and frozenset(after) == frozenset(before):
                return before
            if row is None and not after:
                return ()
            changed = True
            if row is None:
                write = Create(path, encode_acls(after))
            elif after:
                write = SetData(path, encode_acls(after), row.stat.version)
            else:
                write = Delete(path, row.stat.version)
            await self._write([write], NodeExists, BadVersion, NoNode)
            return after

        rows = await self._decide(attempt)
        if changed:
            await self._leave_notice(resource)
        return rows

    async def _leave_notice(self, resource: AclResource) -> None:
        parent = paths.ACL_CHANGES if resource.pattern_type == LITERAL else paths.EXTENDED_ACL_CHANGES
        notice = Create(paths.child(parent, paths.ACL_CHANGE_PREFIX), encode_acl_change(resource), sequential=True)

        async def attempt() -> None:
            await self._write([notice])

        await self._decide(attempt)

    async def remove_acl_changes(self, notices: Sequence[str]) -> None:
        """Delete notices, by path, that are old enough for all brokers to have read them."""
        for path in notices:

            async def attempt(path: str = path) -> None:
                if await self._look(path) is not None:
                    await self._write([Delete(path, ANY_VERSION)], NoNode)

            await self._decide(attempt)
