"""The values of administrative requests: records to delete, configs to describe and to alter; and of coordinator
lookups.

As in `control_values`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for
those that a version lacks. Only values live here. The CONFIG_SOURCE_ numbers of `client_values` say where a config's
value comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

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

# FindCoordinatorRequest.key_type
COORDINATOR_OF_GROUP = 0
COORDINATOR_OF_TRANSACTION = 1

UP_TO_HIGH_WATERMARK = -1
"""DeleteRecordsPartition.offset: all that is below the high watermark."""
NO_LOW_WATERMARK = -1
NO_NODE = -1


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """Records before `offset` go."""

    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartitionResult:
    """`low_watermark`: the lowest log start offset of the live replicas, once all have deleted."""

    partition_index: int
    error_code: int
    low_watermark: int = NO_LOW_WATERMARK


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    topics: tuple[DeleteRecordsTopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribeConfigsResource:
    """`configuration_keys` None asks for all. A broker's name is its id as text, "" for the default of all."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """`value` is None for a sensitive setting. `is_default` is version 0's way to say `config_source`."""

    name: str
    value: str | None
    read_only: bool
    is_sensitive: bool = False
    config_source: int = -1
    is_default: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    config_type: int = CONFIG_TYPE_UNKNOWN
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeConfigsResult:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[DescribedConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse:
    results: tuple[DescribeConfigsResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplacedConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class AlterConfigsResource:
    """`configs` take the place of all that the resource has: what is not among them goes back to its default."""

    resource_type: int
    resource_name: str
    configs: tuple[ReplacedConfig, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlteredResource:
    """AlterConfigs' and IncrementalAlterConfigs' word on one resource."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    responses: tuple[AlteredResource, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    """`config_operation`: an OPERATION_ number; `value` is None for a deletion."""

    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResource:
    """What is not among `configs` stays as it is."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResponse:
    responses: tuple[AlteredResource, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    key: str
    key_type: int = COORDINATOR_OF_GROUP


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    """With an error there is no coordinator: the other fields keep their defaults."""

    error_code: int
    error_message: str | None = None
    node_id: int = NO_NODE
    host: str = ""
    port: int = -1
    throttle_time_ms: int = 0
