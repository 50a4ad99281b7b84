"""A follower whose leader is played by the test: it sees what is asked, and writes every answer."""

from __future__ import annotations

from typing import Any

from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition
from controller.broker.replica_manager import Quota
from controller.clock import VirtualClock
from controller.machine.disk import MemoryDisk
from controller.protocol import ApiKey, RequestHeader, decode_request, encode_response, request_head, response_body
from controller.protocol.codec import MESSAGES, control_versions
from controller.protocol.control import UpdateMetadataRequest
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import EpochEndOffset, FetchPartitionData, FetchRequest, FetchResponse, FetchTopicData
from controller.protocol.schema import ResponseValue
from controller.storage import LogDirectory, LogSettings, PartitionLog
from tests.broker.harness import AskedPeers, KeptTrace, live, settings
from tests.storage.batches import Clock, batch

ME, LEADER, OTHER = 1, 2, 3
EPOCH = 5
BACKOFF_MS = 1_000.0
MAX_BYTES = 1_048_576


class Follower:
    """Broker 1 with the partitions 0 to `count` - 1 of "t", each with its own log in memory. What it asks is in
    `peers.asked`."""

    def __init__(self, count: int = 1, protocol: str = "2.8", **given: str) -> None:
        self.clock = VirtualClock(now_ms=10_000.0)
        self.trace = KeptTrace()
        self.peers = AskedPeers()
        self.metadata = MetadataCache()
        self.metadata.update(UpdateMetadataRequest(1, 1, (), live(ME, LEADER, OTHER)))
        self.disk = MemoryDisk()
        self.directory = LogDirectory(self.disk, "logs", lambda _: LogSettings(), Clock())
        self.versions = control_versions(protocol)
        self.partitions = [self.partition(index) for index in range(count)]
        self.changes: list[Partition] = []
        self.throttle = Quota(ME, self.clock, lambda: None, lambda _topic: "")
        self.fetchers = ReplicaFetcherManager(
            settings(inter_broker_protocol_version=protocol, **given),
            self.metadata,
            self.peers,
            self.clock,
            self.trace,
            self.changes.append,
            throttle=self.throttle,
        )

    def partition(self, index: int) -> Partition:
        partition = Partition("t", index, leader=LEADER, leader_epoch=EPOCH)
        partition.attach(self.directory.create(("t", index)), 0)
        return partition

    def filled(self, *epochs: int, high_watermark: int = 0, start: int = 0) -> PartitionLog:
        """The first partition's log gets a record in each of these leader epochs."""
        log = self.log()
        for epoch in epochs:
            log.append_as_leader(batch(1), epoch)
        self.partitions[0].high_watermark = high_watermark
        if start:
            log.delete_records_before(start, high_watermark)
        return log

    def log(self, index: int = 0) -> PartitionLog:
        log = self.partitions[index].log
        assert log is not None
        return log

    def follow(self, *indexes: int, leader: int = LEADER, epoch: int = EPOCH) -> None:
        taken = [self.partitions[index] for index in indexes or range(len(self.partitions))]
        for partition in taken:
            partition.leader, partition.leader_epoch = leader, epoch
        self.fetchers.follow(taken)

    # -- as the leader sees it

    @property
    def count(self) -> int:
        return len(self.peers.asked)

    def asked(self, number: int = -1) -> Any:
        _, key, body, _ = self.peers.asked[number]
        head = request_head(RequestHeader(key, self.version(key), 1, "x"))
        return decode_request(head + body, MESSAGES).value

    def version(self, key: ApiKey) -> int:
        return {
            ApiKey.FETCH: self.versions.fetch,
            ApiKey.LIST_OFFSETS: self.versions.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.versions.offset_for_leader_epoch,
        }[key]

    def fetched(self, number: int = -1) -> list[tuple[int, int]]:
        """(partition, offset) of a fetch."""
        request = self.asked(number)
        assert isinstance(request, FetchRequest)
        return [(one.partition, one.fetch_offset) for topic in request.topics for one in topic.partitions]

    def answer(self, value: ResponseValue, number: int = -1) -> None:
        _, key, _, pending = self.peers.asked[number]
        frame = encode_response(RequestHeader(key, self.version(key), 1, "x"), value)
        pending.resolve(response_body(key, self.version(key), frame)[1])

    def answer_fetch(self, *partitions: FetchPartitionData, number: int = -1, session: int = 0, error: int = 0) -> None:
        self.answer(FetchResponse((FetchTopicData("t", partitions),) if partitions else (), error, session), number)

    def later(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)


def data(
    index: int = 0,
    records: bytes = b"",
    *,
    error: ErrorCode = ErrorCode.NONE,
    high_watermark: int = 0,
    start: int = 0,
    diverging: tuple[int, int] = (-1, -1),
) -> FetchPartitionData:
    return FetchPartitionData(
        index,
        int(error),
        high_watermark,
        records,
        log_start_offset=start,
        diverging_epoch=EpochEndOffset(*diverging),
    )


def following(*epochs: int, **given: Any) -> Follower:
    follower = Follower()
    follower.filled(*epochs, **given)
    follower.follow()
    return follower
