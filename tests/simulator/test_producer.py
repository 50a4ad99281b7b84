"""A simulated idempotent producer before a log that refuses some batches: what it sends again, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from random import Random
from typing import cast

import pytest

from controller.broker.replica_manager import api_error_of
from controller.clock import Future, VirtualClock
from controller.core.channels import PeerError
from controller.machine.disk import MemoryDisk
from controller.protocol import (
    ApiKey,
    ErrorCode,
    MetadataResponse,
    RequestHeader,
    decode_request,
    request_head,
)
from controller.protocol.client import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from controller.protocol.codec import MESSAGES, encode_response_body
from controller.protocol.produce import (
    InitProducerIdResponse,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
)
from controller.protocol.schema import ResponseValue
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, INDETERMINATE
from controller.scenarios.records.workload import RecordWorkload
from controller.simulator.producer import DELIVERY_TIMEOUT_MS, Batch, PartitionQueue, SimulatedProducer
from controller.simulator.routes import Pipeline, Routes
from controller.storage import LogDirectory, LogSettings, SequenceOutOfOrder
from controller.storage.batches import headers_of

WORKLOAD = RecordWorkload(rate_per_s=100.0, producers=1, keys=1, record_bytes=64)
"""A batch of one record every 10 ms."""
ANSWERED_AFTER_MS = 35.0
"""So that several are in flight."""
TOO_FEW, LOST = "too few replicas", "the answer is lost"
DEMOTED, ELSEWHERE = "it leads no more, the batch is written", "it does not lead"


class Leader:
    """One partition's, and what a producer's connection to it is used for. `fates` says what becomes of the first
    requests; those after them are taken. `asked`: their sequences."""

    broken: PeerError | None = None

    def __init__(self, clock: VirtualClock, fates: Iterable[str | None]) -> None:
        self.asked: list[int] = []
        self.in_flight = 0
        self.log = LogDirectory(MemoryDisk(), "/logs", lambda _: LogSettings(), clock.wall_ms).create(("t", 0))
        self.fates = iter(fates)
        self._clock = clock

    def ask(self, api_key: ApiKey, version: int, body: bytes, timeout_ms: float) -> Future[bytes]:
        answer: Future[bytes] = Future()
        self.in_flight += 1
        answered = self._answered(api_key, version, body)

        def give() -> None:
            self.in_flight -= 1
            answer.resolve(encode_response_body(api_key, version, answered))

        self._clock.call_later(ANSWERED_AFTER_MS, give)
        return answer

    def close(self) -> None:
        pass

    def _answered(self, api_key: ApiKey, version: int, body: bytes) -> ResponseValue:
        if api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(ErrorCode.NONE, 7, 0)
        if api_key == ApiKey.METADATA:
            led = MetadataResponsePartition(ErrorCode.NONE, 0, 1, (1,), (1,))
            topic = MetadataResponseTopic(ErrorCode.NONE, "t", (led,))
            return MetadataResponse((MetadataResponseBroker(1, "b", 9092),), (topic,))
        request = decode_request(request_head(RequestHeader(api_key, version, 1, "p")) + body, MESSAGES).value
        assert isinstance(request, ProduceRequest)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, bytes | memoryview)
        self.asked.append(headers_of(records)[0].base_sequence)
        return ProduceResponse((ProduceTopicResult("t", (self._result(records),)),))

    def _result(self, records: bytes | memoryview) -> ProducePartitionResult:
        fate = next(self.fates, None)
        if fate == TOO_FEW:
            return ProducePartitionResult(0, ErrorCode.NOT_ENOUGH_REPLICAS)
        if fate == ELSEWHERE:
            return ProducePartitionResult(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            appended = self.log.append_as_leader(records, 0)
        except SequenceOutOfOrder as error:
            return ProducePartitionResult(0, api_error_of(error).error)
        if fate == LOST:
            return ProducePartitionResult(0, ErrorCode.REQUEST_TIMED_OUT)
        if fate == DEMOTED:
            return ProducePartitionResult(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, appended.base_offset)
        return ProducePartitionResult(0, ErrorCode.NONE, appended.base_offset)


class Run:
    def __init__(self, fates: Iterable[str | None]) -> None:
        self.clock = VirtualClock()
        self.leader = Leader(self.clock, fates)
        connect = cast(Callable[[tuple[str, int]], Pipeline], lambda _: self.leader)
        self.producer = SimulatedProducer(
            0, Routes(connect, self.clock, Random(0), {1: ("b", 9092)}, [("t", 0)]), WORKLOAD
        )
        self.producer.begin()

    def send(self, until_ms: float) -> list[int]:
        """The outcomes of all records that are sent until then."""
        self.clock.advance_to(until_ms)
        self.producer.stop()
        self.clock.advance_to(until_ms + 2 * DELIVERY_TIMEOUT_MS)
        assert not self.producer.log.open
        return list(self.producer.log.outcome)


def test_what_was_refused_is_sent_again_one_batch_after_the_other_and_all_is_taken_in_order() -> None:
    run = Run([TOO_FEW] * 8)
    assert set(run.send(400.0)) == {ACKNOWLEDGED}
    assert run.producer.failure is None
    assert run.leader.asked == [0, 4, 5, 6, 0, 0, 0, 0, 0, 4, 5, 6, 7]
    known = run.leader.log.producers.producer(7)
    assert known is not None
    assert known.last_sequence == run.leader.log.log_end_offset - 1


@pytest.mark.parametrize(
    ("fates", "passed"),
    [([TOO_FEW], ACKNOWLEDGED), ([TOO_FEW, LOST, LOST, LOST], INDETERMINATE)],
    ids=["and-was-acknowledged", "and-its-answer-is-lost"],
)
def test_a_batch_that_the_next_one_passed_is_sent_again_until_its_time_is_over(
    fates: list[str | None], passed: int
) -> None:
    """KAFKA-14359: the log knew nothing of the producer, and began with the second batch."""
    run = Run(fates)
    outcomes = run.send(400.0)
    assert run.leader.asked[:5] == [0, 4, 5, 6, 0]
    assert run.producer.failure == "producer 0: a batch was not delivered in time"
    assert outcomes[:5] == [FAILED, FAILED, FAILED, FAILED, passed]
    offsets = [offset for offset in run.producer.log.offset if offset >= 0]
    assert offsets == sorted(set(offsets))
    known = run.leader.log.producers.producer(7)
    assert known is not None
    assert known.last_sequence - 3 == run.leader.log.log_end_offset, "all but the first four are there, and once"


@pytest.mark.parametrize(("fate", "outcome"), [(DEMOTED, INDETERMINATE), (ELSEWHERE, FAILED)])
def test_a_refusal_that_tells_an_offset_was_written_before(fate: str, outcome: int) -> None:
    """A produce that waits for followers while its leader is made a follower is answered so, by Kafka's too."""
    run = Run(chain([fate], repeat(ELSEWHERE)))
    assert run.send(5.0) == [outcome]
    assert run.leader.log.log_end_offset == (outcome == INDETERMINATE)


