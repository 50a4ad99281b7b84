"""ACLs: what one says, and the rule that decides by them. Pure.

The rule is that of Kafka 2.8's AclAuthorizer. The ACLs of a resource are those of its literal name, of the literal name
`*`, and of each prefix of its name. A super user may do everything. Where a resource has no ACL at all,
allow.everyone.if.no.acl.found decides. Otherwise no ACL may deny the operation, and one must allow it. To allow Read,
Write, Delete or Alter is to allow Describe; to allow AlterConfigs is to allow DescribeConfigs.

`AclRules` holds all ACLs of a cluster. A decision is remembered until an ACL changes, because clients ask the same
again with each request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Protocol

import msgspec

from controller.broker.security.principal import USER, Principal, Requester


class _Number(IntEnum):
    """Hashed as the number that it is: Enum's own hash is a function in Python, several times per check."""

    __hash__ = int.__hash__


class AclOperation(_Number):
    """org.apache.kafka.common.acl.AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(_Number):
    """org.apache.kafka.common.resource.ResourceType."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6


class PatternType(_Number):
    """org.apache.kafka.common.resource.PatternType. MATCH is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(_Number):
    """org.apache.kafka.common.acl.AclPermissionType."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
EVERYONE = Principal(USER, WILDCARD)


class ResourcePattern(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """The resources that an ACL is about. `pattern_type`: LITERAL or PREFIXED."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class AclEntry(msgspec.Struct, frozen=True):
    """What an ACL says. Principal `User:*` is everyone, host `*` is every host, operation ALL is every operation."""

    principal: Principal
    host: str
    operation: AclOperation
    permission: AclPermission


class Acl(msgspec.Struct, frozen=True):
    pattern: ResourcePattern
    entry: AclEntry


class Authorizer(Protocol):
    """Decides what clients may do. Called on the broker's thread for each request: it must not wait."""

    def allows(self, client: Requester, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return True if the client may do this to the resource of exactly that name."""

    def allows_some(self, client: Requester, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return True if there may be a resource of the type to which the client may do this (KIP-679)."""


_ALLOWED_BY: Mapping[AclOperation, frozenset[AclOperation]] = {
    operation: frozenset((operation, AclOperation.ALL)) for operation in AclOperation
} | {
    AclOperation.DESCRIBE: frozenset(
        (
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.ALL,
        )
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.ALL)
    ),
}
_DENIED_BY: Mapping[AclOperation, frozenset[AclOperation]] = {
    operation: frozenset((operation, AclOperation.ALL)) for operation in AclOperation
}

SUPPORTED_OPERATIONS: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
}
"""The operations that make sense for a type; with ALL, those that an ACL may name."""

DECISIONS_MAX = 20_000
"""Decisions that are remembered; then all are forgotten. Clients choose the names."""


