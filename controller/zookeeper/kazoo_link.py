"""One session over kazoo: its requests, queued, in flight or acknowledged, and its end.

The link connects the requests, which any thread makes, with kazoo's connection thread, which sends them and makes all
callbacks. A request belongs to the session in which it was made and is never sent in another. The lock is never held
during a callback, and no callback is waited for (KAFKA-6517, KAFKA-6879).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol.serialization import CloseInstance

from controller import sync_points
from controller.clock import Clock
from controller.log import logger
from controller.pending import Pending
from controller.zookeeper.connection import ConnectionListener
from controller.zookeeper.errors import (
    AuthenticationFailed,
    ConnectionLost,
    SessionGone,
    UnknownOutcome,
    ZooKeeperError,
)
from controller.zookeeper.kazoo_requests import KazooRequest, Parse
from controller.zookeeper.kazoo_session import HookedClient, KeeperState
from controller.zookeeper.operations import SessionState, WatchEvent, WatchKind

REQUESTS_IN_FLIGHT = 256
"""Requests given to kazoo ahead of the answers. Each costs a byte in its wake-up socket, which must not fill up."""
CLOSE_LIMIT_MS = 2_000.0
"""How long `close` waits for a server to confirm the session's end."""

_WATCH_KINDS = {1: WatchKind.CREATED, 2: WatchKind.DELETED, 3: WatchKind.DATA, 4: WatchKind.CHILDREN}


class _NoListener:
    def session_state(self, state: SessionState) -> None:
        pass

    def watch_fired(self, event: WatchEvent) -> None:
        pass


