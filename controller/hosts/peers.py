"""Single requests to other brokers, each over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.broker.ports import PeerTimedOut, PeerUnreachable
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
        self._tasks: set[asyncio.Task[None]] = set()

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Pending[bytes]:
        pending: Pending[bytes] = Pending()

        async def ask() -> None:
            try:
                async with asyncio.timeout(timeout_ms / 1_000.0):
                    answer = await self._exchange((host, port), api_key, api_version, body)
            except TimeoutError:
                pending.fail(PeerTimedOut(f"{address_text((host, port))}: no answer in {timeout_ms:.0f} ms"))
            except (OSError, EOFError, ProtocolError) as error:
                pending.fail(PeerUnreachable(f"{address_text((host, port))}: {error}"))
            except asyncio.CancelledError:
                pending.fail(PeerUnreachable(f"{address_text((host, port))}: this broker's network is closed"))
                raise
            else:
                pending.resolve(answer)

        def begin() -> None:
            task = self._network.loop.create_task(ask())
            self._tasks.add(task)  # the loop itself keeps only a weak reference
            task.add_done_callback(self._tasks.discard)

        self._network.call(begin)
        return pending

    async def _exchange(self, address: Address, api_key: int, api_version: int, body: bytes) -> bytes:
        wire = await Wire.connect(self._dial(*address), self._client_id)
        try:
            return await wire.exchange(api_key, api_version, body)
        finally:
            wire.close()
