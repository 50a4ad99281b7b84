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

from controller.broker.request_context import Respond, Steps
from controller.hosts.network import NetworkThread
from controller.hosts.sending import Outgoing, RangeCut
from controller.hosts.turns import TURN_S, Turns, Working
from controller.protocol.errors import MalformedFrame, ProtocolError
from controller.protocol.framing import FrameBuffer
from controller.protocol.records import Part

Receive: TypeAlias = Callable[[bytes, Respond, str], Steps | None]
"""(frame, respond, listener name); see `Broker.begin`."""

UNANSWERED_MAX = 100
"""Requests of one connection that may wait for their answers before it is read no further."""
UNANSWERED_BYTES = 16 * 1024 * 1024
"""And their bytes: the request that passes this is the last that is taken up."""
UNSENT_BYTES = 1024 * 1024
"""The maximum size of responses that the client has not read. Beyond it the server stops reading from the client."""
READ_BYTES = 256 * 1024
"""The size of reads of a large request that has begun to arrive."""
FIRST_BYTES = 2 * 1024
"""The size of reads of small requests. It is small because there may be hundreds of connections that each send many:
all of them are read before the next request of any is handled."""
LARGE_BYTES = 64 * 1024
"""A request that announces more waits while large ones that have begun to arrive hold as much as they may."""


class Host(Protocol):
    """The interface that a connection uses of its server."""

    network: NetworkThread
    receive: Receive
    turns: Turns

    @property
    def idle_ms(self) -> int | None: ...

    @property
    def stall_ms(self) -> int:
        """How long a partly received request may bring no byte."""

    @property
    def full(self) -> bool:
        """True if the held requests have reached their limit. Below the limit, stalled connections are resumed."""

    def hold(self, size: int) -> None:
        """Add `size` bytes to the total of the held requests (subtract them, if negative)."""

    def stall(self, connection: Connection) -> None:
        """Calls `connection.go_on` once it is not full."""

    def begin_large(self, connection: Connection) -> None:
        """A large request has begun to arrive on it."""

    def end_large(self, connection: Connection) -> None:
        """Note that the large request is complete, or its connection closed."""

    def may_go_on(self, connection: Connection) -> bool:
        """Return True if there is memory for more of the large request. If not, `connection.go_on` is called later."""

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
        self._held = 0  # bytes of requests, as reported to the host
        self._unanswered = 0  # bytes of those that were taken up
        self._reading = self._writing = self._taking = self._flushing = False
        self._working: Working | None = None  # a request that takes several slices; the next one waits for it
        self._waiting = False  # for its turn
        self._arriving = False  # what has arrived waits to be read
        self._is_large = False
        self.arrived_bytes = 0
        """Of the request that has begun to arrive."""
        self._ending = False  # nothing more is read; closed once what is there is sent
        self._closed = False
        self._active_s = self._loop.time()
        self._arrived_s = self._active_s
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
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
        if self._arriving:
            return
        self._arriving = True
        self._host.turns.arrive(self._read)
        if self._arriving and self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)

    def _read(self) -> None:
        self._arriving = False
        if self._closed:
            return
        if not self._may_read():
            self._throttle()
            return
        try:
            data = self._socket.recv(READ_BYTES if self._buffer.begun_bytes > FIRST_BYTES else FIRST_BYTES)
        except (BlockingIOError, InterruptedError):
            self._throttle()
            return
        except OSError:  # reset by the other end, which is how clients go, too
            data = b""
        if not data:
            self._dispose()
            return
        self._active_s = self._loop.time()
        try:
            frames = self._buffer.feed(data)
        except MalformedFrame as error:
            self._host.note("warning", f"connection closed: {error}")
            self.close()
            return
        arrived = self._buffer.arrived_bytes
        self._hold(sum(map(len, frames)) + arrived - self.arrived_bytes)
        self.arrived_bytes = arrived
        self._note_large()
        self._arrived_s = self._active_s
        if self._stall_timer is None and self._buffer.is_within:
            self._stall_timer = self._loop.call_later(self._host.stall_ms / 1_000.0, self._watch_stall)
        self._frames.extend(frames)
        if self._waiting:
            self._throttle()
        else:
            self._take(one=True)

    def _note_large(self) -> None:
        is_large = self._buffer.begun_bytes > LARGE_BYTES
        if is_large is not self._is_large:
            self._is_large = is_large
            if is_large:
                self._host.begin_large(self)
            else:
                self._host.end_large(self)

    def _may_read(self) -> bool:
        """Return True if the connection may read. A partly received request is read to its end: its memory is freed
        only after it was answered."""
        if self._is_large:
            return self._host.may_go_on(self)
        return bool(self._buffer.begun_bytes) or not self._host.full

    def _take(self, *, one: bool = False) -> None:
        """Hands over what may be handed over while it is this connection's turn, or `one` request, and sends what was
        answered at once, together."""
        until = self._loop.time() + (0.0 if one else TURN_S)
        self._taking = True
        try:
            while self._may_hand_over():
                frame = self._frames.popleft()
                slot = _Slot(len(frame))
                self._slots.append(slot)
                self._unanswered += slot.size
                steps = self._host.receive(frame, partial(self._answer, slot), self._listener)
                del frame
                if steps is not None:
                    self._working = self._host.turns.work(steps, self._worked)
                is_over = self._loop.time() >= until
                if is_over or not self._may_hand_over():
                    self._flush()
                if is_over:
                    break
        finally:
            self._taking = False
        if self._may_hand_over() and not self._waiting:
            self._waiting = True
            self._host.turns.wait(self._turn)
        self._throttle()

    def _turn(self) -> None:
        self._waiting = False
        if not self._closed:
            self._take()

    def _worked(self) -> None:
        """The request that took several slices has been handled; its answer may come later."""
        self._working = None
        if not (self._closed or self._waiting):
            self._take()

    def _may_hand_over(self) -> bool:
        return bool(self._frames) and not (self._ending or self._working) and self._has_room()

    def _has_room(self) -> bool:
        return (
            len(self._slots) < UNANSWERED_MAX
            and self._unanswered < UNANSWERED_BYTES
            and self._outgoing.left_bytes < UNSENT_BYTES
        )

    def _throttle(self) -> None:
        if self._closed:
            return
        wanted = not (self._ending or self._frames or self._arriving) and self._has_room()
        if wanted and not self._may_read():
            if not self._is_large:
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
            if not self._waiting:
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
        if not (self._closed or self._waiting):
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

    def _watch_stall(self) -> None:
        """While a request has begun to arrive. The time when this connection is not read does not count."""
        self._stall_timer = None
        if self._closed or not self._buffer.is_within:
            return
        now_s, stall_ms = self._loop.time(), self._host.stall_ms
        since_s = self._arrived_s if self._reading else now_s
        if now_s - since_s >= stall_ms / 1_000.0:
            self._host.note("warning", f"connection closed: no byte of a request that has begun in {stall_ms} ms")
            self._dispose()
            return
        self._stall_timer = self._loop.call_at(since_s + stall_ms / 1_000.0, self._watch_stall)

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
        if self._is_large:
            self._host.end_large(self)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._working is not None:
            self._working.abandoned = True
        self._buffer.clear()
        self._frames.clear()
        self._slots.clear()
        self._hold(-self._held)
        self._host.closed(self)
