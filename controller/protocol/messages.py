"""Which message tables belong to which API: the one list of what is spoken here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from controller.protocol import (
    admin_schemas,
    client_schemas,
    cluster_schemas,
    control_schemas,
    election_schemas,
    fetch_schemas,
    produce_schemas,
    reassignment_schemas,
)
from controller.protocol.admin_values import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from controller.protocol.api_keys import ApiKey
from controller.protocol.client_values import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataRequest,
    MetadataResponse,
)
from controller.protocol.cluster_values import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from controller.protocol.control_values import (
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from controller.protocol.election_values import ElectLeadersRequest, ElectLeadersResponse
from controller.protocol.fetch_values import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from controller.protocol.produce_values import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from controller.protocol.reassignment_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from controller.protocol.schema import Message

RequestValue: TypeAlias = (
    LeaderAndIsrRequest
    | UpdateMetadataRequest
    | StopReplicaRequest
    | ControlledShutdownRequest
    | AlterIsrRequest
    | ApiVersionsRequest
    | MetadataRequest
    | CreateTopicsRequest
    | CreatePartitionsRequest
    | DeleteTopicsRequest
    | ElectLeadersRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | ProduceRequest
    | FetchRequest
    | ListOffsetsRequest
    | OffsetForLeaderEpochRequest
    | InitProducerIdRequest
    | DeleteRecordsRequest
    | DescribeConfigsRequest
    | AlterConfigsRequest
    | IncrementalAlterConfigsRequest
    | FindCoordinatorRequest
    | UpdateFeaturesRequest
    | AllocateProducerIdsRequest
    | DescribeLogDirsRequest
)
ResponseValue: TypeAlias = (
    LeaderAndIsrResponse
    | UpdateMetadataResponse
    | StopReplicaResponse
    | ControlledShutdownResponse
    | AlterIsrResponse
    | ApiVersionsResponse
    | MetadataResponse
    | CreateTopicsResponse
    | CreatePartitionsResponse
    | DeleteTopicsResponse
    | ElectLeadersResponse
    | AlterPartitionReassignmentsResponse
    | ListPartitionReassignmentsResponse
    | ProduceResponse
    | FetchResponse
    | ListOffsetsResponse
    | OffsetForLeaderEpochResponse
    | InitProducerIdResponse
    | DeleteRecordsResponse
    | DescribeConfigsResponse
    | AlterConfigsResponse
    | IncrementalAlterConfigsResponse
    | FindCoordinatorResponse
    | UpdateFeaturesResponse
    | AllocateProducerIdsResponse
    | DescribeLogDirsResponse
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response; both have the same versions and become flexible in the same one."""

    request: Message
    response: Message


