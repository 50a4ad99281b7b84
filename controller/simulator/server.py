"""A broker's listener over the network in memory: each connection's requests answered one after the other.

As on the real host, a connection's requests are handled in their order, each without the one before having been
answered, and answered in that order.
"""

from __future__ import annotations

from collections import deque
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
        """`frame` is a `Frame`; bytes, where nobody sends another."""


class _Slot:
    """The place of one request's answer in its connection's order."""

    __slots__ = ("parts", "ready")

    def __init__(self) -> None:
        self.parts: Sequence[Part] | None = None
        self.ready = False


class Server:
    """`accept` takes a connection. `cost` gives the milliseconds until a request that arrived is taken up."""

    def __init__(self, receiver: Receiver, clock: ProcessClock, cost: Callable[[], float]) -> None:
        self._receiver = receiver
        self._clock = clock
        self._cost = cost

    def accept(self, socket: Socket) -> None:
        waiting: deque[Frame] = deque()
        slots: deque[_Slot] = deque()
        busy = False

        def arrived(frame: Frame) -> None:
            waiting.append(frame)
            take_up()

        def take_up() -> None:
            nonlocal busy
            if waiting and not busy:
                busy = True
                self._clock.call_later(self._cost(), handle)

        def handle() -> None:
            nonlocal busy
            if not socket.open:
                return
            slot = _Slot()
            slots.append(slot)
            self._receiver.receive(waiting.popleft(), lambda parts: respond(slot, parts))
            busy = False
            take_up()

        def respond(slot: _Slot, parts: Sequence[Part] | None) -> None:
            slot.parts, slot.ready = parts, True
            while slots and slots[0].ready and socket.open:
                send(slots.popleft().parts)

        def send(parts: Sequence[Part] | None) -> None:
            try:
                frame = None if parts is None else joined(parts)
            except UnencodableValue:  # a range's file was cut meanwhile: what it should have been nobody can send
                frame = None
            if frame is None:
                socket.close()
            elif frame:
                socket.send(frame)

        socket.on_frame = arrived
