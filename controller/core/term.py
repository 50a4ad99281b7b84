"""One term as controller: its leadership, what it knows, and the ports that it acts through.

Everything that belongs to a term hangs on this one value, so that a resignation drops it whole and the next term starts
from nothing (KAFKA-12315: a batch that outlived its term). It decides nothing. `ControllerSettings` are the few of
Kafka's settings that affect the controller's decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controller.clock import Clock, Timer
from controller.core.channels import Channels
from controller.core.context import ControllerContext
from controller.core.leadership import void_reason
from controller.core.placement import Rng
from controller.protocol.messages import ControlVersions, control_versions
from controller.trace import Noted, RequestAnswered, RequestSent, Trace
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.operations import LeaseExpired, SessionGone

PLAINTEXT = "PLAINTEXT"
_AT_LEAST_ONE = (
    "num_partitions",
    "default_replication_factor",
    "leader_imbalance_check_interval_seconds",
    "min_insync_replicas",
)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Kafka's names with underscores, and Kafka 2.8's defaults. ValueError for an unknown protocol version."""

    inter_broker_protocol: str = "2.8"
    """inter.broker.protocol.version: which versions of the control requests are sent, and what the znodes hold."""
    inter_broker_listener: str = PLAINTEXT
    """inter.broker.listener.name: the endpoint of each broker that the controller's channel goes to."""
    unclean_leader_election: bool = False
    """unclean.leader.election.enable, for topics whose config, and a cluster whose dynamic config, say nothing else."""
    delete_topic: bool = True
    """delete.topic.enable: if not, requests to delete topics are taken out of ZooKeeper unanswered."""
    auto_leader_rebalance: bool = True
    """auto.leader.rebalance.enable: whether leaders that drifted are given back to the preferred ones by themselves."""
    leader_imbalance_per_broker_percentage: int = 10
    """Above so many percent of what a broker should lead and does not."""
    leader_imbalance_check_interval_seconds: int = 300
    reassignments_in_cluster: int = 0
    """camerlengo.reassignments.in.cluster: how many partitions may be gaining replicas at once; 0: all that are
    asked for, as in Kafka. The others wait in /admin/reassign_partitions."""
    reassignments_on_broker: int = 0
    """camerlengo.reassignments.on.broker: the same for each broker that gains them."""
    min_insync_replicas: int = 1
    """min.insync.replicas, for topics whose config, and a cluster whose dynamic config, say nothing else."""
    shutdown_check: bool = True
    """camerlengo.controlled.shutdown.check: whether a broker in controlled shutdown keeps partitions that would
    otherwise fall below min.insync.replicas. If false: no request is checked for that, as in Kafka."""
    num_partitions: int = 1
    """For a topic that is created with -1 partitions."""
    default_replication_factor: int = 1
    """For a topic that is created with replication factor -1."""

    def __post_init__(self) -> None:
        control_versions(self.inter_broker_protocol)
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")

    @property
    def versions(self) -> ControlVersions:
        return control_versions(self.inter_broker_protocol)


@dataclass(slots=True)
class TermTimers:
    """Set and cancelled by the controller's handlers alone; what is called back must only put an event."""

    _set: dict[str, Timer] = field(default_factory=dict)

    def set(self, name: str, clock: Clock, delay_ms: float, callback: Callable[[], None]) -> None:
        """In place of one of that name that has not come yet."""
        earlier = self._set.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        self._set[name] = clock.call_later(delay_ms, callback)

    def cancel_all(self) -> None:
        """The term is over."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()


@dataclass(slots=True)
class RequestLog:
    """Numbers the requests to each broker, from 0, and finds the number of each answer: a broker answers in order."""

    sent: dict[int, int] = field(default_factory=dict)
    waiting: dict[tuple[int, int], deque[int]] = field(default_factory=dict)

    @property
    def unanswered(self) -> int:
        return sum(map(len, list(self.waiting.values())))

    def by_broker(self) -> dict[int, int]:
        """Return the number of waiting requests by broker. May be called on any thread."""
        counts: dict[int, int] = {}
        for (broker, _), waiting in list(self.waiting.items()):
            counts[broker] = counts.get(broker, 0) + len(waiting)
        return counts

    def number(self, broker: int, broker_epoch: int) -> int:
        sequence = self.sent.get(broker, 0)
        self.sent[broker] = sequence + 1
        self.waiting.setdefault((broker, broker_epoch), deque()).append(sequence)
        return sequence

    def answered(self, broker: int, broker_epoch: int) -> int | None:
        """None for an answer to nothing that was asked."""
        waiting = self.waiting.get((broker, broker_epoch))
        return waiting.popleft() if waiting else None

    def last(self, broker: int) -> int:
        """The number of the latest request to a broker; -1 before the first."""
        return self.sent.get(broker, 0) - 1

    def is_answered(self, broker: int, broker_epoch: int, sequence: int) -> bool:
        """Return whether that incarnation of the broker has answered this request, or never will."""
        waiting = self.waiting.get((broker, broker_epoch))
        return not waiting or waiting[0] > sequence

    def forget(self, broker: int) -> None:
        """Forget the requests to all earlier incarnations of a broker: their channels are closed."""
        for key in [key for key in self.waiting if key[0] == broker]:
            del self.waiting[key]


@dataclass(frozen=True, slots=True)
class Term:
    broker_id: int
    leadership: Leadership
    settings: ControllerSettings
    zookeeper: ZooKeeperClient
    writes: BrokerWrites
    channels: Channels
    clock: Clock
    trace: Trace
    rng: Rng
    context: ControllerContext = field(default_factory=ControllerContext)
    requests: RequestLog = field(default_factory=RequestLog)
    timers: TermTimers = field(default_factory=TermTimers)
    put: Callable[[Any], None] = lambda _event: None
    """Queues an event of the controller's own, from any thread."""

    @property
    def epoch(self) -> int:
        return self.leadership.epoch

    def void_reason(self) -> str | None:
        """Return why the term must end, or None while it may continue."""
        return void_reason(self.leadership, self.zookeeper, self.clock.now_ms())

    def require(self) -> None:
        """Before anything leaves this node in the term's name. Raises SessionGone, LeaseExpired."""
        reason = self.void_reason()
        if reason is None:
            return
        if self.zookeeper.session() != self.leadership.session:
            raise SessionGone(self.leadership.session)
        raise LeaseExpired(f"controller epoch {self.epoch}: {reason}")

    def note(self, level: str, message: str) -> None:
        self.trace.emit(Noted(level, f"[controller {self.broker_id}, epoch {self.epoch}] {message}"))

    def trace_sent(self, broker: int, broker_epoch: int, api: str, partitions: int) -> None:
        sequence = self.requests.number(broker, broker_epoch)
        self.trace.emit(RequestSent(self.epoch, broker, broker_epoch, api, sequence, partitions))

    def trace_answered(self, broker: int, broker_epoch: int, api: str, error_code: int) -> None:
        sequence = self.requests.answered(broker, broker_epoch)
        if sequence is not None:
            self.trace.emit(RequestAnswered(self.epoch, broker, api, sequence, error_code))
