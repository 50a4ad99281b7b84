"""One replica of a partition on this broker: its role and log, the leader's state, and notifications of changes.

Pure rules over values, but for the notifications; no I/O, no clock: the caller passes the time. Epochs are checked by
the replica manager. Source: Kafka 2.8's Partition and Replica, and KIP-497 for ISR changes in progress: while it is
unknown whether the controller made a change, the members of both ISRs, the old and the proposed (the maximal ISR), hold
back the high watermark.

A follower's log end offset is the offset of its last fetch in this leader epoch: it has everything below. In a new
epoch it is unknown until the follower has fetched again, so nothing of an earlier broker incarnation counts.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from controller.clock import Clock
from controller.protocol.control import NO_LEADER, NO_TOPIC_ID, LeaderAndIsrPartitionState
from controller.storage import PartitionLog

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
NEVER_MS = -math.inf

Live: TypeAlias = Callable[[int], bool]
"""Whether a broker is live, as far as this one knows."""


class Fetching(Protocol):
    """Who fetches again and again from where it is: a follower's session."""

    last_fetch_ms: float
    """When it did so last."""


@dataclass(slots=True, eq=False)
class FollowerState:
    """A follower's state as its leader knows it.

    `log_end_offset` and `log_start_offset` are those of its last fetch. `broker_epoch` is that of its incarnation, if
    it sent one. A caught-up follower repeats the same position with each fetch of its session. While it is parked
    (`parked_in` a session), those fetches do not update this object: the time of the session's last fetch counts.
    """

    _caught_up_ms: float = NEVER_MS
    _fetch_ms: float = NEVER_MS
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_EPOCH
    parked_in: Fetching | None = None

    @property
    def last_caught_up_ms(self) -> float:
        """The latest time at which it is known to have had all that the leader had."""
        return self._caught_up_ms if self.parked_in is None else max(self._caught_up_ms, self.parked_in.last_fetch_ms)

    @property
    def last_fetch_ms(self) -> float:
        return self._fetch_ms if self.parked_in is None else max(self._fetch_ms, self.parked_in.last_fetch_ms)

    def mark_dirty(self, by: Fetching) -> None:
        """Stop counting the fetches of session `by` as fetches of this follower."""
        if self.parked_in is by:
            self._caught_up_ms, self._fetch_ms = self.last_caught_up_ms, self.last_fetch_ms
            self.parked_in = None

    def fetched(self, fetch_offset: int, log_start_offset: int, leader_end: int, now_ms: float) -> None:
        """A fetch that reaches the leader's present end is caught up now; one that reaches the end of the fetch
        before was caught up then."""
        if fetch_offset >= leader_end:
            caught_up_ms = now_ms
        else:
            caught_up_ms = self._fetch_ms if fetch_offset >= self.leader_end_at_fetch else NEVER_MS
        if caught_up_ms > self._caught_up_ms:
            self._caught_up_ms = caught_up_ms
        self.log_end_offset, self.log_start_offset = fetch_offset, log_start_offset
        self.leader_end_at_fetch, self._fetch_ms = leader_end, now_ms


