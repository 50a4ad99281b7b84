"""The socket server: frames in from many connections, answers out in the order of each connection's requests.

A connection may send requests ahead of the answers; they are handled as they come and answered in order, whatever
order the answers were ready in. One with too much unanswered, or that doesn't read its answers, is not read from until
it has. A frame over the size limit, or one that the broker has no answer to, closes its own connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from controller.broker.exchange import Respond
from controller.broker.setting_types import Listener
from controller.hosts.network import NetworkThread
from controller.protocol.errors import MalformedFrame
from controller.protocol.framing import FrameBuffer, framed
from controller.protocol.records import Part, joined
from controller.trace import Noted, Trace

Receive: TypeAlias = Callable[[bytes, Respond, str], None]
"""(frame, respond, listener name); see `Broker.receive`."""

UNANSWERED_MAX = 100
"""Requests of one connection that may wait for their answers before it is read no further."""
BACKLOG = 128


class CannotListen(OSError):
    """A listener's address can't be had; names both."""


class _Slot:
    """The place of one request's answer in its connection's order."""

    __slots__ = ("parts", "ready")

    def __init__(self) -> None:
        self.parts: Sequence[Part] | None = None
        self.ready = False


class _Connection(asyncio.Protocol):
    def __init__(self, server: Server, listener: str) -> None:
        self._server = server
        self._listener = listener
        self._buffer = FrameBuffer(server.request_bytes_max)
        self._frames: deque[bytes] = deque()
        self._slots: deque[_Slot] = deque()
        self._transport: asyncio.Transport | None = None
        self._writable = True
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._frames.clear()
        self._slots.clear()
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._frames.extend(self._buffer.feed(data))
        except MalformedFrame as error:
            self._server.note("warning", f"connection closed: {error}")
            self.close()
            return
        self._take()

    def pause_writing(self) -> None:
        self._writable = False
        self._throttle()

    def resume_writing(self) -> None:
        self._writable = True
        self._take()

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _take(self) -> None:
        while self._frames and self._has_room() and not self._closing:
            frame = self._frames.popleft()
            slot = _Slot()
            self._slots.append(slot)
            self._server.receive(frame, lambda answer, slot=slot: self._answer(slot, answer), self._listener)  # type: ignore[misc]
        self._throttle()

    def _has_room(self) -> bool:
        return self._writable and len(self._slots) < UNANSWERED_MAX

    def _throttle(self) -> None:
        if self._transport is None or self._closing:
            return
        if self._has_room():
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _answer(self, slot: _Slot, parts: Sequence[Part] | None) -> None:
        """On any thread: a controller answers on its own."""
        self._server.network.call(lambda: self._fill(slot, parts))

    def _fill(self, slot: _Slot, parts: Sequence[Part] | None) -> None:
        slot.parts, slot.ready = parts, True
        assert self._transport is not None
        while self._slots and self._slots[0].ready and not self._closing:
            answer = self._slots.popleft().parts
            if answer is None:
                self.close()
            elif answer:
                self._transport.write(framed(joined(answer)))
        if not self._closing and self._frames:
            # From the loop and not from here: an answer given at once would come back here, one frame deeper each.
            self._server.network.loop.call_soon(self._take)
        else:
            self._throttle()


@dataclass(slots=True)
class _Bound:
    listener: Listener
    socket: socket.socket
    server: asyncio.Server | None = None


class Server:
    """`bind` takes the addresses, `serve` begins to accept, `close` ends it all. `receive` is called on the network's
    loop, one frame at a time."""

    def __init__(self, network: NetworkThread, request_bytes_max: int, trace: Trace) -> None:
        self.network = network
        self.request_bytes_max = request_bytes_max
        self.connections: set[_Connection] = set()
        self.receive: Receive = lambda _frame, respond, _listener: respond(None)
        self._trace = trace
        self._bound: list[_Bound] = []

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
            name = bound.listener.name
            bound.server = await loop.create_server(
                lambda name=name: _Connection(self, name),  # type: ignore[misc]
                sock=bound.socket,
                backlog=BACKLOG,
            )

    def close(self) -> None:
        """No connection is accepted any more, and those that are there are closed."""
        if self.network.loop.is_running():
            self.network.run(self._close(), timeout_s=10.0)
        self._release()

    async def _close(self) -> None:
        for bound in self._bound:
            if bound.server is not None:
                bound.server.close()
        for connection in list(self.connections):
            connection.close()

    def _release(self) -> None:
        for bound in self._bound:
            bound.socket.close()
        self._bound.clear()

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
