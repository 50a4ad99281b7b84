"""Messages of consumer groups: joining, assigning, heartbeats, committed offsets, and what an administrator asks.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks. Metadata and assignments of members are bytes that only clients read.
"""

from __future__ import annotations

from controller.protocol.client import NO_AUTHORIZED_OPERATIONS
from controller.protocol.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    Records,
    RequestValue,
    ResponseValue,
    String,
    Structure,
    field,
)

NO_GENERATION = -1
NO_MEMBER = ""
"""The member id of a member that has none yet."""
NO_OFFSET = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1


class JoinGroupProtocol(Structure):
    """A way to assign that a member can take part in, and what the leader needs to know of the member for it."""

    name: String
    metadata: Records


class JoinGroupRequest(RequestValue, first=0, last=7, flexible=6):
    """`rebalance_timeout_ms` -1: the session timeout (version 0)."""

    group_id: String
    session_timeout_ms: Int32
    member_id: String
    protocol_type: String
    protocols: tuple[JoinGroupProtocol, ...]
    rebalance_timeout_ms: Int32 = field(default=-1, since=1, before="member_id")
    group_instance_id: String | None = field(default=None, since=5, must=True, before="protocol_type")


class JoinGroupMember(Structure):
    member_id: String
    metadata: Records
    group_instance_id: String | None = field(default=None, since=5, before="metadata")


class JoinGroupResponse(ResponseValue, first=0, last=7, flexible=6):
    """`members` for the leader alone. `protocol_name` is null from version 7 on where there is none."""

    error_code: Int16
    generation_id: Int32
    protocol_name: String | None = field(nullable=7)
    leader: String
    member_id: String
    members: tuple[JoinGroupMember, ...] = ()
    protocol_type: String | None = field(default=None, since=7, before="protocol_name")
    throttle_time_ms: Int32 = field(default=0, since=2, before="error_code")


class SyncGroupAssignment(Structure):
    member_id: String
    assignment: Records


class SyncGroupRequest(RequestValue, first=0, last=5, flexible=4):
    """`assignments`: from the leader alone."""

    group_id: String
    generation_id: Int32
    member_id: String
    assignments: tuple[SyncGroupAssignment, ...]
    group_instance_id: String | None = field(default=None, since=3, must=True, before="assignments")
    protocol_type: String | None = field(default=None, since=5, before="assignments")
    protocol_name: String | None = field(default=None, since=5, before="assignments")


class SyncGroupResponse(ResponseValue, first=0, last=5, flexible=4):
    error_code: Int16
    assignment: Records
    protocol_type: String | None = field(default=None, since=5, before="assignment")
    protocol_name: String | None = field(default=None, since=5, before="assignment")
    throttle_time_ms: Int32 = field(default=0, since=1, before="error_code")


class HeartbeatRequest(RequestValue, first=0, last=4, flexible=4):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field(default=None, since=3, must=True)


class HeartbeatResponse(ResponseValue, first=0, last=4, flexible=4):
    error_code: Int16
    throttle_time_ms: Int32 = field(default=0, since=1, before="error_code")


class LeavingMember(Structure):
    member_id: String
    group_instance_id: String | None = field(default=None, since=3)


class LeaveGroupRequest(RequestValue, first=0, last=4, flexible=4):
    """Up to version 2 one member, named by its id alone."""

    group_id: String
    members: tuple[LeavingMember, ...] = field(inline_until=2, inline=("member_id",))


class LeftMember(Structure):
    member_id: String
    group_instance_id: String | None
    error_code: Int16


class LeaveGroupResponse(ResponseValue, first=0, last=4, flexible=4):
    error_code: Int16
    members: tuple[LeftMember, ...] = field(default=(), since=3)
    throttle_time_ms: Int32 = field(default=0, since=1, before="error_code")


class OffsetCommitPartition(Structure):
    partition_index: Int32
    committed_offset: Int64
    committed_metadata: String | None
    committed_leader_epoch: Int32 = field(default=NO_EPOCH, since=6, before="committed_metadata")
    commit_timestamp: Int64 = field(default=NO_TIMESTAMP, since=1, until=1, before="committed_metadata")


class OffsetCommitTopic(Structure):
    name: String
    partitions: tuple[OffsetCommitPartition, ...]


class OffsetCommitRequest(RequestValue, first=0, last=8, flexible=8):
    """`generation_id` -1: from a client that is no member of the group, which keeps offsets there alone."""

    group_id: String
    topics: tuple[OffsetCommitTopic, ...]
    generation_id: Int32 = field(default=NO_GENERATION, since=1, before="topics")
    member_id: String = field(default=NO_MEMBER, since=1, before="topics")
    group_instance_id: String | None = field(default=None, since=7, must=True, before="topics")
    retention_time_ms: Int64 = field(default=-1, since=2, until=4, before="topics")


class OffsetCommitPartitionResult(Structure):
    partition_index: Int32
    error_code: Int16


class OffsetCommitTopicResult(Structure):
    name: String
    partitions: tuple[OffsetCommitPartitionResult, ...]


class OffsetCommitResponse(ResponseValue, first=0, last=8, flexible=8):
    topics: tuple[OffsetCommitTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, since=3, before="topics")