class LeaderState:
    """One broker's uninterrupted leadership of one partition, over all of its leader epochs.

    A caller that keeps this object can detect that leadership was lost in the meantime. `isr` is the ISR that the
    controller has written, `proposed` the one that was requested and is not settled yet. `epoch_start_offset` is the
    log end offset at the start of the leader epoch."""

    __slots__ = ("epoch_start_offset", "followers", "isr", "me", "proposed")

    def __init__(
        self, isr: Iterable[int], replicas: Iterable[int], me: int, now_ms: float, epoch_start_offset: int = 0
    ) -> None:
        self.me = me
        self.begin_epoch(isr, replicas, now_ms, epoch_start_offset)

    def begin_epoch(self, isr: Iterable[int], replicas: Iterable[int], now_ms: float, epoch_start_offset: int) -> None:
        """A new leader epoch. The members of its ISR have all their time to be heard of."""
        self.isr = tuple(isr)
        self.proposed: tuple[int, ...] | None = None
        self.epoch_start_offset = epoch_start_offset
        self.followers = {
            replica: FollowerState(now_ms if replica in self.isr else NEVER_MS)
            for replica in replicas
            if replica != self.me
        }

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Return all replicas that may be in the ISR, as far as this leader knows (Kafka's maximal ISR)."""
        if self.proposed is None:
            return self.isr
        return (*self.isr, *(replica for replica in self.proposed if replica not in self.isr))

    def follower_fetched(
        self,
        broker: int,
        fetch_offset: int,
        log_start_offset: int,
        leader_end: int,
        now_ms: float,
        broker_epoch: int = UNKNOWN_EPOCH,
    ) -> bool:
        """Whether it is known now to have another end than before. KeyError: it is no replica of this partition."""
        follower = self.followers[broker]
        before = follower.log_end_offset
        follower.fetched(fetch_offset, log_start_offset, leader_end, now_ms)
        follower.broker_epoch = broker_epoch
        return follower.log_end_offset != before

    def broker_epochs_of(self, members: Iterable[int], mine: int) -> tuple[int, ...]:
        """Which life of each member is spoken of, as far as is known: what it had is that life's alone (KIP-903)."""
        known = {broker: follower.broker_epoch for broker, follower in self.followers.items()} | {self.me: mine}
        return tuple(known.get(member, UNKNOWN_EPOCH) for member in members)

    def high_watermark(self, log_end: int, now_ms: float, lag_max_ms: float, live: Live = lambda _broker: True) -> int:
        """Return the offset below which every member of the maximal ISR has all records, or UNKNOWN_OFFSET while a
        member's position is unknown.

        A member that is not a replica any more never reports one: until the controller has removed it, it may still be
        elected. A replica outside the ISR that keeps up counts too, or it could never join under load; but not if it is
        dead, because its position never advances (as Kafka from 3.4 on)."""
        lowest, followers = log_end, self.followers
        isr = self.isr if self.proposed is None else self.maximal_isr
        for broker in isr:
            if broker not in followers and broker != self.me:
                return UNKNOWN_OFFSET
        for broker, follower in followers.items():
            if follower.log_end_offset >= lowest:
                continue
            if broker in isr or (now_ms - follower.last_caught_up_ms <= lag_max_ms and live(broker)):
                lowest = follower.log_end_offset
        return lowest

    def all_at(self, log_end: int) -> bool:
        """Return whether each follower is known to have all records."""
        return all(follower.log_end_offset == log_end for follower in self.followers.values())

    def low_watermark(self, log_start: int, live: Iterable[int]) -> int:
        """The lowest log start offset of the leader and its live followers: none of them has records below it."""
        starts = (self.followers[broker].log_start_offset for broker in live if broker in self.followers)
        return min((log_start, *starts))

    def keeps_isr(self, log_end: int, high_watermark: int, now_ms: float, lag_max_ms: float) -> bool:
        """Return True if no replica is `behind` and none `caught_up`, which is nearly always so."""
        isr = self.isr
        members = 1 if self.me in isr else 0
        for broker, follower in self.followers.items():
            end = follower.log_end_offset
            if broker in isr:
                members += 1
                if end != log_end and now_ms - follower.last_caught_up_ms > lag_max_ms:
                    return False
            elif end >= max(high_watermark, self.epoch_start_offset) and now_ms - follower.last_fetch_ms <= lag_max_ms:
                return False
        return members == len(isr)

    def behind(self, log_end: int, now_ms: float, lag_max_ms: float) -> tuple[int, ...]:
        """Members of the ISR that have not had everything for longer than `lag_max_ms`. Never this broker itself."""
        found: tuple[int, ...] = ()
        for broker in self.isr:
            if broker == self.me:
                continue
            follower = self.followers.get(broker)
            if follower is None or (
                follower.log_end_offset != log_end and now_ms - follower.last_caught_up_ms > lag_max_ms
            ):
                found += (broker,)
        return found

    def caught_up(self, high_watermark: int, now_ms: float, lag_max_ms: float) -> tuple[int, ...]:
        """Replicas outside the ISR that may join it: they have all that is committed and all that was there when the
        leader epoch began, and they are fetching."""
        found: tuple[int, ...] = ()
        for broker, follower in self.followers.items():
            if (
                broker not in self.isr
                and follower.log_end_offset >= high_watermark
                and follower.log_end_offset >= self.epoch_start_offset
                and now_ms - follower.last_fetch_ms <= lag_max_ms
            ):
                found += (broker,)
        return found


class Role(enum.Enum):
    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class Reader(Protocol):
    """A partition of a fetch session (`CachedPartition`)."""

    @property
    def watch_key(self) -> tuple[str, int]:
        """Under which a fetch of the session waits."""

    @property
    def last_fetch_ms(self) -> float:
        """When the session was last fetched in."""

    def mark_dirty(self) -> None:
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
    """The entries that it has in fetch sessions, if any."""
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

    @property
    def last_stable_offset(self) -> int:
        """Below it is what consumers of committed records get: no transaction is open there."""
        return self.high_watermark if self.log is None else self.log.last_stable_offset(self.high_watermark)

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
            self.log.place(is_leader=True)
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
        if self.log is not None:
            self.log.place(is_leader=False)
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


Heard = Callable[[Partition], None]


class PartitionEvents:
    """Registers listeners for partition changes and notifies them.

    `of_high_watermarks`: a high watermark or a role changed. `of_appends`: a log grew and its high watermark did not
    move. `of_followers`: a follower's fetch, with its broker, was recorded, unless it repeats the one before.
    `of_others`: a change in several partitions that completes no request: the ISR, or the log start offset. A listener
    may complete requests, and must not change the partition's records. `idle` holds, for some listeners of
    `of_high_watermarks`, whether no request waits there, so that role changes need not be sent to it. `live`: whether
    a replica of a partition is live."""

    def __init__(self, clock: Clock, lag_max_ms: float, live: Callable[[Partition, int], bool]) -> None:
        self._clock = clock
        self._lag_max_ms = lag_max_ms
        self._live = live
        self.of_high_watermarks: list[Heard] = []
        self.idle: dict[Heard, Callable[[], bool]] = {}
        self.of_appends: list[Heard] = []
        self.of_followers: list[Callable[[Partition, int], None]] = []
        self.of_others: list[Callable[[Sequence[Partition]], None]] = []

    def appended(self, partition: Partition) -> None:
        """Its log has a new end, a leader's or a follower's."""
        if not self.advance(partition):
            for heard in self.of_appends:
                heard(partition)

    def advance(self, partition: Partition) -> bool:
        """Advance a leader's high watermark as far as its followers allow; return whether it moved. Called for each
        change of a follower or the ISR, and after time has passed."""
        log = partition.log
        if log is None or partition.high_watermark >= log.log_end_offset:
            return False  # as far as it can be
        moved = partition.advance_high_watermark(
            self._clock.now_ms(), self._lag_max_ms, lambda broker: self._live(partition, broker)
        )
        if moved:
            self.high_watermark_moved(partition)
        return moved

    def follower_fetched(self, partition: Partition, broker: int, *, moved: bool) -> None:
        """`moved`: it has another end than before, by what it asks for."""
        if moved:
            self.advance(partition)
        for heard in self.of_followers:
            heard(partition, broker)

    def high_watermark_moved(self, partition: Partition) -> None:
        for heard in self.of_high_watermarks:
            heard(partition)

    def roles_changed(self, partitions: Iterable[Partition]) -> None:
        """Notify listeners that the partitions' leader or leader epoch changed, that they have no leader here, were
        removed, or are offline: requests that wait for them can't succeed."""
        idle = self.idle
        listeners = [heard for heard in self.of_high_watermarks if heard not in idle or not idle[heard]()]
        for partition in partitions:
            log = partition.log
            if log is not None and partition.high_watermark < log.log_end_offset:
                self.advance(partition)
            for heard in listeners:
                heard(partition)

    def isr_changed(self, partition: Partition) -> None:
        """The controller has written another."""
        self.changed((partition,))
        self.advance(partition)

    def changed(self, partitions: Sequence[Partition]) -> None:
        """Notify listeners that the partitions' ISR, log start offset or role changed; clients are yet to learn it."""
        for heard in self.of_others:
            heard(partitions)
