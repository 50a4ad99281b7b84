"""Single requests to other brokers, over a connection each: what a broker asks of its controller."""

from __future__ import annotations

import asyncio

from controller.broker.ports import PeerTimedOut, PeerUnreachable
from controller.hosts.connections import AddressMap, BrokerConnection
from controller.hosts.network import NetworkThread
from controller.pending import Pending
from controller.protocol import MalformedFrame


class SocketPeers:
    """Works on the network thread; asked from any."""

    def __init__(self, network: NetworkThread, client_id: str, addresses: AddressMap) -> None:
        self._network = network
        self._client_id = client_id
        self._addresses = addresses
        self._asking: set[asyncio.Task[None]] = set()

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Pending[bytes]:
        pending: Pending[bytes] = Pending()

        def begin() -> None:
            asking = self._ask(pending, host, port, api_key, api_version, body, timeout_ms / 1000)
            task = self._network.loop.create_task(asking)
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

        self._network.call(begin)
        return pending

    async def _ask(
        self, pending: Pending[bytes], host: str, port: int, api_key: int, version: int, body: bytes, timeout_s: float
    ) -> None:
        where = f"{host}:{port}"
        try:
            connection = await BrokerConnection.open(host, port, self._client_id, self._addresses)
        except (OSError, TimeoutError) as error:
            pending.fail(PeerUnreachable(f"{where}: {error}"))
            return
        try:
            pending.resolve(await connection.ask(api_key, version, body, timeout_s))
        except TimeoutError:
            pending.fail(PeerTimedOut(f"{where}: no answer in {timeout_s:g} s"))
        except (OSError, asyncio.IncompleteReadError, MalformedFrame) as error:
            pending.fail(PeerUnreachable(f"{where}: {error!r}"))
        finally:
            connection.close()
