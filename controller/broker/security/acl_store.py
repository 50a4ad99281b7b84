"""The ACLs of a cluster, followed in ZooKeeper, and the requests that describe, create and delete them.

A broker reads all ACLs in each session, and after that those that a notice names. Until it has read them the first time
it answers super users alone, and closes the connections of others. ACLs that can't be read are kept as they were known;
if they were never known, the resource is denied to everyone but super users, because one of them might deny something.
All of it runs on the broker's thread.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from controller.broker.request_context import on_broker_thread
from controller.broker.security.acls import (
    CLUSTER_NAME,
    EVERYONE,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Acl,
    AclEntry,
    AclFilter,
    AclOperation,
    AclPermission,
    AclRules,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from controller.broker.security.principal import parse_principal
from controller.broker.security.table import operation_title, resource_title
from controller.clock import Clock, Future, spawn
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcl,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.acl_znodes import (
    LITERAL,
    AclResource,
    AclRow,
    AclWrites,
    acl_resource_of,
    decode_acl_change,
    decode_acls,
)
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.operations import DamagedZnode, SessionGone, Znode, ZooKeeperError

NOTICE_LIFE_MS = 15 * 60 * 1000
"""Kafka's: how long a notice is left for brokers that have not looked yet."""
DELETED_A_LOOK = 100
RETRY_MS = 5_000.0
CHANGES_MAX = 1_000
"""ACLs that one request may create, and filters that it may delete by."""
NO_SESSION = 0
NO_AUTHORIZER = "No Authorizer is configured on the broker"

_TYPES = {resource_title(kind): kind for kind in SUPPORTED_OPERATIONS}
_OPERATIONS = {operation_title(one): one for one in AclOperation if one > AclOperation.ANY}
_PERMISSIONS = {"Deny": AclPermission.DENY, "Allow": AclPermission.ALLOW}
_DENY_ALL = AclEntry(EVERYONE, WILDCARD, AclOperation.ALL, AclPermission.DENY)


class AclsChanged(msgspec.Struct, frozen=True):
    """There is a notice of changed ACLs, or a connection was made. Never queued: see `node.ClientEvents`."""

    coalesces: ClassVar[bool] = True


def entry_of(row: AclRow) -> AclEntry:
    """Raises ValueError for words that Kafka does not have."""
    try:
        operation, permission = _OPERATIONS[row.operation], _PERMISSIONS[row.permission_type]
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is no operation or permission") from None
    return AclEntry(parse_principal(row.principal), row.host, operation, permission)


def row_of(entry: AclEntry) -> AclRow:
    permission = "Deny" if entry.permission is AclPermission.DENY else "Allow"
    return AclRow(str(entry.principal), permission, operation_title(entry.operation), entry.host)


def resource_of(pattern: ResourcePattern) -> AclResource:
    return AclResource(resource_title(pattern.resource_type), pattern.name, pattern.pattern_type.name)


def pattern_of(resource: AclResource) -> ResourcePattern:
    kind = PatternType.LITERAL if resource.pattern_type == LITERAL else PatternType.PREFIXED
    return ResourcePattern(_TYPES[resource.resource_type], resource.name, kind)


def entries_of(path: str, data: bytes | None) -> frozenset[AclEntry]:
    """Raises DamagedZnode."""
    try:
        return frozenset(entry_of(row) for row in decode_acls(path, data))
    except ValueError as error:
        raise DamagedZnode(path, f"ACLs ({error})", data) from error


class _Found(msgspec.Struct, frozen=True):
    """What one look has read. `everything`: the rows are all that there are."""

    session: int
    everything: bool
    rows: Mapping[str, Znode | None]
    seen: Mapping[str, int]
    old_notices: tuple[str, ...]