class OffsetFetchTopic(Structure):
    name: String
    partition_indexes: tuple[Int32, ...]


class OffsetFetchRequest(RequestValue, first=0, last=7, flexible=6):
    """`topics` None: all that the group has committed."""

    group_id: String
    topics: tuple[OffsetFetchTopic, ...] | None = field(nullable=2)
    require_stable: Bool = field(default=False, since=7, must=True)


class OffsetFetchPartitionResult(Structure):
    """`committed_offset` -1: nothing is committed."""

    partition_index: Int32
    committed_offset: Int64
    metadata: String | None
    error_code: Int16
    committed_leader_epoch: Int32 = field(default=NO_EPOCH, since=5, before="metadata")


class OffsetFetchTopicResult(Structure):
    name: String
    partitions: tuple[OffsetFetchPartitionResult, ...]


class OffsetFetchResponse(ResponseValue, first=0, last=7, flexible=6):
    topics: tuple[OffsetFetchTopicResult, ...]
    error_code: Int16 = field(default=0, since=2)
    throttle_time_ms: Int32 = field(default=0, since=3, before="topics")


class OffsetDeletePartition(Structure):
    partition_index: Int32


class OffsetDeleteTopic(Structure):
    name: String
    partitions: tuple[OffsetDeletePartition, ...]


class OffsetDeleteRequest(RequestValue, first=0, last=0):
    group_id: String
    topics: tuple[OffsetDeleteTopic, ...]


class OffsetDeletePartitionResult(Structure):
    partition_index: Int32
    error_code: Int16


class OffsetDeleteTopicResult(Structure):
    name: String
    partitions: tuple[OffsetDeletePartitionResult, ...]


class OffsetDeleteResponse(ResponseValue, first=0, last=0):
    error_code: Int16
    topics: tuple[OffsetDeleteTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="topics")


class DescribeGroupsRequest(RequestValue, first=0, last=5, flexible=5):
    groups: tuple[String, ...]
    include_authorized_operations: Bool = field(default=False, since=3, must=True)


class DescribedGroupMember(Structure):
    member_id: String
    client_id: String
    client_host: String
    member_metadata: Records
    member_assignment: Records
    group_instance_id: String | None = field(default=None, since=4, before="client_id")


class DescribedGroup(Structure):
    error_code: Int16
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: Int32 = field(default=NO_AUTHORIZED_OPERATIONS, since=3)


class DescribeGroupsResponse(ResponseValue, first=0, last=5, flexible=5):
    groups: tuple[DescribedGroup, ...]
    throttle_time_ms: Int32 = field(default=0, since=1, before="groups")


class ListGroupsRequest(RequestValue, first=0, last=4, flexible=3):
    """`states_filter`: empty for groups in all states."""

    states_filter: tuple[String, ...] = field(default=(), since=4, must=True)


class ListedGroup(Structure):
    group_id: String
    protocol_type: String
    group_state: String = field(default="", since=4)


class ListGroupsResponse(ResponseValue, first=0, last=4, flexible=3):
    error_code: Int16
    groups: tuple[ListedGroup, ...]
    throttle_time_ms: Int32 = field(default=0, since=1, before="error_code")


class DeleteGroupsRequest(RequestValue, first=0, last=2, flexible=2):
    groups_names: tuple[String, ...]


class DeletedGroup(Structure):
    group_id: String
    error_code: Int16


class DeleteGroupsResponse(ResponseValue, first=0, last=2, flexible=2):
    results: tuple[DeletedGroup, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


# What the topic __consumer_offsets holds: a key and a value for each committed offset, and for each group. Both begin
# with their version as an int16.


class OffsetCommitKey(RequestValue, first=0, last=1):
    group: String
    topic: String
    partition: Int32


class OffsetCommitValue(RequestValue, first=0, last=3):
    offset: Int64
    metadata: String
    commit_timestamp: Int64
    leader_epoch: Int32 = field(default=NO_EPOCH, since=3, before="metadata")
    expire_timestamp: Int64 = field(default=NO_TIMESTAMP, since=1, until=1)


class GroupMetadataKey(RequestValue, first=2, last=2):
    group: String


class GroupMetadataMember(Structure):
    member_id: String
    client_id: String
    client_host: String
    session_timeout_ms: Int32
    subscription: Records
    assignment: Records
    rebalance_timeout_ms: Int32 = field(default=-1, since=1, before="session_timeout_ms")
    group_instance_id: String | None = field(default=None, since=3, before="client_id")


class GroupMetadataValue(RequestValue, first=0, last=3):
    protocol_type: String
    generation: Int32
    protocol: String | None
    leader: String | None
    members: tuple[GroupMetadataMember, ...]
    current_state_timestamp: Int64 = field(default=NO_TIMESTAMP, since=2, before="members")


# What members of consumer groups write into their metadata and assignments ("consumer"), after the version.
# Coordinators read nothing of it but the topics.


class ConsumerSubscription(RequestValue, first=0, last=0):
    topics: tuple[String, ...]
    user_data: Records | None = None


class ConsumerAssignedTopic(Structure):
    topic: String
    partitions: tuple[Int32, ...]


class ConsumerAssignment(RequestValue, first=0, last=0):
    topics: tuple[ConsumerAssignedTopic, ...]
    user_data: Records | None = None
