"""ACLs: what one says, and the rule that decides by them. Pure.

The rule is that of Kafka 2.8's AclAuthorizer. The ACLs of a resource are those of its literal name, of the literal name
`*`, and of each prefix of its name. A super user may do everything. Where a resource has no ACL at all,
allow.everyone.if.no.acl.found decides. Otherwise no ACL may deny the operation, and one must allow it. To allow Read,
Write, Delete or Alter is to allow Describe; to allow AlterConfigs is to allow DescribeConfigs.

`AclRules` holds all ACLs of a cluster, by principal.
"""

from __future__ import annotations

from bisect import bisect_right
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

DECISIONS_MAX = 1_000
"""Decisions of `allows_some` that are remembered; then all are forgotten."""

_DENIED = len(AclOperation)
_ANY_OPERATION = (1 << _DENIED) - 1
_ALLOWS: Mapping[AclOperation, int] = {
    entry: sum(1 << asked for asked in AclOperation if entry in _ALLOWED_BY[asked]) for entry in AclOperation
}
_DENIES: Mapping[AclOperation, int] = {
    entry: (_ANY_OPERATION if entry is AclOperation.ALL else 1 << entry) << _DENIED for entry in AclOperation
}
"""The operations, as bits, that an ACL with an operation allows, and `_DENIED` bits above them those that it denies."""


class _Prefixes:
    """Finds by bisection the prefixes that a name begins with."""

    __slots__ = ("parents", "sorted")

    def __init__(self, prefixes: Iterable[str]) -> None:
        self.sorted = sorted(prefixes)
        self.parents: list[int] = []
        """For each prefix the index of the longest other one that it begins with, or -1."""
        for index, prefix in enumerate(self.sorted):
            self.parents.append(self.longest(prefix, index))

    def longest(self, name: str, end: int | None = None) -> int:
        """The index of the longest prefix of the name, among the first `end` ones; -1: none. The greatest prefix up to
        the name begins with each prefix of the name."""
        prefixes = self.sorted
        at = (bisect_right(prefixes, name) if end is None else end) - 1
        while at >= 0 and not name.startswith(prefixes[at]):
            at = self.parents[at]
        return at


class _Rights:
    """What the ACLs of a principal on a host, or on every host, say of the resources of a type, as bits."""

    __slots__ = ("_of_prefixes", "_prefixes", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, int] = {}
        self.prefixed: dict[str, int] = {}
        self._prefixes: _Prefixes | None = None
        self._of_prefixes: list[int] = []
        """What each prefix and all that it begins with say."""

    def add(self, pattern: ResourcePattern, bits: int) -> None:
        by_name = self._changing(pattern)
        by_name[pattern.name] = by_name.get(pattern.name, 0) | bits

    def remove(self, pattern: ResourcePattern) -> None:
        self._changing(pattern).pop(pattern.name, None)

    def of(self, name: str) -> int:
        literal = self.literal
        found = literal.get(name, 0) | literal.get(WILDCARD, 0) if literal else 0
        if self.prefixed:
            at = (self._prefixes or self._sort()).longest(name)
            if at >= 0:
                found |= self._of_prefixes[at]
        return found

    def _changing(self, pattern: ResourcePattern) -> dict[str, int]:
        """What is to be changed with an ACL of the pattern; prefixes are sorted again afterwards."""
        if pattern.pattern_type is not PatternType.PREFIXED:
            return self.literal
        self._prefixes = None
        return self.prefixed

    def _sort(self) -> _Prefixes:
        self._prefixes = prefixes = _Prefixes(self.prefixed)
        self._of_prefixes = []
        for prefix, parent in zip(prefixes.sorted, prefixes.parents, strict=True):
            inherited = self._of_prefixes[parent] if parent >= 0 else 0
            self._of_prefixes.append(self.prefixed[prefix] | inherited)
        return prefixes


