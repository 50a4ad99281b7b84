"""The socket server: listens, accepts, and knows what all its connections hold together.

What one connection does is `server_connection.py`'s. Sockets are watched by the network's loop directly and not through
asyncio's transports, whose buffers and whose sendfile would each have their own idea of the order.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.broker.setting_types import Listener
from controller.broker.settings import QUEUED_REQUESTS, BrokerSettings
from controller.hosts.network import NetworkThread
from controller.hosts.server_connection import Connection, Receive
from controller.hosts.turns import Turns
from controller.trace import Noted, Trace

BACKLOG = 128
ACCEPT_AGAIN_S = 0.2
"""How long the server accepts no connection after `accept` failed, most likely for lack of file descriptors."""
SAY_AGAIN_S = 60.0
"""The minimum time between two log lines about refused connections."""
RESERVE_MAX = 4_096


def reserved_descriptors(limit: int) -> int:
    """Return how many of `limit` file descriptors (RLIMIT_NOFILE) are reserved for logs, for ZooKeeper and for
    connections to other brokers, and not used for clients."""
    return min(max(limit // 4, 32), RESERVE_MAX)


class CannotListen(OSError):
    """A listener's address can't be had; names both."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits on requests and connections.

    `queued_bytes`: of all unanswered requests, as far as they have arrived. `idle_ms`: how long a connection may be
    idle, that is, nothing is sent or received and no request is in flight; None: no limit. `descriptors`: a connection
    whose descriptor's number is this or above is refused. The system assigns the lowest free number, so at least this
    many descriptors are then open in the process. `stall_ms`: how long a partly received request may bring no byte.
    """

    request_bytes: int
    queued_bytes: int = 400 * 1024 * 1024
    connections: int = 2**31 - 1
    idle_ms: int | None = 600_000
    stall_ms: int = 30_000
    descriptors: int = 2**31 - 1


def limits_of(settings: BrokerSettings) -> Limits:
    request_bytes, queued_bytes = settings.socket_request_max_bytes, settings.queued_max_request_bytes
    return Limits(
        request_bytes,
        queued_bytes if queued_bytes >= 0 else QUEUED_REQUESTS * request_bytes,
        settings.max_connections,
        settings.connections_max_idle_ms if settings.connections_max_idle_ms >= 0 else None,
        settings.request_stall_timeout_ms,
        *_usable_descriptors(),
    )


def _usable_descriptors() -> tuple[int, ...]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return () if limit == resource.RLIM_INFINITY else (limit - reserved_descriptors(limit),)


@dataclass(slots=True)
class _Bound:
    listener: Listener
    socket: socket.socket
    accepting: asyncio.Task[None] | None = None


class Server:
    """`bind` takes the addresses, `serve` begins to accept, `close` ends it all. `receive` is called on the network's
    loop, one frame at a time. `connections` are those that are open, in the order of their coming."""

    def __init__(self, network: NetworkThread, limits: Limits, trace: Trace) -> None:
        self.network = network
        self.connections: dict[Connection, None] = {}
        self.receive: Receive = lambda _frame, respond, _listener: respond(None)
        self._limits = limits
        self._trace = trace
        self._bound: list[_Bound] = []
        self.held_bytes = 0
        self._stalled: dict[Connection, None] = {}
        self._refused = 0  # since it was last said
        self._said_s: float | None = None
        self.turns = Turns(network, self._failed)
        self._large: dict[Connection, None] = {}
        """Those within a large request, in the order in which it began to arrive."""
        self._first_since_s: float | None = None

    def bind(self, listeners: Sequence[Listener]) -> Mapping[str, int]:
        """Each listener's port by its name, once all of them are had. CannotListen, with none of them kept."""
        try:
            for listener in listeners:
                self._bound.append(_Bound(listener, _bound_socket(listener)))
        except OSError as error:
            self._release()
            raise CannotListen(f"listener {listener}: {error.strerror or error}") from error
        return {bound.listener.name: bound.socket.getsockname()[1] for bound in self._bound}

    def serve(self, receive: Receive) -> None:
        self.receive = receive
        self.network.run(self._serve(), timeout_s=10.0)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        for bound in self._bound:
            bound.socket.setblocking(False)
            bound.socket.listen(BACKLOG)
            bound.accepting = loop.create_task(self._accept(bound))

    async def _accept(self, bound: _Bound) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(bound.socket)
            except OSError as error:
                self._say_refused(f"listener {bound.listener}: a connection was not accepted: {error}")
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            self._take_in(accepted, bound.listener.name)

    def _take_in(self, accepted: socket.socket, listener: str) -> None:
        if len(self.connections) >= self._limits.connections:
            accepted.close()
            self._say_refused(f"connections are turned away: there are {len(self.connections)}, as many as may be")
            return
        if accepted.fileno() >= self._limits.descriptors:
            accepted.close()
            self._say_refused(
                f"connections are turned away: {self._limits.descriptors} file descriptors are in use, and the rest of"
                " the limit (ulimit -n) is kept for logs and ZooKeeper"
            )
            return
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:  # it was closed at the other end before it was looked at
            accepted.close()
            return
        self.connections[Connection(self, accepted, listener, self._limits.request_bytes)] = None

    def _say_refused(self, why: str) -> None:
        """Once for many: a client that is refused tries again at once."""
        self._refused += 1
        now_s = self.network.loop.time()
        if self._said_s is None or now_s - self._said_s >= SAY_AGAIN_S:
            self.note("warning", why if self._refused == 1 else f"{why} ({self._refused} since the last such line)")
            self._refused, self._said_s = 0, now_s

    def close(self) -> None:
        """No connection is accepted any more, and those that are there are closed."""
        if self.network.loop.is_running():
            self.network.run(self._close(), timeout_s=10.0)
        self._release()

    async def _close(self) -> None:
        for bound in self._bound:
            if bound.accepting is not None:
                bound.accepting.cancel()
        for connection in list(self.connections):
            connection.close()
        self.turns.close()

    def _failed(self, error: Exception) -> None:
        """Log an error that a request's steps raised instead of reporting it themselves."""
        self.note("error", "".join(traceback.format_exception(error)).rstrip())

    def _release(self) -> None:
        for bound in self._bound:
            bound.socket.close()
        self._bound.clear()

    # -- for the connections, on the loop

    @property
    def idle_ms(self) -> int | None:
        return self._limits.idle_ms

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._limits.queued_bytes

    def hold(self, size: int) -> None:
        self.held_bytes += size
        if self._stalled and not self.full:
            stalled, self._stalled = self._stalled, {}
            for connection in stalled:
                self.network.loop.call_soon(connection.go_on)
        if size < 0 and self._first_since_s is not None:
            self.network.loop.call_soon(self._look_at_large)

    def stall(self, connection: Connection) -> None:
        self._stalled[connection] = None

    # Large requests that have begun to arrive hold half of the memory for requests at most, the other half is for
    # whole ones. When they hold that much, the first of them goes on alone, and is closed if it takes too long: the
    # others wait for it.

    @property
    def stall_ms(self) -> int:
        return self._limits.stall_ms

    def begin_large(self, connection: Connection) -> None:
        self._large[connection] = None

    def end_large(self, connection: Connection) -> None:
        self._large.pop(connection, None)
        self._first_since_s = None
        self.network.loop.call_soon(self._look_at_large)

    def may_go_on(self, connection: Connection) -> bool:
        if not self._large_full:
            return True
        if self._first_since_s is None:
            self._first_since_s = self.network.loop.time()
            self.network.loop.call_later(self._limits.stall_ms / 1_000.0, self._look_at_large)
        return next(iter(self._large)) is connection

    @property
    def _large_full(self) -> bool:
        return sum(one.arrived_bytes for one in self._large) >= self._limits.queued_bytes // 2

    def _look_at_large(self) -> None:
        if self._large_full:
            since_s = self._first_since_s
            if since_s is not None and self.network.loop.time() - since_s >= self._limits.stall_ms / 1_000.0:
                first = next(iter(self._large))
                self.note(
                    "warning",
                    f"connection closed: a request did not arrive in {self._limits.stall_ms} ms while others waited"
                    " for its memory",
                )
                first.close()
        else:
            self._first_since_s = None
        for connection in list(self._large):
            connection.go_on()

    def closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._stalled.pop(connection, None)

    def note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


def _bound_socket(listener: Listener) -> socket.socket:
    """Bound, not listening. An empty host is every address, IPv6's too where the machine has them."""
    if not listener.host and socket.has_dualstack_ipv6():
        family, host = socket.AF_INET6, "::"
    else:
        found = socket.getaddrinfo(listener.host or "0.0.0.0", listener.port, type=socket.SOCK_STREAM)
        family, host = found[0][0], str(found[0][4][0])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" and not listener.host else 1)
        made.bind((host, listener.port))
    except OSError:
        made.close()
        raise
    return made
