"""The field tables of the control plane's messages, in the versions of Kafka 2.8.

Facts of the protocol only: order, types, versions. Where Kafka's own field name differs by version, the later one is
used. Values are in `control_values`.
"""

from __future__ import annotations

from dataclasses import replace

from controller.protocol import control_values as v
from controller.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    INTS,
    LONGS,
    TEXT,
    TEXTS,
    UUID,
    Adaptation,
    Array,
    Field,
    Inline,
    Message,
    Struct,
    Ungrouped,
)

# --- LeaderAndIsr, 0-5, flexible from 4

_LEADER_AND_ISR_PARTITION = Struct(
    v.LeaderAndIsrPartitionState,
    (
        Field("partition_index", INT32),
        Field("controller_epoch", INT32),
        Field("leader", INT32),
        Field("leader_epoch", INT32),
        Field("isr", INTS),
        Field("zk_version", INT32),
        Field("replicas", INTS),
        Field("adding_replicas", INTS, since=3),
        Field("removing_replicas", INTS, since=3),
        Field("is_new", BOOL, since=1),
    ),
)
_LEADER_AND_ISR_TOPIC = Struct(
    v.LeaderAndIsrTopicState,
    (
        Field("topic_name", TEXT),
        Field("topic_id", UUID, since=5),
        Field("partition_states", Array(_LEADER_AND_ISR_PARTITION)),
    ),
)
LIVE_LEADER = Struct(
    v.LeaderAndIsrLiveLeader,
    (Field("broker_id", INT32), Field("host_name", TEXT), Field("port", INT32)),
)
LEADER_AND_ISR_REQUEST = Message(
    Struct(
        v.LeaderAndIsrRequest,
        (
            Field("controller_id", INT32),
            Field("controller_epoch", INT32),
            Field("broker_epoch", INT64, since=2),
            Field("type", INT8, since=5, must=True),
            Field(
                "topic_states",
                Ungrouped(v.LeaderAndIsrTopicState, "topic_name", "partition_states", _LEADER_AND_ISR_PARTITION),
                until=1,
            ),
            Field("topic_states", Array(_LEADER_AND_ISR_TOPIC), since=2),
            Field("live_leaders", Array(LIVE_LEADER)),
        ),
    ),
    first=0,
    last=5,
    flexible=4,
)
_LEADER_AND_ISR_ERROR = Struct(
    v.LeaderAndIsrPartitionError,
    (Field("partition_index", INT32), Field("error_code", INT16)),
)
LEADER_AND_ISR_RESPONSE = Message(
    Struct(
        v.LeaderAndIsrResponse,
        (
            Field("error_code", INT16),
            Field(
                "topics",
                Ungrouped(v.LeaderAndIsrTopicError, "topic_name", "partition_errors", _LEADER_AND_ISR_ERROR),
                until=4,
            ),
            Field(
                "topics",
                Array(
                    Struct(
                        v.LeaderAndIsrTopicError,
                        (Field("topic_id", UUID), Field("partition_errors", Array(_LEADER_AND_ISR_ERROR))),
                    )
                ),
                since=5,
            ),
        ),
    ),
    first=0,
    last=5,
    flexible=4,
)

# --- UpdateMetadata, 0-7, flexible from 6

_UPDATE_METADATA_PARTITION = Struct(
    v.UpdateMetadataPartitionState,
    (
        Field("partition_index", INT32),
        Field("controller_epoch", INT32),
        Field("leader", INT32),
        Field("leader_epoch", INT32),
        Field("isr", INTS),
        Field("zk_version", INT32),
        Field("replicas", INTS),
        Field("offline_replicas", INTS, since=4),
    ),
)
_UPDATE_METADATA_TOPIC = Struct(
    v.UpdateMetadataTopicState,
    (
        Field("topic_name", TEXT),
        Field("topic_id", UUID, since=7),
        Field("partition_states", Array(_UPDATE_METADATA_PARTITION)),
    ),
)
_ONLY_ENDPOINT = Struct(v.UpdateMetadataEndpoint, (Field("host", TEXT), Field("port", INT32)))
_ENDPOINT = Struct(
    v.UpdateMetadataEndpoint,
    (
        Field("port", INT32),
        Field("host", TEXT),
        Field("listener", TEXT, since=3),
        Field("security_protocol", INT16),
    ),
)
UPDATE_METADATA_BROKER = Struct(
    v.UpdateMetadataBroker,
    (
        Field("id", INT32),
        Field("endpoints", Inline(_ONLY_ENDPOINT), until=0),
        Field("endpoints", Array(_ENDPOINT), since=1),
        Field("rack", TEXT, since=2, nullable=0),
    ),
)
# This project's own: Kafka's brokers ignore both.
PARTITIONS_FOLLOW = Field("partitions_follow", BOOL, since=6, tag=0)
COMPLETE_BUT = Field("complete_but", TEXTS, since=6, nullable=6, tag=1)
UPDATE_METADATA_REQUEST = Message(
    Struct(
        v.UpdateMetadataRequest,
        (
            Field("controller_id", INT32),
            Field("controller_epoch", INT32),
            Field("broker_epoch", INT64, since=5),
            Field(
                "topic_states",
                Ungrouped(v.UpdateMetadataTopicState, "topic_name", "partition_states", _UPDATE_METADATA_PARTITION),
                until=4,
            ),
            Field("topic_states", Array(_UPDATE_METADATA_TOPIC), since=5),
            Field("live_brokers", Array(UPDATE_METADATA_BROKER)),
            PARTITIONS_FOLLOW,
            COMPLETE_BUT,
        ),
    ),
    first=0,
    last=7,
    flexible=6,
)
UPDATE_METADATA_RESPONSE = Message(
    Struct(v.UpdateMetadataResponse, (Field("error_code", INT16),)), first=0, last=7, flexible=6
)

