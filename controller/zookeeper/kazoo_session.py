"""The parts of kazoo that the connection hooks into: client, connection handler, callback threads, log and requests.

kazoo still handles hosts, TCP, TLS, the handshake, authentication, heartbeats and reconnecting. It reports everything
to one `SessionHooks`, on the connection's thread, in the order of arrival from the socket. This uses kazoo below its
public interface, so the version is pinned. No rules about ZooKeeper here.

A `KazooRequest` is kazoo's request object and its async result in one. kazoo sends `type` and `serialize()`, gives the
reply to `deserialize` and then calls `set` or `set_exception`, all on its connection thread. An exception out of
`deserialize` would log the whole request, and one out of `set` end the connection thread, so both hand errors on as
values.
"""

from __future__ import annotations

import re
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionExpiredError,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.serialization import SASL, Connect, Watch
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from controller import sync_points
from controller.clock import Clock, Future
from controller.log import logger
from controller.zookeeper import jute, operations
from controller.zookeeper.digest_md5 import DigestClient, DigestFailed

Encrypt = Callable[[socket.socket, str], socket.socket]
"""(connected socket, host) -> the socket over TLS, with the handshake done. Raises OSError."""
Parse = Callable[[bytes, int, int], Any]
"""(message, where its body starts, the reply's zxid) -> the result."""

NOT_FROM_THE_SERVER = (ConnectionLoss, SessionExpiredError, AuthFailedError, ConnectionClosedError)
SESSION_EXPIRED, SESSION_MOVED, UNIMPLEMENTED = -112, -118, -6

_PATH_ERRORS = {code: error for error, code in jute.ERROR_CODES.items()}


class _UnlistedError(ZookeeperError):  # type: ignore[misc]
    """A server's error that kazoo does not list; meeting one it would end its connection thread."""


for _code in range(-130, 0):
    if _code not in EXCEPTIONS:
        EXCEPTIONS[_code] = type("_UnlistedError", (_UnlistedError,), {"code": _code})


def path_error(code: int, path: str) -> operations.ZooKeeperError:
    """A server's error code, about one path."""
    if code in _PATH_ERRORS:
        return _PATH_ERRORS[code](path)
    if code == UNIMPLEMENTED:
        return operations.UnsupportedOperation(f"{path}: the server does not know this request")
    return operations.ZooKeeperError(f"{path}: the server answered with error {code}")


class RequestOwner(Protocol):
    """The requests' view of the connection. Called on the connection thread."""

    def sent(self, request: KazooRequest) -> None: ...

    def reply_zxid(self) -> int:
        """The zxid of the reply that is being read."""

    def answered(self, request: KazooRequest) -> None:
        """The server has replied; `result` or `error` is set."""

    def failed(self, request: KazooRequest) -> None:
        """The connection or the session has gone; `error` is set."""


class KazooRequest(msgspec.Struct, eq=False):
    """One request. `path` is what it is about, for its error's sake (a batch's first)."""

    owner: RequestOwner
    type: int
    _body: bytes
    _parse: Parse
    path: str
    session: int
    write: bool = False
    pending: Future[Any] = msgspec.field(default_factory=Future)
    claimed: bool = False
    sent_ms: float = 0.0
    result: Any = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<request {self.type} of {len(self._body)} bytes: {self.path}>"

    # What kazoo calls.

    def serialize(self) -> bytes:
        self.owner.sent(self)
        return self._body

    def deserialize(self, message: bytes, offset: int) -> list[Any]:
        # A list, because kazoo walks over the results of opcode 14.
        try:
            self.result = self._parse(message, offset, self.owner.reply_zxid())
        except operations.ZooKeeperError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - raising here would log the request; its awaiter gets the error
            self.error = operations.ZooKeeperError(f"{self!r}: the reply can't be read: {error!r}")
            self.error.__cause__ = error
        return []

    def set(self, _result: object) -> None:
        self.owner.answered(self)

    def set_exception(self, exception: Exception) -> None:
        code = getattr(exception, "code", None)
        if code == SESSION_EXPIRED:
            self.error = operations.SessionGone(self.session)
            self.owner.failed(self)
        elif isinstance(exception, NOT_FROM_THE_SERVER) or code is None or code == SESSION_MOVED:
            self.error = (
                operations.UnknownOutcome(f"the connection broke under {self!r}")
                if self.write
                else operations.ConnectionLost(f"the connection broke under {self!r}")
            )
            self.owner.failed(self)
        else:
            self.error = path_error(code, self.path)
            self.owner.answered(self)


