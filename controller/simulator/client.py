"""The client of a simulated run: it creates the topics and keeps asking for metadata, over Kafka's own frames.

Like a real client it asks whichever broker it comes to, moves on when a connection breaks or an answer takes too long,
and finds the controller by what metadata says. So recovery is what a client sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from controller.clock import Clock, spawn
from controller.core.channels import PeerError, PeerTimedOut
from controller.protocol import (
    SUPPORTED,
    ApiKey,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    ErrorCode,
    MetadataRequest,
    MetadataResponse,
    decode_response_body,
    encode_request_body,
)
from controller.scenarios.faults import HostFailure
from controller.scenarios.host import PartitionView, TopicSpec
from controller.scenarios.membership import failed_metadata, judge_metadata
from controller.simulator.network import Address
from controller.simulator.requests import BrokerConnection
from controller.trace import MetadataSeen

REQUEST_TIMEOUT_MS = 1_000.0
RECONNECT_BACKOFF_MS = 20.0
CREATE_TIMEOUT_MS = 30_000.0
LOOK_TIMEOUT_MS = 5_000.0

_METADATA_VERSION = 9
_METADATA_BODY = encode_request_body(
    ApiKey.METADATA, _METADATA_VERSION, MetadataRequest(topics=None, allow_auto_topic_creation=False)
)
_CREATE_VERSION = SUPPORTED[ApiKey.CREATE_TOPICS].last

Views = Mapping[tuple[str, int], PartitionView]


class SimulatedClient:
    """`brokers`: the address of each. `seen` is called with the result of each metadata request, from `begin` on."""

    def __init__(
        self,
        connect: Callable[[Address], BrokerConnection],
        clock: Clock,
        rng: Random,
        brokers: Mapping[int, Address],
        interval_ms: float,
        seen: Callable[[MetadataSeen], None],
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._brokers = dict(brokers)
        self._interval_ms = interval_ms
        self._seen = seen
        self._topics: tuple[TopicSpec, ...] = ()
        self._connections: dict[int, BrokerConnection] = {}
        self._latest: tuple[bytes, MetadataSeen] | None = None
        self._shunned: int | None = None
        self._asking = False
        self._closed = False

    def begin(self) -> None:
        """Asks from now on, if it does not yet."""
        if not self._asking:
            self._asking = True
            spawn(self._keep_asking())

    def expect(self, topics: Sequence[TopicSpec]) -> None:
        self._topics = (*self._topics, *topics)
        self._latest = None

    def close(self) -> None:
        self._closed = True

    # -- metadata

    async def _keep_asking(self) -> None:
        while True:
            await self._clock.sleep(self._interval_ms)
            if self._closed:
                return
            body, problem = await self._metadata_body()
            if not self._closed:
                self._seen(failed_metadata(problem) if body is None else self._judge(body))

    def _judge(self, body: bytes) -> MetadataSeen:
        # Most answers are the one before, byte for byte.
        if self._latest is None or self._latest[0] != body:
            answer = _decode_metadata(body)
            brokers = [broker.node_id for broker in answer.brokers]
            self._latest = (body, judge_metadata(self._topics, brokers, answer.controller_id, _views(answer)))
        return self._latest[1]

    async def _metadata_body(self) -> tuple[bytes | None, str]:
        """Return the body of the first response of any broker, or None and the last error in words."""
        deadline_ms = self._clock.now_ms() + REQUEST_TIMEOUT_MS
        problem = "no broker was asked"
        while (left_ms := deadline_ms - self._clock.now_ms()) > 0:
            node = self._rng.choice([node for node in self._brokers if node != self._shunned] or list(self._brokers))
            try:
                return await self._ask(node, ApiKey.METADATA, _METADATA_VERSION, _METADATA_BODY, left_ms), ""
            except PeerError as error:
                if isinstance(error, PeerTimedOut):
                    self._shunned = node  # until another keeps it waiting: real clients turn from a silent broker too
                problem = str(error)
            await self._clock.sleep(RECONNECT_BACKOFF_MS)
        return None, problem

    async def _ask(self, node: int, api_key: ApiKey, version: int, body: bytes, timeout_ms: float) -> bytes:
        """Over the connection that there is to that broker, or a new one."""
        connection = self._connections.get(node)
        if connection is None or not connection.usable:
            connection = self._connect(self._brokers[node])
            await connection.open(timeout_ms)
            self._connections[node] = connection
        return await connection.ask(api_key, version, body, timeout_ms)

    async def metadata_of(self, node: int) -> Views | None:
        """What one broker and no other answers, over a connection of its own; None if it does not."""
        connection = self._connect(self._brokers[node])
        try:
            await connection.open(LOOK_TIMEOUT_MS)
            body = await connection.ask(ApiKey.METADATA, _METADATA_VERSION, _METADATA_BODY, LOOK_TIMEOUT_MS)
        except PeerError:
            return None
        finally:
            connection.close()
        return _views(_decode_metadata(body))

    # -- topics

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics at the controller, with retries at its successors.

        Raises:
            HostFailure: The cluster's error, or CREATE_TIMEOUT_MS has passed.
        """
        deadline_ms = self._clock.now_ms() + CREATE_TIMEOUT_MS
        left = list(topics)
        asked_before = False
        problem = "no controller was found"
        while left:
            if self._clock.now_ms() >= deadline_ms:
                raise HostFailure(f"topics {[topic.name for topic in left]} were not created: {problem}")
            address = await self._controller()
            if address is not None:
                try:
                    answer = await self._create(address, left)
                except PeerError as error:
                    problem = str(error)
                else:
                    problems = [(topic, _creation_error(answer, topic, asked_before)) for topic in left]
                    left = [topic for topic, why in problems if why is not None]
                    problem = next((why for _, why in problems if why is not None), "")
                asked_before = True
            await self._clock.sleep(RECONNECT_BACKOFF_MS)

    async def _controller(self) -> Address | None:
        body, _ = await self._metadata_body()
        if body is None:
            return None
        answer = _decode_metadata(body)
        return next(
            (self._brokers[each.node_id] for each in answer.brokers if each.node_id == answer.controller_id), None
        )

    async def _create(self, address: Address, topics: Sequence[TopicSpec]) -> CreateTopicsResponse:
        request = CreateTopicsRequest(tuple(_creatable(topic) for topic in topics), int(CREATE_TIMEOUT_MS))
        connection = self._connect(address)
        try:
            await connection.open()
            body = encode_request_body(ApiKey.CREATE_TOPICS, _CREATE_VERSION, request)
            answer = await connection.ask(ApiKey.CREATE_TOPICS, _CREATE_VERSION, body, CREATE_TIMEOUT_MS)
        finally:
            connection.close()
        response = decode_response_body(ApiKey.CREATE_TOPICS, _CREATE_VERSION, answer)
        assert isinstance(response, CreateTopicsResponse)
        return response


