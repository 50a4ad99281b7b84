"""Standing watches over one-shot ones: the table of what is watched, and the rule by which nothing is missed.

ZooKeeper's watches fire once and die with their connection. Here a path and kind has one event value, for as long as
it is wanted: when its watch fires it is armed again *before* the event is put, so that whatever a handler reads when
that event's turn comes is read behind the new watch, and no change falls between. Every CONNECTED arms everything
again (kazoo itself arms nothing; kazoo #151, S27).

Listener calls come from any thread and the table is changed from the controller's; each step below is one operation
on a dictionary, so no lock is needed. Knows no thread and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from controller.pending import Pending
from controller.zookeeper.connection import ZooKeeperConnection
from controller.zookeeper.operations import WatchEvent, WatchKind
from controller.zookeeper.request_size import path_batches

SET_WATCHES_PATHS = 2_000
"""Paths a SetWatches request: with Kafka's longest paths (300 bytes) some 600 kB, below jute.maxbuffer (1 MB)."""


class EventSink(Protocol):
    """The receiver of events. Called on the connection's threads: must not block."""

    def put(self, event: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _Standing:
    """The event to put when a watch fires.

    `bulk`: set with watch_many; after a reconnection the event is put only if the server reports that the node changed.
    """

    event_of: Callable[[str], Any]
    bulk: bool


class StandingWatches:
    """Invariant: a path in the table has a watch armed on the server, or a request under way that arms it, or there
    is no connection and the next CONNECTED will arm it.

    A re-arming request that the server refuses (NoAuth) is not reported apart: its event was put all the same, and the
    handler's own read of that path meets the same refusal.
    """

    def __init__(self, connection: ZooKeeperConnection, events: EventSink) -> None:
        self._connection = connection
        self._events = events
        self._nodes: dict[str, _Standing] = {}
        self._children: dict[str, _Standing] = {}
        self._kept: dict[str, _Standing] = {}
        """Children that a second party watches, as long as the client exists: one server watch serves both."""
        self._since_zxid: int | None = None
        self._breaks = 0

    def add_node(self, path: str, event: Any) -> None:
        self._nodes[path] = _Standing(lambda _path: event, bulk=False)

    def add_children(self, path: str, event: Any) -> None:
        self._children[path] = _Standing(lambda _path: event, bulk=False)

    def keep_children(self, path: str, event: Any) -> None:
        """As `add_children`, beside one on the same path; `remove` and `table` have nothing to do with it."""
        self._kept[path] = _Standing(lambda _path: event, bulk=False)

    def add_many(self, paths: Iterable[str], event_of: Callable[[str], Any]) -> None:
        self._nodes.update(dict.fromkeys(paths, _Standing(event_of, bulk=True)))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove watches here only: one on the server fires or ends with the connection, and has no effect."""
        for path in paths:
            self._nodes.pop(path, None)
            self._children.pop(path, None)

    def table(self) -> frozenset[tuple[str, str]]:
        """("node" or "children", path) of everything that stands."""
        nodes, children = list(self._nodes), list(self._children)
        return frozenset([("node", path) for path in nodes] + [("children", path) for path in children])

    def fired(self, event: WatchEvent) -> None:
        """Arms again, then puts. A deletion fires both kinds on its path."""
        path = event.path
        node = self._nodes.get(path) if event.kind is not WatchKind.CHILDREN else None
        of_children = event.kind in (WatchKind.CHILDREN, WatchKind.DELETED)
        children = self._children.get(path) if of_children else None
        kept = self._kept.get(path) if of_children else None
        if node is None and children is None and kept is None:
            return
        self.arm([path] if node else [], [path] if children or kept else [])
        for standing in (node, children, kept):
            if standing is not None:
                self._events.put(standing.event_of(path))

    @property
    def breaks(self) -> int:
        """Return how often the connection has broken."""
        return self._breaks

    def connection_broke(self) -> None:
        """Record the last zxid that was seen.

        If a second break interrupts the re-arming, the first zxid is kept: changes since then have not been reported.
        """
        self._breaks += 1
        if self._since_zxid is None:
            self._since_zxid = self._connection.last_zxid()

    def connected(self, same_session: bool) -> None:
        """Arms everything, then puts the events of what was watched one by one; on a new session, of everything."""
        singles = [path for path, standing in list(self._nodes.items()) if not standing.bulk]
        many = [path for path, standing in list(self._nodes.items()) if standing.bulk]
        children, kept = list(self._children), list(self._kept)
        since_zxid = self._connection.last_zxid() if self._since_zxid is None else self._since_zxid
        self.arm(singles, list(dict.fromkeys(children + kept)))
        self._clear_when_done([self.arm_chunk(since_zxid, chunk) for chunk in self.requests(many)])
        self._put(self._nodes, singles if same_session else singles + many)
        self._put(self._children, children)
        self._put(self._kept, kept)

    def arm(self, nodes: Sequence[str], children: Sequence[str]) -> Pending[None]:
        return self._connection.watch(nodes, children) if nodes or children else Pending.resolved(None)

    def arm_chunk(self, since_zxid: int, paths: Sequence[str]) -> Pending[None]:
        """One of `requests`' chunks; what changed after `since_zxid` fires at once."""
        return self._connection.set_watches(since_zxid, paths, (), ())

    @staticmethod
    def requests(paths: Sequence[str]) -> list[Sequence[str]]:
        """The paths of each SetWatches request that so many need."""
        return list(path_batches(paths, SET_WATCHES_PATHS))

    def _put(self, table: dict[str, _Standing], paths: Iterable[str]) -> None:
        for path in paths:
            standing = table.get(path)
            if standing is not None:
                self._events.put(standing.event_of(path))

    def _clear_when_done(self, requests: Sequence[Pending[None]]) -> None:
        breaks = self._breaks
        waiting, lost = len(requests), False

        def one_done(request: Pending[None]) -> None:
            nonlocal waiting, lost
            waiting -= 1
            lost = lost or request.error is not None
            if waiting == 0 and not lost and breaks == self._breaks:
                self._since_zxid = None

        for request in requests:
            request.on_done(partial(one_done, request))
        if not requests:
            self._since_zxid = None
