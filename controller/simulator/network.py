"""The simulated network: connections that carry frames in order, as TCP does, between processes that may die.

A frame arrives after its latency and after the frames sent before it. A link is what one node opens to another, with
the responses on it. While a link is cut, nothing passes and nothing is refused; requests wait until their own
deadlines, and what was sent arrives once the link is healed, unless its receiver has closed. When a process dies, its
machine closes its sockets: the other end learns of it, over a cut link only after that is healed. A paused process has
its connections accepted and its bytes buffered. Frames are never split here: the real host divides a stream into
frames.

Other defects of a link are a `LinkCondition`. No single message is lost or duplicated. But if a client
repeats a request over a new connection while the bytes of the old one are still under way (`reset` with `late_ms`), the
receiver gets both, the later one first, as it happens in a cluster.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from controller.clock import VirtualClock
from controller.machine.process import Process

FIRST_RETRANSMISSION_MS: Final = 200.0
"""Linux's least retransmission timeout; it doubles with each attempt."""
ATTEMPTS: Final = 6
"""Fewer than a real stack's 15, which are many minutes: a way so bad breaks connections within seconds."""


@dataclass(frozen=True, slots=True)
class LinkCondition:
    """`slower` times the usual latency and `more_ms`; `loss` is the chance of each packet; `shut`: nothing arrives."""

    slower: float = 1.0
    more_ms: float = 0.0
    loss: float = 0.0
    shut: bool = False

    def __post_init__(self) -> None:
        if self.slower <= 0 or self.more_ms < 0 or not 0 <= self.loss < 1:
            raise ValueError(f"{self}: expected slower above 0, more_ms of 0 or more, loss from 0 to below 1")


GOOD: Final = LinkCondition()


def retransmissions_ms(rng: Random, loss: float) -> float | None:
    """By how much one message is late for the packets lost; None: it never gets through, and the connection breaks."""
    late_ms = 0.0
    for attempt in range(ATTEMPTS):
        if rng.random() >= loss:
            return late_ms
        late_ms += FIRST_RETRANSMISSION_MS * 2.0**attempt
    return None


class Pipe(metaclass=ABCMeta):
    """Override `takes_ms` and `deliver`: a world has a million of them, and what one holds counts."""

    __slots__ = ("_clock", "_closed", "_due_ms", "_generation", "_held", "_queue")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._queue: list[Any] | tuple[()] = ()
        self._generation = 0
        self._held = False
        self._closed = False
        self._due_ms = 0.0

    @abstractmethod
    def takes_ms(self) -> float:
        """How long the next message is under way."""

    @abstractmethod
    def deliver(self, message: Any) -> None:
        """It has arrived."""

    def send(self, message: Any) -> None:
        if self._closed:
            return
        if self._queue:
            self._queue.append(message)
        else:
            self._queue = [message]
        if not self._held:
            self._schedule()

    def hold(self, held: bool) -> None:
        """Whether what is in it, and what is sent into it, stays there from now on."""
        if held == self._held:
            return
        self._held = held
        self._again()

    def put_off(self, delay_ms: float) -> None:
        """What is in it arrives `delay_ms` from now, at the earliest."""
        self._due_ms = max(self._due_ms, self._clock.now_ms() + delay_ms)
        self._again()

    def close(self) -> None:
        """What is in it, and what is still sent, is lost."""
        self._closed = True
        self._queue = ()
        self._generation += 1

    def _again(self) -> None:
        """Forgets when what is in it was to arrive, and says so anew."""
        self._generation += 1
        if not self._held:
            for _ in self._queue:
                self._schedule()

    def _schedule(self) -> None:
        now_ms = self._clock.now_ms()
        delay_ms = self.takes_ms()
        due_ms = now_ms + delay_ms
        if due_ms < self._due_ms:
            delay_ms = self._due_ms - now_ms
        else:
            self._due_ms = due_ms
        self._clock.call_later(delay_ms, partial(self._arrive, self._generation))

    def _arrive(self, generation: int) -> None:
        # The queue gives the order; a timer only says that one more has arrived.
        if generation == self._generation:
            queue = self._queue
            assert queue
            message = queue.pop(0)
            if not queue:
                self._queue = ()
                if self._due_ms <= self._clock.now_ms():
                    self._due_ms = 0.0  # which says as much, and is one object for all that are empty
            self.deliver(message)


