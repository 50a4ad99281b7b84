"""The controller's channels on real sockets: one ordered channel to each life of a broker.

A request leaves its queue only when its response is there; over a broken connection the same request is sent again,
in its place (KAFKA-1738). Nothing is sent once the term is void, even if what voids it has not been told here yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from loguru import logger

from controller.core.ports import ControlRequest, Endpoint, EventSink
from controller.hosts.connections import AddressMap, BrokerConnection
from controller.hosts.network import NetworkThread
from controller.protocol import MalformedFrame

RETRY_FIRST_S = 0.05
RETRY_LAST_S = 1.0

_BROKEN = (OSError, TimeoutError, asyncio.IncompleteReadError, MalformedFrame)


class BrokerChannels:
    """A term's channels; `close` at its end. Called from the event thread, works on the network thread."""

    def __init__(
        self,
        network: NetworkThread,
        events: EventSink,
        *,
        client_id: str,
        request_timeout_ms: float,
        addresses: AddressMap,
        may_send: Callable[[], bool],
    ) -> None:
        self._network = network
        self._events = events
        self._client_id = client_id
        self._request_timeout_s = request_timeout_ms / 1000
        self._addresses = addresses
        self._may_send = may_send
        self._channels: dict[int, _Channel] = {}
        self._closed = False

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        announced = {endpoint.broker: endpoint for endpoint in brokers}
        for broker, channel in list(self._channels.items()):
            if announced.get(broker) != channel.endpoint:
                del self._channels[broker]
                self._network.call(channel.close)
        for broker, endpoint in announced.items():
            if broker not in self._channels:
                self._channels[broker] = channel = _Channel(self, endpoint)
                self._network.call(channel.open)

    def send(self, broker: int, request: ControlRequest) -> None:
        self._network.call(self._channels[broker].put, request)

    def close(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            self._network.call(channel.close)
        self._channels.clear()

    async def connect(self, endpoint: Endpoint) -> BrokerConnection:
        return await BrokerConnection.open(endpoint.host, endpoint.port, self._client_id, self._addresses)

    async def exchange(self, connection: BrokerConnection, request: ControlRequest) -> bool:
        """Sends one request and queues what its response means. False: the term is over, and nothing was sent."""
        if self._closed or not self._may_send():
            return False
        body = await connection.ask(request.api_key, request.api_version, request.body, self._request_timeout_s)
        if not self._closed and request.response_event is not None:
            self._events.put(request.response_event(body))
        return not self._closed


class _Channel:
    """The queue to one life of a broker, and the task that empties it. Lives on the network thread."""

    def __init__(self, channels: BrokerChannels, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._channels = channels
        self._waiting: deque[ControlRequest] = deque()
        self._filled: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._filled = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, request: ControlRequest) -> None:
        self._waiting.append(request)
        assert self._filled is not None
        self._filled.set()

    def close(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            try:
                connection = await self._channels.connect(self.endpoint)
            except (OSError, TimeoutError):
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_LAST_S)
                continue
            retry_s = RETRY_FIRST_S
            try:
                await self._serve(connection)
                return
            except _BROKEN as error:
                logger.debug("channel to broker {}: {!r}, connecting again", self.endpoint.broker, error)
                await asyncio.sleep(RETRY_FIRST_S)
            finally:
                connection.close()

    async def _serve(self, connection: BrokerConnection) -> None:
        """Until the connection breaks (raises) or the term is over (returns)."""
        assert self._filled is not None
        while True:
            await self._filled.wait()
            while self._waiting:
                if not await self._channels.exchange(connection, self._waiting[0]):
                    return
                self._waiting.popleft()
            self._filled.clear()
