"""The socket server: `SocketServer` accepts, a `ServerConnection` reads requests and sends responses in their order.

Requests are handled as they arrive, pipelined ones too, and answered in order, whatever order the answers were ready
in. A connection with too much unanswered, or that does not read its answers, is not read from until it has. One whose
client exceeds a quota is muted for as long as its answer says: nothing more of it is read or handled. A frame
over the size limit, or one that the broker has no answer to, closes its own connection. `SocketServer` counts what all
connections hold together and limits it.

Sockets are watched by the network's loop directly and not through asyncio's transports, whose buffers and whose
sendfile would each have their own idea of the order. All of it lives on that loop; answers may come from any thread.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec

from controller.broker.quotas.connections import ConnectionSettings
from controller.broker.records.cold_reads import read_in
from controller.broker.request_context import Respond, Steps, Throttled
from controller.broker.security.bounded_notes import BoundedNotes
from controller.broker.security.principal import Requester
from controller.broker.security.sasl import SaslListener, SaslSession
from controller.broker.settings import QUEUED_REQUESTS, BrokerSettings, Listener
from controller.clock import Timer
from controller.hosts.listening import CannotListen, ConnectionGate, bound_socket, host_of, reserved_descriptors
from controller.hosts.network import TURN_S, LoopScheduler, NetworkThread, RunningSteps
from controller.hosts.request_stages import FOLLOWER, RequestStages, Slot, Unsent, kind_of
from controller.hosts.sending import RangeCut, SendQueue
from controller.hosts.tls import EncryptedSocket, HandshakeFailed, TlsListener
from controller.protocol.errors import MalformedFrame, ProtocolError
from controller.protocol.framing import FrameBuffer, Part
from controller.storage import DeviceUnavailable
from controller.storage.devices import DeviceJobs
from controller.storage.disk import NotCached
from controller.system import descriptor_limit
from controller.trace import Noted, Trace

Receive: TypeAlias = Callable[[bytes, Respond, Requester], Steps | None]
"""(frame, respond, who sent it); see `Broker.begin`."""

UNANSWERED_MAX = 100
"""Requests of one connection that may wait for their answers before it is read no further."""
UNANSWERED_BYTES = 16 * 1024 * 1024
"""And their bytes: the request that passes this is the last that is taken up."""
UNSENT_BYTES = 1024 * 1024
"""The maximum size of responses that the client has not read. Beyond it the server stops reading from the client."""
READ_BYTES = 256 * 1024
"""The maximum size of reads into pieces: the rest of the request that has begun to arrive, and FIRST_BYTES."""
FIRST_BYTES = 2 * 1024
"""The size of reads of small requests. It is small because there may be hundreds of connections that each send many:
all of them are read before the next request of any is handled."""
PRODUCE = bytes(2)
"""How a Produce request's frame begins: its records are kept for no longer than it takes to append them."""
LARGE_BYTES = 64 * 1024
"""A request that announces more waits while large ones that have begun to arrive hold as much as they may."""


