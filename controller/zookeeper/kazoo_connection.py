"""A `ZooKeeperConnection` to a real ZooKeeper: the port's requests, as bytes, over a `KazooLink`.

kazoo offers no multi-read and no SetWatches, and builds an object a row; so the requests are our own (`jute.py`), and
kazoo carries them. `KazooConnection` handles paths, the chroot, access lists and servers that are too old.

`KazooLink` is one session: its requests, queued, in flight or acknowledged, and its end. It connects the requests,
which any thread makes, with kazoo's connection thread, which sends them and makes all callbacks. A request belongs to
the session in which it was made and is never sent in another. The lock is never held during a callback, and no callback
is waited for (KAFKA-6517, KAFKA-6879).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import CloseInstance
from msgspec.structs import replace

from controller import sync_points
from controller.clock import Clock, Future, spawn
from controller.log import logger
from controller.zookeeper import jute
from controller.zookeeper.kazoo_session import Encrypt, HookedClient, KazooRequest, KeeperState, Parse, path_error
from controller.zookeeper.operations import (
    ACL,
    BATCH,
    LONGEST_READ,
    OPEN_ACL,
    AuthenticationFailed,
    Columns,
    ConnectionListener,
    ConnectionLost,
    Create,
    Listing,
    MultiFailed,
    NodeExists,
    NoNode,
    ReadResult,
    SessionGone,
    SessionState,
    UnknownOutcome,
    UnsupportedOperation,
    WatchEvent,
    WatchKind,
    Write,
    WriteResults,
    Znode,
    ZooKeeperError,
)
from controller.zookeeper.paths import partitions as parent_of_partitions
from controller.zookeeper.paths import validate_new_path, validate_path, validate_paths
from controller.zookeeper.row_writes import FencedSets, StatePaths

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
        encrypt: Encrypt | None = None,
        sasl: tuple[str, str] | None = None,
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.listener: ConnectionListener = _NoListener()
        self._clock = clock
        self._path_of = path_of
        self._on_connected = connected
        self._lock = threading.Lock()
        self._client = HookedClient(hosts, session_timeout_ms, tuple(auth), self, clock, encrypt, sasl)
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
        self._closed: Future[None] | None = None
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

    def request(self, opcode: int, body: bytes, parse: Parse, path: str, *, write: bool = False) -> Future[Any]:
        """Sends a request in the present session, or keeps it for that session's reconnection."""
        sync_points.reach("zookeeper: request made")
        with self._lock:
            if self._session:
                request = KazooRequest(self, opcode, body, parse, path=path, session=self._session, write=write)
                self._waiting.append(request)
                self._pump()
                return request.pending
        return Future.failed(self.refusal())

    def _pump(self) -> None:
        """Under the lock."""
        while self._connected and self._waiting and len(self._in_flight) < REQUESTS_IN_FLIGHT:
            request = self._waiting.popleft()
            self._in_flight[id(request)] = request
            self._client.submit(request)

    def close(self) -> Future[None]:
        """Answers everything pending with SessionGone at once; answered itself when a server has confirmed the end, or
        after CLOSE_LIMIT_MS (the server then ends the session at its timeout)."""
        with self._lock:
            if self._closed is not None:
                return self._closed
            closed: Future[None] = Future()
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


T = TypeVar("T")