def _creatable(topic: TopicSpec) -> CreatableTopic:
    configs = tuple(CreatableTopicConfig(name, value) for name, value in topic.config)
    if not topic.assignment:
        return CreatableTopic(topic.name, topic.partitions, topic.replication_factor, configs=configs)
    assignment = tuple(CreatableReplicaAssignment(*one) for one in enumerate(topic.assignment))
    return CreatableTopic(topic.name, -1, -1, assignment, configs)


_PASSING = (ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REPLICATION_FACTOR)
"""Transient errors: the controller is new, or does not know yet of a broker that has just registered."""


def _creation_error(answer: CreateTopicsResponse, topic: TopicSpec, asked_before: bool) -> str | None:
    """Return the transient error that kept the topic from being created, or None if it exists.

    Raises:
        HostFailure: A retry would not help.
    """
    result = next((each for each in answer.topics if each.name == topic.name), None)
    if result is None:
        return "the answer did not speak of it"
    if result.error_code == ErrorCode.NONE:
        return None
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and asked_before:
        return None  # by the request whose answer did not come
    problem = f"error {result.error_code}, {result.error_message}"
    if result.error_code in _PASSING:
        return problem
    raise HostFailure(f"topic {topic.name} was not created: {problem}")


def _decode_metadata(body: bytes) -> MetadataResponse:
    answer = decode_response_body(ApiKey.METADATA, _METADATA_VERSION, body)
    assert isinstance(answer, MetadataResponse)
    return answer


def _views(answer: MetadataResponse) -> dict[tuple[str, int], PartitionView]:
    return {
        (topic.name, partition.partition_index): PartitionView(
            partition.leader_id, tuple(partition.isr_nodes), tuple(partition.replica_nodes), partition.leader_epoch
        )
        for topic in answer.topics
        for partition in topic.partitions
    }
