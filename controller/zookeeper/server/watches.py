"""Watches of every mode, by path and by connection: ZooKeeper 3.9's WatchManager and DataTree.

A standard watch fires once. A persistent watch stays and sees the node and its children; a persistent recursive one
sees every node below its path too, and no children events. Several modes of one connection on one path give one event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

from controller.zookeeper.memory.database import Change
from controller.zookeeper.operations import WatchKind

if TYPE_CHECKING:
    from controller.zookeeper.server.connection import ServedConnection


class WatchMode(IntFlag):
    STANDARD = 1
    PERSISTENT = 2
    RECURSIVE = 4


class WatcherType(IntEnum):
    """Which watches a client means that removes some (Watcher.WatcherType)."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    PERSISTENT_RECURSIVE = 5


EVENT_CODES = {WatchKind.CREATED: 1, WatchKind.DELETED: 2, WatchKind.DATA: 3, WatchKind.CHILDREN: 4}
_EVERY_MODE = WatchMode.STANDARD | WatchMode.PERSISTENT | WatchMode.RECURSIVE


class _Table:
    def __init__(self) -> None:
        self.by_path: dict[str, dict[ServedConnection, WatchMode]] = {}
        self.by_watcher: dict[ServedConnection, set[str]] = {}
        self.recursive = 0

    def add(self, path: str, watcher: ServedConnection, mode: WatchMode) -> None:
        modes = self.by_path.setdefault(path, {})
        before = modes.get(watcher, WatchMode(0))
        modes[watcher] = before | mode
        self.recursive += bool(mode & ~before & WatchMode.RECURSIVE)
        self.by_watcher.setdefault(watcher, set()).add(path)

    def take(self, path: str, watcher: ServedConnection, mode: WatchMode) -> bool:
        """Remove these modes; return whether there was one of them."""
        modes = self.by_path.get(path, {})
        before = modes.get(watcher, WatchMode(0))
        if not before & mode:
            return False
        self.recursive -= bool(before & mode & WatchMode.RECURSIVE)
        if left := before & ~mode:
            modes[watcher] = left
            return True
        del modes[watcher]
        if not modes:
            del self.by_path[path]
        paths = self.by_watcher[watcher]
        paths.discard(path)
        if not paths:
            del self.by_watcher[watcher]
        return True

    def trigger(self, path: str) -> dict[ServedConnection, None]:
        found: dict[ServedConnection, None] = {}
        for watcher in list(self.by_path.get(path, ())):
            found[watcher] = None
            self.take(path, watcher, WatchMode.STANDARD)
        if self.recursive:
            for above in _above(path):
                for watcher, mode in self.by_path.get(above, {}).items():
                    if mode & WatchMode.RECURSIVE:
                        found[watcher] = None
        return found

    def forget(self, watcher: ServedConnection) -> None:
        for path in list(self.by_watcher.get(watcher, ())):
            self.take(path, watcher, _EVERY_MODE)


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


class ServerWatches:
    """All watches of a server's connections."""

    def __init__(self) -> None:
        self._data = _Table()
        self._children = _Table()

    def add_data(self, path: str, watcher: ServedConnection) -> None:
        self._data.add(path, watcher, WatchMode.STANDARD)

    def add_children(self, path: str, watcher: ServedConnection) -> None:
        self._children.add(path, watcher, WatchMode.STANDARD)

    def add_persistent(self, path: str, watcher: ServedConnection, *, recursive: bool) -> None:
        self._data.add(path, watcher, WatchMode.RECURSIVE if recursive else WatchMode.PERSISTENT)
        if not recursive:
            self._children.add(path, watcher, WatchMode.PERSISTENT)

    def holds(self, path: str, watcher: ServedConnection, kind: WatcherType) -> bool:
        return any(table.by_path.get(path, {}).get(watcher, 0) & modes for table, modes in self._meant(kind))

    def remove(self, path: str, watcher: ServedConnection, kind: WatcherType) -> bool:
        """Return whether there was one to remove."""
        return sum(table.take(path, watcher, modes) for table, modes in self._meant(kind)) > 0

    def _meant(self, kind: WatcherType) -> list[tuple[_Table, WatchMode]]:
        if kind is WatcherType.CHILDREN:
            return [(self._children, WatchMode.STANDARD)]
        if kind is WatcherType.DATA:
            return [(self._data, WatchMode.STANDARD)]
        if kind is WatcherType.ANY:
            return [(self._data, _EVERY_MODE), (self._children, _EVERY_MODE)]
        mode = WatchMode.PERSISTENT if kind is WatcherType.PERSISTENT else WatchMode.RECURSIVE
        return [(self._data, mode), (self._children, mode)]

    def forget(self, watcher: ServedConnection) -> None:
        """Remove every watch of a connection that has ended."""
        self._data.forget(watcher)
        self._children.forget(watcher)

    def fire(self, changes: Collection[Change], zxid: int) -> None:
        """Send the events of one transaction's changes, in their order; a node's deletion once to each connection."""
        for kind, path, acl in changes:
            if kind is WatchKind.CHILDREN:
                watchers = self._children.trigger(path)
            else:
                watchers = self._data.trigger(path)
                if kind is WatchKind.DELETED:
                    watchers |= self._children.trigger(path)
            for watcher in watchers:
                watcher.watch_fired(kind, path, zxid, acl)

    def by_path(self) -> dict[str, set[ServedConnection]]:
        """Return the watchers of each watched path."""
        found: dict[str, set[ServedConnection]] = {}
        for table in (self._data, self._children):
            for path, watchers in table.by_path.items():
                found.setdefault(path, set()).update(watchers)
        return found

    def count(self) -> int:
        return sum(len(watchers) for table in (self._data, self._children) for watchers in table.by_path.values())
