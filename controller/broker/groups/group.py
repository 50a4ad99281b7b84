"""A consumer group: its members, its generation and its committed offsets.

Values and rules; no I/O and no clock. The coordinator answers requests and sets timers. Source: Kafka 2.8's
GroupMetadata and MemberMetadata.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.broker.groups.bounds import GroupTally, member_bytes
from controller.broker.groups.offsets_topic import CommittedOffset
from controller.clock import Timer
from controller.protocol.framing import joined
from controller.protocol.groups import (
    GroupMetadataMember,
    GroupMetadataValue,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)
from statemachines.group import GROUP, CompletingRebalance, Empty, GroupState, PreparingRebalance, Stable

CONSUMER_PROTOCOL = "consumer"
TopicPartition = tuple[str, int]


@dataclass(slots=True, eq=False)
class GroupMember:
    """`protocols`: name and metadata of each way to assign, the preferred one first. `join`, `sync`: how to answer the
    request that waits, if one does. `session`: expires the member unless it is heard from."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """It has not been a member of a generation yet."""
    join: Callable[[JoinGroupResponse], None] | None = None
    sync: Callable[[SyncGroupResponse], None] | None = None
    session: Timer | None = None

    @property
    def size_bytes(self) -> int:
        metadata = ((name, len(data)) for name, data in self.protocols)
        return member_bytes(self.id, self.client_id, self.instance_id, metadata) + len(self.assignment)

    def metadata(self, protocol: str) -> bytes:
        return next(metadata for name, metadata in self.protocols if name == protocol)

    @property
    def is_waiting(self) -> bool:
        """Whether a request of it waits for an answer: then it is not expected to send heartbeats."""
        return self.join is not None or self.sync is not None

    def vote(self, candidates: Collection[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """`protocol_type` and `protocol` are None as long as no member has joined."""

    id: str
    state: GroupState = Empty
    since_ms: int = -1
    """When it came into its state, in milliseconds since 1970."""
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by group.instance.id."""
    pending: dict[str, Timer] = field(default_factory=dict)
    """Member ids that were given out and have not joined, with what expires them."""
    unsynced: dict[str, None] = field(default_factory=dict)
    """Members of this generation that have not asked for their assignment."""
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    open_offsets: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """Offsets that transactions have committed which have not ended, by producer id. Those that are being written have
    no place in the log yet (`appended_at` -1)."""
    commits: int = 0
    """How many commits are being written."""
    topics: frozenset[str] | None = None
    """The topics that its members subscribe to; None if that can't be known."""
    joining: Timer | None = None
    """Ends the wait for members to join."""
    syncing: Timer | None = None
    """Ends the wait for members to ask for their assignments."""
    grace_ms: int = 0
    """Of a group that was empty: how much longer it may wait for more members. 0 in a later rebalance."""
    is_first_wait: bool = False
    """It was empty, and waits for the first time (group.initial.rebalance.delay.ms)."""
    has_new_member: bool = False
    """A member has joined during that wait."""
    tally: GroupTally | None = None
    """Of the coordinator that keeps the group, with what all its groups hold."""
    _member_bytes: int = 0
    _supported: Counter[str] = field(default_factory=Counter)
    """How many members can take part in each way to assign."""
    _joined: int = 0
    """How many members wait for the answer to a JoinGroup."""

    def kept_by(self, tally: GroupTally | None) -> None:
        """The group counts for this coordinator from now on; None: for none."""
        if self.tally is not None:
            self.tally.groups -= 1
            self.tally.member_bytes -= self._member_bytes
        self.tally = tally
        if tally is not None:
            tally.groups += 1
            tally.member_bytes += self._member_bytes

    def _count(self, more_bytes: int) -> None:
        self._member_bytes += more_bytes
        if self.tally is not None:
            self.tally.member_bytes += more_bytes

    def move(self, state: GroupState, wall_ms: int) -> None:
        """Raises InvalidTransition."""
        GROUP.require(self.state, state, lambda: self.id)
        self.state, self.since_ms = state, wall_ms

    # Members.

    def add(self, member: GroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self._count(member.size_bytes)
        self._supported.update(name for name, _ in member.protocols)
        self._joined += member.join is not None
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id

    def set_protocols(self, member: GroupMember, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._supported.subtract(name for name, _ in member.protocols)
        self._supported.update(name for name, _ in protocols)
        self._count(-member.size_bytes)
        member.protocols = protocols
        self._count(member.size_bytes)

    def set_assignment(self, member: GroupMember, assignment: bytes) -> None:
        self._count(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def await_join(self, member: GroupMember, answer: Callable[[JoinGroupResponse], None] | None) -> None:
        """The member's JoinGroup waits for its answer from now on. An earlier one of it is never answered, as its
        client has given it up."""
        self._joined += (answer is not None) - (member.join is not None)
        member.join = answer

    def answer_join(self, member: GroupMember, response: JoinGroupResponse) -> None:
        """Answer the member's JoinGroup, if one waits."""
        answer = member.join
        self.await_join(member, None)
        if answer is not None:
            answer(response)

    @property
    def joined(self) -> int:
        return self._joined

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(-member.size_bytes)
            self._supported.subtract(name for name, _ in member.protocols)
            self._joined -= member.join is not None
            if member.session is not None:
                member.session.cancel()
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        self.unsynced.pop(member_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_id: str, new_id: str, instance_id: str) -> GroupMember:
        """A static member has come back, under another member id."""
        member = self.members.pop(old_id)
        self._count(-member.size_bytes)
        member.id = new_id
        self._count(member.size_bytes)
        self.members[new_id] = member
        if self.leader == old_id:
            self.leader = new_id
        self.static_members[instance_id] = new_id
        return member

    def is_fenced(self, member_id: str, instance_id: str | None) -> bool:
        """Whether another member has come in this one's place, with the same group.instance.id."""
        known = None if instance_id is None else self.static_members.get(instance_id)
        return known is not None and known != member_id

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def unjoined(self) -> list[GroupMember]:
        """The members that have not asked to join the next generation."""
        return [member for member in self.members.values() if member.join is None]

    def has_all_joined(self) -> bool:
        return not self.pending and self._joined == len(self.members)

    def elect_joined_leader(self) -> bool:
        """Give the lead to a member that has joined, if the leader has not; return whether there is one."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is None:
            joined = next((member.id for member in self.members.values() if member.join is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    # Protocols.

    def accepts(self, protocol_type: str, protocols: Sequence[tuple[str, bytes]]) -> bool:
        """Return whether a member with these protocols may join: it must share one with all others."""
        if self.state is Empty:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and any(
            self._supported[name] == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The way to assign that most members prefer, among those that all can take part in."""
        candidates = {name for name, count in self._supported.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def begin_generation(self, wall_ms: int) -> None:
        self.generation += 1
        if self.members:
            self.protocol = self.select_protocol()
            self.topics = self._subscribed()
            self.move(CompletingRebalance, wall_ms)
        else:
            self.protocol = None
            self.topics = self._subscribed()
            self.move(Empty, wall_ms)
        self.unsynced.clear()

    def _subscribed(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        try:
            return frozenset(
                topic for member in self.members.values() for topic in subscribed_topics(member.metadata(self.protocol))
            )
        except (struct.error, UnicodeDecodeError, IndexError):
            return None  # a client's own format under the consumers' name

    def is_subscribed(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def described_members(self) -> tuple[JoinGroupMember, ...]:
        """For the leader, which assigns."""
        assert self.protocol is not None
        return tuple(
            JoinGroupMember(member.id, member.metadata(self.protocol), member.instance_id)
            for member in self.members.values()
        )

    # As a record of __consumer_offsets.

    def recorded(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        protocol = self.protocol
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            protocol,
            self.leader,
            tuple(
                GroupMetadataMember(
                    member.id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.metadata(protocol) if protocol is not None else b"",
                    assignments.get(member.id, b""),
                    member.rebalance_timeout_ms,
                    member.instance_id,
                )
                for member in self.members.values()
            ),
            self.since_ms,
        )

    @classmethod
    def of_record(cls, group_id: str, value: GroupMetadataValue) -> ConsumerGroup:
        group = cls(
            group_id,
            Stable if value.members else Empty,
            value.current_state_timestamp,
            value.protocol_type or None,
            value.protocol,
            value.generation,
            value.leader,
        )
        for one in value.members:
            timeout_ms = one.rebalance_timeout_ms if one.rebalance_timeout_ms >= 0 else one.session_timeout_ms
            member = GroupMember(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host,
                one.session_timeout_ms,
                timeout_ms,
                ((value.protocol or "", joined([one.subscription])),),
                joined([one.assignment]),
            )
            group.add(member, value.protocol_type)
        group.topics = group._subscribed()
        return group

    # Offsets.

    def commit(self, key: TopicPartition, committed: CommittedOffset) -> None:
        """Take an offset that was appended, unless a later one was taken before."""
        known = self.offsets.get(key)
        if known is None or known.appended_at <= committed.appended_at:
            self.offsets[key] = committed

    def is_unstable(self, key: TopicPartition) -> bool:
        """Whether a transaction that has not ended has committed another offset."""
        return any(key in offsets for offsets in self.open_offsets.values())

    def commit_open(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """A transaction commits these, if it commits."""
        self.open_offsets.setdefault(producer_id, {}).update(offsets)

    def drop_open(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These were not written, unless the transaction has sent others since."""
        held = self.open_offsets.get(producer_id, {})
        for key, committed in offsets.items():
            if held.get(key) is committed:
                del held[key]
        if not held:
            self.open_offsets.pop(producer_id, None)

    def drop_all_open(self, partitions: Collection[TopicPartition]) -> None:
        """What open transactions have committed for these partitions does not count, however they end."""
        for producer_id, held in tuple(self.open_offsets.items()):
            for key in [key for key in held if key in partitions]:
                del held[key]
            if not held:
                del self.open_offsets[producer_id]

    def end_transaction(self, producer_id: int, *, commits: bool) -> None:
        """The marker is in the log: what the transaction has committed counts, or is dropped."""
        for key, committed in self.open_offsets.pop(producer_id, {}).items():
            if commits and committed.appended_at >= 0:
                self.commit(key, committed)

    def expired_offsets(self, now_ms: int, retention_ms: int) -> Iterator[TopicPartition]:
        """Yield the partitions whose offsets are kept no longer (KIP-211).

        An offset of a group without members expires when the group has been empty for the retention; of a group that
        never had members, when it was committed so long ago; of a group of consumers, also when no member subscribes
        to its topic any more.
        """
        if self.protocol_type is None:
            idle_since = None
        elif self.state is Empty:
            idle_since = self.since_ms
        elif self.state is Stable and self.topics is not None:
            idle_since = None
        else:
            return
        for key, committed in self.offsets.items():
            if self.state is Stable and self.is_subscribed(key[0]):
                continue
            since_ms = committed.committed_ms if idle_since is None or idle_since < 0 else idle_since
            until_ms = since_ms + retention_ms if committed.expires_ms < 0 else committed.expires_ms
            if now_ms >= until_ms:
                yield key

    @property
    def can_rebalance(self) -> bool:
        return self.state in GROUP.valid_sources(PreparingRebalance)


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a consumer's subscription: the beginning that all versions of its metadata share."""
    (count,) = struct.unpack_from(">i", metadata, 2)
    topics, position = [], 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, position)
        if length < 0 or position + 2 + length > len(metadata):
            raise IndexError(position)
        topics.append(metadata[position + 2 : position + 2 + length].decode())
        position += 2 + length
    return topics
