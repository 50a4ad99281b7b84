"""A client of the in-memory ZooKeeper: a `ZooKeeperConnection`, with fault injection.

All answers are scheduled on the clock; no request is answered within the call that makes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from controller.pending import Pending
from controller.zookeeper.connection import BATCH, LONGEST_READ
from controller.zookeeper.memory.link import (
    CHILDREN,
    END,
    MULTI,
    READ,
    READ_COLUMNS,
    SET_WATCHES,
    SYNC,
    WATCH,
    LinkRequest,
)
from controller.zookeeper.memory.session import ClientSession, NoListener
from controller.zookeeper.operations import Columns, Create, Listing, ReadResult, WatchEvent, Write, WriteResults
from controller.zookeeper.path_rules import validate_new_path, validate_path, validate_paths


class InMemoryConnection(ClientSession):
    """Made by `InMemoryZooKeeper.connect`."""

    def read(self, paths: Sequence[str]) -> Pending[ReadResult]:
        return self._request(READ, _batch(paths))

    def read_columns(self, paths: Sequence[str]) -> Pending[Columns]:
        return self._request(READ_COLUMNS, _batch(paths, LONGEST_READ))

    def children(self, paths: Sequence[str]) -> Pending[Listing]:
        return self._request(CHILDREN, _batch(paths))

    def multi(self, operations: Sequence[Write]) -> Pending[WriteResults]:
        operations = tuple(operations)  # which makes an object of each column's row, once
        for operation in operations:
            validate_new_path(operation.path, type(operation) is Create and operation.sequential)
        return self._request(MULTI, operations)

    def set_watches(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Pending[None]:
        return self._request(SET_WATCHES, (since_zxid, _valid(data), _valid(exists), _valid(children)))

    def watch(self, nodes: Sequence[str], children: Sequence[str]) -> Pending[None]:
        return self._request(WATCH, (_valid(nodes), _valid(children)))

    def sync(self, path: str) -> Pending[None]:
        validate_path(path)
        return self._request(SYNC, path)

    # Faults.

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Cuts the link silently, one way or both. The client notices after two thirds of its session timeout."""
        self._to_server_cut |= to_server
        self._to_client_cut |= to_client
        if self._link is not None:
            if to_server:
                self._link.to_server.cut()
            if to_client:
                self._link.to_client.cut()

    def heal(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Takes a cut away. What was sent meanwhile arrives, unless its receiver has given the connection up."""
        self._to_server_cut &= not to_server
        self._to_client_cut &= not to_client
        if to_server:
            for link in self._left_behind:
                link.to_server.heal()
            self._left_behind.clear()
        if self._link is not None:
            if to_server:
                self._link.to_server.heal()
            if to_client:
                self._link.to_client.heal()
        self.server_reachable()

    def reset(self) -> None:
        """Breaks the connection: both ends know at once, and what was on its way is lost."""
        if self._link is not None:
            link = self._link
            link.to_server.close()
            link.to_client.close()
            self._server.link_broken(link)
            self._inbox.clear()
            self.receive(END)

    def lose_reply(self, *, applied: bool) -> None:
        """The next multi that reaches the server breaks the connection instead of being answered: after it was
        applied, or before."""
        self._losing = applied
        if self._link is not None:
            self._link.losing = applied

    def pause(self) -> None:
        """The client's process is stopped: it sends nothing, what arrives waits in its socket, no timer of its runs."""
        self._paused = True

    def resume(self) -> None:
        """Continue the process after a pause.

        If its connection was closed meanwhile it is notified of SUSPENDED first, then of its watches (a kazoo client's
        threads work that way), and when it reaches the server, of whether its session has survived the pause.
        """
        if not self._paused:
            return
        self._paused = False
        inbox, self._inbox = self._inbox, deque()
        if END in inbox:
            for message in inbox:
                if isinstance(message, LinkRequest):
                    self.receive(message)
            self.receive(END)
            for message in inbox:
                if isinstance(message, WatchEvent):
                    self._listener.watch_fired(message)
        else:
            for message in inbox:
                self.receive(message)
        if self._closed is not None:
            self._send_close()
        elif self._connected:
            while self._waiting:
                self._send(self._waiting.popleft())
        self._last_heard_ms = self._clock.now_ms()
        if self._check_missed:
            self._check()
        if self._connect_missed:
            self._connect()

    def kill(self) -> None:
        """Kill the client's process: no more answers or callbacks, and its socket is closed.

        Its session continues until the server has received nothing for the session timeout.
        """
        if self._killed:
            return
        self._killed = True
        self._session, self._ended_session = 0, self._session
        self._listener = NoListener()
        self._in_flight.clear()
        self._waiting.clear()
        self._inbox.clear()
        if self._link is not None:
            self._leave(self._link)
        self._end()


def _batch(paths: Sequence[str], most: int = BATCH) -> tuple[str, ...]:
    if len(paths) > most:
        raise ValueError(f"{len(paths)} paths in one request: expected at most {most}")
    return _valid(paths)


def _valid(paths: Sequence[str]) -> tuple[str, ...]:
    paths = tuple(paths)
    validate_paths(paths)
    return paths
