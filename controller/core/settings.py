"""The controller's settings: the few of Kafka's settings that affect its decisions. A value, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from controller.protocol.messages import ControlVersions, control_versions

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
