"""The events of the controller's queue: each says "read again", or carries a request that a caller waits for.

An event carries no state that ZooKeeper holds (KAFKA-5502): its handler reads when it is processed. Therefore equal
pending events are queued once (`coalesces`). Events with a callback carry the request itself, are never coalesced, and
are answered exactly once, whatever becomes of the term (S19): `respond` raises when it is called again. Values only;
the handlers are in their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class Startup:
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """/controller was created, rewritten or deleted, or may have been."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Reelect:
    """Stand for election: /controller is deleted, or a term ended within a session that still exists."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """`session` has ended, and with it the term that it carried."""

    session: int
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect:
    """There is a new session: register in it, then stand."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The last event: resign and handle no more."""

    coalesces: ClassVar[bool] = True


# What a watch saw


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """The children of /brokers/ids."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class BrokerModifications:
    """One broker's registration."""

    broker: int
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The children of /brokers/topics."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class PartitionModifications:
    """One topic's assignment."""

    topic: str
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """The children of /admin/delete_topics."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class IsrChangeNotification:
    """The children of /isr_change_notification."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class LogDirEventNotification:
    """The children of /log_dir_event_notification."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnabled:
    """Unclean election was switched on, for a topic or (None) for all that have no setting of their own."""

    topic: str | None
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    """A topic's configuration, or (None) the cluster's default, may have changed."""

    topic: str | None
    coalesces: ClassVar[bool] = True


# What a broker answered. `controller_epoch` is the term that asked: a later one has no use for the answer.


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived:
    broker: int
    broker_epoch: int
    controller_epoch: int
    body: control.LeaderAndIsrResponse
    coalesces: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived:
    broker: int
    broker_epoch: int
    controller_epoch: int
    body: control.UpdateMetadataResponse
    coalesces: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class StopReplicaResponseReceived:
    broker: int
    broker_epoch: int
    controller_epoch: int
    body: control.StopReplicaResponse
    to_delete: tuple[tuple[str, int], ...] = ()
    """The (topic, partition)s of those that it was to delete."""
    coalesces: ClassVar[bool] = False


# Events with a callback


class AnsweredOnce:
    """Base of frozen event dataclasses with a callback `respond`: never coalesced, and answered exactly once."""

    __slots__ = ()

    coalesces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        event: Any = self
        if not isinstance(event.respond, Once):
            object.__setattr__(event, "respond", Once(event.respond))

    @property
    def answered(self) -> bool:
        event: Any = self
        once: Once[Any] = event.respond
        return once.answered


@dataclass(frozen=True, slots=True, eq=False)
class AlterIsrRequested(AnsweredOnce):
    """A leader asks for changes of its partitions' ISRs. `version` is the request's: which errors there are depends on
    it."""

    value: control.AlterIsrRequest
    respond: Callable[[control.AlterIsrResponse], None]
    version: int = 0

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(control.AlterIsrResponse(int(error)))


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdownRequested(AnsweredOnce):
    """A broker asks to be relieved of what it leads. `forced`: whatever that leaves in sync."""

    broker: int
    broker_epoch: int
    respond: Callable[[control.ControlledShutdownResponse], None]
    forced: bool = False

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(control.ControlledShutdownResponse(int(error)))


@dataclass(frozen=True, slots=True, eq=False)
class CreateTopicsRequested(AnsweredOnce):
    """A client asks for topics. `version` is the request's: what an answer may hold depends on it."""

    value: client.CreateTopicsRequest
    version: int
    respond: Callable[[client.CreateTopicsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        """Kafka gives this error topic by topic."""
        results = tuple(client.CreatableTopicResult(topic.name, int(error), message) for topic in self.value.topics)
        self.respond(client.CreateTopicsResponse(results))


@dataclass(frozen=True, slots=True, eq=False)
class CreatePartitionsRequested(AnsweredOnce):
    """A client asks for more partitions of topics that are there."""

    value: client.CreatePartitionsRequest
    respond: Callable[[client.CreatePartitionsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        results = tuple(
            client.CreatePartitionsTopicResult(topic.name, int(error), message) for topic in self.value.topics
        )
        self.respond(client.CreatePartitionsResponse(results))


@dataclass(frozen=True, slots=True, eq=False)
class DeleteTopicsRequested(AnsweredOnce):
    """A client asks that topics be deleted, by name. Answered with an error for each, NONE where the deletion is asked
    for now, by this request or an earlier one."""

    topics: tuple[str, ...]
    respond: Callable[[Mapping[str, ErrorCode]], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(dict.fromkeys(self.topics, error))


@dataclass(frozen=True, slots=True, eq=False)
class UpdateFeaturesRequested(AnsweredOnce):
    """A client asks that features be finalized at other levels, or not at all."""

    value: UpdateFeaturesRequest
    respond: Callable[[UpdateFeaturesResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(UpdateFeaturesResponse(int(error), message))


@dataclass(frozen=True, slots=True, eq=False)
class AllocateProducerIdsRequested(AnsweredOnce):
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


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """The outcome of one partition's election: `leader` was written (NONE), or the error that prevented it."""

    error: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


Outcomes: TypeAlias = Mapping[TopicPartition, ElectionOutcome]


@dataclass(frozen=True, slots=True)
class PreferredElectionAsked:
    """/admin/preferred_replica_election came, changed or went."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AutoPreferredElection:
    """It is time to look whether leaders have drifted, in the term of this epoch: a later one has its own time."""

    controller_epoch: int
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class ElectLeadersRequested(AnsweredOnce):
    """A client asks for elections; each partition is named once."""

    kind: ElectionKind
    partitions: tuple[TopicPartition, ...]
    respond: Callable[[Outcomes], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        """Kafka gives this error partition by partition."""
        self.respond(dict.fromkeys(self.partitions, ElectionOutcome(error, message)))


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

    value: admin.AlterPartitionReassignmentsRequest
    respond: Callable[[admin.AlterPartitionReassignmentsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(admin.AlterPartitionReassignmentsResponse((), int(error), message))


@dataclass(frozen=True, slots=True, eq=False)
class ListReassignmentsRequested(AnsweredOnce):
    """A client asks which partitions are on their way."""

    value: admin.ListPartitionReassignmentsRequest
    respond: Callable[[admin.ListPartitionReassignmentsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(admin.ListPartitionReassignmentsResponse((), int(error), message))


@dataclass(frozen=True, slots=True)
class PauseChanged:
    coalesces: ClassVar[bool] = True