class ServerConnection:
    """Begins to read at once."""

    __slots__ = (
        "_active_s",
        "_arrived_s",
        "_arriving",
        "_buffer",
        "_clock",
        "_closed",
        "_ending",
        "_flushing",
        "_frames",
        "_held",
        "_idle_timer",
        "_is_follower",
        "_is_large",
        "_loop",
        "_mute_timer",
        "_muted_until_s",
        "_outgoing",
        "_reading",
        "_reading_in",
        "_sasl",
        "_server",
        "_slots",
        "_socket",
        "_stall_timer",
        "_taking",
        "_unanswered",
        "_unsent",
        "_waiting",
        "_working",
        "_writing",
        "arrived_bytes",
        "client",
    )

    def __init__(
        self, server: SocketServer, sock: socket.socket | EncryptedSocket, client: Requester, request_bytes_max: int
    ) -> None:
        self._server = server
        self._socket: Any = sock
        self.client = client
        self._sasl = server.sasl_session(client)
        self._loop = server.network.loop
        self._clock = server.network.clock
        memory = server.network.memory if isinstance(sock, socket.socket) else None
        self._buffer = FrameBuffer(request_bytes_max, memory, PRODUCE)
        # Lists: an empty deque takes 600 bytes, which counts where tens of thousands of connections wait.
        self._frames: list[Any] = []
        self._slots: list[Slot] = []
        self._unsent = None if server.stages is None else Unsent(server.stages)
        self._outgoing = SendQueue(sock, server.network.others_ask)
        self._held = 0  # bytes of requests, as reported to the host
        self._unanswered = 0  # bytes of those that were taken up
        self._reading = self._writing = self._taking = self._flushing = self._reading_in = False
        self._working: RunningSteps | None = None  # a request that takes several slices; the next one waits for it
        self._waiting = False  # for its turn
        self._arriving = False  # what has arrived waits to be read
        self._is_large = self._is_follower = False
        self.arrived_bytes = 0
        """Of the request that has begun to arrive."""
        self._ending = self._closed = False  # ending: nothing more is read; closed once what is there is sent
        self._active_s = self._arrived_s = self._loop.time()
        self._idle_timer: Timer | None = None
        self._stall_timer: Timer | None = None
        self._mute_timer: Timer | None = None  # while it is muted
        self._muted_until_s = 0.0
        self._watch_idle()
        self._throttle()

    @property
    def listener(self) -> str:
        return self.client.listener

    @property
    def active_s(self) -> float:
        """When something was sent or received last."""
        return self._active_s

    def close(self) -> None:
        """At once; what the socket takes now of the answers that were given still goes out. Safe to call twice."""
        if self._closed:
            return
        with suppress(OSError, RangeCut, NotCached):  # it ends either way
            self._outgoing.send(gives_way=False)
        self._dispose()

    def go_on(self) -> None:
        """The server has room again."""
        self._throttle()

    # -- in

    def _readable(self) -> None:
        if self._arriving:
            if self._reading:  # the loop has come round, and its turn has not come
                self._reading = False
                self._loop.remove_reader(self._socket.fileno())
            return
        self._arriving = True
        if self._is_large or self._is_follower:
            self._server.turns.give_way(self._read)  # to clients that send little: a follower gets more at once then
        else:
            self._server.turns.arrive(self._read)

    def _read(self) -> None:
        self._arriving = False
        if self._closed:
            return
        if not self._may_read():
            self._throttle()
            return
        buffer = self._buffer
        try:
            size = min(READ_BYTES, buffer.begun_bytes - buffer.arrived_bytes + FIRST_BYTES)
            held_then = self._server.held_bytes + buffer.begun_bytes - buffer.arrived_bytes
            limit = self._server.queued_bytes
            frames = buffer.receive(self._socket, size, may_begin=held_then < limit, reads_on=held_then < limit // 2)
        except (BlockingIOError, InterruptedError):
            self._throttle()
            return
        except (OSError, EOFError):  # closed or reset by the other end, which is how clients go
            self._dispose()
            return
        except MalformedFrame as error:
            self._server.note("warning", f"connection closed: {error}")
            self.close()
            return
        self._active_s = self._arrived_s = self._loop.time()
        self._hold(sum(map(len, frames)) + buffer.arrived_bytes - self.arrived_bytes)
        self.arrived_bytes = buffer.arrived_bytes
        if self._is_large and frames:
            self._note_large()  # perhaps the next has begun
        if buffer.begun_bytes > LARGE_BYTES and not self._is_large:
            self._note_large()
        if self._stall_timer is None and buffer.is_within:
            self._stall_timer = self._clock.call_later(self._server.stall_ms, self._watch_stall)
        self._frames.extend(frames)
        if self._waiting or not self._frames:
            self._throttle()
        else:
            self._take(one=True)

    def _note_large(self) -> None:
        """A large request has begun to arrive, or ends."""
        self._is_large = not self._is_large
        (self._server.begin_large if self._is_large else self._server.end_large)(self)

    def _may_read(self) -> bool:
        """Return True if the connection may read. A partly received request is read to its end: its memory is freed
        only after it was answered."""
        if self._is_large:
            return self._server.may_go_on(self)
        return self._server.held_bytes < self._server.queued_bytes or bool(self._buffer.begun_bytes)

    def _take(self, *, one: bool = False) -> None:
        """Hands over what may be handed over while it is this connection's turn, or `one` request, and sends what was
        answered at once, together."""
        now_s = self._arrived_s if one else self._loop.time()
        until = now_s + TURN_S
        self._taking = True
        try:
            while self._may_hand_over():
                frame = self._frames.pop(0)
                kind = 0 if self._unsent is None else kind_of(frame)
                self._is_follower = kind >= FOLLOWER
                slot = Slot(self.answer, len(frame), kind, self._arrived_s, now_s)
                self._slots.append(slot)
                self._unanswered += slot.size
                receive = self._server.receive if self._sasl is None else self._sasl.receive
                steps = receive(frame, slot, self.client)
                del frame
                if self._unsent is not None or not one:
                    now_s = self._loop.time()
                if steps is not None:
                    self._working = self._server.turns.work(steps, self._worked)
                else:
                    slot.handled_s = now_s
                is_over = one or now_s >= until
                if self._slots and self._slots[0].ready and (is_over or not self._may_hand_over()):
                    self._flush()
                if is_over:
                    break
        finally:
            self._taking = False
        if self._frames and self._may_hand_over() and not self._waiting:
            self._waiting = True
            self._server.turns.wait(self._turn)
        self._throttle()

    def _turn(self) -> None:
        self._waiting = False
        if not self._closed:
            self._take()

    def _worked(self) -> None:
        """The request that took several slices has been handled; its answer may come later."""
        self._working = None
        if self._slots:  # the last is this request's: no other is taken up meanwhile
            self._slots[-1].handled_s = self._loop.time()
        if not (self._closed or self._waiting):
            self._take()

    def _may_hand_over(self) -> bool:
        return bool(self._frames) and not (self._ending or self._working) and self._may_take_more()

    def _may_take_more(self) -> bool:
        return (
            self._mute_timer is None
            and len(self._slots) < UNANSWERED_MAX
            and self._unanswered < UNANSWERED_BYTES
            and self._outgoing.left_bytes < UNSENT_BYTES
        )

    def _throttle(self) -> None:
        if self._closed:
            return
        wanted = not (self._ending or self._frames) and self._may_take_more()
        if wanted and self._arriving:
            return  # until what has arrived is read
        if wanted and not self._may_read():
            if not self._is_large:
                self._server.stall(self)
            wanted = False
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._socket.fileno(), self._readable)
            else:
                self._loop.remove_reader(self._socket.fileno())

    def _hold(self, size: int) -> None:
        self._held += size
        self._server.hold(size)

    # -- out

    def answer(self, slot: Slot, parts: Sequence[Part] | None) -> None:
        """For its slots, on any thread."""
        if self._unsent is not None:
            slot.answered_s = self._loop.time()
        network = self._server.network
        if network.on_loop():
            self._fill(slot, parts)
        else:
            network.call(partial(self._fill, slot, parts))

    def _fill(self, slot: Slot, parts: Sequence[Part] | None) -> None:
        slot.parts, slot.ready = parts, True
        if isinstance(parts, Throttled) and not self._closed:
            self._mute(parts.throttle_ms)
        if self._taking or self._flushing or self._closed or self._slots[0] is not slot:
            return
        # When the loop comes round: what else is answered meanwhile goes out together with this.
        self._flushing = True
        self._loop.call_soon(self._flush_answers)

    def _mute(self, throttle_ms: int) -> None:
        """Read and handle nothing more for so long; what was taken up before is answered meanwhile."""
        until_s = self._loop.time() + throttle_ms / 1_000.0
        if until_s <= self._muted_until_s:
            return
        self._muted_until_s = until_s
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._mute_timer = self._clock.call_later(throttle_ms, self._unmute)
        self._server.muted[self] = None
        self._throttle()

    def _unmute(self) -> None:
        self._mute_timer = None
        self._server.muted.pop(self, None)
        if self._may_hand_over() and not self._waiting:
            self._waiting = True
            self._server.turns.wait(self._turn)
        else:
            self._throttle()

    def _flush_answers(self) -> None:
        self._flushing = False
        if not self._closed:
            self._flush()
            if self._frames and not self._waiting:
                self._take()
            elif not self._reading:
                self._throttle()

    def _flush(self) -> None:
        """Sends the answers whose turn it is."""
        try:
            while self._slots and self._slots[0].ready and not self._ending:
                slot = self._slots.pop(0)
                self._unanswered -= slot.size
                self._hold(-slot.size)
                if slot.parts is None:
                    self._ending = True
                elif slot.parts:
                    self._outgoing.put(slot.parts)
                    if self._unsent is not None:
                        self._unsent.add(slot, self._loop.time())
        except (RangeCut, ProtocolError, OSError) as error:
            self._server.note("warning", f"connection closed: {error}")
            self._dispose()
            return
        if self._outgoing.others_come_first():
            self._watch_writable(wanted=not self._reading_in)
        elif self._outgoing.left_bytes or self._ending:
            self._send()

    def _send(self, *, was_read_in: bool = False) -> None:
        if self._reading_in:
            return
        before = self._outgoing.left_bytes
        try:
            self._outgoing.send(was_read_in=was_read_in)
        except NotCached as cold:
            self._reading_in = True
            self._server.turns.work(self._read_in(cold), self._was_read_in)
        except RangeCut as error:
            self._server.note("warning", f"connection closed: {error}")
            self._dispose()
            return
        except OSError:  # the other end is gone
            self._dispose()
            return
        if self._outgoing.left_bytes < before:
            self._active_s = self._loop.time()
            if self._unsent is not None and not self._outgoing.left_bytes:
                self._unsent.sent(self._active_s)
        if self._ending and not self._outgoing.left_bytes:
            self._dispose()
            return
        self._watch_writable(wanted=self._outgoing.left_bytes > 0 and not self._reading_in)

    def _watch_writable(self, *, wanted: bool) -> None:
        if wanted is not self._writing:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self._socket.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._socket.fileno())

    def _read_in(self, cold: NotCached) -> Steps:
        """What is to be sent next was evicted from the page cache while the client was slow."""
        try:
            yield from read_in(cold)
        except DeviceUnavailable as error:
            self._server.note("warning", f"connection closed: {error}")
            self._dispose()

    def _was_read_in(self) -> None:
        self._reading_in = False
        if not self._closed:
            self._send(was_read_in=True)

    def _writable(self) -> None:
        self._send()
        if not (self._closed or self._waiting):
            self._take()

    # -- end

    def _watch_idle(self) -> None:
        idle_ms = self._server.idle_ms
        if idle_ms is None:
            return
        idle_s = idle_ms / 1_000.0
        owed = bool(self._slots) and not self._outgoing.left_bytes
        stopped = not (self._reading or self._writing or self._mute_timer)
        since_s = self._loop.time() if owed or stopped else self._active_s
        if self._idle_timer is not None and self._loop.time() - since_s >= idle_s:
            self._server.note("info", f"connection closed: idle for {idle_ms} ms")
            self._dispose()
            return
        self._idle_timer = self._clock.call_later((since_s + idle_s - self._loop.time()) * 1_000.0, self._watch_idle)

    def _watch_stall(self) -> None:
        """While a request has begun to arrive. The time when this connection is not read does not count."""
        self._stall_timer = None
        if self._closed or not self._buffer.is_within:
            return
        now_s, stall_ms = self._loop.time(), self._server.stall_ms
        since_s = self._arrived_s if self._reading else now_s
        if now_s - since_s >= stall_ms / 1_000.0:
            self._server.note("warning", f"connection closed: no byte of a request that has begun in {stall_ms} ms")
            self._dispose()
            return
        self._stall_timer = self._clock.call_later(stall_ms - (now_s - since_s) * 1_000.0, self._watch_stall)

    def _dispose(self) -> None:
        if self._closed:
            return
        self._closed = self._ending = True
        if self._reading:
            self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._socket.close()
        if self._is_large:
            self._server.end_large(self)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        if self._working is not None:
            self._working.abandoned = True
        self._buffer.clear()
        self._frames.clear()
        self._slots.clear()
        self._hold(-self._held)
        self._server.closed(self)


