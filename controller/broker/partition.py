"""One replica's place in its partition, as the controller's LeaderAndIsr requests put it, with its log beside it. The
epochs are checked by the replica manager, what a leader makes of its followers is `leader_state.py`'s."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from typing import Protocol

from controller.broker.leader_state import LeaderState, Live
from controller.protocol.control_values import NO_LEADER, NO_TOPIC_ID, LeaderAndIsrPartitionState
from controller.storage import PartitionLog


class Role(enum.Enum):
    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class Reader(Protocol):
    """A partition's place in a fetch session."""

    @property
    def watch_key(self) -> tuple[str, int]:
        """Under which a fetch of the session waits."""

    @property
    def heard_ms(self) -> float:
        """When the session was last fetched in."""

    def rouse(self) -> None:
        """Something is another than it was: the next fetch of the session looks at it."""


@dataclass(slots=True)
class Partition:
    """`leader_epoch` is -1 until a role was taken. A leader knows its ISR and the version of the state znode that its
    next change of it must name; a follower's ISR is empty, since only the leader's counts (as in Kafka).

    `log` is None in a broker without logs, and where its directory is offline (`offline`). `high_watermark` is never
    beyond the log's end. `leading` is there while this broker leads and has the log."""

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
    log: PartitionLog | None = None
    high_watermark: int = 0
    leading: LeaderState | None = None
    offline: bool = False
    readers: tuple[Reader, ...] | None = None
    """The places that it has in fetch sessions, if any."""
    key: tuple[str, int] = field(init=False, repr=False)
    """Topic and index: one object for all who look it up."""

    def __post_init__(self) -> None:
        self.topic = sys.intern(self.topic)
        self.key = (self.topic, self.index)

    @property
    def is_settled(self) -> bool:
        """It leads, and every replica is in sync and has everything: there is nothing that time could change."""
        leading, log = self.leading, self.log
        if leading is None or log is None or leading.proposed is not None or len(self.isr) < len(self.replicas):
            return False
        return self.high_watermark == log.log_end_offset and leading.all_at(self.high_watermark)

    def agrees_on_topic_id(self, topic_id: bytes) -> bool:
        """Return whether this is a partition of the topic with this id. The first id received is kept; a controller
        that sends none is trusted."""
        if topic_id == NO_TOPIC_ID:
            return True
        if self.topic_id == NO_TOPIC_ID:
            self.topic_id = topic_id
        return self.topic_id == topic_id

    def attach(self, log: PartitionLog, kept_high_watermark: int) -> None:
        """Its log, once it is known. A high watermark that was kept counts as far as there are records."""
        self.log, self.offline = log, False
        self.high_watermark = min(max(kept_high_watermark, log.log_start_offset), log.log_end_offset)

    def go_offline(self) -> None:
        """Its files can't be trusted any more. The role stays, for the controller to change."""
        self.log, self.leading, self.offline, self.fetching = None, None, True, False

    def make_leader(self, state: LeaderAndIsrPartitionState, now_ms: float = 0.0) -> None:
        """Become leader. The epoch is assigned in the log before anything is appended in it, so that a follower that
        has records of an epoch in between gets the offset to truncate to (Kafka's Partition.makeLeader).

        Raises: LogOffline, with nothing changed."""
        if self.log is not None:
            self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)
        self._take(state)
        isr = state.replicas if state.isr == state.replicas else state.isr  # mostly so: one object for both
        self.role, self.isr, self.fetching = Role.LEADER, isr, False
        if self.log is None:
            return
        if self.leading is None:
            self.leading = LeaderState(isr, state.replicas, state.leader, now_ms, self.log.log_end_offset)
        else:
            self.leading.begin_epoch(isr, state.replicas, now_ms, self.log.log_end_offset)

    def make_follower(self, state: LeaderAndIsrPartitionState) -> None:
        self._take(state)
        self.role, self.isr, self.fetching, self.leading = Role.FOLLOWER, (), True, None

    def change_isr(self, isr: tuple[int, ...], zk_version: int) -> bool:
        """The ISR as the controller has written it in this leader epoch. False: it is not newer, and is passed over."""
        if zk_version <= self.zk_version:
            return False
        self.isr, self.zk_version = isr, zk_version
        if self.leading is not None:
            self.leading.isr = isr
        return True

    def propose_isr(self, isr: tuple[int, ...] | None) -> None:
        """What the controller is asked for and has not answered; None when nothing is open."""
        if self.leading is not None:
            self.leading.proposed = isr

    def advance_high_watermark(self, now_ms: float, lag_max_ms: float, live: Live) -> bool:
        """As far as the followers let it; never back. True if it moved."""
        if self.leading is None or self.log is None:
            return False
        reached = self.leading.high_watermark(self.log.log_end_offset, now_ms, lag_max_ms, live)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def stand_down(self) -> None:
        """Stop leading, because another broker leads or none does. The new leader and its epoch are applied once that
        leader is live."""
        self.role, self.isr, self.fetching, self.leading = Role.NONE, (), False, None

    def stop(self) -> None:
        """Handle StopReplica without deletion: the replica remains, without a role until the next LeaderAndIsr."""
        self.fetching, self.leading = False, None

    def _take(self, state: LeaderAndIsrPartitionState) -> None:
        self.leader, self.leader_epoch = state.leader, state.leader_epoch
        self.controller_epoch, self.zk_version = state.controller_epoch, state.zk_version
        self.replicas = state.replicas
        self.adding_replicas, self.removing_replicas = state.adding_replicas, state.removing_replicas
