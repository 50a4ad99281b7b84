"""A broker's core without a host: frames in, decoded answers out, events and trace kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from controller.broker.broker import Broker
from controller.broker.metadata import BrokerIdentity
from controller.broker.settings import BrokerSettings, parse_settings
from controller.broker.topic_configs import TopicConfigs
from controller.clock import Future, VirtualClock
from controller.protocol.client import ApiVersion, ApiVersionsResponse
from controller.protocol.codec import (
    SUPPORTED,
    ApiKey,
    RequestHeader,
    decode_response,
    encode_request,
    encode_response_body,
)
from controller.protocol.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import Part, joined
from controller.protocol.schema import RequestValue
from controller.trace import Noted
from controller.trace_records import Recorder

BROKER = 1
BROKER_EPOCH = 55
TOPIC_ID = bytes(range(16))


@lru_cache
def settings(**given: str) -> BrokerSettings:
    names = {"broker.id": str(BROKER), "zookeeper.connect": "127.0.0.1:2181", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    return parse_settings(names | {name.replace("_", "."): value for name, value in given.items()})


class KeptTrace:
    enabled = True

    def __init__(self) -> None:
        self.recorder = Recorder()

    def emit(self, event: Any) -> None:
        self.recorder.take(0.0, BROKER, event)

    def events(self, kind: type[Any]) -> list[Any]:
        return [record.event for record in self.recorder.records if isinstance(record.event, kind)]

    def notes(self, level: str) -> list[str]:
        return [event.message for event in self.events(Noted) if event.level == level]


class ReadConfigs(TopicConfigs):
    """The configs of topics that have all been read and are empty, unless a test sets something else."""

    def __init__(self, given: BrokerSettings, trace: Any) -> None:
        super().__init__(given, trace)
        self._default = given.min_insync_replicas
        self.min_insync_of: dict[str, int] = {}
        self.deleting: bool | None = True

    def min_insync(self, topic: str) -> int:
        return self.min_insync_of.get(topic, self._default)

    def deletes(self, topic: str) -> bool | None:
        return self.deleting


class Events:
    def __init__(self) -> None:
        self.put_so_far: list[Any] = []

    def put(self, event: Any) -> None:
        self.put_so_far.append(event)


class AskedPeers:
    """Keeps what was asked of other brokers, with the answer that it waits for: (port, API key, body, answer), and in
    which version. `closed`: the ports of lasting connections that were closed. ApiVersions is answered at once, and
    kept apart: every broker offers `offered`."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ApiKey, bytes, Future[bytes]]] = []
        self.asked_in: list[int] = []
        self.closed: list[int] = []
        self.asked_for_versions: list[int] = []
        self.offered = {key: (spoken.first, spoken.last) for key, spoken in SUPPORTED.items()}
        self.offers_error = ErrorCode.NONE

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        answer: Future[bytes] = Future()
        if api_key == ApiKey.API_VERSIONS:
            self.asked_for_versions.append(port)
            told = tuple(ApiVersion(key, *spoken) for key, spoken in self.offered.items())
            version = api_version if self.offers_error is ErrorCode.NONE else 0
            response = ApiVersionsResponse(self.offers_error, told)
            answer.resolve(encode_response_body(ApiKey.API_VERSIONS, version, response))
            return answer
        self.asked_in.append(api_version)
        self.asked.append((port, ApiKey(api_key), body, answer))
        return answer

    def connect(self, host: str, port: int, client_id: str | None = None) -> AskedConnection:
        return AskedConnection(self, host, port)


class AskedConnection:
    def __init__(self, peers: AskedPeers, host: str, port: int) -> None:
        self._peers = peers
        self._host = host
        self._port = port

    def request(self, api_key: int, api_version: int, body: bytes, timeout_ms: float) -> Future[bytes]:
        return self._peers.request(self._host, self._port, api_key, api_version, body, timeout_ms)

    def close(self) -> None:
        self._peers.closed.append(self._port)


