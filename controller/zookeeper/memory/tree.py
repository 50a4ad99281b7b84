"""The znodes of the in-memory ZooKeeper: the effect of each operation, and its errors.

Pure: the transaction id, the time and the client's identity are arguments; results and changes are returned. Session
lifetimes, watches and connections are not handled here. The rules, including which error is reported where several
apply, are those of ZooKeeper 3.9's PrepRequestProcessor and DataTree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from controller.few import Few
from controller.zookeeper.errors import (
    BadArguments,
    BadVersion,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    ZooKeeperError,
)
from controller.zookeeper.memory.acl import READ_ONLY_ACL, ClientIdentity
from controller.zookeeper.operations import (
    ACL,
    ANY_VERSION,
    OPEN_ACL,
    PERM_CREATE,
    PERM_DELETE,
    PERM_READ,
    PERM_WRITE,
    Check,
    Create,
    Delete,
    SetData,
    Stat,
    WatchKind,
    Write,
    WriteResult,
    Znode,
)

SPECIAL_PATHS: Final = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})
"""The znodes that every server has from the start, and that can't be deleted."""

Change = tuple[WatchKind, str, tuple[ACL, ...]]
"""A change of a path, in the order in which a server triggers watches; the ACL decides which clients are notified."""

_Undo = tuple[Callable[..., None], tuple[Any, ...]]


class StoredZnode:
    """One znode. `creations` counts the children ever created: the next sequence number, and with the number of
    children left the cversion that a client sees. `stat` and `row` are made when asked for and kept until they
    change."""

    __slots__ = (
        "acl",
        "children",
        "creations",
        "ctime_ms",
        "czxid",
        "data",
        "mtime_ms",
        "mzxid",
        "owner",
        "path",
        "pzxid",
        "row",
        "stat",
        "version",
    )

    def __init__(
        self, path: str, data: bytes | None, acl: tuple[ACL, ...], owner: int = 0, zxid: int = 0, now_ms: int = 0
    ) -> None:
        self.path = path
        self.data = data
        self.acl = acl
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime_ms = self.mtime_ms = now_ms
        self.version = 0
        self.creations = 0
        self.children: Few[str, None] = Few()
        self.stat: Stat | None = None
        self.row: Znode | None = None

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
                0,  # an ACL can't be changed through the port, so that aversion never grows
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
            raise MultiFailed(len(results), error) from None
        return tuple(results), changes

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
