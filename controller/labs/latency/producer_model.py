"""A producer in virtual time: records fill batches of partitions, a sender thread makes requests of them.

The application sends as Trogdor does: what a period of 100 ms allows one after the other, or without an end, then it
flushes and waits for the next period. It is a thread of its machine, and opening a batch takes it longer than another
record. A send that finds the buffer used up waits for an answer. Or records come at regular gaps; then they are not
events, but those that were sent since the last look are put into batches by arithmetic, and the application takes its
time when a request is made. A batch is ready when it is full, after `linger_ms`, or on a flush. At most `in_flight`
requests to a broker are unanswered. The sender takes time for each request, during which batches fill further.

The buffer has `batch_bytes` for each batch, however full (BufferPool). Partitions are named in turn, as Trogdor's
ProduceBench does by default, or sticky, as Kafka's default partitioner has it. Kafka's client sends with a ready batch
whatever else it has for partitions of the same broker; librdkafka makes a request for each batch. Source:
RecordAccumulator, Sender and UniformStickyPartitioner of Kafka 2.8, ProduceBenchWorker and Throttle of its Trogdor,
rd_kafka_producer_serve_toppar of librdkafka.
"""

from __future__ import annotations

from collections import deque
from random import Random

import msgspec

from controller.labs.latency.cluster_model import BatchModel, BrokerModel, ClusterModel, PartitionModel, ProduceModel
from controller.labs.latency.workload import PERIOD_S

BATCH_OVERHEAD_BYTES = 61
RECORD_OVERHEAD_BYTES = 9
"""Of a record of the load: length, attributes, deltas of timestamp and offset, lengths of key and value."""
SUPPOSED_GROWTH = 1.05
"""COMPRESSION_RATE_ESTIMATION_FACTOR."""
REQUEST_BYTES_MAX = 1024 * 1024
WAKE_S = 0.001
"""How late at most an application wakes for Trogdor's next period: Throttle waits for whole ms."""
STEP_S = 20e-6
"""How much work of an application is one event: about as much as one record that opens a batch."""
_EVER = 2**62


class ProducerLoad(msgspec.Struct, frozen=True):
    """`records_s` of each producer; 0: as fast as it can. `compression`: bytes on the wire by bytes of records.
    `aligned`: periods begin with those of the clock, for all producers at once, as Trogdor's Throttle has it.
    `in_turn`: each record goes to the next partition; otherwise batches do. `alone`: a request has one batch.
    `late_ms`: how late at most the application sends a record; it decides whether one that is due just when a batch has
    lingered gets into it."""

    producers: int
    records_s: float
    record_bytes: int = 516
    linger_ms: float = 5.0
    batch_bytes: int = 16_384
    acks_all: bool = True
    in_flight: int = 5
    trogdor: bool = True
    buffer_bytes: int = 32 * 1024 * 1024
    compression: float = 1.0
    aligned: bool = False
    in_turn: bool = False
    alone: bool = False
    late_ms: float = 0.0

    @property
    def records_a_batch(self) -> int:
        """A compressed batch is supposed to need more than it did so far (MemoryRecordsBuilder)."""
        room = self.batch_bytes - BATCH_OVERHEAD_BYTES
        supposed = self.compression * (SUPPOSED_GROWTH if self.compression < 1.0 else 1.0)
        return max(int(room / ((self.record_bytes + RECORD_OVERHEAD_BYTES) * supposed)), 1)

    def size_bytes(self, records: int) -> int:
        return BATCH_OVERHEAD_BYTES + int(records * (self.record_bytes + RECORD_OVERHEAD_BYTES) * self.compression)

    def packed_bytes(self, records: int) -> int:
        """Of the records of compressed batches; 0 without compression."""
        return records * (self.record_bytes + RECORD_OVERHEAD_BYTES) if self.compression < 1.0 else 0

    @property
    def burst(self) -> int:
        """Records that are sent before a flush."""
        return max(int(self.records_s * PERIOD_S), 1) if self.trogdor and self.records_s else _EVER

    @property
    def period_s(self) -> float:
        """From a burst to the next."""
        if self.burst == _EVER:
            return float("inf")
        exact_s = self.burst / self.records_s
        return max(round(exact_s / PERIOD_S), 1) * PERIOD_S if self.aligned else exact_s


