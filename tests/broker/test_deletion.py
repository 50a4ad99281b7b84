"""DeleteTopics is answered when this broker's metadata has the topics no more, or at its timeout; what is refused."""

from __future__ import annotations

import pytest

from controller.broker.broker import Broker
from controller.core.events import DeleteTopicsRequested
from controller.protocol.client import DeleteTopicsRequest, DeleteTopicState
from controller.protocol.codec import ApiKey
from controller.protocol.control import LEADER_DURING_DELETE
from controller.protocol.errors import ErrorCode
from tests.broker.harness import TOPIC_ID, BrokerUnderTest, Deferred, metadata, settings

TIMEOUT_MS = 5_000


def asked(
    under_test: BrokerUnderTest, *names: str | bytes, timeout_ms: int = TIMEOUT_MS, version: int | None = None
) -> Deferred:
    topics = tuple(DeleteTopicState(name) if isinstance(name, str) else DeleteTopicState(None, name) for name in names)
    return under_test.begin(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics, timeout_ms), version)


def taken(under_test: BrokerUnderTest, **errors: ErrorCode) -> None:
    """The controller's answer."""
    event = under_test.events.put_so_far[-1]
    assert isinstance(event, DeleteTopicsRequested)
    event.respond(errors)
    under_test.clock.step()  # the way back to the broker's thread


def errors_of(deferred: Deferred) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in deferred.value().responses}


def forget(under_test: BrokerUnderTest, *topics: str) -> None:
    gone = [(topic, partition, LEADER_DURING_DELETE) for topic in topics for partition in (0, 1)]
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(*gone))


@pytest.fixture
def under_test() -> BrokerUnderTest:
    found = BrokerUnderTest(controller=True)
    found.ask(ApiKey.UPDATE_METADATA, metadata(*((topic, index, 1) for topic in ("t", "u") for index in (0, 1))))
    return found


@pytest.mark.parametrize("version", range(7))
def test_the_answer_waits_until_the_topic_is_gone(under_test: BrokerUnderTest, version: int) -> None:
    answer = asked(under_test, "t", version=version)
    assert under_test.events.put_so_far[-1].topics == ("t",)
    taken(under_test, t=ErrorCode.NONE)
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, LEADER_DURING_DELETE)))
    assert not answer.answered
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, LEADER_DURING_DELETE)))
    assert errors_of(answer) == {"t": ErrorCode.NONE}


def test_metadata_that_was_faster_than_the_controllers_answer_is_seen(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    forget(under_test, "t")
    taken(under_test, t=ErrorCode.NONE)
    assert errors_of(answer) == {"t": ErrorCode.NONE}


def test_what_is_still_there_in_time_is_timed_out_alone(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t", "u", "none")
    taken(under_test, t=ErrorCode.NONE, u=ErrorCode.NONE)
    forget(under_test, "u")
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS - 1)
    assert not answer.answered
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert errors_of(answer) == {
        "t": ErrorCode.REQUEST_TIMED_OUT,
        "u": ErrorCode.NONE,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_controller_that_does_not_answer_in_time_is_not_waited_for(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert errors_of(answer) == {"t": ErrorCode.REQUEST_TIMED_OUT}
    taken(under_test, t=ErrorCode.NONE)
    assert errors_of(answer) == {"t": ErrorCode.REQUEST_TIMED_OUT}, "answered once"


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_who_gives_no_time_is_answered_once_it_is_asked_for(under_test: BrokerUnderTest, timeout_ms: int) -> None:
    answer = asked(under_test, "t", timeout_ms=timeout_ms)
    assert not answer.answered
    taken(under_test, t=ErrorCode.NONE)
    assert errors_of(answer) == {"t": ErrorCode.REQUEST_TIMED_OUT}


def test_a_topic_that_the_controller_does_not_find_is_unknown(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    taken(under_test, t=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert errors_of(answer) == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_nothing_that_is_known_asks_nobody(under_test: BrokerUnderTest) -> None:
    assert errors_of(asked(under_test, "none")) == {"none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert asked(under_test).value().responses == ()
    assert under_test.events.put_so_far == []


def test_a_topic_may_be_given_by_its_id_and_twice() -> None:
    under_test = BrokerUnderTest(controller=True)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1)))
    answer = asked(under_test, TOPIC_ID, "t", bytes(15) + b"\x01")
    assert under_test.events.put_so_far[-1].topics == ("t",)
    taken(under_test, t=ErrorCode.NONE)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, LEADER_DURING_DELETE)))
    assert [(one.name, one.topic_id, one.error_code) for one in answer.value().responses] == [
        ("t", TOPIC_ID, ErrorCode.NONE),
        ("t", bytes(16), ErrorCode.NONE),
        (None, bytes(15) + b"\x01", ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_a_name_and_an_id_together_are_refused_and_so_is_everything_with_them(under_test: BrokerUnderTest) -> None:
    request = DeleteTopicsRequest((DeleteTopicState("t", TOPIC_ID), DeleteTopicState("u")), TIMEOUT_MS)
    answer = under_test.begin(ApiKey.DELETE_TOPICS, request)
    assert errors_of(answer) == {"t": ErrorCode.INVALID_REQUEST, "u": ErrorCode.INVALID_REQUEST}
    assert under_test.events.put_so_far == []


def test_who_is_not_the_controller_says_so(under_test: BrokerUnderTest) -> None:
    under_test.is_controller = False
    assert errors_of(asked(under_test, "t")) == {"t": ErrorCode.NOT_CONTROLLER}


def test_s19_a_resignation_answers(under_test: BrokerUnderTest) -> None:
    answer = asked(under_test, "t")
    under_test.events.put_so_far[0].refuse()
    under_test.clock.step()
    assert errors_of(answer) == {"t": ErrorCode.NOT_CONTROLLER}


def with_settings(under_test: BrokerUnderTest, **given: str) -> None:
    under_test.broker = Broker(
        settings(**given),
        under_test.identity,
        under_test.events,
        lambda: under_test.is_controller,
        under_test.clock,
        under_test.trace,
        under_test.peers,
    )


@pytest.mark.parametrize(("version", "error"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_where_deletion_is_disabled_it_is_refused(under_test: BrokerUnderTest, version: int, error: ErrorCode) -> None:
    with_settings(under_test, delete_topic_enable="false")
    assert errors_of(asked(under_test, "t", version=version)) == {"t": error}
    assert under_test.events.put_so_far == []


def test_before_topic_ids_none_is_known(under_test: BrokerUnderTest) -> None:
    with_settings(under_test, inter_broker_protocol_version="2.7")
    (result,) = asked(under_test, TOPIC_ID).value().responses
    assert (result.error_code, result.name) == (ErrorCode.UNSUPPORTED_VERSION, None)