FIRST_RECONNECT_S, LONGEST_RECONNECT_S = 0.05, 0.5
HANDSHAKE_FRACTION = 0.25
"""Of the session timeout: how long a server may take to answer the handshake. One that has opened its port but does
not serve yet can leave it unanswered; kazoo would wait a whole session timeout for it, and lose the session."""
SHORTEST_HANDSHAKE_S, LONGEST_HANDSHAKE_S = 0.5, 2.0

SHORTEST_WAIT_S = 0.001
"""The shortest wait, because a socket timeout of 0 would mean not to wait at all."""
VERSION_DEADLINE_S = 0.25
"""The deadline for a server's version: it answers at once or, where that command is disabled, not at all."""
MULTI_READ_SINCE = (3, 6)

_VERSION = re.compile(rb"Zookeeper version: (\d+)\.(\d+)")


def ask_version(
    host: str, port: int, deadline_s: float = VERSION_DEADLINE_S, encrypt: Callable[[socket.socket], Any] | None = None
) -> tuple[int, int] | None:
    """Return the version in a server's `srvr` answer, asked on a connection of its own; None without one in time."""
    deadline = time.monotonic() + deadline_s
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=deadline_s) as plain:
            command = plain if encrypt is None else encrypt(plain)
            command.sendall(b"srvr")
            while _VERSION.search(answer) is None and (left_s := deadline - time.monotonic()) > 0:
                command.settimeout(left_s)
                if not (chunk := command.recv(4_096)):
                    break
                answer += chunk
    except OSError as error:
        logger.debug("kazoo: {}:{} did not report its version: {}", host, port, error)
    match = _VERSION.search(answer)
    return (int(match[1]), int(match[2])) if match else None


class SessionHooks(Protocol):
    """Called on kazoo's connection thread. Must not block."""

    def leaving(self, state: Any) -> None:
        """kazoo is about to change to this KeeperState and to fail what is pending."""

    def entered(self, state: Any) -> None:
        """kazoo has changed to this KeeperState and has failed what was pending."""

    def connected(self) -> None:
        """The session is there and its credentials have been accepted (kazoo's own CONNECTED comes before that)."""

    def watch_notified(self, kind: int, path: str) -> None: ...

    def acknowledged(self, sent_ms: float) -> None:
        """A ping or a handshake that was sent at that time has been answered."""

    def stopped(self) -> None:
        """The connection thread has ended; nothing comes after this."""


class KazooLog:
    """kazoo's log, written to the project's log.

    At DEBUG kazoo formats each request and reply, 500 operations at a time, so that level is not passed on at all.
    """

    def debug(self, *_: object) -> None:
        pass

    def log(self, *_: object) -> None:
        pass

    def info(self, message: str, *values: object) -> None:
        logger.debug("kazoo: {}", message % values if values else message)

    def warning(self, message: str, *values: object) -> None:
        logger.info("kazoo: {}", message % values if values else message)

    warn = warning

    def error(self, message: str, *values: object) -> None:
        logger.error("kazoo: {}", message % values if values else message)

    def exception(self, message: str, *values: object) -> None:
        logger.opt(exception=True).error("kazoo: {}", message % values if values else message)


