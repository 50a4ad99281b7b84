"""The session of a client of the in-memory ZooKeeper: its connections, its pings, and the requests that wait for them.

It behaves as a kazoo client does: it pings at a third of the session timeout, closes its connection after two thirds
without an answer, reconnects to the same session, and learns that the session has ended only when it reaches a server
again. The meaning of requests, and faults, are in `memory/server.py`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from controller.clock import Clock, Future, Timer
from controller.zookeeper.memory.database import (
    CLOSE,
    CONNECT,
    END,
    MULTI,
    PING,
    ClientIdentity,
    ClientLink,
    Latency,
    LinkRequest,
)
from controller.zookeeper.operations import (
    ConnectionListener,
    ConnectionLost,
    SessionGone,
    SessionState,
    UnknownOutcome,
    WatchEvent,
)

if TYPE_CHECKING:
    from controller.zookeeper.memory.followers import Follower

SHORTEST_HANDSHAKE_MS = 500.0
"""A server is given at least so long to grant a session, however short that is to be."""
_SLACK_MS = 1e-6
"""By so much a sum of floats may fall short of the moment that it stands for."""


class SessionServer(Protocol):
    """The client's view of the in-memory server, besides the link between them."""

    @property
    def running(self) -> bool: ...

    def open_link(self, connection: ClientSession, latency: Latency | None, identity: ClientIdentity) -> ClientLink: ...

    def link_broken(self, link: ClientLink) -> None: ...

    def forget(self, connection: ClientSession) -> None: ...


class NoListener:
    def session_state(self, state: SessionState) -> None:
        pass

    def watch_fired(self, event: WatchEvent) -> None:
        pass


