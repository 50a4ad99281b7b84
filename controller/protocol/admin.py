"""Messages of administrators: records to delete, configurations, log directories, features, elections, reassignments.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks. The CONFIG_SOURCE_ numbers of `client` say where the value of a configuration comes from.
"""

from __future__ import annotations

from controller.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    RequestValue,
    ResponseValue,
    String,
    Structure,
    field,
)

# resource_type of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs
RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
RESOURCE_BROKER_LOGGER = 8

# AlterableConfig.config_operation
OPERATION_SET = 0
OPERATION_DELETE = 1
OPERATION_APPEND = 2
OPERATION_SUBTRACT = 3

# DescribedConfig.config_type, by which a client knows how to show a value
CONFIG_TYPE_UNKNOWN = 0
CONFIG_TYPE_BOOLEAN = 1
CONFIG_TYPE_STRING = 2
CONFIG_TYPE_INT = 3
CONFIG_TYPE_SHORT = 4
CONFIG_TYPE_LONG = 5
CONFIG_TYPE_DOUBLE = 6
CONFIG_TYPE_LIST = 7
CONFIG_TYPE_CLASS = 8
CONFIG_TYPE_PASSWORD = 9

UP_TO_HIGH_WATERMARK = -1
"""DeleteRecordsPartition.offset: all that is below the high watermark."""
NO_LOW_WATERMARK = -1


class DeleteRecordsPartition(Structure):
    """Records before `offset` go."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Structure):
    name: String
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(RequestValue, first=0, last=2, flexible=2):
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


class DeleteRecordsPartitionResult(Structure):
    """`low_watermark`: the lowest log start offset of the live replicas, once all have deleted."""

    partition_index: Int32
    error_code: Int16
    low_watermark: Int64 = field(default=NO_LOW_WATERMARK, before="error_code")


class DeleteRecordsTopicResult(Structure):
    name: String
    partitions: tuple[DeleteRecordsPartitionResult, ...]


class DeleteRecordsResponse(ResponseValue, first=0, last=2, flexible=2):
    topics: tuple[DeleteRecordsTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="topics")


class DescribeConfigsResource(Structure):
    """`configuration_keys` None asks for all. A broker's name is its id as text, "" for the default of all."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None = None


class DescribeConfigsRequest(RequestValue, first=0, last=4, flexible=4):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: Bool = field(default=False, since=1, must=True)
    include_documentation: Bool = field(default=False, since=3, must=True)


class ConfigSynonym(Structure):
    name: String
    value: String | None
    source: Int8


class DescribedConfig(Structure):
    """`value` is None for a sensitive setting. `is_default` is version 0's way to say `config_source`."""

    name: String
    value: String | None
    read_only: Bool
    is_sensitive: Bool = field(default=False, before="synonyms")
    config_source: Int8 = field(default=-1, since=1, before="is_sensitive")
    is_default: Bool = field(default=False, until=0)
    synonyms: tuple[ConfigSynonym, ...] = field(default=(), since=1)
    config_type: Int8 = field(default=CONFIG_TYPE_UNKNOWN, since=3)
    documentation: String | None = field(default=None, since=3)


class DescribeConfigsResult(Structure):
    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String
    configs: tuple[DescribedConfig, ...] = ()


