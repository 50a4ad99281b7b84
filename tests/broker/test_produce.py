"""Produce: what is appended, when it is answered, and with which code it is refused."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import cramjam
import pytest

from controller.broker.partition import LeaderState, Live
from controller.broker.records.writes import DelayedProduce, Replication
from controller.protocol.codec import ApiKey, encode_request
from controller.protocol.control import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ACKS_ALL, ProducePartition, ProduceRequest, ProduceTopic
from controller.storage import LogSettings
from controller.storage.batches import Record, encode_batch, encode_record
from tests.broker.harness import BROKER_EPOCH, TOPIC_ID, Deferred, header
from tests.broker.leading import CONTROLLER, Holder, done, fetched, offsets, produced
from tests.storage.batches import START_MS, batch, remade


def holder(min_insync: int = 1) -> Holder:
    """Leads partition 0 with an ISR of all three; followers 2 and 3 have nothing to fetch yet."""
    broker = Holder(min_insync_replicas=str(min_insync))
    broker.begin_leading()
    broker.follow(2, 0)
    broker.follow(3, 0)
    return broker


def test_acks_1_is_answered_when_the_leader_has_it() -> None:
    broker = holder()
    first, second = produced(broker.produce(3, acks=1)), produced(broker.produce(2, acks=1))
    assert (first.error_code, first.base_offset, first.log_start_offset) == (ErrorCode.NONE, 0, 0)
    assert second.base_offset == 3
    assert (broker.log().log_end_offset, broker.partition().high_watermark) == (5, 0)


def test_acks_0_is_not_answered_and_a_refusal_closes_the_connection() -> None:
    broker = holder()
    taken, refused = broker.produce(acks=0), broker.produce(acks=0, numbers=(1,))
    assert (taken.frames, refused.frames) == ([b""], [None])
    assert broker.log().log_end_offset == 1


def test_acks_all_is_answered_when_every_member_of_the_isr_has_it() -> None:
    broker = holder()
    waiting = broker.produce(2)
    broker.follow(2, 2)
    assert not waiting.answered
    broker.follow(3, 1)
    assert not waiting.answered, "a follower has it when it asks for what is after it"
    broker.follow(3, 2)
    assert (produced(waiting).error_code, produced(waiting).base_offset) == (ErrorCode.NONE, 0)
    broker.later(60_000)
    assert len(waiting.frames) == 1


def test_the_memory_of_a_request_is_free_while_it_waits() -> None:
    broker, waiting = holder(), Deferred(ApiKey.PRODUCE, 9)
    request = ProduceRequest(ACKS_ALL, 5_000, (ProduceTopic("t", (ProducePartition(0, batch(2)),)),))
    memory = bytearray(encode_request(header(ApiKey.PRODUCE, 9), request))
    frame: Any = memoryview(memory).toreadonly()
    broker.broker.receive(frame, waiting.take)
    del frame
    memory.append(0)  # BufferError while there is a view
    assert not waiting.answered
    assert broker.log().log_end_offset == 2


def test_a_leader_alone_in_its_isr_answers_at_once() -> None:
    broker = Holder()
    broker.begin_leading((1,))
    assert produced(broker.produce()).error_code == ErrorCode.NONE
    assert broker.partition().high_watermark == 1


def test_several_partitions_are_answered_together_each_with_its_own_code() -> None:
    broker = Holder(partitions=2)
    broker.begin_leading()
    waiting = broker.produce(numbers=(0, 1, 7))
    for replica in (2, 3):
        broker.follow(replica, 1, numbers=(0,))
    assert not waiting.answered
    broker.later(5_000)
    (topic,) = waiting.value().responses
    assert [(one.index, one.error_code) for one in topic.partition_responses] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.REQUEST_TIMED_OUT),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_one_that_times_out_stays_in_the_log_and_its_answer_comes_once() -> None:
    broker = holder()
    waiting = broker.produce(timeout_ms=200)
    broker.later(199)
    assert not waiting.answered
    broker.later(3)
    assert produced(waiting).error_code == ErrorCode.REQUEST_TIMED_OUT
    for replica in (2, 3):
        broker.follow(replica, 1)
    assert len(waiting.frames) == 1
    assert broker.partition().high_watermark == 1


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_any_other_acks_is_refused(acks: int) -> None:
    broker = holder()
    assert produced(broker.produce(acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert broker.log().log_end_offset == 0


def test_too_few_in_sync_is_refused_before_and_told_after() -> None:
    broker = holder(min_insync=2)
    waiting = broker.produce()
    # Both followers are gone: found at the third look, half of replica.lag.time.max.ms after the one before.
    broker.later(46_000)
    assert broker.wanted() == [{0: (1,)}]
    second = broker.produce()
    assert not second.answered, "as long as it is not known whether they are out, there are enough"
    assert produced(waiting).error_code == ErrorCode.REQUEST_TIMED_OUT
    broker.answer(done((1,)))
    assert produced(second).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert produced(broker.produce()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produced(broker.produce(acks=1)).error_code == ErrorCode.NONE
    assert broker.log().log_end_offset == 3


def test_a_topic_may_ask_for_more_in_sync_than_the_broker() -> None:
    broker = Holder()
    broker.begin_leading((1, 2))
    broker.configs.min_insync_of["t"] = 3
    assert produced(broker.produce()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("how", ["another leads", "stopped", "deleted", "its files are offline"])
def test_who_waits_is_told_that_this_broker_leads_no_more(how: str) -> None:
    broker = holder()
    waiting = broker.produce()
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if how == "another leads":
        broker.lead((2, 3), leader=2, leader_epoch=5)
    elif how == "its files are offline":
        broker.disk.fail_after = broker.disk.changes
        broker.produce(acks=1)
        broker.later(1)
        expected = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        broker.stop_replica(delete=how == "deleted")
    assert produced(waiting).error_code == expected
    broker.later(60_000)
    assert len(waiting.frames) == 1


def test_a_leadership_that_was_lost_and_won_again_does_not_answer_for_the_first() -> None:
    """What was appended in the first may have been cut off in between."""
    broker = holder()
    waiting = broker.produce()
    broker.lead((2, 3), leader=2, leader_epoch=5)
    broker.begin_leading((1, 2), leader_epoch=6)
    broker.follow(2, 1)
    assert broker.partition().high_watermark == 1
    assert produced(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_another_leadership_decides_no_earlier_produce_whatever_its_high_watermark(isr: tuple[int, ...]) -> None:
    """Also where nobody looked at the operation while another broker led: its batch may have been truncated."""
    broker = holder()
    broker.produce(acks=1)
    partition = broker.partition()
    assert partition.leading is not None
    waiting = Replication(partition, partition.leading, 1)
    assert waiting.outcome(lambda _topic: 1) is None
    broker.lead((2, 3), leader=2, leader_epoch=5)
    assert waiting.outcome(lambda _topic: 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.begin_leading(isr, leader_epoch=6)
    broker.produce(acks=1)
    if len(isr) > 1:
        broker.follow(2, 2)
    assert partition.high_watermark >= waiting.offset
    assert waiting.outcome(lambda _topic: 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_epoch_of_the_same_leader_goes_on_with_what_waits() -> None:
    broker = holder()
    waiting = broker.produce()
    broker.begin_leading((1, 2), leader_epoch=5)
    assert not waiting.answered
    broker.follow(2, 1)
    assert produced(waiting).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("topic", "number", "error"),
    [
        ("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("unknown", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_who_does_not_lead_refuses(topic: str, number: int, error: ErrorCode) -> None:
    broker = Holder()
    broker.begin_leading(leader=2)
    assert produced(broker.produce(topic=topic, numbers=(number,))).error_code == error


def test_a_partition_that_others_have_is_not_unknown() -> None:
    broker = Holder()
    broker.hear((2, 3))
    assert produced(broker.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1] + b"\x07", ErrorCode.CORRUPT_MESSAGE),
        (batch()[:16] + b"\x01" + batch()[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch(attributes=0x10), ErrorCode.INVALID_RECORD),
        (batch(value=b"x" * 2_000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(value=b"x" * 700), ErrorCode.RECORD_LIST_TOO_LARGE),
        (batch() * 2, ErrorCode.INVALID_RECORD),
        (batch(timestamp_ms=1), ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=["empty", "cut off", "damaged", "of Kafka 0.10", "transactional", "large", "beyond a segment", "two", "old"],
)
def test_what_can_not_be_appended_is_refused_and_nothing_is(records: bytes, error: ErrorCode) -> None:
    limits = LogSettings(max_message_bytes=1_000, segment_bytes=700, timestamp_difference_max_ms=10**9)
    broker = Holder(log=limits)
    broker.begin_leading()
    result = produced(broker.produce(records=records))
    assert result.error_code == error
    assert result.error_message
    assert broker.log().log_end_offset == 0


@pytest.mark.parametrize(
    ("version", "error"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE), (3, None)]
)
def test_zstd_is_for_those_who_know_it(version: int, error: ErrorCode | None) -> None:
    """Of the attributes' codec numbers 4 is zstd, 2 snappy."""
    codec, compress = (4, cramjam.zstd.compress) if error is not None else (2, cramjam.snappy.compress_raw)
    record = Record(0, START_MS, b"key", b"value")
    records = encode_batch([record], attributes=codec, payload=bytes(compress(encode_record(record, 0, START_MS))))
    assert produced(holder().produce(records=records, acks=1, version=version)).error_code == (error or ErrorCode.NONE)


