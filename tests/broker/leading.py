"""A broker that leads partitions, with or without logs: roles, the controller's answers to its AlterIsr, and what
producers, consumers and followers ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from controller.broker.broker import Broker
from controller.broker.log_manager import LogManager
from controller.broker.partition import LeaderState, Partition
from controller.clock import Future
from controller.core.handlers.isr_changes import NAMED_BY_ID
from controller.machine.disk import MemoryDisk
from controller.protocol import request_head
from controller.protocol.codec import ApiKey, RequestHeader, decode_request, encode_response_body
from controller.protocol.control import (
    AlterIsrPartition,
    AlterIsrPartitionResult,
    AlterIsrRequest,
    AlterIsrResponse,
    AlterIsrTopic,
    AlterIsrTopicResult,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    CONSUMER,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from controller.protocol.produce import ACKS_ALL, ProducePartition, ProducePartitionResult, ProduceRequest, ProduceTopic
from controller.storage import LogSettings, PartitionLog, headers_of, whole_bytes
from tests.broker.harness import BROKER, BROKER_EPOCH, TOPIC_ID, BrokerUnderTest, Deferred, ReadConfigs, live, settings
from tests.storage.batches import batch

REPLICAS = (1, 2, 3)
CONTROLLER = 2
VERSION = 7


class Leader(BrokerUnderTest):
    """Broker 1, leader of partitions 0 to `partitions` - 1 of "t", of replicas 1, 2, 3."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__()
        self.partitions = partitions

    def roles(
        self,
        isr: Sequence[int],
        *,
        leader: int = BROKER,
        leader_epoch: int = 4,
        version: int = VERSION,
        topic_id: bytes = TOPIC_ID,
    ) -> LeaderAndIsrRequest:
        """For all of them."""
        states = tuple(
            LeaderAndIsrPartitionState(number, 1, leader, leader_epoch, tuple(isr), version, REPLICAS, is_new=True)
            for number in range(self.partitions)
        )
        topic = LeaderAndIsrTopicState("t", states, topic_id)
        return LeaderAndIsrRequest(CONTROLLER, 1, (topic,), (), BROKER_EPOCH)

    def lead(self, isr: Sequence[int], **changed: Any) -> list[ErrorCode]:
        """LeaderAndIsr as `roles` makes it; each partition's error."""
        response = self.ask(ApiKey.LEADER_AND_ISR, self.roles(isr, **changed))
        return [ErrorCode(each.error_code) for told in response.topics for each in told.partition_errors]

    def hear(
        self,
        isr: Sequence[int],
        *,
        alive: Sequence[int] = REPLICAS,
        offline: Sequence[int] = (),
        leader_epoch: int = 4,
        version: int = VERSION,
        controller: int = CONTROLLER,
    ) -> None:
        """UpdateMetadata for all of them."""
        states = tuple(
            UpdateMetadataPartitionState(number, 1, BROKER, leader_epoch, tuple(isr), version, REPLICAS, tuple(offline))
            for number in range(self.partitions)
        )
        topic = UpdateMetadataTopicState("t", states, TOPIC_ID)
        self.ask(ApiKey.UPDATE_METADATA, UpdateMetadataRequest(controller, 1, (topic,), live(*alive), BROKER_EPOCH))

    def asked(self) -> list[tuple[int, AlterIsrRequest]]:
        """Every AlterIsr so far: the port that was asked, the request, whatever its version was as version 0 has it."""
        return [
            (port, as_version_0(decoded(body, version)))
            for (port, key, body, _), version in zip(self.peers.asked, self.peers.asked_in, strict=True)
            if key is ApiKey.ALTER_ISR
        ]

    def wanted(self) -> list[dict[int, tuple[int, ...]]]:
        """Of every request: partition to ISR."""
        return [
            {each.partition_index: each.new_isr for topic in request.topics for each in topic.partitions}
            for _, request in self.asked()
        ]

    def answer(self, *results: AlterIsrPartitionResult, error: ErrorCode = ErrorCode.NONE) -> None:
        """To the last request, in its version."""
        version = self.peers.asked_in[-1]
        topic = (
            AlterIsrTopicResult("t", results) if version < NAMED_BY_ID else AlterIsrTopicResult("", results, TOPIC_ID)
        )
        response = AlterIsrResponse(int(error), (topic,) if results else ())
        self.last().resolve(encode_response_body(ApiKey.ALTER_ISR, version, response))

    def last(self) -> Future[bytes]:
        return self.peers.asked[-1][3]

    def isr(self, number: int = 0) -> tuple[int, ...]:
        partition = self.broker.replicas.partition("t", number)
        assert partition is not None
        return partition.isr

    def later(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)


def decoded(body: bytes, version: int) -> AlterIsrRequest:
    value: Any = decode_request(request_head(RequestHeader(ApiKey.ALTER_ISR, version, 1, "x")) + body).value
    assert isinstance(value, AlterIsrRequest)
    return value


def as_version_0(request: AlterIsrRequest) -> AlterIsrRequest:
    def unpaired(one: AlterIsrPartition) -> AlterIsrPartition:
        members = one.new_isr_with_epochs
        isr, lives = tuple(each.broker_id for each in members), tuple(each.broker_epoch for each in members)
        return replace(one, new_isr=isr, new_isr_epochs=lives, new_isr_with_epochs=()) if members else one

    return replace(
        request,
        topics=tuple(
            AlterIsrTopic("t" if topic.topic_id == TOPIC_ID else topic.name, tuple(map(unpaired, topic.partitions)))
            for topic in request.topics
        ),
    )