class NoCallbackThreads(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo runs watches and completions on two threads of their own, between which ZooKeeper's order (a watch before
    the data it announces) is lost. Here both run on the connection's thread, so there is nothing to start."""

    def __init__(self, encrypt: Encrypt | None) -> None:
        super().__init__()
        self.encrypt = encrypt
        self._failure = ""

    def create_connection(self, *, address: Any, hostname: str, timeout: float, **_tls: object) -> Any:
        """A socket to a server, over TLS if there is a function that makes it so. Raises OSError."""
        plain = super().create_connection(address=address, timeout=timeout)
        if self.encrypt is None:
            return plain
        try:
            plain.settimeout(min(timeout, LONGEST_HANDSHAKE_S))
            encrypted = self.encrypt(plain, hostname)
        except OSError as error:
            plain.close()
            reason = f"{hostname}:{address[1]}: TLS with ZooKeeper failed: {error}"
            if reason != self._failure:  # it is tried again twice a second
                logger.warning("{}", reason)
            self._failure = reason
            raise
        self._failure = ""
        return encrypted

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def select(self, readable: Any, writable: Any, _: Any, timeout: float | None = None) -> Any:
        """As select.select. kazoo makes an epoll, fills it and closes it for each wait; a poll is one system call. What
        TLS has read and keeps the system does not see."""
        if held := [one for one in readable if hasattr(one, "pending") and one.pending()]:
            return held, [], []
        if not hasattr(select, "poll"):  # Windows
            return super().select(readable, writable, [], timeout)
        poll = select.poll()
        for events, sources in ((select.POLLIN, readable), (select.POLLOUT, writable)):
            for source in sources:
                poll.register(source, events)
        # The next read or write sees an error or a hang-up.
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1_000.0)}
        return tuple([one for one in sources if one.fileno() in ready] for sources in (readable, writable)) + ([],)


class HookedHandler(ConnectionHandler):  # type: ignore[misc]
    """Reports watches to the hooks as they arrive, and the send times of acknowledged requests."""

    def __init__(
        self, client: HookedClient, hooks: SessionHooks, clock: Clock, sasl: tuple[str, str] | None = None
    ) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._sasl = sasl or ("", "")
        self.sasl_options: dict[str, str] | None = None if sasl is None else {}  # kazoo authenticates if it is not None
        self._hooks = hooks
        self._clock = clock
        self._pings_sent_ms: deque[float] = deque()
        self.handshake_sent_ms = 0.0
        self.session_timeout_ms = 0
        self.multi_read = True
        self._address = ("", 0)
        self._multi_read_of: dict[tuple[str, int], bool] = {}

    def zk_loop(self) -> None:
        try:
            super().zk_loop()
        finally:
            self._hooks.stopped()

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        sync_points.reach("zookeeper: dialling")
        self._pings_sent_ms.clear()
        self._address = (hostip, port)
        known = self._multi_read_of.get(self._address)
        if known is None:
            # Trying it out would do harm: a server breaks the connection on which it gets a request it does not know.
            encrypt, deadline_s = self.client.handler.encrypt, VERSION_DEADLINE_S
            if encrypt is None:
                version = ask_version(hostip, port)
            else:
                version = ask_version(hostip, port, 4 * deadline_s, lambda plain: encrypt(plain, host))
            known = version is None or version >= MULTI_READ_SINCE
        self.multi_read = known
        timeouts = super()._connect(host, hostip, port)
        self._multi_read_of.setdefault(self._address, known)
        self._hooks.connected()
        return timeouts

    def _authenticate_with_sasl(self, _host: str, timeout: float) -> None:
        """By DIGEST-MD5, of our own: kazoo's needs another library. kazoo raises AuthFailedError where the server
        refuses."""
        user, password = self._sasl
        login = DigestClient(user, password, secrets.token_hex(16))
        try:
            challenge = self._sasl_exchange(1, b"", timeout)
            login.check(self._sasl_exchange(2, login.answer(challenge), timeout))
        except DigestFailed as failed:
            raise AuthFailedError(f"SASL with ZooKeeper: {failed}") from failed

    def _sasl_exchange(self, xid: int, message: bytes, timeout: float) -> bytes:
        self._submit(SASL(message), timeout, xid)
        try:
            header, answer, offset = self._read_header(timeout)
        except ConnectionDropped as error:  # some servers close the connection of a client that fails
            raise AuthFailedError("SASL with ZooKeeper: the server closed the connection") from error
        if header.err:
            raise EXCEPTIONS[header.err]()
        if header.xid != xid:
            raise ConnectionDropped(f"the answer to SASL has xid {header.xid}: expected {xid}")
        self.client.last_zxid = max(self.client.last_zxid, header.zxid)
        return SASL.deserialize(answer, offset)[0] or b""

    def refuse_multi_read(self) -> None:
        """This server turned out not to know the request."""
        self.multi_read = self._multi_read_of[self._address] = False

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        if self.client._stopped.is_set():
            # No session is made once the client is closing (KAFKA-8121).
            raise ConnectionDropped("closing")
        sync_points.reach("zookeeper: connecting")
        share_s = self.client._session_timeout / 1_000.0 * HANDSHAKE_FRACTION
        handshake_s = min(max(share_s, SHORTEST_HANDSHAKE_S), LONGEST_HANDSHAKE_S, timeout)
        self.handshake_sent_ms = self._clock.now_ms()
        answer, zxid = super()._invoke(handshake_s, request, xid)
        self.session_timeout_ms = answer.time_out
        return answer, zxid

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings_sent_ms.append(self._clock.now_ms())
        super()._send_ping(connect_timeout)

    def _read(self, length: int, timeout: float) -> bytes:
        """kazoo waits before each piece that it reads; the socket's own time-out does that only where it must."""
        if hasattr(self._socket, "pending"):  # TLS: what is there may be in its own buffer
            return bytes(super()._read(length, timeout))
        pieces = []
        with self._socket_error_handling():
            self._socket.settimeout(max(timeout, SHORTEST_WAIT_S))
            while length > 0:
                try:
                    piece = self._socket.recv(length)
                except TimeoutError as silence:
                    raise self.handler.timeout_exception("socket time-out during read") from silence
                if not piece:
                    raise ConnectionDropped("socket connection broken")
                pieces.append(piece)
                length -= len(piece)
        return b"".join(pieces)

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        if header.xid == PING_XID and self._pings_sent_ms:
            self._hooks.acknowledged(self._pings_sent_ms.popleft())
        return header, buffer, offset

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        # kazoo looks up callbacks registered with it here; the server notifies of nothing that was not asked for.
        watch, _ = Watch.deserialize(buffer, offset)
        self._hooks.watch_notified(watch.type, watch.path)


