"""The controller's channels over the network in memory, and a broker's single requests to its peers.

The rules are those of the real host's channels: a request leaves its queue only when its response is there; over a
broken connection the same request is sent again, in its place (KAFKA-1738); a channel belongs to one life of a broker;
nothing is sent once the term is void.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache

from controller.broker.ports import PeerError
from controller.core.ports import ControlRequest, Endpoint, EventSink
from controller.pending import Pending
from controller.simulator.network import Address
from controller.simulator.process import ProcessClock
from controller.simulator.requests import BrokerConnection
from controller.zookeeper.drive import drive

RETRY_FIRST_MS = 50.0
RETRY_LAST_MS = 1_000.0
LOOK_AGAIN_MS = 20.0
"""How long a request waits that may not go out, before the term is looked at again: an acknowledged ping may have
extended its lease, otherwise the channels are about to be closed."""

Connect = Callable[[Address], BrokerConnection]
"""A new connection of this process's to an address, not opened yet."""


class SimulatedChannels:
    """A term's channels; `close` at its end. `may_send` is asked before each request goes out."""

    def __init__(
        self,
        connect: Connect,
        clock: ProcessClock,
        events: EventSink,
        request_timeout_ms: float,
        may_send: Callable[[], bool],
    ) -> None:
        self.connect = connect
        self.clock = clock
        self.events = events
        self.request_timeout_ms = request_timeout_ms
        self.may_send = may_send
        self._channels: dict[int, _Channel] = {}

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        announced = {endpoint.broker: endpoint for endpoint in brokers}
        for broker, channel in list(self._channels.items()):
            if announced.get(broker) != channel.endpoint:
                del self._channels[broker]
                channel.close()
        for broker, endpoint in announced.items():
            if broker not in self._channels:
                self._channels[broker] = _Channel(self, endpoint)

    def send(self, broker: int, request: ControlRequest) -> None:
        self._channels[broker].put(request)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


class _Channel:
    """The queue to one life of a broker, and the coroutine that empties it."""

    def __init__(self, channels: SimulatedChannels, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._channels = channels
        self._waiting: deque[ControlRequest] = deque()
        self._filled: Pending[None] = Pending()
        self._closed = False
        self._connection: BrokerConnection | None = None
        drive(self._run())

    def put(self, request: ControlRequest) -> None:
        self._waiting.append(request)
        if not self._filled.done:
            self._filled.resolve(None)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._connection is not None:
            self._connection.close()
        if not self._filled.done:
            self._filled.resolve(None)

    def _is_closed(self) -> bool:
        return self._closed

    async def _run(self) -> None:
        retry_ms = RETRY_FIRST_MS
        while not self._is_closed():
            self._connection = connection = self._channels.connect((self.endpoint.host, self.endpoint.port))
            broken = await self._opened(connection)
            if broken is None:
                retry_ms = RETRY_FIRST_MS
                await self._serve(connection)
                await self._channels.clock.sleep(RETRY_FIRST_MS)
            else:
                await self._channels.clock.sleep(retry_ms)
                retry_ms = min(2 * retry_ms, RETRY_LAST_MS)

    async def _opened(self, connection: BrokerConnection) -> PeerError | None:
        try:
            await connection.open()
        except PeerError as error:
            return error
        return None

    async def _serve(self, connection: BrokerConnection) -> None:
        """Until the connection breaks or the channel is closed."""
        channels = self._channels
        while not self._is_closed():
            if not self._waiting:
                self._filled = Pending()
                await self._filled
                continue
            if not channels.may_send():
                await channels.clock.sleep(LOOK_AGAIN_MS)
                continue
            request = self._waiting[0]
            asked = connection.ask(
                request.api_key, request.api_version, request.body, channels.request_timeout_ms, request.rest
            )
            try:
                answer = await asked
            except PeerError:
                return
            if self._is_closed():
                return
            self._waiting.popleft()
            if request.response_event is not None:
                channels.events.put(request.response_event(answer))


class SimulatedPeers:
    """Requests to other brokers: single ones, over a connection each, and lasting connections."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Pending[bytes]:
        connection = self.connect(host, port)
        answer = connection.request(api_key, api_version, body, timeout_ms)
        answer.on_done(connection.close)
        return answer

    def connect(self, host: str, port: int, client_id: str | None = None) -> BrokerConnection:
        connection = self._connect(_address(host, port))
        if client_id is not None:
            connection.client_id = client_id
        return connection


@lru_cache(maxsize=4096)
def _address(host: str, port: int) -> Address:
    """One object for all that hold it."""
    return host, port
