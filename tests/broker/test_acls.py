"""The rule that decides by ACLs, against another that goes through all of them: `python -m tests.broker.test_acls`."""

from __future__ import annotations

import argparse
import random
import sys

import pytest

from controller.broker.security.acls import (
    Acl,
    AclEntry,
    AclOperation,
    AclPermission,
    AclRules,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from controller.broker.security.principal import Principal, Requester, parse_principal

NAMES = ("a", "ab", "abc", "abd", "b", "*", "a-b", "")
PRINCIPALS = tuple(map(parse_principal, ("User:alice", "User:bob", "User:*", "Group:alice", "User:ANONYMOUS")))
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
OPERATIONS = tuple(one for one in AclOperation if one > AclOperation.ANY)
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
CASES = 100_000


class Oracle:
    """Kafka's AclAuthorizer in the words of its documentation, one ACL after the other."""

    def __init__(self, acls: list[Acl], super_users: tuple[Principal, ...], allow_if_none: bool) -> None:
        self.acls, self.super_users, self.allow_if_none = acls, super_users, allow_if_none

    def covers(self, pattern: ResourcePattern, kind: ResourceType, name: str) -> bool:
        if pattern.resource_type != kind:
            return False
        if pattern.pattern_type == PatternType.PREFIXED:
            return name.startswith(pattern.name)
        return pattern.name == name or pattern.name == "*"

    def says(self, acl: Acl, client: Requester, operation: AclOperation, permission: AclPermission) -> bool:
        entry = acl.entry
        return (
            entry.permission == permission
            and (str(entry.principal) == str(client.principal) or str(entry.principal) == "User:*")
            and entry.host in ("*", client.host)
            and (entry.operation == operation or entry.operation == AclOperation.ALL)
        )

    def allows(self, client: Requester, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        if client.principal in self.super_users:
            return True
        acls = [acl for acl in self.acls if self.covers(acl.pattern, kind, name)]
        if not acls:
            return self.allow_if_none
        if any(self.says(acl, client, operation, AclPermission.DENY) for acl in acls):
            return False
        implied = [operation]
        if operation == AclOperation.DESCRIBE:
            implied += [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER]
        if operation == AclOperation.DESCRIBE_CONFIGS:
            implied += [AclOperation.ALTER_CONFIGS]
        return any(self.says(acl, client, one, AclPermission.ALLOW) for acl in acls for one in implied)

    def allows_some(self, client: Requester, operation: AclOperation, kind: ResourceType) -> bool:
        """There is a name that an ACL allows and none denies: tried with a name that no other pattern has."""
        if client.principal in self.super_users:
            return True
        patterns = {acl.pattern for acl in self.acls if acl.pattern.resource_type == kind}
        denied = [acl for acl in self.acls if self.says(acl, client, operation, AclPermission.DENY)]
        if any(acl.pattern.name == "*" and self.covers(acl.pattern, kind, "*") for acl in denied if is_literal(acl)):
            return False
        if self.allow_if_none:
            return True
        for pattern in patterns:
            allowed = [
                a for a in self.acls if a.pattern == pattern and self.says(a, client, operation, AclPermission.ALLOW)
            ]
            literal = pattern.pattern_type == PatternType.LITERAL
            tried = pattern.name if literal else f"{pattern.name}~"
            everything = literal and pattern.name == "*"
            if allowed and (everything or not any(self.covers(acl.pattern, kind, tried) for acl in denied)):
                return True
        return False


def is_literal(acl: Acl) -> bool:
    return acl.pattern.pattern_type == PatternType.LITERAL


def drawn_acls(rng: random.Random) -> list[Acl]:
    acls = []
    for _ in range(rng.randrange(12)):
        kind = rng.choice((PatternType.LITERAL, PatternType.LITERAL, PatternType.PREFIXED))
        name = rng.choice(NAMES[:-1])
        pattern = ResourcePattern(rng.choice(TYPES), name, kind)
        permission = rng.choice((AclPermission.ALLOW, AclPermission.ALLOW, AclPermission.DENY))
        acls.append(
            Acl(pattern, AclEntry(rng.choice(PRINCIPALS), rng.choice(HOSTS), rng.choice(OPERATIONS), permission))
        )
    return acls


def rules_of(acls: list[Acl], super_users: tuple[Principal, ...] = (), *, allow_if_none: bool = False) -> AclRules:
    rules = AclRules(super_users, allow_if_none=allow_if_none)
    entries: dict[ResourcePattern, list[AclEntry]] = {}
    for acl in acls:
        entries.setdefault(acl.pattern, []).append(acl.entry)
    rules.replace_all(entries)
    return rules


def compare(seed: int, cases: int) -> int:
    """The number of decisions that were allowed. AssertionError with the first that differs."""
    rng = random.Random(seed)
    allowed = done = 0
    while done < cases:
        acls, allow_if_none = drawn_acls(rng), rng.random() < 0.3
        super_users = (PRINCIPALS[1],) if rng.random() < 0.2 else ()
        oracle, rules = (
            Oracle(acls, super_users, allow_if_none),
            rules_of(acls, super_users, allow_if_none=allow_if_none),
        )
        for _ in range(20):
            principal = rng.choice([one for one in PRINCIPALS if one.name != "*"])
            client = Requester("L", rng.choice(HOSTS[:2]), principal)
            operation, kind = rng.choice(OPERATIONS), rng.choice(TYPES)
            name = rng.choice(NAMES)
            found = rules.allows(client, operation, kind, name)
            case = (seed, acls, client, operation, kind, name)
            assert found == oracle.allows(client, operation, kind, name), case
            allowed += found
            some = rules.allows_some(client, operation, kind)
            assert some == oracle.allows_some(client, operation, kind), (seed, acls, client, operation, kind)
            done += 1
        if acls and rng.random() < 0.5:  # and after a change
            gone = rng.choice(acls).pattern
            rules.replace(gone, ())
            added = drawn_acls(rng)[:1] if gone.pattern_type is PatternType.PREFIXED else []
            for one in added:
                rules.replace(one.pattern, (one.entry,))
            replaced = {gone, *(one.pattern for one in added)}
            kept = [acl for acl in acls if acl.pattern not in replaced]
            left = Oracle([*kept, *added], super_users, allow_if_none)
            client = Requester("L", HOSTS[0], PRINCIPALS[0])
            for name in NAMES:
                assert rules.allows(client, AclOperation.READ, ResourceType.TOPIC, name) == left.allows(
                    client, AclOperation.READ, ResourceType.TOPIC, name
                )
    return allowed


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_those_of_the_oracle(seed: int) -> None:
    assert compare(seed, CASES // 40) > 0


def test_nothing_is_allowed_before_the_acls_are_known() -> None:
    rules = AclRules((PRINCIPALS[0],), allow_if_none=True)
    asked = (AclOperation.READ, ResourceType.TOPIC, "a")
    assert rules.allows(Requester("L", "h", PRINCIPALS[0]), *asked)
    assert not rules.allows(Requester("L", "h", PRINCIPALS[1]), *asked)
    assert not rules.allows_some(Requester("L", "h", PRINCIPALS[1]), *asked[:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    allowed = compare(given.seed, given.cases)
    print(f"{given.cases:,} cases, {allowed:,} of them allowed: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
