"""Simulated consumers: one that follows all partitions while things happen, and the final read.

Each broker that leads something is fetched from on a connection of its own, with a long poll, as real clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.clock import Clock
from controller.core.channels import PeerError
from controller.protocol import ApiKey, ErrorCode, decode_response_body, encode_request_body
from controller.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from controller.protocol.framing import joined
from controller.scenarios.faults import HostFailure
from controller.scenarios.records.history import (
    FINAL,
    FOREIGN,
    FinalRead,
    History,
    Reached,
    ReadLog,
    acknowledged_ends,
    history_of,
)
from controller.scenarios.records.payload import ForeignRecord, decode_payload
from controller.scenarios.records.workload import PartitionName, RecordWorkload
from controller.simulator.network import Address
from controller.simulator.producer import DELIVERY_TIMEOUT_MS, SimulatedProducer
from controller.simulator.randomness import Streams
from controller.simulator.routes import BACKOFF_MS, NOBODY, Pipeline, Routes, keep_going
from controller.storage.batches import HEADER_BYTES, decode_records, headers_of, whole_bytes
from controller.storage.errors import CorruptBatch

MAX_WAIT_MS = 500
REQUEST_TIMEOUT_MS = 2_000.0
PARTITION_BYTES = 256 * 1024
SETTLE_MS = 5_000.0
"""How long an end may stay before what was acknowledged: the high watermark follows when the followers have it."""

PATIENCE_MS = 20_000.0
"""How long a partition may give nothing before it counts as not readable."""

WRONG_CRC = "a batch with a wrong CRC is served"
_LOOK_MS = 50.0
_FETCH_VERSION = 11
_OFFSETS_VERSION = 5


class SimulatedConsumer:
    """Reads all partitions from their beginning, from `begin` until its routes are closed."""

    def __init__(self, number: int, routes: Routes) -> None:
        self.log = ReadLog(number)
        self.positions = [0] * len(routes.partitions)
        self.progress_ms = [routes.clock.now_ms()] * len(routes.partitions)
        self._routes = routes
        self.failure: str | None = None

    def begin(self) -> None:
        self._routes.learn()
        for node in self._routes.nodes:
            keep_going(self._follow(node))

    async def _follow(self, node: int) -> None:
        """Fetches from one broker what it leads."""
        routes = self._routes
        while not routes.closed:
            places = routes.led_by(node)
            if not places:
                await routes.clock.sleep(BACKOFF_MS)
                continue
            body = encode_request_body(ApiKey.FETCH, _FETCH_VERSION, self._request(places))
            try:
                answer = await routes.pipeline(node).ask(ApiKey.FETCH, _FETCH_VERSION, body, REQUEST_TIMEOUT_MS)
            except PeerError:
                routes.forget(places)
                await routes.clock.sleep(BACKOFF_MS)
                continue
            if not await self._take(answer):
                await routes.clock.sleep(BACKOFF_MS)

    def _request(self, places: list[int]) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for place in places:
            topic, number = self._routes.partitions[place]
            topics.setdefault(topic, []).append(FetchPartition(number, self.positions[place], PARTITION_BYTES))
        return FetchRequest(
            MAX_WAIT_MS, 1, tuple(FetchTopic(topic, tuple(partitions)) for topic, partitions in topics.items())
        )

    async def _take(self, body: bytes) -> bool:
        """False if something did not go well, and a pause is due."""
        answer = decode_response_body(ApiKey.FETCH, _FETCH_VERSION, body)
        assert isinstance(answer, FetchResponse)
        well = answer.error_code == ErrorCode.NONE
        for topic in answer.responses:
            for data in topic.partitions:
                place = self._routes.partitions.index((topic.topic, data.partition_index))
                if data.error_code == ErrorCode.NONE:
                    well = self._read(place, data) and well
                    continue
                well = False
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    start = await offset_of(self._routes, place, EARLIEST_TIMESTAMP)
                    self.positions[place] = self.positions[place] if start is None else start
                else:
                    self._routes.forget([place])
        return well

    def _read(self, place: int, data: FetchPartitionData) -> bool:
        """The records of whole batches; what lies before the position was asked for in vain, as batches are whole.
        False: the CRC of a batch is wrong, at which Kafka's consumer stops, too."""
        if data.records is None:
            return True
        now_ms = self._routes.clock.now_ms()
        view = memoryview(joined([data.records]))
        at = 0
        try:
            headers = headers_of(view[: whole_bytes(view)])
        except CorruptBatch as error:
            topic, number = self._routes.partitions[place]
            self.failure = f"{topic}-{number}, {WRONG_CRC} from offset {self.positions[place]} on: {error}"
            return False
        for header in headers:
            payload = view[at + HEADER_BYTES : at + header.size_bytes]
            at += header.size_bytes
            for record in decode_records(header, payload):
                if record.offset >= self.positions[place]:
                    self._log(place, record.offset, record.value, now_ms, data.high_watermark)
                    self.positions[place], self.progress_ms[place] = record.offset + 1, now_ms
        return True

    def _log(self, place: int, offset: int, value: bytes | None, now_ms: float, high_watermark: int) -> None:
        try:
            payload = decode_payload(value)
        except ForeignRecord:
            self.log.read(place, offset, FOREIGN, -1, -1, now_ms, high_watermark)
        else:
            self.log.read(place, offset, payload.producer, payload.sequence, payload.key, now_ms, high_watermark)


