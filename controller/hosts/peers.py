"""A broker's connections to other brokers, as a client: one request at a time, its answer, a deadline."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec

from controller.broker.settings import Address, address_text
from controller.clock import Clock, Future, Timer
from controller.core.channels import ControllerChannels, PeerError, PeerTimedOut, PeerUnreachable, ask_once
from controller.hosts.login import Login
from controller.hosts.network import NetworkThread
from controller.hosts.tls import TlsContext
from controller.protocol.codec import ApiKey, RequestHeader, read_response_header, request_head
from controller.protocol.errors import MalformedFrame, ProtocolError
from controller.protocol.framing import SIZE_BYTES, Frame, FrameBuffer, FrameMemory
from controller.trace import Noted, Trace
from controller.zookeeper.client import EventSink

PIECE_BYTES = 256 * 1024
"""A longer request is written in pieces, each once the socket has taken the one before: the transport copies what the
socket does not take, and the same bytes may be on their way to a thousand brokers."""

Outcome: TypeAlias = Frame | Exception


@dataclass(eq=False)
class SocketPeers:
    """`_dial` says where to connect to for an address (the settings' address map). `_tls`, `_login`: of a
    listener that has them."""

    network: NetworkThread
    _client_id: str
    _dial: Callable[[str, int], Address]
    _tls: TlsContext | None = None
    _login: Login | None = None

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        return ask_once(self.connect(host, port), api_key, api_version, body, timeout_ms)

    def connect(self, host: str, port: int, client_id: str | None = None) -> SocketConnection:
        return SocketConnection(
            self.network, client_id or self._client_id, (host, port), self._dial(host, port), self._tls, self._login
        )


def socket_channels(
    peers: SocketPeers,
    clock: Clock,
    events: EventSink,
    trace: Trace,
    *,
    request_timeout_ms: float,
    may_send: Callable[[], bool],
) -> ControllerChannels:
    """Return the controller's channels for one term, over sockets. `may_send`: see `ControllerChannels`."""
    return ControllerChannels(
        peers.connect,
        clock,
        events,
        request_timeout_ms=request_timeout_ms,
        may_send=may_send,
        submit=peers.network.call,
        guard=threading.Lock(),
        note=lambda level, message: trace.emit(Noted(level, message)),
    )


class SocketConnection:
    """See `PeerConnection`. `address` is what errors name, `dialled` where it is opened to.

    A request goes out and its answer is handed on without a turn of the loop in between: a follower asks over and
    over, and each turn costs a look at every socket.
    """

    def __init__(
        self,
        network: NetworkThread,
        client_id: str,
        address: Address,
        dialled: Address,
        tls: TlsContext | None = None,
        login: Login | None = None,
    ) -> None:
        self._login = login
        self._network = network
        self._client_id = client_id
        self._address = address
        self._dialled = dialled
        self._tls = tls
        self._link: PeerSocket | None = None
        self._opening: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._opened: Future[None] | None = None
        self._asking: _Asking | None = None
        self._late: tuple[type[PeerError], str, float] | None = None
        """While a connection or an answer is waited for: the error if it is late, which of the two, the limit in ms."""
        self._due_ms = math.inf
        self._timer: Timer | None = None
        """Set again when it runs, if what is waited for then is not due: most answers come long before that."""
        self._timer_ms = math.inf
        self._correlation_id = 0
        self._again_s: float | None = None
        """When to log in again, on the loop's clock."""
        self._over: PeerError | None = None
        """Why it is of no more use."""

    def open(self, timeout_ms: float) -> Future[None]:
        opened: Future[None] = Future()
        self._network.call(lambda: self._begin_opening(opened, timeout_ms))
        return opened

    def request(
        self, api_key: int, api_version: int, body: bytes, timeout_ms: float, rest: bytes = b""
    ) -> Future[bytes]:
        if self._asking is not None:
            raise RuntimeError(f"{self}: asked again before the answer")
        header = RequestHeader(ApiKey(api_key), api_version, self._correlation_id, self._client_id)
        self._correlation_id += 1
        self._asking = asking = _Asking(header, body, rest)
        self._network.call(lambda: self._begin(asking, timeout_ms))
        return asking.answer

    def close(self) -> None:
        self._network.call(lambda: self._end(PeerUnreachable(f"{self}: closed at this end")))

    # -- on the loop

    def _begin_opening(self, opened: Future[None], timeout_ms: float) -> None:
        self._opened = opened
        if self._over is not None:
            self._end(self._over)
        else:
            self._end_after(timeout_ms, PeerUnreachable, "connection")
            self._open_once()

    def _begin(self, asking: _Asking, timeout_ms: float) -> None:
        if self._over is not None:
            self._end(self._over)
            return
        self._end_after(timeout_ms, PeerTimedOut, "answer")
        if self._link is None:
            self._open_once()
        elif self._login is not None and self._again_s is not None and self._network.loop.time() >= self._again_s:
            again = self._send_after_login(self._login, self._link, asking)
            self._writing = self._network.loop.create_task(again)
        else:
            self._send(self._link, asking)

    def _end_after(self, timeout_ms: float, error: type[PeerError], what: str) -> None:
        self._late = error, what, timeout_ms
        self._due_ms = self._network.clock.now_ms() + timeout_ms
        if self._due_ms < self._timer_ms:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = self._due_ms
        clock = self._network.clock
        self._timer = clock.call_later(self._due_ms - clock.now_ms(), self._check_late)

    def _check_late(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        if self._late is None:
            return
        if self._network.clock.now_ms() < self._due_ms:
            self._set_timer()
            return
        error, what, timeout_ms = self._late
        self._end(error(f"{self}: no {what} in {timeout_ms:.0f} ms"))

    def _open_once(self) -> None:
        if self._opening is None:
            # Kept here, since the loop itself has only a weak reference.
            self._opening = self._network.loop.create_task(self._open())
            self._opening.add_done_callback(self._closed)

    async def _open(self) -> None:
        """Open the connection, and stay until it is over, so that what is waited for is answered when the loop ends."""
        link = await PeerSocket.connect(self._network.memory, self._dialled, self._tls, self._address[0])
        if self._login is not None:
            try:
                await self._log_in(self._login, link)
            except BaseException:
                link.close()
                raise
        self._link = link
        if self._opened is not None:
            opened, self._opened = self._opened, None
            self._late = None
            opened.resolve(None)
        elif self._asking is not None:
            self._send(link, self._asking)
        await self._network.loop.create_future()

    async def _log_in(self, login: Login, link: PeerSocket) -> None:
        after_ms = await login.on(partial(_asked, link))
        self._again_s = None if after_ms is None else self._network.loop.time() + after_ms / 1_000.0

    async def _send_after_login(self, login: Login, link: PeerSocket, asking: _Asking) -> None:
        """The session is about to end: log in again, on the same connection."""
        try:
            await self._log_in(login, link)
        except Exception as error:  # noqa: BLE001 - the connection broke, or the other broker refuses: who asks gets it
            self._end(PeerUnreachable(f"{self}: {error}"))
            return
        self._send(link, asking)

    def _closed(self, opening: asyncio.Task[None]) -> None:
        self._opening = None  # its error's traceback refers to this
        error = None if opening.cancelled() else opening.exception()
        why = "this broker's network is closed" if error is None else str(error)
        self._end(PeerUnreachable(f"{self}: {why}"))

    def _send(self, link: PeerSocket, asking: _Asking) -> None:
        link.expect(lambda outcome: self._answered(asking, outcome))
        size = len(asking.body) + len(asking.rest)
        head = framed_head(asking.header, size)
        if size <= PIECE_BYTES:
            link.write(head + asking.body + asking.rest)
        else:
            self._writing = self._network.loop.create_task(_write(link, head, asking.body, asking.rest))

    def _answered(self, asking: _Asking, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self._end(PeerUnreachable(f"{self}: {outcome}"))
            return
        try:
            body = body_of(asking.header, outcome)
        except ProtocolError as error:
            self._end(PeerUnreachable(f"{self}: {error}"))
            return
        self._asking = self._late = None
        asking.answer.resolve(body)

    def _end(self, why: PeerError) -> None:
        """The first reason counts, and is given from then on."""
        if self._over is None:
            self._over = why
        for task in (self._opening, self._writing):
            if task is not None:
                task.cancel()
        if self._link is not None:
            self._link.close()
        self._late = None
        if self._timer is not None:
            self._timer.cancel()
        opened, self._opened = self._opened, None
        asking, self._asking = self._asking, None
        if opened is not None:
            opened.fail(self._over)
        if asking is not None:
            asking.answer.fail(self._over)

    def __str__(self) -> str:
        return address_text(self._address)


class _Asking(msgspec.Struct):
    """One request that is under way."""

    header: RequestHeader
    body: bytes
    rest: bytes
    answer: Future[bytes] = msgspec.field(default_factory=Future)


async def _asked(link: PeerSocket, header: RequestHeader, body: bytes) -> bytes:
    """One request and its answer, before the connection is anyone's. Raises what broke it, ProtocolError."""
    answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def take(outcome: Outcome) -> None:
        if not answered.done():
            answered.set_result(outcome)

    link.expect(take)
    link.write(framed_head(header, len(body)) + body)
    outcome = await answered
    if isinstance(outcome, Exception):
        raise outcome
    return bytes(body_of(header, outcome))


async def _write(link: PeerSocket, *parts: bytes) -> None:
    """Write the parts, and stop if the connection breaks: the callback for the response gets the error."""
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            link.write(memoryview(part)[start : start + PIECE_BYTES])
            if not await link.drained():
                return


def framed_head(header: RequestHeader, body_bytes: int) -> bytes:
    """Return the bytes before a request's body: the frame's size and the header."""
    head = request_head(header)
    return (len(head) + body_bytes).to_bytes(SIZE_BYTES, "big") + head


def body_of(header: RequestHeader, frame: Frame) -> Any:
    """The body of the response to a request, of a Fetch perhaps a view. MalformedFrame, also for one to another."""
    answered, start = read_response_header(header.api_key, header.api_version, frame)
    if answered != header.correlation_id:
        raise MalformedFrame(f"the answer is to request {answered}, not to {header.correlation_id}")
    return frame[start:] if header.api_key is ApiKey.FETCH else bytes(frame[start:])


class PeerSocket(asyncio.BufferedProtocol):
    """The socket: what is written waits for it, and what comes is handed over when it is a whole frame."""

    def __init__(self, memory: FrameMemory) -> None:
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._frames = FrameBuffer(memory=memory)
        self._expected: Callable[[Outcome], None] | None = None
        self._broken: Exception | None = None

    @classmethod
    async def connect(
        cls, memory: FrameMemory, address: Address, tls: TlsContext | None = None, name: str | None = None
    ) -> PeerSocket:
        """`name`: what the certificate must be for, if it is checked."""
        context = None if tls is None else tls.current()
        server_hostname = name if context is not None else None
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: cls(memory), *address, ssl=context, server_hostname=server_hostname
        )
        return link

    # -- for the sender of requests

    def expect(self, expected: Callable[[Outcome], None]) -> None:
        """Set the callback for the next frame or connection error. On a broken connection it is called at once."""
        self._expected = expected
        if self._broken is not None:
            self._hand_over(self._broken)

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drained(self) -> bool:
        """Wait until the socket takes more. Return False if the connection is broken."""
        await self._writable.wait()
        return self._broken is None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or EOFError("the connection was closed at the other end"))

    def get_buffer(self, _wanted: int) -> memoryview:
        return self._frames.room or self._frames.begin()

    def buffer_updated(self, count: int) -> None:
        try:
            whole = self._frames.arrived(count)
        except MalformedFrame as error:
            self._refuse(error)
            return
        if self._expected is None or len(whole) > 1 or (whole and self._frames.is_within):
            self._refuse(MalformedFrame("received bytes without a request in flight"))
        elif whole:
            self._hand_over(whole[0])

    def _refuse(self, error: MalformedFrame) -> None:
        self._break(error)
        self.close()

    def _break(self, error: Exception) -> None:
        if self._broken is None:
            self._broken = error
        self._frames.clear()
        self._writable.set()
        self._hand_over(self._broken)

    def _hand_over(self, outcome: Outcome) -> None:
        expected, self._expected = self._expected, None
        if expected is not None:
            expected(outcome)