BACKLOG = 4_096
"""Connections that may wait to be accepted; the system's limit (net.core.somaxconn) may be lower. When the queue is
full, clients try again after a second: many come at once after a broker's restart."""
ACCEPTED_AT_ONCE = 20
"""Connections accepted before the loop's other callbacks have their turn: about a millisecond."""
ACCEPT_AGAIN_S = 0.2
"""How long the server accepts no connection after `accept` failed, most likely for lack of file descriptors."""
LOG_AGAIN_S = 60.0
"""The minimum time between two log lines about refused connections."""


class ServerLimits(msgspec.Struct, frozen=True):
    """The server's limits on requests and connections.

    `queued_bytes`: of all unanswered requests, as far as they have arrived. `idle_ms`: how long a connection may be
    idle, that is, nothing is sent or received and no request is in flight; None: no limit. `descriptors`: a connection
    whose descriptor's number is this or above is refused. The system assigns the lowest free number, so at least this
    many descriptors are then open in the process. `stall_ms`: how long a partly received request may bring no byte.
    """

    request_bytes: int
    queued_bytes: int = 400 * 1024 * 1024
    connections: ConnectionSettings = msgspec.field(default_factory=ConnectionSettings)
    idle_ms: int | None = 600_000
    stall_ms: int = 30_000
    descriptors: int = 2**31 - 1


