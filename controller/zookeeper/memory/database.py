"""The in-memory ZooKeeper's znodes and watches, and its answer to each request.

A `ClientLink` represents a client: its session, its identity, and the receiver of its watch events. The server, not
this module, manages the lifetime of sessions and sends replies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.clock import Clock
from controller.zookeeper.errors import NoAuth
from controller.zookeeper.memory.acl import ClientIdentity
from controller.zookeeper.memory.link import ClientLink
from controller.zookeeper.memory.tree import Change, DataTree
from controller.zookeeper.memory.watches import WatchTable
from controller.zookeeper.operations import (
    OPEN_ACL,
    PERM_READ,
    Columns,
    Listing,
    ReadResult,
    WatchEvent,
    WatchKind,
    Write,
    WriteResult,
    Znode,
)


class Database:
    """`zxid` is the last transaction's; each write, failed or not, and each session's beginning and end is one."""

    __slots__ = ("_child_watches", "_clock", "_data_watches", "tree", "zxid")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tree = DataTree()
        self.zxid = 0
        self._data_watches: WatchTable[ClientLink] = WatchTable()
        self._child_watches: WatchTable[ClientLink] = WatchTable()

    def begin_session(self) -> None:
        self.zxid += 1

    def end_session(self, session: int) -> None:
        self.zxid += 1
        self._fire(self.tree.end_session(session, self.zxid))

    def forget_watches(self, link: ClientLink) -> None:
        self._data_watches.forget(link)
        self._child_watches.forget(link)

    def watched(self, link: ClientLink) -> frozenset[tuple[str, str]]:
        """("node" or "children", path) of each watch that a client has here."""
        return frozenset(
            (kind, path)
            for kind, table in (("node", self._data_watches), ("children", self._child_watches))
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
        results, changes = self.tree.apply(operations, session, identity, self.zxid, self._clock.wall_ms())
        self._fire(changes)
        return results

    def set_watches(self, link: ClientLink, arguments: tuple[int, Sequence[str], Sequence[str], Sequence[str]]) -> None:
        since_zxid, data, exists, children = arguments
        nodes, send = self.tree.nodes, link.to_client.send
        for path in data:
            node = nodes.get(path)
            if node is None:
                send(WatchEvent(WatchKind.DELETED, path))
            elif node.mzxid > since_zxid:
                send(WatchEvent(WatchKind.DATA, path))
            else:
                self._data_watches.add(path, link)
        for path in exists:
            if path in nodes:
                send(WatchEvent(WatchKind.CREATED, path))
            else:
                self._data_watches.add(path, link)
        for path in children:
            node = nodes.get(path)
            if node is None:
                send(WatchEvent(WatchKind.DELETED, path))
            elif node.pzxid > since_zxid:
                send(WatchEvent(WatchKind.CHILDREN, path))
            else:
                self._child_watches.add(path, link)

    def watch(self, link: ClientLink, arguments: tuple[Sequence[str], Sequence[str]]) -> None:
        nodes, children = arguments
        for path in nodes:
            self._data_watches.add(path, link)
        for path in children:
            node = self.tree.nodes.get(path)
            if node is not None:
                link.identity.demand(node.acl, PERM_READ, path)
                self._child_watches.add(path, link)

    def _fire(self, changes: Sequence[Change]) -> None:
        for kind, path, acl in changes:
            if kind is WatchKind.CHILDREN:
                watchers = self._child_watches.trigger(path)
            else:
                watchers = self._data_watches.trigger(path)
                if kind is WatchKind.DELETED:  # one event for a client that watched both
                    watchers = {**dict.fromkeys(watchers), **dict.fromkeys(self._child_watches.trigger(path))}
            if watchers:
                event = WatchEvent(kind, path)
                for link in watchers:
                    if acl is OPEN_ACL or link.identity.may(acl, PERM_READ):
                        link.to_client.send(event)