class ProducerModel:
    """Begins within the first period."""

    def __init__(
        self, cluster: ClusterModel, load: ProducerLoad, partitions: list[PartitionModel], number: int, random: Random
    ) -> None:
        self._cluster = cluster
        self._time = cluster.time
        self._load = load
        self._partitions = partitions
        self._random = random
        self.zone = number % cluster.shape.zones
        self.acks_all = load.acks_all
        self._queues: dict[BrokerModel, dict[PartitionModel, deque[BatchModel]]] = {}
        self._in_flight: dict[BrokerModel, int] = {}
        self._full = load.records_a_batch
        self._linger_s = load.linger_ms / 1_000.0
        self._open: dict[PartitionModel, BatchModel] = {}
        self._next = int(random.random() * len(partitions))
        self._unanswered = 0
        self._batches = 0  # that are not acknowledged
        self._most_batches = max(load.buffer_bytes // load.batch_bytes, 1)
        self._wake_s = float("inf")
        self.requests = 0
        self.acknowledged_records = 0
        self._times = cluster.shape.times
        self._send_s = self._times.send_us / 1e6
        self._application = cluster.client_thread(number)
        self._sender = cluster.client_thread(number)
        self._dispatching = 0
        self._blocked = False
        self._steps = load.trogdor
        self._burst = load.burst
        self._period_s = load.period_s
        self._gap_s = max(self._send_s, 1.0 / load.records_s if load.records_s else 0.0)
        self._step_s = self._gap_s * (len(partitions) if load.in_turn else 1)
        """From a record of a batch to the next one, at regular gaps."""
        self._due_s = 0.0 if load.aligned else random.random() * min(self._period_s, PERIOD_S)
        self._burst_s = float("inf")  # when its first record is sent, were none of it held up
        self._sent = 0  # records of the burst
        self._time.at(self._due_s, self._begin)

    # -- the application

    def _begin(self) -> None:
        """A burst is due, or the only one without an end."""
        late_s = self._random.random() * WAKE_S if self._load.aligned else 0.0
        self._time.at(self._time.now_s + late_s, self._woken)

    def _woken(self) -> None:
        self._burst_s = self._time.now_s
        if self._steps:
            self._step()
        else:
            self._look_at(self._time.now_s)

    def _step(self) -> None:
        """What the application does next: some records, up to `STEP_S` of work."""
        opens_s = self._times.batch_us / 1e6
        left = min(self._burst - self._sent, len(self._partitions) if self._load.in_turn else _EVER)
        count, service_s = 0, 0.0
        while count < left and service_s < STEP_S:
            partition = self._partitions[
                (self._next + count) % len(self._partitions) if self._load.in_turn else self._next
            ]
            batch = self._open.get(partition)
            if batch is None and self._batches + count >= self._most_batches:
                break
            if batch is not None and not self._load.in_turn:
                left = min(left, self._full - batch.count)
            service_s += self._send_s + (opens_s if batch is None else 0.0)
            count += 1
            if batch is None and not self._load.in_turn:
                break
        self._blocked = not count
        if count:
            self._application.submit(service_s, self._stepped, count, begun=self._step_begun)
        else:
            self._look_at(self._time.now_s)

    def _step_begun(self) -> None:
        self._burst_s = self._time.now_s

    def _stepped(self, count: int) -> None:
        gap_s = (self._time.now_s - self._burst_s) / count
        first_s = self._burst_s
        for nth in range(count):
            self._put(first_s + nth * gap_s)
        self._sent += count
        if self._sent < self._burst:
            self._step()
        else:
            self._burst_over()

    def _put(self, sent_s: float) -> None:
        """Add one record, and wake the sender for a new or a full batch."""
        if self._load.in_turn:
            partition = self._partitions[self._next]
            self._next = (self._next + 1) % len(self._partitions)
        else:
            partition = self._stuck_to()
        batch = self._open.get(partition)
        if batch is None:
            batch = self._opened(partition, sent_s)
            self._look_at(batch.ready_s)
        batch.count += 1
        if batch.count > 1:
            batch.gap_s = (sent_s - batch.first_s) / (batch.count - 1)
        if batch.count >= self._full:
            del self._open[partition]
            self._look_at(self._time.now_s)

    def _burst_over(self) -> None:
        """Throttle looks at the clock: what the next period allows is sent at once if it has begun, without a flush."""
        if self._later_period():
            self._step()
        else:
            self._look_at(self._time.now_s)

    def _flushed(self) -> None:
        self._burst_s = float("inf")
        if self._later_period():
            self._woken()
        else:
            self._due_s += self._period_s
            self._sent = 0
            self._time.at(self._due_s, self._begin)

    def _later_period(self) -> bool:
        """Go on to the period of the clock, if it is a later one."""
        periods = int((self._time.now_s - self._due_s) / self._period_s + 1e-9)
        if periods:
            self._due_s += periods * self._period_s
            self._sent = 0
        return periods > 0

    def _send_until(self, now_s: float) -> None:
        """Put the records that were sent until now into batches."""
        if now_s < self._burst_s:
            return
        count = int((now_s - self._burst_s) / self._gap_s + 1e-9) + 1 - self._sent
        if count > 0 and self._batches >= self._most_batches:  # send() blocks: what follows is later
            self._burst_s = now_s - (self._sent - 1) * self._gap_s
        elif count > 0:
            if self._load.in_turn:
                self._fill_in_turn(count)
            else:
                self._fill_sticky(count)
            self._sent += count

    def _fill_in_turn(self, count: int) -> None:
        partitions = self._partitions
        start_s = self._burst_s + self._sent * self._gap_s
        for nth in range(min(count, len(partitions))):
            partition = partitions[(self._next + nth) % len(partitions)]
            self._fill(partition, start_s + nth * self._gap_s, -((nth - count) // len(partitions)))
        self._next = (self._next + count) % len(partitions)

    def _fill_sticky(self, count: int) -> None:
        """The sticky partition changes with each batch, if there are several."""
        first_s = self._burst_s + self._sent * self._gap_s
        while count:
            partition = self._stuck_to()
            batch = self._open.get(partition)
            taken = min(count, self._full - (0 if batch is None else batch.count))
            self._fill(partition, first_s, taken)
            first_s += taken * self._gap_s
            count -= taken

    def _stuck_to(self) -> PartitionModel:
        partitions = self._partitions
        before = self._next
        while partitions[self._next] not in self._open and len(partitions) > 1 and self._next == before:
            self._next = int(self._random.random() * len(partitions))
        return partitions[self._next]

    def _opened(self, partition: PartitionModel, first_s: float) -> BatchModel:
        batch = self._open[partition] = BatchModel(partition, first_s, self._step_s)
        self._batches += 1
        batch.ready_s = first_s + self._linger_s
        if self._load.late_ms:
            late = self._random.random() - self._random.random()  # the first record, and the next one
            batch.ready_s += max(late * self._load.late_ms / 1_000.0, -self._linger_s)
        self._queues.setdefault(partition.leader, {}).setdefault(partition, deque()).append(batch)
        return batch

    def _fill(self, partition: PartitionModel, first_s: float, count: int) -> None:
        """Add records of one partition, the first of which is sent at `first_s`."""
        while count:
            batch = self._open.get(partition)
            if batch is None:
                batch = self._opened(partition, first_s)
            taken = min(count, self._full - batch.count)
            batch.count += taken
            first_s += taken * self._step_s
            count -= taken
            if batch.count >= self._full:
                del self._open[partition]

    # -- the sender

    def _look_at(self, at_s: float) -> None:
        at_s = max(at_s, self._time.now_s)
        if at_s < self._wake_s:
            self._wake_s = at_s
            self._time.at(at_s, self._run, at_s)

    def _run(self, at_s: float) -> None:
        if at_s != self._wake_s:
            return  # an earlier look has been made instead
        self._wake_s = float("inf")
        if self._dispatching:
            return  # the sender looks again when it has sent its requests
        now_s = self._time.now_s
        if not self._steps:
            self._send_until(now_s)
        hurried = self._sent >= self._burst or self._batches >= self._most_batches
        soonest_s = float("inf")
        for broker, queues in list(self._queues.items()):
            while self._in_flight.get(broker, 0) < self._load.in_flight:
                ready, due_s = self._ready(queues, now_s, hurried)
                if not ready:
                    soonest_s = min(soonest_s, due_s)
                    break
                self._request(broker, ready)
                if not self._load.alone:
                    break
            if not queues:
                del self._queues[broker]
        if not self._dispatching:
            self._look_at(min(soonest_s, self._next_change_s()))

    def _ready(
        self, queues: dict[PartitionModel, deque[BatchModel]], now_s: float, hurried: bool
    ) -> tuple[list[BatchModel], float]:
        """Batches for the next request to a broker, out of its queues; if there is none, when there will be."""
        due_s = float("inf")
        chosen = None
        for partition, queue in queues.items():
            batch = queue[0]
            if hurried or now_s >= batch.ready_s - 1e-9 or self._open.get(partition) is not batch:
                chosen = partition
                break
            due_s = min(due_s, batch.ready_s)
        if chosen is None:
            return [], due_s
        ready: list[BatchModel] = []
        size_bytes = 0
        for partition in [chosen] if self._load.alone else list(queues):
            batch = queues[partition][0]
            size = self._load.size_bytes(batch.count)
            if ready and size_bytes + size > REQUEST_BYTES_MAX:
                break
            ready.append(batch)
            size_bytes += size
            batch.size_bytes = size
            queues[partition].popleft()
            if not queues[partition]:
                del queues[partition]
            if self._open.get(partition) is batch:
                del self._open[partition]
        return ready, due_s

    def _next_change_s(self) -> float:
        """When the records that are still to be sent may make a batch ready."""
        if self._steps or self._batches >= self._most_batches or self._burst_s == float("inf"):
            return float("inf")
        next_s = self._burst_s + self._sent * self._gap_s
        found_s = next_s + min(self._linger_s, (self._full - 1) * self._step_s)
        if self._full * self._step_s <= self._linger_s:  # it is full before it has lingered
            for batch in self._open.values():
                found_s = min(found_s, max(batch.first_s + (self._full - 1) * self._step_s, next_s))
        return found_s

    def _request(self, broker: BrokerModel, batches: list[BatchModel]) -> None:
        self._in_flight[broker] = self._in_flight.get(broker, 0) + 1
        self._unanswered += 1
        self.requests += 1
        packed_bytes = sum(self._load.packed_bytes(batch.count) for batch in batches)
        self._dispatching += 1
        times = self._times
        records = sum(batch.count for batch in batches)
        if not self._steps:
            self._application.submit(records * self._send_s + len(batches) * times.batch_us / 1e6, _nothing)
        sender_us = times.sender_us + times.sender_batch_us * len(batches) + times.sender_record_us * records
        self._sender.submit(sender_us / 1e6, self._dispatched, ProduceModel(self, broker, batches, packed_bytes))

    def _dispatched(self, request: ProduceModel) -> None:
        for batch in request.batches:
            batch.requested_s = self._time.now_s
        self._cluster.produce(request)
        self._dispatching -= 1
        if not self._dispatching:
            self._look_at(self._time.now_s)

    def acknowledged(self, request: ProduceModel) -> None:
        self._in_flight[request.broker] -= 1
        self._unanswered -= 1
        self.acknowledged_records += sum(batch.count for batch in request.batches)
        self._batches -= len(request.batches)
        if self._blocked:
            self._step()
        if self._sent >= self._burst and not self._unanswered and not self._queues:
            self._flushed()
        else:
            self._look_at(self._time.now_s)


def _nothing() -> None:
    """The application's work has no result."""