def done(isr: Sequence[int], *, number: int = 0, leader_epoch: int = 4, version: int = 8) -> AlterIsrPartitionResult:
    return AlterIsrPartitionResult(number, 0, BROKER, leader_epoch, tuple(isr), version)


def refused(error: ErrorCode, number: int = 0) -> AlterIsrPartitionResult:
    return AlterIsrPartitionResult(number, int(error))


class Holder(Leader):
    """The same with logs on a disk in memory; `given` as server.properties, with _ for the dots."""

    def __init__(self, partitions: int = 1, *, log: LogSettings | None = None, disks: int = 1, **given: str) -> None:
        super().__init__(partitions)
        self.disk = MemoryDisk()
        self.log_settings = log or LogSettings()
        self.paths = [f"logs{number}" for number in range(disks)]
        self.settings = settings(log_dirs=",".join(self.paths), **given)
        self.start()

    def start(self) -> None:
        """A new life of the broker on its disk."""
        self.disk.locks.clear()
        self.logs = LogManager(self.disk, self.paths, lambda _topic: self.log_settings, self.clock.wall_ms)
        self.configs = ReadConfigs(self.settings, self.trace)
        self.broker = Broker(
            self.settings,
            self.identity,
            self.events,
            lambda: False,
            self.clock,
            self.trace,
            self.peers,
            self.logs,
            configs=self.configs,
        )

    def begin_leading(
        self, isr: Sequence[int] = REPLICAS, *, leader: int = BROKER, leader_epoch: int = 4, version: int = VERSION
    ) -> None:
        """What a controller sends: metadata and roles."""
        self.hear(isr, leader_epoch=leader_epoch, version=version)
        self.lead(isr, leader=leader, leader_epoch=leader_epoch, version=version)

    def partition(self, number: int = 0) -> Partition:
        found = self.broker.replicas.partition("t", number)
        assert found is not None
        return found

    def leading(self, number: int = 0) -> LeaderState:
        leading = self.partition(number).leading
        assert leading is not None
        return leading

    def log(self, number: int = 0) -> PartitionLog:
        log = self.partition(number).log
        assert log is not None
        return log

    def stop_replica(self, *, delete: bool, leader_epoch: int = 6) -> list[ErrorCode]:
        states = tuple(
            StopReplicaPartitionState(number, leader_epoch, delete_partition=delete)
            for number in range(self.partitions)
        )
        request = StopReplicaRequest(CONTROLLER, 1, (StopReplicaTopicState("t", states),), BROKER_EPOCH)
        response = self.ask(ApiKey.STOP_REPLICA, request)
        return [ErrorCode(each.error_code) for each in response.partition_errors]

    # Clients and followers

    def produce(
        self,
        count: int = 1,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int = 5_000,
        records: bytes | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
        numbers: Sequence[int] = (0,),
        topic: str = "t",
        version: int = 9,
    ) -> Deferred:
        """A batch of `count` records to each of the partitions `numbers`."""
        data = batch(count, timestamp_ms=self.clock.wall_ms(), producer=producer) if records is None else records
        parts = tuple(ProducePartition(number, data) for number in numbers)
        return self.begin(ApiKey.PRODUCE, ProduceRequest(acks, timeout_ms, (ProduceTopic(topic, parts),)), version)

    def fetch(
        self,
        offset: int,
        *,
        replica: int = CONSUMER,
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        epoch: int = -1,
        last_epoch: int = -1,
        log_start: int = 0,
        isolation: int = 0,
        numbers: Sequence[int] = (0,),
        topic: str = "t",
        version: int = 12,
    ) -> Deferred:
        """From `offset` of each of the partitions `numbers`."""
        parts = tuple(
            FetchPartition(number, offset, partition_max_bytes, epoch, last_epoch, log_start) for number in numbers
        )
        request = FetchRequest(
            wait_ms, min_bytes, (FetchTopic(topic, parts),), replica, max_bytes, isolation_level=isolation
        )
        return self.begin(ApiKey.FETCH, request, version)

    def follow(self, replica: int, offset: int, **given: Any) -> FetchPartitionData:
        """A follower's fetch that does not wait."""
        return fetched(self.fetch(offset, replica=replica, epoch=self.partition().leader_epoch, **given))


def produced(deferred: Deferred) -> ProducePartitionResult:
    """The one partition's result."""
    ((result,),) = [topic.partition_responses for topic in deferred.value().responses]
    assert isinstance(result, ProducePartitionResult)
    return result


def fetched(deferred: Deferred) -> FetchPartitionData:
    """The one partition's data."""
    response = deferred.value()
    assert isinstance(response, FetchResponse)
    ((data,),) = [topic.partitions for topic in response.responses]
    return data


def offsets(data: FetchPartitionData) -> list[int]:
    """Of the records in whole batches."""
    assert isinstance(data.records, bytes | memoryview)
    whole = bytes(data.records)[: whole_bytes(data.records)]
    return [offset for header in headers_of(whole) for offset in range(header.base_offset, header.next_offset)]
