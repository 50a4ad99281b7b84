"""The events of the controller's queue: each says "read again", or carries a request that a caller waits for.

An event carries no state that ZooKeeper holds (KAFKA-5502): its handler reads when it is processed. Therefore equal
pending events are queued once (`coalesces`). Events with a callback carry the request itself, are never coalesced, and
are answered exactly once, whatever becomes of the term (S19): `respond` raises when it is called again. Values only;
the handlers are in their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import msgspec

from controller.protocol import admin, client, control
from controller.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse
from controller.protocol.control import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from controller.protocol.errors import ErrorCode

R = TypeVar("R")

RESIGNED = "This is not the correct controller for this cluster."


class AnsweredTwice(RuntimeError):
    """A request's callback was called twice: the requester already has an answer."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"answered twice: first {first!r}, then {second!r}")


class Once(Generic[R]):
    """A callback that can be called once. From one thread at a time: the queue hands an event to one place only."""

    __slots__ = ("_answer", "_respond", "answered")

    def __init__(self, respond: Callable[[R], None]) -> None:
        self._respond = respond
        self._answer: R | None = None
        self.answered = False

    def __call__(self, value: R) -> None:
        if self.answered:
            raise AnsweredTwice(self._answer, value)
        self.answered, self._answer = True, value
        self._respond(value)


class Event(Protocol):
    """Anything that the queue takes."""

    coalesces: ClassVar[bool]


@runtime_checkable
class Answerable(Protocol):
    """An event whose sender waits for an answer."""

    coalesces: ClassVar[bool]

    @property
    def answered(self) -> bool: ...

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        """Answer with an error only.

        The default is Kafka's error of a broker that is not, or no longer, the controller: the requester finds the new
        controller and sends the request again.
        """


def is_answerable(event: Event) -> TypeGuard[Answerable]:
    """As isinstance, which looks through the protocol anew each time."""
    return _is_answerable(type(event))


@cache
def _is_answerable(kind: type) -> bool:
    return hasattr(kind, "answered") and hasattr(kind, "refuse")


# Leadership


class Startup(msgspec.Struct, frozen=True):
    coalesces: ClassVar[bool] = True


class ControllerChange(msgspec.Struct, frozen=True):
    """/controller was created, rewritten or deleted, or may have been."""

    coalesces: ClassVar[bool] = True


class Reelect(msgspec.Struct, frozen=True):
    """Stand for election: /controller is deleted, or a term ended within a session that still exists."""

    coalesces: ClassVar[bool] = True


class SessionExpired(msgspec.Struct, frozen=True):
    """`session` has ended, and with it the term that it carried."""

    session: int
    coalesces: ClassVar[bool] = True


class RegisterBrokerAndReelect(msgspec.Struct, frozen=True):
    """There is a new session: register in it, then stand."""

    coalesces: ClassVar[bool] = True


class Shutdown(msgspec.Struct, frozen=True):
    """The last event: resign and handle no more."""

    coalesces: ClassVar[bool] = True


# What a watch saw


class BrokerChange(msgspec.Struct, frozen=True):
    """The children of /brokers/ids."""

    coalesces: ClassVar[bool] = True


class BrokerModifications(msgspec.Struct, frozen=True):
    """One broker's registration."""

    broker: int
    coalesces: ClassVar[bool] = True


class TopicChange(msgspec.Struct, frozen=True):
    """The children of /brokers/topics."""

    coalesces: ClassVar[bool] = True


class PartitionModifications(msgspec.Struct, frozen=True):
    """One topic's assignment."""

    topic: str
    coalesces: ClassVar[bool] = True


class TopicDeletion(msgspec.Struct, frozen=True):
    """The children of /admin/delete_topics."""

    coalesces: ClassVar[bool] = True


class IsrChangeNotification(msgspec.Struct, frozen=True):
    """The children of /isr_change_notification."""

    coalesces: ClassVar[bool] = True


class LogDirEventNotification(msgspec.Struct, frozen=True):
    """The children of /log_dir_event_notification."""

    coalesces: ClassVar[bool] = True


class UncleanLeaderElectionEnabled(msgspec.Struct, frozen=True):
    """Unclean election was switched on, for a topic or (None) for all that have no setting of their own."""

    topic: str | None
    coalesces: ClassVar[bool] = True


class TopicConfigChange(msgspec.Struct, frozen=True):
    """A topic's configuration, or (None) the cluster's default, may have changed."""

    topic: str | None
    coalesces: ClassVar[bool] = True


# What a broker answered. `controller_epoch` is the term that asked: a later one has no use for the answer.


class LeaderAndIsrResponseReceived(msgspec.Struct, frozen=True):
    broker: int
    broker_epoch: int
    controller_epoch: int
    body: control.LeaderAndIsrResponse
    coalesces: ClassVar[bool] = False


class UpdateMetadataResponseReceived(msgspec.Struct, frozen=True):
    broker: int
    broker_epoch: int
    controller_epoch: int
    body: control.UpdateMetadataResponse
    coalesces: ClassVar[bool] = False


class StopReplicaResponseReceived(msgspec.Struct, frozen=True):
    broker: int
    broker_epoch: int
    controller_epoch: int
    body: control.StopReplicaResponse
    to_delete: tuple[tuple[str, int], ...] = ()
    """The (topic, partition)s of those that it was to delete."""
    coalesces: ClassVar[bool] = False


