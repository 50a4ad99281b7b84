"""One connection to the server: frames in, answers out in the order of the requests.

Requests are handled as they come, those that were sent ahead too, and answered in order, whatever order the answers
were ready in. A connection with too much unanswered, or that doesn't read its answers, is not read from until it has. A
frame over the size limit, or one that the broker has no answer to, closes its own connection.

Lives on the network's loop; answers may come from any thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias

from controller.broker.exchange import Respond
from controller.hosts.network import NetworkThread
from controller.hosts.sending import Outgoing, RangeCut
from controller.protocol.errors import MalformedFrame, ProtocolError
from controller.protocol.framing import FrameBuffer
from controller.protocol.records import Part

Receive: TypeAlias = Callable[[bytes, Respond, str], None]
"""(frame, respond, listener name); see `Broker.receive`."""

UNANSWERED_MAX = 100
"""Requests of one connection that may wait for their answers before it is read no further."""
UNANSWERED_BYTES = 16 * 1024 * 1024
"""And their bytes: the request that passes this is the last that is taken up."""
UNSENT_BYTES = 1024 * 1024
"""Of answers that the client has not taken, before it is read no further."""
READ_BYTES = 256 * 1024


class Host(Protocol):
    """What a connection asks of the server that it belongs to."""

    network: NetworkThread
    receive: Receive

    @property
    def idle_ms(self) -> int | None: ...

    @property
    def full(self) -> bool:
        """Whether requests that are held take as much as they may; who is stalled then is told when they don't."""

    def hold(self, size: int) -> None:
        """So many bytes more of requests (less, if negative)."""

    def stall(self, connection: Connection) -> None:
        """Calls `connection.go_on` once it is not full."""

    def closed(self, connection: Connection) -> None: ...

    def note(self, level: str, message: str) -> None: ...


class _Slot:
    """The place of one request's answer in its connection's order."""

    __slots__ = ("parts", "ready", "size")

    def __init__(self, size: int) -> None:
        self.parts: Sequence[Part] | None = None
        self.ready = False
        self.size = size


