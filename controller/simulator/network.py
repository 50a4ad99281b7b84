"""The network in memory: connections that carry frames in order, as TCP would, between processes that may not last.

A frame arrives after its latency and after what was sent before it. A link is what one node opens to another, with
the replies on it; while it is cut nothing passes and nothing is refused, whoever waits waits until its own deadline,
and what was sent arrives once it is healed, unless its receiver has closed. A process that dies has its sockets
closed by its machine: the other end hears of it, over a cut link only after that is healed. One that is paused has its
connections accepted and its bytes kept. A frame is whole here: how a stream is cut into frames is the real host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.clock import VirtualClock
from controller.simulator.process import Process
from controller.zookeeper.memory_link import Pipe

Address = tuple[str, int]

_SYN: Final = object()
_ACCEPTED: Final = object()
_CLOSED: Final = object()


def _nothing() -> None:
    pass


class Socket:
    """One process's end of a connection. `on_frame` and `on_closed` are set by whoever takes the end; the latter is
    called once, when the other end has closed or refused, and not after an own `close`."""

    __slots__ = ("_out", "_process", "on_accepted", "on_closed", "on_frame", "open")

    def __init__(self, process: Process, out: Pipe) -> None:
        self._process = process
        self._out = out
        self.open = True
        self.on_accepted: Callable[[], None] = _nothing
        self.on_frame: Callable[[bytes], None] = lambda frame: None
        self.on_closed: Callable[[], None] = _nothing
        process.at_death(self.close)

    def send(self, frame: bytes) -> None:
        """Dropped on a socket that is closed at this end or, as far as this end knows, at the other."""
        if self.open:
            self._out.send(frame)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._out.send(_CLOSED)

    def arrive(self, message: object) -> None:
        """Something came through the pipe, to this end's machine."""
        self._process.deliver(lambda: self._hand_over(message))

    def _hand_over(self, message: object) -> None:
        if not self.open:
            return
        if isinstance(message, bytes):
            self.on_frame(message)
        elif message is _ACCEPTED:
            self.on_accepted()
        else:
            self.open = False
            self.on_closed()


class _Listener:
    __slots__ = ("accept", "process")

    def __init__(self, process: Process, accept: Callable[[Socket], None]) -> None:
        self.process = process
        self.accept = accept


class _Connection:
    """A connection that `near` opened. `link`: who opened it to whom. The far end comes to be when the first message
    arrives where somebody listens."""

    def __init__(
        self,
        clock: VirtualClock,
        process: Process,
        link: tuple[int, int],
        latency: Callable[[int, int], float],
        listener: Callable[[], _Listener | None],
    ) -> None:
        self.link = link
        self._listener = listener
        self._refused = False
        self._forth = Pipe(clock, lambda: latency(*link), self._at_far)
        self._back = Pipe(clock, lambda: latency(link[1], link[0]), self._at_near)
        self.near = Socket(process, self._forth)
        self.far: Socket | None = None

    @property
    def is_over(self) -> bool:
        return not self.near.open and (self._refused or (self.far is not None and not self.far.open))

    def start(self, *, cut: bool) -> None:
        if cut:
            self.cut()
        self._forth.send(_SYN)

    def cut(self) -> None:
        self._forth.cut()
        self._back.cut()

    def heal(self) -> None:
        self._forth.heal()
        self._back.heal()

    def _at_near(self, message: object) -> None:
        self.near.arrive(message)

    def _at_far(self, message: object) -> None:
        if self.far is not None:
            self.far.arrive(message)
        elif not self._refused:
            self._answer()

    def _answer(self) -> None:
        """The machine accepts or refuses; the process that listens need not run just now."""
        listener = self._listener()
        if listener is None:
            self._refused = True
            self._back.send(_CLOSED)
            return
        far = self.far = Socket(listener.process, self._back)
        self._back.send(_ACCEPTED)
        listener.process.deliver(lambda: listener.accept(far))


class Network:
    """`latency` gives the milliseconds that a message takes, one way: (from node, to node) -> ms. `place` tells which
    node an address is on."""

    def __init__(
        self, clock: VirtualClock, latency: Callable[[int, int], float], place: Callable[[Address], int]
    ) -> None:
        self._clock = clock
        self._latency = latency
        self._place = place
        self._listeners: dict[Address, _Listener] = {}
        self._connections: list[_Connection] = []
        self._cut: set[tuple[int, int]] = set()  # asked whether it holds a link, never walked

    def listen(self, process: Process, address: Address, accept: Callable[[Socket], None]) -> None:
        """From now on, until the process dies, connections to `address` are accepted. ValueError if it is taken."""
        taken = self._listener(address)
        if taken is not None:
            raise ValueError(f"{address[0]}:{address[1]} is taken by {taken.process.name}")
        self._listeners[address] = _Listener(process, accept)

    def _listener(self, address: Address) -> _Listener | None:
        listener = self._listeners.get(address)
        return listener if listener is not None and listener.process.alive else None

    def dial(self, node: int, process: Process, address: Address, answered: Callable[[bool], None]) -> Socket:
        """Opens a connection from a process on `node`. `answered` is told whether it was accepted or refused; over a
        cut link it is told nothing, and whoever waits closes the socket when it has waited long enough."""
        link = (node, self._place(address))
        connection = _Connection(self._clock, process, link, self._latency, lambda: self._listener(address))
        near = connection.near
        near.on_accepted, near.on_closed = lambda: answered(True), lambda: answered(False)
        self._connections = [each for each in self._connections if not each.is_over]
        self._connections.append(connection)
        connection.start(cut=link in self._cut)
        return near

    def cut(self, source: int, target: int) -> None:
        """Cuts what `source` opens to `target`, both ways, without a word to either."""
        self._cut.add((source, target))
        for connection in self._on(source, target):
            connection.cut()

    def heal(self, source: int, target: int) -> None:
        self._cut.discard((source, target))
        for connection in self._on(source, target):
            connection.heal()

    def _on(self, source: int, target: int) -> list[_Connection]:
        return [connection for connection in self._connections if connection.link == (source, target)]
