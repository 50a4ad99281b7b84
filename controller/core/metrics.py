"""The controller's metrics: states, gauges, and the durations of events, as in Kafka's meters, histograms and timers.

After each event the controller publishes `ControllerGauges`, one value that any thread may read, so that no thread
reads a context while an event changes it. Each number is updated as states change. Only the numbers of replicas of
topics that are being deleted are counted anew, and only while there are such topics.

A histogram's values are updated in constant time and sorted only when they are read. One thread updates, any may read:
a list is copied as a whole. A value that has not been updated for a while is not reported any more (KAFKA-10189: the
99th percentile of a busy hour was reported without end).

States have Kafka's names and numbers (source: ControllerState, 2.8 to 3.9). The gauge ControllerState and the timers of
events' durations use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec
import numpy as np

from controller.clock import Clock
from controller.core import events
from controller.core.context import NO_BROKER
from controller.core.leadership import Term
from statemachines.replica import ReplicaState

SAMPLES = 1_028
"""As many as Kafka's histograms keep."""
IDLE_MS = 300_000.0
"""controller.event.queue's histogram idle time-out in Kafka."""
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


class Histogram:
    """The latest `SAMPLES` values, and how many there ever were."""

    __slots__ = ("_updated_ms", "_values", "count", "idle_ms", "total")

    def __init__(self, idle_ms: float = IDLE_MS) -> None:
        self.count = 0
        self.total = 0.0
        self.idle_ms = idle_ms
        self._values: list[float] = []
        self._updated_ms = 0.0

    def update(self, value: float, now_ms: float) -> None:
        if now_ms - self._updated_ms > self.idle_ms:
            self._values = []
        self._updated_ms = now_ms
        if len(self._values) < SAMPLES:
            self._values.append(value)
        else:
            self._values[self.count % SAMPLES] = value
        self.count += 1
        self.total += value

    def quantiles(self, now_ms: float) -> Mapping[float, float]:
        """Return the quantiles; all are 0 before the first value, or when the last one is too old."""
        values = sorted(self._values) if now_ms - self._updated_ms <= self.idle_ms else []
        if not values:
            return dict.fromkeys(QUANTILES, 0.0)
        return {one: values[min(len(values) - 1, int(one * len(values)))] for one in QUANTILES}


class ControllerState(Enum):
    """(Kafka's number, the timer's name). Events of creation are handled elsewhere in Kafka and have no state there."""

    Idle = (0, None)
    ControllerChange = (1, "ControllerChangeRateAndTimeMs")
    BrokerChange = (2, "LeaderElectionRateAndTimeMs")
    """The timer had its name before there were states."""
    TopicChange = (3, "TopicChangeRateAndTimeMs")
    TopicDeletion = (4, "TopicDeletionRateAndTimeMs")
    AlterPartitionReassignment = (5, "PartitionReassignmentRateAndTimeMs")
    AutoLeaderBalance = (6, "AutoLeaderBalanceRateAndTimeMs")
    ManualLeaderBalance = (7, "ManualLeaderBalanceRateAndTimeMs")
    ControlledShutdown = (8, "ControlledShutdownRateAndTimeMs")
    IsrChange = (9, "IsrChangeRateAndTimeMs")
    LeaderAndIsrResponseReceived = (10, "LeaderAndIsrResponseReceivedRateAndTimeMs")
    LogDirChange = (11, "LogDirChangeRateAndTimeMs")
    ControllerShutdown = (12, "ControllerShutdownRateAndTimeMs")
    UncleanLeaderElectionEnable = (13, "UncleanLeaderElectionEnableRateAndTimeMs")
    TopicUncleanLeaderElectionEnable = (14, "TopicUncleanLeaderElectionEnableRateAndTimeMs")
    ListPartitionReassignment = (15, "ListPartitionReassignmentRateAndTimeMs")
    UpdateMetadataResponseReceived = (16, "UpdateMetadataResponseReceivedRateAndTimeMs")
    UpdateFeatures = (17, "UpdateFeaturesRateAndTimeMs")

    @property
    def number(self) -> int:
        number: int = self.value[0]
        return number

    @property
    def timer(self) -> str | None:
        timer: str | None = self.value[1]
        return timer