Address = tuple[str, int]

_SYN: Final = object()
_ACCEPTED: Final = object()
_CLOSED: Final = object()


def _unanswered(_accepted: bool) -> None:
    pass


def _unread(_frame: Any) -> None:
    pass


class SharedFrame:
    """A frame whose end is one object for many receivers (an UpdateMetadata of a whole estate): it is not copied."""

    __slots__ = ("head", "rest")

    def __init__(self, head: bytes, rest: bytes) -> None:
        self.head = head
        self.rest = rest

    def joined(self) -> bytes:
        return self.head + self.rest


Frame: TypeAlias = bytes | SharedFrame
_FRAMES: Final = (bytes, SharedFrame)


class User(Protocol):
    """Who has an end of a connection."""

    def answered(self, accepted: bool) -> None:
        """The connection was accepted; or it was refused, or the other end has closed: once, and not after an own
        `close`."""

    def arrived(self, frame: Any) -> None:
        """A frame came."""


class _Callbacks:
    """A user made of functions."""

    __slots__ = ("on_answered", "on_closed", "on_frame")

    def __init__(self, answered: Callable[[bool], None] = _unanswered) -> None:
        self.on_answered = answered
        self.on_frame: Callable[[Any], None] = _unread
        self.on_closed: Callable[[], None] | None = None

    def answered(self, accepted: bool) -> None:
        if accepted or self.on_closed is None:
            self.on_answered(accepted)
        else:
            self.on_closed()

    def arrived(self, frame: Any) -> None:
        self.on_frame(frame)


class Socket:
    """One process's end of a connection. Whoever takes it sets `user`; or functions, `on_frame` and `on_closed`, of
    which the latter is called in place of an `answered` that says that it closed."""

    __slots__ = ("_out", "_process", "open", "user")

    def __init__(self, process: Process, out: Pipe, user: User | None = None) -> None:
        self._process = process
        self._out = out
        self.open = True
        self.user: User | None = user
        process.owns(self)

    @property
    def on_frame(self) -> Callable[[Any], None]:
        return self._callbacks().on_frame

    @on_frame.setter
    def on_frame(self, take: Callable[[Any], None]) -> None:
        self._callbacks().on_frame = take

    @property
    def on_closed(self) -> Callable[[], None] | None:
        return self._callbacks().on_closed

    @on_closed.setter
    def on_closed(self, closed: Callable[[], None] | None) -> None:
        self._callbacks().on_closed = closed

    def _callbacks(self) -> _Callbacks:
        if not isinstance(self.user, _Callbacks):
            assert self.user is None, "it has a user"
            self.user = _Callbacks()
        return self.user

    def send(self, frame: Frame) -> None:
        """Dropped on a socket that is closed at this end or, as far as this end knows, at the other."""
        if self.open:
            self._out.send(frame)

    def close(self) -> None:
        if self.open:
            self._over()
            self._out.send(_CLOSED)

    def arrive(self, message: object) -> None:
        """Something came through the pipe, to this end's machine."""
        if self._process.runs_freely:
            self._hand_over(message)
        else:
            self._process.deliver(lambda: self._hand_over(message))

    def _hand_over(self, message: object) -> None:
        if not self.open:
            return
        user = self.user
        if isinstance(message, _FRAMES):
            if user is not None:
                user.arrived(message)
        elif message is _ACCEPTED:
            if user is not None:
                user.answered(True)
        else:
            self._over()
            if user is not None:
                user.answered(False)

    def _over(self) -> None:
        self.open = False
        self._process.lets_go(self)


