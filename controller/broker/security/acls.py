"""ACLs: what one says, and the rule that decides by them. Pure.

The rule is that of Kafka 2.8's AclAuthorizer. The ACLs of a resource are those of its literal name, of the literal name
`*`, and of each prefix of its name. A super user may do everything. Where a resource has no ACL at all,
allow.everyone.if.no.acl.found decides. Otherwise no ACL may deny the operation, and one must allow it. To allow Read,
Write, Delete or Alter is to allow Describe; to allow AlterConfigs is to allow DescribeConfigs.

`AclRules` holds all ACLs of a cluster. A decision is remembered until an ACL changes, because clients ask the same
again with each request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Protocol, TypeAlias

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


_ANY_OPERATION = (1 << len(AclOperation)) - 1
_ALLOWS: Mapping[AclOperation, int] = {
    entry: sum(1 << asked for asked in AclOperation if entry in _ALLOWED_BY[asked]) for entry in AclOperation
}
_DENIES: Mapping[AclOperation, int] = {
    entry: _ANY_OPERATION if entry is AclOperation.ALL else 1 << entry for entry in AclOperation
}
"""The operations, as bits, that an ACL with an operation allows or denies."""

_Granted: TypeAlias = tuple[int, int, dict[str, tuple[int, int]]]
"""What is allowed and what is denied on every host, as bits, and on single hosts besides."""


class _Grants:
    """The ACLs of one pattern, by principal."""

    __slots__ = ("everyone", "of")

    def __init__(self, entries: Iterable[AclEntry]) -> None:
        self.of: dict[Principal, _Granted] = {}
        for entry in entries:
            allowed, denied, of_hosts = self.of.get(entry.principal, (0, 0, {}))
            allow = _ALLOWS[entry.operation] if entry.permission is AclPermission.ALLOW else 0
            deny = _DENIES[entry.operation] if entry.permission is AclPermission.DENY else 0
            if entry.host == WILDCARD:
                allowed, denied = allowed | allow, denied | deny
            else:
                before = of_hosts.get(entry.host, (0, 0))
                of_hosts[entry.host] = before[0] | allow, before[1] | deny
            self.of[entry.principal] = allowed, denied, of_hosts
        self.everyone = self.of.get(EVERYONE)


class _TypeIndex:
    """The ACLs of one type of resource. A check costs no more with many ACLs: those of a name are looked up, those of
    its prefixes are found by bisection, and those of a pattern are looked up by principal and host."""

    def __init__(self) -> None:
        self._literal: dict[str, _Grants] = {}
        self._prefixed: dict[str, _Grants] = {}
        self._patterns_of: dict[Principal, set[ResourcePattern]] = {}
        self._sorted: list[str] | None = None
        """The prefixes; None: to be sorted again."""
        self._sorted_grants: list[_Grants] = []
        self._parents: list[int] = []
        """For each of them the index of the longest other one that it begins with, or -1."""

    def replace(self, pattern: ResourcePattern, entries: Iterable[AclEntry]) -> None:
        prefixed = pattern.pattern_type is PatternType.PREFIXED
        by_name = self._prefixed if prefixed else self._literal
        before = by_name.pop(pattern.name, None)
        for principal in () if before is None else before.of:
            self._patterns_of[principal].discard(pattern)
            if not self._patterns_of[principal]:
                del self._patterns_of[principal]
        found = _Grants(entries)
        if found.of:
            by_name[pattern.name] = found
        for principal in found.of:
            self._patterns_of.setdefault(principal, set()).add(pattern)
        if prefixed:
            self._sorted = None

    def of_name(self, name: str) -> list[_Grants]:
        """The ACLs of every pattern that covers the name."""
        found = []
        literal = self._literal
        if name in literal:
            found.append(literal[name])
        if WILDCARD in literal and name != WILDCARD:
            found.append(literal[WILDCARD])
        if self._prefixed:
            prefixes = self._sort() if self._sorted is None else self._sorted
            # The greatest prefix up to the name begins with each prefix of the name.
            at = bisect_right(prefixes, name) - 1
            while at >= 0 and not name.startswith(prefixes[at]):
                at = self._parents[at]
            while at >= 0:
                found.append(self._sorted_grants[at])
                at = self._parents[at]
        return found

    def patterns_of(self, principal: Principal) -> Collection[ResourcePattern]:
        return self._patterns_of.get(principal, ())

    def _sort(self) -> list[str]:
        self._sorted = prefixes = sorted(self._prefixed)
        self._sorted_grants = [self._prefixed[prefix] for prefix in prefixes]
        self._parents = []
        for index, prefix in enumerate(prefixes):
            parent = index - 1
            while parent >= 0 and not prefix.startswith(prefixes[parent]):
                parent = self._parents[parent]
            self._parents.append(parent)
        return prefixes


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
        self._decisions: dict[tuple[Requester, AclOperation, ResourceType, str | None], bool] = {}
        """None for a name: whether there may be some resource of the type."""

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
        self._types.setdefault(pattern.resource_type, _TypeIndex()).replace(pattern, found)
        self._decisions.clear()

    def replace_all(self, entries: Mapping[ResourcePattern, Iterable[AclEntry]]) -> None:
        """Set all ACLs; from then on they are known."""
        self.loaded = True
        self._entries = {pattern: found for pattern, these in entries.items() if (found := frozenset(these))}
        self._types = {}
        for pattern, found in self._entries.items():
            self._types.setdefault(pattern.resource_type, _TypeIndex()).replace(pattern, found)
        self._decisions.clear()

    # -- decisions

    def allows(self, client: Requester, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        key = (client, operation, resource_type, name)
        decided = self._decisions.get(key)
        if decided is None:
            decided = self._decide(client, operation, resource_type, name)
            self._remember(key, decided)
        return decided

    def _remember(self, key: tuple[Requester, AclOperation, ResourceType, str | None], decided: bool) -> None:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = decided

    def may_decide_for(self, client: Requester) -> bool:
        """Return False before the ACLs were read for the first time, except for super users."""
        return self.loaded or client.principal in self._super_users

    def _decide(self, client: Requester, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        principal = client.principal
        if principal in self._super_users:
            return True
        if not self.loaded:
            return False
        index = self._types.get(resource_type)
        found = () if index is None else index.of_name(name)
        if not found:
            return self._allow_if_none
        allowed = denied = 0
        for grants in found:
            for granted in (grants.of.get(principal), grants.everyone):
                if granted is not None:
                    allowed |= granted[0]
                    denied |= granted[1]
                    if granted[2] and client.host in granted[2]:
                        on_host = granted[2][client.host]
                        allowed |= on_host[0]
                        denied |= on_host[1]
        return bool(allowed & ~denied & 1 << operation)

    def allows_some(self, client: Requester, operation: AclOperation, resource_type: ResourceType) -> bool:
        """As Kafka's authorizeByResourceType: an ACL that allows it and that no ACL that denies it covers."""
        key = (client, operation, resource_type, None)
        decided = self._decisions.get(key)
        if decided is None:
            decided = self._decide_some(client, operation, resource_type)
            self._remember(key, decided)
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
        named = () if index is None else (*index.patterns_of(client.principal), *index.patterns_of(EVERYONE))
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
