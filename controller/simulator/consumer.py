"""A simulated consumer: it follows partitions while things happen, and keeps what it read.

Each broker that leads something is fetched from on a connection of its own, with a long poll, as real clients do.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.core.channels import PeerError
from controller.protocol import ApiKey, ErrorCode, decode_response_body, encode_request_body
from controller.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
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
from controller.scenarios.records.history import FOREIGN, NO_POLL, ReadLog
from controller.scenarios.records.payload import ForeignRecord, decode_payload
from controller.scenarios.records.transaction_history import ClientTransactions
from controller.simulator.routes import BACKOFF_MS, NOBODY, Routes, keep_going
from controller.storage.batches import HEADER_BYTES, decode_records, headers_of, whole_bytes
from controller.storage.errors import CorruptBatch

MAX_WAIT_MS = 500
REQUEST_TIMEOUT_MS = 2_000.0
PARTITION_BYTES = 256 * 1024
WRONG_CRC = "a batch with a wrong CRC is served"
_FETCH_VERSION = 11
_OFFSETS_VERSION = 5


class SimulatedConsumer:
    """Reads partitions from `begin` until `stop`, or until its routes are closed: those of `starts`, each from its
    offset; all from their beginning if there is none. `committed`: records of committed transactions alone, and those
    of none."""

    def __init__(
        self,
        number: int,
        routes: Routes,
        starts: Mapping[int, int] | None = None,
        *,
        committed: bool = False,
        transactions: ClientTransactions | None = None,
    ) -> None:
        self.log = ReadLog(number, committed=committed, transactions=transactions)
        self.isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        self.places = range(len(routes.partitions)) if starts is None else tuple(starts)
        self.positions = [0 if starts is None else starts.get(place, 0) for place in range(len(routes.partitions))]
        self._unended: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """By place and producer id, the committed records whose marker is yet to be read: offset, high watermark
        of the response."""
        self._stopped = False
        self._polls = NO_POLL
        self.progress_ms = [routes.clock.now_ms()] * len(routes.partitions)
        self._routes = routes
        self.failure: str | None = None

    def begin(self) -> None:
        self._routes.learn()
        for node in self._routes.nodes:
            keep_going(self._follow(node))

    def stop(self) -> None:
        """What still arrives is not taken."""
        self._stopped = True

    async def _follow(self, node: int) -> None:
        """Fetches from one broker what it leads."""
        routes = self._routes
        while not routes.closed and not self._stopped:
            places = [place for place in routes.led_by(node) if place in self.places]
            if not places:
                await routes.clock.sleep(BACKOFF_MS)
                continue
            asked = {place: self.positions[place] for place in places}
            body = encode_request_body(ApiKey.FETCH, _FETCH_VERSION, self._request(places))
            try:
                answer = await routes.pipeline(node).ask(ApiKey.FETCH, _FETCH_VERSION, body, REQUEST_TIMEOUT_MS)
            except PeerError:
                routes.forget(places)
                await routes.clock.sleep(BACKOFF_MS)
                continue
            if not await self._take(answer, asked):
                await routes.clock.sleep(BACKOFF_MS)

    def _request(self, places: list[int]) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for place in places:
            topic, number = self._routes.partitions[place]
            epoch = self._routes.epochs[place]  # a broker that leads in an older one refuses
            topics.setdefault(topic, []).append(
                FetchPartition(number, self.positions[place], PARTITION_BYTES, current_leader_epoch=epoch)
            )
        return FetchRequest(
            MAX_WAIT_MS,
            1,
            tuple(FetchTopic(topic, tuple(partitions)) for topic, partitions in topics.items()),
            isolation_level=self.isolation,
        )

    async def _take(self, body: bytes, asked: Mapping[int, int]) -> bool:
        """False if something did not go well, and a pause is due. `asked`: the offsets that were asked for; an answer
        for another than the present position, which a former leader's answer may have set back, is not taken."""
        answer = decode_response_body(ApiKey.FETCH, _FETCH_VERSION, body)
        assert isinstance(answer, FetchResponse)
        if self._stopped:
            return True
        self._polls += 1
        well = answer.error_code == ErrorCode.NONE
        for topic in answer.responses:
            for data in topic.partitions:
                place = self._routes.partitions.index((topic.topic, data.partition_index))
                if self.positions[place] != asked[place]:
                    continue
                if data.error_code == ErrorCode.NONE:
                    well = self._read(place, data) and well
                    continue
                well = False
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    start = await offset_of(self._routes, place, EARLIEST_TIMESTAMP)
                    self.positions[place] = self.positions[place] if start is None else start
                    self._unended = {key: rows for key, rows in self._unended.items() if key[0] != place}
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
        is_committed = self.isolation == READ_COMMITTED
        limit = data.last_stable_offset if is_committed else data.high_watermark
        aborting = sorted(data.aborted_transactions or (), key=lambda one: -one.first_offset) if is_committed else []
        aborted: set[int] = set()  # producers; asked whether one is among them
        for header in headers:
            payload = view[at + HEADER_BYTES : at + header.size_bytes]
            at += header.size_bytes
            while aborting and aborting[-1].first_offset <= header.last_offset:
                aborted.add(aborting.pop().producer_id)
            if header.is_control:
                aborted.discard(header.producer_id)
                for offset, high_watermark in self._unended.pop((place, header.producer_id), ()):
                    if header.base_offset >= high_watermark:
                        self.log.unreplicated.append((place, offset))
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in decode_records(header, payload):
                    if record.offset >= self.positions[place]:
                        self._log(place, record.offset, record.value, now_ms, limit)
                        if is_committed and header.is_transactional:
                            rows = self._unended.setdefault((place, header.producer_id), [])
                            rows.append((record.offset, data.high_watermark))
            if header.last_offset >= self.positions[place]:
                self.positions[place], self.progress_ms[place] = header.last_offset + 1, now_ms
        return True

    def _log(self, place: int, offset: int, value: bytes | None, now_ms: float, limit: int) -> None:
        try:
            payload = decode_payload(value)
        except ForeignRecord:
            self.log.read(place, offset, FOREIGN, -1, -1, now_ms, limit, poll=self._polls)
        else:
            producer, sequence, key = payload.producer, payload.sequence, payload.key
            self.log.read(place, offset, producer, sequence, key, now_ms, limit, poll=self._polls)


async def offset_of(routes: Routes, place: int, timestamp: int, isolation: int = READ_UNCOMMITTED) -> int | None:
    """Return the partition's earliest or end offset as reported by its leader; None if there is no response."""
    leader = routes.leaders[place]
    if leader == NOBODY:
        routes.learn()
        return None
    topic, number = routes.partitions[place]
    request = ListOffsetsRequest(
        (ListOffsetsTopic(topic, (ListOffsetsPartition(number, timestamp),)),), isolation_level=isolation
    )
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
