"""Events with a callback are answered exactly once, and refused in the words of their own protocol."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.events import (
    AlterIsrRequested,
    Answerable,
    AnsweredTwice,
    BrokerModifications,
    ControlledShutdownRequested,
    CreatePartitionsRequested,
    CreateTopicsRequested,
    DeleteTopicsRequested,
    Startup,
    is_answerable,
)
from controller.protocol.client import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from controller.protocol.control import AlterIsrRequest, AlterIsrResponse
from controller.protocol.errors import ErrorCode


def events_with_callbacks(respond: Any) -> list[Any]:
    return [
        AlterIsrRequested(AlterIsrRequest(1, ()), respond),
        ControlledShutdownRequested(1, 7, respond),
        CreateTopicsRequested(CreateTopicsRequest((CreatableTopic("a", 1, 1), CreatableTopic("b", 1, 1))), 5, respond),
        CreatePartitionsRequested(
            CreatePartitionsRequest((CreatePartitionsTopic("a", 3), CreatePartitionsTopic("b", 3)), 1000), respond
        ),
        DeleteTopicsRequested(("a", "b"), respond),
    ]


def error_codes(answer: Any) -> list[int]:
    """The codes of an answer, whether it has one or one a topic."""
    if isinstance(answer, dict):
        return list(answer.values())
    if hasattr(answer, "error_code"):
        return [answer.error_code]
    return [each.error_code for each in (answer.topics if hasattr(answer, "topics") else answer.results)]


@pytest.mark.parametrize("index", range(5))
def test_a_refusal_is_not_controller_and_a_second_answer_raises(index: int) -> None:
    answers: list[Any] = []
    event = events_with_callbacks(answers.append)[index]
    assert all(isinstance(each, Answerable) and is_answerable(each) for each in events_with_callbacks(print))
    assert event.answered is False
    event.refuse()
    assert [events_with_callbacks(print)[index].answered, event.answered] == [False, True]
    assert set(error_codes(answers[0])) == {ErrorCode.NOT_CONTROLLER}
    assert len(error_codes(answers[0])) == (1 if index < 2 else 2)
    with pytest.raises(AnsweredTwice):
        event.refuse()
    with pytest.raises(AnsweredTwice):
        event.respond(answers[0])
    assert len(answers) == 1


def test_an_answer_given_by_the_handler_counts() -> None:
    answers: list[AlterIsrResponse] = []
    event = AlterIsrRequested(AlterIsrRequest(1, ()), answers.append)
    event.respond(AlterIsrResponse(0))
    assert event.answered
    with pytest.raises(AnsweredTwice):
        event.refuse()
    assert answers == [AlterIsrResponse(0)]


def test_events_with_callbacks_are_never_equal_and_others_are_by_value() -> None:
    first, second = events_with_callbacks(lambda _: None), events_with_callbacks(lambda _: None)
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert not any(event.coalesces for event in first)
    assert BrokerModifications(1) == BrokerModifications(1) != BrokerModifications(2)
    assert Startup.coalesces
    assert not isinstance(Startup(), Answerable)
    assert not is_answerable(Startup())