class DescribeConfigsResponse(ResponseValue, first=0, last=4, flexible=4):
    results: tuple[DescribeConfigsResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


class ReplacedConfig(Structure):
    name: String
    value: String | None


class AlterConfigsResource(Structure):
    """`configs` take the place of all that the resource has: what is not among them goes back to its default."""

    resource_type: Int8
    resource_name: String
    configs: tuple[ReplacedConfig, ...]


class AlterConfigsRequest(RequestValue, first=0, last=2, flexible=2):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: Bool = False


class AlteredResource(Structure):
    """AlterConfigs' and IncrementalAlterConfigs' word on one resource."""

    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(ResponseValue, first=0, last=2, flexible=2):
    responses: tuple[AlteredResource, ...]
    throttle_time_ms: Int32 = field(default=0, before="responses")


class AlterableConfig(Structure):
    """`config_operation`: an OPERATION_ number; `value` is None for a deletion."""

    name: String
    config_operation: Int8
    value: String | None


class IncrementalAlterConfigsResource(Structure):
    """What is not among `configs` stays as it is."""

    resource_type: Int8
    resource_name: String
    configs: tuple[AlterableConfig, ...]


class IncrementalAlterConfigsRequest(RequestValue, first=0, last=1, flexible=1):
    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(ResponseValue, first=0, last=1, flexible=1):
    responses: tuple[AlteredResource, ...]
    throttle_time_ms: Int32 = field(default=0, before="responses")


# FeatureUpdate.upgrade_type
UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3
UNKNOWN_SIZE = -1
"""The size of a volume that was not determined."""


class FeatureUpdate(Structure):
    """A `max_version_level` below 1 asks for the feature's deletion. Version 0 says `allow_downgrade`, later ones an
    `upgrade_type`."""

    feature: String
    max_version_level: Int16
    allow_downgrade: Bool = field(default=False, until=0)
    upgrade_type: Int8 = field(default=UPGRADE, since=1)


class UpdateFeaturesRequest(RequestValue, first=0, last=1, flexible=0):
    feature_updates: tuple[FeatureUpdate, ...]
    timeout_ms: Int32 = field(default=60_000, before="feature_updates")
    validate_only: Bool = field(default=False, since=1, must=True)


class UpdatedFeature(Structure):
    feature: String
    error_code: Int16
    error_message: String | None = None


class UpdateFeaturesResponse(ResponseValue, first=0, last=1, flexible=0):
    error_code: Int16
    error_message: String | None = None
    results: tuple[UpdatedFeature, ...] = ()
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class ReplicasToMove(Structure):
    name: String
    partitions: tuple[Int32, ...]


class LogDirToMoveTo(Structure):
    """`path`: as `log.dirs` of the broker has it."""

    path: String
    topics: tuple[ReplicasToMove, ...]


class AlterReplicaLogDirsRequest(RequestValue, first=0, last=2, flexible=2):
    """Which replicas of the broker that is asked are to lie in which of its log directories."""

    dirs: tuple[LogDirToMoveTo, ...]


class AlteredReplicaLogDir(Structure):
    partition_index: Int32
    error_code: Int16


class AlteredReplicaLogDirs(Structure):
    topic_name: String
    partitions: tuple[AlteredReplicaLogDir, ...]


class AlterReplicaLogDirsResponse(ResponseValue, first=0, last=2, flexible=2):
    results: tuple[AlteredReplicaLogDirs, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


class DescribableLogDirTopic(Structure):
    topic: String
    partitions: tuple[Int32, ...] = ()


class DescribeLogDirsRequest(RequestValue, first=0, last=4, flexible=2):
    """`topics` None: all that there are."""

    topics: tuple[DescribableLogDirTopic, ...] | None


class DescribedReplica(Structure):
    """`offset_lag`: how many records the log lacks of what is known to be committed. `is_future_key`: it is still being
    moved to this directory."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool = False


class DescribedReplicas(Structure):
    name: String
    partitions: tuple[DescribedReplica, ...]


class DescribedLogDir(Structure):
    error_code: Int16
    log_dir: String
    topics: tuple[DescribedReplicas, ...] = ()
    total_bytes: Int64 = field(default=UNKNOWN_SIZE, since=4)
    usable_bytes: Int64 = field(default=UNKNOWN_SIZE, since=4)


class DescribeLogDirsResponse(ResponseValue, first=0, last=4, flexible=2):
    """`error_code` is of the request as a whole, from version 3 on."""

    results: tuple[DescribedLogDir, ...]
    error_code: Int16 = field(default=0, since=3, before="results")
    throttle_time_ms: Int32 = field(default=0, before="error_code")


# election_type
ELECTION_PREFERRED = 0
ELECTION_UNCLEAN = 1


class ElectLeadersTopic(Structure):
    topic: String
    partitions: tuple[Int32, ...]


class ElectLeadersRequest(RequestValue, first=0, last=2, flexible=2):
    """`topic_partitions` None asks for all partitions. Version 0 knows preferred elections only."""

    topic_partitions: tuple[ElectLeadersTopic, ...] | None
    timeout_ms: Int32 = 60_000
    election_type: Int8 = field(default=ELECTION_PREFERRED, since=1, must=True, before="topic_partitions")


class ElectedPartition(Structure):
    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


class ElectedTopic(Structure):
    topic: String
    partition_result: tuple[ElectedPartition, ...]


class ElectLeadersResponse(ResponseValue, first=0, last=2, flexible=2):
    replica_election_results: tuple[ElectedTopic, ...]
    error_code: Int16 = field(default=0, since=1, before="replica_election_results")
    throttle_time_ms: Int32 = field(default=0, before="error_code")


NO_MESSAGE = ""
"""At the top of a response that is no error: Kafka's default for that field, where others have null."""


class ReassignablePartition(Structure):
    """`replicas` None: back to where it was."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None


class ReassignableTopic(Structure):
    name: String
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(RequestValue, first=0, last=0, flexible=0):
    topics: tuple[ReassignableTopic, ...]
    timeout_ms: Int32 = field(default=60_000, before="topics")


class ReassignablePartitionResult(Structure):
    partition_index: Int32
    error_code: Int16
    error_message: String | None = None


class ReassignableTopicResult(Structure):
    name: String
    partitions: tuple[ReassignablePartitionResult, ...]


class AlterPartitionReassignmentsResponse(ResponseValue, first=0, last=0, flexible=0):
    responses: tuple[ReassignableTopicResult, ...]
    error_code: Int16 = field(default=0, before="responses")
    error_message: String | None = field(default=NO_MESSAGE, before="responses")
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class ListedTopic(Structure):
    """Partitions that are asked about."""

    name: String
    partition_indexes: tuple[Int32, ...]


class ListPartitionReassignmentsRequest(RequestValue, first=0, last=0, flexible=0):
    """`topics` None asks about all."""

    topics: tuple[ListedTopic, ...] | None
    timeout_ms: Int32 = field(default=60_000, before="topics")


class OngoingPartition(Structure):
    """`replicas` are both sets, the target first."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()


class OngoingTopic(Structure):
    name: String
    partitions: tuple[OngoingPartition, ...]


class ListPartitionReassignmentsResponse(ResponseValue, first=0, last=0, flexible=0):
    topics: tuple[OngoingTopic, ...]
    error_code: Int16 = field(default=0, before="topics")
    error_message: String | None = field(default=NO_MESSAGE, before="topics")
    throttle_time_ms: Int32 = field(default=0, before="error_code")
