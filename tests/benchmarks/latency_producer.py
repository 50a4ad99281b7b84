"""Producers by the hundred in one process: `Producers` runs them on one asyncio loop, on a thread of its own.

Each `AsyncioProducer` has its own connections and batches, and those methods of confluent-kafka's Producer that
`latency_worker` calls. Its settings have librdkafka's names, and it batches as librdkafka does: a batch for a partition
is due linger.ms after its first record or when it has batch.size bytes, has a request of its own, and waits while
max.in.flight requests of its connection are not answered. A record without a partition goes to one by its key's CRC32;
without a key, to a partition that is drawn anew after sticky.partitioning.linger.ms. A batch that fails for a reason
that passes is sent again, up to RETRIES times.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, cast

import msgspec

from controller.broker.settings import Address, address
from controller.hosts.local_cluster import ask_metadata
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.framing import FrameBuffer, framed
from controller.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.storage.batches import HEADER_BYTES, Record, encode_batch

RECORD_OVERHEAD_BYTES = 36
"""What librdkafka counts for a record besides its key and value, at most."""
BUFFERED_MAX = 100_000
"""Records of a producer: queue.buffering.max.messages."""
RETRIES, RETRY_S = 100, 0.1
VERSION = 8
REQUEST_TIMEOUT_MS = 30_000
METADATA_LIMIT_S = 10.0
_LZ4 = 3
_PASSING = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)

Place = tuple[str, int]
Delivered = Callable[[object, object], None]
"""(error or None, None): once for each record, on the loop's thread."""


class Settings(msgspec.Struct, frozen=True):
    acks: int = ACKS_ALL
    linger_s: float = 0.005
    batch_bytes: int = 1_000_000
    in_flight: int = 1_000_000
    sticky_s: float | None = None
    """None: twice `linger_s`, as librdkafka sets it."""
    lz4: bool = False


def settings_of(config: Mapping[str, Any]) -> Settings:
    """From librdkafka's words. ValueError for one that is not here, or a value that it can't have."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name == "acks" and str(value) in ("all", "-1", "1"):
            found["acks"] = ACKS_LEADER if str(value) == "1" else ACKS_ALL
        elif name == "compression.type" and value in ("none", "lz4"):
            found["lz4"] = value == "lz4"
        elif name in _NUMBERS:
            field, unit = _NUMBERS[name]
            found[field] = type(unit)(float(value) * unit)
        else:
            raise ValueError(f"{name}={value}: no setting or value of the asyncio producer")
    return Settings(**found)


_NUMBERS: Mapping[str, tuple[str, float]] = {
    "linger.ms": ("linger_s", 1e-3),
    "queue.buffering.max.ms": ("linger_s", 1e-3),
    "sticky.partitioning.linger.ms": ("sticky_s", 1e-3),
    "batch.size": ("batch_bytes", 1),
    "max.in.flight": ("in_flight", 1),
    "max.in.flight.requests.per.connection": ("in_flight", 1),
}


class PendingBatch:
    """Records of one partition; `due`: no more is added to it."""

    __slots__ = ("attempts", "callbacks", "due", "place", "records", "size_bytes")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.records: list[Record] = []
        self.callbacks: list[Delivered] = []
        self.size_bytes = 0
        self.attempts = 0
        self.due = False

    def add(self, key: bytes | None, value: bytes, at_ms: int, delivered: Delivered) -> None:
        self.records.append(Record(len(self.records), at_ms, key, value))
        self.callbacks.append(delivered)
        self.size_bytes += len(key or b"") + len(value) + RECORD_OVERHEAD_BYTES

    def encoded(self, lz4: bool) -> bytes:
        """With lz4 only if that makes it smaller, as librdkafka does."""
        plain = encode_batch(self.records)
        if not lz4:
            return plain
        import cramjam

        compressor = cramjam.lz4.Compressor(block_linked=False)
        compressor.compress(plain[HEADER_BYTES:])
        packed = bytes(compressor.finish())
        smaller = len(packed) + HEADER_BYTES < len(plain)
        return encode_batch(self.records, attributes=_LZ4, payload=packed) if smaller else plain


class ProducerLink(asyncio.Protocol):
    """A producer's connection to one broker. `answered` is called once for each batch, also if the connection ends."""

    def __init__(self, settings: Settings, answered: Callable[[PendingBatch, ErrorCode], None]) -> None:
        self._settings = settings
        self._answered = answered
        self._buffer = FrameBuffer(2**31 - 1)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[PendingBatch] = deque()
        self._asked: deque[PendingBatch] = deque()
        self._number = 0
        self.is_over = False

    def send(self, batch: PendingBatch) -> None:
        self._waiting.append(batch)
        self._pump()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pump()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._buffer.feed(data):
                answer = decode_response(ApiKey.PRODUCE, VERSION, frame)[1]
                self._answered(self._asked.popleft(), ErrorCode(_result(answer).error_code))
        except (ProtocolError, IndexError):
            self.close()
            return
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        lost = [*self._asked, *self._waiting]
        self._asked.clear()
        self._waiting.clear()
        for batch in lost:
            self._answered(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        else:
            self.connection_lost(None)

    def _pump(self) -> None:
        while self._transport is not None and self._waiting and len(self._asked) < self._settings.in_flight:
            batch = self._waiting.popleft()
            self._asked.append(batch)
            self._number += 1
            self._transport.write(framed(self._request(batch)))

    def _request(self, batch: PendingBatch) -> bytes:
        topic, partition = batch.place
        data = (ProduceTopic(topic, (ProducePartition(partition, batch.encoded(self._settings.lz4)),)),)
        value = ProduceRequest(self._settings.acks, REQUEST_TIMEOUT_MS, data)
        return encode_request(RequestHeader(ApiKey.PRODUCE, VERSION, self._number, "camerlengo-lab"), value)


def _result(answer: Any) -> ProducePartitionResult:
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0]


