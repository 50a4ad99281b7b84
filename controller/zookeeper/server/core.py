"""The state of a ZooKeeper server: sessions, connections, timers, faults. No thread, no socket, no clock of its own.

A host calls it one call at a time: `ZooKeeperServer` from an asyncio event loop, `FakeZooKeeper` from the threads of
its clients. The host makes a `ServedConnection` for each client, gives it what arrives, and ends it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from controller.clock import Clock, Timer
from controller.zookeeper.memory.session_timeouts import SessionTimeouts
from controller.zookeeper.row_writes import REQUEST_BYTES_MAX
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.requests import RequestProcessor
from controller.zookeeper.server.transactions import SessionRecord
from controller.zookeeper.server.watches import ServerWatches

if TYPE_CHECKING:
    from controller.zookeeper.server.storage import Storage

CONTAINER_CHECK_MS: Final = 60_000
"""How often containers and TTL nodes are looked at (znode.container.checkIntervalMs)."""
_ROUNDING_MS: Final = 1e-6
"""A sum of floats may fall short of the moment that it stands for."""


class ServerSession:
    """A session, and the connection that it is used over now, if any."""

    __slots__ = ("connection", "expires_ms", "id", "password", "timeout_ms")

    def __init__(self, id: int, password: bytes, timeout_ms: int) -> None:
        self.id = id
        self.password = password
        self.timeout_ms = timeout_ms
        self.connection: ServedConnection | None = None
        self.expires_ms = 0.0


class ZooKeeperCore:
    """A standalone ZooKeeper server without a host. It serves nothing before `start`.

    Args:
        clock: Times, and the timers that end sessions and send replies. Its timers call back one at a time.
        tick_ms: tickTime. A session from which nothing was received for its timeout ends at the next tick.
        min_session_timeout_ms, max_session_timeout_ms: bounds of what is granted (2 and 20 ticks unless given). A
            connection whose handshake is not complete after the longest one is closed.
        max_request_bytes: jute.maxbuffer. A longer request closes its connection.
        max_connections_per_address: maxClientCnxns. A connection beyond it is closed at once; 0 means no bound.
        extended_types: accept TTL nodes (zookeeper.extendedTypesEnabled).
        container_check_ms: how often abandoned containers and TTL nodes are deleted.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        tick_ms: int = 500,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int | None = None,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        max_connections_per_address: int = 0,
        extended_types: bool = True,
        container_check_ms: int = CONTAINER_CHECK_MS,
    ) -> None:
        if max_connections_per_address < 0:
            raise ValueError(f"max_connections_per_address {max_connections_per_address}: expected 0 or more")
        self.clock = clock
        self.timeouts = SessionTimeouts.of(tick_ms, min_session_timeout_ms, max_session_timeout_ms)
        self.max_request_bytes = max_request_bytes
        self.max_connections_per_address = max_connections_per_address
        self.sasl_users: Mapping[str, str] = {}
        """Passwords of DIGEST-MD5, by user; without any, SASL is refused."""
        self.port = 0
        """What `conf` names: the port that the host listens on, if any."""
        self.running = False
        self.processor = RequestProcessor(clock, extended_types)
        self.sessions: dict[int, ServerSession] = {}
        self.connections: dict[ServedConnection, None] = {}
        self.delay_ms = 0.0
        self._container_check_ms = container_check_ms
        self._containers_due_ms = 0.0
        self._last_session = (clock.wall_ms() << 24 & (1 << 64) - 1) >> 8
        self._paused = False
        self._cut_off: set[int] = set()
        self._addresses: Counter[str] = Counter()
        self._greeting: dict[ServedConnection, float] = {}
        """Connections without a completed handshake and when they are closed, oldest first."""
        self._ended_received = self._ended_sent = 0
        self._timer: Timer | None = None
        self._due_ms = 0.0

    @property
    def zxid(self) -> int:
        """The last transaction's id."""
        return self.processor.zxid

    @property
    def storage(self) -> Storage | None:
        """Where transactions are logged, if they are."""
        return self.processor.storage

    @property
    def watches(self) -> ServerWatches:
        return self.processor.watches

    # Life cycle.

    def restore(self, storage: Storage) -> None:
        """Go on with the znodes and sessions that `storage` has read, and log to it. Before `start`."""
        self.processor.restore(storage)
        kept = storage.sessions.values()
        self.sessions = {each.id: ServerSession(each.id, each.password, each.timeout_ms) for each in kept}
        self._last_session = max(self._last_session, storage.last_session)

    def start(self) -> None:
        """Serve. Sessions get their whole timeout again."""
        self.running = True
        for session in self.sessions.values():
            self.touch(session)
        self._containers_due_ms = self.timeouts.next_tick_ms(self.clock.now_ms() + self._container_check_ms)
        self._arm()

    def stop(self) -> None:
        """Break all connections; data and sessions are kept, and no session ends before the next `start`."""
        self.running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self.connections):
            connection.abort()

    # Faults.

    def pause(self) -> None:
        """Serve nothing, as a stopped process: requests and connections wait, no session ends."""
        self._paused = True

    def resume(self) -> None:
        """Serve what has come meanwhile. A session whose timeout has passed ends at the next tick."""
        self._paused = False
        self._work()
        self._arm()

    def partition(self, session: int) -> None:
        """Cut a session's client off, both ways: what it sends and what it is sent waits, also after a reconnect."""
        self._cut_off.add(session)

    def heal(self, session: int) -> None:
        """Undo `partition`; what waited arrives."""
        self._cut_off.discard(session)
        self._work()

    def expire(self, session: int) -> None:
        """End a session now. Raises KeyError if there is none."""
        self.end_session(self.sessions[session])

    def lose_reply(self, session: int, *, applied: bool) -> None:
        """Break the session's connection instead of answering its next write, which is applied before, or is not.

        Raises KeyError if there is no session, or no connection of it.
        """
        connection = self.sessions[session].connection
        if connection is None:
            raise KeyError(session)
        connection.losing = applied

    def slow(self, delay_ms: float) -> None:
        """Send every reply and event `delay_ms` later; 0 ends it."""
        if delay_ms < 0:
            raise ValueError(f"delay_ms {delay_ms}: expected 0 or more")
        self.delay_ms = delay_ms

    def drop_connection(self, session: int) -> None:
        """Break a session's connection; the session stays. Raises KeyError if there is no session."""
        connection = self.sessions[session].connection
        if connection is not None:
            connection.abort()

    # Called by connections.

    def opened(self, connection: ServedConnection) -> bool:
        """Count a new connection; return whether it is served: its address may have one more."""
        address = connection.identity.address
        if not self.running or 0 < self.max_connections_per_address <= self._addresses[address]:
            return False
        self._addresses[address] += 1
        self.connections[connection] = None
        due_ms = self._greeting[connection] = self.clock.now_ms() + self.timeouts.max_ms
        if due_ms < self._due_ms:
            self._arm()
        return True

    def holds(self, connection: ServedConnection) -> bool:
        """Return whether a fault keeps the connection's requests waiting."""
        return self._paused or self.cuts_off(connection)

    def cuts_off(self, connection: ServedConnection) -> bool:
        return bool(self._cut_off) and connection.session_id in self._cut_off

    def holds_handshake(self, session: int) -> bool:
        """Return whether a client that asks for this session is cut off."""
        return session in self._cut_off

    def attach(
        self, connection: ServedConnection, session_id: int, password: bytes, timeout_ms: int
    ) -> ServerSession | None:
        """Return the session that a client asked for, or a new one for id 0; None if there is none for it."""
        granted_ms = self.timeouts.granted_ms(timeout_ms)
        if session_id == 0:
            self.processor.zxid += 1
            self._last_session += 1
            session = ServerSession(self._last_session, secrets.token_bytes(16), granted_ms)
            self.sessions[session.id] = session
            if self.storage is not None:
                self.storage.begin_session(self.zxid, SessionRecord(session.id, session.password, granted_ms))
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
        self._greeting.pop(connection, None)
        self.touch(session)
        if session.expires_ms < self._due_ms:
            self._arm()
        return session

    def touch(self, session: ServerSession) -> None:
        session.expires_ms = self.timeouts.next_tick_ms(self.clock.now_ms() + session.timeout_ms)

    def end_session(self, session: ServerSession, *, closed: bool = False) -> None:
        """Delete the session's ephemerals. Its connection is broken, unless its client asked (`closed`)."""
        del self.sessions[session.id]
        self.processor.end_session(session.id)
        if session.connection is not None and not closed:
            session.connection.abort()

    def connection_ended(self, connection: ServedConnection) -> None:
        self.watches.forget(connection)
        self._greeting.pop(connection, None)
        if self.connections.pop(connection, connection) is None:
            self._ended_received += connection.received
            self._ended_sent += connection.sent
            address = connection.identity.address
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
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

    # Time.

    def _arm(self) -> None:
        """Set the timer for what may be due first. A session that is touched meanwhile only ends later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.running or self._paused:
            return
        now_ms = self.clock.now_ms()
        due_ms = self._containers_due_ms
        for session in self.sessions.values():
            due_ms = min(due_ms, session.expires_ms)
        for greeting_ms in self._greeting.values():
            due_ms = min(due_ms, greeting_ms)
            break
        self._due_ms = due_ms if due_ms > now_ms else self.timeouts.next_tick_ms(now_ms)
        self._timer = self.clock.call_later(self._due_ms - now_ms, self._look)

    def _look(self) -> None:
        """End what is due."""
        self._timer = None
        if self._paused:
            return  # `resume` sets the timer again
        now_ms = self.clock.now_ms() + _ROUNDING_MS
        due = [session for session in self.sessions.values() if session.expires_ms <= now_ms]
        for session in sorted(due, key=lambda each: each.expires_ms):
            self.end_session(session)
        for connection, due_ms in list(self._greeting.items()):
            if due_ms > now_ms:
                break
            del self._greeting[connection]
            if not connection.waits_for_healing:
                connection.abort()
        if self._containers_due_ms <= now_ms:
            self._containers_due_ms = self.timeouts.next_tick_ms(now_ms + self._container_check_ms)
            for path in list(self.processor.extended):
                self.processor.delete_if_abandoned(path, self.clock.wall_ms())
        self._arm()
