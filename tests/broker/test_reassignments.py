"""AlterPartitionReassignments and ListPartitionReassignments: handed to the controller, answered as it answers or at
their timeout, refused whole by a broker that is not the controller."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.events import AlterReassignmentsRequested, ListReassignmentsRequested
from controller.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartition,
    OngoingTopic,
    ReassignablePartition,
    ReassignablePartitionResult,
    ReassignableTopic,
    ReassignableTopicResult,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from tests.broker.harness import BrokerUnderTest

TIMEOUT_MS = 5_000
ALTER = AlterPartitionReassignmentsRequest(
    (ReassignableTopic("t", (ReassignablePartition(0, (1, 2)), ReassignablePartition(1, None))),), TIMEOUT_MS
)
LIST = ListPartitionReassignmentsRequest(None, TIMEOUT_MS)
ALTERED = AlterPartitionReassignmentsResponse(
    (
        ReassignableTopicResult(
            "t", (ReassignablePartitionResult(0, 0), ReassignablePartitionResult(1, 85, "There is none."))
        ),
    )
)
LISTED = ListPartitionReassignmentsResponse((OngoingTopic("t", (OngoingPartition(0, (1, 2, 3), (1,), (3,)),)),))
CASES = pytest.mark.parametrize(
    ("key", "request_", "event_type", "response"),
    [
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ALTER, AlterReassignmentsRequested, ALTERED),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, LIST, ListReassignmentsRequested, LISTED),
    ],
)


@CASES
def test_the_controllers_answer_is_the_clients(
    key: ApiKey,
    request_: AlterPartitionReassignmentsRequest | ListPartitionReassignmentsRequest,
    event_type: type[Any],
    response: AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse,
) -> None:
    under_test = BrokerUnderTest(controller=True)
    answer = under_test.begin(key, request_)
    (event,) = under_test.events.put_so_far
    assert isinstance(event, event_type)
    assert event.value == request_
    assert not answer.answered
    event.respond(response)
    under_test.clock.step()
    assert answer.value() == response


@CASES
def test_one_that_the_controller_does_not_come_to_is_timed_out_once(
    key: ApiKey,
    request_: AlterPartitionReassignmentsRequest | ListPartitionReassignmentsRequest,
    event_type: type[Any],
    response: AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse,
) -> None:
    under_test = BrokerUnderTest(controller=True)
    answer = under_test.begin(key, request_)
    under_test.clock.advance_to(1_000.0 + TIMEOUT_MS)
    assert answer.value().error_code == ErrorCode.REQUEST_TIMED_OUT
    under_test.events.put_so_far[0].respond(response)
    under_test.clock.step()
    assert answer.value().error_code == ErrorCode.REQUEST_TIMED_OUT


@CASES
def test_a_broker_that_is_not_the_controller_refuses_the_whole(
    key: ApiKey,
    request_: AlterPartitionReassignmentsRequest | ListPartitionReassignmentsRequest,
    event_type: type[Any],
    response: AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse,
) -> None:
    under_test = BrokerUnderTest(controller=False)
    refused = under_test.ask(key, request_)
    assert under_test.events.put_so_far == []
    assert refused.error_code == ErrorCode.NOT_CONTROLLER
    assert refused.error_message == "This is not the correct controller for this cluster."


def test_an_event_that_the_term_leaves_behind_refuses_the_whole_too() -> None:
    answers: list[Any] = []
    AlterReassignmentsRequested(ALTER, answers.append).refuse()
    ListReassignmentsRequested(LIST, answers.append).refuse()
    assert [(one.error_code, one.error_message) for one in answers] == [
        (ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")
    ] * 2
