"""A queueing model of brokers, replication and consumers in virtual time: where records wait, and for how long.

A broker's handlers are one queue with `threads` servers. Service times are measured (`ServiceTimes`). A thread works
on a core; with `cores` those of a machine are shared by all of its threads (machines.py). Followers and consumers
fetch as Kafka's do: one fetch is outstanding, in a session of all partitions that they read from a broker; a fetch
that finds nothing waits; the next fetch of a follower says what it has. Records exist as batches. The latencies of
the records within one are computed from the times at which they were sent. Nothing fails here.

With `network_threads` a broker is as Kafka's SocketServer: a connection belongs to one network thread, which reads its
requests and sends its responses from its response queue. While a request of a connection is not answered the connection
is muted: its next request is read only when the response is sent. A follower then has a thread of its own for each
leader and fetcher (AbstractFetcherManager). Without, one thread does all, as in a broker of this project.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.labs.latency.machines import Cores, Station, Threads, VirtualTime


class ServiceTimes(msgspec.Struct, frozen=True):
    """CPU time in µs. A produce: for the request, for each of its partitions, for each byte. A fetch: for the request,
    for each partition of its session, for each that has records, for each byte; `replica_session_us`: for each
    partition of a follower's session instead; `wait_session_us`: beside, of a fetch that finds nothing and waits.
    `follow`: what a follower does with a response and for its next fetch, the same. `send_us`, `batch_us`: of a
    producer's application for a record and for a batch that it opens, `sender_us`, `sender_batch_us`,
    `sender_record_us`: of its sender thread. `poll_us`: of a consumer for a record. `network_us`,
    `network_byte_us`: of a broker's network thread for a request and its response, and for each byte of either;
    `tls_network_us`, `tls_network_byte_us`: the same for a connection with TLS. `unpack_byte_us`: of a leader that
    validates a compressed batch, for each byte of its records. `handler_wake_us`, `network_wake_us`: what such a
    thread saves if the next work is there before it sleeps; the others were measured with one request at a time."""

    produce_us: float
    produce_partition_us: float
    produce_byte_us: float
    fetch_us: float
    fetch_session_us: float
    fetch_partition_us: float
    fetch_byte_us: float
    follow_us: float
    follow_partition_us: float
    follow_byte_us: float
    send_us: float
    sender_us: float
    poll_us: float
    network_us: float = 0.0
    network_byte_us: float = 0.0
    tls_network_us: float = 0.0
    tls_network_byte_us: float = 0.0
    unpack_byte_us: float = 0.0
    handler_wake_us: float = 0.0
    network_wake_us: float = 0.0
    batch_us: float = 0.0
    sender_batch_us: float = 0.0
    sender_record_us: float = 0.0
    replica_session_us: float = 0.0
    wait_session_us: float = 0.0
    follow_session_us: float = 0.0

    def network_s(self, size_bytes: int, *, tls: bool = False) -> float:
        """Of a request or of a response: each is taken for half of what both cost."""
        if tls:
            return (self.tls_network_us / 2 + self.tls_network_byte_us * size_bytes) / 1e6
        return (self.network_us / 2 + self.network_byte_us * size_bytes) / 1e6

    def produce_s(self, partitions: int, size_bytes: int, packed_bytes: int) -> float:
        """`packed_bytes`: of the records of compressed batches."""
        bytes_us = self.produce_byte_us * size_bytes + self.unpack_byte_us * packed_bytes
        return (self.produce_us + self.produce_partition_us * partitions + bytes_us) / 1e6

    def fetch_s(self, reader: FetchModel, size_bytes: int) -> float:
        session_us = self.replica_session_us if reader.is_follower else self.fetch_session_us
        found_us = self.fetch_partition_us * len(reader.fresh) + self.fetch_byte_us * size_bytes
        if not reader.fresh:
            session_us += self.wait_session_us
        return (self.fetch_us + session_us * reader.session + found_us) / 1e6

    def follow_s(self, session: int, partitions: int, size_bytes: int) -> float:
        found_us = self.follow_partition_us * partitions + self.follow_byte_us * size_bytes
        return (self.follow_us + self.follow_session_us * session + found_us) / 1e6


class ClusterShape(msgspec.Struct, frozen=True):
    """`same_zone_ms` and `between_zones_ms`: one way. `network_bytes_s`: what a broker sends in a second.
    `network_threads`: 0 if the handlers read and send. `cores`: of each machine; 0 if each thread has its own.
    `agents`: machines with clients. `one_machine`: all brokers and clients share its cores. `tls`: of the clients'
    connections; brokers replicate without."""

    times: ServiceTimes
    brokers: int = 9
    zones: int = 3
    threads: int = 1
    fetchers: int = 1
    same_zone_ms: float = 0.1
    between_zones_ms: float = 0.35
    network_bytes_s: float = 1.25e9
    network_threads: int = 0
    cores: int = 0
    agents: int = 9
    one_machine: bool = False
    tls: bool = False


class ConnectionModel:
    """A connection to a broker: its network thread, if there is one, and the requests that are not read as it is
    muted."""

    __slots__ = ("muted", "network", "unread")

    def __init__(self, network: Threads | None) -> None:
        self.network = network
        self.muted = False
        self.unread: deque[ProduceModel] = deque()


class BrokerModel:
    def __init__(self, number: int, shape: ClusterShape, time: VirtualTime, cores: Cores | None) -> None:
        self.number = number
        self.zone = number % shape.zones
        self.cores = cores
        times = shape.times
        self.handlers = Threads(time, shape.threads, cores, times.handler_wake_us / 1e6)
        self.wire = Station()
        self.network = [Threads(time, 1, cores, times.network_wake_us / 1e6) for _ in range(shape.network_threads)]
        self.connections: dict[object, ConnectionModel] = {}
        self.produces = 0
        self.waited_s = 0.0
        """Of all produce requests, for a handler and a core."""
        self.received_bytes = 0
        """To its logs: from producers and from leaders."""
        self.sent_bytes = 0
        """From its logs: to consumers and to followers."""

    def connection(self, client: object) -> ConnectionModel:
        """That of a client, which belongs to the next network thread in turn if it is new."""
        found = self.connections.get(client)
        if found is None:
            network = self.network[len(self.connections) % len(self.network)] if self.network else None
            found = self.connections[client] = ConnectionModel(network)
        return found


class BatchModel(msgspec.Struct, eq=False):
    """`count` records, the first sent at `first_s`, each of the others `gap_s` after the one before. `ready_s`: when it
    has lingered."""

    partition: PartitionModel
    first_s: float
    gap_s: float
    count: int = 0
    size_bytes: int = 0
    end: int = 0
    bytes_end: int = 0
    ready_s: float = 0.0
    requested_s: float = 0.0
    appended_s: float = 0.0
    committed_s: float = 0.0
    request: ProduceModel | None = None


@dataclass(slots=True, eq=False)
class ProduceModel:
    """A produce request. `unsettled`: batches that the acknowledgement waits for."""

    producer: Acknowledged
    broker: BrokerModel
    batches: list[BatchModel]
    packed_bytes: int = 0
    size_bytes: int = field(init=False)
    unsettled: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = sum(batch.size_bytes for batch in self.batches)
        self.unsettled = len(self.batches)


class Acknowledged(Protocol):
    zone: int
    acks_all: bool

    def acknowledged(self, request: ProduceModel) -> None: ...


@dataclass(slots=True, eq=False)
class PartitionModel:
    leader: BrokerModel
    bystander: bool = False
    end: int = 0
    bytes_end: int = 0
    high_watermark: int = 0
    followers: list[FetchModel] = field(default_factory=list)
    positions: dict[FetchModel, int] = field(default_factory=dict)
    consumer: FetchModel | None = None
    uncommitted: deque[BatchModel] = field(default_factory=deque)
    readable: deque[BatchModel] = field(default_factory=deque)


class FetchModel:
    """A follower's or a consumer's fetches from one leader: one is outstanding. `at_s`: when the latest one came."""

    __slots__ = ("acked", "asked_s", "fresh", "is_follower", "leader", "one_way_s", "read_bytes", "session", "thread")

    def __init__(self, leader: BrokerModel, thread: Threads, one_way_s: float, *, is_follower: bool) -> None:
        self.leader = leader
        self.thread = thread
        self.one_way_s = one_way_s
        self.is_follower = is_follower
        self.session = 0
        self.fresh: dict[PartitionModel, None] = {}
        self.read_bytes: dict[PartitionModel, int] = {}
        self.acked: list[tuple[PartitionModel, int]] = []
        self.asked_s = -1.0


class Delivered(msgspec.Struct, gc=False):
    """A batch at its consumer."""

    bystander: bool
    first_s: float
    gap_s: float
    count: int
    requested_s: float
    appended_s: float
    committed_s: float
    fetchable_s: float
    received_s: float


RESPONSE_BYTES_MAX = 10 * 1024 * 1024


class ClusterModel:
    """Brokers, partitions and readers; producers hand in their requests by `produce`."""

    def __init__(self, shape: ClusterShape, time: VirtualTime) -> None:
        self.shape = shape
        self.time = time
        self._shared = Cores(time, shape.cores) if shape.one_machine else None
        self.brokers = [BrokerModel(number, shape, time, self.new_cores()) for number in range(shape.brokers)]
        self._agents = [self.new_cores() for _ in range(shape.agents)]
        self.partitions: list[PartitionModel] = []
        self.delivered: list[Delivered] = []
        self.fetches = 0
        self.slow_polls = (0.0, 0.0, 0.0)
        """From when to when the application of every consumer takes how many us for a record."""
        self._readers: dict[tuple[str, int, int, int], FetchModel] = {}
        self._consumers: dict[int, Threads] = {}
        self._owners: dict[FetchModel, BrokerModel] = {}

    def new_cores(self) -> Cores | None:
        """Those of one more machine."""
        if self._shared is not None:
            return self._shared
        return Cores(self.time, self.shape.cores) if self.shape.cores else None

    def client_thread(self, number: int) -> Threads:
        """A thread of a client, on the machine of the agents whose turn it is."""
        return Threads(self.time, 1, self._agents[number % len(self._agents)])

    def one_way_s(self, zone: int, other: int) -> float:
        shape = self.shape
        return (shape.same_zone_ms if zone == other else shape.between_zones_ms) / 1_000.0

    def add_topic(
        self, partitions: int, replicas: int, consumers: int, *, bystander: bool = False
    ) -> list[PartitionModel]:
        """Leaders are spread evenly, followers over the other zones. `consumers`, if any, share the partitions."""
        made = []
        count = len(self.brokers)
        for number in range(partitions):
            leader = self.brokers[number % count]
            partition = PartitionModel(leader, bystander=bystander)
            turn = number // count
            for nth in range(1, replicas):
                follower = self.brokers[(leader.number + nth + self.shape.zones * (turn * nth)) % count]
                if follower is leader:
                    follower = self.brokers[(leader.number + nth) % count]
                self._follow(partition, follower, turn % self.shape.fetchers)
            if consumers:
                self._consume(partition, number % consumers, bystander)
            made.append(partition)
        self.partitions += made
        return made

    def _follow(self, partition: PartitionModel, follower: BrokerModel, fetcher: int) -> None:
        key = ("follower", partition.leader.number, follower.number, fetcher)
        reader = self._readers.get(key)
        if reader is None:
            one_way_s = self.one_way_s(partition.leader.zone, follower.zone)
            own = self.shape.network_threads
            thread = Threads(self.time, 1, follower.cores) if own else follower.handlers
            reader = self._readers[key] = FetchModel(partition.leader, thread, one_way_s, is_follower=True)
            self._owners[reader] = follower
            self.time.at(one_way_s, self._fetch_came, reader)
        reader.session += 1
        partition.followers.append(reader)
        partition.positions[reader] = 0
        reader.read_bytes[partition] = 0

    def _consume(self, partition: PartitionModel, number: int, bystander: bool) -> None:
        number += 1_000_000 * bystander
        key = ("consumer", partition.leader.number, number, 0)
        reader = self._readers.get(key)
        if reader is None:
            thread = self._consumers.get(number)
            if thread is None:
                thread = self._consumers[number] = self.client_thread(number)
            one_way_s = self.one_way_s(partition.leader.zone, number % self.shape.zones)
            reader = self._readers[key] = FetchModel(partition.leader, thread, one_way_s, is_follower=False)
            self.time.at(one_way_s, self._fetch_came, reader)
        reader.session += 1
        partition.consumer = reader
        reader.read_bytes[partition] = 0

    # -- produce

    def produce(self, request: ProduceModel) -> None:
        one_way_s = self.one_way_s(request.producer.zone, request.broker.zone)
        self.time.at(self.time.now_s + one_way_s, self._produce_came, request)

    def _produce_came(self, request: ProduceModel) -> None:
        connection = request.broker.connection(request.producer)
        if connection.network is None:
            self._produce_arrived(request)
        elif connection.muted:
            connection.unread.append(request)
        else:
            self._read_request(connection, connection.network, request)

    def _read_request(self, connection: ConnectionModel, network: Threads, request: ProduceModel) -> None:
        connection.muted = True
        read_s = self.shape.times.network_s(request.size_bytes, tls=self.shape.tls)
        network.submit(read_s, self._produce_arrived, request)

    def _produce_arrived(self, request: ProduceModel) -> None:
        service_s = self.shape.times.produce_s(len(request.batches), request.size_bytes, request.packed_bytes)
        request.broker.produces += 1
        request.broker.handlers.submit(service_s, self._appended, request, self.time.now_s + service_s)

    def _appended(self, request: ProduceModel, soonest_s: float) -> None:
        now_s = self.time.now_s
        request.broker.waited_s += now_s - soonest_s
        request.broker.received_bytes += request.size_bytes
        for batch in request.batches:
            partition = batch.partition
            partition.end = batch.end = partition.end + batch.count
            partition.bytes_end = batch.bytes_end = partition.bytes_end + batch.size_bytes
            batch.appended_s = now_s
            batch.request = request
            partition.uncommitted.append(batch)
        if not request.producer.acks_all:
            self._respond(request)
        for batch in request.batches:
            for reader in batch.partition.followers:
                self._has_more(reader, batch.partition)
            if not batch.partition.followers:
                self._commit(batch.partition, batch.partition.end)

    def _respond(self, request: ProduceModel) -> None:
        network = request.broker.connection(request.producer).network
        if network is None:
            self._sent(request)
        else:
            network.submit(self.shape.times.network_s(0, tls=self.shape.tls), self._sent, request)

    def _sent(self, request: ProduceModel) -> None:
        connection = request.broker.connection(request.producer)
        connection.muted = False
        if connection.unread and connection.network is not None:
            self._read_request(connection, connection.network, connection.unread.popleft())
        one_way_s = self.one_way_s(request.producer.zone, request.broker.zone)
        self.time.at(self.time.now_s + one_way_s, request.producer.acknowledged, request)

    def _commit(self, partition: PartitionModel, offset: int) -> None:
        """The high watermark moves to `offset`."""
        now_s = self.time.now_s
        partition.high_watermark = offset
        uncommitted = partition.uncommitted
        while uncommitted and uncommitted[0].end <= offset:
            batch = uncommitted.popleft()
            batch.committed_s = now_s
            if partition.consumer is not None:
                partition.readable.append(batch)
            request = batch.request
            assert request is not None
            if request.producer.acks_all:
                request.unsettled -= 1
                if not request.unsettled:
                    self._respond(request)
        if partition.consumer is not None and partition.readable:
            self._has_more(partition.consumer, partition)

    # -- fetch

    def _has_more(self, reader: FetchModel, partition: PartitionModel) -> None:
        reader.fresh[partition] = None
        if reader.asked_s >= 0.0 and len(reader.fresh) == 1:
            self._serve(reader)  # it waits: only the first partition wakes it

    def _fetch_came(self, reader: FetchModel) -> None:
        network = reader.leader.connection(reader).network
        if network is None:
            self._fetch_arrived(reader)
        else:
            network.submit(self._network_s(reader, 0), self._fetch_arrived, reader)

    def _network_s(self, reader: FetchModel, size_bytes: int) -> float:
        return self.shape.times.network_s(size_bytes, tls=self.shape.tls and not reader.is_follower)

    def _fetch_arrived(self, reader: FetchModel) -> None:
        self.fetches += 1
        reader.asked_s = -1.0
        service_s = self.shape.times.fetch_s(reader, self._unread_bytes(reader))
        reader.leader.handlers.submit(service_s, self._read, reader, self.time.now_s)

    def _serve(self, reader: FetchModel) -> None:
        """A fetch that waited reads its partitions again."""
        asked_s, reader.asked_s = reader.asked_s, -1.0
        service_s = self.shape.times.fetch_s(reader, self._unread_bytes(reader))
        reader.leader.handlers.submit(service_s, self._read, reader, asked_s)

    def _unread_bytes(self, reader: FetchModel) -> int:
        read = reader.read_bytes
        if reader.is_follower:
            unread = sum(partition.bytes_end - read[partition] for partition in reader.fresh)
        else:
            unread = sum(one.readable[-1].bytes_end - read[one] for one in reader.fresh if one.readable)
        return min(unread, RESPONSE_BYTES_MAX)

    def _read(self, reader: FetchModel, asked_s: float) -> None:
        for partition, offset in reader.acked:
            self._follower_has(reader, partition, offset)
        reader.acked = []
        if not reader.fresh:
            reader.asked_s = asked_s
            return
        found, size_bytes = self._taken(reader)
        leader = reader.leader
        leader.sent_bytes += size_bytes
        network = leader.connection(reader).network
        if network is None:
            self._written(reader, found, size_bytes, asked_s)
        else:
            service_s = self._network_s(reader, size_bytes)
            network.submit(service_s, self._written, reader, found, size_bytes, asked_s)

    def _written(
        self, reader: FetchModel, found: list[tuple[PartitionModel, int]], size_bytes: int, asked_s: float
    ) -> None:
        sent_s = reader.leader.wire.submit(self.time.now_s, size_bytes / self.shape.network_bytes_s)
        self.time.at(sent_s + reader.one_way_s, self._response_arrived, reader, found, size_bytes, asked_s)

    def _taken(self, reader: FetchModel) -> tuple[list[tuple[PartitionModel, int]], int]:
        """What a response holds: partitions, each with the offset that it is read up to."""
        found: list[tuple[PartitionModel, int]] = []
        size_bytes = 0
        for partition in list(reader.fresh):
            if size_bytes >= RESPONSE_BYTES_MAX:
                break
            del reader.fresh[partition]
            if reader.is_follower:
                offset, end_bytes = partition.end, partition.bytes_end
            elif partition.readable:
                offset, end_bytes = partition.high_watermark, partition.readable[-1].bytes_end
            else:
                continue
            size_bytes += end_bytes - reader.read_bytes[partition]
            reader.read_bytes[partition] = end_bytes
            found.append((partition, offset))
        return found, size_bytes

    def _follower_has(self, reader: FetchModel, partition: PartitionModel, offset: int) -> None:
        partition.positions[reader] = offset
        reached = min(partition.positions.values())
        if reached > partition.high_watermark:
            self._commit(partition, reached)

    def _response_arrived(
        self, reader: FetchModel, found: list[tuple[PartitionModel, int]], size_bytes: int, asked_s: float
    ) -> None:
        now_s = self.time.now_s
        if reader.is_follower:
            self._owners[reader].received_bytes += size_bytes
            service_s = self.shape.times.follow_s(reader.session, len(found), size_bytes)
            reader.thread.submit(service_s, self._followed, reader, found)
            return
        batches = []
        for partition, offset in found:
            readable = partition.readable
            while readable and readable[0].end <= offset:
                batches.append(readable.popleft())
        records = sum(batch.count for batch in batches)
        slow_from_s, slow_to_s, slow_us = self.slow_polls
        poll_us = slow_us if slow_from_s <= now_s < slow_to_s else self.shape.times.poll_us
        reader.thread.submit(records * poll_us / 1e6, self._polled, batches, asked_s)
        # A consumer fetches what comes next while its application takes what came.
        self.time.at(now_s + reader.one_way_s, self._fetch_came, reader)

    def _polled(self, batches: list[BatchModel], asked_s: float) -> None:
        now_s = self.time.now_s
        for batch in batches:
            self.delivered.append(
                Delivered(
                    batch.partition.bystander,
                    batch.first_s,
                    batch.gap_s,
                    batch.count,
                    batch.requested_s,
                    batch.appended_s,
                    batch.committed_s,
                    max(batch.committed_s, asked_s),
                    now_s,
                )
            )

    def _followed(self, reader: FetchModel, found: list[tuple[PartitionModel, int]]) -> None:
        reader.acked = found
        self.time.at(self.time.now_s + reader.one_way_s, self._fetch_came, reader)


def latencies_ms(delivered: list[Delivered], *, bystander: bool, from_s: float, to_s: float) -> NDArray[np.float64]:
    """One row a record sent from `from_s` to `to_s`: the five parts in ms. The parts of a batch differ in `produce`
    alone."""
    chosen = [one for one in delivered if one.bystander is bystander and from_s <= one.first_s < to_s]
    if not chosen:
        return np.empty((0, 5))
    stamps = np.array(
        [(one.requested_s, one.appended_s, one.committed_s, one.fetchable_s, one.received_s) for one in chosen]
    )
    counts = np.array([one.count for one in chosen])
    rows = np.repeat(np.arange(len(chosen)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.array([one.first_s for one in chosen])[rows] + within * np.array([one.gap_s for one in chosen])[rows]
    return np.diff(np.column_stack((first, stamps[rows])), axis=1) * 1_000.0
