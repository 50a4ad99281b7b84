"""One-shot watches of the in-memory model, as a ZooKeeper server keeps them: by path and by watcher.

Pure: a watcher is any hashable thing. A watch set twice by one watcher is one watch.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

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
