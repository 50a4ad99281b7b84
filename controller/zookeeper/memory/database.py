"""The in-memory ZooKeeper's znodes, watches and access lists, and its answer to each request.

A `ClientLink` represents a client: its session, its identity, and the receiver of its watch events. It has two ordered
pipes that can be cut and healed. What is sent arrives after its latency, never before what was sent earlier the same
way. While a pipe is cut what is in it, and what is sent into it, stays: TCP sends it again until it gets through, so
that it arrives once the cut is healed, even a request whose client has given up (which is why its outcome was
unknown). The server, not this module, manages the lifetime of sessions and sends replies.

The tree is pure: the transaction id, the time and the client's identity are arguments; results and changes are
returned. The rules, including which error is reported where several apply, are those of ZooKeeper 3.9's
PrepRequestProcessor and DataTree. Access lists follow ZooKeeper's rules for `world`, `digest` and `auth`; other schemes
(ip, sasl, x509) are refused as by a server that does not know them. Watches are one-shot, by path and by watcher; a
watch set twice by one watcher is one watch.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from controller.clock import Clock, Future
from controller.few import Few
from controller.zookeeper.operations import (
    ACL,
    ANY_VERSION,
    OPEN_ACL,
    PERM_CREATE,
    PERM_DELETE,
    PERM_READ,
    PERM_WRITE,
    BadArguments,
    BadVersion,
    Check,
    Columns,
    Create,
    Delete,
    InvalidACL,
    Listing,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    ReadResult,
    SetData,
    Stat,
    WatchEvent,
    WatchKind,
    Write,
    WriteResult,
    Znode,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from controller.zookeeper.memory.followers import Follower

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
        self.ids: tuple[str, ...] = ()
        for _, credential in auth:
            self.ids += (digest_id(credential),)
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


SPECIAL_PATHS: Final = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})
"""The znodes that every server has from the start, and that can't be deleted."""

Change = tuple[WatchKind, str, tuple[ACL, ...]]
"""A change of a path, in the order in which a server triggers watches; the ACL decides which clients are notified."""

_Undo = tuple[Callable[..., None], tuple[Any, ...]]


class StoredZnode(msgspec.Struct, eq=False):
    """One znode. `creations` counts the children ever created: the next sequence number, and with the number of
    children left the cversion that a client sees. `extended` is not 0 for a container or TTL node: what a server stores
    for it in the place of an owner, and shows to no client. `stat` and `row` are made when asked for and kept until
    they change."""

    path: str
    data: bytes | None
    acl: tuple[ACL, ...]
    owner: int = 0
    czxid: int = 0
    ctime_ms: int = 0
    mzxid: int = 0
    pzxid: int = 0
    mtime_ms: int = 0
    version: int = 0
    acl_version: int = 0
    extended: int = 0
    creations: int = 0
    children: Few[str, None] = msgspec.field(default_factory=Few)
    stat: Stat | None = None
    row: Znode | None = None

    def __post_init__(self) -> None:
        self.mzxid = self.pzxid = self.czxid
        self.mtime_ms = self.ctime_ms

    def read_stat(self) -> Stat:
        if (stat := self.stat) is None:
            data = self.data
            count = len(self.children)
            stat = self.stat = Stat(
                self.czxid,
                self.mzxid,
                self.ctime_ms,
                self.mtime_ms,
                self.version,
                self.creations * 2 - count,
                self.acl_version,
                self.owner,
                0 if data is None else len(data),
                count,
                self.pzxid,
            )
        return stat

    def read_row(self) -> Znode:
        if (row := self.row) is None:
            row = self.row = Znode(self.path, self.data, self.read_stat())
        return row