class _Listener:
    __slots__ = ("accept", "process")

    def __init__(self, process: Process, accept: Callable[[Socket], None]) -> None:
        self.process = process
        self.accept = accept


class _Way(Pipe):
    """From one end of a connection to the other."""

    __slots__ = ("_connection",)

    def __init__(self, clock: VirtualClock, connection: _Connection) -> None:
        super().__init__(clock)
        self._connection = connection


class _Forth(_Way):
    """From the end that opened it."""

    __slots__ = ()

    def takes_ms(self) -> float:
        connection = self._connection
        source, target = connection.link
        return connection.network.delay_ms(connection, source, target)

    def deliver(self, message: object) -> None:
        self._connection.at_far(message)


class _Back(_Way):
    __slots__ = ()

    def takes_ms(self) -> float:
        connection = self._connection
        source, target = connection.link
        return connection.network.delay_ms(connection, target, source)

    def deliver(self, message: object) -> None:
        self._connection.near.arrive(message)


class _Connection:
    """A connection that `near` opened to `address`. `link`: who opened it to whom. The far end comes to be when the
    first message arrives where somebody listens."""

    __slots__ = ("_address", "_back", "_forth", "_refused", "far", "link", "near", "network")

    def __init__(
        self,
        network: Network,
        clock: VirtualClock,
        process: Process,
        link: tuple[int, int],
        address: Address,
        user: User,
    ) -> None:
        self.network = network
        self.link = link
        self._address = address
        self._refused = False
        self._forth = _Forth(clock, self)
        self._back = _Back(clock, self)
        self.near = Socket(process, self._forth, user)
        self.far: Socket | None = None

    @property
    def is_over(self) -> bool:
        return not self.near.open and (self._refused or (self.far is not None and not self.far.open))

    def start(self) -> None:
        self._forth.send(_SYN)

    def hold(self, forth: bool, back: bool) -> None:
        self._forth.hold(forth)
        self._back.hold(back)

    def reset(self) -> None:
        """Both ends hear at once that it broke; what was on its way is lost."""
        self._forth.close()
        self._back.close()
        self._refused = self.far is None
        self.near.arrive(_CLOSED)
        if self.far is not None:
            self.far.arrive(_CLOSED)

    def break_off(self, late_ms: float) -> None:
        """The end that opened it takes it for broken now; what that has sent arrives all the same, `late_ms` later."""
        self._back.close()
        self.near.arrive(_CLOSED)
        self._forth.send(_CLOSED)
        self._forth.put_off(late_ms)

    def at_far(self, message: object) -> None:
        if self.far is not None:
            self.far.arrive(message)
        elif not self._refused:
            self._answer()

    def _answer(self) -> None:
        """The machine accepts or refuses; the process that listens need not run just now."""
        listener = self.network.listener(self._address)
        if listener is None:
            self._refused = True
            self._back.send(_CLOSED)
            return
        far = self.far = Socket(listener.process, self._back)
        self._back.send(_ACCEPTED)
        listener.process.deliver(lambda: listener.accept(far))