class AclStore:
    """Keeps `rules` as ZooKeeper has them."""

    def __init__(self, rules: AclRules, client: ZooKeeperClient, clock: Clock, trace: Trace) -> None:
        self.rules = rules
        self._client = client
        self._writes = AclWrites(client)
        self._clock = clock
        self._trace = trace
        self._session = NO_SESSION
        self._seen: Mapping[str, int] = {}
        """The last notice that was read, by the znode of the notices."""
        self._checking = self._check_again = False

    def start(self) -> None:
        """Once there is a session."""
        made = spawn(self._writes.ensure_acl_paths())
        on_broker_thread(made, self._clock, lambda: self._made(made))

    def _made(self, made: Future[None]) -> None:
        try:
            made.result()
        except ZooKeeperError as error:
            self._note("warning", f"the znodes of ACLs are not there yet: {error}")
            self._clock.call_later(RETRY_MS, self.start)
            return
        for parent in (paths.ACL_CHANGES, paths.EXTENDED_ACL_CHANGES):
            self._client.keep_watching_children(parent, AclsChanged())
        self.check()

    def check(self) -> None:
        """Something may have changed, or there is a new session."""
        if self._checking:
            self._check_again = True
            return
        self._checking, self._check_again = True, False
        found = spawn(self._read(self._session, self._seen))
        on_broker_thread(found, self._clock, lambda: self._taken(found))

    def _taken(self, pending: Future[_Found]) -> None:
        self._checking = False
        try:
            found = pending.result()
        except SessionGone:
            found = None  # the next session reads everything; the watches bring a check
        except ZooKeeperError as error:
            self._note("warning", f"ACLs are not read yet: {error}")
            self._clock.call_later(RETRY_MS, self.check)
            return
        except Exception:  # noqa: BLE001 - a bug, logged with its traceback; the next check starts afresh
            self._note("error", f"reading ACLs failed\n{traceback.format_exc()}")
            self._clock.call_later(RETRY_MS, self.check)
            return
        if found is not None:
            self._take(found)
        if self._check_again:
            self.check()

    def _take(self, found: _Found) -> None:
        self._session, self._seen = found.session, found.seen
        entries: dict[ResourcePattern, frozenset[AclEntry]] = {}
        for path, row in found.rows.items():
            resource = acl_resource_of(path)
            if resource is not None:
                pattern = pattern_of(resource)
                entries[pattern] = self._entries(pattern, path, row)
        if found.everything:
            self.rules.replace_all(entries)
        else:
            for pattern, some in entries.items():
                self.rules.replace(pattern, some)
        if found.old_notices:
            deletion = spawn(self._writes.remove_acl_changes(found.old_notices))
            deletion.on_done(lambda: None)

    def _entries(self, pattern: ResourcePattern, path: str, row: Znode | None) -> frozenset[AclEntry]:
        try:
            return frozenset() if row is None else entries_of(path, row.data)
        except DamagedZnode as damaged:
            known = self.rules.entries(pattern)
            kept = "they stay as they were known" if known else "the resource is denied to everyone"
            self._note("error", f"{damaged}; {kept}")
            return known or frozenset([_DENY_ALL])

    # -- asking ZooKeeper; nothing of this object is changed here, for an answer may come on another thread

    async def _read(self, session: int, seen: Mapping[str, int]) -> _Found:
        now = self._client.session()
        parents = [paths.ACL_CHANGES, paths.EXTENDED_ACL_CHANGES]
        listing = (await self._client.children(parents)).children
        latest = dict(seen)
        new: list[str] = []
        old: list[str] = []
        for parent, names in zip(parents, listing, strict=True):
            before = seen.get(parent, -1)
            for number, name in sorted((number_of(name), name) for name in names or ()):
                (old if number <= before else new).append(paths.child(parent, name))
                latest[parent] = max(latest.get(parent, -1), number)
        rows = (await self._client.read(old[:DELETED_A_LOOK])).rows if old else ()
        since_ms = self._clock.wall_ms() - NOTICE_LIFE_MS
        over = tuple(row.path for row in rows if row is not None and row.stat.ctime_ms < since_ms)
        if now != session:
            return _Found(now, True, await self._everything(), latest, over)
        notices = (await self._client.read(new)).rows if new else ()
        changed = dict.fromkeys(path for row in notices if row is not None and (path := self._named(row)))
        found = (await self._client.read(list(changed))).rows if changed else ()
        return _Found(now, False, dict(zip(changed, found, strict=True)), latest, over)

    async def _everything(self) -> dict[str, Znode | None]:
        parents = [f"{root}/{kind}" for root in (paths.ACLS, paths.PREFIXED_ACLS) for kind in paths.ACL_RESOURCE_TYPES]
        listing = (await self._client.children(parents)).children
        wanted = [f"{parent}/{name}" for parent, names in zip(parents, listing, strict=True) for name in names or ()]
        rows = (await self._client.read(wanted)).rows if wanted else ()
        return dict(zip(wanted, rows, strict=True))

    def _named(self, row: Znode) -> str | None:
        try:
            return decode_acl_change(row.path, row.data).path
        except DamagedZnode as damaged:
            self._note("error", str(damaged))
            return None

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))

    # -- changes

    async def _change(
        self, pattern: ResourcePattern, change: Callable[[frozenset[AclEntry]], Iterable[AclEntry]]
    ) -> tuple[ResourcePattern, frozenset[AclEntry]]:
        resource = resource_of(pattern)

        def changed(rows: tuple[AclRow, ...]) -> tuple[AclRow, ...]:
            try:
                before = frozenset(entry_of(row) for row in rows)
            except ValueError as error:
                raise DamagedZnode(resource.path, f"ACLs ({error})", None) from error
            return tuple(row_of(entry) for entry in sorted(change(before), key=str))

        rows = await self._writes.change_acls(resource, changed)
        return pattern, frozenset(entry_of(row) for row in rows)

    def create(self, request: CreateAclsRequest, version: int, answer: Callable[[CreateAclsResponse], None]) -> None:
        if len(request.creations) > CHANGES_MAX:
            answer(
                CreateAclsResponse((AclCreationResult(ErrorCode.POLICY_VIOLATION, _TOO_MANY),) * len(request.creations))
            )
            return
        results: list[AclCreationResult | None] = []
        wanted: dict[ResourcePattern, dict[int, AclEntry]] = {}
        for at, creation in enumerate(request.creations):
            acl, fault = acl_to_create(creation)
            results.append(None if fault is None else AclCreationResult(ErrorCode.INVALID_REQUEST, fault))
            if acl is not None:
                wanted.setdefault(acl.pattern, {})[at] = acl.entry

        async def write() -> None:
            for pattern, entries in wanted.items():
                outcome = await self._tried(pattern, lambda before, add=entries: {*before, *add.values()})  # type: ignore[misc]
                for at in entries:
                    results[at] = outcome

        self._then(write(), lambda: answer(CreateAclsResponse(tuple(one or _CREATED for one in results))))

    async def _tried(
        self, pattern: ResourcePattern, change: Callable[[frozenset[AclEntry]], Iterable[AclEntry]]
    ) -> AclCreationResult:
        try:
            changed, entries = await self._change(pattern, change)
        except ZooKeeperError as error:
            self._note("warning", f"ACLs of {pattern} are not changed: {error}")
            return AclCreationResult(ErrorCode.UNKNOWN_SERVER_ERROR, f"the ACLs were not written: {error}")
        self._clock.call_later(0.0, lambda: self.rules.replace(changed, entries))
        return _CREATED

    def _then(self, writing: Any, answer: Callable[[], None]) -> None:
        written = spawn(writing)

        def done() -> None:
            if written.error is not None:
                trace = "".join(traceback.format_exception(written.error))
                self._note("error", f"changing ACLs failed\n{trace}")
            answer()

        on_broker_thread(written, self._clock, done)

    def delete(self, request: DeleteAclsRequest, version: int, answer: Callable[[DeleteAclsResponse], None]) -> None:
        if len(request.filters) > CHANGES_MAX:
            answer(
                DeleteAclsResponse(
                    (DeleteAclsFilterResult(ErrorCode.POLICY_VIOLATION, _TOO_MANY),) * len(request.filters)
                )
            )
            return
        filters = [filter_of(one) for one in request.filters]
        patterns = dict.fromkeys(self.rules.patterns()) | dict.fromkeys(
            one for wanted in filters if wanted is not None for one in _at_most_one(wanted)
        )
        deleted: list[list[DeletedAcl]] = [[] for _ in filters]

        async def write() -> None:
            for pattern in patterns:
                matching = [
                    (at, one) for at, one in enumerate(filters) if one is not None and one.matches_pattern(pattern)
                ]
                if matching:
                    await self._delete(pattern, matching, deleted)

        def respond() -> None:
            results = tuple(
                DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, _BAD_FILTER)
                if one is None
                else DeleteAclsFilterResult(ErrorCode.NONE, None, tuple(acls))
                for one, acls in zip(filters, deleted, strict=True)
            )
            answer(DeleteAclsResponse(results))

        self._then(write(), respond)

    async def _delete(
        self, pattern: ResourcePattern, matching: Sequence[tuple[int, AclFilter]], deleted: list[list[DeletedAcl]]
    ) -> None:
        going: dict[AclEntry, int] = {}

        def without(before: frozenset[AclEntry]) -> frozenset[AclEntry]:
            going.clear()
            for entry in before:
                at = next((at for at, one in matching if one.matches_entry(entry)), None)
                if at is not None:
                    going[entry] = at
            return before - going.keys()

        outcome = await self._tried(pattern, without)
        for entry in sorted(going, key=str):
            deleted[going[entry]].append(
                DeletedAcl(
                    outcome.error_code,
                    outcome.error_message,
                    pattern.resource_type,
                    pattern.name,
                    str(entry.principal),
                    entry.host,
                    entry.operation,
                    entry.permission,
                    pattern.pattern_type,
                )
            )

    def describe(
        self, request: DescribeAclsRequest, version: int, answer: Callable[[DescribeAclsResponse], None]
    ) -> None:
        wanted = filter_of(request)
        if wanted is None:
            answer(DescribeAclsResponse(ErrorCode.INVALID_REQUEST, _BAD_FILTER))
            return
        found: dict[ResourcePattern, list[AclDescription]] = {}
        for acl in self.rules:
            if wanted.matches(acl):
                found.setdefault(acl.pattern, []).append(AclDescription(*_of_entry(acl.entry)))
        resources = tuple(
            DescribeAclsResource(*_of_pattern(pattern), tuple(acls), pattern.pattern_type)
            for pattern, acls in found.items()
        )
        answer(DescribeAclsResponse(ErrorCode.NONE, None, resources))

    @property
    def handlers(self) -> Mapping[ApiKey, Callable[[Any, int, Callable[[Any], None]], None]]:
        return {ApiKey.DESCRIBE_ACLS: self.describe, ApiKey.CREATE_ACLS: self.create, ApiKey.DELETE_ACLS: self.delete}


