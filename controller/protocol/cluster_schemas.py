"""The field tables of UpdateFeatures, AllocateProducerIds and DescribeLogDirs: facts of the protocol only, in the order
of the wire. Values are in `cluster_values`.
"""

from __future__ import annotations

from controller.protocol import cluster_values as v
from controller.protocol.schema import BOOL, INT8, INT16, INT32, INT64, INTS, TEXT, Array, Field, Message, Struct

# --- UpdateFeatures, 0-1, flexible

_UPDATE = Struct(
    v.FeatureUpdate,
    (
        Field("feature", TEXT),
        Field("max_version_level", INT16),
        Field("allow_downgrade", BOOL, until=0),
        Field("upgrade_type", INT8, since=1),
    ),
)
UPDATE_FEATURES_REQUEST = Message(
    Struct(
        v.UpdateFeaturesRequest,
        (
            Field("timeout_ms", INT32),
            Field("feature_updates", Array(_UPDATE)),
            Field("validate_only", BOOL, since=1, must=True),
        ),
    ),
    first=0,
    last=1,
    flexible=0,
)
_UPDATED = Struct(
    v.UpdatedFeature,
    (Field("feature", TEXT), Field("error_code", INT16), Field("error_message", TEXT, nullable=0)),
)
UPDATE_FEATURES_RESPONSE = Message(
    Struct(
        v.UpdateFeaturesResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16),
            Field("error_message", TEXT, nullable=0),
            Field("results", Array(_UPDATED)),
        ),
    ),
    first=0,
    last=1,
    flexible=0,
)

# --- AllocateProducerIds, 0, flexible

ALLOCATE_PRODUCER_IDS_REQUEST = Message(
    Struct(v.AllocateProducerIdsRequest, (Field("broker_id", INT32), Field("broker_epoch", INT64))),
    first=0,
    last=0,
    flexible=0,
)
ALLOCATE_PRODUCER_IDS_RESPONSE = Message(
    Struct(
        v.AllocateProducerIdsResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16),
            Field("producer_id_start", INT64),
            Field("producer_id_len", INT32),
        ),
    ),
    first=0,
    last=0,
    flexible=0,
)

# --- DescribeLogDirs, 0-4, flexible from 2

_DESCRIBABLE = Struct(v.DescribableLogDirTopic, (Field("topic", TEXT), Field("partitions", INTS)))
DESCRIBE_LOG_DIRS_REQUEST = Message(
    Struct(v.DescribeLogDirsRequest, (Field("topics", Array(_DESCRIBABLE), nullable=0),)),
    first=0,
    last=4,
    flexible=2,
)
_REPLICA = Struct(
    v.DescribedReplica,
    (
        Field("partition_index", INT32),
        Field("partition_size", INT64),
        Field("offset_lag", INT64),
        Field("is_future_key", BOOL),
    ),
)
_DIRECTORY = Struct(
    v.DescribedLogDir,
    (
        Field("error_code", INT16),
        Field("log_dir", TEXT),
        Field(
            "topics", Array(Struct(v.DescribedReplicas, (Field("name", TEXT), Field("partitions", Array(_REPLICA)))))
        ),
        Field("total_bytes", INT64, since=4),
        Field("usable_bytes", INT64, since=4),
    ),
)
DESCRIBE_LOG_DIRS_RESPONSE = Message(
    Struct(
        v.DescribeLogDirsResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16, since=3),
            Field("results", Array(_DIRECTORY)),
        ),
    ),
    first=0,
    last=4,
    flexible=2,
)