# --- StopReplica, 0-3, flexible from 2


def _spread_delete_flag(request: v.StopReplicaRequest) -> v.StopReplicaRequest:
    if not request.delete_partitions:
        return request
    return replace(
        request,
        topic_states=tuple(
            replace(
                topic, partition_states=tuple(replace(state, delete_partition=True) for state in topic.partition_states)
            )
            for topic in request.topic_states
        ),
    )


def _one_delete_flag(request: v.StopReplicaRequest) -> v.StopReplicaRequest:
    flags = {state.delete_partition for topic in request.topic_states for state in topic.partition_states}
    if flags - {request.delete_partitions}:
        raise ValueError("before version 3 all partitions of a StopReplica have one flag, delete_partitions")
    return request


_STOPPED = Struct(v.StopReplicaPartitionState, (Field("partition_index", INT32),), bare=True)
_STOPPED_3 = Struct(
    v.StopReplicaPartitionState,
    (Field("partition_index", INT32), Field("leader_epoch", INT32), Field("delete_partition", BOOL)),
)
_STOPPED_TOPIC = Struct(
    v.StopReplicaTopicState,
    (
        Field("topic_name", TEXT),
        Field("partition_states", Array(_STOPPED), until=2),
        Field("partition_states", Array(_STOPPED_3), since=3),
    ),
)
STOP_REPLICA_REQUEST = Message(
    Struct(
        v.StopReplicaRequest,
        (
            Field("controller_id", INT32),
            Field("controller_epoch", INT32),
            Field("broker_epoch", INT64, since=1),
            Field("delete_partitions", BOOL, until=2),
            Field(
                "topic_states",
                Ungrouped(v.StopReplicaTopicState, "topic_name", "partition_states", _STOPPED),
                until=0,
            ),
            Field("topic_states", Array(_STOPPED_TOPIC), since=1),
        ),
    ),
    first=0,
    last=3,
    flexible=2,
    adaptation=Adaptation(until=2, read=_spread_delete_flag, write=_one_delete_flag),
)
STOP_REPLICA_RESPONSE = Message(
    Struct(
        v.StopReplicaResponse,
        (
            Field("error_code", INT16),
            Field(
                "partition_errors",
                Array(
                    Struct(
                        v.StopReplicaPartitionError,
                        (Field("topic_name", TEXT), Field("partition_index", INT32), Field("error_code", INT16)),
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=3,
    flexible=2,
)

# --- ControlledShutdown, 0-3, flexible from 3

# The two tagged fields are this project's own, spoken between its brokers: Kafka's pass over them.
CONTROLLED_SHUTDOWN_REQUEST = Message(
    Struct(
        v.ControlledShutdownRequest,
        (
            Field("broker_id", INT32),
            Field("broker_epoch", INT64, since=2),
            Field("manner", INT8, since=3, tag=0),
        ),
    ),
    first=0,
    last=3,
    flexible=3,
)
CONTROLLED_SHUTDOWN_RESPONSE = Message(
    Struct(
        v.ControlledShutdownResponse,
        (
            Field("error_code", INT16),
            Field(
                "remaining_partitions",
                Array(Struct(v.RemainingPartition, (Field("topic_name", TEXT), Field("partition_index", INT32)))),
            ),
            Field("reason", TEXT, since=3, tag=0),
        ),
    ),
    first=0,
    last=3,
    flexible=3,
)

# --- AlterIsr, 0, flexible; from 1 on it is called AlterPartition

# Version 3 sends it for each member (KIP-903); before, it is a tagged field, which other implementations skip.
_ISR_MEMBER = Struct(v.IsrMember, (Field("broker_id", INT32), Field("broker_epoch", INT64)))
ALTER_ISR_REQUEST = Message(
    Struct(
        v.AlterIsrRequest,
        (
            Field("broker_id", INT32),
            Field("broker_epoch", INT64),
            Field(
                "topics",
                Array(
                    Struct(
                        v.AlterIsrTopic,
                        (
                            Field("name", TEXT, until=1),
                            Field("topic_id", UUID, since=2),
                            Field(
                                "partitions",
                                Array(
                                    Struct(
                                        v.AlterIsrPartition,
                                        (
                                            Field("partition_index", INT32),
                                            Field("leader_epoch", INT32),
                                            Field("new_isr", INTS, until=2),
                                            Field("new_isr_with_epochs", Array(_ISR_MEMBER), since=3),
                                            Field("leader_recovery_state", INT8, since=1),
                                            Field("current_isr_version", INT32),
                                            Field("new_isr_epochs", LONGS, until=2, tag=0),
                                        ),
                                    )
                                ),
                            ),
                        ),
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=3,
    flexible=0,
)
_ALTERED = Struct(
    v.AlterIsrPartitionResult,
    (
        Field("partition_index", INT32),
        Field("error_code", INT16),
        Field("leader_id", INT32),
        Field("leader_epoch", INT32),
        Field("isr", INTS),
        Field("leader_recovery_state", INT8, since=1),
        Field("current_isr_version", INT32),
    ),
)
ALTER_ISR_RESPONSE = Message(
    Struct(
        v.AlterIsrResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16),
            Field(
                "topics",
                Array(
                    Struct(
                        v.AlterIsrTopicResult,
                        (
                            Field("name", TEXT, until=1),
                            Field("topic_id", UUID, since=2),
                            Field("partitions", Array(_ALTERED)),
                        ),
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=3,
    flexible=0,
)