class AclRules:
    """All ACLs of a cluster, by pattern, and what follows from them. `super_users` may do everything.
    `allow_if_none`: allow.everyone.if.no.acl.found."""

    def __init__(self, super_users: Collection[Principal] = (), *, allow_if_none: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        self._entries: dict[ResourcePattern, frozenset[AclEntry]] = {}
        self.loaded = False
        """Until the ACLs are known only super users may do something."""
        self._prefix_lengths: dict[ResourceType, tuple[int, ...]] = {}
        self._decisions: dict[tuple[Requester, AclOperation, ResourceType, str], bool] = {}

    def __iter__(self) -> Iterator[Acl]:
        """All ACLs, in the order of their patterns."""
        for pattern in sorted(self._entries):
            for entry in sorted(self._entries[pattern], key=str):
                yield Acl(pattern, entry)

    def patterns(self) -> tuple[ResourcePattern, ...]:
        return tuple(self._entries)

    def entries(self, pattern: ResourcePattern) -> frozenset[AclEntry]:
        return self._entries.get(pattern, frozenset())

    def replace(self, pattern: ResourcePattern, entries: Iterable[AclEntry]) -> None:
        """Set the ACLs of one pattern; none remove it."""
        found = frozenset(entries)
        if found == self.entries(pattern):
            return
        self._entries.pop(pattern, None)
        if found:
            self._entries[pattern] = found
        self._changed()

    def replace_all(self, entries: Mapping[ResourcePattern, Iterable[AclEntry]]) -> None:
        """Set all ACLs; from then on they are known."""
        self.loaded = True
        self._entries = {pattern: found for pattern, these in entries.items() if (found := frozenset(these))}
        self._changed()

    def _changed(self) -> None:
        self._decisions.clear()
        lengths: dict[ResourceType, set[int]] = {}
        for pattern in self._entries:
            if pattern.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(pattern.resource_type, set()).add(len(pattern.name))
        self._prefix_lengths = {kind: tuple(sorted(some)) for kind, some in lengths.items()}

    # -- decisions

    def allows(self, client: Requester, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        key = (client, operation, resource_type, name)
        decided = self._decisions.get(key)
        if decided is None:
            decided = self._decide(client, operation, resource_type, name)
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = decided
        return decided

    def may_decide_for(self, client: Requester) -> bool:
        """Return False before the ACLs were read for the first time, except for super users."""
        return self.loaded or client.principal in self._super_users

    def _decide(self, client: Requester, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        if client.principal in self._super_users:
            return True
        if not self.loaded:
            return False
        entries = list(self._entries_for(resource_type, name))
        if not entries:
            return self._allow_if_none
        return not _matches(entries, client, _DENIED_BY[operation], AclPermission.DENY) and _matches(
            entries, client, _ALLOWED_BY[operation], AclPermission.ALLOW
        )

    def _entries_for(self, resource_type: ResourceType, name: str) -> Iterator[AclEntry]:
        entries = self._entries
        yield from entries.get(ResourcePattern(resource_type, name), ())
        if name != WILDCARD:
            yield from entries.get(ResourcePattern(resource_type, WILDCARD), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                break
            yield from entries.get(ResourcePattern(resource_type, name[:length], PatternType.PREFIXED), ())

    def allows_some(self, client: Requester, operation: AclOperation, resource_type: ResourceType) -> bool:
        """As Kafka's authorizeByResourceType: an ACL that allows it and that no ACL that denies it covers."""
        if client.principal in self._super_users:
            return True
        if not self.loaded:
            return False
        operations = _DENIED_BY[operation]
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        for pattern, entries in self._entries.items():
            if pattern.resource_type is resource_type:
                if _matches(entries, client, operations, AclPermission.DENY):
                    denied.add(pattern)
                if _matches(entries, client, operations, AclPermission.ALLOW):
                    allowed.append(pattern)
        if ResourcePattern(resource_type, WILDCARD) in denied:
            return False
        return self._allow_if_none or any(not _is_covered(pattern, denied) for pattern in allowed)


def _matches(
    entries: Iterable[AclEntry], client: Requester, operations: frozenset[AclOperation], permission: AclPermission
) -> bool:
    return any(
        entry.permission is permission
        and entry.operation in operations
        and entry.principal in (client.principal, EVERYONE)
        and entry.host in (client.host, WILDCARD)
        for entry in entries
    )


def _is_covered(pattern: ResourcePattern, denied: Collection[ResourcePattern]) -> bool:
    """Return True if each resource of the pattern is among those of a denied one."""
    literal = pattern.pattern_type is PatternType.LITERAL
    if literal and pattern.name == WILDCARD:
        return False
    if literal and pattern in denied:
        return True
    return any(one.pattern_type is PatternType.PREFIXED and pattern.name.startswith(one.name) for one in denied)


# -- filters


class AclFilter(msgspec.Struct, frozen=True):
    """Which ACLs a request is about. None: any."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: AclPermission

    def matches(self, acl: Acl) -> bool:
        return self.matches_pattern(acl.pattern) and self.matches_entry(acl.entry)

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """ResourcePatternFilter.matches. MATCH finds the patterns that cover the name."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def matches_entry(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, str(entry.principal))
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermission.ANY, entry.permission)
        )
