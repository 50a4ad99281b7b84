"""One connection between a client and the in-memory server: two ordered pipes that can be cut and healed.

What is sent arrives after its latency, never before what was sent earlier the same way. While a pipe is cut what is
in it, and what is sent into it, stays: TCP sends it again until it gets through, so that it arrives once the cut is
healed, even a request whose client has given up and gone (which is why its outcome was unknown). Knows no session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from controller.clock import Clock
from controller.pending import Pending
from controller.zookeeper.memory.acl import ClientIdentity

END: Final = object()
"""The other end has closed the connection: the last that arrives through a pipe."""

Latency = Callable[[], float]
"""Milliseconds that the next message takes, one way."""

CONNECT, CLOSE, PING, SYNC, READ, READ_COLUMNS, CHILDREN, MULTI, SET_WATCHES, WATCH = range(10)
"""What a request asks for."""


class LinkRequest:
    """One request; the same object, with its answer in it, is the reply. `pending` is None for what the client asks
    on its own account (connect, ping)."""

    __slots__ = ("arguments", "error", "operation", "pending", "result", "sent_ms", "zxid")

    def __init__(self, operation: int, arguments: Any, pending: Pending[Any] | None) -> None:
        self.operation = operation
        self.arguments = arguments
        self.pending = pending
        self.sent_ms = 0.0
        self.result: Any = None
        self.error: Exception | None = None
        self.zxid = 0


class ServerPipe:
    """One direction of a link."""

    __slots__ = ("_clock", "_closed", "_cut", "_deliver", "_due_ms", "_generation", "_latency", "_queue")

    def __init__(self, clock: Clock, latency: Latency | None, deliver: Callable[[Any], None]) -> None:
        self._clock = clock
        self._latency = latency
        self._deliver = deliver
        self._cut = False
        self._closed = False
        self._queue: deque[Any] = deque()
        self._due_ms = 0.0
        self._generation = 0

    def send(self, message: Any) -> None:
        if self._closed:
            return
        self._queue.append(message)
        if not self._cut:
            self._schedule()

    def cut(self) -> None:
        if not self._cut:
            self._cut = True
            self._generation += 1

    def heal(self) -> None:
        if self._cut:
            self._cut = False
            for _ in range(len(self._queue)):
                self._schedule()

    def close(self) -> None:
        """Nothing more comes out: what is on its way, and what is still sent, is lost."""
        self._closed = True
        self._queue.clear()
        self._generation += 1

    def _schedule(self) -> None:
        latency = self._latency
        if latency is None:
            delay_ms = 0.0
        else:
            delay_ms = latency()
            now_ms = self._clock.now_ms()
            if now_ms + delay_ms < self._due_ms:
                delay_ms = self._due_ms - now_ms
            else:
                self._due_ms = now_ms + delay_ms
        self._clock.call_later(delay_ms, partial(self._arrive, self._generation))

    def _arrive(self, generation: int) -> None:
        # The queue gives the order; a timer only says that one more has arrived.
        if generation == self._generation:
            self._deliver(self._queue.popleft())


class ClientLink:
    """A connection as both ends hold it. The server notes whose session it carries in `session` (0: not known yet)
    and whether it still serves it in `open`. `losing`: the reply to the next multi will be lost with the connection,
    after the multi was applied (True) or before (False)."""

    __slots__ = ("identity", "losing", "open", "session", "to_client", "to_server")

    def __init__(
        self,
        clock: Clock,
        latency: Latency | None,
        at_server: Callable[[ClientLink, Any], None],
        at_client: Callable[[Any], None],
        identity: ClientIdentity,
    ) -> None:
        self.session = 0
        self.open = True
        self.losing: bool | None = None
        self.identity = identity
        self.to_server = ServerPipe(clock, latency, partial(at_server, self))
        self.to_client = ServerPipe(clock, latency, at_client)
