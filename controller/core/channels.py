"""The controller's channels: to each broker one connection and one queue, for one term.

A request leaves its queue only when it was answered. If the connection breaks, or no answer comes in time, the same
request is the first to go over the next connection (KAFKA-1738), after a back-off; so requests reach a broker in the
order in which they were queued, and perhaps more than once, which the epochs in them make harmless.

A host supplies connections, a clock, and `submit`, which brings an action to the thread of its connections. The
controller's handlers are coroutines over these channels, the `EventSink` and
`controller.zookeeper.client.ZooKeeperClient`. Nothing here blocks.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from controller import sync_points
from controller.backoff import backoff_ms
from controller.clock import Clock, Future, spawn
from controller.zookeeper.client import EventSink


class Resign(BaseException):
    """Thrown by the host into the handler that is running, at its current await, when its term is void: the lease
    ran out or the session ended. Not an Exception, so that no handler's `except Exception` holds it up."""


class Endpoint(msgspec.Struct, frozen=True):
    """The address of one broker incarnation, which `broker_epoch` (its registration's czxid) identifies."""

    broker: int
    broker_epoch: int
    host: str
    port: int
    rack: str | None = None


class ControlRequest(msgspec.Struct, frozen=True):
    """One request of the controller to one broker.

    On the wire the request header is followed by `body` and then `rest`. `rest` is one object that all brokers share
    where they are sent the same content: the sender must not keep a copy of it.

    `response_event` turns the response's body (after the response header) into the event to queue; None: no event.
    It runs on the channel's thread and must only decode.
    """

    api_key: int
    api_version: int
    body: bytes
    response_event: Callable[[bytes], Any] | None = None
    rest: bytes = b""


class PeerError(Exception):
    """Another broker did not answer. Whether it got the request is not known."""


class PeerUnreachable(PeerError):
    """No connection could be made, or it broke before the answer."""


class PeerTimedOut(PeerError):
    """There was no answer in time."""


class PeerConnection(Protocol):
    """A lasting connection to a broker, for one request at a time. It is opened with the first request. After an error
    it is closed, and every request fails: a new connection is needed."""

    def request(self, api_key: int, api_version: int, body: bytes, timeout_ms: float) -> Future[bytes]:
        """Answers with the response's body (after the response header). Fails with PeerUnreachable or PeerTimedOut;
        the time for opening counts. RuntimeError while another request is unanswered."""

    def close(self) -> None:
        """Close; unanswered requests fail with PeerUnreachable, perhaps only after this has returned. Idempotent."""


def ask_once(
    connection: PeerConnection, api_key: int, api_version: int, body: bytes, timeout_ms: float
) -> Future[bytes]:
    """Send one request and close the connection once it is answered, or has failed. Never sent again."""
    answer = connection.request(api_key, api_version, body, timeout_ms)
    answer.on_done(connection.close)
    return answer


class ChannelConnection(Protocol):
    """A `PeerConnection` that is opened before the first request, whose requests may have two parts."""

    def open(self, timeout_ms: float) -> Future[None]:
        """Answered once it is open. Fails with PeerUnreachable, also when it takes too long."""

    def request(
        self, api_key: int, api_version: int, body: bytes, timeout_ms: float, rest: bytes = b""
    ) -> Future[bytes]:
        """As `PeerConnection.request`; `rest` follows `body` and is not copied where it is long."""

    def close(self) -> None: ...


class Channels(Protocol):
    """One ordered channel to each broker: a request is answered before the next is sent, and sent again, in its
    place, over a new connection when the old one broke (KAFKA-1738). Requests to a broker that can't be reached
    wait until it is announced no more."""

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        """Set the current brokers. A channel to a broker incarnation that is not among them is closed and its queue
        dropped; the other channels keep their queues."""

    def send(self, broker: int, request: ControlRequest) -> None:
        """Queue a request. Raises KeyError if the broker was not announced."""

    def close(self) -> None:
        """End the term's channels: drop queued requests and close all connections; no response becomes an event."""


EVENT_HANDLER = (
    "events",
    "process",
    "controller",
    "controller.void_reason",
    "controller.lease_until_ms",
    "controller.resign",
)


def require_event_handler(handler: object) -> None:
    """Raise TypeError for an object that can't be driven: it names what an `EventHandler` has and this has not."""
    missing = [name for name in EVENT_HANDLER if not _has(handler, name)]
    if missing:
        raise TypeError(
            f"{type(handler).__name__} can't be driven: expected an EventHandler; it has no {', '.join(missing)}"
        )


def _has(node: object, dotted: str) -> bool:
    for name in dotted.split("."):
        if not hasattr(node, name):
            return False
        node = getattr(node, name)
    return True


FIRST_BACKOFF_MS = 50.0
LONGEST_BACKOFF_MS = 1_000.0
CONNECT_TIMEOUT_MS = 5_000.0
RECHECK_MS = 20.0
"""How long a request waits that may not be sent, before the term is checked again: an acknowledged ping may have
extended its lease, otherwise the channels are about to be closed."""


def _run_at_once(action: Callable[[], None]) -> None:
    action()


def _discard(_level: str, _message: str) -> None:
    pass


