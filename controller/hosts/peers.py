"""Requests to other brokers: single ones, over a connection of their own each, and lasting connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.broker.configs.setting_types import Address, address_text
from controller.broker.ports import PeerError, PeerTimedOut, PeerUnreachable
from controller.hosts.network import NetworkThread
from controller.hosts.wire import Link, Outcome, body_of, framed_head
from controller.pending import Pending
from controller.protocol.api_keys import ApiKey
from controller.protocol.errors import ProtocolError
from controller.protocol.headers import RequestHeader


class SocketPeers:
    """`dial` says where to connect to for an address (the settings' address map)."""

    def __init__(self, network: NetworkThread, client_id: str, dial: Callable[[str, int], Address]) -> None:
        self._network = network
        self._client_id = client_id
        self._dial = dial

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Pending[bytes]:
        connection = self.connect(host, port)
        answer = connection.request(api_key, api_version, body, timeout_ms)
        answer.on_done(connection.close)
        return answer

    def connect(self, host: str, port: int, client_id: str | None = None) -> SocketConnection:
        return SocketConnection(self._network, client_id or self._client_id, (host, port), self._dial(host, port))


class SocketConnection:
    """See `PeerConnection`. `address` is what errors name, `dialled` where it is opened to.

    A question goes out and its answer is handed on without a turn of the loop in between: a follower asks over and
    over, and each turn costs a look at every socket.
    """

    def __init__(self, network: NetworkThread, client_id: str, address: Address, dialled: Address) -> None:
        self._network = network
        self._client_id = client_id
        self._address = address
        self._dialled = dialled
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None
        self._asking: _Asking | None = None
        self._correlation_id = 0
        self._over: PeerError | None = None
        """Why it is of no more use."""

    def request(self, api_key: int, api_version: int, body: bytes, timeout_ms: float) -> Pending[bytes]:
        if self._asking is not None:
            raise RuntimeError(f"{self}: asked again before the answer")
        header = RequestHeader(ApiKey(api_key), api_version, self._correlation_id, self._client_id)
        self._correlation_id += 1
        self._asking = asking = _Asking(header, body)
        self._network.call(lambda: self._begin(asking, timeout_ms))
        return asking.answer

    def close(self) -> None:
        self._network.call(lambda: self._end(PeerUnreachable(f"{self}: closed at this end")))

    # -- on the loop

    def _begin(self, asking: _Asking, timeout_ms: float) -> None:
        if self._over is not None:
            self._end(self._over)
            return
        late = PeerTimedOut(f"{self}: no answer in {timeout_ms:.0f} ms")
        asking.timer = self._network.loop.call_later(timeout_ms / 1_000.0, self._end, late)
        if self._link is not None:
            self._send(self._link, asking)
        elif self._opening is None:
            # Kept here, since the loop itself has only a weak reference.
            self._opening = self._network.loop.create_task(self._open(asking))
            self._opening.add_done_callback(self._opened)

    async def _open(self, asking: _Asking) -> None:
        """And stays until the connection is over, so that whoever waits is answered when the loop ends."""
        self._link = link = await Link.connect(self._dialled)
        self._send(link, asking)
        await self._network.loop.create_future()

    def _opened(self, opening: asyncio.Task[None]) -> None:
        error = None if opening.cancelled() else opening.exception()
        why = "this broker's network is closed" if error is None else str(error)
        self._end(PeerUnreachable(f"{self}: {why}"))

    def _send(self, link: Link, asking: _Asking) -> None:
        link.expect(lambda outcome: self._answered(asking, outcome))
        link.write(framed_head(asking.header, len(asking.body)) + asking.body)

    def _answered(self, asking: _Asking, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self._end(PeerUnreachable(f"{self}: {outcome}"))
            return
        try:
            body = body_of(asking.header, outcome)
        except ProtocolError as error:
            self._end(PeerUnreachable(f"{self}: {error}"))
            return
        self._settled(asking)
        asking.answer.resolve(body)

    def _settled(self, asking: _Asking) -> None:
        self._asking = None
        if asking.timer is not None:
            asking.timer.cancel()

    def _end(self, why: PeerError) -> None:
        """The first reason counts, and is given from then on."""
        if self._over is None:
            self._over = why
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close()
        asking = self._asking
        if asking is not None:
            self._settled(asking)
            asking.answer.fail(self._over)

    def __str__(self) -> str:
        return address_text(self._address)


@dataclass(slots=True)
class _Asking:
    """One question that is under way."""

    header: RequestHeader
    body: bytes
    answer: Pending[bytes] = field(default_factory=Pending)
    timer: asyncio.TimerHandle | None = None
