"""Proxies that read Kafka's protocol and record when requests and responses pass, without a change of the cluster.

A `BrokerProxy` listens for one broker. It passes on whole frames, and stamps produce requests, their responses and
fetches. In responses to Metadata and FindCoordinator it replaces the brokers' addresses by those of proxies, which are
made before, so a client that bootstraps at a proxy stays behind proxies. Brokers that advertise the
address of a proxy are reached through it by other brokers too, whose fetches say how far their logs have come.

`Observations` has the stamps, in seconds of `time.monotonic`, by partition. It keeps at most `EVENTS_MAX` of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from controller.broker.settings import Address
from controller.protocol.codec import (
    MESSAGES,
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    encode_response,
    read_request_header,
)
from controller.protocol.errors import ProtocolError
from controller.protocol.fetch import FetchRequest, FetchResponse
from controller.protocol.framing import FrameBuffer
from controller.protocol.produce import ACKS_NONE, ProduceRequest, ProduceResponse
from controller.storage.batches import MAGIC

Key = tuple[str, int]
EVENTS_MAX = 2_000_000
_HOST = "127.0.0.1"
_BATCH_HEADER_BYTES = 61
_CRC_AT = 17
_COUNT_AT = 57
_READ_AHEAD_BYTES = 1024 * 1024


class BorderBegin:
    """The second stamp of a border between two parts, with which the next part begins."""

    __slots__ = ("cpu_s", "wall_s")

    def __init__(self) -> None:
        self.wall_s = time.monotonic()
        self.cpu_s = time.thread_time()


class BorderEnd:
    """The first stamp of a border between two parts, on the thread of the second. The thread's CPU clock is read
    outside of the two stamps: before the first and after the second."""

    __slots__ = ("cpu_s", "wall_s")

    def __init__(self) -> None:
        self.cpu_s = time.thread_time()
        self.wall_s = time.monotonic()

    def until(self, begin: BorderBegin) -> float:
        """When the part that ends here has ended: time between the stamps for which the thread was off its core, so
        that it used no CPU, is counted to it."""
        return self.wall_s + max(begin.wall_s - self.wall_s - (begin.cpu_s - self.cpu_s), 0.0)


class Produced(msgspec.Struct, frozen=True, gc=False):
    """A batch: its offsets, when its request and its response passed, and bytes on the wire."""

    base_offset: int
    count: int
    request_s: float
    response_s: float
    size_bytes: int


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """A response to a fetch that had records. `until`: the offset after the last of them."""

    from_offset: int
    until: int
    request_s: float
    response_s: float
    replica: int
    passed_s: float = 0.0
    """When the proxy passed on the request."""


class Requested(msgspec.Struct, frozen=True, gc=False):
    """A batch of a produce request, which may never be answered. `crc` identifies it, and again if it is repeated."""

    crc: int
    count: int
    read_s: float
    passed_s: float


class Position(msgspec.Struct, frozen=True, gc=False):
    """A follower's fetch: it has all records before `offset`."""

    replica: int
    offset: int
    at_s: float


class Observations:
    """By partition. `dropped`: events beyond EVENTS_MAX, which were not kept. `requested` is filled only if
    `each_batch`."""

    def __init__(self, *, each_batch: bool = False) -> None:
        self.each_batch = each_batch
        self.requested: defaultdict[Key, list[Requested]] = defaultdict(list)
        self.produced: defaultdict[Key, list[Produced]] = defaultdict(list)
        self.fetched: defaultdict[Key, list[Fetched]] = defaultdict(list)
        self.positions: defaultdict[Key, list[Position]] = defaultdict(list)
        self.events = self.dropped = self.requests = self.produces = 0

    def add(self, where: Mapping[Key, list[Any]], key: Key, event: object) -> None:
        if self.events >= EVENTS_MAX:
            self.dropped += 1
        else:
            self.events += 1
            where[key].append(event)


class _Pending(msgspec.Struct, gc=False):
    """A request without its response. `value` is None where only the header was read."""

    header: RequestHeader | None
    value: ProduceRequest | FetchRequest | None
    at_s: float
    passed_s: float = 0.0


_SEEN = frozenset([ApiKey.PRODUCE, ApiKey.FETCH])
_REWRITTEN = frozenset([ApiKey.METADATA, ApiKey.FIND_COORDINATOR])


