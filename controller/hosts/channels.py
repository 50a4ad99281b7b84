"""The controller's channels: to each broker one connection and one queue, for one term.

A request leaves its queue only when it was answered. If the connection breaks, or no answer comes in time, the same
request is the first to go over the next connection (KAFKA-1738), after a backoff with jitter; so requests reach a
broker in the order in which they were queued, and perhaps more than once, which the epochs in them make harmless.
"""

from __future__ import annotations

import asyncio
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from controller import points
from controller.broker.configs.setting_types import Address, address_text
from controller.core.ports import ControlRequest, Endpoint, EventSink
from controller.hosts.network import NetworkThread
from controller.hosts.wire import Wire
from controller.protocol.errors import ProtocolError
from controller.trace import Noted, Trace

FIRST_BACKOFF_MS = 20.0
LONGEST_BACKOFF_MS = 1_000.0
LOOK_AGAIN_S = 0.02
"""How long a request waits that may not go out, before the term is looked at again: an acknowledged ping may have
extended it, otherwise the channels are about to be closed."""


class SocketChannels:
    """One term's. `dial` says where to connect to for an address; `request_timeout_ms` is Kafka's
    controller.socket.timeout.ms. `holds` says, on the loop, whether the term holds still: it is asked before each
    request goes out, since a process that was stopped may come to this loop before it comes to resign (S01, S12)."""

    def __init__(
        self,
        network: NetworkThread,
        events: EventSink,
        trace: Trace,
        *,
        client_id: str,
        request_timeout_ms: float,
        dial: Callable[[str, int], Address],
        rng: random.Random,
        holds: Callable[[], bool],
    ) -> None:
        self._network = network
        self._events = events
        self._trace = trace
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._dial = dial
        self._rng = rng
        self._holds = holds
        self._channels: dict[int, _Channel] = {}
        self._closed = False
        self._lock = threading.Lock()

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        announced = {endpoint.broker: endpoint for endpoint in brokers}
        for broker, channel in list(self._channels.items()):
            if broker not in announced or not channel.reaches(announced[broker]):
                del self._channels[broker]
                channel.close()
        for broker, endpoint in announced.items():
            if broker not in self._channels:
                self._channels[broker] = _Channel(self, endpoint)

    def send(self, broker: int, request: ControlRequest) -> None:
        self._channels[broker].put(request)

    def close(self) -> None:
        with self._lock:  # no answer is turned into an event once this returned
            self._closed = True
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # -- for the channels, on the loop

    def call(self, action: Callable[[], None]) -> None:
        self._network.call(action)

    async def connect(self, endpoint: Endpoint) -> Wire:
        return await Wire.connect(self._dial(endpoint.host, endpoint.port), self._client_id)

    def may_send(self) -> bool:
        return not self._closed and self._holds()

    @property
    def request_timeout_s(self) -> float:
        return self._request_timeout_ms / 1_000.0

    def backoff_s(self, failures: int) -> float:
        full_ms = min(FIRST_BACKOFF_MS * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF_MS)
        return full_ms * self._rng.uniform(0.5, 1.0) / 1_000.0

    def answered(self, request: ControlRequest, body: bytes) -> None:
        points.reach("channel: answered")
        if request.response_event is None:
            return
        event = request.response_event(body)
        with self._lock:
            if not self._closed:
                self._events.put(event)

    def note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


class _Channel:
    """To one life of one broker. The queue is filled from the controller's thread and emptied on the loop."""

    def __init__(self, channels: SocketChannels, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._channels = channels
        self._queue: deque[ControlRequest] = deque()
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        channels.call(self._start)

    def reaches(self, endpoint: Endpoint) -> bool:
        """Whether this channel is one to that life of the broker, at that address."""
        mine = self.endpoint
        return (mine.broker_epoch, mine.host, mine.port) == (endpoint.broker_epoch, endpoint.host, endpoint.port)

    def put(self, request: ControlRequest) -> None:
        self._queue.append(request)
        self._channels.call(self._more.set)

    def close(self) -> None:
        self._closed = True
        self._channels.call(self._stop)

    def _start(self) -> None:
        if not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._note("error", f"ended by a fault\n{''.join(traceback.format_exception(error))}")

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        failures = 0
        while True:
            trouble = await self._serve_connection()
            failures = 1 if trouble.after_progress else failures + 1
            if failures == 1:
                self._note("info", f"{trouble.reason}; connecting again")
            await asyncio.sleep(self._channels.backoff_s(failures))

    async def _serve_connection(self) -> _Trouble:
        """Sends what is queued over one connection until it breaks, and says how. Cancelled when it is closed."""
        progress = False
        wire: Wire | None = None
        try:
            async with asyncio.timeout(self._channels.request_timeout_s):
                wire = await self._channels.connect(self.endpoint)
            while True:
                request = await self._first()
                points.reach("channel: request taken")
                if self._closed or not self._channels.may_send():
                    await asyncio.sleep(LOOK_AGAIN_S)
                    continue
                async with asyncio.timeout(self._channels.request_timeout_s):
                    body = await wire.exchange(request.api_key, request.api_version, request.body, request.rest)
                self._channels.answered(request, body)
                self._queue.popleft()
                progress = True
        except TimeoutError:
            return _Trouble(f"no answer in {self._channels.request_timeout_s:g} s", progress)
        except (OSError, EOFError, ProtocolError) as error:
            return _Trouble(str(error) or type(error).__name__, progress)
        finally:
            if wire is not None:
                wire.close()

    async def _first(self) -> ControlRequest:
        """The oldest request, which stays in the queue."""
        while not self._queue:
            self._more.clear()
            if not self._queue:
                await self._more.wait()
        return self._queue[0]

    def _note(self, level: str, message: str) -> None:
        where = address_text((self.endpoint.host, self.endpoint.port))
        self._channels.note(level, f"channel to broker {self.endpoint.broker} at {where}: {message}")


class _Trouble:
    __slots__ = ("after_progress", "reason")

    def __init__(self, reason: str, after_progress: bool) -> None:
        self.reason = reason
        self.after_progress = after_progress
