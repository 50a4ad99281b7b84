"""The field tables of what clients ask, in the versions of Kafka 2.8: facts of the protocol only, in the order of the
wire. Values are in `client_values`.
"""

from __future__ import annotations

from dataclasses import replace

from controller.protocol import client_values as v
from controller.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    INTS,
    TEXT,
    UUID,
    Adaptation,
    Array,
    Field,
    Message,
    Struct,
)

# --- ApiVersions, 0-3, flexible from 3 (its response's header never is)

API_VERSIONS_REQUEST = Message(
    Struct(
        v.ApiVersionsRequest,
        (Field("client_software_name", TEXT, since=3), Field("client_software_version", TEXT, since=3)),
    ),
    first=0,
    last=3,
    flexible=3,
)
_FEATURE = Struct(v.SupportedFeature, (Field("name", TEXT), Field("min_version", INT16), Field("max_version", INT16)))
_FINALIZED = Struct(
    v.FinalizedFeature, (Field("name", TEXT), Field("max_version_level", INT16), Field("min_version_level", INT16))
)
API_VERSIONS_RESPONSE = Message(
    Struct(
        v.ApiVersionsResponse,
        (
            Field("error_code", INT16),
            Field(
                "api_keys",
                Array(
                    Struct(
                        v.ApiVersion,
                        (Field("api_key", INT16), Field("min_version", INT16), Field("max_version", INT16)),
                    )
                ),
            ),
            Field("throttle_time_ms", INT32, since=1),
            Field("supported_features", Array(_FEATURE), since=3, tag=0),
            Field("finalized_features_epoch", INT64, since=3, tag=1),
            Field("finalized_features", Array(_FINALIZED), since=3, tag=2),
        ),
    ),
    first=0,
    last=3,
    flexible=3,
)

# --- Metadata, 0-11, flexible from 9


def _none_is_all(request: v.MetadataRequest) -> v.MetadataRequest:
    return request if request.topics else replace(request, topics=None)


def _all_is_none(request: v.MetadataRequest) -> v.MetadataRequest:
    if request.topics is None:
        return replace(request, topics=())
    if not request.topics:
        raise ValueError("Metadata version 0 can't ask for no topics: an empty list asks for all")
    return request


METADATA_REQUEST = Message(
    Struct(
        v.MetadataRequest,
        (
            Field(
                "topics",
                Array(
                    Struct(
                        v.MetadataRequestTopic, (Field("topic_id", UUID, since=10), Field("name", TEXT, nullable=10))
                    )
                ),
                nullable=1,
            ),
            Field("allow_auto_topic_creation", BOOL, since=4, must=True),
            Field("include_cluster_authorized_operations", BOOL, since=8, until=10, must=True),
            Field("include_topic_authorized_operations", BOOL, since=8, must=True),
        ),
    ),
    first=0,
    last=11,
    flexible=9,
    adaptation=Adaptation(until=0, read=_none_is_all, write=_all_is_none),
)
_METADATA_BROKER = Struct(
    v.MetadataResponseBroker,
    (
        Field("node_id", INT32),
        Field("host", TEXT),
        Field("port", INT32),
        Field("rack", TEXT, since=1, nullable=1),
    ),
)
METADATA_PARTITION = Struct(
    v.MetadataResponsePartition,
    (
        Field("error_code", INT16),
        Field("partition_index", INT32),
        Field("leader_id", INT32),
        Field("leader_epoch", INT32, since=7),
        Field("replica_nodes", INTS),
        Field("isr_nodes", INTS),
        Field("offline_replicas", INTS, since=5),
    ),
)
_METADATA_TOPIC = Struct(
    v.MetadataResponseTopic,
    (
        Field("error_code", INT16),
        Field("name", TEXT),
        Field("topic_id", UUID, since=10),
        Field("is_internal", BOOL, since=1),
        Field("partitions", Array(METADATA_PARTITION)),
        Field("topic_authorized_operations", INT32, since=8),
    ),
)
METADATA_RESPONSE = Message(
    Struct(
        v.MetadataResponse,
        (
            Field("throttle_time_ms", INT32, since=3),
            Field("brokers", Array(_METADATA_BROKER)),
            Field("cluster_id", TEXT, since=2, nullable=2),
            Field("controller_id", INT32, since=1),
            Field("topics", Array(_METADATA_TOPIC)),
            Field("cluster_authorized_operations", INT32, since=8, until=10),
        ),
    ),
    first=0,
    last=11,
    flexible=9,
)