STATES: Mapping[type, ControllerState] = {
    events.Startup: ControllerState.ControllerChange,
    events.ControllerChange: ControllerState.ControllerChange,
    events.Reelect: ControllerState.ControllerChange,
    events.RegisterBrokerAndReelect: ControllerState.ControllerChange,
    events.SessionExpired: ControllerState.ControllerChange,
    events.Shutdown: ControllerState.ControllerShutdown,
    events.BrokerChange: ControllerState.BrokerChange,
    events.BrokerModifications: ControllerState.BrokerChange,
    events.TopicChange: ControllerState.TopicChange,
    events.PartitionModifications: ControllerState.TopicChange,
    events.TopicDeletion: ControllerState.TopicDeletion,
    events.StopReplicaResponseReceived: ControllerState.TopicDeletion,
    events.RetryDeletions: ControllerState.TopicDeletion,
    events.IsrChangeNotification: ControllerState.IsrChange,
    events.LogDirEventNotification: ControllerState.LogDirChange,
    events.AlterIsrRequested: ControllerState.IsrChange,
    events.ControlledShutdownRequested: ControllerState.ControlledShutdown,
    events.UncleanLeaderElectionEnabled: ControllerState.UncleanLeaderElectionEnable,
    events.TopicConfigChange: ControllerState.TopicUncleanLeaderElectionEnable,
    events.LeaderAndIsrResponseReceived: ControllerState.LeaderAndIsrResponseReceived,
    events.UpdateMetadataResponseReceived: ControllerState.UpdateMetadataResponseReceived,
    events.CreateTopicsRequested: ControllerState.Idle,
    events.CreatePartitionsRequested: ControllerState.Idle,
    events.DeleteTopicsRequested: ControllerState.Idle,
    events.ElectLeadersRequested: ControllerState.ManualLeaderBalance,
    events.PreferredElectionAsked: ControllerState.ManualLeaderBalance,
    events.AutoPreferredElection: ControllerState.AutoLeaderBalance,
    events.UpdateFeaturesRequested: ControllerState.UpdateFeatures,
    events.AllocateProducerIdsRequested: ControllerState.Idle,
    events.PauseChanged: ControllerState.Idle,
    events.ReassignmentAsked: ControllerState.AlterPartitionReassignment,
    events.ReassignmentIsrChange: ControllerState.AlterPartitionReassignment,
    events.AlterReassignmentsRequested: ControllerState.AlterPartitionReassignment,
    events.ListReassignmentsRequested: ControllerState.ListPartitionReassignment,
}


def state_of(event: object) -> ControllerState:
    """Idle for what has no state of its own."""
    return STATES.get(type(event), ControllerState.Idle)


class ControllerGauges(msgspec.Struct, frozen=True):
    """All 0 of a broker that is not the active controller, but for `unclean_elections`, which is of all its terms."""

    active: bool = False
    brokers: int = 0
    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    preferred_replica_imbalance: int = 0
    topics_to_delete: int = 0
    topics_ineligible_to_delete: int = 0
    replicas_to_delete: int = 0
    replicas_ineligible_to_delete: int = 0
    unclean_elections: int = 0
    paused: bool = False
    quarantined: int = 0


def figures_of(term: Term, unclean_elections: int) -> ControllerGauges:
    context, table = term.context, term.context.partitions
    imbalance, to_delete, ineligible = table.off_preferred, 0, 0
    if context.deletions.queued:
        topics = [found for name in sorted(context.deletions.queued) if (found := table.topic_named(name)) is not None]
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(topic.rows for topic in topics)])
        imbalance -= int(np.count_nonzero(table.are_off_preferred(rows)))
        real = table.assignment[rows] != NO_BROKER
        to_delete = int(np.count_nonzero(real))
        ineligible = int(np.count_nonzero(real & (table.replica_state[rows] == ReplicaState.DeletionIneligible)))
    return ControllerGauges(
        active=True,
        brokers=len(context.broker_ids),
        topics=len(table.topics),
        partitions=len(table),
        offline_partitions=context.offline_partitions,
        preferred_replica_imbalance=imbalance,
        topics_to_delete=len(context.deletions.queued),
        topics_ineligible_to_delete=len(context.deletions.ineligible),
        replicas_to_delete=to_delete,
        replicas_ineligible_to_delete=ineligible,
        unclean_elections=unclean_elections,
        paused=context.paused is not None,
        quarantined=len(context.quarantine),
    )


class ControllerMetrics:
    """Receives the start and the end of each event from the controller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = 0.0
        self._unclean_before = 0
        self.state = ControllerState.Idle
        self.figures = ControllerGauges()
        self.timers: dict[ControllerState, Histogram] = {
            state: Histogram() for state in ControllerState if state.timer is not None
        }

    def began(self, event: object) -> None:
        self._began_ms = self._clock.now_ms()
        self.state = state_of(event)

    def ended(self, term: Term | None) -> None:
        now_ms = self._clock.now_ms()
        timer = self.timers.get(self.state)
        if timer is not None:
            timer.update(now_ms - self._began_ms, now_ms)
        self.state = ControllerState.Idle
        self.publish(term)

    def publish(self, term: Term | None) -> None:
        if term is None:
            self._unclean_before = self.figures.unclean_elections
            self.figures = ControllerGauges(unclean_elections=self._unclean_before)
        else:
            self.figures = figures_of(term, self._unclean_before + term.context.unclean_elections)


__all__ = ["STATES", "ControllerGauges", "ControllerMetrics", "figures_of"]
