"""The values of what consumers and followers ask: records to read, offsets by time, offsets by leader epoch.

As in `control_values`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for
those that a version lacks. Only values live here.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.protocol.records import Records

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


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """A partition of a fetch. `last_fetched_epoch` is the epoch of the record before `fetch_offset` (-1: none, or not
    sent), by which the leader detects a divergence. `log_start_offset` is a follower's own."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = NO_LEADER_EPOCH
    last_fetched_epoch: int = NO_LEADER_EPOCH
    log_start_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class FetchTopic:
    topic: str
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class ForgottenTopic:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Which life of a broker fetches: its registration's czxid, -1 untold."""

    replica_id: int = CONSUMER
    replica_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A full fetch names all partitions; an incremental one, within a session, those that changed and those to
    forget. By default there is no session. Only brokers of this project send `replica_state`."""

    max_wait_ms: int
    min_bytes: int
    topics: tuple[FetchTopic, ...]
    replica_id: int = CONSUMER
    max_bytes: int = 2**31 - 1
    isolation_level: int = READ_UNCOMMITTED
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()
    rack_id: str = ""
    cluster_id: str | None = None
    replica_state: ReplicaState = ReplicaState()


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    epoch: int = NO_LEADER_EPOCH
    end_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class SnapshotId:
    end_offset: int = NO_OFFSET
    epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


NO_DIVERGENCE = EpochEndOffset()
NO_CURRENT_LEADER = LeaderIdAndEpoch()
NO_SNAPSHOT = SnapshotId()


@dataclass(frozen=True, slots=True)
class FetchPartitionData:
    """`records` may end in the middle of a batch; where there are none Kafka sends empty ones, not None.
    `diverging_epoch`: up to where the follower's log may agree with the leader's; `NO_DIVERGENCE` where none was found.
    `aborted_transactions` is None where they were not asked for."""

    partition_index: int
    error_code: int
    high_watermark: int
    records: Records | None
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging_epoch: EpochEndOffset = NO_DIVERGENCE
    current_leader: LeaderIdAndEpoch = NO_CURRENT_LEADER
    snapshot_id: SnapshotId = NO_SNAPSHOT
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: int = -1


@dataclass(frozen=True, slots=True)
class FetchTopicData:
    topic: str
    partitions: tuple[FetchPartitionData, ...]


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """`error_code` is the session's or the whole request's."""

    responses: tuple[FetchTopicData, ...]
    error_code: int = 0
    session_id: int = NO_SESSION
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """`max_num_offsets` is version 0's alone, which is answered with as many segments' offsets."""

    partition_index: int
    timestamp: int
    current_leader_epoch: int = NO_LEADER_EPOCH
    max_num_offsets: int = 1


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    topics: tuple[ListOffsetsTopic, ...]
    replica_id: int = CONSUMER
    isolation_level: int = READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class ListOffsetsPartitionResult:
    """`old_style_offsets` is version 0's answer, the other fields are that of later ones."""

    partition_index: int
    error_code: int
    timestamp: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    old_style_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListOffsetsTopicResult:
    name: str
    partitions: tuple[ListOffsetsPartitionResult, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    topics: tuple[ListOffsetsTopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetForLeaderPartition:
    """`leader_epoch` is the one whose end is asked for, `current_leader_epoch` what the asker knows of the leader."""

    partition: int
    leader_epoch: int
    current_leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    topics: tuple[OffsetForLeaderTopic, ...]
    replica_id: int = DEBUGGING_CONSUMER


@dataclass(frozen=True, slots=True)
class OffsetForLeaderResult:
    """`leader_epoch`: the largest one in the log that is not above the one asked for; `end_offset` its end."""

    error_code: int
    partition: int
    leader_epoch: int = NO_LEADER_EPOCH
    end_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[OffsetForLeaderResult, ...]


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochResponse:
    topics: tuple[OffsetForLeaderTopicResult, ...]
    throttle_time_ms: int = 0
