"""What one simulated client of records knows of the cluster: who leads each partition, and its connections there.

As with real clients, what is known is only ever what some broker answered, may be out of date, and is asked for anew
when a request failed: of any broker, as often as needed, but not without a pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

from controller.clock import Clock, Coro, Future, Timer, spawn
from controller.core.channels import PeerError, PeerTimedOut, PeerUnreachable
from controller.machine.process import Process, ProcessClock
from controller.protocol import (
    ApiKey,
    ErrorCode,
    MalformedFrame,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    decode_response_body,
    encode_request_body,
    request_header,
    response_body,
)
from controller.protocol.client import FindCoordinatorRequest, FindCoordinatorResponse
from controller.protocol.fetch import NO_LEADER_EPOCH
from controller.protocol.schema import RequestValue, ResponseValue
from controller.scenarios.records.workload import PartitionName
from controller.simulator.network import Address, Network
from controller.trace_records import OBSERVER

METADATA_TIMEOUT_MS = 1_000.0
BACKOFF_MS = 50.0
NOBODY = -1

_METADATA_VERSION = 9
_FIND_VERSION = 3
FIND_TIMEOUT_MS = 2_000.0

Connect = Callable[["Process", "ProcessClock", "Address", str], "Pipeline"]
"""A connection of a process, by that process's clock, signed with a client's name."""


class Routes:
    """`partitions` are named by their places in it everywhere here. `learned` is called after each new answer."""

    def __init__(
        self,
        connect: Callable[[Address], Pipeline],
        clock: Clock,
        rng: Random,
        brokers: Mapping[int, Address],
        partitions: Sequence[PartitionName],
    ) -> None:
        self.clock = clock
        self.partitions = tuple(partitions)
        self.leaders = [NOBODY] * len(self.partitions)
        self.epochs = [NO_LEADER_EPOCH] * len(self.partitions)
        """The latest leader epoch of each that some broker answered; -1: none."""
        self.learned: Callable[[], None] = lambda: None
        self._places = {name: place for place, name in enumerate(self.partitions)}
        self._connect = connect
        self._rng = rng
        self._brokers = dict(brokers)
        self._pipelines: dict[int, Pipeline] = {}
        self._asking: dict[int, Pipeline] = {}
        self._latest: tuple[bytes, list[int]] | None = None
        self._learning = False
        self._closed = False
        names = sorted({topic for topic, _ in self.partitions})
        topics = tuple(MetadataRequestTopic(name=name) for name in names)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self._metadata_body = encode_request_body(ApiKey.METADATA, _METADATA_VERSION, request)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """What is in flight fails."""
        self._closed = True
        for pipeline in [*self._pipelines.values(), *self._asking.values()]:
            pipeline.close()

    def keep_to(self, among: Collection[int]) -> None:
        """Ask no other brokers from now on."""
        self._brokers = {node: address for node, address in self._brokers.items() if node in among}
        self._latest = None
        self.forget([place for place, leader in enumerate(self.leaders) if leader not in among])

    def led_by(self, node: int) -> list[int]:
        return [place for place, leader in enumerate(self.leaders) if leader == node]

    @property
    def nodes(self) -> list[int]:
        return list(self._brokers)

    def pipeline(self, node: int) -> Pipeline:
        """The connection for records to that broker; a new one where the last one broke."""
        return self._open(self._pipelines, node)

    def keep_open(self) -> None:
        """A connection for records to every broker."""
        for node in self._brokers:
            pipeline = self._pipelines.get(node)
            if pipeline is None or pipeline.broken is not None:
                self.pipeline(node)

    def _open(self, pipelines: dict[int, Pipeline], node: int) -> Pipeline:
        pipeline = pipelines.get(node)
        if pipeline is None or pipeline.broken is not None:
            pipeline = pipelines[node] = self._connect(self._brokers[node])
            if self._closed:
                pipeline.close()
        return pipeline

    async def ask(
        self, node: int, api_key: ApiKey, version: int, value: RequestValue, timeout_ms: float
    ) -> ResponseValue:
        """Over a connection apart from that for records, where an answer may be long in coming. Raises PeerError."""
        body = encode_request_body(api_key, version, value)
        body = await self._open(self._asking, node).ask(api_key, version, body, timeout_ms)
        return decode_response_body(api_key, version, body)

    def anybody(self) -> int:
        """Some broker, for what each can answer."""
        return self._rng.choice(self.nodes)

    def forget(self, places: Sequence[int]) -> None:
        """Whoever led these does not, it seems."""
        for place in places:
            self.leaders[place] = NOBODY
        self.learn()

    def learn(self) -> None:
        """Asks until some broker knows leaders; once at a time."""
        if not self._learning and not self._closed:
            self._learning = True
            keep_going(self._learn())

    async def _learn(self) -> None:
        while not self._closed:
            try:
                body = await self._open(self._asking, self.anybody()).ask(
                    ApiKey.METADATA, _METADATA_VERSION, self._metadata_body, METADATA_TIMEOUT_MS
                )
            except PeerError:
                await self.clock.sleep(BACKOFF_MS)
                continue
            self._take(body)
            self.learned()
            if NOBODY not in self.leaders:
                break
            await self.clock.sleep(BACKOFF_MS)
        self._learning = False

    def _take(self, body: bytes) -> None:
        # Most answers are the one before, byte for byte.
        if self._latest is not None and self._latest[0] == body:
            self.leaders = list(self._latest[1])
        else:
            self.leaders, is_latest = self._leaders_in(body)
            self._latest = (body, list(self.leaders)) if is_latest else None

    def _leaders_in(self, body: bytes) -> tuple[list[int], bool]:
        """The leaders, and whether no partition was passed over. One is whose leader epoch is older than the latest
        that is known, as by Kafka's clients: a broker without contact may answer so (KIP-320)."""
        leaders, is_latest = list(self.leaders), True
        answer = decode_response_body(ApiKey.METADATA, _METADATA_VERSION, body)
        assert isinstance(answer, MetadataResponse)
        assert answer.brokers or not answer.topics, (
            "topics without brokers, by which librdkafka gives up all of its own"
        )
        live = [broker.node_id for broker in answer.brokers if broker.node_id in self._brokers]
        for topic in answer.topics:
            for partition in topic.partitions:
                place = self._places.get((topic.name or "", partition.partition_index))
                if place is None:
                    continue
                if partition.leader_epoch < self.epochs[place]:
                    is_latest = False
                    continue
                self.epochs[place] = partition.leader_epoch
                leaders[place] = partition.leader_id if partition.leader_id in live else NOBODY
        return leaders, is_latest