class Deferring:
    """Long work that is done when a test says so."""

    def __init__(self, broker: Holder) -> None:
        assert broker.broker.data is not None
        broker.broker.data.produce._off_loop = self.put
        self.jobs: list[tuple[Generator[int, None, None], Callable[[Exception | None], None]]] = []

    def put(self, work: Generator[int, None, None], then: Callable[[Exception | None], None]) -> None:
        self.jobs.append((work, then))

    def do(self, number: int) -> None:
        work, then = self.jobs.pop(number)
        assert all(isinstance(cost, int) for cost in work)
        then(None)


MANY = 20_000
"""Records whose checks are more than what is done at once: no two of one size follow each other."""


def large(producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    records = [Record(number, START_MS, None, b"x" * (number % 2)) for number in range(MANY)]
    return encode_batch(records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])


def test_what_is_checked_off_the_loop_keeps_its_place() -> None:
    """Two large requests and a small one of an idempotent producer, whose checks end in the wrong order; and one to
    another partition, which does not wait for them."""
    broker = Holder(2, min_insync_replicas="1")
    broker.begin_leading()
    jobs = Deferring(broker)
    first = broker.produce(records=large((7, 0, 0)), acks=1)
    second = broker.produce(records=large((7, 0, MANY)), acks=1)
    third = broker.produce(1, producer=(7, 0, 2 * MANY), acks=1)
    elsewhere = broker.produce(numbers=(1,), acks=1)
    assert produced(elsewhere).base_offset == 0
    assert len(jobs.jobs) == 2
    jobs.do(1)
    assert [one.answered for one in (first, second, third)] == [False] * 3
    jobs.do(0)
    assert [produced(one).base_offset for one in (first, second, third)] == [0, MANY, 2 * MANY]
    assert produced(broker.produce(acks=1)).base_offset == 2 * MANY + 1, "nothing waits any more"


