"""A kazoo client for tests, with a ZooKeeper in the same process: no server, no socket, and faults on command.

    from kazoo.protocol.states import KazooState
    from controller.zookeeper.fake_kazoo import fake_kazoo

    client = fake_kazoo()
    client.start()
    client.create("/lock", ephemeral=True)
    client.zookeeper.expire(client)  # the session ends, and its ephemeral znodes with it

`fake_kazoo` returns a `kazoo.client.KazooClient`. kazoo itself is unchanged: its connection thread, its serialization,
its order of state changes and callbacks, and its recipes. Only what kazoo's handler makes of the operating system is
replaced: connections, the pipe that wakes the connection thread, and the wait for both. Behind a connection stands the
server that `ZooKeeperServer` serves over TCP, in the same process and without a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler

from controller.clock import VirtualClock
from controller.zookeeper.memory.database import END, ServerPipe
from controller.zookeeper.row_writes import REQUEST_BYTES_MAX
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.core import ZooKeeperCore

T = TypeVar("T")

TICK_MS = 100
"""The server's tick: a session ends at most so long after its timeout."""
LONGEST_SESSION_MS = 60_000
"""The longest session timeout that the server grants."""
_CLIENT = ("127.0.0.1", 0)
"""The address of every client."""


class FakeZooKeeper:
    """A ZooKeeper server in this process, for any number of `fake_kazoo` clients. May be used from any thread.

    There is nothing to start or to close: the clients' own connection threads run it. A fault is applied when its
    method returns; the client notices on its connection thread, as kazoo does: wait for a state listener's call.

    Args:
        tick_ms: A session ends at the first multiple of it after its timeout, which is two ticks or longer.
        max_request_bytes: A longer request breaks the connection, as with jute.maxbuffer.
    """

    def __init__(self, *, tick_ms: int = TICK_MS, max_request_bytes: int = REQUEST_BYTES_MAX) -> None:
        self._changed = threading.Condition()
        self._began_s = time.monotonic()
        self._clock = VirtualClock(epoch_ms=time.time_ns() // 1_000_000)
        self._core = ZooKeeperCore(
            self._clock,
            tick_ms=tick_ms,
            max_session_timeout_ms=max(LONGEST_SESSION_MS, 2 * tick_ms),
            max_request_bytes=max_request_bytes,
        )
        self._core.start()

    # For assertions.

    def sessions(self) -> tuple[int, ...]:
        """The ids of the sessions that are alive, oldest first."""
        return self.call(lambda: tuple(self._core.sessions))

    def paths(self) -> tuple[str, ...]:
        """The paths of all znodes but ZooKeeper's own, sorted."""
        paths = self.call(lambda: sorted(self._core.processor.tree.nodes))
        return tuple(path for path in paths if path != "/" and not f"{path}/".startswith("/zookeeper/"))

    # Faults.

    def expire(self, client: Any) -> None:
        """End the client's session at once: its ephemeral znodes are deleted, and its connection is closed.

        kazoo then reports SUSPENDED, LOST and CONNECTED (with a new session).

        Raises:
            ValueError: The client is not of this server, or has no session.
        """
        transport = self._transport(client)

        def expire() -> None:
            session = transport.session or client._session_id
            if session not in self._core.sessions:
                raise ValueError(f"the client has no session to expire, got session id {session}")
            self._core.expire(session)

        self.call(expire)

    def drop_connection(self, client: Any) -> None:
        """Break the client's connection; its session goes on. kazoo reports SUSPENDED, and reconnects at once."""
        self.call(self._transport(client).reset)

    def suspend(self, client: Any) -> None:
        """Break the client's connection and refuse new ones until `resume`: after its timeout the session ends."""
        transport = self._transport(client)

        def suspend() -> None:
            transport.refused = True
            transport.reset()

        self.call(suspend)

    def resume(self, client: Any) -> None:
        """Accept connections of the client again. kazoo reports CONNECTED, or LOST if the session has ended."""
        transport = self._transport(client)

        def resume() -> None:
            transport.refused = False

        self.call(resume)

    def cut(self, client: Any, *, to_server: bool = True, to_client: bool = True) -> None:
        """Cut the client's network silently, one way or both, until `heal`.

        kazoo notices when a ping is not answered. What is under way stays, and arrives after `heal`.
        """
        transport = self._transport(client)
        self.call(lambda: transport.cut(to_server, to_client))

    def heal(self, client: Any) -> None:
        """End a `cut`."""
        self.call(self._transport(client).heal)

    def lose_reply(self, client: Any, *, applied: bool = True) -> None:
        """Break the connection instead of answering the client's next write, after it was applied or before.

        The client sees ConnectionLoss either way.
        """
        transport = self._transport(client)

        def lose() -> None:
            transport.losing = applied
            if transport.connection is not None:
                transport.connection.served.losing = applied

        self.call(lose)

    def stop(self) -> None:
        """Stop the server: all connections break, new ones are refused, no session ends meanwhile."""
        self.call(self._core.stop)

    def start(self) -> None:
        """Start the server again after `stop`, with its data and its sessions."""
        self.call(self._core.start)

    def _transport(self, client: Any) -> Transport:
        transport = getattr(getattr(client, "handler", None), "transport", None)
        if not isinstance(transport, Transport) or transport.zookeeper is not self:
            raise ValueError(f"expected a client that fake_kazoo made for this FakeZooKeeper, got {client!r}")
        return transport

    # The transports' side.

    def call(self, action: Callable[[], T]) -> T:
        """Run an action on the model, alone, at the present time, and deliver what comes of it."""
        with self._changed:
            self._catch_up()
            try:
                return action()
            finally:
                self._clock.advance_to(self._clock.now_ms())  # messages take no time
                self._changed.notify_all()

    def wait(self, ready: Callable[[], T], timeout_s: float | None) -> T:
        """Wait until `ready` returns a true value, or for `timeout_s`; return its last value.

        Session timeouts are kept meanwhile: the server has no thread of its own.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._catch_up()
                found = ready()
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if found or (left_s is not None and left_s <= 0):
                    return found
                due_ms = self._clock.next_due_ms()
                if due_ms is not None:
                    due_s = max((due_ms - self._now_ms()) / 1_000.0, 0.0)
                    left_s = due_s if left_s is None else min(left_s, due_s)
                self._changed.wait(left_s)

    def _now_ms(self) -> float:
        return (time.monotonic() - self._began_s) * 1_000.0

    def _catch_up(self) -> None:
        due_ms = self._clock.next_due_ms()
        now_ms = self._now_ms()
        self._clock.advance_to(now_ms)
        if due_ms is not None and due_ms <= now_ms:
            self._changed.notify_all()

    def open(self, stream: ClientStream) -> _Link:
        """Connect a client's end, within `call`. ConnectionRefusedError while the server is stopped."""
        if not self._core.running:
            raise ConnectionRefusedError("the in-memory ZooKeeper is stopped")
        return _Link(self._clock, self._core, stream)


class _Link:
    """A connection in memory: a pipe each way, the server's end, and the transport that the server's end writes to."""

    def __init__(self, clock: VirtualClock, core: ZooKeeperCore, stream: ClientStream) -> None:
        self._clock = clock
        self._stream = stream
        self._lost = False
        self.to_server = ServerPipe(clock, None, self._at_server)
        self.to_client = ServerPipe(clock, None, self._at_client)
        self.served = ServedConnection(core)
        self.served.opened(self, _CLIENT)

    def leave(self) -> None:
        """The client has closed its end. The server notices when what was sent before has arrived."""
        self.to_client.close()
        self.to_server.send(END)

    def reset(self) -> None:
        """Break the connection: what is under way is lost, and both ends notice at once."""
        self.to_server.close()
        self.to_client.close()
        self.served.abort()
        self._stream.end()

    def _at_server(self, message: Any) -> None:
        if message is END:
            self._lose()
        elif not self._lost:
            self.served.data_received(message)

    def _at_client(self, message: Any) -> None:
        if message is END:
            self._stream.end()
        else:
            self._stream.deliver(message)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self.served.connection_lost(None)

    # As an asyncio.WriteTransport.

    def write(self, data: bytes) -> None:
        self.to_client.send(data)

    def close(self) -> None:
        self.to_client.send(END)
        self._clock.call_later(0.0, self._lose)

    abort = close


class ClientStream:
    """The client's end of a byte stream in memory, with the methods of a socket that kazoo uses."""

    def __init__(self, zookeeper: FakeZooKeeper, address: tuple[str, int] = ("in-memory", 0)) -> None:
        self._zookeeper = zookeeper
        self._address = address
        self._inbox = bytearray()
        self._ended = False
        self._closed = False
        self._timeout_s: float | None = None
        self.on_send: Callable[[bytes], None] = lambda _data: None
        self.on_close: Callable[[], None] = lambda: None

    def deliver(self, data: bytes) -> None:
        """Bytes have arrived. Within `FakeZooKeeper.call`."""
        self._inbox += data

    def end(self) -> None:
        """The other end has closed the stream. Within `FakeZooKeeper.call`."""
        self._ended = True

    def readable(self) -> bool:
        """Return whether `recv` would not wait."""
        return bool(self._inbox) or self._ended or self._closed

    # As of a socket.

    def setblocking(self, flag: bool) -> None:
        self._timeout_s = None if flag else 0.0

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def send(self, data: bytes | bytearray | memoryview) -> int:
        def send() -> None:
            if self._closed or self._ended:
                raise BrokenPipeError("the in-memory connection is closed")
            self.on_send(bytes(data))

        self._zookeeper.call(send)
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def recv(self, length: int) -> bytes:
        def taken() -> bytes | None:
            if not self.readable():
                return None
            piece = bytes(self._inbox[:length])
            del self._inbox[:length]
            return piece

        with self._zookeeper._changed:
            if not self._zookeeper.wait(self.readable, self._timeout_s):
                raise TimeoutError("timed out") if self._timeout_s else BlockingIOError("nothing to read")
            return taken() or b""

    def close(self) -> None:
        def close() -> None:
            if not self._closed:
                self._closed = True
                self.on_close()

        self._zookeeper.call(close)

    def shutdown(self, _how: int) -> None:
        def shutdown() -> None:
            self._ended = True
            self.on_close()

        self._zookeeper.call(shutdown)

    def getpeername(self) -> tuple[str, int]:
        return self._address

    getsockname = getpeername


class Transport:
    """What one kazoo handler uses in place of the operating system's sockets."""

    def __init__(self, zookeeper: FakeZooKeeper) -> None:
        self.zookeeper = zookeeper
        self.connection: _Link | None = None
        self.refused = False
        self.losing: bool | None = None
        self._cut = (False, False)
        self._left_behind: list[_Link] = []

    @property
    def session(self) -> int:
        """The session of the open connection, or 0."""
        return 0 if self.connection is None else self.connection.served.session_id

    def create_connection(self, address: tuple[str, int], **_options: Any) -> ClientStream:
        """As kazoo's handlers: OSError if there is no connection to be had. TLS options are ignored."""
        return self.zookeeper.call(lambda: self._connect(address))

    def _connect(self, address: tuple[str, int]) -> ClientStream:
        if self.refused or any(self._cut):
            raise ConnectionRefusedError("the in-memory ZooKeeper can't be reached by this client")
        stream = ClientStream(self.zookeeper, address)
        connection = self.zookeeper.open(stream)
        connection.served.losing = self.losing
        self.connection = connection
        stream.on_send = connection.to_server.send

        def close() -> None:
            if any(self._cut):
                self._left_behind.append(connection)
            connection.leave()
            self._forget(connection)

        stream.on_close = close
        return stream

    def _forget(self, connection: _Link) -> None:
        if self.connection is connection:
            self.connection = None
            self.losing = connection.served.losing

    def create_socket_pair(self) -> tuple[ClientStream, ClientStream]:
        """Two streams: what is sent into the second is read from the first, as kazoo uses them."""
        reading, writing = ClientStream(self.zookeeper), ClientStream(self.zookeeper)
        writing.on_send, reading.on_send = reading.deliver, writing.deliver
        return reading, writing

    def select(
        self,
        readable: Sequence[ClientStream],
        writable: Sequence[ClientStream],
        _exceptional: Sequence[ClientStream],
        timeout: float | None = None,
    ) -> tuple[list[ClientStream], list[ClientStream], list[ClientStream]]:
        """As select.select. A stream is always writable."""

        def ready() -> list[ClientStream]:
            return [stream for stream in readable if stream.readable()]

        if writable:
            timeout = 0.0
        return self.zookeeper.wait(ready, timeout), list(writable), []

    def reset(self) -> None:
        if self.connection is not None:
            connection = self.connection
            connection.reset()
            self._forget(connection)

    def cut(self, to_server: bool, to_client: bool) -> None:
        self._cut = (self._cut[0] or to_server, self._cut[1] or to_client)
        if self.connection is not None:
            if to_server:
                self.connection.to_server.cut()
            if to_client:
                self.connection.to_client.cut()

    def heal(self) -> None:
        self._cut = (False, False)
        for connection in (*self._left_behind, *([] if self.connection is None else [self.connection])):
            connection.to_server.heal()
            connection.to_client.heal()
        self._left_behind.clear()


class FakeKazooHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler without sockets. A handler belongs to one client."""

    def __init__(self, zookeeper: FakeZooKeeper) -> None:
        super().__init__()
        self.transport = Transport(zookeeper)
        self.create_connection = self.transport.create_connection
        self.create_socket_pair = self.transport.create_socket_pair
        self.select = self.transport.select


class _UnresolvedHosts(ConnectionHandler):  # type: ignore[misc]
    """Looks up no host name: each host is the in-memory server."""

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        return [(host, host, port) for host, port in self.client.hosts]


class FakeKazooClient(KazooClient):  # type: ignore[misc]
    """Made by `fake_kazoo`. `zookeeper` is its server, and that of other clients that were given it."""

    _connection: Any

    def __init__(self, zookeeper: FakeZooKeeper, **options: Any) -> None:
        super().__init__(handler=FakeKazooHandler(zookeeper), **options)
        self.zookeeper = zookeeper
        made = self._connection
        sasl = made.sasl_options
        self._connection = _UnresolvedHosts(self, made.retry_sleeper, logger=made.logger, sasl_options=sasl)


def fake_kazoo(server: FakeZooKeeper | None = None, **options: Any) -> FakeKazooClient:
    """Return a kazoo client, not yet started, whose ZooKeeper is in this process.

    Args:
        server: The server that several clients share; by default the client gets its own (`client.zookeeper`).
        options: Those of KazooClient, `handler` apart. `hosts` may name any hosts; its chroot is used.

    Raises:
        ValueError: `handler` was given.
    """
    if "handler" in options:
        raise ValueError(f"fake_kazoo brings its own handler, got handler={options['handler']!r}")
    return FakeKazooClient(server or FakeZooKeeper(), **options)