class Producers:
    """`count` producers. A context manager; `producers` may be used within it, by one thread."""

    def __init__(self, servers: str, config: Mapping[str, Any], count: int = 1) -> None:
        self.settings = settings_of(config)
        self.loop = asyncio.new_event_loop()
        self._servers = [address(one) for one in servers.split(",")]
        self._thread = threading.Thread(target=self.loop.run_forever, name="producers", daemon=True)
        self.leaders: Mapping[Place, Address] = {}
        self.counts: Mapping[str, int] = {}
        self.refresh()
        self.producers = [AsyncioProducer(self, Random(number)) for number in range(count)]

    def refresh(self) -> None:
        """Ask the first broker that answers who leads what. OSError if none does."""
        for number, one in enumerate(self._servers, 1):
            try:
                answer = ask_metadata(one, METADATA_LIMIT_S)
                break
            except (OSError, ProtocolError):
                if number == len(self._servers):
                    raise
        at = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self.counts = {topic.name: len(topic.partitions) for topic in answer.topics}
        self.leaders = {
            (topic.name, one.partition_index): at[one.leader_id]
            for topic in answer.topics
            for one in topic.partitions
            if one.leader_id in at
        }

    def __enter__(self) -> Producers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for one in self.producers:
                one.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(METADATA_LIMIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class AsyncioProducer:
    """See the module. `produce`, `poll` and `flush` are for the application's thread."""

    def __init__(self, owner: Producers, random: Random) -> None:
        self._owner = owner
        self._random = random
        self._settings = owner.settings
        self._loop = owner.loop
        self._given: deque[tuple[str, bytes | None, bytes, int, int, Delivered]] = deque()
        self._open: dict[Place, PendingBatch] = {}
        self._links: dict[Address, ProducerLink] = {}
        self._dialling: set[asyncio.Task[None]] = set()
        self._retrying: dict[PendingBatch, asyncio.TimerHandle] = {}
        self._stuck: dict[str, tuple[int, float]] = {}
        """Of each topic: the partition of records without a key, and until when."""
        self._left = 0
        self._changed = threading.Condition()
        self._closed = False

    def produce(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int = -1, *, on_delivery: Delivered
    ) -> None:
        """BufferError while too much is not delivered."""
        with self._changed:
            if self._left >= BUFFERED_MAX:
                raise BufferError("the producer's queue is full")
            self._left += 1
        self._given.append((topic, key, value, partition, time.time_ns() // 1_000_000, on_delivery))
        if len(self._given) == 1:
            self._loop.call_soon_threadsafe(self._take)

    def poll(self, timeout_s: float) -> None:
        """Callbacks need no poll: wait until something is delivered, or `timeout_s`."""
        if timeout_s > 0:
            with self._changed:
                self._changed.wait(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Send what lingers; return how many records are not delivered after `timeout_s`."""
        self._loop.call_soon_threadsafe(self._send_all)
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0, timeout_s)
            return self._left

    # -- on the loop

    def close(self) -> None:
        """What is not delivered fails."""
        self._closed = True
        self._send_all()
        for link in self._links.values():
            link.close()
        for batch, timer in list(self._retrying.items()):
            timer.cancel()
            self._send(batch)

    def _take(self) -> None:
        while self._given:
            topic, key, value, partition, at_ms, delivered = self._given.popleft()
            place = (topic, partition if partition >= 0 else self._partition(topic, key))
            batch = self._open.get(place)
            if batch is None:
                batch = self._open[place] = PendingBatch(place)
                self._loop.call_later(self._settings.linger_s, self._due, batch)
            batch.add(key, value, at_ms, delivered)
            if batch.size_bytes + HEADER_BYTES >= self._settings.batch_bytes:
                self._due(batch)

    def _partition(self, topic: str, key: bytes | None) -> int:
        count = self._owner.counts.get(topic, 1)
        if key is not None:
            return zlib.crc32(key) % count
        partition, until_s = self._stuck.get(topic, (0, 0.0))
        if self._loop.time() >= until_s:
            partition = self._random.randrange(count)
            sticky_s = self._settings.sticky_s
            sticky_s = 2 * self._settings.linger_s if sticky_s is None else sticky_s
            self._stuck[topic] = partition, self._loop.time() + sticky_s
        return partition

    def _send_all(self) -> None:
        self._take()
        for batch in list(self._open.values()):
            self._due(batch)

    def _due(self, batch: PendingBatch) -> None:
        if not batch.due:
            batch.due = True
            del self._open[batch.place]
            self._send(batch)

    def _send(self, batch: PendingBatch) -> None:
        self._retrying.pop(batch, None)
        leader = self._owner.leaders.get(batch.place)
        if leader is None or self._closed:
            self._answered(batch, ErrorCode.LEADER_NOT_AVAILABLE)
            return
        link = self._links.get(leader)
        if link is None or link.is_over:
            link = self._links[leader] = ProducerLink(self._settings, self._answered)
            task = self._loop.create_task(self._dial(link, leader))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        link.send(batch)

    async def _dial(self, link: ProducerLink, leader: Address) -> None:
        try:
            await self._loop.create_connection(lambda: link, *leader)
        except OSError as error:
            link.connection_lost(error)

    def _answered(self, batch: PendingBatch, error: ErrorCode) -> None:
        batch.attempts += 1
        if error in _PASSING and batch.attempts <= RETRIES and not self._closed:
            self._retrying[batch] = self._loop.call_later(RETRY_S, self._again, batch)
            return
        with self._changed:
            self._left -= len(batch.callbacks)
            self._changed.notify_all()
        for delivered in batch.callbacks:
            delivered(None if error is ErrorCode.NONE else error.name, None)

    def _again(self, batch: PendingBatch) -> None:
        """With new metadata, which is asked for beside the loop."""
        asked = self._loop.run_in_executor(None, self._owner.refresh)
        asked.add_done_callback(partial(self._refreshed, batch))

    def _refreshed(self, batch: PendingBatch, asked: asyncio.Future[None]) -> None:
        if not asked.cancelled():
            asked.exception()  # no broker answered: the batch is tried where it was
        if batch in self._retrying:
            self._send(batch)
