"""The field tables of DeleteRecords, DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and FindCoordinator, in the
versions of Kafka 2.8: facts of the protocol only, in the order of the wire. Values are in `admin_values`.
"""

from __future__ import annotations

from controller.protocol import admin_values as v
from controller.protocol.schema import BOOL, INT8, INT16, INT32, INT64, TEXT, TEXTS, Array, Field, Message, Struct

# --- DeleteRecords, 0-2, flexible from 2

_DELETED = Struct(v.DeleteRecordsPartition, (Field("partition_index", INT32), Field("offset", INT64)))
DELETE_RECORDS_REQUEST = Message(
    Struct(
        v.DeleteRecordsRequest,
        (
            Field(
                "topics",
                Array(Struct(v.DeleteRecordsTopic, (Field("name", TEXT), Field("partitions", Array(_DELETED))))),
            ),
            Field("timeout_ms", INT32),
        ),
    ),
    first=0,
    last=2,
    flexible=2,
)
_DELETED_RESULT = Struct(
    v.DeleteRecordsPartitionResult,
    (Field("partition_index", INT32), Field("low_watermark", INT64), Field("error_code", INT16)),
)
DELETE_RECORDS_RESPONSE = Message(
    Struct(
        v.DeleteRecordsResponse,
        (
            Field("throttle_time_ms", INT32),
            Field(
                "topics",
                Array(
                    Struct(
                        v.DeleteRecordsTopicResult, (Field("name", TEXT), Field("partitions", Array(_DELETED_RESULT)))
                    )
                ),
            ),
        ),
    ),
    first=0,
    last=2,
    flexible=2,
)

# --- DescribeConfigs, 0-4, flexible from 4

_DESCRIBED_RESOURCE = Struct(
    v.DescribeConfigsResource,
    (Field("resource_type", INT8), Field("resource_name", TEXT), Field("configuration_keys", TEXTS, nullable=0)),
)
DESCRIBE_CONFIGS_REQUEST = Message(
    Struct(
        v.DescribeConfigsRequest,
        (
            Field("resources", Array(_DESCRIBED_RESOURCE)),
            Field("include_synonyms", BOOL, since=1, must=True),
            Field("include_documentation", BOOL, since=3, must=True),
        ),
    ),
    first=0,
    last=4,
    flexible=4,
)
_SYNONYM = Struct(v.ConfigSynonym, (Field("name", TEXT), Field("value", TEXT, nullable=0), Field("source", INT8)))
_DESCRIBED = Struct(
    v.DescribedConfig,
    (
        Field("name", TEXT),
        Field("value", TEXT, nullable=0),
        Field("read_only", BOOL),
        Field("is_default", BOOL, until=0),
        Field("config_source", INT8, since=1),
        Field("is_sensitive", BOOL),
        Field("synonyms", Array(_SYNONYM), since=1),
        Field("config_type", INT8, since=3),
        Field("documentation", TEXT, since=3, nullable=3),
    ),
)
DESCRIBED_RESULT = Struct(
    v.DescribeConfigsResult,
    (
        Field("error_code", INT16),
        Field("error_message", TEXT, nullable=0),
        Field("resource_type", INT8),
        Field("resource_name", TEXT),
        Field("configs", Array(_DESCRIBED)),
    ),
)
DESCRIBE_CONFIGS_RESPONSE = Message(
    Struct(v.DescribeConfigsResponse, (Field("throttle_time_ms", INT32), Field("results", Array(DESCRIBED_RESULT)))),
    first=0,
    last=4,
    flexible=4,
)

# --- AlterConfigs, 0-2, flexible from 2

_REPLACED = Struct(v.ReplacedConfig, (Field("name", TEXT), Field("value", TEXT, nullable=0)))
_REPLACED_RESOURCE = Struct(
    v.AlterConfigsResource,
    (Field("resource_type", INT8), Field("resource_name", TEXT), Field("configs", Array(_REPLACED))),
)
ALTER_CONFIGS_REQUEST = Message(
    Struct(v.AlterConfigsRequest, (Field("resources", Array(_REPLACED_RESOURCE)), Field("validate_only", BOOL))),
    first=0,
    last=2,
    flexible=2,
)
_ALTERED_RESOURCE = Struct(
    v.AlteredResource,
    (
        Field("error_code", INT16),
        Field("error_message", TEXT, nullable=0),
        Field("resource_type", INT8),
        Field("resource_name", TEXT),
    ),
)
ALTER_CONFIGS_RESPONSE = Message(
    Struct(v.AlterConfigsResponse, (Field("throttle_time_ms", INT32), Field("responses", Array(_ALTERED_RESOURCE)))),
    first=0,
    last=2,
    flexible=2,
)

# --- IncrementalAlterConfigs, 0-1, flexible from 1

_ALTERABLE = Struct(
    v.AlterableConfig, (Field("name", TEXT), Field("config_operation", INT8), Field("value", TEXT, nullable=0))
)
_ALTERABLE_RESOURCE = Struct(
    v.IncrementalAlterConfigsResource,
    (Field("resource_type", INT8), Field("resource_name", TEXT), Field("configs", Array(_ALTERABLE))),
)
INCREMENTAL_ALTER_CONFIGS_REQUEST = Message(
    Struct(
        v.IncrementalAlterConfigsRequest,
        (Field("resources", Array(_ALTERABLE_RESOURCE)), Field("validate_only", BOOL)),
    ),
    first=0,
    last=1,
    flexible=1,
)
INCREMENTAL_ALTER_CONFIGS_RESPONSE = Message(
    Struct(
        v.IncrementalAlterConfigsResponse,
        (Field("throttle_time_ms", INT32), Field("responses", Array(_ALTERED_RESOURCE))),
    ),
    first=0,
    last=1,
    flexible=1,
)

# --- FindCoordinator, 0-3, flexible from 3

FIND_COORDINATOR_REQUEST = Message(
    Struct(v.FindCoordinatorRequest, (Field("key", TEXT), Field("key_type", INT8, since=1, must=True))),
    first=0,
    last=3,
    flexible=3,
)
FIND_COORDINATOR_RESPONSE = Message(
    Struct(
        v.FindCoordinatorResponse,
        (
            Field("throttle_time_ms", INT32, since=1),
            Field("error_code", INT16),
            Field("error_message", TEXT, since=1, nullable=1),
            Field("node_id", INT32),
            Field("host", TEXT),
            Field("port", INT32),
        ),
    ),
    first=0,
    last=3,
    flexible=3,
)
