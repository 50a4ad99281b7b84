"""Messages of any client: supported versions, metadata, topics and partitions to create, coordinators to find.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.protocol.control import NO_TOPIC_ID
from controller.protocol.schema import (
    Adaptation,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    RequestValue,
    ResponseValue,
    String,
    Structure,
    Uuid,
    field,
)

# "Not asked for": what the authorized-operations fields hold unless the request asked.
NO_AUTHORIZED_OPERATIONS = -(2**31)

# ConfigSource, as CreateTopicsResponse reports where a topic's setting came from.
CONFIG_SOURCE_TOPIC = 1
CONFIG_SOURCE_DYNAMIC_BROKER = 2
CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER = 3
CONFIG_SOURCE_STATIC_BROKER = 4
CONFIG_SOURCE_DEFAULT = 5
CONFIG_SOURCE_DYNAMIC_BROKER_LOGGER = 6


class ApiVersionsRequest(RequestValue, first=0, last=3, flexible=3):
    client_software_name: String = field(default="", since=3)
    client_software_version: String = field(default="", since=3)


class ApiVersion(Structure):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeature(Structure):
    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeature(Structure):
    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(ResponseValue, first=0, last=3, flexible=3):
    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Int32 = field(default=0, since=1)
    supported_features: tuple[SupportedFeature, ...] = field(default=(), since=3, tag=0)
    finalized_features_epoch: Int64 = field(default=-1, since=3, tag=1)
    finalized_features: tuple[FinalizedFeature, ...] = field(default=(), since=3, tag=2)


class MetadataRequestTopic(Structure):
    """A topic by name, or (from version 10) by id with the name None."""

    name: String | None = field(nullable=10)
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=10, before="name")


def _none_is_all(request: MetadataRequest) -> MetadataRequest:
    return request if request.topics else replace(request, topics=None)


def _all_is_none(request: MetadataRequest) -> MetadataRequest:
    if request.topics is None:
        return replace(request, topics=())
    if not request.topics:
        raise ValueError("Metadata version 0 can't ask for no topics: an empty list asks for all")
    return request


class MetadataRequest(RequestValue, first=0, last=11, flexible=9, adaptation=Adaptation(0, _none_is_all, _all_is_none)):
    """`topics` None asks for all topics, () for none. Version 0 can't ask for none: () on the wire is None here."""

    topics: tuple[MetadataRequestTopic, ...] | None = field(nullable=1)
    allow_auto_topic_creation: Bool = field(default=True, since=4, must=True)
    include_cluster_authorized_operations: Bool = field(default=False, since=8, until=10, must=True)
    include_topic_authorized_operations: Bool = field(default=False, since=8, must=True)


class MetadataResponseBroker(Structure):
    node_id: Int32
    host: String
    port: Int32
    rack: String | None = field(default=None, since=1)


class MetadataResponsePartition(Structure):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    leader_epoch: Int32 = field(default=-1, since=7, before="replica_nodes")
    offline_replicas: tuple[Int32, ...] = field(default=(), since=5)


class MetadataResponseTopic(Structure):
    error_code: Int16
    name: String
    partitions: tuple[MetadataResponsePartition, ...] = field(before="topic_authorized_operations")
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=10)
    is_internal: Bool = field(default=False, since=1)
    topic_authorized_operations: Int32 = field(default=NO_AUTHORIZED_OPERATIONS, since=8)


class MetadataResponse(ResponseValue, first=0, last=11, flexible=9):
    brokers: tuple[MetadataResponseBroker, ...]
    topics: tuple[MetadataResponseTopic, ...] = field(before="cluster_authorized_operations")
    cluster_id: String | None = field(default=None, since=2)
    controller_id: Int32 = field(default=-1, since=1)
    throttle_time_ms: Int32 = field(default=0, since=3, before="brokers")
    cluster_authorized_operations: Int32 = field(default=NO_AUTHORIZED_OPERATIONS, since=8, until=10)


class CreatableReplicaAssignment(Structure):
    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class CreatableTopicConfig(Structure):
    name: String
    value: String | None


class CreatableTopic(Structure):
    """`num_partitions` and `replication_factor` are -1 for the broker's defaults (from version 4) or when
    `assignments` says it all."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


class CreateTopicsRequest(RequestValue, first=0, last=7, flexible=5):
    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60_000
    validate_only: Bool = field(default=False, since=1, must=True)


class CreatableTopicConfigs(Structure):
    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Structure):
    name: String
    error_code: Int16
    error_message: String | None = field(default=None, since=1)
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=7, before="error_code")
    num_partitions: Int32 = field(default=-1, since=5)
    replication_factor: Int16 = field(default=-1, since=5)
    configs: tuple[CreatableTopicConfigs, ...] | None = field(default=(), since=5)
    topic_config_error_code: Int16 = field(default=0, since=5, tag=0)


class CreateTopicsResponse(ResponseValue, first=0, last=7, flexible=5):
    topics: tuple[CreatableTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, since=2, before="topics")


class CreatePartitionsAssignment(Structure):
    broker_ids: tuple[Int32, ...]


class CreatePartitionsTopic(Structure):
    """`count` is the new total; `assignments` is for the added partitions alone, None for the broker's choice."""

    name: String
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


class CreatePartitionsRequest(RequestValue, first=0, last=3, flexible=2):
    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: Bool = False


class CreatePartitionsTopicResult(Structure):
    name: String
    error_code: Int16
    error_message: String | None = None


class CreatePartitionsResponse(ResponseValue, first=0, last=3, flexible=2):
    results: tuple[CreatePartitionsTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


class DeleteTopicState(Structure, bare_until=5):
    """A topic by name, or (from version 6) by id with the name None."""

    name: String | None = field(nullable=6)
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=6, must=True)


class DeleteTopicsRequest(RequestValue, first=0, last=6, flexible=4):
    topics: tuple[DeleteTopicState, ...]
    timeout_ms: Int32 = 60_000


class DeletableTopicResult(Structure):
    name: String | None = field(nullable=6)
    error_code: Int16
    error_message: String | None = field(default=None, since=5)
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=6, before="error_code")


class DeleteTopicsResponse(ResponseValue, first=0, last=6, flexible=4):
    responses: tuple[DeletableTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, since=1, before="responses")


# FindCoordinatorRequest.key_type
COORDINATOR_OF_GROUP = 0
COORDINATOR_OF_TRANSACTION = 1
NO_NODE = -1


class FindCoordinatorRequest(RequestValue, first=0, last=3, flexible=3):
    key: String
    key_type: Int8 = field(default=COORDINATOR_OF_GROUP, since=1, must=True)


class FindCoordinatorResponse(ResponseValue, first=0, last=3, flexible=3):
    """With an error there is no coordinator: the other fields keep their defaults."""

    error_code: Int16
    error_message: String | None = field(default=None, since=1)
    node_id: Int32 = NO_NODE
    host: String = ""
    port: Int32 = -1
    throttle_time_ms: Int32 = field(default=0, since=1, before="error_code")
