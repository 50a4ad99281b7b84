"""ElectLeaders is answered when this broker's metadata shows the elected leaders, or at its timeout; refusals."""

from __future__ import annotations

import pytest

from controller.core.events import ElectionKind, ElectionOutcome, ElectLeadersRequested
from controller.protocol.admin import ELECTION_PREFERRED, ELECTION_UNCLEAN, ElectLeadersRequest, ElectLeadersTopic
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from tests.broker.harness import BrokerUnderTest, Deferred, metadata

TIMEOUT_MS = 5_000
BOTH = (ElectLeadersTopic("t", (0, 1)),)


@pytest.fixture
def under_test() -> BrokerUnderTest:
    found = BrokerUnderTest(controller=True)
    found.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1), ("u", 0, 2)))
    return found


def asked(
    under_test: BrokerUnderTest,
    topics: tuple[ElectLeadersTopic, ...] | None = BOTH,
    timeout_ms: int = TIMEOUT_MS,
    kind: int = ELECTION_PREFERRED,
    version: int | None = None,
) -> Deferred:
    return under_test.begin(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topics, timeout_ms, kind), version)


def event_of(under_test: BrokerUnderTest) -> ElectLeadersRequested:
    event = under_test.events.put_so_far[-1]
    assert isinstance(event, ElectLeadersRequested)
    return event


def decided(under_test: BrokerUnderTest, outcomes: dict[tuple[str, int], int | ErrorCode]) -> None:
    """The controller's answer: who leads now, or an error."""
    event_of(under_test).respond(
        {
            one: ElectionOutcome(said, "why")
            if isinstance(said, ErrorCode)
            else ElectionOutcome(ErrorCode.NONE, None, said)
            for one, said in outcomes.items()
        }
    )
    under_test.clock.step()  # the way back to the broker's thread


def results(deferred: Deferred) -> dict[tuple[str, int], int]:
    response = deferred.value()
    assert response.error_code == ErrorCode.NONE
    return {
        (topic.topic, one.partition_id): one.error_code
        for topic in response.replica_election_results
        for one in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_the_answer_waits_until_every_leader_is_seen(under_test: BrokerUnderTest, version: int) -> None:
    answer = asked(under_test, version=version)
    assert event_of(under_test).partitions == (("t", 0), ("t", 1))
    decided(under_test, {("t", 0): 2, ("t", 1): 3})
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 2)))
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 3)))
    assert results(answer) == {("t", 0): 0, ("t", 1): 0}, "who was seen led as it should be may be led by another now"


def test_metadata_that_was_faster_than_the_controllers_answer_is_seen(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 2)))
    decided(under_test, {("t", 0): 2, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED})
    assert results(answer) == {("t", 0): 0, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED}


def test_what_no_leader_was_elected_for_waits_for_nothing(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test)
    decided(
        under_test, {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    )
    assert results(answer) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_leader_that_is_not_seen_in_time_is_timed_out_alone(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test)
    decided(under_test, {("t", 0): 2, ("t", 1): 3})
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, 3)))
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS - 1)
    assert not answer.answered
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert results(answer) == {("t", 0): ErrorCode.REQUEST_TIMED_OUT, ("t", 1): 0}


def test_a_controller_that_does_not_answer_in_time_is_not_waited_for(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test)
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert results(answer) == dict.fromkeys((("t", 0), ("t", 1)), int(ErrorCode.REQUEST_TIMED_OUT))
    decided(under_test, {("t", 0): 2, ("t", 1): 3})
    assert len(answer.frames) == 1


def test_who_gives_no_time_is_answered_with_what_is_seen_then(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, timeout_ms=0)
    decided(under_test, {("t", 0): 1, ("t", 1): 3})
    under_test.clock.step()
    assert results(answer) == {("t", 0): 0, ("t", 1): ErrorCode.REQUEST_TIMED_OUT}


def test_all_partitions_are_asked_for_and_those_that_needed_nothing_are_left_out(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, None)
    assert event_of(under_test).partitions == (("t", 0), ("t", 1), ("u", 0))
    decided(
        under_test,
        {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ("u", 0): ErrorCode.ELECTION_NOT_NEEDED,
        },
    )
    assert results(answer) == {("t", 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_a_partition_may_be_named_twice_and_is_answered_once(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, (*BOTH, ElectLeadersTopic("t", (1,))))
    decided(under_test, {("t", 0): ErrorCode.ELECTION_NOT_NEEDED, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED})
    assert results(answer) == dict.fromkeys((("t", 0), ("t", 1)), int(ErrorCode.ELECTION_NOT_NEEDED))


@pytest.mark.parametrize(
    ("number", "kind"), [(ELECTION_PREFERRED, ElectionKind.PREFERRED), (ELECTION_UNCLEAN, ElectionKind.UNCLEAN)]
)
def test_the_kinds_of_elections(under_test: BrokerUnderTest, number: int, kind: ElectionKind) -> None:
    asked(under_test, kind=number)
    assert event_of(under_test).kind is kind


def test_another_kind_is_refused_whole(under_test: BrokerUnderTest) -> None:
    response = asked(under_test, kind=2).value()
    assert (response.error_code, response.replica_election_results) == (ErrorCode.INVALID_REQUEST, ())
    assert under_test.events.put_so_far == []


@pytest.mark.parametrize("version", range(3))
def test_another_broker_than_the_controller_says_so_partition_by_partition(version: int) -> None:
    under_test = BrokerUnderTest(controller=False)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("u", 3, 2)))
    refused = int(ErrorCode.NOT_CONTROLLER)
    assert results(asked(under_test, version=version)) == dict.fromkeys((("t", 0), ("t", 1)), refused)
    assert results(asked(under_test, None, version=version)) == dict.fromkeys((("t", 0), ("u", 3)), refused)
    assert under_test.events.put_so_far == []


def test_a_queue_that_refuses_at_once_is_an_answer_too(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test)
    event_of(under_test).refuse()
    under_test.clock.step()
    assert results(answer) == dict.fromkeys((("t", 0), ("t", 1)), int(ErrorCode.NOT_CONTROLLER))
