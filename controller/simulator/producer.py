"""A simulated producer: batches by partition, several requests in flight, sent again until acknowledged or given up.

What a real client does about faults, in little. A partition's batches go out in their order; after one came to nothing
the partition waits until all that is in flight for it is settled, and begins again with the first. An idempotent
producer's batches keep their sequence when they are sent again, so that the broker knows them. A record ends as
acknowledged, as failed (it was refused, and never may have been written before), or as indeterminate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from controller.clock import Future
from controller.core.channels import PeerError
from controller.protocol import ApiKey, ErrorCode, decode_response_body, encode_request_body
from controller.protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, INDETERMINATE, NO_OFFSET, SendLog
from controller.scenarios.records.payload import Payload, encode_payload, key_bytes
from controller.scenarios.records.workload import ACKS_NONE, PartitionName, RecordWorkload, home
from controller.simulator.routes import BACKOFF_MS, NOBODY, Routes, keep_going
from controller.storage.batches import Record, encode_batch


@dataclass(slots=True, eq=False)
class Batch:
    """`records`: the producer's own numbers. `sequence`: Kafka's, of the first of them, within the partition."""

    place: int
    records: list[int]
    sequence: int
    may_be_written: bool = False


@dataclass(slots=True)
class PartitionQueue:
    """`due` not yet in a batch, `again` to be sent (once more) in the order of their sequences, `in_flight`.
    `held_ms`: not before this moment. `acknowledged_from`: the lowest sequence that was acknowledged."""

    due: deque[int] = field(default_factory=deque)
    again: deque[Batch] = field(default_factory=deque)
    in_flight: list[Batch] = field(default_factory=list)
    in_flight_to: int = NOBODY
    broken: bool = False
    held_ms: float = 0.0
    next_sequence: int = 0
    acknowledged_from: int | None = None

    def waits_for_an_answer(self, node: int, *, idempotent: bool) -> bool:
        """Nothing is sent while what failed is not settled, nor to another broker than what is in flight. An idempotent
        producer's batch is sent again when none before it is in flight: the next could be taken where it is refused."""
        if not self.in_flight:
            return False
        return self.broken or self.in_flight_to != node or (idempotent and bool(self.again))

    def acknowledged(self, batch: Batch) -> None:
        if self.acknowledged_from is None or batch.sequence < self.acknowledged_from:
            self.acknowledged_from = batch.sequence

    def may_come_later(self, batch: Batch) -> bool:
        """Whether an answer "out of order" says nothing against the broker: the batch is sent again, in vain or not,
        until its time is over."""
        is_behind_another = any(each.sequence < batch.sequence for each in (*self.again, *self.in_flight))
        return is_behind_another or self._overtaken(batch)

    def _overtaken(self, batch: Batch) -> bool:
        """One after it, in flight with it, was taken first (KAFKA-14359): a log that knows nothing of a producer begins
        with any sequence, so that it is enough that the ISR grew between the two. Not so once the log had something
        before it: with acks of all each leader knows that, and nothing could pass.

        The Java producer asks whether the batch is the one after the last that was acknowledged, and begins a new epoch
        if it is; where the answer to the one that passed was lost, that writes it twice. Here it is not done: what is
        out of order otherwise shows a leader that knows too little or too much.
        """
        if self.acknowledged_from is not None:
            return batch.sequence < self.acknowledged_from
        return any(each.may_be_written and each.sequence > batch.sequence for each in (*self.again, *self.in_flight))


LINGER_MS = 10.0
REQUEST_TIMEOUT_MS = 5_000.0
DELIVERY_TIMEOUT_MS = 30_000.0
MOST_IN_A_BATCH = 50