class ClientSession:
    def __init__(
        self,
        server: SessionServer,
        clock: Clock,
        session_timeout_ms: int,
        latency: Latency | None,
        identity: ClientIdentity,
        reconnect_delay_ms: float,
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._asked_timeout_ms = session_timeout_ms
        self._server = server
        self._clock = clock
        self._latency = latency
        self._identity = identity
        self._reconnect_delay_ms = reconnect_delay_ms
        self._listener: ConnectionListener = NoListener()
        self.follower: Follower | None = None
        """The server that it connects to next; None: the leader."""
        self._link: ClientLink | None = None
        self._connected = False
        self._started: Future[int] | None = None
        self._closed: Future[None] | None = None
        self._session = 0
        self._ended_session = 0
        self._last_zxid = 0
        self._acknowledged_sent_ms = -math.inf
        self._last_sent_ms = 0.0
        self._last_heard_ms = 0.0
        self._in_flight: deque[LinkRequest] = deque()
        self._waiting: deque[LinkRequest] = deque()
        self._check_timer: Timer | None = None
        self._connect_timer: Timer | None = None
        self._to_server_cut = False
        self._to_client_cut = False
        self._left_behind: list[ClientLink] = []
        self._losing: bool | None = None
        self._paused = False
        self._killed = False
        self._check_missed = False
        self._connect_missed = False
        self._inbox: deque[Any] = deque()

    def listen(self, listener: ConnectionListener) -> None:
        self._listener = listener

    def start(self) -> Future[int]:
        if self._started is not None:
            raise RuntimeError("a connection is started once")
        self._started = Future()
        self._connect_later(0.0)
        return self._started

    def close(self) -> Future[None]:
        if self._closed is not None:
            return self._closed
        self._closed = Future()
        session, self._session, self._ended_session = self._session, 0, self._session
        self._abandon(SessionGone(session))
        if self._started is not None and not self._started.done:
            self._started.fail(SessionGone(session))
        if not self._paused:
            self._send_close()
        return self._closed

    def _send_close(self) -> None:
        if self._connected:
            self._send(LinkRequest(CLOSE, None, None))
            return
        if self._link is not None:  # it was still connecting, and the outcome of that is no longer of interest
            self._leave(self._link)
        self._finish_close()

    def session(self) -> int:
        return self._session

    def acknowledged_sent_ms(self) -> float:
        return self._acknowledged_sent_ms

    def last_zxid(self) -> int:
        return self._last_zxid

    # The life of the connection.

    def server_reachable(self) -> None:
        """The way to the server may be free again: a client that has none tries, after its delay."""
        if self._link is None and self._connect_timer is None:
            self._connect_later(self._reconnect_delay_ms)

    def _connect_later(self, delay_ms: float) -> None:
        if self._started is not None and self._closed is None and not self._killed:
            self._connect_timer = self._clock.call_later(delay_ms, self._connect)

    def _connect(self) -> None:
        self._connect_timer = None
        self._connect_missed = self._paused
        if self._paused or self._closed is not None or self._link is not None:
            return
        if not self._server.running or self._to_server_cut or self._to_client_cut:
            return  # tried again when the server or the link is back
        self._link = self._server.open_link(self, self._latency, self._identity)
        self._link.losing = self._losing
        self._last_heard_ms = self._clock.now_ms()
        self._send(LinkRequest(CONNECT, (self._session, self._asked_timeout_ms), None))
        self._watch_over()

    def receive(self, message: LinkRequest | WatchEvent | object) -> None:
        """Something arrived from the server."""
        if self._paused:
            self._inbox.append(message)
            return
        self._last_heard_ms = self._clock.now_ms()
        if isinstance(message, LinkRequest):
            self._answered(message)
        elif isinstance(message, WatchEvent):
            if self._closed is None:
                self._listener.watch_fired(message)
        else:
            self._drop()

    def _answered(self, request: LinkRequest) -> None:
        if self._in_flight.popleft() is not request:
            raise RuntimeError("the in-memory server answered out of order")
        if request.operation == CONNECT:
            session, timeout_ms = request.result
            if session:
                self._established(session, timeout_ms, request.sent_ms)
            else:
                self._expired()
            return
        self._acknowledged_sent_ms = request.sent_ms
        if request.zxid > self._last_zxid:
            self._last_zxid = request.zxid
        pending = request.pending
        if pending is not None:
            if request.error is None:
                pending.resolve(request.result)
            else:
                pending.fail(request.error)
        elif request.operation == CLOSE:
            self._finish_close()

    def _established(self, session: int, timeout_ms: int, sent_ms: float) -> None:
        self._session = session
        self.session_timeout_ms = timeout_ms
        self._acknowledged_sent_ms = sent_ms
        self._connected = True
        while self._waiting:
            self._send(self._waiting.popleft())
        self._watch_over()
        self._listener.session_state(SessionState.CONNECTED)
        assert self._started is not None
        if not self._started.done:
            self._started.resolve(session)

    def _expired(self) -> None:
        session, self._session, self._ended_session = self._session, 0, self._session
        self._acknowledged_sent_ms = -math.inf
        link, self._link = self._link, None
        if link is not None:
            self._leave(link)
        self._listener.session_state(SessionState.EXPIRED)
        self._abandon(SessionGone(session))
        self._connect_later(self._reconnect_delay_ms)

    def _drop(self) -> None:
        """The connection is lost to the client: broken, closed by the server, or silent for too long."""
        link, self._link = self._link, None
        if link is None:
            return
        self._leave(link)
        self._losing = link.losing  # None again once a reply was lost
        was_connected, self._connected = self._connected, False
        if self._closed is not None:
            self._finish_close()
            return
        in_flight, self._in_flight = self._in_flight, deque()
        if was_connected:
            self._listener.session_state(SessionState.SUSPENDED)
        for request in in_flight:
            if request.pending is not None:
                request.pending.fail(_broken(request))
        self._connect_later(self._reconnect_delay_ms)

    def _leave(self, link: ClientLink) -> None:
        """Closes the client's end. What it has sent goes on to the server, once a cut is healed if there is one."""
        link.to_client.close()
        link.to_server.send(END)
        if self._to_server_cut:
            self._left_behind.append(link)

    def _abandon(self, error: SessionGone) -> None:
        """The session is over: answers all that belonged to it."""
        requests = [*self._in_flight, *self._waiting]
        self._waiting.clear()
        for request in requests:
            if request.pending is not None:
                pending, request.pending = request.pending, None
                pending.fail(error)

    def _finish_close(self) -> None:
        assert self._closed is not None
        if not self._closed.done:
            self._end()
            self._listener.session_state(SessionState.CLOSED)
            self._closed.resolve(None)

    def _end(self) -> None:
        """No timer, no link, no session after this."""
        self._connected = False
        self._link = None
        for timer in (self._check_timer, self._connect_timer):
            if timer is not None:
                timer.cancel()
        self._server.forget(self)

    # Requests and pings.

    def _request(self, operation: int, arguments: Any) -> Future[Any]:
        pending: Future[Any] = Future()
        if not self._session:
            pending.fail(SessionGone(self._ended_session))
            return pending
        request = LinkRequest(operation, arguments, pending)
        if self._connected and not self._paused:
            self._send(request)
        else:
            self._waiting.append(request)
        return pending

    def _send(self, request: LinkRequest) -> None:
        assert self._link is not None
        request.sent_ms = self._last_sent_ms = self._clock.now_ms()
        self._in_flight.append(request)
        self._link.to_server.send(request)

    def _watch_over(self) -> None:
        """Sets the timer for the next ping, or for giving the connection up, whichever is first."""
        due_ms = self._given_up_ms()
        if self._connected:
            due_ms = min(due_ms, self._last_sent_ms + self.session_timeout_ms / 3)
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._check_timer = self._clock.call_later(max(0.0, due_ms - self._clock.now_ms()), self._check)

    def _given_up_ms(self) -> float:
        patience_ms = self.session_timeout_ms * 2 / 3
        return self._last_heard_ms + (patience_ms if self._connected else max(patience_ms, SHORTEST_HANDSHAKE_MS))

    def _check(self) -> None:
        self._check_timer = None
        self._check_missed = self._paused
        if self._paused or self._link is None:
            return
        now_ms = self._clock.now_ms() + _SLACK_MS
        if now_ms >= self._given_up_ms():
            self._drop()
            return
        if self._connected and now_ms >= self._last_sent_ms + self.session_timeout_ms / 3:
            self._send(LinkRequest(PING, None, None))
        self._watch_over()


def _broken(request: LinkRequest) -> ConnectionLost | UnknownOutcome:
    if request.operation == MULTI:
        return UnknownOutcome(f"the connection broke under a multi of {len(request.arguments)} operations")
    return ConnectionLost("the connection broke under a read")
