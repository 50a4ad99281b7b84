"""A producer as Kafka's client is: records fill batches of a sticky partition, a sender thread makes requests of them.

The application sends records at regular gaps, or as Trogdor does: what a period of 100 ms allows one after the other,
then it flushes and waits for the next period. A batch goes when it is full, after `linger_ms`, or on a flush. At most
`in_flight` requests to a broker are unanswered. The sender takes time for each request, during which batches fill
further. Records are not events: those that were sent since the last look are put into batches by arithmetic.
Source: RecordAccumulator, Sender and UniformStickyPartitioner of Kafka 2.8.
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
REQUEST_BYTES_MAX = 1024 * 1024


class ProducerLoad(msgspec.Struct, frozen=True):
    """`records_s` of each producer; 0: as fast as it can. `compression`: bytes on the wire by bytes of records."""

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

    @property
    def records_a_batch(self) -> int:
        room = self.batch_bytes - BATCH_OVERHEAD_BYTES
        return max(int(room / ((self.record_bytes + RECORD_OVERHEAD_BYTES) * self.compression)), 1)

    def size_bytes(self, records: int) -> int:
        return BATCH_OVERHEAD_BYTES + int(records * (self.record_bytes + RECORD_OVERHEAD_BYTES) * self.compression)


class ProducerModel:
    """Begins at `phase_s`."""

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
        self._open: BatchModel | None = None
        self._sticky = random.choice(partitions)
        self._unanswered = 0
        self._buffered = 0  # records that are not acknowledged
        self._buffer_records = load.buffer_bytes // (load.record_bytes + RECORD_OVERHEAD_BYTES)
        self._sender_free_s = 0.0
        self._wake_s = float("inf")
        self.requests = 0
        self.acknowledged_records = 0
        times = cluster.shape.times
        send_s = times.send_us / 1e6
        self._sender_s = times.sender_us / 1e6
        if load.trogdor and load.records_s:
            self._burst = max(int(load.records_s * PERIOD_S), 1)
            self._period_s = self._burst / load.records_s
            self._gap_s = min(send_s, self._period_s / self._burst)
        else:
            self._burst = 2**62
            self._period_s = float("inf")
            self._gap_s = max(send_s, 1.0 / load.records_s if load.records_s else 0.0)
        phase_s = random.random() * min(self._period_s, PERIOD_S)
        self._burst_s = phase_s  # when its first record is sent, were none of it held up
        self._sent = 0  # records of the burst
        self._time.at(phase_s, self._begin)

    def _begin(self) -> None:
        self._look_at(self._time.now_s)

    # -- the application

    def _next_burst(self) -> None:
        """The flush is over: go on in the next period that has not begun."""
        now_s = self._time.now_s
        periods = max(int((now_s - self._burst_s) / self._period_s) + 1, 1)
        self._burst_s += periods * self._period_s
        self._sent = 0
        self._look_at(self._burst_s)

    def _send_until(self, now_s: float) -> None:
        """Put the records that were sent until now into batches."""
        due = min(int((now_s - self._burst_s) / self._gap_s + 1e-9) + 1, self._burst) if now_s >= self._burst_s else 0
        while self._sent < due:
            if self._buffered >= self._buffer_records:  # send() blocks: what follows is later
                self._burst_s = now_s - (self._sent - 1) * self._gap_s
                return
            batch = self._open
            if batch is None:
                self._open = batch = self._new_batch(self._burst_s + self._sent * self._gap_s)
            taken = min(due - self._sent, self._full - batch.count, self._buffer_records - self._buffered)
            batch.count += taken
            self._sent += taken
            self._buffered += taken
            if batch.count >= self._full:
                self._open = None

    def _new_batch(self, first_s: float) -> BatchModel:
        """Of another partition than the one before, if there are several: the sticky partition changes."""
        partitions = self._partitions
        while len(partitions) > 1:
            chosen = partitions[int(self._random.random() * len(partitions))]
            if chosen is not self._sticky:
                self._sticky = chosen
                break
        batch = BatchModel(self._sticky, first_s, self._gap_s)
        queues = self._queues.setdefault(self._sticky.leader, {})
        queues.setdefault(self._sticky, deque()).append(batch)
        return batch

    # -- the sender

    def _look_at(self, at_s: float) -> None:
        at_s = max(at_s, self._sender_free_s, self._time.now_s)
        if at_s < self._wake_s:
            self._wake_s = at_s
            self._time.at(at_s, self._run, at_s)

    def _run(self, at_s: float) -> None:
        if at_s != self._wake_s:
            return  # an earlier look has been made instead
        self._wake_s = float("inf")
        now_s = self._time.now_s
        self._send_until(now_s)
        flushing = self._sent >= self._burst
        spent_s = 0.0
        soonest_s = float("inf")
        for broker, queues in list(self._queues.items()):
            ready: list[BatchModel] = []
            may_send = self._in_flight.get(broker, 0) < self._load.in_flight
            size_bytes = 0
            for partition, queue in list(queues.items()):
                batch = queue[0]
                until_s = batch.first_s + self._load.linger_ms / 1_000.0
                if batch is not self._open or flushing or now_s >= until_s - 1e-9:
                    size = self._load.size_bytes(batch.count)
                    if may_send and (not ready or size_bytes + size <= REQUEST_BYTES_MAX):
                        ready.append(batch)
                        size_bytes += size
                        batch.size_bytes = size
                        queue.popleft()
                        if not queue:
                            del queues[partition]
                        if batch is self._open:
                            self._open = None
                elif may_send:
                    soonest_s = min(soonest_s, until_s)
            if ready:
                spent_s += self._sender_s
                self._request(broker, ready, now_s + spent_s)
            if not queues:
                del self._queues[broker]
        self._sender_free_s = now_s + spent_s
        if not flushing:
            next_s = self._burst_s + self._sent * self._gap_s
            left = self._full - (0 if self._open is None else self._open.count)
            full_s = next_s + (left - 1) * self._gap_s
            if self._open is None:
                full_s = min(full_s, next_s + self._load.linger_ms / 1_000.0)
            if self._buffered < self._buffer_records:
                soonest_s = min(soonest_s, full_s)
        if spent_s and self._queues:
            soonest_s = min(soonest_s, self._sender_free_s)
        if soonest_s < float("inf"):
            self._look_at(soonest_s)

    def _request(self, broker: BrokerModel, batches: list[BatchModel], at_s: float) -> None:
        self._in_flight[broker] = self._in_flight.get(broker, 0) + 1
        self._unanswered += 1
        self.requests += 1
        for batch in batches:
            batch.requested_s = at_s
        self._time.at(at_s, self._cluster.produce, ProduceModel(self, broker, batches))

    def acknowledged(self, request: ProduceModel) -> None:
        self._in_flight[request.broker] -= 1
        self._unanswered -= 1
        records = sum(batch.count for batch in request.batches)
        self.acknowledged_records += records
        self._buffered -= records
        if self._sent >= self._burst and not self._unanswered and not self._queues:
            self._next_burst()
        else:
            self._look_at(self._time.now_s)