_PRODUCE_VERSION = 8
_INIT_VERSION = 1
TRANSIENT = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)
UNKNOWN_FATE = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""Errors of requests that may have been written nevertheless."""


class SimulatedProducer:
    """Sends at its rate from `begin` on until `stop`. `log.open` is 0 once all has ended; `failure` says why it gave up
    before it was asked to."""

    def __init__(self, number: int, routes: Routes, workload: RecordWorkload) -> None:
        self.log = SendLog(number)
        self.failure: str | None = None
        self._routes = routes
        self._clock = routes.clock
        self._workload = workload
        self._queues = [PartitionQueue() for _ in routes.partitions]
        self._busy: set[int] = set()  # places with something due or to be sent again; walked in order
        self._id_and_epoch = (-1, -1)
        self._stopped = False
        self._pumping = False
        routes.learned = self._pump_soon

    def begin(self) -> None:
        self._routes.learn()
        keep_going(self._identify())
        keep_going(self._send_at_rate())

    def stop(self) -> None:
        self._stopped = True

    async def _identify(self) -> None:
        while self._workload.idempotent and self._id_and_epoch[0] == -1 and not self._routes.closed:
            try:
                answer = await self._routes.ask(
                    self._routes.anybody(),
                    ApiKey.INIT_PRODUCER_ID,
                    _INIT_VERSION,
                    InitProducerIdRequest(None, 60_000),
                    REQUEST_TIMEOUT_MS,
                )
                assert isinstance(answer, InitProducerIdResponse)
                if answer.error_code == ErrorCode.NONE:
                    self._id_and_epoch = (answer.producer_id, answer.producer_epoch)
            except PeerError:
                pass  # any broker will do, and another is asked
            await self._clock.sleep(0.0 if self._id_and_epoch[0] >= 0 else BACKOFF_MS)
        self._pump_soon()

    async def _send_at_rate(self) -> None:
        began_ms = self._clock.now_ms()
        a_record_ms = 1000.0 * self._workload.producers / self._workload.rate_per_s
        while not self._stopped:
            due_ms = began_ms + len(self.log.key) * a_record_ms
            if due_ms > self._clock.now_ms():
                await self._clock.sleep(due_ms - self._clock.now_ms())
                continue
            key = (len(self.log.key) + self.log.producer) % self._workload.keys
            place = home(key, len(self._queues))
            self._queues[place].due.append(self.log.sent(key, place, due_ms))
            self._busy.add(place)
            self._pump_soon()

    # -- requests

    def _pump_soon(self, delay_ms: float = LINGER_MS) -> None:
        if not self._pumping and not self._routes.closed:
            self._pumping = True
            self._clock.call_later(delay_ms, self._pump)

    def _pump(self) -> None:
        """One request to each broker that may have one more in flight, of all that is ready for it; until none."""
        self._pumping = False
        if self._workload.idempotent and self._id_and_epoch[0] == -1:
            return
        self._give_up_the_old()
        ready = self._in_order()
        if not ready:
            self._routes.keep_open()
            return
        leaders = {self._routes.leaders[place] for place in ready}  # asked whether one is among them
        for node in self._routes.nodes:
            pipeline = self._routes.pipeline(node)
            if node not in leaders:
                continue
            while ready and pipeline.in_flight < self._workload.in_flight:
                led = [place for place in ready if self._routes.leaders[place] == node]
                batches = [batch for place in led if (batch := self._next(place, node))]
                if not batches:
                    break
                self._send(node, batches)
                ready = self._in_order()
        if ready:
            self._pump_soon(BACKOFF_MS)

    def _in_order(self) -> list[int]:
        """The places with something due or to be sent again."""
        if self._busy:
            self._busy = {place for place in self._busy if self._queues[place].due or self._queues[place].again}
        return sorted(self._busy)

    def _next(self, place: int, node: int) -> Batch | None:
        """The batch of that partition to be sent next, if one may be."""
        queue = self._queues[place]
        if queue.waits_for_an_answer(node, idempotent=self._workload.idempotent):
            return None
        if self._clock.now_ms() < queue.held_ms:
            return None
        queue.broken = False
        if queue.again:
            batch = queue.again.popleft()
        elif queue.due:
            records = [queue.due.popleft() for _ in range(min(len(queue.due), MOST_IN_A_BATCH))]
            batch = Batch(place, records, queue.next_sequence)
            queue.next_sequence += len(records)
        else:
            return None
        queue.in_flight.append(batch)
        queue.in_flight_to = node
        return batch

    def _send(self, node: int, batches: list[Batch]) -> None:
        topics: dict[str, list[ProducePartition]] = {}
        for batch in batches:
            topic, number = self._routes.partitions[batch.place]
            topics.setdefault(topic, []).append(ProducePartition(number, self._encoded(batch)))
        request = ProduceRequest(
            self._workload.acks,
            int(REQUEST_TIMEOUT_MS),
            tuple(ProduceTopic(topic, tuple(partitions)) for topic, partitions in topics.items()),
        )
        body = encode_request_body(ApiKey.PRODUCE, _PRODUCE_VERSION, request)
        pipeline = self._routes.pipeline(node)
        if self._workload.acks == ACKS_NONE:
            pipeline.send_without_response(ApiKey.PRODUCE, _PRODUCE_VERSION, body)
            for batch in batches:
                self._end(batch, INDETERMINATE)
            return
        # The broker may take all of the time that the request gives it.
        answer = pipeline.ask(ApiKey.PRODUCE, _PRODUCE_VERSION, body, 1.5 * REQUEST_TIMEOUT_MS)
        answer.on_done(lambda: self._settle(batches, answer))

    def _encoded(self, batch: Batch) -> bytes:
        log = self.log
        records = []
        for index, number in enumerate(batch.records):
            payload = Payload(log.producer, log.key[number], number, log.sent_at_ms[number])
            value = encode_payload(payload, self._workload.record_bytes)
            records.append(Record(index, self._clock.wall_ms(), key_bytes(payload.key), value))
        if not self._workload.idempotent:
            return encode_batch(records)
        producer_id, epoch = self._id_and_epoch
        return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=batch.sequence)

    # -- answers

    def _settle(self, batches: list[Batch], answer: Future[bytes]) -> None:
        """What came of one request. A connection that broke leaves all that was in flight on it of unknown fate."""
        results = {} if answer.error is not None else _results(answer.result())
        for batch in batches:
            self._queues[batch.place].in_flight.remove(batch)
            code, offset = results.get(self._routes.partitions[batch.place], (ErrorCode.NETWORK_EXCEPTION, NO_OFFSET))
            self._settle_one(batch, code, offset)
        self._pump_soon()

    def _settle_one(self, batch: Batch, code: int, offset: int) -> None:
        # A refusal with an offset is of a leader that wrote it and then was demoted while it waited for followers.
        batch.may_be_written |= code in UNKNOWN_FATE or offset != NO_OFFSET
        if code == ErrorCode.NONE:
            self._end(batch, ACKNOWLEDGED, offset)
        elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._end(batch, ACKNOWLEDGED)  # written before; where, the broker no longer knows
        elif self.failure is None and (code in TRANSIENT or self._may_come_later(batch, code)):
            self._again(batch, code)
        else:
            self._end(batch, INDETERMINATE if batch.may_be_written else FAILED, error=ErrorCode(code).name)
            if self._workload.idempotent:
                self._give_up(f"{ErrorCode(code).name} for a batch")

    def _may_come_later(self, batch: Batch, code: int) -> bool:
        return code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._queues[batch.place].may_come_later(batch)

    def _again(self, batch: Batch, code: int) -> None:
        queue = self._queues[batch.place]
        queue.again = deque(sorted([*queue.again, batch], key=lambda each: each.sequence))
        self._busy.add(batch.place)
        queue.broken = True
        queue.held_ms = self._clock.now_ms() + BACKOFF_MS
        if code not in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._routes.forget([batch.place])

    def _end(self, batch: Batch, outcome: int, offset: int = NO_OFFSET, error: str = "") -> None:
        queue = self._queues[batch.place]
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        if outcome == ACKNOWLEDGED:
            queue.acknowledged(batch)
        now_ms = self._clock.now_ms()
        for index, number in enumerate(batch.records):
            at = offset + index if offset != NO_OFFSET else NO_OFFSET
            self.log.ended(number, outcome, now_ms, offset=at, error=error)

    def _give_up_the_old(self) -> None:
        """What could not be delivered in time. An idempotent producer that gives up what may be written can't tell
        any more with which sequence to go on."""
        oldest_ms = self._clock.now_ms() - DELIVERY_TIMEOUT_MS
        for place in self._in_order():
            queue = self._queues[place]
            while queue.due and self.log.sent_at_ms[queue.due[0]] < oldest_ms:
                self.log.ended(queue.due.popleft(), FAILED, self._clock.now_ms(), error="never sent")
            while queue.again and self.log.sent_at_ms[queue.again[0].records[0]] < oldest_ms:
                batch = queue.again.popleft()
                self._end(batch, INDETERMINATE if batch.may_be_written else FAILED, error="not delivered in time")
                if self._workload.idempotent:
                    self._give_up("a batch was not delivered in time")

    def _give_up(self, why: str) -> None:
        """Sends no more; what is in flight still comes to its end."""
        if self.failure is not None:
            return
        self.failure = f"producer {self.log.producer}: {why}"
        self._stopped = True
        for queue in self._queues:
            while queue.due:
                self.log.ended(queue.due.popleft(), FAILED, self._clock.now_ms(), error="never sent")
            while queue.again:
                batch = queue.again.popleft()
                self._end(batch, INDETERMINATE if batch.may_be_written else FAILED, error=why)


def _results(body: bytes) -> dict[PartitionName, tuple[int, int]]:
    """Error code and base offset by partition."""
    answer = decode_response_body(ApiKey.PRODUCE, _PRODUCE_VERSION, body)
    assert isinstance(answer, ProduceResponse)
    return {
        (topic.name, result.index): (result.error_code, result.base_offset)
        for topic in answer.responses
        for result in topic.partition_responses
    }