class HookedClient(KazooClient):  # type: ignore[misc]
    """Reports each change of state to the hooks, before and after kazoo acts on it."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        auth: tuple[tuple[str, str], ...],
        hooks: SessionHooks,
        clock: Clock,
        encrypt: Encrypt | None = None,
        sasl: tuple[str, str] | None = None,
    ) -> None:
        handler = NoCallbackThreads(encrypt)
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_ms / 1_000.0,
            handler=handler,
            auth_data=set(auth),
            connection_retry=KazooRetry(
                max_tries=-1, delay=FIRST_RECONNECT_S, max_delay=LONGEST_RECONNECT_S, sleep_func=handler.sleep_func
            ),
            logger=KazooLog(),
        )
        self._hooks = hooks
        self._connection = HookedHandler(self, hooks, clock, sasl)

    def _session_callback(self, state: Any) -> None:
        if state == self._state:
            return
        self._hooks.leaving(state)
        super()._session_callback(state)
        self._hooks.entered(state)

    def submit(self, request: Any) -> None:
        """Puts a request that is its own async result in kazoo's queue. The caller sees to it that the state is
        CONNECTED and stays so meanwhile (kazoo's own `_call` would let it slip into the next session)."""
        self._queue.append((request, request))
        self.wake()

    def wake(self) -> None:
        self._connection._write_sock.send(b"\0")

    def break_socket(self) -> None:
        """Ends a wait of the connection thread's on its socket at once."""
        open_socket = self._connection._socket
        if open_socket is not None:
            try:
                open_socket.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                logger.debug("kazoo: the connection was closed already: {}", error)


__all__ = ["HookedClient", "KeeperState", "SessionHooks"]
