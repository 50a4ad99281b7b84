"""Replicas of one partition on brokers of their own, with logs on disks in memory: the follower's side is the real one,
leaders and the controller are a model that goes by Kafka's rules.

The model keeps what leaders have committed (told by their high watermark) and looks, at each election and at the end,
that it is where it was. AssertionError where a follower went wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition
from controller.broker.replica_manager import Quota
from controller.clock import Future, VirtualClock
from controller.core.channels import PeerUnreachable
from controller.machine.disk import MemoryDisk
from controller.protocol import ApiKey, RequestHeader, decode_request, encode_response, request_head, response_body
from controller.protocol.codec import MESSAGES
from controller.protocol.control import UpdateMetadataRequest
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    NO_DIVERGENCE,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderResult,
    OffsetForLeaderTopicResult,
)
from controller.protocol.schema import ResponseValue
from controller.storage import LogDirectory, LogSettings, PartitionLog, headers_of
from tests.broker.harness import KeptTrace, live, settings
from tests.storage.batches import Clock, batch

TOPIC = "t"
KEY = (TOPIC, 0)
LATENCY_MS = 1.0
SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=200, retention_ms=-1)
NOBODY = -1
SETTLED_MS = 1_000.0
"""Many back-offs and long polls."""


@dataclass(slots=True)
class Waiting:
    """A fetch that found nothing."""

    broker: int
    asked: FetchPartition
    answer: Callable[[FetchPartitionData], None]


class Replica:
    """One broker's. `down`: its process does not run, its disk is there."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self.cluster = cluster
        self.broker = broker
        self.disk = MemoryDisk()
        self.trace = KeptTrace()
        self.down = False
        self.boot()

    def boot(self) -> None:
        self.directory = LogDirectory(self.disk, "logs", lambda _: SETTINGS, self.cluster.wall)
        assert self.directory.health.cause is None, self.directory.health.cause
        self.partition = Partition(*KEY)
        log = self.directory.create(KEY)
        self.partition.attach(log, self.directory.high_watermarks.get(KEY, 0))
        self.leads = False
        self.isr: tuple[int, ...] = ()
        self.ends: dict[int, int] = {}
        self.waiting: list[Waiting] = []
        self.fetchers = ReplicaFetcherManager(
            settings(
                broker_id=str(self.broker),
                inter_broker_protocol_version=self.cluster.protocol,
                replica_fetch_wait_max_ms="100",
                replica_fetch_backoff_ms="50",
            ),
            self.cluster.metadata,
            Peers(self.cluster, self.broker),
            self.cluster.clock,
            self.trace,
            self.changed,
            Quota(self.broker, self.cluster.clock, lambda: None, lambda _topic: ""),
        )

    @property
    def log(self) -> PartitionLog:
        log = self.partition.log
        assert log is not None
        return log

    def changed(self, partition: Partition) -> None:
        assert partition is self.partition
        assert not self.leads, "a leader's log was changed by a fetcher"
        assert self.log.log_start_offset <= partition.high_watermark <= self.log.log_end_offset

    def crash(self, draw: random.Random | None) -> None:
        """With `draw`, the machine loses power; else the process alone ends."""
        self.down = True
        self.leads = False
        self.fetchers.close()
        self.waiting.clear()
        for connection in self.cluster.connections:
            if connection.to is self:
                connection.close()
        self.directory.unlock()
        if draw is not None:
            self.disk.crash(draw)

    # -- roles

    def lead(self, leader_epoch: int, isr: tuple[int, ...]) -> None:
        self.fetchers.leave([self.partition])
        self.partition.leader, self.partition.leader_epoch = self.broker, leader_epoch
        self.log.assign_epoch(leader_epoch, self.log.log_end_offset)
        self.leads, self.isr, self.ends = True, isr, {}
        self.epoch_start = self.log.log_end_offset
        # What it takes for committed is readable from here on.
        self.cluster.committed(self)

    def follow(self, leader: int, leader_epoch: int) -> None:
        self.leads = False
        self.partition.leader, self.partition.leader_epoch = leader, leader_epoch
        for one in self.waiting:
            one.answer(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.waiting.clear()
        self.fetchers.follow([self.partition])

    # -- as leader

    def append(self, count: int, number: int) -> None:
        self.log.append_as_leader(batch(count, value=b"%d" % number), self.partition.leader_epoch)
        self.advance()
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.answer(self.read(one.broker, one.asked))

    def advance(self) -> None:
        """The high watermark, to where every member of the ISR has everything."""
        ends = [self.ends.get(broker, -1) for broker in self.isr if broker != self.broker]
        reached = min([self.log.log_end_offset, *ends])
        if reached > self.partition.high_watermark:
            self.partition.high_watermark = reached
            self.cluster.committed(self)

    def error(self, current_leader_epoch: int) -> ErrorCode:
        if current_leader_epoch < self.partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch > self.partition.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def read(self, broker: int, asked: FetchPartition) -> FetchPartitionData:
        """As Kafka 2.8's Partition.readRecords and ReplicaManager.updateFollowerFetchState."""
        error = self.error(asked.current_leader_epoch)
        if error is not ErrorCode.NONE:
            return refused(error)
        log, diverging = self.log, NO_DIVERGENCE
        if asked.last_fetched_epoch >= 0:
            end = log.end_offset_for_epoch(asked.last_fetched_epoch)
            if end.epoch < 0 or asked.fetch_offset < log.log_start_offset:
                return refused(ErrorCode.OFFSET_OUT_OF_RANGE)
            if end.epoch < asked.last_fetched_epoch or end.end_offset < asked.fetch_offset:
                diverging = EpochEndOffset(end.epoch, end.end_offset)
        elif not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        records = b""
        if diverging == NO_DIVERGENCE:
            records = log.read(asked.fetch_offset, asked.partition_max_bytes).read()
            self.ends[broker] = asked.fetch_offset
            self.advance()
            self.cluster.caught_up(self, broker)
        return FetchPartitionData(
            0,
            0,
            self.partition.high_watermark,
            records,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
        )

    def serve(self, key: ApiKey, version: int, body: bytes, answer: Callable[[bytes], None]) -> None:
        header = RequestHeader(key, version, 1, "x")
        request = decode_request(request_head(header) + body, MESSAGES).value

        def respond(value: ResponseValue) -> None:
            answer(response_body(key, version, encode_response(header, value))[1])

        match request:
            case FetchRequest():
                self.fetch(request, lambda data: respond(FetchResponse((FetchTopicData(TOPIC, (data,)),))))
            case ListOffsetsRequest():
                ((listed,),) = (topic.partitions for topic in request.topics)
                error = self.error(listed.current_leader_epoch)
                earliest = listed.timestamp == EARLIEST_TIMESTAMP
                offset = self.log.log_start_offset if earliest else self.log.log_end_offset
                found = ListOffsetsPartitionResult(0, int(error), offset=-1 if error else offset)
                respond(ListOffsetsResponse((ListOffsetsTopicResult(TOPIC, (found,)),)))
            case OffsetForLeaderEpochRequest():
                ((epoch,),) = (topic.partitions for topic in request.topics)
                error = self.error(epoch.current_leader_epoch)
                end = self.log.end_offset_for_epoch(epoch.leader_epoch)
                result = OffsetForLeaderResult(int(error), 0, end.epoch, end.end_offset)
                respond(OffsetForLeaderEpochResponse((OffsetForLeaderTopicResult(TOPIC, (result,)),)))
            case _:
                raise AssertionError(f"nobody asks for {request}")

    def fetch(self, request: FetchRequest, answer: Callable[[FetchPartitionData], None]) -> None:
        ((asked,),) = (topic.partitions for topic in request.topics)
        data = self.read(request.replica_id, asked)
        if data.error_code or data.records or data.diverging_epoch != NO_DIVERGENCE:
            answer(data)
            return
        waiting = Waiting(request.replica_id, asked, answer)
        self.waiting.append(waiting)

        def late() -> None:
            if waiting in self.waiting:
                self.waiting.remove(waiting)
                answer(self.read(waiting.broker, asked))

        self.cluster.clock.call_later(request.max_wait_ms, late)


def refused(error: ErrorCode) -> FetchPartitionData:
    return FetchPartitionData(0, int(error), -1, b"", last_stable_offset=-1, log_start_offset=-1)


class Peers:
    def __init__(self, cluster: Cluster, broker: int) -> None:
        self.cluster = cluster
        self.broker = broker

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        return self.connect(host, port).request(api_key, api_version, body, timeout_ms)

    def connect(self, host: str, port: int, client_id: str | None = None) -> Connection:
        assert client_id in (None, f"broker-{self.broker}-fetcher-0")
        return Connection(self.cluster, port - 9090)


class Connection:
    """Breaks when the process at its other end ends; nothing is answered after it was closed."""

    def __init__(self, cluster: Cluster, to: int) -> None:
        self.cluster = cluster
        self.to = cluster.replicas[to]
        self.asking: Future[bytes] | None = None
        self.over = False
        cluster.connections.append(self)

    def request(self, api_key: int, api_version: int, body: bytes, timeout_ms: float) -> Future[bytes]:
        assert self.asking is None or self.asking.done, "one request at a time"
        self.asking = asking = Future[bytes]()

        def arrived(answer: bytes) -> None:
            if not asking.done:
                asking.resolve(answer)

        def answer(answer: bytes) -> None:
            self.cluster.clock.call_later(LATENCY_MS, lambda: arrived(answer))

        def arrive() -> None:
            if self.to.down or self.over:
                self.close()
            else:
                self.to.serve(ApiKey(api_key), api_version, body, answer)

        self.cluster.clock.call_later(LATENCY_MS, arrive)
        return asking

    def close(self) -> None:
        self.over = True
        if self.asking is not None and not self.asking.done:
            self.asking.fail(PeerUnreachable("closed"))


@dataclass(slots=True)
class Cluster:
    """Brokers 1 to `size`, the first leads. `protocol`: the inter-broker protocol of all."""

    size: int = 3
    protocol: str = "2.8"
    clock: VirtualClock = field(default_factory=VirtualClock)
    wall: Clock = field(default_factory=Clock)
    metadata: MetadataCache = field(default_factory=MetadataCache)
    connections: list[Connection] = field(default_factory=list)
    replicas: dict[int, Replica] = field(default_factory=dict)
    untold: dict[int, int] = field(default_factory=dict)
    """Brokers that have not heard of the present leader epoch."""
    log: list[bytes] = field(default_factory=list)
    """What was committed, batch after batch."""
    leader: int = 1
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    appended: int = 0

    def __post_init__(self) -> None:
        brokers = tuple(range(1, self.size + 1))
        self.metadata.update(UpdateMetadataRequest(1, 1, (), live(*brokers)))
        for broker in brokers:
            self.replicas[broker] = Replica(self, broker)
        self.isr = brokers
        self.tell(brokers)

    # -- the controller

    def tell(self, brokers: Sequence[int]) -> None:
        """LeaderAndIsr, to those that run."""
        for broker in brokers:
            replica = self.replicas[broker]
            self.untold.pop(broker, None)
            if replica.down:
                continue
            if broker == self.leader:
                replica.lead(self.leader_epoch, self.isr)
            elif self.leader != NOBODY:
                replica.follow(self.leader, self.leader_epoch)

    def change(self, leader: int, isr: tuple[int, ...]) -> None:
        self.leader, self.isr, self.leader_epoch = leader, isr, self.leader_epoch + 1
        self.untold = dict.fromkeys(self.replicas, self.leader_epoch)
        if leader != NOBODY:
            self.holds_what_was_committed(self.replicas[leader])

    def elect(self) -> None:
        """The first that runs and is in the ISR; nobody else, ever."""
        able = [broker for broker in self.isr if not self.replicas[broker].down]
        self.change(able[0] if able else NOBODY, tuple(able) or self.isr[:1])

    def caught_up(self, leader: Replica, broker: int) -> None:
        """AlterIsr, answered at once."""
        known = leader.ends[broker] >= max(leader.partition.high_watermark, leader.epoch_start)
        if broker not in leader.isr and known and self.is_leader(leader) and broker not in self.untold:
            self.isr = leader.isr = (*leader.isr, broker)

    def is_leader(self, replica: Replica) -> bool:
        return replica.broker == self.leader and replica.partition.leader_epoch == self.leader_epoch

    # -- what must hold

    def committed(self, leader: Replica) -> None:
        held = batches(leader.log, leader.partition.high_watermark)
        assert held[: len(self.log)] == self.log[: len(held)], "what was committed has changed"
        self.log = max(self.log, held, key=len)

    def holds_what_was_committed(self, replica: Replica) -> None:
        held = batches(replica.log)
        assert held[: len(self.log)] == self.log, f"broker {replica.broker} lacks what was committed"

    # -- steps

    def pass_ms(self, ms: float) -> None:
        self.wall.now_ms += int(ms)
        self.clock.advance_to(self.clock.now_ms() + ms)
        self.connections = [one for one in self.connections if not one.over]

    def settle(self) -> None:
        """All run, all know, and time passes until every log should be the leader's."""
        for broker, replica in self.replicas.items():
            if replica.down:
                self.restart(broker)
        if self.leader == NOBODY or self.replicas[self.leader].down:
            self.elect()
        self.tell(tuple(self.replicas))
        self.pass_ms(SETTLED_MS)
        leader = self.replicas[self.leader]
        leader.append(1, self.appended)
        self.pass_ms(SETTLED_MS)
        wanted = batches(leader.log)
        self.holds_what_was_committed(leader)
        for replica in self.replicas.values():
            assert batches(replica.log) == wanted, f"broker {replica.broker} has another log than its leader"
            assert replica.log.epochs.entries() == leader.log.epochs.entries()
            assert replica.partition.high_watermark == leader.log.log_end_offset
        assert self.log == wanted

    def restart(self, broker: int) -> None:
        self.replicas[broker].down = False
        self.replicas[broker].boot()
        self.untold.pop(broker, None)
        if self.leader == NOBODY:
            self.elect()
        self.tell([broker])


def batches(log: PartitionLog, up_to: int | None = None) -> list[bytes]:
    """The whole batches of a log below `up_to`, none of which was ever deleted."""
    return list(_batches(log, log.log_end_offset if up_to is None else up_to))


def _batches(log: PartitionLog, up_to: int) -> Iterator[bytes]:
    offset = log.log_start_offset
    while offset < up_to:
        data, position = log.read(offset, 1 << 20).read(), 0
        for header in headers_of(data):
            if header.next_offset > up_to:
                return
            yield data[position : position + header.size_bytes]
            position, offset = position + header.size_bytes, header.next_offset
