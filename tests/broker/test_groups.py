"""Consumer groups at their coordinator: joins, assignments, heartbeats, offsets, and what is read back from the log."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from controller.broker.coordinated_topic import READ_AGAIN_MS, partition_of
from controller.broker.groups.bounds import MEMBER_BYTES, PENDING_MAX
from controller.broker.groups.coordinator import HOLD_MS
from controller.broker.groups.group import ConsumerGroup
from controller.broker.groups.handlers import java_address
from controller.broker.groups.offsets_topic import (
    OFFSETS_TOPIC,
    CommittedOffset,
    offset_key,
    offset_value,
    read_group,
    read_key,
    read_offset,
)
from controller.broker.groups.store import GroupStore
from controller.broker.request_context import finish
from controller.protocol import LEADER_DURING_DELETE
from controller.protocol.client import ApiVersionsRequest, FindCoordinatorRequest
from controller.protocol.codec import ApiKey
from controller.protocol.control import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import joined
from controller.protocol.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    GroupMetadataKey,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from controller.storage import PartitionLog
from controller.storage.batches import HEADER_BYTES, Record, decode_records, encode_batch, header_at
from controller.storage.errors import LogOffline
from tests.broker.data_harness import DataBroker
from tests.broker.harness import BROKER_EPOCH, Deferred, metadata
from tests.broker.test_upkeep_on_devices import Jobs

SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
"""A consumer that subscribes to the topic `t`: version 0, one topic, no user data."""
TRANSACTIONAL, CONTROL = 0x10, 0x20
"""Bits of a batch's attributes."""
INITIAL_DELAY_MS = 3_000
SESSION_MS, REBALANCE_MS = 10_000, 60_000
RETENTION_CHECK_MS = 600_000


class Coordinator(DataBroker):
    """Broker 1 leads the only partition of __consumer_offsets, and is its only replica in sync."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = self.lead(OFFSETS_TOPIC, isr=(1,))
        self.clock.step()  # what is in the log is read
        self.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("kept", 0, 1)))

    @property
    def store(self) -> GroupStore:
        assert self.broker.groups is not None
        return self.broker.groups._store

    def wait(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)

    def join(
        self,
        member: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        version: int = 7,
        kind: str = "consumer",
        metadata: bytes = SUBSCRIPTION,
    ) -> Deferred:
        given = tuple(JoinGroupProtocol(name, metadata) for name in protocols)
        request = JoinGroupRequest(group, SESSION_MS, member, kind, given, REBALANCE_MS, instance)
        return self.begin(ApiKey.JOIN_GROUP, request, version)

    def enter(self, **given: Any) -> tuple[str, Deferred]:
        """Join as clients do: with the id that the first answer gives."""
        first = self.join(**given).value()
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **given)

    def sync(self, member: str, generation: int, assignments: dict[str, bytes] | None = None) -> Deferred:
        given = tuple(SyncGroupAssignment(name, data) for name, data in (assignments or {}).items())
        return self.begin(ApiKey.SYNC_GROUP, SyncGroupRequest("g", generation, member, given))

    def heartbeat(self, member: str, generation: int) -> ErrorCode:
        return ErrorCode(self.ask(ApiKey.HEARTBEAT, HeartbeatRequest("g", generation, member)).error_code)

    def commit(
        self, offset: int, member: str = "", generation: int = -1, *, group: str = "g", metadata: str | None = ""
    ) -> ErrorCode:
        topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, offset, metadata),)),)
        answer = self.ask(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group, topics, generation, member))
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def committed(self, group: str = "g") -> int:
        answer = self.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group, (OffsetFetchTopic("t", (0,)),)))
        assert answer.error_code == ErrorCode.NONE
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset

    def described(self, group: str = "g") -> Any:
        (answer,) = self.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest((group,))).groups
        return answer

    def stable(self, count: int = 1) -> tuple[list[str], int]:
        """A group of so many members, each with its id as its assignment. Their ids, the leader's first."""
        joins = [self.enter() for _ in range(count)]
        self.wait(INITIAL_DELAY_MS * (2 if count > 1 else 1))
        answers = [join.value() for _, join in joins]
        members = [answer.member_id for answer in answers]
        generation = answers[0].generation_id
        syncs = [self.sync(one, generation) for one in members[1:]]
        leader = self.sync(members[0], generation, {one: one.encode() for one in members})
        assert leader.value().assignment == members[0].encode()
        assert [one.value().assignment for one in syncs] == [one.encode() for one in members[1:]]
        return members, generation

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        log = self.offsets.log
        assert log is not None
        found, offset = [], log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, 1).read()
            header = header_at(data, 0, len(data))
            payload = memoryview(data)[HEADER_BYTES : header.size_bytes]
            found += [(record.key, record.value) for record in decode_records(header, payload)]
            offset = header.next_offset
        return found


