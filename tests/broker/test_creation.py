"""CreateTopics and CreatePartitions are answered when this broker's metadata has every leader, or at their timeout."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.core.events import CreatePartitionsRequested, CreateTopicsRequested
from controller.protocol.client import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from tests.broker.data_harness import DataBroker
from tests.broker.harness import BrokerUnderTest, Deferred, metadata
from tests.timer.wheel_clock import pending_timers

TIMEOUT_MS = 5_000


def asked(
    under_test: BrokerUnderTest, *names: str, timeout_ms: int = TIMEOUT_MS, validate_only: bool = False
) -> Deferred:
    topics = tuple(CreatableTopic(name, 2, 1) for name in names)
    return under_test.begin(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics, timeout_ms, validate_only))


def created(under_test: BrokerUnderTest, **errors: ErrorCode) -> None:
    """The controller's answer: each topic with its error, two partitions where there is none."""
    event = under_test.events.put_so_far[-1]
    assert isinstance(event, CreateTopicsRequested)
    event.respond(
        CreateTopicsResponse(
            tuple(
                CreatableTopicResult(name, error, num_partitions=-1 if error else 2) for name, error in errors.items()
            )
        )
    )
    under_test.clock.step()  # the way back to the broker's thread


def errors_of(deferred: Deferred) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in deferred.value().topics}


@pytest.fixture
def under_test() -> BrokerUnderTest:
    return BrokerUnderTest(controller=True)


def test_the_answer_waits_for_the_last_leader(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    created(under_test, t=ErrorCode.NONE)
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, -1)))
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, 2)))
    assert errors_of(answer) == {"t": ErrorCode.NONE}
    under_test.clock.advance_to(under_test.clock.now_ms() + 2 * TIMEOUT_MS)
    assert errors_of(answer) == {"t": ErrorCode.NONE}, "the timer does not answer again"


def test_metadata_that_was_faster_than_the_controllers_answer_is_seen(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1)))
    created(under_test, t=ErrorCode.NONE)
    assert errors_of(answer) == {"t": ErrorCode.NONE}


def test_topics_without_a_leader_in_time_are_timed_out_alone(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t", "u", "there")
    created(under_test, t=ErrorCode.NONE, u=ErrorCode.NONE, there=ErrorCode.TOPIC_ALREADY_EXISTS)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1)))
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS - 1)
    assert not answer.answered
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert errors_of(answer) == {
        "t": ErrorCode.NONE,
        "u": ErrorCode.REQUEST_TIMED_OUT,
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
    }


def test_a_controller_that_does_not_answer_in_time_is_not_waited_for(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert errors_of(answer) == {"t": ErrorCode.REQUEST_TIMED_OUT}
    created(under_test, t=ErrorCode.NONE)
    assert errors_of(answer) == {"t": ErrorCode.REQUEST_TIMED_OUT}, "answered once"


@pytest.mark.parametrize(("timeout_ms", "error"), [(0, ErrorCode.REQUEST_TIMED_OUT), (-1, ErrorCode.REQUEST_TIMED_OUT)])
def test_who_gives_no_time_is_answered_after_the_creation(
    under_test: BrokerUnderTest, timeout_ms: int, error: ErrorCode
) -> None:
    answer = asked(under_test, "t", "bad", timeout_ms=timeout_ms)
    assert not answer.answered
    created(under_test, t=ErrorCode.NONE, bad=ErrorCode.INVALID_PARTITIONS)
    assert errors_of(answer) == {"t": error, "bad": ErrorCode.INVALID_PARTITIONS}


@pytest.mark.parametrize(
    ("validate_only", "error"), [(True, ErrorCode.NONE), (False, ErrorCode.INVALID_REPLICATION_FACTOR)]
)
def test_what_was_not_created_is_not_waited_for(
    under_test: BrokerUnderTest, validate_only: bool, error: ErrorCode
) -> None:
    answer = asked(under_test, "t", validate_only=validate_only)
    created(under_test, t=error)
    assert errors_of(answer) == {"t": error}


def test_a_topic_named_twice_is_refused_and_the_others_are_made(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "twice", "t", "twice")
    (event,) = under_test.events.put_so_far
    assert [topic.name for topic in event.value.topics] == ["t"]
    created(under_test, t=ErrorCode.INVALID_PARTITIONS)
    assert errors_of(answer) == {"twice": ErrorCode.INVALID_REQUEST, "t": ErrorCode.INVALID_PARTITIONS}
    assert errors_of(asked(under_test, "u", "u")) == {"u": ErrorCode.INVALID_REQUEST}


def test_s19_a_resignation_answers(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    under_test.events.put_so_far[0].refuse()
    under_test.clock.step()
    assert errors_of(answer) == {"t": ErrorCode.NOT_CONTROLLER}


def test_added_partitions_are_waited_for_too(under_test: BrokerUnderTest) -> None:
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1)))
    request = CreatePartitionsRequest((CreatePartitionsTopic("t", 2), CreatePartitionsTopic("u", 1)), TIMEOUT_MS)
    answer = under_test.begin(ApiKey.CREATE_PARTITIONS, request)
    (event,) = under_test.events.put_so_far
    assert isinstance(event, CreatePartitionsRequested)
    results = (
        CreatePartitionsTopicResult("t", ErrorCode.NONE),
        CreatePartitionsTopicResult("u", ErrorCode.INVALID_PARTITIONS, "fewer than there are"),
    )
    event.respond(CreatePartitionsResponse(results))
    under_test.clock.step()
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, 2)))
    assert answer.value().results == results


def test_many_wait_side_by_side(under_test: BrokerUnderTest) -> None:
    answers = []
    respond: list[Callable[[], None]] = []
    for name in ("a", "b", "c"):
        answers.append(asked(under_test, name))
        respond.append(lambda name=name: created(under_test, **{name: ErrorCode.NONE}))  # type: ignore[misc]
        respond[-1]()
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("b", 0, 1), ("b", 1, 1)))
    assert [answer.answered for answer in answers] == [False, True, False]
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert [list(errors_of(answer).values()) for answer in answers] == [
        [ErrorCode.REQUEST_TIMED_OUT],
        [ErrorCode.NONE],
        [ErrorCode.REQUEST_TIMED_OUT],
    ]


def test_a_waiting_request_has_a_timer_of_the_clock_which_is_cancelled_when_it_is_answered() -> None:
    under_test = DataBroker(controller=True)
    before = pending_timers(under_test.clock)
    answer = asked(under_test, "t")
    created(under_test, t=ErrorCode.NONE)
    assert (answer.answered, pending_timers(under_test.clock)) == (False, before + 1)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1)))
    assert (answer.answered, pending_timers(under_test.clock)) == (True, before)


def test_an_answer_that_can_not_be_made_costs_no_other(
    under_test: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(under_test, "t")
    created(under_test, t=ErrorCode.NONE)
    second = asked(under_test, "u")
    created(under_test, u=ErrorCode.NONE)

    def fail(_frames: object, _frame: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr(first, "frames", type("Frames", (list,), {"append": fail})())
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1), ("u", 0, 1), ("u", 1, 1)))
    assert errors_of(second) == {"u": ErrorCode.NONE}
    assert any("planted" in note for note in under_test.trace.notes("error"))