class KazooLink:
    """A ZooKeeper session over kazoo.

    `connected` is called on the connection thread after each report of CONNECTED.
    """

    def __init__(
        self,
        hosts: str,
        clock: Clock,
        session_timeout_ms: int,
        auth: Sequence[tuple[str, str]],
        path_of: Callable[[str], str],
        connected: Callable[[], None],
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.listener: ConnectionListener = _NoListener()
        self._clock = clock
        self._path_of = path_of
        self._on_connected = connected
        self._lock = threading.Lock()
        self._client = HookedClient(hosts, session_timeout_ms, tuple(auth), self, clock)
        self._running = False
        self._connected = False
        self._session = 0
        self._ended_session = 0
        self._acknowledged_sent_ms = -math.inf
        self._last_zxid = 0
        self._waiting: deque[KazooRequest] = deque()
        self._in_flight: dict[int, KazooRequest] = {}
        self._broken_off: list[KazooRequest] = []
        self._refusal: ZooKeeperError | None = None
        self._closed: Pending[None] | None = None
        self._close_reported = False
        self._close_finished = False

    # -- from any thread

    def start(self) -> bool:
        """Begins to connect. False when closed already: then nothing is started."""
        with self._lock:
            if self._closed is not None:
                return False
            self._running = True
            self._client.start_async()
        return True

    def session(self) -> int:
        return self._session

    def refusal(self) -> ZooKeeperError:
        """The error of a request that can't be made now, or None."""
        return self._refusal or SessionGone(self._ended_session)

    def acknowledged_sent_ms(self) -> float:
        return self._acknowledged_sent_ms

    def last_zxid(self) -> int:
        return self._last_zxid

    def multi_read(self) -> bool:
        """Return whether the connected server supports multi-read, as far as is known."""
        return bool(self._client._connection.multi_read)

    def refuse_multi_read(self) -> None:
        """On the connection thread: the server has said that it does not."""
        self._client._connection.refuse_multi_read()

    def request(self, opcode: int, body: bytes, parse: Parse, path: str, *, write: bool = False) -> Pending[Any]:
        """Sends a request in the present session, or keeps it for that session's reconnection."""
        sync_points.reach("zookeeper: request made")
        with self._lock:
            if self._session:
                request = KazooRequest(self, opcode, body, parse, path=path, session=self._session, write=write)
                self._waiting.append(request)
                self._pump()
                return request.pending
        return Pending.failed(self.refusal())

    def _pump(self) -> None:
        """Under the lock."""
        while self._connected and self._waiting and len(self._in_flight) < REQUESTS_IN_FLIGHT:
            request = self._waiting.popleft()
            self._in_flight[id(request)] = request
            self._client.submit(request)

    def close(self) -> Pending[None]:
        """Answers everything pending with SessionGone at once; answered itself when a server has confirmed the end, or
        after CLOSE_LIMIT_MS (the server then ends the session at its timeout)."""
        with self._lock:
            if self._closed is not None:
                return self._closed
            closed: Pending[None] = Pending()
            self._closed = closed
            self._connected = False
            self._end_session()
            abandoned = [*self._in_flight.values(), *self._broken_off, *self._waiting]
            self._waiting.clear()
            running = self._running
            if running:
                # kazoo's own stop() would wait here; its connection thread ends by itself once it sees these.
                self._client._stopped.set()
                self._client._queue.append((CloseInstance, None))
                self._client.wake()
        for request in abandoned:
            self._fail(request, SessionGone(request.session))
        if running:
            limit = self._clock.call_later(CLOSE_LIMIT_MS, self._give_up_closing)
            closed.on_done(limit.cancel)
        else:
            self._finish_closing()
        return closed

    def _give_up_closing(self) -> None:
        if self._running:
            logger.info("kazoo: the session's end was not confirmed in {:.0f} ms", CLOSE_LIMIT_MS)
            self._client.break_socket()
            self._finish_closing()

    def _finish_closing(self) -> None:
        """On the connection thread or the clock's, or both."""
        with self._lock:
            finished, self._close_finished = self._close_finished, True
            reported, self._close_reported = self._close_reported, True
        if not reported:
            self._report_state(SessionState.CLOSED)
        if not finished:
            assert self._closed is not None
            self._closed.resolve(None)

    # -- hooks: on the connection thread

    def leaving(self, state: Any) -> None:
        """Set the new state before kazoo fails pending requests, so that their callbacks see it."""
        sync_points.reach("zookeeper: state changes")
        with self._lock:
            was_connected, self._connected = self._connected, False
            session = self._session
            if was_connected:
                # What was made before the break shares the fate of what was sent; what is made from now on waits.
                self._broken_off = list(self._waiting)
                self._waiting.clear()
            if state == KeeperState.EXPIRED_SESSION:
                self._end_session()
            elif state == KeeperState.AUTH_FAILED:
                self._refusal = AuthenticationFailed("the server refused the credentials")
                self._end_session()
            quiet = self._closed is not None
        if quiet:
            return
        if state == KeeperState.EXPIRED_SESSION and session:
            self._report_state(SessionState.EXPIRED)
        elif state == KeeperState.CONNECTING and was_connected:
            self._report_state(SessionState.SUSPENDED)

    def entered(self, state: Any) -> None:
        sync_points.reach("zookeeper: requests fail")
        with self._lock:
            broken_off, self._broken_off = self._broken_off, []
            ended: list[KazooRequest] = []
            if not self._session:
                ended = list(self._waiting)
                self._waiting.clear()
        for request in broken_off:
            self._fail(request, _broken(request))
        for request in ended:
            self._fail(request, self._refusal or SessionGone(request.session))

    def connected(self) -> None:
        sync_points.reach("zookeeper: connected")
        with self._lock:
            if self._closed is not None:
                return
            self._establish()
        self._report_state(SessionState.CONNECTED)
        self._on_connected()

    def _establish(self) -> None:
        """Under the lock."""
        handler = self._client._connection
        self._session = self._client._session_id
        self.session_timeout_ms = handler.session_timeout_ms
        self._acknowledged_sent_ms = handler.handshake_sent_ms
        self._connected = True
        self._pump()

    def _end_session(self) -> None:
        """Under the lock."""
        if self._session:
            self._session, self._ended_session = 0, self._session
        self._acknowledged_sent_ms = -math.inf

    def watch_notified(self, kind: int, path: str) -> None:
        sync_points.reach("zookeeper: watch fired")
        if self._closed is None and kind in _WATCH_KINDS:
            event = WatchEvent(_WATCH_KINDS[kind], self._path_of(path))
            try:
                self.listener.watch_fired(event)
            except Exception:  # noqa: BLE001 - a listener's fault must not end the connection (KAFKA-6879)
                logger.exception("the connection's listener failed on {}", event)

    def acknowledged(self, sent_ms: float) -> None:
        with self._lock:
            if self._session:
                self._acknowledged_sent_ms = max(self._acknowledged_sent_ms, sent_ms)

    def stopped(self) -> None:
        """The connection thread ends: because of `close`, of refused credentials, or of a fault in kazoo."""
        with self._lock:
            self._running = False
            self._connected = False
            self._end_session()
            abandoned = [*self._in_flight.values(), *self._waiting]
            self._waiting.clear()
            closing = self._closed is not None
            if not closing and self._refusal is None:
                self._refusal = ZooKeeperError("kazoo's connection thread has ended")
        self._client.close()
        for request in abandoned:
            self._fail(request, self._refusal or SessionGone(request.session))
        if closing:
            self._finish_closing()
        else:
            logger.error("ZooKeeper connection ended: {}", self._refusal)
            self._close_reported = True
            self._report_state(SessionState.CLOSED)
            self._on_connected()

    # -- requests: on the connection thread

    def sent(self, request: KazooRequest) -> None:
        sync_points.reach("zookeeper: before a request is sent")
        request.sent_ms = self._clock.now_ms()

    def reply_zxid(self) -> int:
        return int(self._client.last_zxid)

    def answered(self, request: KazooRequest) -> None:
        sync_points.reach("zookeeper: answered")
        with self._lock:
            self._last_zxid = max(self._last_zxid, self._client.last_zxid)
            if request.session == self._session:
                self._acknowledged_sent_ms = max(self._acknowledged_sent_ms, request.sent_ms)
        if request.error is not None:
            self._fail(request, request.error)
        elif self._claim(request):
            self._answer(lambda: request.pending.resolve(request.result))

    def failed(self, request: KazooRequest) -> None:
        assert request.error is not None
        self._fail(request, self._refusal or request.error)

    def _claim(self, request: KazooRequest) -> bool:
        """Return whether the request is still unanswered (a close and a reply can race), and free its slot."""
        with self._lock:
            self._in_flight.pop(id(request), None)
            self._pump()
            claimed, request.claimed = request.claimed, True
        return not claimed

    def _fail(self, request: KazooRequest, error: BaseException) -> None:
        if self._claim(request):
            self._answer(lambda: request.pending.fail(error))

    def _answer(self, give: Callable[[], None]) -> None:
        try:
            give()
        except Exception:  # noqa: BLE001 - a callback's error must not end the connection (KAFKA-6879)
            logger.exception("a callback of a ZooKeeper request failed")

    def _report_state(self, state: SessionState) -> None:
        try:
            self.listener.session_state(state)
        except Exception:  # noqa: BLE001 - a listener's fault must not end the connection (KAFKA-6879)
            logger.exception("the connection's listener failed on {}", state)


def _broken(request: KazooRequest) -> ZooKeeperError:
    """What a request gets that the connection broke under, sent or not."""
    kind = UnknownOutcome if request.write else ConnectionLost
    return kind(f"the connection broke under {request!r}")
