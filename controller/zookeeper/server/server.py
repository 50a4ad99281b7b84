"""A ZooKeeper server in Python: its sessions, the thread that serves them, and fault injection.

    with ZooKeeperServer() as server:
        client = KazooClient(server.connect_string)

One thread runs an asyncio event loop and does everything; the methods for other threads hand their work to it and
wait. Data is in memory alone: it is lost when the server is closed, and kept over `stop` and `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from controller.zookeeper.row_writes import REQUEST_BYTES_MAX
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.requests import RequestProcessor
from controller.zookeeper.server.watches import ServerWatches

T = TypeVar("T")

LOOPBACK: Final = "127.0.0.1"
CONTAINER_CHECK_MS: Final = 60_000
"""How often containers and TTL nodes are looked at (znode.container.checkIntervalMs)."""
_ANSWER_SECONDS = 30.0
_SESSION_IN_HANDSHAKE = 16


class ServerSession:
    """A session, and the connection that it is used over now, if any."""

    __slots__ = ("connection", "expires_ms", "id", "password", "timeout_ms")

    def __init__(self, id: int, password: bytes, timeout_ms: int) -> None:
        self.id = id
        self.password = password
        self.timeout_ms = timeout_ms
        self.connection: ServedConnection | None = None
        self.expires_ms = 0.0


class ZooKeeperServer:
    """A standalone ZooKeeper server, reachable over TCP by any client of ZooKeeper 3.4 to 3.9.

    Args:
        host, port: where to listen; port 0 takes a free one.
        tick_ms: tickTime. A session from which nothing was received for its timeout ends at the next tick.
        min_session_timeout_ms, max_session_timeout_ms: bounds of what is granted (2 and 20 ticks unless given).
        max_request_bytes: jute.maxbuffer. A longer request closes its connection.
        extended_types: accept TTL nodes (zookeeper.extendedTypesEnabled).
        container_check_ms: how often abandoned containers and TTL nodes are deleted.
    """

    def __init__(
        self,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        tick_ms: int = 500,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int | None = None,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        extended_types: bool = True,
        container_check_ms: int = CONTAINER_CHECK_MS,
    ) -> None:
        if tick_ms <= 0:
            raise ValueError(f"tick_ms {tick_ms}: expected more than 0")
        self.host = host
        self.port = port
        self.tick_ms = tick_ms
        self.min_session_timeout_ms = 2 * tick_ms if min_session_timeout_ms is None else min_session_timeout_ms
        self.max_session_timeout_ms = 20 * tick_ms if max_session_timeout_ms is None else max_session_timeout_ms
        if not 0 < self.min_session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError(
                f"session timeouts from {self.min_session_timeout_ms} to {self.max_session_timeout_ms} ms:"
                " expected 0 < min <= max"
            )
        self.max_request_bytes = max_request_bytes
        self.processor = RequestProcessor(extended_types)
        self.sessions: dict[int, ServerSession] = {}
        self.connections: dict[ServedConnection, None] = {}
        self.delay_ms = 0.0
        self._container_check_ms = container_check_ms
        self._containers_checked_ms = 0.0
        self._last_session = (time.time_ns() // 1_000_000 << 24 & (1 << 64) - 1) >> 8
        self._paused = False
        self._cut_off: set[int] = set()
        self._ended_received = self._ended_sent = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def connect_string(self) -> str:
        """What a client takes as its hosts."""
        return f"{self.host}:{self.port}"

    @property
    def zxid(self) -> int:
        """The last transaction's id."""
        return self.processor.zxid

    @property
    def watches(self) -> ServerWatches:
        return self.processor.watches

    # Life cycle, from any thread.

    def start(self) -> None:
        """Listen and serve. Raises OSError if the port can't be had. Sessions get their whole timeout again."""
        if self._thread is not None:
            return
        started = threading.Event()
        failed: list[OSError] = []
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started, failed)), name="zookeeper-server", daemon=True
        )
        self._thread.start()
        started.wait()
        if failed:
            self._thread.join()
            self._thread = None
            raise failed[0]

    def stop(self) -> None:
        """Break all connections and stop listening; data and sessions are kept for the next `start`."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        self._thread = None
        loop.call_soon_threadsafe(self._stopping.set)
        thread.join()

    close = stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _main(self, started: threading.Event, failed: list[OSError]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            self._listener = await loop.create_server(lambda: ServedConnection(self), self.host, self.port)
        except OSError as error:
            failed.append(error)
            return
        finally:
            if failed or self._listener is None:
                started.set()
        self.port = self._listener.sockets[0].getsockname()[1]
        for session in self.sessions.values():
            self.touch(session)
        self._expiry = loop.create_task(self._expire_in_time())
        started.set()
        await self._stopping.wait()
        self._expiry.cancel()
        self._listener.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # the transports' ends
        with contextlib.suppress(asyncio.CancelledError):
            await self._expiry
        self._listener = self._loop = None

    def _call(self, work: Callable[[], T]) -> T:
        """Do `work` on the server's thread and return what it returned."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("the server is not running")

        async def done() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), loop).result(_ANSWER_SECONDS)

    # Faults, from any thread.

    def pause(self) -> None:
        """Serve nothing, as a stopped process: requests and connections wait, no session ends."""

        def paused() -> None:
            self._paused = True

        self._call(paused)

    def resume(self) -> None:
        """Serve what has come meanwhile. A session whose timeout has passed ends at the next tick."""

        def resumed() -> None:
            self._paused = False
            self._work()

        self._call(resumed)

    def partition(self, session: int) -> None:
        """Cut a session's client off, both ways: what it sends and what it is sent waits, also after a reconnect."""
        self._call(lambda: self._cut_off.add(session))

    def heal(self, session: int) -> None:
        """Undo `partition`; what waited arrives."""

        def healed() -> None:
            self._cut_off.discard(session)
            self._work()

        self._call(healed)

    def expire(self, session: int) -> None:
        """End a session now. Raises KeyError if there is none."""
        self._call(lambda: self.end_session(self.sessions[session]))

    def lose_reply(self, session: int, *, applied: bool) -> None:
        """Break the session's connection instead of answering its next multi, which is applied before, or is not."""

        def losing() -> None:
            connection = self.sessions[session].connection
            if connection is None:
                raise KeyError(session)
            connection.losing = applied

        self._call(losing)

    def slow(self, delay_ms: float) -> None:
        """Send every reply and event `delay_ms` later; 0 ends it."""
        if delay_ms < 0:
            raise ValueError(f"delay_ms {delay_ms}: expected 0 or more")

        def slowed() -> None:
            self.delay_ms = delay_ms

        self._call(slowed)

    def drop_connection(self, session: int) -> None:
        """Break a session's connection; the session stays. Raises KeyError if there is no session."""

        def dropped() -> None:
            connection = self.sessions[session].connection
            if connection is not None:
                connection.abort()

        self._call(dropped)

    # Called by connections, on the server's thread.

    def holds(self, connection: ServedConnection) -> bool:
        """Return whether a fault keeps the connection's requests waiting."""
        return self._paused or self.cuts_off(connection)

    def cuts_off(self, connection: ServedConnection) -> bool:
        return bool(self._cut_off) and connection.session_id in self._cut_off

    def holds_handshake(self, frame: bytes) -> bool:
        """Return whether this connect request comes from a client that is cut off."""
        at = _SESSION_IN_HANDSHAKE
        return bool(self._cut_off) and int.from_bytes(frame[at : at + 8], signed=True) in self._cut_off

    def attach(
        self, connection: ServedConnection, session_id: int, password: bytes, timeout_ms: int
    ) -> ServerSession | None:
        """Return the session that a client asked for, or a new one for id 0; None if there is none for it."""
        granted_ms = min(max(timeout_ms, self.min_session_timeout_ms), self.max_session_timeout_ms)
        if session_id == 0:
            self.processor.zxid += 1
            self._last_session += 1
            session = ServerSession(self._last_session, secrets.token_bytes(16), granted_ms)
            self.sessions[session.id] = session
        else:
            found = self.sessions.get(session_id)
            if found is None or not secrets.compare_digest(found.password, password):
                return None
            session = found
            session.timeout_ms = granted_ms
            if session.connection is not None:  # the client has moved
                moved, session.connection = session.connection, None
                moved.abort()
        session.connection, connection.session = connection, session
        self.touch(session)
        return session

    def touch(self, session: ServerSession) -> None:
        tick_ms = self.tick_ms
        session.expires_ms = ((time.monotonic() * 1000 + session.timeout_ms) // tick_ms + 1) * tick_ms

    def end_session(self, session: ServerSession, *, closed: bool = False) -> None:
        """Delete the session's ephemerals. Its connection is broken, unless its client asked (`closed`)."""
        del self.sessions[session.id]
        self.processor.end_session(session.id)
        if session.connection is not None and not closed:
            session.connection.abort()

    def connection_ended(self, connection: ServedConnection) -> None:
        self.watches.forget(connection)
        if self.connections.pop(connection, connection) is None:
            self._ended_received += connection.received
            self._ended_sent += connection.sent
        session = connection.session
        if session is not None and session.connection is connection:
            session.connection = None

    def received(self) -> int:
        """Return the number of requests so far."""
        return self._ended_received + sum(connection.received for connection in self.connections)

    def sent(self) -> int:
        """Return the number of replies and events so far."""
        return self._ended_sent + sum(connection.sent for connection in self.connections)

    def _work(self) -> None:
        for connection in list(self.connections):
            connection.flush()
            connection.work()

    async def _expire_in_time(self) -> None:
        while True:
            now_ms = time.monotonic() * 1000
            await asyncio.sleep((self.tick_ms - now_ms % self.tick_ms) / 1000)
            if self._paused:
                continue
            now_ms = time.monotonic() * 1000
            for session in [each for each in self.sessions.values() if each.expires_ms <= now_ms]:
                self.end_session(session)
            if now_ms - self._containers_checked_ms >= self._container_check_ms:
                self._containers_checked_ms = now_ms
                for path in list(self.processor.extended):
                    self.processor.delete_if_abandoned(path, time.time_ns() // 1_000_000)