_TOO_MANY = f"expected at most {CHANGES_MAX} in a request"
_CREATED = AclCreationResult(ErrorCode.NONE)
_BAD_FILTER = "a type, operation or permission of the filter is unknown"


def without_authorizer(request: Any, _version: int, answer: Callable[[Any], None]) -> None:
    """The response to the three requests of a broker without ACLs."""
    error = ErrorCode.SECURITY_DISABLED
    match request:
        case DescribeAclsRequest():
            answer(DescribeAclsResponse(error, NO_AUTHORIZER))
        case CreateAclsRequest():
            answer(CreateAclsResponse(tuple(AclCreationResult(error, NO_AUTHORIZER) for _ in request.creations)))
        case _:
            answer(DeleteAclsResponse(tuple(DeleteAclsFilterResult(error, NO_AUTHORIZER) for _ in request.filters)))


ACL_APIS = (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)


def number_of(name: str) -> int:
    """A notice's place in the order in which they were left; -1 for what is none."""
    digits = name.removeprefix(paths.ACL_CHANGE_PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else -1


def _of_pattern(pattern: ResourcePattern) -> tuple[int, str]:
    return pattern.resource_type, pattern.name


def _of_entry(entry: AclEntry) -> tuple[str, str, int, int]:
    return str(entry.principal), entry.host, entry.operation, entry.permission


def acl_to_create(creation: AclCreation) -> tuple[Acl | None, str | None]:
    """Return the ACL, or what is wrong with it."""
    try:
        kind = ResourceType(creation.resource_type)
        pattern_type = PatternType(creation.resource_pattern_type)
        operation = AclOperation(creation.operation)
        permission = AclPermission(creation.permission_type)
        principal = parse_principal(creation.principal)
    except ValueError as error:
        return None, str(error)
    name = creation.resource_name
    fault: str | None = None
    if kind not in SUPPORTED_OPERATIONS:
        fault = f"resource type {kind.name}: expected one type"
    elif pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        fault = f"pattern type {pattern_type.name}: expected LITERAL or PREFIXED"
    elif permission not in (AclPermission.DENY, AclPermission.ALLOW):
        fault = f"permission {permission.name}: expected DENY or ALLOW"
    elif operation is not AclOperation.ALL and operation not in SUPPORTED_OPERATIONS[kind]:
        fault = f"operation {operation.name} does not apply to {kind.name}"
    elif not name:
        fault = "Invalid empty resource name"
    elif kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        fault = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    else:
        fault = _name_fault(name, creation.host)
    if fault is not None:
        return None, fault
    entry = AclEntry(principal, creation.host, operation, permission)
    return Acl(ResourcePattern(kind, name, pattern_type), entry), None


def _name_fault(name: str, host: str) -> str | None:
    if not host:
        return "Invalid empty host"
    try:
        paths.validate_path(f"{paths.ACLS}/Topic/{name}")
    except ValueError:
        return f"resource name {name!r} can be no znode's"
    return f"resource name {name!r}: expected no /" if "/" in name else None


def filter_of(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter | None:
    """None if a number in it is unknown."""
    try:
        found = AclFilter(
            ResourceType(asked.resource_type_filter),
            asked.resource_name_filter,
            PatternType(asked.pattern_type_filter),
            asked.principal_filter,
            asked.host_filter,
            AclOperation(asked.operation),
            AclPermission(asked.permission_type),
        )
    except ValueError:
        return None
    unknown = 0 in (found.resource_type, found.pattern_type, found.operation, found.permission)
    return None if unknown else found


def _at_most_one(wanted: AclFilter) -> tuple[ResourcePattern, ...]:
    """The patterns that a filter names without a look at what there is, so that ACLs that are not known here yet are
    deleted, too."""
    if wanted.resource_type not in SUPPORTED_OPERATIONS or not wanted.name or _name_fault(wanted.name, "*"):
        return ()
    if wanted.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
        return (ResourcePattern(wanted.resource_type, wanted.name, wanted.pattern_type),)
    if wanted.pattern_type is PatternType.ANY:
        return tuple(
            ResourcePattern(wanted.resource_type, wanted.name, kind)
            for kind in (PatternType.LITERAL, PatternType.PREFIXED)
        )
    return ()
