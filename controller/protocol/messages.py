"""Which message tables belong to which API: the one list of what is spoken here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from controller.protocol import client_schemas, control_schemas
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
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response; both have the same versions and become flexible in the same one."""

    request: Message
    response: Message


MESSAGES: Mapping[ApiKey, Exchange] = MappingProxyType(
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
        ApiKey.ALTER_ISR: Exchange(control_schemas.ALTER_ISR_REQUEST, control_schemas.ALTER_ISR_RESPONSE),
    }
)