class Connection:
    """Begins to read at once."""

    def __init__(self, host: Host, sock: socket.socket, listener: str, request_bytes_max: int) -> None:
        self._host = host
        self._socket = sock
        self._listener = listener
        self._loop = host.network.loop
        self._buffer = FrameBuffer(request_bytes_max)
        self._frames: deque[bytes] = deque()
        self._slots: deque[_Slot] = deque()
        self._outgoing = Outgoing(sock)
        self._held = 0  # bytes of requests, as the host was told
        self._unanswered = 0  # bytes of those that were taken up
        self._reading = self._writing = self._taking = self._flushing = False
        self._ending = False  # nothing more is read; closed once what is there is sent
        self._closed = False
        self._active_s = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._watch_idle()
        self._throttle()

    def close(self) -> None:
        """At once; what the socket takes now of the answers that were given still goes out. Safe to call twice."""
        if self._closed:
            return
        with suppress(OSError, RangeCut):  # it ends either way
            self._outgoing.send()
        self._dispose()

    def go_on(self) -> None:
        """The server has room again."""
        self._throttle()

    # -- in

    def _readable(self) -> None:
        if self._host.full and not self._buffer.begun_bytes:
            self._throttle()
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset by the other end, which is how clients go, too
            data = b""
        if not data:
            self._dispose()
            return
        self._active_s = self._loop.time()
        begun = self._buffer.begun_bytes
        try:
            frames = self._buffer.feed(data)
        except MalformedFrame as error:
            self._host.note("warning", f"connection closed: {error}")
            self.close()
            return
        self._hold(sum(map(len, frames)) + self._buffer.begun_bytes - begun)
        self._frames.extend(frames)
        self._take()

    def _take(self) -> None:
        """Hands over what may be handed over, and sends what was answered at once, together."""
        self._taking = True
        try:
            while self._frames and self._has_room() and not self._ending:
                frame = self._frames.popleft()
                slot = _Slot(len(frame))
                self._slots.append(slot)
                self._unanswered += slot.size
                self._host.receive(frame, partial(self._answer, slot), self._listener)
                if not (self._frames and self._has_room()):
                    self._flush()
        finally:
            self._taking = False
        self._throttle()

    def _has_room(self) -> bool:
        return (
            len(self._slots) < UNANSWERED_MAX
            and self._unanswered < UNANSWERED_BYTES
            and self._outgoing.left_bytes < UNSENT_BYTES
        )

    def _throttle(self) -> None:
        if self._closed:
            return
        wanted = not (self._ending or self._frames) and self._has_room()
        if wanted and self._host.full and not self._buffer.begun_bytes:
            # One that is within a request reads on, since nobody's room would be given back otherwise.
            self._host.stall(self)
            wanted = False
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._socket, self._readable)
            else:
                self._loop.remove_reader(self._socket)

    def _hold(self, size: int) -> None:
        self._held += size
        self._host.hold(size)

    # -- out

    def _answer(self, slot: _Slot, parts: Sequence[Part] | None) -> None:
        """On any thread: a controller answers on its own."""
        self._host.network.call(partial(self._fill, slot, parts))

    def _fill(self, slot: _Slot, parts: Sequence[Part] | None) -> None:
        slot.parts, slot.ready = parts, True
        if self._taking or self._flushing or self._closed or self._slots[0] is not slot:
            return
        # When the loop comes round: what else is answered meanwhile goes out together with this.
        self._flushing = True
        self._loop.call_soon(self._flush_answers)

    def _flush_answers(self) -> None:
        self._flushing = False
        if not self._closed:
            self._flush()
            self._take()

    def _flush(self) -> None:
        """Sends the answers whose turn it is."""
        try:
            while self._slots and self._slots[0].ready and not self._ending:
                slot = self._slots.popleft()
                self._unanswered -= slot.size
                self._hold(-slot.size)
                if slot.parts is None:
                    self._ending = True
                elif slot.parts:
                    self._outgoing.put(slot.parts)
        except (RangeCut, ProtocolError, OSError) as error:
            self._host.note("warning", f"connection closed: {error}")
            self._dispose()
            return
        self._send()

    def _send(self) -> None:
        before = self._outgoing.left_bytes
        try:
            self._outgoing.send()
        except RangeCut as error:
            self._host.note("warning", f"connection closed: {error}")
            self._dispose()
            return
        except OSError:  # the other end is gone
            self._dispose()
            return
        if self._outgoing.left_bytes < before:
            self._active_s = self._loop.time()
        if self._ending and not self._outgoing.left_bytes:
            self._dispose()
            return
        wanted = self._outgoing.left_bytes > 0
        if wanted is not self._writing:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self._socket, self._writable)
            else:
                self._loop.remove_writer(self._socket)

    def _writable(self) -> None:
        self._send()
        if not self._closed:
            self._take()

    # -- end

    def _watch_idle(self) -> None:
        idle_ms = self._host.idle_ms
        if idle_ms is None:
            return
        idle_s = idle_ms / 1_000.0
        owed = bool(self._slots) and not self._outgoing.left_bytes
        since_s = self._loop.time() if owed or not (self._reading or self._writing) else self._active_s
        if self._idle_timer is not None and self._loop.time() - since_s >= idle_s:
            self._host.note("info", f"connection closed: idle for {idle_ms} ms")
            self._dispose()
            return
        self._idle_timer = self._loop.call_at(since_s + idle_s, self._watch_idle)

    def _dispose(self) -> None:
        if self._closed:
            return
        self._closed = self._ending = True
        if self._reading:
            self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._socket.close()
        self._frames.clear()
        self._slots.clear()
        self._hold(-self._held)
        self._host.closed(self)
