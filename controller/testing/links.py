"""A broker's own connections to other brokers, with the faults of a link: cut, slow, and the pause of its process.

A cut link loses nothing: TCP sends again. A request or an answer that meets the cut waits for its end, while the
timeout of the request runs on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from controller.broker.settings import Address
from controller.clock import Clock, Future, Timer
from controller.core.channels import PeerError, PeerTimedOut, PeerUnreachable, ask_once
from controller.hosts.peers import SocketConnection, SocketPeers
from controller.machine.process import Process


class Links:
    """Which links between brokers are cut, what waits for that to end, and which brokers are slow. A link is directed:
    what its source opens to its target, with the answers on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cut: dict[tuple[int, int], deque[Callable[[], None]]] = {}
        self.slow_ms: dict[int, float] = {}
        """By broker: added to each of its messages."""

    def cut(self, source: int, target: int) -> None:
        self._cut.setdefault((source, target), deque())

    def heal(self, source: int, target: int) -> None:
        """What waits goes on, in its order."""
        waiting = self._cut.pop((source, target), deque())
        for action in waiting:
            action()

    def cut_from(self, broker: int) -> list[int]:
        """Return the brokers to which the broker's link is cut."""
        return [target for source, target in self._cut if source == broker]

    def pass_on(self, link: tuple[int, int], sender: int, action: Callable[[], None]) -> None:
        """Run `action` once a message of `sender` has passed the link."""
        waiting = self._cut.get(link) if self._cut else None
        if waiting is not None:
            waiting.append(action)
        elif self.slow_ms and (slow_ms := self.slow_ms.get(sender, 0.0)):
            self._clock.call_later(slow_ms, action)
        else:
            action()


class FaultyConnection:
    """A `ChannelConnection` over a link. `peer`: the broker at the other end, None while it is not known."""

    def __init__(self, peers: FaultyPeers, inner: SocketConnection, peer: int | None) -> None:
        self._peers = peers
        self._inner = inner
        self._peer = peer
        self._timer: Timer | None = None
        self._outer: Future[None] | Future[bytes] | None = None
        self._over: PeerError | None = None

    def open(self, timeout_ms: float) -> Future[None]:
        opened: Future[None] = Future()
        self._begin(opened, timeout_ms, lambda left_ms: self._inner.open(left_ms))
        return opened

    def request(
        self, api_key: int, api_version: int, body: bytes, timeout_ms: float, rest: bytes = b""
    ) -> Future[bytes]:
        answer: Future[bytes] = Future()
        send = partial(self._inner.request, api_key, api_version, body, rest=rest)
        self._begin(answer, timeout_ms, lambda left_ms: send(timeout_ms=left_ms))
        return answer

    def close(self) -> None:
        self._end(PeerUnreachable(f"{self._inner}: closed at this end"))

    def _begin(self, outer: Future, timeout_ms: float, start: Callable[[float], Future]) -> None:  # type: ignore[type-arg]
        if self._over is not None:
            outer.fail(self._over)
            return
        peers = self._peers
        until_ms = peers.clock.now_ms() + timeout_ms
        self._outer = outer
        late = PeerTimedOut(f"{self._inner}: no answer in {timeout_ms:.0f} ms")
        self._timer = peers.clock.call_later(timeout_ms, lambda: self._end(late))

        def sent() -> None:
            if self._outer is not outer:
                return
            inner = start(max(until_ms - peers.clock.now_ms(), 1.0))
            inner.on_done(lambda: self._back(lambda: answered(inner)))

        def answered(inner: Future) -> None:  # type: ignore[type-arg]
            if self._outer is not outer:
                return
            if isinstance(inner.error, PeerError):
                self._end(inner.error)
                return
            self._outer = None
            if self._timer is not None:
                self._timer.cancel()
            outer.resolve(inner.result())

        self._pass_on(sent, outwards=True)

    def _back(self, action: Callable[[], None]) -> None:
        """Something came from the other end: it passes the link, then waits for the process to run."""
        self._pass_on(lambda: self._peers.process.deliver(action), outwards=False)

    def _pass_on(self, action: Callable[[], None], *, outwards: bool) -> None:
        if self._peer is None:
            action()
            return
        source = self._peers.broker
        self._peers.links.pass_on((source, self._peer), source if outwards else self._peer, action)

    def _end(self, why: PeerError) -> None:
        if self._over is None:
            self._over = why
        self._peers.open_connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        outer, self._outer = self._outer, None
        self._inner.close()
        if outer is not None:
            outer.fail(self._over)


@dataclass(eq=False)
class FaultyPeers:
    """A broker's `Peers`. `broker_at` says which broker listens at an address."""

    broker: int
    process: Process
    clock: Clock
    links: Links
    _inner: SocketPeers
    _broker_at: Callable[[Address], int | None]
    open_connections: dict[FaultyConnection, None] = field(default_factory=dict, init=False)

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        return ask_once(self.connect(host, port), api_key, api_version, body, timeout_ms)

    def connect(self, host: str, port: int, client_id: str | None = None) -> FaultyConnection:
        inner = self._inner.connect(host, port, client_id)
        connection = FaultyConnection(self, inner, self._broker_at((host, port)))
        self.open_connections[connection] = None
        return connection

    def close(self) -> None:
        """Close every connection, since the process is dead."""
        for connection in list(self.open_connections):
            connection.close()