class CoordinatorLink:
    """The connection to the coordinator of a group or of a transactional id, which is looked for as often as needed.

    It serves requests of this client alone: a JoinGroup holds up what comes after it.
    """

    def __init__(
        self,
        key: str,
        key_type: int,
        routes: Routes,
        connect: Callable[[Address], Pipeline],
        brokers: Mapping[int, Address],
    ) -> None:
        self.asked_ms = 0.0
        """When the last request was sent."""
        self._request = FindCoordinatorRequest(key, key_type)
        self._routes = routes
        self._clock = routes.clock
        self._connect = connect
        self._brokers = dict(brokers)
        self._coordinator: int | None = None
        self._pipeline: Pipeline | None = None

    def forget(self) -> None:
        """It does not coordinate any more, it seems."""
        self._coordinator = None

    def keep_to(self, among: Collection[int]) -> None:
        """Ask no other brokers from now on."""
        self._brokers = {node: address for node, address in self._brokers.items() if node in among}
        if self._coordinator not in among:
            self._coordinator = None
            if self._pipeline is not None:
                self._pipeline.close()

    async def found(self) -> None:
        """Return once a coordinator is known."""
        while self._coordinator is None:
            await self._find()

    async def ask(self, key: ApiKey, version: int, request: RequestValue, timeout_ms: float) -> ResponseValue:
        """Raises PeerError; the coordinator is then looked for again."""
        while self._coordinator is None:
            await self._find()
        if self._pipeline is None or self._pipeline.broken is not None:
            self._pipeline = self._connect(self._brokers[self._coordinator])
        self.asked_ms = self._clock.now_ms()
        try:
            body = await self._pipeline.ask(key, version, encode_request_body(key, version, request), timeout_ms)
        except PeerError:
            self._coordinator = None
            raise
        return decode_response_body(key, version, body)

    async def ask_until_answered(
        self, key: ApiKey, version: int, request: RequestValue, timeout_ms: float
    ) -> ResponseValue:
        while True:
            try:
                return await self.ask(key, version, request, timeout_ms)
            except PeerError:
                await self._clock.sleep(BACKOFF_MS)

    async def _find(self) -> None:
        try:
            answer = await self._routes.ask(
                self._routes.anybody(), ApiKey.FIND_COORDINATOR, _FIND_VERSION, self._request, FIND_TIMEOUT_MS
            )
        except PeerError:
            await self._clock.sleep(BACKOFF_MS)
            return
        assert isinstance(answer, FindCoordinatorResponse)
        if answer.error_code == ErrorCode.NONE and answer.node_id in self._brokers:
            if self._pipeline is not None:
                self._pipeline.close()
            self._coordinator, self._pipeline = answer.node_id, None
        else:
            await self._clock.sleep(BACKOFF_MS)