def test_out_of_order_after_what_was_acknowledged_makes_it_give_up_at_once() -> None:
    """A leader that forgot what was acknowledged is found, even one that took a later batch since."""
    run = Run([])
    run.clock.advance_to(400.0)
    run.leader.log.restart_at(run.leader.log.log_end_offset)
    run.leader.fates = iter([TOO_FEW])
    run.send(800.0)
    assert run.producer.failure == "producer 0: OUT_OF_ORDER_SEQUENCE_NUMBER for a batch"


def queue(*, again: Iterable[tuple[int, bool]] = (), acknowledged: Iterable[int] = ()) -> PartitionQueue:
    """`again`: sequences, and whether they may be written."""
    made = PartitionQueue()
    made.again.extend(Batch(0, [sequence], sequence, written) for sequence, written in again)
    for sequence in acknowledged:
        made.acknowledged(Batch(0, [sequence], sequence))
    return made


@pytest.mark.parametrize(
    ("before", "may"),
    [
        (queue(), False),
        (queue(again=[(4, False)]), True),
        (queue(again=[(6, False)]), False),
        (queue(again=[(6, True)]), True),
        (queue(acknowledged=[6]), True),
        (queue(acknowledged=[4]), False),
        (queue(acknowledged=[6, 4]), False),
        (queue(acknowledged=[4], again=[(6, True)]), False),
    ],
    ids=[
        "nothing-else",
        "one-before-it-is-to-come",
        "one-after-it-is-to-come",
        "one-after-it-may-be-written",
        "one-after-it-was-acknowledged",
        "one-before-it-was-acknowledged",
        "one-before-and-one-after-it-were-acknowledged",
        "one-before-it-was-acknowledged-and-one-after-it-may-be-written",
    ],
)
def test_whether_a_batch_out_of_order_may_come_later(before: PartitionQueue, may: bool) -> None:
    assert before.may_come_later(Batch(0, [5], 5)) is may
