"""Requests to other brokers: single ones, over a connection of their own each, and lasting connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.broker.ports import PeerError, PeerTimedOut, PeerUnreachable
from controller.broker.setting_types import Address, address_text
from controller.hosts.network import NetworkThread
from controller.hosts.wire import Wire
from controller.pending import Pending
from controller.protocol.errors import ProtocolError


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
    """See `PeerConnection`. `address` is what errors name, `dialled` where it is opened to."""

    def __init__(self, network: NetworkThread, client_id: str, address: Address, dialled: Address) -> None:
        self._network = network
        self._client_id = client_id
        self._address = address
        self._dialled = dialled
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: Pending[bytes] | None = None
        self._over: PeerError | None = None
        """Why it is of no more use."""

    def request(self, api_key: int, api_version: int, body: bytes, timeout_ms: float) -> Pending[bytes]:
        if self._asking is not None and not self._asking.done:
            raise RuntimeError(f"{self}: asked again before the answer")
        self._asking = pending = Pending[bytes]()

        def begin() -> None:
            if self._over is not None:
                pending.fail(self._over)
                return
            # Kept here, since the loop itself has only a weak reference.
            self._task = self._network.loop.create_task(self._ask(pending, api_key, api_version, body, timeout_ms))
            self._task.add_done_callback(lambda task: self._ended(task, pending))

        self._network.call(begin)
        return pending

    def close(self) -> None:
        self._network.call(self._close)

    def _close(self) -> None:
        self._end(PeerUnreachable(f"{self}: closed at this end"))
        if self._task is not None:
            self._task.cancel()

    async def _ask(
        self, pending: Pending[bytes], api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1_000.0):
                if self._wire is None:
                    self._wire = await Wire.connect(self._dialled, self._client_id)
                answer = await self._wire.exchange(api_key, api_version, body)
        except TimeoutError:
            raise self._end(PeerTimedOut(f"{self}: no answer in {timeout_ms:.0f} ms")) from None
        except (OSError, EOFError, ProtocolError) as error:
            raise self._end(PeerUnreachable(f"{self}: {error}")) from error
        self._task = None
        pending.resolve(answer)

    def _ended(self, task: asyncio.Task[None], pending: Pending[bytes]) -> None:
        """Also of a task that was cancelled before it had begun: whoever asked is answered all the same."""
        error = PeerUnreachable(f"{self}: this broker's network is closed") if task.cancelled() else task.exception()
        if error is not None:
            self._task = None
            pending.fail(self._end(error) if isinstance(error, PeerError) else error)

    def _end(self, why: PeerError) -> PeerError:
        """The first reason, which is given from then on."""
        if self._over is None:
            self._over = why
        if self._wire is not None:
            self._wire.close()
        return self._over

    def __str__(self) -> str:
        return address_text(self._address)