def limits_of(settings: BrokerSettings) -> ServerLimits:
    request_bytes, queued_bytes = settings.socket_request_max_bytes, settings.queued_max_request_bytes
    return ServerLimits(
        request_bytes,
        queued_bytes if queued_bytes >= 0 else QUEUED_REQUESTS * request_bytes,
        settings.quotas.connections,
        settings.connections_max_idle_ms if settings.connections_max_idle_ms >= 0 else None,
        settings.request_stall_timeout_ms,
        *_usable_descriptors(),
    )


def _usable_descriptors() -> tuple[int, ...]:
    limit = descriptor_limit()
    return () if limit is None else (limit - reserved_descriptors(limit),)


class _Bound(msgspec.Struct):
    listener: Listener
    socket: socket.socket
    accepting: asyncio.Task[None] | None = None


class SocketServer:
    """`bind` takes the addresses, `serve` begins to accept, `close` ends it all. `receive` is called on the network's
    loop, one frame at a time. `connections` are those that are open, in the order of their coming."""

    def __init__(
        self, network: NetworkThread, limits: ServerLimits, trace: Trace, devices: DeviceJobs | None = None
    ) -> None:
        self.network = network
        self.connections: dict[ServerConnection, None] = {}
        self.receive: Receive = lambda _frame, respond, _client: respond(None)
        self._limits = limits
        self.gate = ConnectionGate(limits.connections, network, self._log_refused, self._close_excess)
        self._trace = trace
        self._bound: list[_Bound] = []
        self.held_bytes = 0
        self.queued_bytes = limits.queued_bytes
        self._stalled: dict[ServerConnection, None] = {}
        self.muted: dict[ServerConnection, None] = {}
        """Those whose clients exceed a quota."""
        self._refused = 0  # since it was last said
        self._logged_s: float | None = None
        self.turns = LoopScheduler(network, self._failed, devices)
        self._large: dict[ServerConnection, None] = {}
        """Those within a large request, in the order in which it began to arrive."""
        self._first_since_s: float | None = None
        self.tls: dict[str, TlsListener] = {}
        """Of each listener with TLS, by its name; set before `serve`."""
        self.sasl: dict[str, SaslListener] = {}
        """Of each listener with SASL, by its name; set before `serve`."""
        self._upgrades: set[asyncio.Task[None]] = set()
        self._failures = BoundedNotes(network.clock, self.note)
        self.stages: RequestStages | None = None
        """Set before `serve`: the stages of every request are measured."""

    def bind(self, listeners: Sequence[Listener]) -> Mapping[str, int]:
        """Each listener's port by its name, once all of them are had. CannotListen, with none of them kept."""
        try:
            for listener in listeners:
                self._bound.append(_Bound(listener, bound_socket(listener)))
        except OSError as error:
            self._release()
            raise CannotListen(f"listener {listener}: {error.strerror or error}") from error
        return {bound.listener.name: bound.socket.getsockname()[1] for bound in self._bound}

    def serve(self, receive: Receive) -> None:
        self.receive = receive
        self.network.run(self._serve(), timeout_s=10.0)

    async def _serve(self) -> None:
        self.serve_now(self.receive)

    def serve_now(self, receive: Receive) -> None:
        """As `serve`, on the loop's own thread."""
        self.receive = receive
        loop = self.network.loop
        for bound in self._bound:
            bound.socket.setblocking(False)
            bound.socket.listen(BACKLOG)
            bound.accepting = loop.create_task(self._accept(bound))

    async def _accept(self, bound: _Bound) -> None:
        loop = asyncio.get_running_loop()
        at_once = 0
        while True:
            at_once += 1
            if at_once % ACCEPTED_AT_ONCE == 0:  # `sock_accept` does not wait while one is there
                await asyncio.sleep(0.0)
            try:
                accepted, address = await loop.sock_accept(bound.socket)
            except OSError as error:
                self._log_refused(f"listener {bound.listener}: a connection was not accepted: {error}")
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            client = Requester(bound.listener.name, host_of(address))
            try:
                await self.gate.wait(client)
            except asyncio.CancelledError:
                accepted.close()
                raise
            self._accept_connection(accepted, client)

    def _close_excess(self) -> None:
        """The least used connections make room for one between brokers, or when there may be fewer of them now."""
        others = [one for one in self.connections if one.listener != self.gate.quotas.settings.protected]
        for least in sorted(others, key=lambda one: one.active_s)[: min(self.gate.quotas.excess, ACCEPTED_AT_ONCE)]:
            self._failures("info", "connection closed: there are more than there may be, and it was used least")
            least.close()
        if self.gate.quotas.excess and len(others) > ACCEPTED_AT_ONCE:
            self.network.loop.call_soon(self._close_excess)

    def _accept_connection(self, accepted: socket.socket, client: Requester) -> None:
        if accepted.fileno() >= self._limits.descriptors:
            accepted.close()
            self._log_refused(
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
        if not self.gate.admit(accepted, client):
            return
        listener = self.tls.get(client.listener)
        if listener is None:
            self.connections[ServerConnection(self, accepted, client, self._limits.request_bytes)] = None
            return
        upgrade = self.network.loop.create_task(self._upgrade(listener, accepted, client))
        self._upgrades.add(upgrade)
        upgrade.add_done_callback(self._upgrades.discard)

    async def _upgrade(self, listener: TlsListener, accepted: socket.socket, client: Requester) -> None:
        """A handshake has as long as a request that has begun to arrive."""
        try:
            async with asyncio.timeout(self._limits.stall_ms / 1_000.0):
                sock, client = await listener.upgrade(accepted, client)
        except (HandshakeFailed, TimeoutError) as error:
            accepted.close()
            self.gate.freed(client)
            reason = str(error) or f"not done in {self._limits.stall_ms} ms"
            who = f"{client.host} on listener {client.listener}"
            self._failures("warning", f"TLS handshake with {who} failed: {reason}")
            return
        except BaseException:
            self.gate.freed(client)
            raise
        self.connections[ServerConnection(self, sock, client, self._limits.request_bytes)] = None

    def sasl_session(self, client: Requester) -> SaslSession | None:
        """Of a new connection; None where clients are not authenticated by SASL."""
        listener = self.sasl.get(client.listener)
        return None if listener is None else SaslSession(listener, client, self.receive)

    def _log_refused(self, why: str) -> None:
        """Once for many: a client that is refused tries again at once."""
        self._refused += 1
        now_s = self.network.loop.time()
        if self._logged_s is None or now_s - self._logged_s >= LOG_AGAIN_S:
            self.note("warning", why if self._refused == 1 else f"{why} ({self._refused} since the last such line)")
            self._refused, self._logged_s = 0, now_s

    def close(self) -> None:
        """No connection is accepted any more, and those that are there are closed."""
        if self.network.loop.is_running():
            self.network.run(self._close(), timeout_s=10.0)
        self._release()

    async def _close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """As `close`, on the loop's own thread."""
        for bound in self._bound:
            if (accepting := bound.accepting) is not None:
                self.network.loop.remove_reader(bound.socket)
                bound.accepting = None  # its error's traceback refers to `bound`
                accepting.cancel()
        for upgrade in list(self._upgrades):
            upgrade.cancel()
        self.gate.close()
        for connection in list(self.connections):
            connection.close()
        self.turns.close()
        self._release()

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

    def hold(self, size: int) -> None:
        """Add `size` bytes to the total of the held requests (subtract them, if negative). Below their limit, stalled
        connections are resumed."""
        self.held_bytes += size
        if self._stalled and self.held_bytes < self.queued_bytes:
            stalled, self._stalled = self._stalled, {}
            for connection in stalled:
                self.network.loop.call_soon(connection.go_on)
        if size < 0 and self._first_since_s is not None:
            self.network.loop.call_soon(self._check_large)

    def stall(self, connection: ServerConnection) -> None:
        """Call `connection.go_on` once the server is not full."""
        self._stalled[connection] = None
        self._close_muted()

    def _close_muted(self) -> None:
        """There is no memory for requests: those that have begun to arrive from muted connections would keep theirs
        for as long as these are muted."""
        for connection in [one for one in self.muted if one.arrived_bytes > LARGE_BYTES]:
            self.note("warning", "connection closed: throttled, while others waited for the memory of its next request")
            connection.close()

    # Large requests that have begun to arrive hold half of the memory for requests at most, the other half is for
    # whole ones. When they hold that much, the first of them goes on alone, and is closed if it takes too long: the
    # others wait for it.

    @property
    def stall_ms(self) -> int:
        """How long a partly received request may bring no byte."""
        return self._limits.stall_ms

    def begin_large(self, connection: ServerConnection) -> None:
        """A large request has begun to arrive on the connection."""
        self._large[connection] = None

    def end_large(self, connection: ServerConnection) -> None:
        """The large request is complete, or its connection closed."""
        self._large.pop(connection, None)
        if self._first_since_s is not None:
            self._first_since_s = None
            self.network.loop.call_soon(self._check_large)

    def may_go_on(self, connection: ServerConnection) -> bool:
        """Return True if there is memory for more of the large request. If not, `connection.go_on` is called later."""
        if self._large_full and self.muted:
            self._close_muted()
        if not self._large_full:
            return True
        if self._first_since_s is None:
            self._first_since_s = self.network.loop.time()
            self.network.clock.call_later(self._limits.stall_ms, self._check_large)
        return next(iter(self._large)) is connection

    @property
    def _large_full(self) -> bool:
        limit = self.queued_bytes // 2  # what has arrived is among what is held
        return self.held_bytes >= limit and sum(one.arrived_bytes for one in self._large) >= limit

    def _check_large(self) -> None:
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

    def closed(self, connection: ServerConnection) -> None:
        self.connections.pop(connection, None)
        self.gate.freed(connection.client)
        self._stalled.pop(connection, None)
        self.muted.pop(connection, None)

    def note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))
