"""What the contract suite runs on: the in-memory ZooKeeper and a real one, each through its `ZooKeeperConnection`, and
the kazoo connection in front of the in-memory ZooKeeper.

A test gets a `Backend` with an empty tree of its own below `root`, opens clients, and waits: the in-memory backend
turns its clock until what is waited for has come, the real one lets time pass.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from controller.clock import Future, VirtualClock
from controller.zookeeper.blocking import ThreadClock
from controller.zookeeper.fake_kazoo import FakeZooKeeper, Transport
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    Create,
    SessionState,
    WatchEvent,
    Write,
    WriteResults,
    Znode,
    ZooKeeperConnection,
)
from tests.zookeeper.tcp_link import TcpLink

T = TypeVar("T")

TICK_MS = 500
MAX_REQUEST_BYTES = 2 << 20
SESSION_TIMEOUT_MS = 20_000
SHORT_SESSION_MS = 1_000
_DEADLINE_MS = 60_000.0
_LATENCY_MS = 1.0


class Client(ABC):
    """One connection, with everything it was told in `log`: states, watch events, and the names of the requests that
    `note` was given, in the order in which they came."""

    connection: ZooKeeperConnection

    def __init__(self, backend: Backend, connection: ZooKeeperConnection) -> None:
        self.backend = backend
        self.connection = connection
        self.log: list[SessionState | WatchEvent | str] = []
        self.on_state: Callable[[SessionState], None] = lambda _state: None
        connection.listen(self)

    def session_state(self, state: SessionState) -> None:
        self.log.append(state)
        self.on_state(state)

    def watch_fired(self, event: WatchEvent) -> None:
        self.log.append(event)

    @property
    def events(self) -> list[WatchEvent]:
        return [entry for entry in self.log if isinstance(entry, WatchEvent)]

    @property
    def states(self) -> list[SessionState]:
        return [entry for entry in self.log if isinstance(entry, SessionState)]

    def note(self, pending: Future[T], name: str) -> Future[T]:
        pending.on_done(lambda: self.log.append(name))
        return pending

    # What most tests want of a connection: the answer.

    def multi(self, *operations: Write) -> WriteResults:
        return self.backend.wait(self.connection.multi(operations))

    def create(self, path: str, data: bytes | None = b"", **options: Any) -> str:
        created = self.multi(Create(path, data, **options))[0]
        assert isinstance(created, str)
        return created

    def row(self, path: str) -> Znode | None:
        return self.backend.wait(self.connection.read([path])).rows[0]

    def there(self, path: str) -> Znode:
        row = self.row(path)
        assert row is not None, f"{path} is not there"
        return row

    def children(self, path: str) -> tuple[str, ...] | None:
        return self.backend.wait(self.connection.children([path])).children[0]

    def watch(self, nodes: Sequence[str] = (), children: Sequence[str] = ()) -> None:
        self.backend.wait(self.connection.watch(nodes, children))

    def heard(self) -> list[WatchEvent]:
        """The watch events told so far, once everything that the server had to tell has arrived."""
        self.backend.wait(self.connection.read(["/"]))
        return self.events

    # Faults.

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None: ...

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def lose_reply(self, *, applied: bool) -> None: ...

    @abstractmethod
    def expire(self) -> None: ...


class Backend(ABC):
    def __init__(self, root: str) -> None:
        self.root = root
        self.clients: list[Client] = []

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def client(
        self,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        *,
        auth: Sequence[tuple[str, str]] = (),
        default_acl: tuple[ACL, ...] = OPEN_ACL,
        start: bool = True,
    ) -> Client:
        client = self.make(session_timeout_ms, auth, default_acl)
        self.clients.append(client)
        if start:
            self.wait(client.connection.start())
        return client

    def wait(self, pending: Future[T]) -> T:
        """The answer, or the error that it was."""
        self.until(lambda: pending.done, "an answer")
        return pending.result()

    def close(self) -> None:
        for client in self.clients:
            client.heal()
            self.wait(client.connection.close())

    @abstractmethod
    def make(
        self, session_timeout_ms: int, auth: Sequence[tuple[str, str]], default_acl: tuple[ACL, ...]
    ) -> Client: ...

    @abstractmethod
    def until(self, condition: Callable[[], bool], what: str) -> None: ...

    @abstractmethod
    def now_ms(self) -> float: ...


class _InMemoryClient(Client):
    connection: InMemoryConnection

    def __init__(self, backend: InMemoryBackend, connection: InMemoryConnection) -> None:
        super().__init__(backend, connection)
        self._server = backend.server

    def reset(self) -> None:
        self.connection.reset()

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        self.connection.cut(to_server=to_server, to_client=to_client)

    def heal(self) -> None:
        self.connection.heal()

    def lose_reply(self, *, applied: bool) -> None:
        self.connection.lose_reply(applied=applied)

    def expire(self) -> None:
        self._server.expire(self.connection.session())


class InMemoryBackend(Backend):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock, tick_ms=TICK_MS, max_request_bytes=MAX_REQUEST_BYTES)

    def make(self, session_timeout_ms: int, auth: Sequence[tuple[str, str]], default_acl: tuple[ACL, ...]) -> Client:
        connection = self.server.connect(
            session_timeout_ms, latency=lambda: _LATENCY_MS, auth=auth, default_acl=default_acl
        )
        return _InMemoryClient(self, connection)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        limit_ms = self.clock.now_ms() + _DEADLINE_MS
        assert self.clock.run_until(condition, limit_ms), f"not in {_DEADLINE_MS} ms: {what}"

    def now_ms(self) -> float:
        return self.clock.now_ms()


class _RealClient(Client):
    def __init__(self, backend: RealBackend, connection: KazooConnection, link: TcpLink) -> None:
        super().__init__(backend, connection)
        self.link = link

    def reset(self) -> None:
        self.link.reset()

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        self.link.cut(to_server=to_server, to_client=to_client)

    def heal(self) -> None:
        self.link.heal()

    def lose_reply(self, *, applied: bool) -> None:
        self.link.lose_reply(applied=applied)

    def expire(self) -> None:
        self.link.expire()


class RealBackend(Backend):
    """A server that is reached over TCP: a real one, or the one in Python."""

    def __init__(self, root: str, address: str) -> None:
        super().__init__(root)
        self.address = address
        self.clock = ThreadClock()
        self._links: list[TcpLink] = []

    def make(self, session_timeout_ms: int, auth: Sequence[tuple[str, str]], default_acl: tuple[ACL, ...]) -> Client:
        link = TcpLink(self.address)
        self._links.append(link)
        connection = KazooConnection(link.address, self.clock, session_timeout_ms, auth=auth, default_acl=default_acl)
        return _RealClient(self, connection, link)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_MS / 1000
        while not condition():
            assert time.monotonic() < deadline, f"not in {_DEADLINE_MS} ms: {what}"
            time.sleep(0.001)

    def now_ms(self) -> float:
        return self.clock.now_ms()

    def close(self) -> None:
        try:
            super().close()
        finally:
            for link in self._links:
                link.close()


FAKE_HOST, FAKE_PORT = "127.0.0.1", 2181
"""Never dialled."""


class _FakeClient(Client):
    def __init__(self, backend: FakeBackend, connection: KazooConnection) -> None:
        super().__init__(backend, connection)
        self._server = backend.server
        self._kazoo = connection._link._client

    def reset(self) -> None:
        self._server.drop_connection(self._kazoo)

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        self._server.cut(self._kazoo, to_server=to_server, to_client=to_client)

    def heal(self) -> None:
        self._server.heal(self._kazoo)

    def lose_reply(self, *, applied: bool) -> None:
        self._server.lose_reply(self._kazoo, applied=applied)

    def expire(self) -> None:
        self._server.expire(self._kazoo)


class FakeBackend(Backend):
    """The connection to a real server, with the transport of `fake_kazoo` in place of its sockets."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.server = FakeZooKeeper(tick_ms=TICK_MS, max_request_bytes=MAX_REQUEST_BYTES)
        self.clock = ThreadClock()

    def make(self, session_timeout_ms: int, auth: Sequence[tuple[str, str]], default_acl: tuple[ACL, ...]) -> Client:
        connection = KazooConnection(
            f"{FAKE_HOST}:{FAKE_PORT}", self.clock, session_timeout_ms, auth=auth, default_acl=default_acl
        )
        kazoo = connection._link._client
        kazoo._connection._multi_read_of[(FAKE_HOST, FAKE_PORT)] = True  # else it asks for the version
        transport = Transport(self.server)
        kazoo.handler.transport = transport
        kazoo.handler.create_connection = transport.create_connection
        kazoo.handler.create_socket_pair = transport.create_socket_pair
        kazoo.handler.select = transport.select
        return _FakeClient(self, connection)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_MS / 1000
        while not condition():
            assert time.monotonic() < deadline, f"not in {_DEADLINE_MS} ms: {what}"
            time.sleep(0.001)

    def now_ms(self) -> float:
        return self.clock.now_ms()