class DataTree:
    __slots__ = ("_ephemerals", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[str, StoredZnode] = {}
        self._ephemerals: dict[int, dict[str, None]] = {}
        for path in sorted(SPECIAL_PATHS):
            self.nodes[path] = StoredZnode(path, b"", READ_ONLY_ACL if path == "/zookeeper/config" else OPEN_ACL)
        self.nodes["/"].children["zookeeper"] = None
        for name in ("config", "quota"):
            self.nodes["/zookeeper"].children[name] = None

    @classmethod
    def of(cls, nodes: dict[str, StoredZnode]) -> DataTree:
        """Return the tree of these znodes, whose children are not set yet. Raises KeyError for a path without parent.

        Children are listed in the order of `nodes`.
        """
        tree = cls()
        tree.nodes = nodes
        for path, node in nodes.items():
            head, _, name = path.rpartition("/")
            if name:
                nodes[head or "/"].children[name] = None
            if node.owner:
                tree._ephemerals.setdefault(node.owner, {})[path] = None
        return tree

    def apply(
        self, operations: Sequence[Write], session: int, identity: ClientIdentity, zxid: int, now_ms: int
    ) -> tuple[tuple[WriteResult, ...], list[Change]]:
        """Carries out all of `operations`, or none: MultiFailed names the first that can't be."""
        results: list[WriteResult] = []
        changes: list[Change] = []
        undo: list[_Undo] = []
        try:
            for operation in operations:
                kind = type(operation)
                if kind is SetData:
                    results.append(self._set(operation, identity, zxid, now_ms, changes, undo))  # type: ignore[arg-type]
                elif kind is Check:
                    node = self._existing(operation.path, operation.path)
                    identity.demand(node.acl, PERM_READ, operation.path)
                    _demand_version(node, operation.version)  # type: ignore[union-attr]
                    results.append(None)
                elif kind is Create:
                    results.append(self._create(operation, session, identity, zxid, now_ms, changes, undo))  # type: ignore[arg-type]
                else:
                    self._delete(operation, identity, zxid, changes, undo)  # type: ignore[arg-type]
                    results.append(None)
        except ZooKeeperError as error:
            for revert, arguments in reversed(undo):
                revert(*arguments)
            raise MultiFailed(len(results), error.with_traceback(None)) from None
        return tuple(results), changes

    def missed(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Iterator[tuple[str, bool, WatchKind | None]]:
        """Of a SetWatches each path, whether its children are watched, and what its client has missed; None: nothing,
        so its watch is to be set."""
        for path in data:
            node = self.nodes.get(path)
            yield (
                path,
                False,
                WatchKind.DELETED if node is None else WatchKind.DATA if node.mzxid > since_zxid else None,
            )
        for path in exists:
            yield path, False, WatchKind.CREATED if path in self.nodes else None
        for path in children:
            node = self.nodes.get(path)
            changed = None if node is None or node.pzxid <= since_zxid else WatchKind.CHILDREN
            yield path, True, WatchKind.DELETED if node is None else changed

    def end_session(self, session: int, zxid: int) -> list[Change]:
        """Deletes a session's ephemerals, in the order of the server's own hash set."""
        changes: list[Change] = []
        for path in java_hash_order(list(self._ephemerals.get(session, ()))):
            self._remove(self.nodes[path], zxid, changes)
        self._ephemerals.pop(session, None)
        return changes

    def ephemerals(self, session: int) -> tuple[str, ...]:
        return tuple(sorted(self._ephemerals.get(session, ())))

    def walk(self) -> Iterator[Znode]:
        """Every znode, sorted by path."""
        for path in sorted(self.nodes):
            yield self.nodes[path].read_row()

    def _existing(self, path: str, asked: str) -> StoredZnode:
        """The node at `path`, for the operation on `asked`, which is what the error names."""
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(asked)
        return node

    def _set(
        self,
        operation: SetData,
        identity: ClientIdentity,
        zxid: int,
        now_ms: int,
        changes: list[Change],
        undo: list[_Undo],
    ) -> Stat:
        path = operation.path
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        if node.acl is not OPEN_ACL:
            identity.demand(node.acl, PERM_WRITE, path)
        _demand_version(node, operation.version)
        undo.append((_restore, (node, node.data, node.version, node.mzxid, node.mtime_ms, node.stat, node.row)))
        node.data = operation.data
        node.version += 1
        node.mzxid = zxid
        node.mtime_ms = now_ms
        node.stat = node.row = None
        changes.append((WatchKind.DATA, path, node.acl))
        return node.read_stat()

    def _create(
        self,
        operation: Create,
        session: int,
        identity: ClientIdentity,
        zxid: int,
        now_ms: int,
        changes: list[Change],
        undo: list[_Undo],
    ) -> str:
        path = operation.path
        head, _, name = path.rpartition("/")
        acl = identity.resolve(operation.acl, path)
        parent = self._existing(head or "/", path)
        identity.demand(parent.acl, PERM_CREATE, path)
        if operation.sequential:
            suffix = f"{parent.creations:010d}"
            path += suffix
            name += suffix
        if path in self.nodes:
            raise NodeExists(operation.path)
        if parent.owner:
            raise NoChildrenForEphemerals(operation.path)
        undo.append((self._uncreate, (path, name, parent, parent.pzxid)))
        node = StoredZnode(path, operation.data, acl, session if operation.ephemeral else 0, zxid, now_ms)
        self.nodes[path] = node
        parent.children[name] = None
        parent.creations += 1
        parent.pzxid = zxid
        parent.stat = parent.row = None
        if operation.ephemeral:
            self._ephemerals.setdefault(session, {})[path] = None
        changes.append((WatchKind.CREATED, path, acl))
        changes.append((WatchKind.CHILDREN, head or "/", parent.acl))
        return path

    def _delete(
        self, operation: Delete, identity: ClientIdentity, zxid: int, changes: list[Change], undo: list[_Undo]
    ) -> None:
        path = operation.path
        if path in SPECIAL_PATHS:
            raise BadArguments(path)
        parent = self._existing(path.rpartition("/")[0] or "/", path)
        identity.demand(parent.acl, PERM_DELETE, path)
        node = self._existing(path, path)
        _demand_version(node, operation.version)
        if len(node.children):
            raise NotEmpty(path)
        undo.append((self._undelete, (node, parent, parent.pzxid)))
        self._remove(node, zxid, changes)

    def _remove(self, node: StoredZnode, zxid: int, changes: list[Change]) -> None:
        path = node.path
        head, _, name = path.rpartition("/")
        parent = self.nodes[head or "/"]
        del self.nodes[path]
        parent.children.pop(name)
        parent.pzxid = zxid
        parent.stat = parent.row = None
        if node.owner:
            del self._ephemerals[node.owner][path]
        changes.append((WatchKind.DELETED, path, node.acl))
        changes.append((WatchKind.CHILDREN, head or "/", parent.acl))

    def _uncreate(self, path: str, name: str, parent: StoredZnode, pzxid: int) -> None:
        node = self.nodes.pop(path)
        parent.children.pop(name)
        parent.creations -= 1
        parent.pzxid = pzxid
        parent.stat = parent.row = None
        if node.owner:
            del self._ephemerals[node.owner][path]

    def _undelete(self, node: StoredZnode, parent: StoredZnode, pzxid: int) -> None:
        self.nodes[node.path] = node
        parent.children[node.path.rpartition("/")[2]] = None
        parent.pzxid = pzxid
        parent.stat = parent.row = None
        if node.owner:
            self._ephemerals[node.owner][node.path] = None


def _demand_version(node: StoredZnode, version: int) -> None:
    if version not in (ANY_VERSION, node.version):
        raise BadVersion(node.path)


def _restore(
    node: StoredZnode, data: bytes | None, version: int, mzxid: int, mtime_ms: int, stat: Stat | None, row: Znode | None
) -> None:
    node.data, node.version, node.mzxid, node.mtime_ms, node.stat, node.row = data, version, mzxid, mtime_ms, stat, row


def java_hash_order(strings: Sequence[str]) -> list[str]:
    """The order in which a copy of a java.util.HashSet gives these strings, added to the set in their order: by hash,
    in a table of the next power of two (JDK 17's sizes; no string has been taken out before). A server deletes the
    ephemerals of a session in it."""
    count = len(strings)
    table = 16
    while count > 0.75 * table:
        table *= 2
    copy = 1 << int(count / 0.75).bit_length()
    hashes = {string: _java_hash(string) for string in strings}
    return sorted(strings, key=lambda string: (hashes[string] & (copy - 1), hashes[string] & (table - 1)))


def _java_hash(string: str) -> int:
    value = 0
    for character in string:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value ^ (value >> 16)


W = TypeVar("W", bound=Hashable)


class WatchTable(Generic[W]):
    __slots__ = ("_paths", "_watchers")

    def __init__(self) -> None:
        self._watchers: dict[str, dict[W, None]] = {}
        self._paths: dict[W, set[str]] = {}

    def __len__(self) -> int:
        """Return the number of watches."""
        return sum(map(len, self._watchers.values()))

    def add(self, path: str, watcher: W) -> None:
        watchers = self._watchers.get(path)
        if watchers is None:
            self._watchers[path] = {watcher: None}
        else:
            watchers[watcher] = None
        paths = self._paths.get(watcher)
        if paths is None:
            self._paths[watcher] = {path}
        else:
            paths.add(path)

    def trigger(self, path: str) -> Collection[W]:
        """Takes away the watches on `path`; gives their watchers in the order in which they were set."""
        watchers = self._watchers.pop(path, None)
        if watchers is None:
            return ()
        for watcher in watchers:
            self._paths[watcher].discard(path)
        return watchers.keys()

    def forget(self, watcher: W) -> None:
        """Takes away every watch of a watcher whose connection has ended."""
        for path in self._paths.pop(watcher, ()):
            watchers = self._watchers[path]
            del watchers[watcher]
            if not watchers:
                del self._watchers[path]

    def paths_of(self, watcher: W) -> frozenset[str]:
        return frozenset(self._paths.get(watcher, ()))


END: Final = object()
"""The other end has closed the connection: the last that arrives through a pipe."""

Latency = Callable[[], float]
"""Milliseconds that the next message takes, one way."""

CONNECT, CLOSE, PING, SYNC, READ, READ_COLUMNS, CHILDREN, MULTI, SET_WATCHES, WATCH = range(10)
"""What a request asks for."""


class LinkRequest:
    """One request; the same object, with its answer in it, is the reply. `pending` is None for what the client asks
    on its own account (connect, ping)."""

    __slots__ = ("arguments", "error", "operation", "pending", "result", "sent_ms", "zxid")

    def __init__(self, operation: int, arguments: Any, pending: Future[Any] | None) -> None:
        self.operation = operation
        self.arguments = arguments
        self.pending = pending
        self.sent_ms = 0.0
        self.result: Any = None
        self.error: Exception | None = None
        self.zxid = 0


class ServerPipe:
    """One direction of a link."""

    __slots__ = ("_clock", "_closed", "_cut", "_deliver", "_due_ms", "_generation", "_latency", "_queue")

    def __init__(self, clock: Clock, latency: Latency | None, deliver: Callable[[Any], None]) -> None:
        self._clock = clock
        self._latency = latency
        self._deliver = deliver
        self._cut = False
        self._closed = False
        self._queue: deque[Any] = deque()
        self._due_ms = 0.0
        self._generation = 0

    def send(self, message: Any) -> None:
        if self._closed:
            return
        self._queue.append(message)
        if not self._cut:
            self._schedule()

    def cut(self) -> None:
        if not self._cut:
            self._cut = True
            self._generation += 1

    def heal(self) -> None:
        if self._cut:
            self._cut = False
            for _ in range(len(self._queue)):
                self._schedule()

    def close(self) -> None:
        """Nothing more comes out: what is on its way, and what is still sent, is lost."""
        self._closed = True
        self._queue.clear()
        self._generation += 1

    def _schedule(self) -> None:
        latency = self._latency
        if latency is None:
            delay_ms = 0.0
        else:
            delay_ms = latency()
            now_ms = self._clock.now_ms()
            if now_ms + delay_ms < self._due_ms:
                delay_ms = self._due_ms - now_ms
            else:
                self._due_ms = now_ms + delay_ms
        self._clock.call_later(delay_ms, partial(self._arrive, self._generation))

    def _arrive(self, generation: int) -> None:
        # The queue gives the order; a timer only says that one more has arrived.
        if generation == self._generation:
            self._deliver(self._queue.popleft())


class ClientLink:
    """A connection as both ends hold it. The server notes whose session it carries in `session` (0: not known yet)
    and whether it still serves it in `open`. `follower`: the server that answers, None for the leader. `losing`: the
    reply to the next write will be lost with the connection, after it was applied (True) or before (False)."""

    __slots__ = ("follower", "identity", "losing", "open", "session", "to_client", "to_server")

    def __init__(
        self,
        clock: Clock,
        latency: Latency | None,
        at_server: Callable[[ClientLink, Any], None],
        at_client: Callable[[Any], None],
        identity: ClientIdentity,
    ) -> None:
        self.session = 0
        self.open = True
        self.follower: Follower | None = None
        self.losing: bool | None = None
        self.identity = identity
        self.to_server = ServerPipe(clock, latency, partial(at_server, self))
        self.to_client = ServerPipe(clock, latency, at_client)


class Transaction(NamedTuple):
    """A transaction as a follower applies it. `operations` None: the session's end, or its beginning if `begins`."""

    zxid: int
    session: int
    operations: Sequence[Write] | None
    identity: ClientIdentity
    now_ms: int
    begins: bool = False


_NO_IDENTITY = ClientIdentity()


class Database:
    """`zxid` is the last transaction's; each write, failed or not, and each session's beginning and end is one."""

    __slots__ = ("_clock", "child_watches", "data_watches", "transaction_listeners", "tree", "zxid")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tree = DataTree()
        self.zxid = 0
        self.data_watches: WatchTable[ClientLink] = WatchTable()
        self.child_watches: WatchTable[ClientLink] = WatchTable()
        self.transaction_listeners: list[Callable[[Transaction], None]] = []
        """Those of the followers."""

    def begin_session(self) -> None:
        self.zxid += 1
        if self.transaction_listeners:
            self._pass_on(Transaction(self.zxid, 0, None, _NO_IDENTITY, 0, begins=True))

    def _pass_on(self, transaction: Transaction) -> None:
        for listener in self.transaction_listeners:
            listener(transaction)

    def repeat(self, transaction: Transaction) -> None:
        """Apply a transaction of the leader's; one that failed there fails here."""
        self.zxid = transaction.zxid
        _, session, operations, identity, now_ms, begins = transaction
        if operations is not None:
            try:
                _, changes = self.tree.apply(operations, session, identity, self.zxid, now_ms)
            except MultiFailed:
                return
            self._fire(changes)
        elif not begins:
            self._fire(self.tree.end_session(session, self.zxid))

    def end_session(self, session: int) -> None:
        self.zxid += 1
        if self.transaction_listeners:
            self._pass_on(Transaction(self.zxid, session, None, _NO_IDENTITY, 0))
        self._fire(self.tree.end_session(session, self.zxid))

    def forget_watches(self, link: ClientLink) -> None:
        self.data_watches.forget(link)
        self.child_watches.forget(link)

    def watched(self, link: ClientLink) -> frozenset[tuple[str, str]]:
        """("node" or "children", path) of each watch that a client has here."""
        return frozenset(
            (kind, path)
            for kind, table in (("node", self.data_watches), ("children", self.child_watches))
            for path in table.paths_of(link)
        )

    def read(self, link: ClientLink, paths: Sequence[str]) -> ReadResult:
        nodes = self.tree.nodes
        rows: list[Znode | None] = []
        for path in paths:
            node = nodes.get(path)
            if node is None:
                rows.append(None)
            elif node.acl is not OPEN_ACL and not link.identity.may(node.acl, PERM_READ):
                raise NoAuth(path)
            else:
                rows.append(node.row or node.read_row())
        return ReadResult(tuple(rows), self.zxid)

    def read_columns(self, link: ClientLink, paths: Sequence[str]) -> Columns:
        nodes = self.tree.nodes
        data: list[bytes | None] = []
        versions: list[int] = []
        mzxids: list[int] = []
        for path in paths:
            node = nodes.get(path)
            if node is None:
                data.append(None)
                versions.append(-1)
                mzxids.append(-1)
            elif node.acl is not OPEN_ACL and not link.identity.may(node.acl, PERM_READ):
                raise NoAuth(path)
            else:
                data.append(node.data)
                versions.append(node.version)
                mzxids.append(node.mzxid)
        return Columns.of(data, np.array(versions, np.int32), np.array(mzxids, np.int64), self.zxid)

    def children(self, link: ClientLink, paths: Sequence[str]) -> Listing:
        nodes = self.tree.nodes
        listed: list[tuple[str, ...] | None] = []
        for path in paths:
            node = nodes.get(path)
            if node is not None:
                link.identity.demand(node.acl, PERM_READ, path)
            listed.append(None if node is None else tuple(sorted(node.children)))
        return Listing(tuple(listed), self.zxid)

    def multi(self, link: ClientLink, operations: Sequence[Write]) -> tuple[WriteResult, ...]:
        return self.write(operations, link.session, link.identity)

    def write(self, operations: Sequence[Write], session: int, identity: ClientIdentity) -> tuple[WriteResult, ...]:
        self.zxid += 1  # a failed multi is a transaction too
        now_ms = self._clock.wall_ms()
        if self.transaction_listeners:
            self._pass_on(Transaction(self.zxid, session, operations, identity, now_ms))
        results, changes = self.tree.apply(operations, session, identity, self.zxid, now_ms)
        self._fire(changes)
        return results

    def set_watches(self, link: ClientLink, arguments: tuple[int, Sequence[str], Sequence[str], Sequence[str]]) -> None:
        for path, of_children, missed in self.tree.missed(*arguments):
            if missed is not None:
                link.to_client.send(WatchEvent(missed, path))
            else:
                (self.child_watches if of_children else self.data_watches).add(path, link)

    def watch(self, link: ClientLink, arguments: tuple[Sequence[str], Sequence[str]]) -> None:
        nodes, children = arguments
        for path in nodes:
            self.data_watches.add(path, link)
        for path in children:
            node = self.tree.nodes.get(path)
            if node is not None:
                link.identity.demand(node.acl, PERM_READ, path)
                self.child_watches.add(path, link)

    def _fire(self, changes: Sequence[Change]) -> None:
        for kind, path, acl in changes:
            if kind is WatchKind.CHILDREN:
                watchers = self.child_watches.trigger(path)
            else:
                watchers = self.data_watches.trigger(path)
                if kind is WatchKind.DELETED:  # one event for a client that watched both
                    watchers = {**dict.fromkeys(watchers), **dict.fromkeys(self.child_watches.trigger(path))}
            if watchers:
                event = WatchEvent(kind, path)
                for link in watchers:
                    if acl is OPEN_ACL or link.identity.may(acl, PERM_READ):
                        link.to_client.send(event)