class ControllerChannels:
    """One term's channels.

    Args:
        connect: returns a new connection to (host, port), not opened yet.
        events: receives what `ControlRequest.response_event` makes of an answer.
        request_timeout_ms: Kafka's controller.socket.timeout.ms.
        may_send: returns whether the term still holds. Called on the connections' thread before each request, since a
            process that was stopped may come to this thread before it comes to resign (S01, S12).
        submit: runs an action on the connections' thread, at once when called there.
        guard: held while an answer becomes an event and while the term ends, so that no answer becomes an event after
            `close` has returned. A lock where those are two threads.
        note: receives (level, message) for the log.
    """

    def __init__(
        self,
        connect: Callable[[str, int], ChannelConnection],
        clock: Clock,
        events: EventSink,
        *,
        request_timeout_ms: float,
        may_send: Callable[[], bool],
        submit: Callable[[Callable[[], None]], None] = _run_at_once,
        guard: AbstractContextManager[object] | None = None,
        note: Callable[[str, str], None] = _discard,
    ) -> None:
        self.connect = connect
        self.clock = clock
        self.request_timeout_ms = request_timeout_ms
        self.submit = submit
        self.note = note
        self._events = events
        self._may_send = may_send
        self._guard = nullcontext() if guard is None else guard
        self._channels: dict[int, _Channel] = {}
        self._closed = False

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        announced = {endpoint.broker: endpoint for endpoint in brokers}
        for broker, channel in list(self._channels.items()):
            if broker not in announced or not channel.reaches(announced[broker]):
                del self._channels[broker]
                channel.close()
        for broker, endpoint in announced.items():
            if broker not in self._channels:
                self._channels[broker] = _Channel(self, endpoint)

    def send(self, broker: int, request: ControlRequest) -> None:
        self._channels[broker].put(request)

    def close(self) -> None:
        with self._guard:
            self._closed = True
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # -- for the channels, on the connections' thread

    def may_send(self) -> bool:
        return not self._closed and self._may_send()

    def answered(self, request: ControlRequest, body: bytes) -> None:
        sync_points.reach("channel: answered")
        if request.response_event is None:
            return
        event = request.response_event(body)
        with self._guard:
            if not self._closed:
                self._events.put(event)


class _Channel:
    """The queue to one incarnation of a broker, filled on the controller's thread, and the coroutine that empties it on
    the connections' thread."""

    def __init__(self, channels: ControllerChannels, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._channels = channels
        self._queue: deque[ControlRequest] = deque()
        self._filled: Future[None] = Future()
        self._closed = False
        self._connection: ChannelConnection | None = None
        channels.submit(self._begin)

    def reaches(self, endpoint: Endpoint) -> bool:
        """Return whether this channel is one to that incarnation of the broker, at that address."""
        mine = self.endpoint
        return (mine.broker_epoch, mine.host, mine.port) == (endpoint.broker_epoch, endpoint.host, endpoint.port)

    def put(self, request: ControlRequest) -> None:
        self._queue.append(request)
        self._channels.submit(self._wake)

    def close(self) -> None:
        self._closed = True
        self._channels.submit(self._stop)

    def _begin(self) -> None:
        running = spawn(self._run())
        running.on_done(lambda: self._ended(running))

    def _ended(self, running: Future[None]) -> None:
        if running.error is not None:
            self._note("error", f"ended by a fault\n{''.join(traceback.format_exception(running.error))}")

    def _wake(self) -> None:
        if not self._filled.done:
            self._filled.resolve(None)

    def _stop(self) -> None:
        self._queue.clear()
        if self._connection is not None:
            self._connection.close()
        self._wake()

    def _is_closed(self) -> bool:
        return self._closed

    async def _run(self) -> None:
        failures = 0
        failed = False
        while not self._is_closed():
            connection = self._channels.connect(self.endpoint.host, self.endpoint.port)
            self._connection = connection
            error = await self._open(connection)
            opened = error is None
            failures = 0 if opened else failures + 1
            if opened:
                failed = False
                error = await self._serve(connection)
            if self._is_closed():
                return
            if not failed:
                self._note("info", f"{error}; connecting again")
            failed = True
            await self._channels.clock.sleep(backoff_ms(failures, FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS))

    async def _open(self, connection: ChannelConnection) -> PeerError | None:
        try:
            await connection.open(min(CONNECT_TIMEOUT_MS, self._channels.request_timeout_ms))
        except PeerError as error:
            return error
        return None

    async def _serve(self, connection: ChannelConnection) -> PeerError | None:
        """Send what is queued, until the connection breaks (the error is returned) or the channel is closed."""
        channels = self._channels
        while not self._is_closed():
            if not self._queue:
                self._filled = Future()
                await self._filled
                continue
            sync_points.reach("channel: request taken")
            if not channels.may_send():
                await channels.clock.sleep(RECHECK_MS)
                continue
            request = self._queue[0]
            asked = connection.request(
                request.api_key, request.api_version, request.body, channels.request_timeout_ms, request.rest
            )
            try:
                answer = await asked
            except PeerError as error:
                return error
            if self._is_closed():
                return None
            channels.answered(request, answer)
            self._queue.popleft()
        return None

    def _note(self, level: str, message: str) -> None:
        self._channels.note(level, f"channel to broker {self.endpoint.broker}: {message}")