class KazooConnection:
    """`hosts` is a connect string ("host:port,host:port/chroot"); `auth` are (scheme, credential) pairs, as
    ("digest", "user:password"); `default_acl` is that of creates which name none, unless `acl_of` says which one a path
    gets. With `create_chroot` the chroot's own znode and those above it are made, where they are missing, before
    `start` is answered. `encrypt` takes each connection through TLS; `sasl` are a user and a password for DIGEST-MD5.
    ValueError for a connect string that is none.

    `start` fails with AuthenticationFailed when the server refuses the credentials, and with a path's error when the
    chroot can't be made; otherwise it waits for as long as it takes.
    """

    def __init__(
        self,
        hosts: str,
        clock: Clock,
        session_timeout_ms: int = 18_000,
        *,
        auth: Sequence[tuple[str, str]] = (),
        default_acl: Sequence[ACL] = OPEN_ACL,
        acl_of: Callable[[str], tuple[ACL, ...]] | None = None,
        create_chroot: bool = False,
        encrypt: Encrypt | None = None,
        sasl: tuple[str, str] | None = None,
    ) -> None:
        servers, chroot = collect_hosts(hosts)
        self._chroot = (chroot or "").rstrip("/")
        if self._chroot:
            validate_path(self._chroot)
        self._create_chroot = create_chroot and bool(self._chroot)
        self._default_acl = tuple(default_acl)
        self._acl_of = acl_of
        self._started = False
        self._starting: list[Future[int]] = []
        hosts_only = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers)
        path_of = partial(jute.stripped, self._chroot)
        self._link = KazooLink(hosts_only, clock, session_timeout_ms, auth, path_of, self._connected, encrypt, sasl)

    @property
    def session_timeout_ms(self) -> int:
        return self._link.session_timeout_ms

    # -- the session

    def listen(self, listener: ConnectionListener) -> None:
        self._link.listener = listener

    def start(self) -> Future[int]:
        if self._started:
            raise RuntimeError("a connection is started once")
        self._started = True
        begun: Future[int] = Future()
        self._starting.append(begun)
        if not self._link.start():
            self._begun(SessionGone(0))
        return begun

    def close(self) -> Future[None]:
        session = self._link.session()
        closed = self._link.close()
        self._begun(SessionGone(session))
        return closed

    def _begun(self, outcome: int | BaseException) -> None:
        """Answers `start`, once: popping is atomic, and close can meet the first connection."""
        try:
            begun = self._starting.pop()
        except IndexError:
            return
        if isinstance(outcome, BaseException):
            begun.fail(outcome)
        else:
            begun.resolve(outcome)

    def _connected(self) -> None:
        """On the connection thread, with each connection; also when it has ended unasked."""
        session = self._link.session()
        if not self._starting:
            return
        if not session:
            self._begun(self._link.refusal())
            return
        made = spawn(self._make_chroot())

        def ready() -> None:
            if made.error is None:
                self._begun(session)
            elif not isinstance(made.error, ConnectionLost | UnknownOutcome | SessionGone):
                self._begun(made.error)  # otherwise the next connection tries again

        made.on_done(ready)

    async def _make_chroot(self) -> None:
        if not self._create_chroot or (await self.read(["/"])).rows[0] is not None:
            return
        names = self._chroot[1:].split("/")
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            try:
                await self._multi([Create(path, None)], chroot="")
            except MultiFailed as failed:
                if not isinstance(failed.error, NodeExists):
                    raise failed.error from failed
        self._create_chroot = False

    def session(self) -> int:
        return self._link.session()

    def acknowledged_sent_ms(self) -> float:
        return self._link.acknowledged_sent_ms()

    def last_zxid(self) -> int:
        return self._link.last_zxid()

    # -- reads

    def read(self, paths: Sequence[str]) -> Future[ReadResult]:
        return spawn(self._read(_batch(paths)))

    async def _read(self, paths: Sequence[str]) -> ReadResult:
        def parse(message: bytes, offset: int, zxid: int) -> ReadResult:
            return ReadResult(jute.read_rows(message, offset, paths, path_error), zxid)

        many = await self._multi_read_of(jute.GET_DATA, paths, parse)
        return many or ReadResult(*await self._each(jute.GET_DATA, paths, _parse_row))

    def read_columns(self, paths: Sequence[str]) -> Future[Columns]:
        if isinstance(paths, StatePaths) and len(paths) <= LONGEST_READ:
            validate_paths(_parents_of(paths))
            return spawn(self._read_columns(paths))
        return spawn(self._read_columns(_batch(paths, LONGEST_READ)))

    async def _read_columns(self, paths: Sequence[str]) -> Columns:
        def parse(message: bytes, offset: int, zxid: int) -> Columns:
            return jute.read_columns(message, offset, paths, zxid, path_error)

        many = await self._multi_read_of(jute.GET_DATA, paths, parse)
        return many or jute.columns_of(*await self._each(jute.GET_DATA, paths, _parse_row))

    def children(self, paths: Sequence[str]) -> Future[Listing]:
        return spawn(self._list(_batch(paths)))

    async def _list(self, paths: Sequence[str]) -> Listing:
        def parse(message: bytes, offset: int, zxid: int) -> Listing:
            return Listing(jute.read_listings(message, offset, paths, path_error), zxid)

        many = await self._multi_read_of(jute.GET_CHILDREN, paths, parse)
        return many or Listing(*await self._each(jute.GET_CHILDREN, paths, _parse_names))

    async def _multi_read_of(
        self, opcode: int, paths: Sequence[str], parse: Callable[[bytes, int, int], T]
    ) -> T | None:
        """Send one multi-read; return None if the server is older than 3.6.

        An older server that did not report its version closes the connection on this request.
        """
        if not self._link.multi_read():
            return None
        if isinstance(paths, StatePaths) and opcode == jute.GET_DATA:
            body = jute.multi_read_states(paths.topics, self._chroot)
        else:
            body = jute.multi_read(opcode, self._prefixed(paths))
        try:
            many: T = await self._link.request(jute.MULTI_READ, body, parse, paths[0] if paths else "/")
        except UnsupportedOperation:
            self._link.refuse_multi_read()
            return None
        return many

    async def _each(
        self, opcode: int, paths: Sequence[str], parse: Callable[[str, bytes, int], T]
    ) -> tuple[tuple[T | None, ...], int]:
        """Reads one by one, pipelined; what was read, and the zxid of the first reply."""

        def request(path: str) -> Future[tuple[T, int]]:
            def parse_one(message: bytes, offset: int, zxid: int) -> tuple[T, int]:
                return parse(path, message, offset), zxid

            body = jute.path_and_watch(jute.prefixed(self._chroot, path), watch=False)
            return self._link.request(opcode, body, parse_one, path)

        sent = [request(path) for path in paths]
        found: list[T | None] = []
        zxid = self.last_zxid()
        for answer in sent:
            try:
                value, seen = await answer
            except NoNode:
                found.append(None)
            else:
                found.append(value)
                zxid = min(zxid, seen)
        return tuple(found), zxid

    # -- writes and watches

    def multi(self, operations: Sequence[Write]) -> Future[WriteResults]:
        if isinstance(operations, FencedSets):
            validate_paths([operations.fence.path, *_parents_of(operations.sets.paths)])
            return self._multi(operations, self._chroot)
        sequential = [one.path for one in operations if isinstance(one, Create) and one.sequential]
        if sequential:
            for path in sequential:
                validate_new_path(path, sequential=True)
            named = [one.path for one in operations if not (isinstance(one, Create) and one.sequential)]
        else:
            named = [one.path for one in operations]
        validate_paths(named)
        return self._multi(tuple(operations), self._chroot)

    def _multi(self, operations: Sequence[Write], chroot: str) -> Future[WriteResults]:
        def parse(message: bytes, offset: int, _zxid: int) -> WriteResults:
            results, index, code = jute.read_multi(message, offset, len(operations))
            if code:
                raise MultiFailed(index, path_error(code, operations[index].path))
            if isinstance(operations, FencedSets):
                return results
            return tuple(jute.stripped(chroot, result) if isinstance(result, str) else result for result in results)

        if isinstance(operations, FencedSets):
            body = jute.multi_set_states(operations.fence, operations.sets, chroot)
        else:
            body = jute.multi(self._with_acls(operations), self._default_acl, chroot)
        path = operations[0].path if operations else "/"
        return self._link.request(jute.MULTI, body, parse, path, write=True)

    def _with_acls(self, operations: Sequence[Write]) -> Sequence[Write]:
        acl_of = self._acl_of
        if acl_of is None:
            return operations
        return [
            replace(one, acl=acl_of(one.path)) if isinstance(one, Create) and one.acl is None else one
            for one in operations
        ]

    def acl(self, path: str) -> Future[tuple[ACL, ...]]:
        """A znode's ACL. NoNode."""
        validate_path(path)

        def parse(message: bytes, offset: int, _zxid: int) -> tuple[ACL, ...]:
            return jute.read_acl(message, offset)

        body = jute.string(jute.prefixed(self._chroot, path))
        return self._link.request(jute.GET_ACL, body, parse, path)

    def set_watches(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Future[None]:
        lists = []
        for paths in (data, exists, children):
            validate_paths(paths)
            lists.append(self._prefixed(paths))
        return self._link.request(jute.SET_WATCHES, jute.set_watches(since_zxid, *lists), _nothing, "/")

    def watch(self, nodes: Sequence[str], children: Sequence[str]) -> Future[None]:
        validate_paths(nodes)
        validate_paths(children)
        kinds = [(jute.EXISTS, path) for path in nodes] + [(jute.GET_CHILDREN, path) for path in children]
        sent = [
            self._link.request(
                opcode, jute.path_and_watch(jute.prefixed(self._chroot, path), watch=True), _nothing, path
            )
            for opcode, path in kinds
        ]
        return spawn(_all_armed(sent))

    def sync(self, path: str) -> Future[None]:
        validate_path(path)
        return self._link.request(jute.SYNC, jute.string(jute.prefixed(self._chroot, path)), _nothing, path)

    def _prefixed(self, paths: Sequence[str]) -> Sequence[str]:
        return [jute.prefixed(self._chroot, path) for path in paths] if self._chroot else paths


async def _all_armed(sent: Sequence[Future[None]]) -> None:
    for answer in sent:
        try:
            await answer
        except NoNode:
            continue  # a children watch on a node that is not there is not armed


def _parse_row(path: str, message: bytes, offset: int) -> Znode:
    data, offset = jute.read_data(message, offset)
    return Znode(path, data, jute.read_stat(message, offset))


def _parse_names(_path: str, message: bytes, offset: int) -> tuple[str, ...]:
    return jute.read_names(message, offset)[0]


def _parents_of(paths: StatePaths) -> list[str]:
    """What is to be validated of them: what follows is numbers and a fixed name."""
    return [parent_of_partitions(name) for name, _ in paths.topics]


def _nothing(_message: bytes, _offset: int, _zxid: int) -> None:
    return None


def _batch(paths: Sequence[str], most: int = BATCH) -> tuple[str, ...]:
    if len(paths) > most:
        raise ValueError(f"{len(paths)} paths in one request: expected at most {most}")
    validate_paths(paths)
    return tuple(paths)
