"""A broker's listener over the network in memory: each connection's requests answered one after the other.

As on the real host, a connection's requests are handled in their order, each without the one before having been
answered, and answered in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.broker.request_context import Respond, Steps, finish
from controller.clock import Clock
from controller.machine.process import ProcessClock
from controller.protocol.codec import ApiKey
from controller.protocol.errors import UnencodableValue
from controller.protocol.framing import Part, joined
from controller.simulator.network import Frame, Socket
from controller.storage import StorageError


class Receiver(Protocol):
    """Who answers, at once or later, once; see `Respond`."""

    def receive(self, frame: Any, respond: Respond) -> Steps | None:
        """Handle a request. `frame` is a `Frame`; bytes where no sender uses any other type. Returns what is to be done
        before the connection's next request."""


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
        steps = self._server.receiver.receive(frame, slot)
        if steps is None:
            self._go_on()
        else:
            self._server.run(steps, self._go_on)

    def _go_on(self) -> None:
        self._busy = False
        self._take_up()

    def send_what_is_ready(self) -> None:
        while self._slots and self._slots[0].ready and self._socket.open:
            parts, self._slots = self._slots[0].parts, self._slots[1:]
            self._send(parts)

    def _send(self, parts: Sequence[Part] | None) -> None:
        try:
            frame = None if parts is None else joined(parts)
        except (UnencodableValue, OSError, StorageError):  # the file of a range was truncated or lost meanwhile
            frame = None
        if frame is None:
            self._socket.close()
        elif frame:
            self._socket.send(frame)


def _run_at_once(steps: Steps, ended: Callable[[], None]) -> None:
    finish(steps)
    ended()


@dataclass(eq=False)
class Server:
    """`accept` takes a connection. `cost` gives the milliseconds until a request that arrived is taken up. `run` runs
    the steps of requests."""

    receiver: Receiver
    clock: ProcessClock
    cost: Callable[[], float]
    run: Callable[[Steps, Callable[[], None]], None] = _run_at_once

    def accept(self, socket: Socket) -> None:
        socket.user = _Served(self, socket)


@dataclass(frozen=True, slots=True)
class Unanswered:
    api: str
    waiting_ms: float


class _Awaited:
    """A request that was not answered yet, called with the answer."""

    __slots__ = ("_answers", "_head", "_respond", "at_ms")

    def __init__(self, answers: Answers, head: bytes, at_ms: float, respond: Respond) -> None:
        self._answers = answers
        self._head = head
        self._respond = respond
        self.at_ms = at_ms

    @property
    def api(self) -> str:
        name = _NAMES.get(self._head)
        return f"API {int.from_bytes(self._head, 'big', signed=True)}" if name is None else name

    def __call__(self, parts: Sequence[Part] | None) -> None:
        if self._answers.is_first_to(self):
            self._respond(parts)


class Answers:
    """`twice` is called with a request that was answered a second time; the second response is dropped."""

    def __init__(self, receiver: Receiver, clock: Clock, twice: Callable[[str], None]) -> None:
        self._receiver = receiver
        self._clock = clock
        self._twice = twice
        self._waiting: dict[_Awaited, None] = {}

    def __len__(self) -> int:
        """How many requests wait for their answer."""
        return len(self._waiting)

    def receive(self, frame: Frame, respond: Respond) -> Steps | None:
        head = frame if isinstance(frame, bytes) else frame.head
        awaited = _Awaited(self, head[:2], self._clock.now_ms(), respond)
        self._waiting[awaited] = None
        return self._receiver.receive(frame, awaited)

    def is_first_to(self, awaited: _Awaited) -> bool:
        """Whether it was not answered yet; it is from now on."""
        if awaited in self._waiting:
            del self._waiting[awaited]
            return True
        self._twice(f"a request {awaited.api} was answered twice")
        return False

    def unanswered(self) -> list[Unanswered]:
        """What waits for its answer now, the oldest first."""
        now_ms = self._clock.now_ms()
        return [Unanswered(awaited.api, now_ms - awaited.at_ms) for awaited in self._waiting]


_NAMES = {key.to_bytes(2, "big", signed=True): key.name for key in ApiKey}