def test_what_was_checked_is_not_appended_under_another_leader() -> None:
    broker = holder()
    jobs = Deferring(broker)
    waiting = broker.produce(records=large(), acks=1)
    broker.begin_leading(leader=2, leader_epoch=9)
    jobs.do(0)
    assert produced(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.log().log_end_offset == 0


def test_a_large_batch_with_a_bad_end_is_refused_and_the_next_goes_on() -> None:
    broker = holder()
    jobs = Deferring(broker)
    records = [encode_record(Record(n, START_MS, None, b"x" * (n % 2)), 0, START_MS) for n in range(MANY)]
    bad = remade(large(), payload=b"".join(records[:-1]) + b"\x0c\0\0\0\0\0\0")
    waiting, after = broker.produce(records=bad, acks=0), broker.produce(acks=1)
    assert not after.answered
    jobs.do(0)
    assert waiting.frames == [None]
    assert produced(after).base_offset == 0


def test_a_defect_of_the_checks_answers_and_leaves_nothing_behind() -> None:
    broker = holder()
    jobs = Deferring(broker)
    waiting, after = broker.produce(records=large(), acks=1), broker.produce(acks=1)
    _, then = jobs.jobs.pop()
    with pytest.raises(KeyError, match="planted"):
        then(KeyError("planted"))
    assert produced(waiting).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert produced(after).base_offset == 0


def test_no_records_at_all_are_refused() -> None:
    broker = holder()
    request = ProduceRequest(1, 1_000, (ProduceTopic("t", (ProducePartition(0, None),)),))
    assert produced(broker.begin(ApiKey.PRODUCE, request)).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_sent_again_is_answered_as_before_and_kept_once() -> None:
    broker = holder()
    first = broker.produce(3, producer=(7, 0, 0))
    again = broker.produce(3, producer=(7, 0, 0))
    assert not again.answered, "its first answer was not true yet"
    for replica in (2, 3):
        broker.follow(replica, 3)
    assert produced(first).base_offset == produced(again).base_offset == 0
    assert produced(broker.produce(producer=(7, 0, 5))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produced(broker.produce(producer=(7, 1, 0), acks=1)).base_offset == 3
    assert produced(broker.produce(producer=(7, 0, 3))).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.log().log_end_offset == 4


def test_a_consumer_reads_what_the_isr_has_and_nothing_else() -> None:
    broker = holder()
    broker.produce(2)
    broker.follow(2, 2)
    assert offsets_read(broker) == []
    broker.follow(3, 2)
    assert offsets_read(broker) == [0, 1]


def offsets_read(broker: Holder) -> list[int]:
    return offsets(fetched(broker.fetch(0)))


def test_a_directory_that_fails_refuses_and_the_other_goes_on() -> None:
    broker = Holder(partitions=2, disks=2)
    broker.begin_leading((1,))
    places = [broker.log(number).directory.partition("/")[0] for number in (0, 1)]
    assert sorted(places) == ["logs0", "logs1"]
    broker.logs.directories[0].health.fail(OSError("a bad sector"))
    lost = places.index("logs0")
    assert produced(broker.produce(numbers=(lost,))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produced(broker.produce(numbers=(1 - lost,))).error_code == ErrorCode.NONE
    broker.later(1)
    assert produced(broker.produce(numbers=(lost,))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    told = broker.lead((1,), leader_epoch=5)
    assert told[lost] == ErrorCode.KAFKA_STORAGE_ERROR
    assert told[1 - lost] == ErrorCode.NONE
    assert any("logs0 is offline" in note for note in broker.trace.notes("error"))


# -- planted faults


class AnsweredTooEarly(Replication, frozen=True):
    def outcome(self, min_insync: object) -> ErrorCode | None:
        return ErrorCode.NONE


def test_an_answer_before_replication_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.broker.records.writes.Replication", AnsweredTooEarly)
    with pytest.raises(AssertionError):
        test_acks_all_is_answered_when_every_member_of_the_isr_has_it()


def test_a_high_watermark_one_too_far_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LeaderState.high_watermark

    def one_too_far(self: LeaderState, log_end: int, now_ms: float, lag_max_ms: float, live: Live) -> int:
        return min(right(self, log_end, now_ms, lag_max_ms, live) + 1, log_end)

    monkeypatch.setattr(LeaderState, "high_watermark", one_too_far)
    with pytest.raises(AssertionError):
        test_acks_all_is_answered_when_every_member_of_the_isr_has_it()


def test_an_operation_that_never_completes_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DelayedProduce, "try_complete", lambda self: False)
    with pytest.raises(AssertionError):
        test_acks_all_is_answered_when_every_member_of_the_isr_has_it()


def test_an_operation_that_completes_twice_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DelayedProduce.on_complete

    def twice(self: DelayedProduce) -> None:
        right(self)
        right(self)

    monkeypatch.setattr(DelayedProduce, "on_complete", twice)
    broker = holder()
    waiting = broker.produce()
    for replica in (2, 3):
        broker.follow(replica, 1)
    assert len(waiting.frames) == 1, "a request is answered once, whoever would answer it again"
    assert any("answered twice" in note for note in broker.trace.notes("error"))


def test_a_duplicate_that_is_accepted_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.storage.producer_states.ProducerStates.duplicate_of", lambda self, header: None)
    monkeypatch.setattr("controller.storage.producer_states.ProducerStates.check_all", lambda self, headers: None)
    with pytest.raises(AssertionError):
        test_a_batch_sent_again_is_answered_as_before_and_kept_once()


def test_an_isr_that_shrinks_without_the_controller_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LeaderState.high_watermark

    def shrunk(self: LeaderState, log_end: int, now_ms: float, lag_max_ms: float, live: Live) -> int:
        behind = self.behind(log_end, now_ms, lag_max_ms)
        self.isr = tuple(one for one in self.isr if one not in behind)
        return right(self, log_end, now_ms, lag_max_ms, live)

    monkeypatch.setattr(LeaderState, "high_watermark", shrunk)
    with pytest.raises(AssertionError):
        test_too_few_in_sync_is_refused_before_and_told_after()


def test_a_role_is_refused_where_the_log_is_of_another_life_of_the_topic() -> None:
    broker = Holder()
    broker.begin_leading((1,))
    broker.start()
    broker.hear((1,))
    assert broker.lead((1,), topic_id=bytes(15) + b"\x01") == [ErrorCode.INCONSISTENT_TOPIC_ID]
    state = LeaderAndIsrPartitionState(0, 1, 1, 4, (1,), 7, (1,))
    request = LeaderAndIsrRequest(CONTROLLER, 1, (LeaderAndIsrTopicState("t", (state,), TOPIC_ID),), (), BROKER_EPOCH)
    response = broker.ask(ApiKey.LEADER_AND_ISR, request)
    assert response.topics[0].partition_errors[0].error_code == ErrorCode.NONE