class _End(asyncio.Protocol):
    """One side of a proxied connection. `frames`: what is passed on in place of a frame. `passed`: called when the
    frames of a read have been passed on, with the times when they were read and passed; what takes longer is done
    there."""

    def __init__(
        self,
        frames: Callable[[bytes], bytes],
        partner: Callable[[], _End | None],
        passed: Callable[[float, float], None],
    ) -> None:
        self._frames = frames
        self._partner = partner
        self._passed = passed
        self._buffer = FrameBuffer(2**31 - 1)
        self.transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_READ_AHEAD_BYTES)
        self.transport.writelines(self._waiting)
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Pass on whole frames, those of one read together."""
        partner = self._partner()
        try:
            frames = [self._frames(frame) for frame in self._buffer.feed(data)]
        except ProtocolError:
            self.close()
            return
        if partner is not None and frames:
            whole = b"".join([part for frame in frames for part in (len(frame).to_bytes(4, "big"), frame)])
            read, passed = BorderEnd(), partner.write(whole)
            self._passed(read.until(passed), passed.wall_s)

    def write(self, data: bytes) -> BorderBegin:
        """Return when the write began: within the system's call another process may get the core."""
        begun = BorderBegin()
        if self.transport is None:
            self._waiting.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)
        return begun

    def pause_writing(self) -> None:
        partner = self._partner()
        if partner is not None and partner.transport is not None:
            partner.transport.pause_reading()

    def resume_writing(self) -> None:
        partner = self._partner()
        if partner is not None and partner.transport is not None and not partner.transport.is_closing():
            partner.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        partner = self._partner()
        if partner is not None:
            partner.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Connection:
    """Frames pass first and are looked at afterwards, except answers with addresses."""

    def __init__(self, proxy: BrokerProxy) -> None:
        self._proxy = proxy
        self._seen = proxy.observations
        self._pending: deque[_Pending] = deque()
        self._asked: list[bytes] = []
        self._answered: list[tuple[_Pending, bytes]] = []
        self.near: _End = _End(self._take_request, lambda: self.far, self._requests_passed)
        self.far: _End = _End(self._take_response, lambda: self.near, self._responses_passed)

    def _take_request(self, frame: bytes) -> bytes:
        self._asked.append(frame)
        return frame

    def _requests_passed(self, read_s: float, passed_s: float) -> None:
        for frame in self._asked:
            self._requested(frame, read_s, passed_s)
        self._asked.clear()

    def _requested(self, frame: bytes, read_s: float, passed_s: float) -> None:
        self._seen.requests += 1
        if frame[1] not in _SEEN or frame[0]:
            try:
                header = read_request_header(frame, MESSAGES)[0] if frame[1] in _REWRITTEN and not frame[0] else None
            except ProtocolError:
                header = None
            self._pending.append(_Pending(header, None, read_s))
            return
        try:
            request = decode_request(frame, MESSAGES)
        except ProtocolError:
            self._pending.append(_Pending(None, None, read_s))
            return
        value = request.value
        if isinstance(value, FetchRequest):
            if value.replica_id >= 0:
                self._followed(value, read_s)
            value = replace(value, topics=())
        assert isinstance(value, ProduceRequest | FetchRequest)
        self._seen.produces += isinstance(value, ProduceRequest)
        if self._seen.each_batch and isinstance(value, ProduceRequest):
            self._note_batches(value, read_s, passed_s)
        if not (isinstance(value, ProduceRequest) and value.acks == ACKS_NONE):
            self._pending.append(_Pending(request.header, value, read_s, passed_s))

    def _note_batches(self, produce: ProduceRequest, read_s: float, passed_s: float) -> None:
        for topic in produce.topic_data:
            for one in topic.partition_data:
                batch = cast(bytes, one.records or b"")
                if len(batch) >= _BATCH_HEADER_BYTES and batch[16] == MAGIC:
                    requested = Requested(crc_of(batch), count_of(batch), read_s, passed_s)
                    self._seen.add(self._seen.requested, (topic.name, one.index), requested)

    def _followed(self, fetch: FetchRequest, at_s: float) -> None:
        for topic in fetch.topics:
            for one in topic.partitions:
                position = Position(fetch.replica_id, one.fetch_offset, at_s)
                self._seen.add(self._seen.positions, (topic.topic, one.partition), position)

    def _take_response(self, frame: bytes) -> bytes:
        if not self._pending:
            return frame
        asked = self._pending.popleft()
        if asked.header is None:
            return frame
        if asked.header.api_key in _REWRITTEN:
            try:
                return self._rewritten(asked.header, frame)
            except ProtocolError:
                return frame
        self._answered.append((asked, frame))
        return frame

    def _responses_passed(self, read_s: float, _passed_s: float) -> None:
        for asked, frame in self._answered:
            header = asked.header
            assert header is not None
            try:
                _, value = decode_response(header.api_key, header.api_version, frame)
            except ProtocolError:
                continue
            if isinstance(value, ProduceResponse):
                self._acknowledged(asked, value, read_s)
            elif isinstance(value, FetchResponse):
                self._fetched(asked, value, read_s)
        self._answered.clear()

    def _acknowledged(self, asked: _Pending, response: ProduceResponse, at_s: float) -> None:
        assert isinstance(asked.value, ProduceRequest)
        records = {
            (topic.name, one.index): one.records for topic in asked.value.topic_data for one in topic.partition_data
        }
        for topic in response.responses:
            for one in topic.partition_responses:
                batch = cast(bytes, records[topic.name, one.index] or b"")
                if one.error_code or len(batch) < _BATCH_HEADER_BYTES or batch[16] != MAGIC:
                    continue
                produced = Produced(one.base_offset, count_of(batch), asked.at_s, at_s, len(batch))
                self._seen.add(self._seen.produced, (topic.name, one.index), produced)

    def _fetched(self, asked: _Pending, response: FetchResponse, at_s: float) -> None:
        assert isinstance(asked.value, FetchRequest)
        for topic in response.responses:
            for one in topic.partitions:
                span = _span(memoryview(cast(bytes, one.records or b"")))
                if span is not None:
                    fetched = Fetched(*span, asked.at_s, at_s, asked.value.replica_id, asked.passed_s)
                    self._seen.add(self._seen.fetched, (topic.topic, one.partition_index), fetched)

    def _rewritten(self, header: RequestHeader, frame: bytes) -> bytes:
        _, value = decode_response(header.api_key, header.api_version, frame)
        correlated = header
        if header.api_key is ApiKey.METADATA:
            answer = cast(Any, value)
            brokers = tuple(replace(one, **self._proxy.stand_in(one.host, one.port)) for one in answer.brokers)
            return encode_response(correlated, replace(answer, brokers=brokers))
        answer = cast(Any, value)
        if answer.error_code:
            return frame
        return encode_response(correlated, replace(answer, **self._proxy.stand_in(answer.host, answer.port)))