CLUSTER_MESSAGES: Mapping[ApiKey, Exchange] = MappingProxyType(
    {
        ApiKey.METADATA: Exchange(client_schemas.METADATA_REQUEST, client_schemas.METADATA_RESPONSE),
        ApiKey.LEADER_AND_ISR: Exchange(
            control_schemas.LEADER_AND_ISR_REQUEST, control_schemas.LEADER_AND_ISR_RESPONSE
        ),
        ApiKey.STOP_REPLICA: Exchange(control_schemas.STOP_REPLICA_REQUEST, control_schemas.STOP_REPLICA_RESPONSE),
        ApiKey.UPDATE_METADATA: Exchange(
            control_schemas.UPDATE_METADATA_REQUEST, control_schemas.UPDATE_METADATA_RESPONSE
        ),
        ApiKey.CONTROLLED_SHUTDOWN: Exchange(
            control_schemas.CONTROLLED_SHUTDOWN_REQUEST, control_schemas.CONTROLLED_SHUTDOWN_RESPONSE
        ),
        ApiKey.API_VERSIONS: Exchange(client_schemas.API_VERSIONS_REQUEST, client_schemas.API_VERSIONS_RESPONSE),
        ApiKey.CREATE_TOPICS: Exchange(client_schemas.CREATE_TOPICS_REQUEST, client_schemas.CREATE_TOPICS_RESPONSE),
        ApiKey.DELETE_TOPICS: Exchange(client_schemas.DELETE_TOPICS_REQUEST, client_schemas.DELETE_TOPICS_RESPONSE),
        ApiKey.CREATE_PARTITIONS: Exchange(
            client_schemas.CREATE_PARTITIONS_REQUEST, client_schemas.CREATE_PARTITIONS_RESPONSE
        ),
        ApiKey.ELECT_LEADERS: Exchange(election_schemas.ELECT_LEADERS_REQUEST, election_schemas.ELECT_LEADERS_RESPONSE),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Exchange(
            reassignment_schemas.ALTER_PARTITION_REASSIGNMENTS_REQUEST,
            reassignment_schemas.ALTER_PARTITION_REASSIGNMENTS_RESPONSE,
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Exchange(
            reassignment_schemas.LIST_PARTITION_REASSIGNMENTS_REQUEST,
            reassignment_schemas.LIST_PARTITION_REASSIGNMENTS_RESPONSE,
        ),
        ApiKey.ALTER_ISR: Exchange(control_schemas.ALTER_ISR_REQUEST, control_schemas.ALTER_ISR_RESPONSE),
        ApiKey.UPDATE_FEATURES: Exchange(
            cluster_schemas.UPDATE_FEATURES_REQUEST, cluster_schemas.UPDATE_FEATURES_RESPONSE
        ),
        ApiKey.ALLOCATE_PRODUCER_IDS: Exchange(
            cluster_schemas.ALLOCATE_PRODUCER_IDS_REQUEST, cluster_schemas.ALLOCATE_PRODUCER_IDS_RESPONSE
        ),
    }
)
"""What is asked of a cluster that needs not hold records: the control plane, metadata and topics."""

RECORD_MESSAGES: Mapping[ApiKey, Exchange] = MappingProxyType(
    {
        ApiKey.PRODUCE: Exchange(produce_schemas.PRODUCE_REQUEST, produce_schemas.PRODUCE_RESPONSE),
        ApiKey.FETCH: Exchange(fetch_schemas.FETCH_REQUEST, fetch_schemas.FETCH_RESPONSE),
        ApiKey.LIST_OFFSETS: Exchange(fetch_schemas.LIST_OFFSETS_REQUEST, fetch_schemas.LIST_OFFSETS_RESPONSE),
        ApiKey.FIND_COORDINATOR: Exchange(
            admin_schemas.FIND_COORDINATOR_REQUEST, admin_schemas.FIND_COORDINATOR_RESPONSE
        ),
        ApiKey.DELETE_RECORDS: Exchange(admin_schemas.DELETE_RECORDS_REQUEST, admin_schemas.DELETE_RECORDS_RESPONSE),
        ApiKey.INIT_PRODUCER_ID: Exchange(
            produce_schemas.INIT_PRODUCER_ID_REQUEST, produce_schemas.INIT_PRODUCER_ID_RESPONSE
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Exchange(
            fetch_schemas.OFFSET_FOR_LEADER_EPOCH_REQUEST, fetch_schemas.OFFSET_FOR_LEADER_EPOCH_RESPONSE
        ),
        ApiKey.DESCRIBE_CONFIGS: Exchange(
            admin_schemas.DESCRIBE_CONFIGS_REQUEST, admin_schemas.DESCRIBE_CONFIGS_RESPONSE
        ),
        ApiKey.ALTER_CONFIGS: Exchange(admin_schemas.ALTER_CONFIGS_REQUEST, admin_schemas.ALTER_CONFIGS_RESPONSE),
        ApiKey.DESCRIBE_LOG_DIRS: Exchange(
            cluster_schemas.DESCRIBE_LOG_DIRS_REQUEST, cluster_schemas.DESCRIBE_LOG_DIRS_RESPONSE
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Exchange(
            admin_schemas.INCREMENTAL_ALTER_CONFIGS_REQUEST, admin_schemas.INCREMENTAL_ALTER_CONFIGS_RESPONSE
        ),
    }
)
"""What is asked of brokers that hold records, and of their settings."""

MESSAGES: Mapping[ApiKey, Exchange] = MappingProxyType({**CLUSTER_MESSAGES, **RECORD_MESSAGES})
