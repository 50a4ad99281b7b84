"""The events of reassignments: what the watches on what is asked for and on states saw, and clients' requests. See
`events.py` for what an event is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from controller.core.events import RESIGNED, AnsweredOnce
from controller.protocol import reassignment_values as values
from controller.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ReassignmentAsked:
    """/admin/reassign_partitions (Kafka's ZkPartitionReassignment)."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ReassignmentIsrChange:
    """The state of a partition that is being reassigned, where its leader does not ask for the change: because leaders
    write states themselves, or an unclean election brought a replica into sync."""

    topic: str
    partition: int
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class AlterReassignmentsRequested(AnsweredOnce):
    """A client asks for other replicas, or for an end of that (Kafka's ApiPartitionReassignment)."""

    value: values.AlterPartitionReassignmentsRequest
    respond: Callable[[values.AlterPartitionReassignmentsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(values.AlterPartitionReassignmentsResponse((), int(error), message))


@dataclass(frozen=True, slots=True, eq=False)
class ListReassignmentsRequested(AnsweredOnce):
    """A client asks which partitions are on their way."""

    value: values.ListPartitionReassignmentsRequest
    respond: Callable[[values.ListPartitionReassignmentsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(values.ListPartitionReassignmentsResponse((), int(error), message))
