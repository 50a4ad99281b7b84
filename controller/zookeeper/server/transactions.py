"""What a ZooKeeper server keeps on disk: transactions as their resulting changes, sessions, and snapshots of the tree.

A transaction carries the state that each changed znode has after it. Replaying one twice, or over a tree that already
has it, gives the same tree. This lets a snapshot be taken while the tree changes, as ZooKeeper's is: it holds every
transaction up to its zxid, and may hold effects of later ones, which the log repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from controller.zookeeper.memory.database import Change, DataTree, StoredZnode
from controller.zookeeper.operations import ACL, OPEN_ACL, WatchKind


class ZnodeState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A znode without its children, whose paths name it. `acl` None is the open one."""

    path: str
    data: bytes | None
    acl: tuple[tuple[int, str, str], ...] | None
    owner: int
    extended: int
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    acl_version: int
    creations: int


class SessionRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    password: bytes
    timeout_ms: int


class ParentState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a create or delete changes in the parent."""

    path: str
    pzxid: int
    creations: int


class LoggedTransaction(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One zxid. A write that failed has one too, and no changes.

    `session` is the one that wrote, began or ended; `begun` and `ended` say which. Deletions come before the rest: a
    path in both was deleted and created again.
    """

    zxid: int
    time_ms: int
    session: int
    deleted: tuple[str, ...] = ()
    nodes: tuple[ZnodeState, ...] = ()
    parents: tuple[ParentState, ...] = ()
    begun: SessionRecord | None = None
    ended: bool = False


class SnapshotHead(msgspec.Struct, array_like=True, frozen=True, tag="head"):
    """The first frame of a snapshot: the transaction that it was begun after, and the sessions then."""

    zxid: int
    last_session: int
    sessions: tuple[SessionRecord, ...]


class SnapshotNodes(msgspec.Struct, array_like=True, frozen=True, tag="nodes"):
    nodes: tuple[ZnodeState, ...]


class SnapshotEnd(msgspec.Struct, array_like=True, frozen=True, tag="end"):
    """The last frame: the number of znodes, and the last transaction of which the snapshot may hold effects."""

    nodes: int
    through: int


PACK: Final = msgspec.msgpack.Encoder()
GROUPS: Final = msgspec.msgpack.Decoder(tuple[LoggedTransaction, ...])
SNAPSHOTS: Final = msgspec.msgpack.Decoder(SnapshotHead | SnapshotNodes | SnapshotEnd)


def state_of(node: StoredZnode) -> ZnodeState:
    acl = node.acl
    return ZnodeState(
        node.path,
        node.data,
        None if acl is OPEN_ACL else tuple((each.permissions, each.scheme, each.id) for each in acl),
        node.owner,
        node.extended,
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime_ms,
        node.mtime_ms,
        node.version,
        node.acl_version,
        node.creations,
    )


def transaction_of(
    zxid: int,
    time_ms: int,
    session: int,
    changes: Iterable[Change],
    tree: DataTree,
    *,
    begun: SessionRecord | None = None,
    ended: bool = False,
) -> LoggedTransaction:
    """Return a transaction that has just been applied to `tree`, and made these changes there."""
    deleted: dict[str, None] = {}
    written: dict[str, None] = {}
    parents: dict[str, None] = {}
    for kind, path, _ in changes:
        (deleted if kind is WatchKind.DELETED else parents if kind is WatchKind.CHILDREN else written)[path] = None
    nodes = tree.nodes
    return LoggedTransaction(
        zxid,
        time_ms,
        session,
        tuple(deleted),
        tuple(state_of(nodes[path]) for path in written if path in nodes),
        tuple(
            ParentState(path, nodes[path].pzxid, nodes[path].creations)
            for path in parents
            if path not in written and path in nodes
        ),
        begun,
        ended,
    )


class DurableState:
    """What the files of a data directory amount to: znodes without their children, sessions, the last zxid."""

    def __init__(self) -> None:
        self.nodes = dict(DataTree().nodes)
        self.sessions: dict[int, SessionRecord] = {}
        self.zxid = 0
        self.through = 0
        """The log must go on at least this far: a snapshot may hold effects of transactions up to it."""
        self.last_session = 0

    def put(self, states: Collection[ZnodeState]) -> None:
        for state in states:
            acl = OPEN_ACL if state.acl is None else tuple(ACL(*each) for each in state.acl)
            node = StoredZnode(state.path, state.data, acl, state.owner)
            node.extended = state.extended
            node.czxid, node.mzxid, node.pzxid = state.czxid, state.mzxid, state.pzxid
            node.ctime_ms, node.mtime_ms = state.ctime_ms, state.mtime_ms
            node.version, node.acl_version, node.creations = state.version, state.acl_version, state.creations
            self.nodes[state.path] = node

    def replay(self, transaction: LoggedTransaction) -> None:
        """Apply the next transaction. What a snapshot had already lost or gained of later ones is passed over."""
        self.zxid = transaction.zxid
        for path in transaction.deleted:
            self.nodes.pop(path, None)
        self.put(transaction.nodes)
        for parent in transaction.parents:
            if (node := self.nodes.get(parent.path)) is not None:
                node.pzxid, node.creations = parent.pzxid, parent.creations
        if (begun := transaction.begun) is not None:
            self.sessions[begun.id] = begun
            self.last_session = max(self.last_session, begun.id)
        elif transaction.ended:
            self.sessions.pop(transaction.session, None)

    def tree(self) -> DataTree:
        """Return the znodes as a tree. Raises KeyError for a path whose parent there is not."""
        return DataTree.of(self.nodes)
