"""A broker's listener over the network in memory: each connection's requests answered one after the other.

As on the real host, a connection's requests are handled in their order, each without the one before having been
answered, and answered in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from controller.broker.exchange import Respond
from controller.protocol.errors import UnencodableValue
from controller.protocol.records import Part, joined
from controller.simulator.network import Frame, Socket
from controller.simulator.process import ProcessClock


class Receiver(Protocol):
    """Who answers, at once or later, once; see `Respond`."""

    def receive(self, frame: Any, respond: Respond) -> None:
        """Handle a request. `frame` is a `Frame`; bytes where no sender uses any other type."""


class _Slot:
    """The place of one request's answer in its connection's order, called with it."""

    __slots__ = ("_served", "parts", "ready")

    def __init__(self, served: _Served) -> None:
        self._served = served
        self.parts: Sequence[Part] | None = None
        self.ready = False

    def __call__(self, parts: Sequence[Part] | None) -> None:
        self.parts, self.ready = parts, True
        self._served.send_what_is_ready()


class _Served:
    """A connection's user. `waiting`: what has arrived and was not taken up; `slots`:
    what is not answered, in its order."""

    __slots__ = ("_busy", "_server", "_slots", "_socket", "_waiting")

    def __init__(self, server: Server, socket: Socket) -> None:
        self._server = server
        self._socket = socket
        self._waiting: list[Frame] | tuple[()] = ()
        self._slots: tuple[_Slot, ...] = ()
        self._busy = False

    def answered(self, accepted: bool) -> None:
        """Send nothing to a connection that is no longer served."""

    def arrived(self, frame: Frame) -> None:
        if self._waiting:
            self._waiting.append(frame)
        else:
            self._waiting = [frame]
        self._take_up()

    def _take_up(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            self._server.clock.call_later(self._server.cost(), self._handle)

    def _handle(self) -> None:
        waiting = self._waiting
        if not self._socket.open or not waiting:
            return
        slot = _Slot(self)
        self._slots = (*self._slots, slot)
        frame = waiting.pop(0)
        if not waiting:
            self._waiting = ()
        self._server.receiver.receive(frame, slot)
        self._busy = False
        self._take_up()

    def send_what_is_ready(self) -> None:
        while self._slots and self._slots[0].ready and self._socket.open:
            parts, self._slots = self._slots[0].parts, self._slots[1:]
            self._send(parts)

    def _send(self, parts: Sequence[Part] | None) -> None:
        try:
            frame = None if parts is None else joined(parts)
        except UnencodableValue:  # the file of a range was truncated meanwhile: its response cannot be sent
            frame = None
        if frame is None:
            self._socket.close()
        elif frame:
            self._socket.send(frame)


class Server:
    """`accept` takes a connection. `cost` gives the milliseconds until a request that arrived is taken up."""

    def __init__(self, receiver: Receiver, clock: ProcessClock, cost: Callable[[], float]) -> None:
        self.receiver = receiver
        self.clock = clock
        self.cost = cost

    def accept(self, socket: Socket) -> None:
        socket.user = _Served(self, socket)