class _TypeIndex:
    """The ACLs of one type of resource, by principal and host: a check costs no more with many of them."""

    def __init__(self) -> None:
        self._rights: dict[Principal, dict[str, _Rights]] = {}

    def replace(self, pattern: ResourcePattern, before: Iterable[AclEntry], after: Iterable[AclEntry]) -> None:
        for entry in before:
            by_host = self._rights.get(entry.principal, {})
            rights = by_host.get(entry.host)
            if rights is not None:
                rights.remove(pattern)
                if not rights.literal and not rights.prefixed:
                    del by_host[entry.host]
                    if not by_host:
                        del self._rights[entry.principal]
        for entry in after:
            says = _ALLOWS if entry.permission is AclPermission.ALLOW else _DENIES
            by_host = self._rights.setdefault(entry.principal, {})
            by_host.setdefault(entry.host, _Rights()).add(pattern, says[entry.operation])

    def of_name(self, client: Requester, name: str) -> int:
        """What the ACLs that are about the client say of the resource, as bits."""
        found = 0
        for by_host in (self._rights.get(client.principal), self._rights.get(EVERYONE)):
            if by_host:
                if WILDCARD in by_host:
                    found |= by_host[WILDCARD].of(name)
                if client.host in by_host:
                    found |= by_host[client.host].of(name)
        return found

    def patterns_of(self, client: Requester, resource_type: ResourceType) -> Iterator[ResourcePattern]:
        """The patterns of the ACLs that are about the client; one may come several times."""
        for principal in (client.principal, EVERYONE):
            for host in (WILDCARD, client.host):
                rights = self._rights.get(principal, {}).get(host)
                if rights is not None:
                    yield from (ResourcePattern(resource_type, name) for name in rights.literal)
                    yield from (ResourcePattern(resource_type, name, PatternType.PREFIXED) for name in rights.prefixed)


class AclRules:
    """All ACLs of a cluster, by pattern, and what follows from them. `super_users` may do everything.
    `allow_if_none`: allow.everyone.if.no.acl.found."""

    def __init__(self, super_users: Collection[Principal] = (), *, allow_if_none: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        self._entries: dict[ResourcePattern, frozenset[AclEntry]] = {}
        self.loaded = False
        """Until the ACLs are known only super users may do something."""
        self._types: dict[ResourceType, _TypeIndex] = {}
        self._some: dict[tuple[Requester, AclOperation, ResourceType], bool] = {}
        """Decisions of `allows_some`, until an ACL changes: each looks at all ACLs of the client."""
        self._prefixes: dict[ResourceType, _Prefixes] = {}
        """Those that there are ACLs for, of whomever, until one changes."""

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
        before, found = self.entries(pattern), frozenset(entries)
        if found == before:
            return
        self._entries.pop(pattern, None)
        if found:
            self._entries[pattern] = found
        self._types.setdefault(pattern.resource_type, _TypeIndex()).replace(pattern, before, found)
        self._forget()

    def replace_all(self, entries: Mapping[ResourcePattern, Iterable[AclEntry]]) -> None:
        """Set all ACLs; from then on they are known."""
        self.loaded = True
        self._entries = {pattern: found for pattern, these in entries.items() if (found := frozenset(these))}
        self._types = {}
        for pattern, found in self._entries.items():
            self._types.setdefault(pattern.resource_type, _TypeIndex()).replace(pattern, (), found)
        self._forget()

    def _forget(self) -> None:
        self._some.clear()
        self._prefixes.clear()

    # -- decisions

    def allows(self, client: Requester, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        if client.principal in self._super_users:
            return True
        if not self.loaded:
            return False
        index = self._types.get(resource_type)
        bits = 0 if index is None else index.of_name(client, name)
        if bits:
            return bool(bits >> operation & 1) and not bits >> _DENIED + operation & 1
        return self._allow_if_none and not self._has_acls(resource_type, name)

    def _has_acls(self, resource_type: ResourceType, name: str) -> bool:
        if any(ResourcePattern(resource_type, one) in self._entries for one in (name, WILDCARD)):
            return True
        prefixes = self._prefixes.get(resource_type)
        if prefixes is None:
            kind = resource_type, PatternType.PREFIXED
            found = (one.name for one in self._entries if (one.resource_type, one.pattern_type) == kind)
            prefixes = self._prefixes[resource_type] = _Prefixes(found)
        return prefixes.longest(name) >= 0

    def may_decide_for(self, client: Requester) -> bool:
        """Return False before the ACLs were read for the first time, except for super users."""
        return self.loaded or client.principal in self._super_users

    def allows_some(self, client: Requester, operation: AclOperation, resource_type: ResourceType) -> bool:
        """As Kafka's authorizeByResourceType: an ACL that allows it and that no ACL that denies it covers."""
        key = (client, operation, resource_type)
        decided = self._some.get(key)
        if decided is None:
            if len(self._some) >= DECISIONS_MAX:
                self._some.clear()
            decided = self._some[key] = self._decide_some(client, operation, resource_type)
        return decided

    def _decide_some(self, client: Requester, operation: AclOperation, resource_type: ResourceType) -> bool:
        if client.principal in self._super_users:
            return True
        if not self.loaded:
            return False
        operations = _DENIED_BY[operation]
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        index = self._types.get(resource_type)
        named = () if index is None else index.patterns_of(client, resource_type)
        for pattern in dict.fromkeys(named):
            entries = self._entries[pattern]
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
