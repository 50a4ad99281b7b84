"""A broker's listener over the network in memory: each connection's requests answered one after the other.

As on the real host, the next request of a connection is taken up only when the one before was answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from controller.simulator.network import Socket
from controller.simulator.process import ProcessClock


class Receiver(Protocol):
    """Who answers, at once or later, once. None closes the connection."""

    def receive(self, frame: bytes, respond: Callable[[bytes | None], None]) -> None: ...


class Server:
    """`accept` takes a connection. `cost` gives the milliseconds until a request that arrived is taken up."""

    def __init__(self, receiver: Receiver, clock: ProcessClock, cost: Callable[[], float]) -> None:
        self._receiver = receiver
        self._clock = clock
        self._cost = cost

    def accept(self, socket: Socket) -> None:
        waiting: deque[bytes] = deque()
        busy = False

        def arrived(frame: bytes) -> None:
            waiting.append(frame)
            take_up()

        def take_up() -> None:
            nonlocal busy
            if waiting and not busy:
                busy = True
                self._clock.call_later(self._cost(), handle)

        def handle() -> None:
            if socket.open:
                self._receiver.receive(waiting.popleft(), respond)

        def respond(frame: bytes | None) -> None:
            nonlocal busy
            if frame is None:
                socket.close()
                return
            socket.send(frame)
            busy = False
            take_up()

        socket.on_frame = arrived
