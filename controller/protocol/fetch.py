"""Messages of consumers and followers: records to read, offsets by time, offsets by leader epoch.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks.
"""

from __future__ import annotations

from controller.protocol.schema import (
    Int8,
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

# FetchRequest.replica_id, ListOffsetsRequest.replica_id, OffsetForLeaderEpochRequest.replica_id: who asks, if not a
# follower.
CONSUMER = -1
DEBUGGING_CONSUMER = -2

# isolation_level
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

# KIP-227: the pairs of session id and epoch by which a fetch session begins and ends.
NO_SESSION = 0
INITIAL_SESSION_EPOCH = 0
FINAL_SESSION_EPOCH = -1

# ListOffsetsRequest's timestamps that are none
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2

NO_LEADER_EPOCH = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1


class FetchPartition(Structure):
    """A partition of a fetch. `last_fetched_epoch` is the epoch of the record before `fetch_offset` (-1: none, or not
    sent), by which the leader detects a divergence. `log_start_offset` is a follower's own."""

    partition: Int32
    fetch_offset: Int64
    partition_max_bytes: Int32
    current_leader_epoch: Int32 = field(default=NO_LEADER_EPOCH, since=9, before="fetch_offset")
    last_fetched_epoch: Int32 = field(default=NO_LEADER_EPOCH, since=12, must=True, before="partition_max_bytes")
    log_start_offset: Int64 = field(default=NO_OFFSET, since=5, before="partition_max_bytes")


class FetchTopic(Structure):
    topic: String
    partitions: tuple[FetchPartition, ...]


class ForgottenTopic(Structure):
    topic: String
    partitions: tuple[Int32, ...]


class ReplicaState(Structure):
    """Which registration of a broker fetches: its czxid, -1 if it is not given. A tagged field of Fetch 15 (KIP-903),
    sent in version 12 already: Kafka 2.8 ignores tags that it does not know."""

    replica_id: Int32 = CONSUMER
    replica_epoch: Int64 = -1


class FetchRequest(RequestValue, first=0, last=12, flexible=12):
    """A full fetch names all partitions; an incremental one, within a session, those that changed and those to
    forget. By default there is no session. Only brokers of this project send `replica_state`."""

    max_wait_ms: Int32
    min_bytes: Int32
    topics: tuple[FetchTopic, ...] = field(before="forgotten_topics_data")
    replica_id: Int32 = field(default=CONSUMER, before="max_wait_ms")
    max_bytes: Int32 = field(default=2**31 - 1, since=3)
    isolation_level: Int8 = field(default=READ_UNCOMMITTED, since=4, must=True)
    session_id: Int32 = field(default=NO_SESSION, since=7, must=True)
    session_epoch: Int32 = field(default=FINAL_SESSION_EPOCH, since=7)
    forgotten_topics_data: tuple[ForgottenTopic, ...] = field(default=(), since=7, must=True)
    rack_id: String = field(default="", since=11)
    cluster_id: String | None = field(default=None, since=12, tag=0)
    replica_state: ReplicaState = field(default=ReplicaState(), since=12, tag=1)


class EpochEndOffset(Structure):
    epoch: Int32 = NO_LEADER_EPOCH
    end_offset: Int64 = NO_OFFSET


class LeaderIdAndEpoch(Structure):
    leader_id: Int32 = -1
    leader_epoch: Int32 = NO_LEADER_EPOCH


class SnapshotId(Structure):
    end_offset: Int64 = NO_OFFSET
    epoch: Int32 = NO_LEADER_EPOCH


class AbortedTransaction(Structure):
    producer_id: Int64
    first_offset: Int64


NO_DIVERGENCE = EpochEndOffset()
NO_CURRENT_LEADER = LeaderIdAndEpoch()
NO_SNAPSHOT = SnapshotId()


class FetchPartitionData(Structure):
    """`records` may end in the middle of a batch; where there are none Kafka sends empty ones, not None.
    `diverging_epoch`: up to where the follower's log may agree with the leader's; `NO_DIVERGENCE` where none was found.
    `aborted_transactions` is None where they were not asked for."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    records: Records | None
    last_stable_offset: Int64 = field(default=NO_OFFSET, since=4, before="records")
    log_start_offset: Int64 = field(default=NO_OFFSET, since=5, before="records")
    diverging_epoch: EpochEndOffset = field(default=NO_DIVERGENCE, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = field(default=NO_CURRENT_LEADER, since=12, tag=1)
    snapshot_id: SnapshotId = field(default=NO_SNAPSHOT, since=12, tag=2)
    aborted_transactions: tuple[AbortedTransaction, ...] | None = field(default=None, since=4, before="records")
    preferred_read_replica: Int32 = field(default=-1, since=11, must=True, before="records")


class FetchTopicData(Structure):
    topic: String
    partitions: tuple[FetchPartitionData, ...]


class FetchResponse(ResponseValue, first=0, last=12, flexible=12):
    """`error_code` is the session's or the whole request's."""

    responses: tuple[FetchTopicData, ...]
    error_code: Int16 = field(default=0, since=7, before="responses")
    session_id: Int32 = field(default=NO_SESSION, since=7, must=True, before="responses")
    throttle_time_ms: Int32 = field(default=0, since=1, before="error_code")


class ListOffsetsPartition(Structure):
    """`max_num_offsets` is version 0's alone, which is answered with as many segments' offsets."""

    partition_index: Int32
    timestamp: Int64
    current_leader_epoch: Int32 = field(default=NO_LEADER_EPOCH, since=4, before="timestamp")
    max_num_offsets: Int32 = field(default=1, until=0, must=True)


class ListOffsetsTopic(Structure):
    name: String
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(RequestValue, first=0, last=6, flexible=6):
    topics: tuple[ListOffsetsTopic, ...]
    replica_id: Int32 = field(default=CONSUMER, before="topics")
    isolation_level: Int8 = field(default=READ_UNCOMMITTED, since=2, must=True, before="topics")


class ListOffsetsPartitionResult(Structure):
    """`old_style_offsets` is version 0's answer, the other fields are that of later ones."""

    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = field(default=NO_TIMESTAMP, since=1, must=True)
    offset: Int64 = field(default=NO_OFFSET, since=1, must=True)
    leader_epoch: Int32 = field(default=NO_LEADER_EPOCH, since=4)
    old_style_offsets: tuple[Int64, ...] = field(default=(), until=0, must=True, before="timestamp")


class ListOffsetsTopicResult(Structure):
    name: String
    partitions: tuple[ListOffsetsPartitionResult, ...]


class ListOffsetsResponse(ResponseValue, first=0, last=6, flexible=6):
    topics: tuple[ListOffsetsTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, since=2, before="topics")


class OffsetForLeaderPartition(Structure):
    """`leader_epoch` is the one whose end is asked for, `current_leader_epoch` what the asker knows of the leader."""

    partition: Int32
    leader_epoch: Int32
    current_leader_epoch: Int32 = field(default=NO_LEADER_EPOCH, since=2, before="leader_epoch")


class OffsetForLeaderTopic(Structure):
    topic: String
    partitions: tuple[OffsetForLeaderPartition, ...]


class OffsetForLeaderEpochRequest(RequestValue, first=0, last=4, flexible=4):
    topics: tuple[OffsetForLeaderTopic, ...]
    replica_id: Int32 = field(default=DEBUGGING_CONSUMER, since=3, before="topics")


class OffsetForLeaderResult(Structure):
    """`leader_epoch`: the largest one in the log that is not above the one asked for; `end_offset` its end."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = field(default=NO_LEADER_EPOCH, since=1)
    end_offset: Int64 = NO_OFFSET


class OffsetForLeaderTopicResult(Structure):
    topic: String
    partitions: tuple[OffsetForLeaderResult, ...]


class OffsetForLeaderEpochResponse(ResponseValue, first=0, last=4, flexible=4):
    topics: tuple[OffsetForLeaderTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, since=2, before="topics")
