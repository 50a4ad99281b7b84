"""AlterPartitionReassignments and ListPartitionReassignments: handed to the controller's events, answered in time.

Kafka answers when the reassignments have begun, however long they take, and so does this. What may be asked for the
controller decides.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.topics.asking import ask_controller
from controller.clock import Clock
from controller.core.events import AlterReassignmentsRequested, ListReassignmentsRequested
from controller.core.ports import EventSink
from controller.protocol.errors import ErrorCode
from controller.protocol.reassignment_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

TOO_LATE = "The controller did not come to the request in time; it may do what was asked all the same."


class PartitionReassignments:
    def __init__(self, events: EventSink, clock: Clock) -> None:
        self._events = events
        self._clock = clock

    def alter(
        self, request: AlterPartitionReassignmentsRequest, answer: Callable[[AlterPartitionReassignmentsResponse], None]
    ) -> None:
        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            lambda respond: AlterReassignmentsRequested(request, respond),
            answer,
            lambda: answer(AlterPartitionReassignmentsResponse((), ErrorCode.REQUEST_TIMED_OUT, TOO_LATE)),
        )

    def list(
        self, request: ListPartitionReassignmentsRequest, answer: Callable[[ListPartitionReassignmentsResponse], None]
    ) -> None:
        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            lambda respond: ListReassignmentsRequested(request, respond),
            answer,
            lambda: answer(ListPartitionReassignmentsResponse((), ErrorCode.REQUEST_TIMED_OUT, TOO_LATE)),
        )