def keep_going(task: Coro[None]) -> None:
    """Start a background task that no caller awaits. An error in it ends the run, because it would go unreported."""
    running = spawn(task)
    running.on_done(running.result)


CONNECT_TIMEOUT_MS = 1_000.0


class _Asked(NamedTuple):
    api_key: ApiKey
    version: int
    correlation_id: int
    answer: Future[bytes]
    timer: Timer


class Pipeline:
    """Dials when it is made; what is asked before it is accepted waits for that. `broken` once it is of no more use."""

    def __init__(
        self, network: Network, process: Process, clock: ProcessClock, address: Address, client_id: str
    ) -> None:
        self.broken: PeerError | None = None
        self._clock = clock
        self._address = address
        self._client_id = client_id
        self._correlation_id = 0
        self._asked: deque[_Asked] = deque()
        self._waiting: list[bytes] | None = []
        self._deadline = clock.call_later(
            CONNECT_TIMEOUT_MS, lambda: self._break(PeerUnreachable(f"{self}: no connection"))
        )
        self._socket = network.dial(OBSERVER, process, address, self._opened)

    @property
    def in_flight(self) -> int:
        return len(self._asked)

    def ask(self, api_key: ApiKey, version: int, body: bytes, timeout_ms: float) -> Future[bytes]:
        """The response's body. Fails with PeerTimedOut or PeerUnreachable."""
        answer: Future[bytes] = Future()
        if self.broken is not None:
            answer.fail(self.broken)
            return answer
        timer = self._clock.call_later(
            timeout_ms, lambda: self._break(PeerTimedOut(f"{self}: no answer in {timeout_ms:g} ms"))
        )
        self._correlation_id += 1
        self._asked.append(_Asked(api_key, version, self._correlation_id, answer, timer))
        self._send(api_key, version, body)
        return answer

    def send_without_response(self, api_key: ApiKey, version: int, body: bytes) -> None:
        """Send a request that has no response."""
        if self.broken is None:
            self._correlation_id += 1
            self._send(api_key, version, body)

    def _send(self, api_key: ApiKey, version: int, body: bytes) -> None:
        frame = request_header(api_key, version, self._correlation_id, self._client_id) + body
        if self._waiting is None:
            self._socket.send(frame)
        else:
            self._waiting.append(frame)

    def close(self) -> None:
        """What is in flight fails."""
        self._break(PeerUnreachable(f"{self}: closed at this end"))

    def _opened(self, accepted: bool) -> None:
        self._deadline.cancel()
        if not accepted:
            self._break(PeerUnreachable(f"{self}: refused"))
            return
        self._socket.on_frame = self._answered
        self._socket.on_closed = lambda: self._break(PeerUnreachable(f"{self}: the connection broke"))
        waiting, self._waiting = self._waiting or [], None
        for frame in waiting:
            self._socket.send(frame)

    def _answered(self, frame: bytes) -> None:
        if not self._asked:
            self._break(PeerUnreachable(f"{self}: an unexpected response"))
            return
        asked = self._asked[0]
        try:
            correlation_id, body = response_body(asked.api_key, asked.version, frame)
        except MalformedFrame as error:
            self._break(PeerUnreachable(f"{self}: {error}"))
            return
        if correlation_id != asked.correlation_id:
            self._break(PeerUnreachable(f"{self}: answer {correlation_id} to request {asked.correlation_id}"))
            return
        self._asked.popleft()
        asked.timer.cancel()
        asked.answer.resolve(body)

    def _break(self, error: PeerError) -> None:
        if self.broken is not None:
            return
        self.broken = error
        self._deadline.cancel()
        self._socket.close()
        asked, self._asked = self._asked, deque()
        for each in asked:
            each.timer.cancel()
        for each in asked:
            each.answer.fail(error)

    def __str__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"