# --- CreateTopics, 0-7, flexible from 5

_CREATABLE_TOPIC = Struct(
    v.CreatableTopic,
    (
        Field("name", TEXT),
        Field("num_partitions", INT32),
        Field("replication_factor", INT16),
        Field(
            "assignments",
            Array(Struct(v.CreatableReplicaAssignment, (Field("partition_index", INT32), Field("broker_ids", INTS)))),
        ),
        Field(
            "configs", Array(Struct(v.CreatableTopicConfig, (Field("name", TEXT), Field("value", TEXT, nullable=0))))
        ),
    ),
)
CREATE_TOPICS_REQUEST = Message(
    Struct(
        v.CreateTopicsRequest,
        (
            Field("topics", Array(_CREATABLE_TOPIC)),
            Field("timeout_ms", INT32),
            Field("validate_only", BOOL, since=1, must=True),
        ),
    ),
    first=0,
    last=7,
    flexible=5,
)
_TOPIC_CONFIG = Struct(
    v.CreatableTopicConfigs,
    (
        Field("name", TEXT),
        Field("value", TEXT, nullable=0),
        Field("read_only", BOOL),
        Field("config_source", INT8),
        Field("is_sensitive", BOOL),
    ),
)
CREATE_TOPICS_RESPONSE = Message(
    Struct(
        v.CreateTopicsResponse,
        (
            Field("throttle_time_ms", INT32, since=2),
            Field(
                "topics",
                Array(
                    Struct(
                        v.CreatableTopicResult,
                        (
                            Field("name", TEXT),
                            Field("topic_id", UUID, since=7),
                            Field("error_code", INT16),
                            Field("error_message", TEXT, since=1, nullable=0),
                            Field("topic_config_error_code", INT16, since=5, tag=0),
                            Field("num_partitions", INT32, since=5),
                            Field("replication_factor", INT16, since=5),
                            Field("configs", Array(_TOPIC_CONFIG), since=5, nullable=5),
                        ),
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=7,
    flexible=5,
)

# --- CreatePartitions, 0-3, flexible from 2

_EXPANDED_TOPIC = Struct(
    v.CreatePartitionsTopic,
    (
        Field("name", TEXT),
        Field("count", INT32),
        Field("assignments", Array(Struct(v.CreatePartitionsAssignment, (Field("broker_ids", INTS),))), nullable=0),
    ),
)
CREATE_PARTITIONS_REQUEST = Message(
    Struct(
        v.CreatePartitionsRequest,
        (Field("topics", Array(_EXPANDED_TOPIC)), Field("timeout_ms", INT32), Field("validate_only", BOOL)),
    ),
    first=0,
    last=3,
    flexible=2,
)
CREATE_PARTITIONS_RESPONSE = Message(
    Struct(
        v.CreatePartitionsResponse,
        (
            Field("throttle_time_ms", INT32),
            Field(
                "results",
                Array(
                    Struct(
                        v.CreatePartitionsTopicResult,
                        (
                            Field("name", TEXT),
                            Field("error_code", INT16),
                            Field("error_message", TEXT, nullable=0),
                        ),
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=3,
    flexible=2,
)

# --- DeleteTopics, 0-6, flexible from 4

_NAMED_TOPIC = Struct(v.DeleteTopicState, (Field("name", TEXT), Field("topic_id", UUID, since=6, must=True)), bare=True)
_DELETED_TOPIC = Struct(v.DeleteTopicState, (Field("name", TEXT, nullable=6), Field("topic_id", UUID)))
DELETE_TOPICS_REQUEST = Message(
    Struct(
        v.DeleteTopicsRequest,
        (
            Field("topics", Array(_NAMED_TOPIC), until=5),
            Field("topics", Array(_DELETED_TOPIC), since=6),
            Field("timeout_ms", INT32),
        ),
    ),
    first=0,
    last=6,
    flexible=4,
)
DELETE_TOPICS_RESPONSE = Message(
    Struct(
        v.DeleteTopicsResponse,
        (
            Field("throttle_time_ms", INT32, since=1),
            Field(
                "responses",
                Array(
                    Struct(
                        v.DeletableTopicResult,
                        (
                            Field("name", TEXT, nullable=6),
                            Field("topic_id", UUID, since=6),
                            Field("error_code", INT16),
                            Field("error_message", TEXT, since=5, nullable=5),
                        ),
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=6,
    flexible=4,
)
