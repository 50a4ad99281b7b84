"""The field tables of Fetch, ListOffsets and OffsetForLeaderEpoch, in the versions of Kafka 2.8: facts of the protocol
only, in the order of the wire. Values are in `fetch_values`.
"""

from __future__ import annotations

from controller.protocol import fetch_values as v
from controller.protocol.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    INTS,
    LONGS,
    RECORDS,
    TEXT,
    Array,
    Field,
    Message,
    Nested,
    Struct,
)

# --- Fetch, 0-12, flexible from 12

_PARTITION = Struct(
    v.FetchPartition,
    (
        Field("partition", INT32),
        Field("current_leader_epoch", INT32, since=9),
        Field("fetch_offset", INT64),
        Field("last_fetched_epoch", INT32, since=12, must=True),
        Field("log_start_offset", INT64, since=5),
        Field("partition_max_bytes", INT32),
    ),
)
# Fetch 15's tagged field (KIP-903), spoken in 12 already: who does not know a tag passes over it, as Kafka 2.8 does.
_REPLICA_STATE = Struct(v.ReplicaState, (Field("replica_id", INT32), Field("replica_epoch", INT64)))
FETCH_REQUEST = Message(
    Struct(
        v.FetchRequest,
        (
            Field("cluster_id", TEXT, since=12, nullable=12, tag=0),
            Field("replica_state", Nested(_REPLICA_STATE), since=12, tag=1),
            Field("replica_id", INT32),
            Field("max_wait_ms", INT32),
            Field("min_bytes", INT32),
            Field("max_bytes", INT32, since=3),
            Field("isolation_level", INT8, since=4, must=True),
            Field("session_id", INT32, since=7, must=True),
            Field("session_epoch", INT32, since=7),
            Field(
                "topics", Array(Struct(v.FetchTopic, (Field("topic", TEXT), Field("partitions", Array(_PARTITION)))))
            ),
            Field(
                "forgotten_topics_data",
                Array(Struct(v.ForgottenTopic, (Field("topic", TEXT), Field("partitions", INTS)))),
                since=7,
                must=True,
            ),
            Field("rack_id", TEXT, since=11),
        ),
    ),
    first=0,
    last=12,
    flexible=12,
)
_DIVERGING_EPOCH = Struct(v.EpochEndOffset, (Field("epoch", INT32), Field("end_offset", INT64)))
_CURRENT_LEADER = Struct(v.LeaderIdAndEpoch, (Field("leader_id", INT32), Field("leader_epoch", INT32)))
_SNAPSHOT_ID = Struct(v.SnapshotId, (Field("end_offset", INT64), Field("epoch", INT32)))
_ABORTED = Struct(v.AbortedTransaction, (Field("producer_id", INT64), Field("first_offset", INT64)))
_PARTITION_DATA = Struct(
    v.FetchPartitionData,
    (
        Field("partition_index", INT32),
        Field("error_code", INT16),
        Field("high_watermark", INT64),
        Field("last_stable_offset", INT64, since=4),
        Field("log_start_offset", INT64, since=5),
        Field("diverging_epoch", Nested(_DIVERGING_EPOCH), since=12, tag=0),
        Field("current_leader", Nested(_CURRENT_LEADER), since=12, tag=1),
        Field("snapshot_id", Nested(_SNAPSHOT_ID), since=12, tag=2),
        Field("aborted_transactions", Array(_ABORTED), since=4, nullable=4),
        Field("preferred_read_replica", INT32, since=11, must=True),
        Field("records", RECORDS, nullable=0),
    ),
)
FETCH_RESPONSE = Message(
    Struct(
        v.FetchResponse,
        (
            Field("throttle_time_ms", INT32, since=1),
            Field("error_code", INT16, since=7),
            Field("session_id", INT32, since=7, must=True),
            Field(
                "responses",
                Array(Struct(v.FetchTopicData, (Field("topic", TEXT), Field("partitions", Array(_PARTITION_DATA))))),
            ),
        ),
    ),
    first=0,
    last=12,
    flexible=12,
)

# --- ListOffsets, 0-6, flexible from 6

_LISTED = Struct(
    v.ListOffsetsPartition,
    (
        Field("partition_index", INT32),
        Field("current_leader_epoch", INT32, since=4),
        Field("timestamp", INT64),
        Field("max_num_offsets", INT32, until=0, must=True),
    ),
)
LIST_OFFSETS_REQUEST = Message(
    Struct(
        v.ListOffsetsRequest,
        (
            Field("replica_id", INT32),
            Field("isolation_level", INT8, since=2, must=True),
            Field(
                "topics",
                Array(Struct(v.ListOffsetsTopic, (Field("name", TEXT), Field("partitions", Array(_LISTED))))),
            ),
        ),
    ),
    first=0,
    last=6,
    flexible=6,
)
_LISTED_RESULT = Struct(
    v.ListOffsetsPartitionResult,
    (
        Field("partition_index", INT32),
        Field("error_code", INT16),
        Field("old_style_offsets", LONGS, until=0, must=True),
        Field("timestamp", INT64, since=1, must=True),
        Field("offset", INT64, since=1, must=True),
        Field("leader_epoch", INT32, since=4),
    ),
)
LIST_OFFSETS_RESPONSE = Message(
    Struct(
        v.ListOffsetsResponse,
        (
            Field("throttle_time_ms", INT32, since=2),
            Field(
                "topics",
                Array(
                    Struct(v.ListOffsetsTopicResult, (Field("name", TEXT), Field("partitions", Array(_LISTED_RESULT))))
                ),
            ),
        ),
    ),
    first=0,
    last=6,
    flexible=6,
)

# --- OffsetForLeaderEpoch, 0-4, flexible from 4

_EPOCH = Struct(
    v.OffsetForLeaderPartition,
    (Field("partition", INT32), Field("current_leader_epoch", INT32, since=2), Field("leader_epoch", INT32)),
)
OFFSET_FOR_LEADER_EPOCH_REQUEST = Message(
    Struct(
        v.OffsetForLeaderEpochRequest,
        (
            Field("replica_id", INT32, since=3),
            Field(
                "topics",
                Array(Struct(v.OffsetForLeaderTopic, (Field("topic", TEXT), Field("partitions", Array(_EPOCH))))),
            ),
        ),
    ),
    first=0,
    last=4,
    flexible=4,
)
_EPOCH_RESULT = Struct(
    v.OffsetForLeaderResult,
    (
        Field("error_code", INT16),
        Field("partition", INT32),
        Field("leader_epoch", INT32, since=1),
        Field("end_offset", INT64),
    ),
)
OFFSET_FOR_LEADER_EPOCH_RESPONSE = Message(
    Struct(
        v.OffsetForLeaderEpochResponse,
        (
            Field("throttle_time_ms", INT32, since=2),
            Field(
                "topics",
                Array(
                    Struct(
                        v.OffsetForLeaderTopicResult, (Field("topic", TEXT), Field("partitions", Array(_EPOCH_RESULT)))
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=4,
    flexible=4,
)