def count_of(batch: bytes | bytearray | memoryview) -> int:
    """Return how many records a batch has."""
    return int.from_bytes(memoryview(batch)[_COUNT_AT:_BATCH_HEADER_BYTES], "big")


def crc_of(batch: bytes | bytearray | memoryview) -> int:
    """Return a batch's checksum: of its records, and neither of its offset nor of its leader's epoch."""
    return int.from_bytes(memoryview(batch)[_CRC_AT : _CRC_AT + 4], "big")


def _span(records: memoryview) -> tuple[int, int] | None:
    """The first offset of some batches, and the one after their last complete batch."""
    at, first, until = 0, -1, -1
    while at + _BATCH_HEADER_BYTES <= len(records):
        size = int.from_bytes(records[at + 8 : at + 12], "big") + 12
        if at + size > len(records):
            break
        base = int.from_bytes(records[at : at + 8], "big")
        first = base if first < 0 else first
        until = base + int.from_bytes(records[at + 23 : at + 27], "big") + 1
        at += size
    return None if first < 0 else (first, until)


class BrokerProxy:
    """Stands for `target`. `port` is known after `listen`."""

    def __init__(self, network: ProtocolProxies, target: Address) -> None:
        self._network = network
        self.target = target
        self.observations = network.observations
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._ends: list[_Connection] = []
        self.port = 0

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accepted(self) -> _End:
        connection = _Connection(self)
        self._ends = [one for one in self._ends if one.near.transport is None or not one.near.transport.is_closing()]
        self._ends.append(connection)
        task = asyncio.get_running_loop().create_task(self._dial(connection))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        return connection.near

    async def _dial(self, connection: _Connection) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection.far, *self.target)
        except OSError:
            connection.near.close()  # the target's own refusal, passed on

    def stand_in(self, host: str, port: int) -> dict[str, Any]:
        """Return the address to name in place of a broker's."""
        return {"host": _HOST, "port": self._network.port_for((host, port))}

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        for connection in self._ends:
            connection.near.close()
            connection.far.close()


class ProtocolProxies:
    """Every proxy of a measurement; used on its loop."""

    def __init__(self, observations: Observations | None = None) -> None:
        self.observations = observations or Observations()
        self._proxies: dict[Address, BrokerProxy] = {}
        self._own: set[int] = set()

    async def proxy(self, target: Address) -> int:
        """Return the port that stands for `target`, which listens now."""
        if target not in self._proxies:
            made = BrokerProxy(self, target)
            await made.listen()
            self._proxies[target] = made
            self._own.add(made.port)
        return self._proxies[target].port

    def port_for(self, target: Address) -> int:
        """As `proxy`, for a broker whose proxy listens. A proxy is named as it is, and so is a broker without one:
        clients then reach it directly."""
        if target[0] in (_HOST, "localhost") and target[1] in self._own:
            return target[1]
        proxy = self._proxies.get(target)
        return target[1] if proxy is None else proxy.port

    def refuse(self, target: Address) -> None:
        """End what passes to `target` and refuse connections to it, as the system does where nothing listens."""
        self._proxies[target].close()

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()