class Network:
    """The links between nodes.

    `latency` returns the one-way latency in milliseconds: (from node, to node) -> ms. `place` returns the node of an
    address. `rng` decides which messages a lossy link loses.
    """

    def __init__(
        self,
        clock: VirtualClock,
        latency: Callable[[int, int], float],
        place: Callable[[Address], int],
        rng: Random | None = None,
    ) -> None:
        self._clock = clock
        self._latency = latency
        self._place = place
        self._rng = Random(0) if rng is None else rng
        self._listeners: dict[Address, _Listener] = {}
        self._connections: dict[tuple[int, int], _Connection | tuple[_Connection, ...]] = {}
        """By link: nearly always one."""
        self._cut: dict[tuple[int, int], None] = {}
        self._ways: dict[tuple[int, int], LinkCondition] = {}

    def listen(self, process: Process, address: Address, accept: Callable[[Socket], None]) -> None:
        """From now on, until the process dies, connections to `address` are accepted. ValueError if it is taken."""
        taken = self.listener(address)
        if taken is not None:
            raise ValueError(f"{address[0]}:{address[1]} is taken by {taken.process.name}")
        self._listeners[address] = _Listener(process, accept)

    def listener(self, address: Address) -> _Listener | None:
        """Who would be asked now."""
        listener = self._listeners.get(address)
        return listener if listener is not None and listener.process.alive else None

    def dial(self, node: int, process: Process, address: Address, answered: Callable[[bool], None]) -> Socket:
        """Open a connection from a process on `node`.

        `answered` is called with whether the connection was accepted. Over a cut link it is not called, and the caller
        closes the socket after its own timeout.
        """
        return self.open(node, process, address, _Callbacks(answered))

    def open(self, node: int, process: Process, address: Address, user: User) -> Socket:
        """As `dial`, for who is its user from then on."""
        link = (node, self._place(address))
        connection = _Connection(self, self._clock, process, link, address, user)
        kept = [each for each in self._opened(link) if not each.is_over]
        self._connections[link] = (*kept, connection) if kept else connection
        if self._cut or self._ways:
            connection.hold(*self._held(link))
        connection.start()
        return connection.near

    def _opened(self, link: tuple[int, int]) -> tuple[_Connection, ...]:
        opened = self._connections.get(link, ())
        return (opened,) if isinstance(opened, _Connection) else opened

    # -- what can be wrong with it

    def cut(self, source: int, target: int) -> None:
        """Cuts what `source` opens to `target`, both ways, without a word to either."""
        self._cut[source, target] = None
        self._set((source, target))

    def heal(self, source: int, target: int) -> None:
        self._cut.pop((source, target), None)
        self._set((source, target))

    def set_way(self, source: int, target: int, condition: LinkCondition) -> None:
        """How what `source` sends to `target` fares from now on, whichever of them opened the connection."""
        if condition == GOOD:
            self._ways.pop((source, target), None)
        else:
            self._ways[source, target] = condition
        self._set((source, target))
        self._set((target, source))

    def way(self, source: int, target: int) -> LinkCondition:
        return self._ways.get((source, target), GOOD)

    def reset(self, source: int, target: int, late_ms: float | None = None) -> None:
        """Breaks what `source` has opened to `target`: both ends see it, and what was on its way is lost; or, with
        `late_ms`, `source` alone does, and what it had sent arrives so much later."""
        for connection in self._opened((source, target)):
            if connection.near.open:
                connection.reset() if late_ms is None else connection.break_off(late_ms)

    def heal_all(self) -> None:
        """Every link is healed, every way good."""
        for link in list(self._cut):
            self.heal(*link)
        for source, target in list(self._ways):
            self.set_way(source, target, GOOD)

    def _held(self, link: tuple[int, int]) -> tuple[bool, bool]:
        source, target = link
        cut = link in self._cut
        return cut or self.way(source, target).shut, cut or self.way(target, source).shut

    def _set(self, link: tuple[int, int]) -> None:
        for connection in self._opened(link):
            connection.hold(*self._held(link))

    def delay_ms(self, connection: _Connection, source: int, target: int) -> float:
        """How long the next message of it takes from one of its nodes to the other."""
        delay_ms = self._latency(source, target)
        if not self._ways:
            return delay_ms
        condition = self.way(source, target)
        delay_ms = delay_ms * condition.slower + condition.more_ms
        if condition.loss:
            again_ms = retransmissions_ms(self._rng, condition.loss)
            if again_ms is None:
                self._clock.call_later(delay_ms, connection.reset)
            else:
                delay_ms += again_ms
        return delay_ms