async def offset_of(routes: Routes, place: int, timestamp: int) -> int | None:
    """Return the partition's earliest or end offset as reported by its leader; None if there is no response."""
    leader = routes.leaders[place]
    if leader == NOBODY:
        routes.learn()
        return None
    topic, number = routes.partitions[place]
    request = ListOffsetsRequest((ListOffsetsTopic(topic, (ListOffsetsPartition(number, timestamp),)),))
    try:
        answer = await routes.ask(leader, ApiKey.LIST_OFFSETS, _OFFSETS_VERSION, request, REQUEST_TIMEOUT_MS)
    except PeerError:
        routes.forget([place])
        return None
    assert isinstance(answer, ListOffsetsResponse)
    result = answer.topics[0].partitions[0]
    if result.error_code != ErrorCode.NONE:
        routes.forget([place])
        return None
    return result.offset


@dataclass(slots=True)
class _Standing:
    """-1: not known yet. `full_since_ms`: since when all up to `end` is read, though more was acknowledged."""

    start: int = -1
    end: int = -1
    full_since_ms: float | None = None
    reached: Reached | None = None


async def read_to_the_end(
    reader: SimulatedConsumer, routes: Routes, expected: list[int], deadline_ms: float
) -> list[FinalRead]:
    """Reads every partition with a reader that has not begun, for at most `deadline_ms`. `expected`: for each an
    offset before which something was acknowledged."""
    clock = routes.clock
    give_up_ms = clock.now_ms() + deadline_ms
    standings = [_Standing() for _ in routes.partitions]
    reader.begin()
    while any(each.reached is None for each in standings) and clock.now_ms() < give_up_ms:
        await clock.sleep(_LOOK_MS)
        for place, standing in enumerate(standings):
            if standing.reached is None:
                await _look(reader, routes, place, standing, expected[place])
    return [
        FinalRead(
            max(standing.start, 0),
            standing.end,
            standing.reached or Reached.PART,
            "" if standing.reached is Reached.END else f"read to {reader.positions[place]} of {standing.end}",
        )
        for place, standing in enumerate(standings)
    ]


async def _look(reader: SimulatedConsumer, routes: Routes, place: int, standing: _Standing, expected: int) -> None:
    if standing.start < 0:
        start = await offset_of(routes, place, EARLIEST_TIMESTAMP)
        standing.start = -1 if start is None else start
    if reader.positions[place] >= standing.end:
        end = await offset_of(routes, place, LATEST_TIMESTAMP)
        standing.end = standing.end if end is None else end
    now_ms = routes.clock.now_ms()
    if standing.start < 0 or standing.end < 0 or reader.positions[place] < standing.end:
        standing.full_since_ms = None
        if now_ms - reader.progress_ms[place] > PATIENCE_MS:
            standing.reached = Reached.NOTHING_MORE
        return
    if standing.full_since_ms is None:
        standing.full_since_ms = now_ms
    if standing.end >= expected or now_ms - standing.full_since_ms > SETTLE_MS:
        standing.reached = Reached.END


_QUIESCE_POLL_MS = 20.0


class SimulatedRecordClients:
    """Begins at once. `connect` opens a connection, signed with a client's name."""

    def __init__(
        self,
        connect: Callable[[Address, str], Pipeline],
        clock: Clock,
        streams: Streams,
        brokers: Mapping[int, Address],
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
    ) -> None:
        self._clock = clock
        self._partitions = tuple(partitions)

        def routes(name: str, known: Mapping[int, Address]) -> Routes:
            return Routes(
                lambda address: connect(address, name), clock, streams.stream(f"records/{name}"), known, partitions
            )

        self._brokers = dict(brokers)
        self._new_routes = routes
        self._routes: list[Routes] = []
        self._consumers = [
            SimulatedConsumer(number, self._opened(f"consumer-{number}")) for number in range(workload.consumers)
        ]
        self._producers = [
            SimulatedProducer(number, self._opened(f"producer-{number}"), workload)
            for number in range(workload.producers)
        ]
        self._final: SimulatedConsumer | None = None
        self._finals: list[FinalRead] = []
        for consumer in self._consumers:
            consumer.begin()
        for producer in self._producers:
            producer.begin()

    def _opened(self, name: str, among: Collection[int] | None = None) -> Routes:
        known = {node: address for node, address in self._brokers.items() if among is None or node in among}
        routes = self._new_routes(name, known)
        self._routes.append(routes)
        return routes

    async def quiesce(self, deadline_ms: float, among: Collection[int] | None = None) -> None:
        """Stop the clients and read everything once more, from the brokers `among` only (None: all).

        A broker that is cut off from the others and believes that it still leads would answer a client that never
        learned of its successor.
        """
        for producer in self._producers:
            producer.stop()
        give_up_ms = self._clock.now_ms() + 2 * DELIVERY_TIMEOUT_MS
        while any(producer.log.open for producer in self._producers):
            if self._clock.now_ms() > give_up_ms:
                raise HostFailure("a producer did not come to its end")
            await self._clock.sleep(_QUIESCE_POLL_MS)
        ends = self.acknowledged()
        routes = self._opened("final-reader", among)
        self._final = SimulatedConsumer(FINAL, routes)
        self._finals = await read_to_the_end(self._final, routes, ends, deadline_ms)
        self.close()

    def close(self) -> None:
        for routes in self._routes:
            routes.close()

    def acknowledged(self) -> list[int]:
        """For each partition the offset after the last one that was acknowledged so far."""
        return acknowledged_ends(len(self._partitions), [producer.log for producer in self._producers])

    def history(self) -> History:
        consumers = self._consumers if self._final is None else [*self._consumers, self._final]
        reads = [consumer.log for consumer in consumers]
        found = [*(each.failure for each in self._producers), *(each.failure for each in consumers)]
        failures = [failure for failure in found if failure is not None]
        sends = [producer.log for producer in self._producers]
        return history_of(self._partitions, sends, reads, self._finals, failures)
