"""Many consumers that wait at the end of one partition: they share what they wait with, and are answered in slices."""

from __future__ import annotations

import pytest

from controller.broker.records.fetch import FETCHES_AT_ONCE
from controller.protocol.client import MetadataRequest
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import READ_COMMITTED, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from controller.protocol.framing import Part, joined
from tests.broker.harness import BROKER, Deferred
from tests.broker.leading import Holder, fetched, offsets

WAIT_MS = 10_000


def leader() -> Holder:
    """The only member of the ISR: what is appended is committed."""
    broker = Holder()
    broker.begin_leading((BROKER,))
    return broker


def waiting(broker: Holder, count: int, offset: int = 0) -> list[Deferred]:
    return [broker.fetch(offset, wait_ms=WAIT_MS) for _ in range(count)]


def answered(fetches: list[Deferred]) -> int:
    return sum(fetch.answered for fetch in fetches)


def test_consumers_are_answered_in_slices_in_order_while_others_are_served() -> None:
    broker = leader()
    fetches = waiting(broker, 3 * FETCHES_AT_ONCE + 1)
    began_ms = broker.clock.now_ms()
    broker.produce(acks=1)
    counts = [answered(fetches)]
    while counts[-1] < len(fetches):
        assert broker.begin(ApiKey.METADATA, MetadataRequest(()), 9).answered
        assert broker.clock.step()
        counts.append(answered(fetches))
    assert counts == [100, 200, 300, 301]
    assert broker.clock.now_ms() == began_ms, "no time is waited for"
    assert {tuple(offsets(fetched(fetch))) for fetch in fetches} == {(0,)}


def test_those_that_came_first_are_answered_first() -> None:
    broker = leader()
    fetches = waiting(broker, 2 * FETCHES_AT_ONCE)
    broker.produce(acks=1)
    assert [fetch.answered for fetch in fetches] == [True] * FETCHES_AT_ONCE + [False] * FETCHES_AT_ONCE


def test_a_record_that_comes_during_the_slices_is_in_the_answers_after_it() -> None:
    broker = leader()
    fetches = waiting(broker, 2 * FETCHES_AT_ONCE)
    broker.produce(acks=1)
    broker.produce(acks=1)
    broker.later(1)
    assert [offsets(fetched(fetch)) for fetch in fetches] == [[0]] * FETCHES_AT_ONCE + [[0, 1]] * FETCHES_AT_ONCE


def test_each_has_its_own_correlation_id_and_version() -> None:
    broker = leader()
    frames: dict[int, bytes] = {}
    request = FetchRequest(WAIT_MS, 1, (FetchTopic("t", (FetchPartition(0, 0, 1 << 20),)),), max_bytes=1 << 20)
    for number in range(60):

        def take(parts: list[Part] | None, number: int = number) -> None:
            assert parts is not None
            frames[number] = joined(parts)

        header = RequestHeader(ApiKey.FETCH, (4, 11, 12)[number % 3], number, "test")
        broker.broker.receive(encode_request(header, request), take)  # type: ignore[arg-type]
    broker.produce(acks=1)
    assert sorted(frames) == list(range(60))
    for number, frame in frames.items():
        correlation_id, value = decode_response(ApiKey.FETCH, (4, 11, 12)[number % 3], frame)
        assert isinstance(value, FetchResponse)
        assert correlation_id == number
        assert offsets(value.responses[0].partitions[0]) == [0]


def test_only_fetches_that_ask_the_same_share() -> None:
    broker = leader()
    fetches = [
        broker.fetch(0, wait_ms=WAIT_MS),
        broker.fetch(0, wait_ms=WAIT_MS, isolation=READ_COMMITTED),
        broker.fetch(0, wait_ms=WAIT_MS, min_bytes=100),
        broker.fetch(0, wait_ms=WAIT_MS, version=11),
        broker.fetch(0, wait_ms=WAIT_MS, epoch=4),
        broker.fetch(0, wait_ms=WAIT_MS),
    ]
    broker.produce(acks=1)
    assert [fetch.answered for fetch in fetches] == [True, True, False, True, True, True]
    broker.produce(acks=1)
    assert [offsets(fetched(fetch)) for fetch in fetches] == [[0], [0], [0, 1], [0], [0], [0]]
    assert [fetched(fetches[number]).aborted_transactions for number in (0, 1, 5)] == [None, (), None]


def test_who_comes_after_a_record_waits_for_the_next_one() -> None:
    broker = leader()
    early = waiting(broker, 3)
    broker.produce(acks=1)
    late = waiting(broker, 3, offset=1)
    assert answered(late) == 0
    broker.produce(acks=1)
    assert [offsets(fetched(fetch)) for fetch in (*early, *late)] == [[0]] * 3 + [[1]] * 3


def test_one_that_expires_leaves_the_others_waiting() -> None:
    broker = leader()
    short = broker.fetch(0, wait_ms=5)
    long = broker.fetch(0, wait_ms=WAIT_MS)
    broker.later(6)
    assert offsets(fetched(short)) == []
    assert not long.answered
    broker.produce(acks=1)
    assert offsets(fetched(long)) == [0]


@pytest.mark.parametrize("count", [3, 2 * FETCHES_AT_ONCE + 1])
def test_all_are_answered_when_the_leader_moves(count: int) -> None:
    broker = leader()
    fetches = waiting(broker, count)
    broker.begin_leading(leader=2, leader_epoch=5, version=8)
    broker.later(1)
    assert answered(fetches) == count
    assert not any(offsets(fetched(fetch)) for fetch in fetches if not fetched(fetch).error_code)


@pytest.mark.parametrize("count", [3, 2 * FETCHES_AT_ONCE + 1])
def test_all_are_answered_when_the_partition_is_deleted(count: int) -> None:
    broker = leader()
    fetches = waiting(broker, count)
    broker.stop_replica(delete=True)
    broker.later(1)
    errors = {fetched(fetch).error_code for fetch in fetches}
    assert errors <= {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_consumers_that_ask_for_a_session_each_get_their_own() -> None:
    broker = leader()
    request = FetchRequest(
        WAIT_MS, 1, (FetchTopic("t", (FetchPartition(0, 0, 1 << 20),)),), max_bytes=1 << 20, session_epoch=0
    )
    fetches = [broker.begin(ApiKey.FETCH, request, 12) for _ in range(5)]
    broker.produce(acks=1)
    assert {tuple(offsets(fetched(fetch))) for fetch in fetches} == {(0,)}
    ids = [fetch.value().session_id for fetch in fetches]
    assert 0 not in ids
    assert len(set(ids)) == 5