@pytest.fixture
def broker() -> Coordinator:
    return Coordinator()


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("hello", 22), ("Ea", 36), ("FB", 36), ("\U0001f600", 49), ("polygenelubricants", 0)],
)
def test_a_group_belongs_to_the_partition_that_java_computes(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


def test_the_first_join_gets_a_member_id_and_the_second_an_answer_after_the_delay(
    broker: Coordinator,
) -> None:
    member, join = broker.enter()
    broker.wait(INITIAL_DELAY_MS - 1)
    assert not join.answered
    broker.wait(1)
    answer = join.value()
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (ErrorCode.NONE, 1, "range")
    assert answer.leader == answer.member_id == member
    assert [(one.member_id, bytes(one.metadata)) for one in answer.members] == [(member, SUBSCRIPTION)]


def test_a_client_that_knows_no_required_ids_joins_at_once(broker: Coordinator) -> None:
    join = broker.join(version=3)
    broker.wait(INITIAL_DELAY_MS)
    assert join.value().error_code == ErrorCode.NONE


def test_members_that_come_within_the_delay_are_in_the_first_generation(broker: Coordinator) -> None:
    joins = [broker.enter()[1]]
    broker.wait(INITIAL_DELAY_MS - 1)
    joins.append(broker.enter()[1])
    broker.wait(INITIAL_DELAY_MS)
    assert not joins[0].answered, "the wait is prolonged, as a member has come"
    broker.wait(1)
    first, second = (join.value() for join in joins)
    assert (first.generation_id, second.generation_id) == (1, 1)
    assert (len(first.members), len(second.members)) == (2, 0), "the leader alone gets the members"
    assert first.leader == second.leader == first.member_id


def test_assignments_go_out_when_the_leader_has_sent_them(broker: Coordinator) -> None:
    members, generation = broker.stable(3)
    assert generation == 1
    described = broker.described()
    assert (described.group_state, described.protocol_data, described.protocol_type) == ("Stable", "range", "consumer")
    assert [bytes(one.member_assignment) for one in described.members] == [one.encode() for one in members]
    assert broker.sync(members[1], 1).value().assignment == members[1].encode(), "a member may ask again"


def test_a_new_member_makes_the_others_join_again(broker: Coordinator) -> None:
    members, _ = broker.stable(2)
    assert broker.heartbeat(members[0], 1) == ErrorCode.NONE
    new, join = broker.enter()
    assert broker.heartbeat(members[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.sync(members[0], 1).value().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = [broker.join(one) for one in members]
    assert [one.value().generation_id for one in (*again, join)] == [2, 2, 2]
    assert broker.described().group_state == "CompletingRebalance"
    assert broker.heartbeat(new, 2) == ErrorCode.NONE
    assert broker.heartbeat(new, 1) == ErrorCode.ILLEGAL_GENERATION


def test_who_does_not_join_again_in_time_is_removed(broker: Coordinator) -> None:
    members, _ = broker.stable(2)
    left = broker.join(members[0])
    for _ in range(REBALANCE_MS // 5_000):  # the other one sends heartbeats, and does not join
        broker.heartbeat(members[1], 1)
        broker.wait(5_000)
    assert [one.member_id for one in left.value().members] == [members[0]]
    assert broker.heartbeat(members[1], 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_not_heard_from_is_removed(broker: Coordinator) -> None:
    members, _ = broker.stable(2)
    broker.wait(SESSION_MS - 1)
    broker.heartbeat(members[0], 1)
    broker.wait(1)
    assert broker.heartbeat(members[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.heartbeat(members[1], 1) == ErrorCode.UNKNOWN_MEMBER_ID
    broker.wait(SESSION_MS)
    broker.wait(REBALANCE_MS)
    assert (broker.described().group_state, broker.described().members) == ("Empty", ())


def test_a_member_that_never_asks_for_its_assignment_is_removed(broker: Coordinator) -> None:
    joins = [broker.enter()[1] for _ in range(2)]
    broker.wait(2 * INITIAL_DELAY_MS)
    members = [join.value().member_id for join in joins]
    broker.sync(members[0], 1, {}).value()
    for _ in range(REBALANCE_MS // 5_000):
        for one in members:
            broker.heartbeat(one, 1)
        broker.wait(5_000)
    assert broker.heartbeat(members[1], 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_leaves_is_gone_and_the_others_rebalance(broker: Coordinator) -> None:
    members, _ = broker.stable(2)
    leave = LeaveGroupRequest("g", (LeavingMember(members[0]), LeavingMember("unknown")))
    answer = broker.ask(ApiKey.LEAVE_GROUP, leave)
    assert [one.error_code for one in answer.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert broker.heartbeat(members[1], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.join(members[1]).value().leader == members[1]
    old = LeaveGroupRequest("g", (LeavingMember("unknown"),))
    assert broker.ask(ApiKey.LEAVE_GROUP, old, 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_restarts_keeps_its_assignment_and_fences_its_former_self(broker: Coordinator) -> None:
    join = broker.join(instance="i-1")
    broker.wait(INITIAL_DELAY_MS)
    old = join.value().member_id
    broker.sync(old, 1, {old: b"mine"}).value()
    again = broker.join(instance="i-1").value()
    assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
    assert again.member_id != old
    assert again.leader == old, "it must not assign in a stable group"
    assert broker.sync(again.member_id, 1).value().assignment == b"mine"
    fenced = broker.ask(ApiKey.HEARTBEAT, HeartbeatRequest("g", 1, old, "i-1"))
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID


def test_the_way_to_assign_that_most_prefer_is_taken_among_those_of_all(broker: Coordinator) -> None:
    joins = [
        broker.enter(protocols=names)[1]
        for names in (("sticky", "range"), ("range", "sticky"), ("range", "other", "sticky"))
    ]
    assert broker.join(protocols=("alone",)).value().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.join(kind="connect").value().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broker.wait(3 * INITIAL_DELAY_MS)
    assert {join.value().protocol_name for join in joins} == {"range"}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (JoinGroupRequest("", 10_000, "", "consumer", (JoinGroupProtocol("r", b""),)), ErrorCode.INVALID_GROUP_ID),
        (JoinGroupRequest("g", 1, "", "consumer", (JoinGroupProtocol("r", b""),)), ErrorCode.INVALID_SESSION_TIMEOUT),
        (JoinGroupRequest("g", 10_000, "who", "consumer", ()), ErrorCode.UNKNOWN_MEMBER_ID),
        (JoinGroupRequest("g", 10_000, "", "consumer", ()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_can_not_be_is_refused(broker: Coordinator, request_: JoinGroupRequest, error: ErrorCode) -> None:
    assert broker.ask(ApiKey.JOIN_GROUP, request_).error_code == error


# Offsets.


def test_what_is_committed_is_fetched_also_without_members(broker: Coordinator) -> None:
    assert broker.committed() == -1
    assert broker.commit(7) == ErrorCode.NONE
    assert broker.committed() == 7
    everything = broker.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest("g", None))
    assert [(topic.name, [one.committed_offset for one in topic.partitions]) for topic in everything.topics] == [
        ("t", [7])
    ]


def test_only_a_member_of_the_generation_commits(broker: Coordinator) -> None:
    (member,), generation = broker.stable()
    assert broker.commit(5, member, generation) == ErrorCode.NONE
    assert broker.commit(6, member, generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert broker.commit(6, "unknown", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.commit(6) == ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"
    assert broker.commit(6, group="other", generation=3) == ErrorCode.ILLEGAL_GENERATION
    assert broker.committed() == 5


def test_a_commit_whose_metadata_is_too_long_is_refused_alone(broker: Coordinator) -> None:
    assert broker.commit(1, metadata="x" * 4_097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert broker.commit(1, metadata="x" * 4_096) == ErrorCode.NONE


def test_offsets_and_groups_are_deleted_when_nobody_uses_them(broker: Coordinator) -> None:
    (member,), generation = broker.stable()
    broker.commit(5, member, generation)

    def delete_offset() -> ErrorCode:
        topics = (OffsetDeleteTopic("t", (OffsetDeletePartition(0),)),)
        answer = broker.ask(ApiKey.OFFSET_DELETE, OffsetDeleteRequest("g", topics))
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def delete_group(name: str) -> ErrorCode:
        return ErrorCode(broker.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest((name,))).results[0].error_code)

    assert delete_offset() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_group("g") == ErrorCode.NON_EMPTY_GROUP
    broker.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", (LeavingMember(member),)))
    broker.wait(REBALANCE_MS)
    assert delete_offset() == ErrorCode.NONE
    assert broker.committed() == -1
    assert delete_group("g") == ErrorCode.NONE
    assert delete_group("g") == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.described().group_state == "Dead"


def test_offsets_expire_when_a_group_has_been_empty_for_the_retention(broker: Coordinator) -> None:
    (member,), generation = broker.stable()
    broker.commit(5, member, generation)
    broker.commit(9, group="keeps offsets alone")
    groups = broker.broker.groups
    assert groups is not None
    week_ms = 7 * 24 * 3_600_000
    for _ in range(2 * week_ms // SESSION_MS // 4_000 + 1):
        broker.heartbeat(member, generation)
    groups.expire_offsets()
    assert broker.committed() == 5
    broker.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", (LeavingMember(member),)))
    broker.wait(week_ms)
    groups.expire_offsets()
    assert (broker.committed(), broker.committed("keeps offsets alone")) == (-1, -1)
    assert broker.ask(ApiKey.LIST_GROUPS, ListGroupsRequest()).groups == ()


# What lasts.


def test_the_records_are_kafkas(broker: Coordinator) -> None:
    (member,), generation = broker.stable()
    broker.commit(5, member, generation)
    (group_key, group), (offset_key, offset) = broker.records()
    assert group_key is not None
    assert group is not None
    assert offset_key is not None
    assert offset is not None
    key, value = read_key(group_key), read_group(group)
    assert group_key[:2] == b"\x00\x02"
    assert isinstance(key, GroupMetadataKey)
    assert (value.generation, value.protocol, value.leader) == (1, "range", member)
    assert [joined([one.assignment]) for one in value.members] == [member.encode()]
    assert (offset_key[:2], offset[:2]) == (b"\x00\x01", b"\x00\x03")
    assert read_offset(offset, 1).offset == 5


def test_who_comes_to_lead_reads_groups_and_offsets_back(broker: Coordinator) -> None:
    (member,), generation = broker.stable()
    broker.commit(5, member, generation)
    broker.commit(6, member, generation)
    broker.follow(OFFSETS_TOPIC, epoch=1)
    assert broker.heartbeat(member, generation) == ErrorCode.NOT_COORDINATOR
    broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1,))
    refused = broker.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest("g", (OffsetFetchTopic("t", (0,)),)))
    assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.clock.step()
    assert broker.heartbeat(member, generation) == ErrorCode.NONE
    assert broker.committed() == 6
    assert broker.sync(member, generation).value().assignment == member.encode()


def loading(broker: Coordinator) -> tuple[str, int]:
    """A member and its generation, which were read, and are not replicated yet."""
    (member,), generation = broker.stable()
    broker.follow(OFFSETS_TOPIC, epoch=1)
    broker.offsets.high_watermark = 0
    broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1, 2))
    broker.clock.step()
    return member, generation


@pytest.mark.parametrize("loses_lead", [False, True])
def test_what_was_read_counts_once_it_is_replicated(broker: Coordinator, loses_lead: bool) -> None:
    """The record of the assignment may be lost with this leader: no member may get it before."""
    member, generation = loading(broker)
    broker.wait(SESSION_MS)
    assert broker.sync(member, generation).value().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    join = broker.join(member)
    if loses_lead:
        broker.follow(OFFSETS_TOPIC, epoch=3)
        assert join.value().error_code == ErrorCode.NOT_COORDINATOR
        assert broker.heartbeat(member, generation) == ErrorCode.NOT_COORDINATOR
        broker.lead(OFFSETS_TOPIC, epoch=4, isr=(1, 2))
        broker.clock.step()
        join = broker.join(member)
    assert not join.answered
    broker.follower_fetches(broker.offsets)
    broker.clock.step()
    assert join.value().generation_id == generation + 1  # the leader joins again
    assert broker.sync(member, generation + 1, {member: b"x"}).answered is False  # not before it is replicated


def test_a_member_that_joins_while_its_group_is_loaded_waits_for_a_while(
    broker: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, generation = loading(broker)
    joins = [broker.join(member), broker.join()]
    broker.wait(HOLD_MS - 1)
    assert not any(join.answered for join in joins)
    broker.wait(1)
    assert [join.value().error_code for join in joins] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    # What waits is bounded, as what members hold is.
    monkeypatch.setattr(GroupStore, "has_place_for", lambda _store, more_bytes: more_bytes < 3 * MEMBER_BYTES)
    joins = [broker.join(member) for _ in range(3)]
    assert [join.answered for join in joins] == [False, False, True]
    broker.follower_fetches(broker.offsets)
    broker.clock.step()
    assert joins[1].value().error_code == ErrorCode.NONE
    assert broker.heartbeat(member, generation + 1) == ErrorCode.NONE


def test_nothing_counts_that_was_read_while_the_partition_is_deleted(broker: Coordinator) -> None:
    """It leads no more, though its files are not removed yet: what it has read is replicated by nobody."""
    (member,), generation = broker.stable()
    broker.follow(OFFSETS_TOPIC, epoch=1)
    broker.offsets.high_watermark = 0
    broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1, 2))
    jobs = Jobs()
    broker.broker.drive = jobs.drive
    states = (StopReplicaPartitionState(0, 2, delete_partition=True),)
    stopped = broker.begin(
        ApiKey.STOP_REPLICA, StopReplicaRequest(1, 1, (StopReplicaTopicState(OFFSETS_TOPIC, states),), BROKER_EPOCH), 3
    )
    broker.broker.drive = finish
    broker.clock.step()  # the log is read
    assert broker.sync(member, generation).value().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    while jobs.waiting:
        jobs.run()
    assert stopped.value().partition_errors[0].error_code == ErrorCode.NONE
    assert broker.heartbeat(member, generation) == ErrorCode.NOT_COORDINATOR


def test_a_log_whose_device_is_lost_is_read_again(broker: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its groups are not taken for none: that would begin their generations anew."""
    broker.commit(5)
    broker.follow(OFFSETS_TOPIC, epoch=1)
    with monkeypatch.context() as lost:
        lost.setattr(PartitionLog, "read_cached", Mock(side_effect=LogOffline("/hdd", OSError("lost"))))
        broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1,))
        broker.wait(READ_AGAIN_MS)
        assert broker.commit(6) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.wait(READ_AGAIN_MS)
    assert broker.committed() == 5


def test_members_that_wait_are_answered_when_the_lead_is_lost(broker: Coordinator) -> None:
    _, join = broker.enter()
    broker.follow(OFFSETS_TOPIC, epoch=1)
    assert join.value().error_code == ErrorCode.NOT_COORDINATOR
    broker.wait(10 * SESSION_MS)


def test_a_deleted_group_is_not_read_back(broker: Coordinator) -> None:
    broker.commit(5)
    broker.ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(("g",)))
    broker.follow(OFFSETS_TOPIC, epoch=1)
    broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1,))
    broker.clock.step()
    assert broker.committed() == -1


@pytest.mark.parametrize(("ends_with", "offset"), [(b"\x00\x00\x00\x01", 8), (b"\x00\x00\x00\x00", 5), (None, 5)])
def test_an_offset_of_a_transaction_counts_once_its_commit_marker_is_read(
    broker: Coordinator, ends_with: bytes | None, offset: int
) -> None:
    """As a Kafka broker wrote them, which coordinated the group before."""
    broker.commit(5)
    broker.follow(OFFSETS_TOPIC, epoch=1)
    log = broker.offsets.log
    assert log is not None
    given = offset_value(CommittedOffset(8, -1, "", broker.clock.wall_ms()))
    record = Record(log.log_end_offset, 0, offset_key("g", "t", 0), given)
    log.append_as_follower(encode_batch([record], leader_epoch=1, attributes=TRANSACTIONAL, producer_id=7))
    if ends_with is not None:
        marker = Record(log.log_end_offset, 0, ends_with, bytes(6))  # version and coordinator epoch
        log.append_as_follower(
            encode_batch([marker], leader_epoch=1, attributes=TRANSACTIONAL | CONTROL, producer_id=7)
        )
    broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1,))
    broker.clock.step()
    assert broker.committed() == offset


@pytest.mark.parametrize(
    "key", [None, b"", b"\x00", b"\x00\x09", b"\xff\xff", b"\x00\x01\x00\xffg", b"\x00\x02\xff\xff"]
)
def test_a_record_that_can_not_be_read_is_reported_and_the_others_count(broker: Coordinator, key: bytes | None) -> None:
    broker.commit(5)
    broker.follow(OFFSETS_TOPIC, epoch=1)
    log = broker.offsets.log
    assert log is not None
    log.append_as_follower(encode_batch([Record(log.log_end_offset, 0, key, b"\x00")], leader_epoch=1))
    key_of_ours = offset_key("g", "t", 0)
    log.append_as_follower(encode_batch([Record(log.log_end_offset, 0, key_of_ours, b"\x00\x09")], leader_epoch=1))
    broker.lead(OFFSETS_TOPIC, epoch=2, isr=(1,))
    broker.clock.step()
    assert broker.committed() == 5
    assert len([note for note in broker.trace.notes("error") if note.endswith("it is passed over")]) == 2


@pytest.mark.parametrize("acks", [1, -1])
def test_clients_do_not_write_to_the_topic(broker: Coordinator, acks: int) -> None:
    batch = encode_batch([Record(0, 0, offset_key("g", "t", 0), None)])
    request = ProduceRequest(acks, 1_000, (ProduceTopic(OFFSETS_TOPIC, (ProducePartition(0, batch),)),))
    answer = broker.ask(ApiKey.PRODUCE, request, 8).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert answer.error_message == "only brokers write to an internal topic"
    assert broker.records() == []


def test_nothing_is_acknowledged_before_all_in_sync_have_it(broker: Coordinator) -> None:
    broker.lead(OFFSETS_TOPIC, epoch=1, isr=(1, 2))
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 3, ""),)),)
    commit = broker.begin(ApiKey.OFFSET_COMMIT, OffsetCommitRequest("g", topics))
    assert not commit.answered
    assert broker.committed() == -1
    broker.wait(5_000)
    assert commit.value().topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT


# Finding a coordinator.


def test_every_client_is_offered_the_requests_about_groups(broker: Coordinator) -> None:
    answer = broker.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("apache-kafka-java", "2.8.2"), 3)
    offered = {one.api_key: one.max_version for one in answer.api_keys}
    assert (offered[ApiKey.FIND_COORDINATOR], offered[ApiKey.JOIN_GROUP], offered[ApiKey.OFFSET_FETCH]) == (3, 7, 7)


def test_the_leader_of_its_partition_coordinates_a_group(broker: Coordinator) -> None:
    answer = broker.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g"))
    assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, 1)


def test_a_key_of_an_unknown_type_has_no_coordinator() -> None:
    broker = DataBroker()
    wrong = broker.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g", 2))
    assert (wrong.error_code, wrong.error_message) == (ErrorCode.INVALID_REQUEST, "Key type 2: expected 0 or 1.")


def test_a_retention_beyond_all_times_is_kept_for_good(broker: Coordinator) -> None:
    """Found by the swarm's hostile clients (seed 3208): the time of expiry did not fit its field."""
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 7, ""),)),)
    request = OffsetCommitRequest("g", topics, -1, "", retention_time_ms=(1 << 63) - 1)
    answer = broker.begin(ApiKey.OFFSET_COMMIT, request, 2).value()
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert broker.committed() == 7


def test_the_offsets_of_a_deleted_topic_are_deleted(broker: Coordinator) -> None:
    members, generation = broker.stable()
    assert broker.commit(5, members[0], generation) == ErrorCode.NONE
    assert broker.commit(6, group="alone") == ErrorCode.NONE
    other = OffsetCommitTopic("kept", (OffsetCommitPartition(0, 7, ""),))
    broker.ask(ApiKey.OFFSET_COMMIT, OffsetCommitRequest("g", (other,), generation, members[0]))
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, LEADER_DURING_DELETE)))
    assert broker.committed() == broker.committed("alone") == -1
    assert broker.described().group_state == "Stable"
    assert broker.described("alone").group_state == "Dead"
    left = {key: value for key, value in broker.records() if read_key(key) != GroupMetadataKey("g")}
    assert [value is None for value in left.values()] == [True, True, False], "the other topic's is there"


def test_an_offset_of_an_open_transaction_for_a_deleted_topic_does_not_count() -> None:
    group = ConsumerGroup("g")
    committed = CommittedOffset(1, -1, "", 0, appended_at=3)
    group.commit_open(7, {("t", 0): committed, ("kept", 0): committed})
    group.commit_open(8, {("t", 0): committed})
    group.drop_all_open({("t", 0)})
    for producer_id in (7, 8):
        group.end_transaction(producer_id, commits=True)
    assert list(group.offsets) == [("kept", 0)]


def test_with_another_number_of_partitions_a_group_belongs_to_another_coordinator(broker: Coordinator) -> None:
    """As after the topic was deleted and created again, or has got more partitions."""
    elsewhere, here = (next(str(n) for n in range(100) if partition_of(str(n), 5) == index) for index in (3, 0))
    for group in (elsewhere, here):
        assert broker.commit(5, group=group) == ErrorCode.NONE
    _, waiting = broker.enter(group=elsewhere)
    broker.ask(ApiKey.UPDATE_METADATA, metadata(*((OFFSETS_TOPIC, index, 1) for index in range(5))))
    assert waiting.value().error_code == ErrorCode.NOT_COORDINATOR
    broker.clock.step()
    assert broker.commit(6, group=elsewhere) == ErrorCode.NOT_COORDINATOR
    assert broker.ask(ApiKey.HEARTBEAT, HeartbeatRequest(elsewhere, 1, "m")).error_code == ErrorCode.NOT_COORDINATOR
    assert broker.join(group=elsewhere).value().error_code == ErrorCode.NOT_COORDINATOR
    assert [one.group_id for one in broker.ask(ApiKey.LIST_GROUPS, ListGroupsRequest()).groups] == [here]
    assert broker.committed(here) == 5
    broker.wait(10 * RETENTION_CHECK_MS)
    assert broker.trace.notes("error") == []


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("192.168.7.1", "/192.168.7.1"),
        ("::1", "/0:0:0:0:0:0:0:1"),
        ("fe80::a0:1%eth0", "/fe80:0:0:0:0:0:a0:1"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_a_members_host_is_its_clients_address_as_java_writes_it(broker: Coordinator, host: str, shown: str) -> None:
    assert java_address(host) == shown


def test_a_described_member_has_its_clients_address(broker: Coordinator) -> None:
    broker.stable()
    (member,) = broker.described().members
    assert member.client_host == "/127.0.0.1"


def test_ids_that_nobody_uses_are_bounded_and_their_groups_forgotten(broker: Coordinator) -> None:
    coordinator, store = broker.broker.groups, broker.store
    assert coordinator is not None
    first = broker.join(group="first").value()
    for number in range(PENDING_MAX):
        assert broker.join(group=f"g{number}").value().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert store.tally.groups == PENDING_MAX
    assert broker.join(first.member_id, group="first").value().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    broker.wait(SESSION_MS)
    assert (store.tally.groups, store.tally.member_bytes) == (0, 0)
    assert coordinator.groups()[1] == []


def test_members_are_refused_beyond_their_memory_and_again_let_in_when_others_leave(broker: Coordinator) -> None:
    members, generation = broker.stable()
    limit = broker.store.tally.member_bytes + 2 * MEMBER_BYTES
    object.__setattr__(broker.broker.groups._settings, "group_members_max_bytes", limit)  # type: ignore[union-attr]
    large = SUBSCRIPTION + bytes(2 * MEMBER_BYTES)
    refused = broker.join(group="other", metadata=large).value()
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    larger = large + bytes(2 * MEMBER_BYTES)
    assert broker.join(members[0], metadata=larger).value().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert broker.heartbeat(members[0], generation) == ErrorCode.NONE
    assert broker.join(members[0]).value().error_code == ErrorCode.NONE, "it joins again with what it had"
    broker.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", (LeavingMember(members[0]),)))
    assert broker.join(group="other", metadata=large).value().error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_groups_beyond_their_number_are_refused(broker: Coordinator) -> None:
    assert broker.commit(5) == ErrorCode.NONE
    object.__setattr__(broker.broker.groups._settings, "groups_max", 1)  # type: ignore[union-attr]
    assert broker.commit(6) == ErrorCode.NONE
    assert broker.commit(5, group="other") == ErrorCode.POLICY_VIOLATION
    assert broker.join(group="other").value().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert broker.join().value().error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_offsets_of_an_unknown_topic_are_refused(broker: Coordinator) -> None:
    there = OffsetCommitTopic("t", (OffsetCommitPartition(0, 3, ""), OffsetCommitPartition(1, 3, "")))
    none = OffsetCommitTopic("none", (OffsetCommitPartition(0, 3, ""),))
    answer = broker.ask(ApiKey.OFFSET_COMMIT, OffsetCommitRequest("g", (there, none)))
    codes = [[one.error_code for one in topic.partitions] for topic in answer.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[ErrorCode.NONE, unknown], [unknown]]
    wanted = (OffsetDeleteTopic("none", (OffsetDeletePartition(0),)),)
    deleted = broker.ask(ApiKey.OFFSET_DELETE, OffsetDeleteRequest("g", wanted))
    assert deleted.topics[0].partitions[0].error_code == unknown
