"""For each request the response that says nothing but an error, laid out as Kafka lays it out. Pure."""

from __future__ import annotations

from controller.broker.records.record_refusals import record_refusal
from controller.broker.replica_manager import leader_and_isr_error
from controller.protocol.client_values import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from controller.protocol.cluster_values import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from controller.protocol.control_values import (
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from controller.protocol.election_values import (
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.messages import RequestValue, ResponseValue
from controller.protocol.reassignment_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def refusal(request: RequestValue, error: ErrorCode, message: str | None = None) -> ResponseValue:
    """Return the response that refuses the whole request; `message` is included if the response has a field for it."""
    match request:
        case LeaderAndIsrRequest():
            return leader_and_isr_error(request, error)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error)
        case StopReplicaRequest():
            return StopReplicaResponse(error)
        case ControlledShutdownRequest():
            return ControlledShutdownResponse(error)
        case AlterIsrRequest():
            return AlterIsrResponse(error)
        case ApiVersionsRequest():
            return ApiVersionsResponse(error, ())
        case MetadataRequest():
            names = [topic for topic in request.topics or () if topic.name is not None]
            return MetadataResponse((), tuple(MetadataResponseTopic(error, topic.name or "", ()) for topic in names))
        case CreateTopicsRequest():
            return CreateTopicsResponse(
                tuple(CreatableTopicResult(topic.name, error, message) for topic in request.topics)
            )
        case DeleteTopicsRequest():
            return DeleteTopicsResponse(
                tuple(DeletableTopicResult(topic.name, error, message, topic.topic_id) for topic in request.topics)
            )
        case CreatePartitionsRequest():
            return CreatePartitionsResponse(
                tuple(CreatePartitionsTopicResult(topic.name, error, message) for topic in request.topics)
            )
        case ElectLeadersRequest():
            if request.topic_partitions is None:
                return ElectLeadersResponse((), error)
            return ElectLeadersResponse(
                tuple(
                    ElectedTopic(topic.topic, tuple(ElectedPartition(one, error, message) for one in topic.partitions))
                    for topic in request.topic_partitions
                )
            )
        case AlterPartitionReassignmentsRequest():
            return AlterPartitionReassignmentsResponse((), error, message)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignmentsResponse((), error, message)
        case UpdateFeaturesRequest():
            return UpdateFeaturesResponse(error, message)
        case AllocateProducerIdsRequest():
            return AllocateProducerIdsResponse(error)
        case _:
            return record_refusal(request, error, message)
