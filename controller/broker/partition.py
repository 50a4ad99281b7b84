"""One replica's place in its partition, as the controller's LeaderAndIsr requests put it. No I/O; the epochs are
checked by the replica manager, the records will live beside this state."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from controller.protocol.control_values import NO_LEADER, NO_TOPIC_ID, LeaderAndIsrPartitionState


class Role(enum.Enum):
    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(slots=True)
class Partition:
    """`leader_epoch` is -1 until a role was taken. A leader knows its ISR and the version of the state znode that its
    next change of it must name; a follower's ISR is empty, since only the leader's counts (as in Kafka)."""

    topic: str
    index: int
    topic_id: bytes = NO_TOPIC_ID
    role: Role = Role.NONE
    leader: int = NO_LEADER
    leader_epoch: int = -1
    controller_epoch: int = 0
    zk_version: int = -1
    isr: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    fetching: bool = False

    def agrees_on_topic_id(self, topic_id: bytes) -> bool:
        """Whether this is a partition of that life of the topic. The first id that is told is kept; a controller
        that tells none is believed."""
        if topic_id == NO_TOPIC_ID:
            return True
        if self.topic_id == NO_TOPIC_ID:
            self.topic_id = topic_id
        return self.topic_id == topic_id

    def make_leader(self, state: LeaderAndIsrPartitionState) -> None:
        self._take(state)
        self.role, self.isr, self.fetching = Role.LEADER, state.isr, False

    def make_follower(self, state: LeaderAndIsrPartitionState) -> None:
        self._take(state)
        self.role, self.isr, self.fetching = Role.FOLLOWER, (), True

    def change_isr(self, isr: tuple[int, ...], zk_version: int) -> None:
        """The ISR as the controller has written it within this leader epoch. What is not newer is passed over."""
        if zk_version > self.zk_version:
            self.isr, self.zk_version = isr, zk_version

    def stop_fetching(self) -> None:
        """StopReplica without deletion: the replica stays, and follows nobody until it is told again."""
        self.fetching = False

    def _take(self, state: LeaderAndIsrPartitionState) -> None:
        self.leader, self.leader_epoch = state.leader, state.leader_epoch
        self.controller_epoch, self.zk_version = state.controller_epoch, state.zk_version
        self.replicas = state.replicas
        self.adding_replicas, self.removing_replicas = state.adding_replicas, state.removing_replicas