class BrokerUnderTest:
    """`answers` holds what was responded: a frame, an empty one for "no response", or None for "close the
    connection"."""

    def __init__(self, controller: bool = False) -> None:
        self.clock = VirtualClock(now_ms=1_000.0)
        self.events = Events()
        self.trace = KeptTrace()
        self.identity = BrokerIdentity(BROKER_EPOCH, "a-cluster")
        self.is_controller = controller
        self.peers = AskedPeers()
        self.broker = Broker(
            settings(), self.identity, self.events, lambda: self.is_controller, self.clock, self.trace, self.peers
        )
        self.answers: list[bytes | None] = []

    def send(self, frame: bytes) -> bytes | None:
        """For requests that are answered at once."""
        before = len(self.answers)
        self.broker.receive(frame, lambda parts: self.answers.append(frame_of(parts)))
        assert len(self.answers) == before + 1, "answered exactly once, and at once"
        return self.answers[-1]

    def begin(self, key: ApiKey, value: RequestValue, version: int | None = None) -> Deferred:
        """For requests that are answered later."""
        deferred = Deferred(key, SUPPORTED[key].last if version is None else version)
        frame: Any = encode_request(header(key, deferred.version), value)
        if key is ApiKey.PRODUCE:  # as a large one is received
            frame = memoryview(bytearray(frame)).toreadonly()
        self.broker.receive(frame, deferred.take)
        return deferred

    def ask(self, key: ApiKey, value: RequestValue, version: int | None = None) -> Any:
        deferred = self.begin(key, value, version)
        return deferred.value()


def frame_of(parts: Sequence[Part] | None) -> bytes | None:
    return None if parts is None else joined(parts)


class Deferred:
    def __init__(self, key: ApiKey, version: int) -> None:
        self.key = key
        self.version = version
        self.frames: list[bytes | None] = []

    def take(self, parts: Sequence[Part] | None) -> None:
        self.frames.append(frame_of(parts))

    @property
    def answered(self) -> bool:
        return bool(self.frames)

    def value(self) -> Any:
        assert len(self.frames) == 1, f"{len(self.frames)} answers"
        frame = self.frames[0]
        assert frame is not None
        correlation_id, value = decode_response(self.key, self.version, frame)
        assert correlation_id == CORRELATION
        return value


CORRELATION = 42


def header(key: ApiKey, version: int) -> RequestHeader:
    return RequestHeader(key, version, CORRELATION, "test")


def live(*brokers: int, listener: str = "PLAINTEXT") -> tuple[UpdateMetadataBroker, ...]:
    return tuple(
        UpdateMetadataBroker(broker, (UpdateMetadataEndpoint(9090 + broker, "127.0.0.1", listener),))
        for broker in brokers
    )


def metadata(
    *partitions: tuple[str, int, int],
    brokers: tuple[UpdateMetadataBroker, ...] = live(1, 2, 3),
    controller_epoch: int = 1,
    broker_epoch: int = BROKER_EPOCH,
    controller_id: int = 1,
    isr: tuple[int, ...] = (1, 2),
    replicas: tuple[int, ...] = (1, 2, 3),
) -> UpdateMetadataRequest:
    """`partitions`: (topic, partition, leader)."""
    topics = tuple(
        UpdateMetadataTopicState(
            name,
            tuple(
                UpdateMetadataPartitionState(index, controller_epoch, leader, 4, isr, 7, replicas)
                for topic, index, leader in partitions
                if topic == name
            ),
            TOPIC_ID,
        )
        for name in dict.fromkeys(topic for topic, _, _ in partitions)
    )
    return UpdateMetadataRequest(controller_id, controller_epoch, topics, brokers, broker_epoch)


def leader_and_isr(
    leader: int,
    leader_epoch: int,
    *,
    controller_epoch: int = 1,
    broker_epoch: int = BROKER_EPOCH,
    replicas: tuple[int, ...] = (1, 2, 3),
    topic_id: bytes = TOPIC_ID,
) -> LeaderAndIsrRequest:
    """For partition 0 of topic "t"."""
    state = LeaderAndIsrPartitionState(0, controller_epoch, leader, leader_epoch, replicas, 7, replicas)
    return LeaderAndIsrRequest(
        1, controller_epoch, (LeaderAndIsrTopicState("t", (state,), topic_id),), (), broker_epoch
    )
