"""The controller's states, by Kafka's names and numbers, and the state of each event.

They are used by the gauge ControllerState and by the timers of events' durations (source: ControllerState, 2.8 to 3.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from controller.core import events as happened


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
    happened.Startup: ControllerState.ControllerChange,
    happened.ControllerChange: ControllerState.ControllerChange,
    happened.Reelect: ControllerState.ControllerChange,
    happened.RegisterBrokerAndReelect: ControllerState.ControllerChange,
    happened.SessionExpired: ControllerState.ControllerChange,
    happened.Shutdown: ControllerState.ControllerShutdown,
    happened.BrokerChange: ControllerState.BrokerChange,
    happened.BrokerModifications: ControllerState.BrokerChange,
    happened.TopicChange: ControllerState.TopicChange,
    happened.PartitionModifications: ControllerState.TopicChange,
    happened.TopicDeletion: ControllerState.TopicDeletion,
    happened.StopReplicaResponseReceived: ControllerState.TopicDeletion,
    happened.IsrChangeNotification: ControllerState.IsrChange,
    happened.LogDirEventNotification: ControllerState.LogDirChange,
    happened.AlterIsrRequested: ControllerState.IsrChange,
    happened.ControlledShutdownRequested: ControllerState.ControlledShutdown,
    happened.UncleanLeaderElectionEnabled: ControllerState.UncleanLeaderElectionEnable,
    happened.TopicConfigChange: ControllerState.TopicUncleanLeaderElectionEnable,
    happened.LeaderAndIsrResponseReceived: ControllerState.LeaderAndIsrResponseReceived,
    happened.UpdateMetadataResponseReceived: ControllerState.UpdateMetadataResponseReceived,
    happened.CreateTopicsRequested: ControllerState.Idle,
    happened.CreatePartitionsRequested: ControllerState.Idle,
    happened.DeleteTopicsRequested: ControllerState.Idle,
    happened.ElectLeadersRequested: ControllerState.ManualLeaderBalance,
    happened.PreferredElectionAsked: ControllerState.ManualLeaderBalance,
    happened.AutoPreferredElection: ControllerState.AutoLeaderBalance,
    happened.UpdateFeaturesRequested: ControllerState.UpdateFeatures,
    happened.AllocateProducerIdsRequested: ControllerState.Idle,
    happened.PauseChanged: ControllerState.Idle,
    happened.ReassignmentAsked: ControllerState.AlterPartitionReassignment,
    happened.ReassignmentIsrChange: ControllerState.AlterPartitionReassignment,
    happened.AlterReassignmentsRequested: ControllerState.AlterPartitionReassignment,
    happened.ListReassignmentsRequested: ControllerState.ListPartitionReassignment,
}


def state_of(event: object) -> ControllerState:
    """Idle for what has no state of its own."""
    return STATES.get(type(event), ControllerState.Idle)
