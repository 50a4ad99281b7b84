"""Fetch: what consumers and followers are given, how long they wait, and with which code they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from controller.broker.records.fetch import DelayedFetch
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import NO_DIVERGENCE, READ_COMMITTED, EpochEndOffset
from controller.storage import LogSettings, PartitionLog
from tests.broker.harness import Deferred
from tests.broker.leading import Holder, fetched, offsets
from tests.storage.batches import batch

BATCH_BYTES = len(batch())


def holder(count: int = 0, *, committed: int | None = None, log: LogSettings | None = None) -> Holder:
    """Leads partition 0 with an ISR of all three and `count` batches of one record, of which `committed` (all by
    default) are."""
    broker = Holder(log=log)
    broker.begin_leading()
    for _ in range(count):
        broker.produce(acks=1)
    for replica in (2, 3):
        broker.follow(replica, count if committed is None else committed)
    return broker


# -- consumers


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_a_consumer_reads_up_to_the_high_watermark(isolation: int) -> None:
    broker = holder(5, committed=3)
    data = fetched(broker.fetch(1, isolation=isolation))
    assert (data.error_code, offsets(data)) == (ErrorCode.NONE, [1, 2])
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
    assert data.aborted_transactions == (() if isolation == READ_COMMITTED else None)
    assert offsets(fetched(broker.fetch(3))) == []
    assert offsets(fetched(broker.fetch(4))) == [], "beyond the high watermark there is nothing, and no error either"


@pytest.mark.parametrize("offset", [-1, 6, 10**12])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    data = fetched(holder(5).fetch(offset, wait_ms=1_000))
    assert (data.error_code, data.records, data.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"", -1)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (4, ErrorCode.NONE),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
@pytest.mark.parametrize("replica", [-1, 2])
def test_who_knows_of_another_leader_epoch_is_told(replica: int, epoch: int, error: ErrorCode) -> None:
    assert fetched(holder(1).fetch(1, epoch=epoch, replica=replica, wait_ms=0)).error_code == error


@pytest.mark.parametrize(
    ("topic", "number", "error"),
    [("t", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("other", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_what_is_not_here_is_unknown(topic: str, number: int, error: ErrorCode) -> None:
    assert fetched(holder(1).fetch(0, topic=topic, numbers=(number,), wait_ms=1_000)).error_code == error


@pytest.mark.parametrize(("version", "error"), [(10, ErrorCode.NOT_LEADER_OR_FOLLOWER), (11, ErrorCode.NONE)])
def test_from_a_follower_reads_who_knows_that_it_may_be_one(version: int, error: ErrorCode) -> None:
    """KIP-392: a consumer, from version 11 on; never another follower."""
    broker = holder(2)
    broker.lead((2, 3), leader=2, leader_epoch=5)
    data = fetched(broker.fetch(0, version=version))
    assert data.error_code == error
    assert error != ErrorCode.NONE or offsets(data) == [0, 1]
    assert fetched(broker.fetch(2, replica=3, epoch=5)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_below_version_4_there_are_no_batches_to_be_had() -> None:
    assert fetched(holder(1).fetch(0, version=3)).error_code == ErrorCode.UNSUPPORTED_VERSION


# -- how much


@pytest.mark.parametrize(
    ("partition_max", "max_bytes", "expected"),
    [
        (1 << 20, 1 << 20, [[0, 1, 2], [0, 1, 2]]),
        (2 * BATCH_BYTES, 1 << 20, [[0, 1], [0, 1]]),
        (1 << 20, 4 * BATCH_BYTES, [[0, 1, 2], [0]]),
        (1 << 20, 3 * BATCH_BYTES, [[0, 1, 2], []]),
        (1, 1 << 20, [[0], []]),
        (1 << 20, 1, [[0], []]),
        (0, 0, [[0], []]),
    ],
)
def test_limits_are_kept_but_for_a_first_batch(partition_max: int, max_bytes: int, expected: list[list[int]]) -> None:
    broker = Holder(partitions=2)
    broker.begin_leading((1,))
    for _ in range(3):
        broker.produce(numbers=(0, 1))
    response = broker.fetch(0, numbers=(0, 1), partition_max_bytes=partition_max, max_bytes=max_bytes).value()
    assert [offsets(data) for topic in response.responses for data in topic.partitions] == expected


def test_a_consumer_gets_no_more_at_once_than_the_broker_lets_it_and_a_follower_does() -> None:
    broker = Holder(fetch_max_bytes="1024")
    broker.begin_leading()
    for _ in range(30):
        broker.produce(acks=1)
    for replica in (2, 3):
        broker.follow(replica, 30)
    assert len(offsets(fetched(broker.fetch(0)))) == 1024 // BATCH_BYTES
    assert len(offsets(broker.follow(2, 0))) == 30


# -- how long


def test_a_fetch_waits_for_committed_records() -> None:
    broker = holder()
    waiting = broker.fetch(0, wait_ms=500)
    broker.produce()
    broker.follow(2, 1)
    assert not waiting.answered, "not every member of the ISR has it"
    broker.follow(3, 1)
    assert offsets(fetched(waiting)) == [0]
    broker.later(1_000)
    assert len(waiting.frames) == 1


def test_a_fetch_whose_time_is_up_is_answered_with_what_there_is() -> None:
    broker = holder(2)
    waiting = broker.fetch(0, wait_ms=500, min_bytes=10 * BATCH_BYTES)
    broker.later(498)
    assert not waiting.answered
    broker.later(4)
    assert offsets(fetched(waiting)) == [0, 1]


def test_a_fetch_waits_for_as_many_bytes_as_it_wants() -> None:
    broker = Holder(partitions=2)
    broker.begin_leading((1,))
    waiting = broker.fetch(0, numbers=(0, 1), wait_ms=500, min_bytes=3 * BATCH_BYTES)
    broker.produce(numbers=(0,))
    broker.produce(numbers=(1,))
    assert not waiting.answered
    broker.produce(numbers=(0,))
    (topic,) = waiting.value().responses
    assert [offsets(data) for data in topic.partitions] == [[0, 1], [0]]


@pytest.mark.parametrize(
    "given", [{"wait_ms": 0}, {"wait_ms": 500, "min_bytes": 0}, {"wait_ms": 500, "numbers": ()}, {"wait_ms": -1}]
)
def test_who_wants_nothing_or_has_no_time_is_answered_at_once(given: dict[str, int]) -> None:
    assert holder().fetch(0, **given).answered  # type: ignore[arg-type]


def test_one_partition_in_trouble_ends_the_wait_for_all() -> None:
    broker = holder(1)
    response = broker.fetch(1, numbers=(0, 9), wait_ms=500).value()
    assert [data.error_code for topic in response.responses for data in topic.partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


@pytest.mark.parametrize("how", ["another leads", "deleted", "offline", "a new epoch"])
def test_who_waits_is_told_when_there_is_another_leader(how: str) -> None:
    broker = holder(1)
    waiting = broker.fetch(1, wait_ms=60_000, epoch=4, version=10)
    expected = ErrorCode.FENCED_LEADER_EPOCH
    if how == "another leads":
        broker.lead((2, 3), leader=2, leader_epoch=5)
    elif how == "deleted":
        broker.stop_replica(delete=True)
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif how == "offline":
        broker.logs.directories[0].health.fail(OSError("a bad sector"))
        broker.later(1)
        expected = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        broker.begin_leading((1, 2), leader_epoch=5)
    assert fetched(waiting).error_code == expected
    broker.later(60_000)
    assert len(waiting.frames) == 1


def test_a_segment_that_gets_no_more_is_not_waited_for() -> None:
    broker = holder(2, log=LogSettings(segment_bytes=2 * BATCH_BYTES))
    waiting = broker.fetch(0, wait_ms=500, min_bytes=5 * BATCH_BYTES)
    assert not waiting.answered
    broker.produce(acks=1)
    for replica in (2, 3):
        broker.follow(replica, 3)
    assert offsets(fetched(waiting)) == [0, 1]


# -- followers


def test_a_follower_reads_up_to_the_leaders_end_and_does_not_wait_for_the_others() -> None:
    broker = holder(2, committed=0)
    assert offsets(broker.follow(2, 0)) == [0, 1]
    waiting = broker.fetch(2, replica=2, epoch=4, wait_ms=500)
    broker.produce(acks=1)
    assert offsets(fetched(waiting)) == [2]


def test_a_followers_fetch_moves_the_high_watermark_that_it_is_told() -> None:
    broker = holder(2, committed=0)
    broker.follow(2, 2)
    assert broker.follow(3, 1).high_watermark == 1
    assert broker.follow(3, 2).high_watermark == 2
    follower = broker.leading().followers[3]
    assert (follower.log_end_offset, follower.log_start_offset) == (2, 0)


def test_a_wait_that_is_over_does_not_count_as_another_fetch() -> None:
    broker = holder()
    waiting = broker.fetch(0, replica=2, epoch=4, wait_ms=500)
    broker.produce(acks=1)
    assert offsets(fetched(waiting)) == [0]
    assert broker.leading().followers[2].log_end_offset == 0


@pytest.mark.parametrize(
    ("epoch", "error"), [(4, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_a_broker_that_has_no_replica_follows_nothing(epoch: int, error: ErrorCode) -> None:
    assert fetched(holder(1).fetch(0, replica=9, epoch=epoch)).error_code == error


@pytest.mark.parametrize("offset", [-1, 6])
def test_a_follower_that_is_out_of_range_has_told_nothing(offset: int) -> None:
    broker = holder(5, committed=2)
    assert broker.follow(2, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert broker.leading().followers[2].log_end_offset == 2


def diverged() -> Holder:
    """A log with epoch 4 from 0 to 2, epoch 6 from 2 to 4 and epoch 9 from 4 to 5."""
    broker = holder(2)
    for epoch, count in ((6, 2), (9, 1)):
        broker.begin_leading((1,), leader_epoch=epoch)
        for _ in range(count):
            broker.produce(acks=1)
    broker.begin_leading(leader_epoch=10)
    return broker


@pytest.mark.parametrize(
    ("last_epoch", "offset", "expected"),
    [
        (9, 5, NO_DIVERGENCE),
        (9, 6, EpochEndOffset(9, 5)),
        (8, 5, EpochEndOffset(6, 4)),
        (6, 4, NO_DIVERGENCE),
        (6, 5, EpochEndOffset(6, 4)),
        (5, 3, EpochEndOffset(4, 2)),
        (4, 2, NO_DIVERGENCE),
        (4, 4, EpochEndOffset(4, 2)),
        (10, 5, NO_DIVERGENCE),
    ],
)
def test_a_follower_is_told_where_its_log_parts_from_the_leaders(
    last_epoch: int, offset: int, expected: EpochEndOffset
) -> None:
    broker = diverged()
    waiting = broker.fetch(offset, replica=2, epoch=10, last_epoch=last_epoch, wait_ms=500)
    if expected == NO_DIVERGENCE and offset == 5:
        assert not waiting.answered
        assert broker.leading().followers[2].log_end_offset == 5
        return
    data = fetched(waiting)
    assert (data.error_code, data.diverging_epoch) == (ErrorCode.NONE, expected)
    if expected != NO_DIVERGENCE:
        assert data.records == b""
        assert broker.leading().followers[2].log_end_offset == -1, "what is not the leader's counts for nothing"


def test_an_epoch_that_the_leader_does_not_know_is_out_of_range() -> None:
    assert fetched(diverged().fetch(5, replica=2, epoch=10, last_epoch=11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- planted faults


def test_a_fetch_that_never_completes_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DelayedFetch, "try_complete", lambda self: False)
    with pytest.raises(AssertionError):
        test_a_fetch_waits_for_committed_records()


def test_a_consumer_that_reads_to_the_logs_end_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PartitionLog.read

    def without_limit(self: PartitionLog, offset: int, max_bytes: int, _up_to: int, *, whole_first_batch: bool) -> Any:
        return right(self, offset, max_bytes, whole_first_batch=whole_first_batch)

    monkeypatch.setattr(PartitionLog, "read", without_limit)
    with pytest.raises(AssertionError):
        test_a_consumer_reads_up_to_the_high_watermark(0)


# A partition that a follower is to fetch soon


def leader_of_another_soon() -> tuple[Holder, Deferred, Deferred]:
    """It leads partition 0, for whose records a follower waits and a consumer; then it begins to lead partition 1."""
    broker = Holder()
    broker.begin_leading()
    broker.later(5_000)
    follower, consumer = broker.fetch(0, replica=2, epoch=4, wait_ms=500), broker.fetch(0, wait_ms=500)
    assert not follower.answered
    broker.partitions = 2
    broker.begin_leading()
    return broker, follower, consumer


def test_a_follower_that_waits_is_answered_when_the_broker_begins_to_lead_another_partition() -> None:
    _, follower, consumer = leader_of_another_soon()
    assert follower.answered
    assert fetched(follower).records == b""
    assert not consumer.answered, "it reads what it has named"


def test_a_follower_waits_no_longer_than_the_leadership_has_lasted() -> None:
    broker, _, _ = leader_of_another_soon()
    waits: list[int] = []
    while sum(waits) < 1_200:
        began_ms = broker.clock.now_ms()
        fetch = broker.fetch(0, replica=2, epoch=4, wait_ms=500)
        while not fetch.answered:
            broker.later(1)
        waits.append(round(broker.clock.now_ms() - began_ms))
    assert waits == [4, 4, 8, 16, 32, 64, 128, 256, 500, 500]


def test_a_follower_waits_on_when_nothing_is_led_that_was_not_before() -> None:
    broker = Holder()
    broker.begin_leading()
    broker.later(5_000)
    fetch = broker.fetch(0, replica=2, epoch=4, wait_ms=500)
    broker.begin_leading()  # the same leader epoch again
    broker.later(499)
    assert not fetch.answered
    broker.later(1)
    assert fetch.answered
