"""What happened, to whom, when, in which epoch: the typed events that both hosts write.

The controller, the brokers and the scenario runner emit these through a `Trace`; invariants, timelines and reports
are computed from them alone. An event is a value without its time and place: the trace that takes it adds `at_ms`
(milliseconds since the trace began, one clock for a whole cluster) and the node that emitted it.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec


class SessionStarted(msgspec.Struct, frozen=True, gc=False):
    session: int


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    session: int


class BrokerRegistered(msgspec.Struct, frozen=True, gc=False):
    """The ephemeral /brokers/ids/N was created; its czxid is the broker's epoch."""

    broker: int
    broker_epoch: int
    session: int


class ControllerElected(msgspec.Struct, frozen=True, gc=False):
    controller_epoch: int
    epoch_zk_version: int
    session: int


class ControllerResigned(msgspec.Struct, frozen=True, gc=False):
    """A term's end, with the reason in words. `controller_epoch` is that of the term that ended."""

    controller_epoch: int
    reason: str


class FailoverPhase(msgspec.Struct, frozen=True, gc=False):
    """One phase of a new controller's failover, in the order in which they ran."""

    controller_epoch: int
    phase: str
    duration_ms: float
    items: int


class FailoverCompleted(msgspec.Struct, frozen=True, gc=False):
    controller_epoch: int
    duration_ms: float
    partitions: int


class BrokersChanged(msgspec.Struct, frozen=True, gc=False):
    """What a controller made of a look at /brokers/ids. Bounced ones are in neither of the others."""

    controller_epoch: int
    added: tuple[int, ...]
    dead: tuple[int, ...]
    bounced: tuple[int, ...]
    live: tuple[int, ...]


class PartitionStateWritten(msgspec.Struct, frozen=True, gc=False):
    """A partition state znode was written by a controller and acknowledged.

    `why`: "initial", "offline", "controlled shutdown", "reassigned", "preferred" (an election), "replica offline"
    (ISR shrunk by the controller, or the leader taken away), "alter isr" (asked for by the leader), "reassignment"
    (a new leader epoch alone, so that the replicas learn the new assignment).
    `live`: the brokers that the decision took for eligible; `previous_isr`: what it chose from.
    """

    controller_epoch: int
    topic: str
    partition: int
    why: str
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    assignment: tuple[int, ...]
    previous_isr: tuple[int, ...]
    live: tuple[int, ...]
    unclean: bool


class PartitionMoved(msgspec.Struct, frozen=True, gc=False):
    """A partition's or replica's state machine moved (`replica` -1: the partition's own machine)."""

    controller_epoch: int
    topic: str
    partition: int
    replica: int
    source: str
    target: str


class RequestSent(msgspec.Struct, frozen=True, gc=False):
    """A control request was put in the queue to a broker."""

    controller_epoch: int
    to_broker: int
    to_broker_epoch: int
    api: str
    sequence: int
    partitions: int


class RequestAnswered(msgspec.Struct, frozen=True, gc=False):
    controller_epoch: int
    to_broker: int
    api: str
    sequence: int
    error_code: int


class RequestRefused(msgspec.Struct, frozen=True, gc=False):
    """A broker refused a control request: stale controller epoch, stale broker epoch."""

    api: str
    controller_epoch: int
    error_code: int
    reason: str


class ReplicaRoleApplied(msgspec.Struct, frozen=True, gc=False):
    """A broker became leader or follower of a partition, as a LeaderAndIsr request asked."""

    controller_epoch: int
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    role: str


class LogTruncated(msgspec.Struct, frozen=True, gc=False):
    """A follower cut its log where it parted from its leader's: it ends at `offset` now."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int


class IsrProposed(msgspec.Struct, frozen=True, gc=False):
    """A leader asks the controller for another ISR than the one that it knows."""

    topic: str
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    proposed: tuple[int, ...]


class MetadataApplied(msgspec.Struct, frozen=True, gc=False):
    """A broker took in an UpdateMetadata."""

    controller_epoch: int
    live: tuple[int, ...]
    partitions: int


class Noted(msgspec.Struct, frozen=True, gc=False):
    """Anything a reader of the log wants to know that no analysis needs: a level (debug, info, warning, error) and
    a sentence."""

    level: str
    message: str


class StepStarted(msgspec.Struct, frozen=True, gc=False):
    """The scenario runner took a step; `text` is the step as a person would say it."""

    index: int
    step: str
    text: str


class StepEnded(msgspec.Struct, frozen=True, gc=False):
    index: int
    step: str
    ok: bool
    detail: str


class FaultInjected(msgspec.Struct, frozen=True, gc=False):
    """A nemesis acted. `fault`: kill, stop, pause, resume, restart, cut, heal, expire; `target` a node, a link, or
    "zookeeper N" for one of ZooKeeper's servers (killed, or started again)."""

    fault: str
    target: str


class EphemeralSeen(msgspec.Struct, frozen=True, gc=False):
    """An observer outside the cluster saw /brokers/ids/N or /controller come (`present`) or go. `broker` is the
    one that it speaks of."""

    path: str
    broker: int
    present: bool
    session: int


class MetadataSeen(msgspec.Struct, frozen=True, gc=False):
    """A metadata response that a client received: how many partitions the client expects, how many have a leader that
    is listed among the brokers of the same response, the controller's id (-1: none), and the listed brokers."""

    partitions_expected: int
    partitions_led: int
    controller: int
    brokers: tuple[int, ...]
    error: str


class StoodStill(msgspec.Struct, frozen=True, gc=False):
    """The process that runs a scenario was given no time by its machine, for so long until now. What the machine did to
    it, it did to the brokers."""

    duration_ms: float


TraceEvent: TypeAlias = (
    SessionStarted
    | SessionEnded
    | BrokerRegistered
    | ControllerElected
    | ControllerResigned
    | FailoverPhase
    | FailoverCompleted
    | BrokersChanged
    | PartitionStateWritten
    | PartitionMoved
    | RequestSent
    | RequestAnswered
    | RequestRefused
    | ReplicaRoleApplied
    | LogTruncated
    | IsrProposed
    | MetadataApplied
    | Noted
    | StepStarted
    | StepEnded
    | FaultInjected
    | EphemeralSeen
    | MetadataSeen
    | StoodStill
)


class Trace(Protocol):
    """Where events go. `enabled` is asked before events are made in bulk (one a partition)."""

    @property
    def enabled(self) -> bool: ...

    def emit(self, event: TraceEvent) -> None: ...


class NullTrace:
    """Takes everything, keeps nothing."""

    enabled = False

    def emit(self, event: TraceEvent) -> None:
        pass
