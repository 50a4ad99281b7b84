"""ZooKeeper in memory: a server's sessions, transactions and watches, under a clock that the caller turns.

`InMemoryZooKeeper(clock)` has many clients (`connect`), each a `ZooKeeperConnection` like the one to a real server, and
each with faults of its own (`InMemoryConnection`). There is no thread and no time but the clock's: with a
`VirtualClock` and seeded latencies, a run is repeated exactly. Not for use from several threads. The contract suite in
tests/zookeeper holds it to what a real server does.

A client of the in-memory ZooKeeper: a `ZooKeeperConnection`, with fault injection.

All answers are scheduled on the clock; no request is answered within the call that makes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from controller.clock import Clock, Future, Timer
from controller.zookeeper.memory.database import (
    CHILDREN,
    CLOSE,
    CONNECT,
    END,
    MULTI,
    PING,
    READ,
    READ_COLUMNS,
    SET_WATCHES,
    SYNC,
    WATCH,
    ClientIdentity,
    ClientLink,
    Database,
    Latency,
    LinkRequest,
)
from controller.zookeeper.memory.followers import Follower
from controller.zookeeper.memory.session import ClientSession, NoListener
from controller.zookeeper.memory.session_timeouts import SessionTimeouts
from controller.zookeeper.operations import (
    ACL,
    BATCH,
    LONGEST_READ,
    Columns,
    Create,
    Listing,
    ReadResult,
    WatchEvent,
    Write,
    WriteResults,
    Znode,
    ZooKeeperError,
)
from controller.zookeeper.paths import validate_new_path, validate_path, validate_paths
from controller.zookeeper.row_writes import REQUEST_BYTES_MAX, multi_bytes, paths_bytes


class InMemoryConnection(ClientSession):
    """Made by `InMemoryZooKeeper.connect`."""

    def read(self, paths: Sequence[str]) -> Future[ReadResult]:
        return self._request(READ, _batch(paths))

    def read_columns(self, paths: Sequence[str]) -> Future[Columns]:
        return self._request(READ_COLUMNS, _batch(paths, LONGEST_READ))

    def children(self, paths: Sequence[str]) -> Future[Listing]:
        return self._request(CHILDREN, _batch(paths))

    def multi(self, operations: Sequence[Write]) -> Future[WriteResults]:
        operations = tuple(operations)  # which makes an object of each column's row, once
        for operation in operations:
            validate_new_path(operation.path, type(operation) is Create and operation.sequential)
        return self._request(MULTI, operations)

    def set_watches(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Future[None]:
        return self._request(SET_WATCHES, (since_zxid, _valid(data), _valid(exists), _valid(children)))

    def watch(self, nodes: Sequence[str], children: Sequence[str]) -> Future[None]:
        return self._request(WATCH, (_valid(nodes), _valid(children)))

    def sync(self, path: str) -> Future[None]:
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


NO_SESSION = 0
_FIRST_SESSION = 0x0100_0000_0000_0000


class _Session:
    __slots__ = ("expires_ms", "id", "link", "seen_zxid", "timeout_ms")

    def __init__(self, id: int, timeout_ms: int, link: ClientLink) -> None:
        self.id = id
        self.timeout_ms = timeout_ms
        self.link: ClientLink | None = link
        self.expires_ms = 0.0
        self.seen_zxid = 0


class InMemoryZooKeeper:
    """A ZooKeeper server of one member.

    `tick_ms` is the server's tickTime: a session from which nothing was heard for its timeout ends at the next
    multiple of it. Session timeouts asked for are brought within `min_session_timeout_ms` (2 ticks unless given) and
    `max_session_timeout_ms` (20 ticks unless given). A request of more than `max_request_bytes` (jute.maxbuffer, of the
    same default) makes the server break the connection.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        tick_ms: int = 500,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int | None = None,
        max_request_bytes: int = REQUEST_BYTES_MAX,
    ) -> None:
        self._clock = clock
        self._timeouts = SessionTimeouts.of(tick_ms, min_session_timeout_ms, max_session_timeout_ms)
        self._max_request_bytes = max_request_bytes
        self._database = database = Database(clock)
        self._sessions: dict[int, _Session] = {}
        self._last_session = _FIRST_SESSION
        self._expiry_timer: Timer | None = None
        self._expiry_due_ms = 0.0
        self._running = True
        self._on_commit: Callable[[int, Sequence[Write]], None] | None = None
        self._connections: dict[ClientSession, None] = {}
        self._followers: dict[Follower, dict[int, Callable[[ClientLink, Any], Any]]] = {}
        self._answers: dict[int, Callable[[ClientLink, Any], Any]] = {
            PING: _nothing,
            SYNC: _nothing,
            READ: database.read,
            READ_COLUMNS: database.read_columns,
            CHILDREN: database.children,
            MULTI: database.multi,
            SET_WATCHES: database.set_watches,
            WATCH: database.watch,
        }

    def connect(
        self,
        session_timeout_ms: int = 6_000,
        *,
        latency: Latency | None = None,
        default_acl: tuple[ACL, ...] | None = None,
        auth: Sequence[tuple[str, str]] = (),
        reconnect_delay_ms: float = 100.0,
        clock: Clock | None = None,
        follower: Follower | None = None,
    ) -> InMemoryConnection:
        """A new client; nothing is sent before its `start`.

        `latency` gives the milliseconds that each message takes one way (None: none, though an answer still comes
        only as the clock is turned); order is kept. `auth` holds ("digest", "user:password") pairs. After losing its
        connection, and before the next session, the client waits `reconnect_delay_ms`. `clock` is that of the client's
        machine, where it need not agree with the server's. `follower` is the server that answers it; None: the leader.
        """
        connection = InMemoryConnection(
            self,
            clock or self._clock,
            session_timeout_ms,
            latency,
            ClientIdentity(auth, default_acl),
            reconnect_delay_ms,
        )
        connection.follower = follower
        self._connections[connection] = None
        return connection

    def add_follower(self, lag: Latency) -> Follower:
        """Add a server that applies each transaction after `lag()` ms. RuntimeError after the first transaction."""
        if self._database.zxid:
            raise RuntimeError("a follower is added before the first transaction")
        follower = Follower(self._clock, self._database, lag)
        database = follower.database
        self._followers[follower] = self._answers | {
            SYNC: lambda _link, _path: follower.catch_up(),
            READ: database.read,
            READ_COLUMNS: database.read_columns,
            CHILDREN: database.children,
            SET_WATCHES: database.set_watches,
            WATCH: database.watch,
        }
        return follower

    # What a test or an observer may look at, without being a client.

    @property
    def zxid(self) -> int:
        """The last transaction's id. It grows by one with each transaction, failed ones and sessions included."""
        return self._database.zxid

    @property
    def running(self) -> bool:
        return self._running

    def sessions(self) -> tuple[int, ...]:
        """The sessions that live, oldest first."""
        return tuple(self._sessions)

    def row(self, path: str) -> Znode | None:
        node = self._database.tree.nodes.get(path)
        return None if node is None else node.read_row()

    def children(self, path: str) -> tuple[str, ...] | None:
        node = self._database.tree.nodes.get(path)
        return None if node is None else tuple(sorted(node.children))

    def rows(self) -> tuple[Znode, ...]:
        """Every znode, sorted by path."""
        return tuple(self._database.tree.walk())

    def ephemerals(self, session: int) -> tuple[str, ...]:
        return self._database.tree.ephemerals(session)

    def watched(self, session: int) -> frozenset[tuple[str, str]]:
        """("node" or "children", path) of each watch that the server holds for a session now."""
        link = self._sessions[session].link if session in self._sessions else None
        return frozenset() if link is None else self._database_of(link).watched(link)

    def columns(self, paths: Sequence[str]) -> Columns:
        """The data and versions of many znodes, with no object made for each."""
        found = [self._database.tree.nodes.get(path) for path in paths]
        versions = np.array([-1 if node is None else node.version for node in found], np.int32)
        mzxids = np.array([-1 if node is None else node.mzxid for node in found], np.int64)
        return Columns.of([None if node is None else node.data for node in found], versions, mzxids, self.zxid)

    def restore(self, operations: Sequence[Write]) -> None:
        """Apply writes at once, in one transaction without a session, as a server restores a snapshot.

        Watches fire; `on_commit` is not called. Raises MultiFailed, with nothing written.
        """
        self._database.write(operations, NO_SESSION, ClientIdentity())

    def set_mzxid(self, path: str, mzxid: int) -> None:
        """As if the znode had been written last by that transaction, which may be one to come. KeyError for none."""
        for database in self._databases():
            node = database.tree.nodes[path]
            node.mzxid, node.stat, node.row = mzxid, None, None

    def _databases(self) -> Iterator[Database]:
        """The leader's and, caught up, the followers'."""
        yield self._database
        for follower in self._followers:
            follower.catch_up()
            yield follower.database

    def _database_of(self, link: ClientLink) -> Database:
        return self._database if link.follower is None else link.follower.database

    def set_acl(self, path: str, acl: tuple[ACL, ...]) -> None:
        """Set the ACL as a setACL request does: no watch fires. Raises KeyError if the znode does not exist."""
        for database in self._databases():
            database.tree.nodes[path].acl = acl

    def on_commit(self, callback: Callable[[int, Sequence[Write]], None]) -> None:
        """Call `callback` with the session and the writes of each applied multi, in order."""
        self._on_commit = callback

    # Faults of the server's.

    def expire(self, session: int) -> None:
        """Ends a session at once, as if nothing had been heard from it. KeyError if it does not live."""
        self._end_session(self._sessions[session])

    def stop(self) -> None:
        """The server goes down: connections break, data and sessions are kept, no session ends meanwhile."""
        if not self._running:
            return
        self._running = False
        for session in self._sessions.values():
            if session.link is not None:
                self._drop_link(session.link)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None

    def start(self) -> None:
        """The server is back. Every session has its whole timeout again to come back to it."""
        if self._running:
            return
        self._running = True
        for session in self._sessions.values():
            self._touch(session)
        self._arm_expiry()
        for connection in list(self._connections):
            connection.server_reachable()

    # The clients' side of a link.

    def open_link(self, connection: ClientSession, latency: Latency | None, identity: ClientIdentity) -> ClientLink:
        link = ClientLink(self._clock, latency, self._receive, connection.receive, identity)
        link.follower = connection.follower
        return link

    def forget(self, connection: ClientSession) -> None:
        """The client is gone for good."""
        self._connections.pop(connection, None)

    def link_broken(self, link: ClientLink) -> None:
        """The server's end of a link has broken: its watches go, its session waits for the client to come back."""
        if link.open:
            link.open = False
            self._database_of(link).forget_watches(link)
            session = self._sessions.get(link.session)
            if session is not None and session.link is link:
                session.link = None

    def _drop_link(self, link: ClientLink) -> None:
        self.link_broken(link)
        link.to_client.send(END)

    def _receive(self, link: ClientLink, request: LinkRequest | object) -> None:
        if not link.open:
            return  # of a session that has ended, or has come back over another connection
        if not self._running:
            self._drop_link(link)
            return
        if not isinstance(request, LinkRequest):
            self.link_broken(link)
            return
        if request.operation == CONNECT:
            self._attach(link, request)
            return
        session = self._sessions[link.session]
        self._touch(session)
        if request.operation == CLOSE:
            self._close(link, session, request)
        else:
            self._answer(link, request)

    def _answer(self, link: ClientLink, request: LinkRequest) -> None:
        losing: bool | None = None
        if request.operation == MULTI:
            losing, link.losing = link.losing, None
        if losing is False or _size(link, request) > self._max_request_bytes:
            self._drop_link(link)
            return
        follower = link.follower
        answers = self._answers if follower is None else self._followers[follower]
        try:
            request.result = answers[request.operation](link, request.arguments)
        except ZooKeeperError as error:
            request.error = error.with_traceback(None)
        else:
            if request.operation == MULTI and self._on_commit is not None:
                self._on_commit(link.session, request.arguments)
        if losing:
            self._drop_link(link)
            return
        if follower is None:
            request.zxid = self._database.zxid
        else:
            if request.operation == MULTI:
                follower.catch_up()  # a follower answers a write when it has applied it
            request.zxid = self._sessions[link.session].seen_zxid = follower.database.zxid
        link.to_client.send(request)

    # Sessions.

    def _attach(self, link: ClientLink, request: LinkRequest) -> None:
        session_id, timeout_ms = request.arguments
        if session_id and session_id not in self._sessions:
            request.zxid = self._database.zxid
            request.result = (0, 0)
            link.to_client.send(request)
            self._drop_link(link)
            return
        timeout_ms = self._timeouts.granted_ms(timeout_ms)
        if session_id:
            session = self._sessions[session_id]
            if session.link is not None:
                self._drop_link(session.link)
            session.link = link
            session.timeout_ms = timeout_ms
        else:
            self._database.begin_session()
            self._last_session += 1
            session = _Session(self._last_session, timeout_ms, link)
            self._sessions[session.id] = session
        link.session = session.id
        if link.follower is not None:
            link.follower.catch_up(session.seen_zxid if session_id else None)
        self._touch(session)
        self._arm_expiry()
        request.zxid = self._database.zxid
        request.result = (session.id, timeout_ms)
        link.to_client.send(request)

    def _touch(self, session: _Session) -> None:
        session.expires_ms = self._timeouts.next_tick_ms(self._clock.now_ms() + session.timeout_ms)

    def _arm_expiry(self) -> None:
        """Sets the timer for the session that would end first. One that is heard from meanwhile only ends later, so
        that the timer is looked at when it fires and not when a session is touched."""
        due_ms = min((session.expires_ms for session in self._sessions.values()), default=None)
        if self._expiry_timer is not None:
            if due_ms is not None and self._expiry_due_ms <= due_ms:
                return
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if due_ms is not None and self._running:
            self._expiry_due_ms = due_ms
            self._expiry_timer = self._clock.call_later(max(0.0, due_ms - self._clock.now_ms()), self._expire_due)

    def _expire_due(self) -> None:
        self._expiry_timer = None
        now_ms = self._clock.now_ms() + 1e-6  # a sum of floats may fall short of the tick that it stands for
        due = [session for session in self._sessions.values() if session.expires_ms <= now_ms]
        for session in sorted(due, key=lambda each: each.expires_ms):
            self._end_session(session)
        self._arm_expiry()

    def _end_session(self, session: _Session) -> None:
        del self._sessions[session.id]
        self._database.end_session(session.id)
        if session.link is not None:
            self._drop_link(session.link)

    def _close(self, link: ClientLink, session: _Session, request: LinkRequest) -> None:
        session.link = None
        self._end_session(session)
        request.zxid = self._database.zxid
        link.to_client.send(request)
        self._drop_link(link)


def _nothing(_link: ClientLink, _arguments: object) -> None:
    """A ping, or a sync with the leader, who is this server."""


def _size(link: ClientLink, request: LinkRequest) -> int:
    """Return the size of the frame that a client without a chroot sends. A surely small one is not measured."""
    if request.operation == MULTI:
        return multi_bytes(request.arguments, link.identity.default_acl)
    if request.operation in (READ, READ_COLUMNS, CHILDREN):
        return paths_bytes(request.arguments)
    if request.operation == SET_WATCHES:
        return paths_bytes([path for paths in request.arguments[1:] for path in paths])
    return 0