# Events with a callback


class AnsweredOnce(msgspec.Struct, frozen=True, eq=False):
    """Base of events with a callback `respond`: never coalesced, and answered exactly once."""

    coalesces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        event: Any = self
        if not isinstance(event.respond, Once):
            msgspec.structs.force_setattr(event, "respond", Once(event.respond))

    @property
    def answered(self) -> bool:
        event: Any = self
        once: Once[Any] = event.respond
        return once.answered


class AlterIsrRequested(AnsweredOnce, frozen=True, eq=False):
    """A leader asks for changes of its partitions' ISRs. `version` is the request's: which errors there are depends on
    it."""

    value: control.AlterIsrRequest
    respond: Callable[[control.AlterIsrResponse], None]
    version: int = 0

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(control.AlterIsrResponse(int(error)))


class ControlledShutdownRequested(AnsweredOnce, frozen=True, eq=False):
    """A broker asks to be relieved of what it leads. `forced`: whatever that leaves in sync."""

    broker: int
    broker_epoch: int
    respond: Callable[[control.ControlledShutdownResponse], None]
    forced: bool = False

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(control.ControlledShutdownResponse(int(error)))


class CreateTopicsRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks for topics. `version` is the request's: what an answer may hold depends on it."""

    value: client.CreateTopicsRequest
    version: int
    respond: Callable[[client.CreateTopicsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        """Kafka gives this error topic by topic."""
        results = tuple(client.CreatableTopicResult(topic.name, int(error), message) for topic in self.value.topics)
        self.respond(client.CreateTopicsResponse(results))


class CreatePartitionsRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks for more partitions of topics that are there."""

    value: client.CreatePartitionsRequest
    respond: Callable[[client.CreatePartitionsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        results = tuple(
            client.CreatePartitionsTopicResult(topic.name, int(error), message) for topic in self.value.topics
        )
        self.respond(client.CreatePartitionsResponse(results))


class DeleteTopicsRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks that topics be deleted, by name. Answered with an error for each, NONE where the deletion is asked
    for now, by this request or an earlier one."""

    topics: tuple[str, ...]
    respond: Callable[[Mapping[str, ErrorCode]], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(dict.fromkeys(self.topics, error))


class UpdateFeaturesRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks that features be finalized at other levels, or not at all."""

    value: UpdateFeaturesRequest
    respond: Callable[[UpdateFeaturesResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(UpdateFeaturesResponse(int(error), message))


class AllocateProducerIdsRequested(AnsweredOnce, frozen=True, eq=False):
    """A broker asks for a block of producer ids of its own."""

    value: AllocateProducerIdsRequest
    respond: Callable[[AllocateProducerIdsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(AllocateProducerIdsResponse(int(error)))


TopicPartition: TypeAlias = tuple[str, int]
NO_LEADER = -1


class ElectionKind(Enum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class ElectionOutcome(msgspec.Struct, frozen=True):
    """The outcome of one partition's election: `leader` was written (NONE), or the error that prevented it."""

    error: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


Outcomes: TypeAlias = Mapping[TopicPartition, ElectionOutcome]


class PreferredElectionAsked(msgspec.Struct, frozen=True):
    """/admin/preferred_replica_election came, changed or went."""

    coalesces: ClassVar[bool] = True


class AutoPreferredElection(msgspec.Struct, frozen=True):
    """It is time to look whether leaders have drifted, in the term of this epoch: a later one has its own time."""

    controller_epoch: int
    coalesces: ClassVar[bool] = True


class RetryDeletions(msgspec.Struct, frozen=True):
    """It is time to ask again for what brokers could not delete, in the term of this epoch."""

    controller_epoch: int
    coalesces: ClassVar[bool] = True


class ElectLeadersRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks for elections; each partition is named once."""

    kind: ElectionKind
    partitions: tuple[TopicPartition, ...]
    respond: Callable[[Outcomes], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        """Kafka gives this error partition by partition."""
        self.respond(dict.fromkeys(self.partitions, ElectionOutcome(error, message)))


class ReassignmentAsked(msgspec.Struct, frozen=True):
    """/admin/reassign_partitions (Kafka's ZkPartitionReassignment)."""

    coalesces: ClassVar[bool] = True


class ReassignmentIsrChange(msgspec.Struct, frozen=True):
    """The state of a partition that is being reassigned, where its leader does not ask for the change: because leaders
    write states themselves, or an unclean election brought a replica into sync."""

    topic: str
    partition: int
    coalesces: ClassVar[bool] = True


class AlterReassignmentsRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks for other replicas, or for an end of that (Kafka's ApiPartitionReassignment)."""

    value: admin.AlterPartitionReassignmentsRequest
    respond: Callable[[admin.AlterPartitionReassignmentsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(admin.AlterPartitionReassignmentsResponse((), int(error), message))


class ListReassignmentsRequested(AnsweredOnce, frozen=True, eq=False):
    """A client asks which partitions are on their way."""

    value: admin.ListPartitionReassignmentsRequest
    respond: Callable[[admin.ListPartitionReassignmentsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(admin.ListPartitionReassignmentsResponse((), int(error), message))


class PauseChanged(msgspec.Struct, frozen=True):
    coalesces: ClassVar[bool] = True
