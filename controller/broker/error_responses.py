"""For each request the response that reports one error for everything that was asked, laid out as Kafka's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from controller.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlteredReplicaLogDir,
    AlteredReplicaLogDirs,
    AlteredResource,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from controller.protocol.client import (
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
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from controller.protocol.control import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    NO_OFFSET,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderResult,
    OffsetForLeaderTopicResult,
)
from controller.protocol.groups import (
    NO_GENERATION,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartitionResult,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchPartitionResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResult,
    SyncGroupRequest,
    SyncGroupResponse,
)
from controller.protocol.groups import NO_OFFSET as NO_COMMITTED_OFFSET
from controller.protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
)
from controller.protocol.schema import RequestValue, ResponseValue
from controller.protocol.security import (
    AclCreationResult,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    AlteredUserScramCredentials,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from controller.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

P = TypeVar("P")
T = TypeVar("T")


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
            return MetadataResponse((), ())  # see `metadata_response`: no topics without brokers
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
        case DescribeAclsRequest():
            return DescribeAclsResponse(error, message)
        case CreateAclsRequest():
            return CreateAclsResponse(tuple(AclCreationResult(error, message) for _ in request.creations))
        case SaslHandshakeRequest():
            return SaslHandshakeResponse(error, ())
        case SaslAuthenticateRequest():
            return SaslAuthenticateResponse(error, message)
        case DescribeUserScramCredentialsRequest():
            return DescribeUserScramCredentialsResponse(error, message)
        case AlterUserScramCredentialsRequest():
            users = dict.fromkeys([*(a.name for a in request.deletions), *(a.name for a in request.upsertions)])
            return AlterUserScramCredentialsResponse(
                tuple(AlteredUserScramCredentials(user, error, message) for user in users)
            )
        case DescribeClientQuotasRequest():
            return DescribeClientQuotasResponse(error, message)
        case AlterClientQuotasRequest():
            return AlterClientQuotasResponse(
                tuple(AlteredQuotas(error, message, one.entity) for one in request.entries)
            )
        case DeleteAclsRequest():
            return DeleteAclsResponse(tuple(DeleteAclsFilterResult(error, message) for _ in request.filters))
        case _:
            return record_refusal(request, error, message)


def record_refusal(request: RequestValue, error: ErrorCode, message: str | None = None) -> ResponseValue:
    """The error for each partition or resource that the request names; for a fetch also at the top."""
    match request:
        case ProduceRequest():
            return ProduceResponse(
                tuple(
                    ProduceTopicResult(
                        topic.name,
                        tuple(
                            ProducePartitionResult(each.index, error, error_message=message)
                            for each in topic.partition_data
                        ),
                    )
                    for topic in request.topic_data
                )
            )
        case FetchRequest():
            return _fetch(request, error)
        case ListOffsetsRequest():
            return ListOffsetsResponse(
                topic_results(request.topics, ListOffsetsTopicResult, ListOffsetsPartitionResult, error)
            )
        case OffsetForLeaderEpochRequest():
            return _offset_for_leader_epoch(request, error)
        case DeleteRecordsRequest():
            return DeleteRecordsResponse(
                topic_results(request.topics, DeleteRecordsTopicResult, DeleteRecordsPartitionResult, error)
            )
        case InitProducerIdRequest():
            return InitProducerIdResponse(error)
        case FindCoordinatorRequest():
            return FindCoordinatorResponse(error, message)
        case AlterReplicaLogDirsRequest():
            asked = [topic for each in request.dirs for topic in each.topics]
            return AlterReplicaLogDirsResponse(topic_results(asked, AlteredReplicaLogDirs, AlteredReplicaLogDir, error))
        case DescribeLogDirsRequest():
            return DescribeLogDirsResponse((), error)
        case DescribeConfigsRequest():
            return DescribeConfigsResponse(
                tuple(
                    DescribeConfigsResult(error, message, each.resource_type, each.resource_name)
                    for each in request.resources
                )
            )
        case AlterConfigsRequest():
            return AlterConfigsResponse(altered_resources(request.resources, error, message))
        case IncrementalAlterConfigsRequest():
            return IncrementalAlterConfigsResponse(altered_resources(request.resources, error, message))
        case _:
            return group_refusal(request, error)


def group_refusal(request: RequestValue, error: ErrorCode) -> ResponseValue:
    match request:
        case JoinGroupRequest():
            return JoinGroupResponse(error, NO_GENERATION, "", "", request.member_id)
        case SyncGroupRequest():
            return SyncGroupResponse(error, b"")
        case HeartbeatRequest():
            return HeartbeatResponse(error)
        case LeaveGroupRequest():
            return LeaveGroupResponse(error)
        case OffsetCommitRequest():
            return OffsetCommitResponse(
                topic_results(request.topics, OffsetCommitTopicResult, OffsetCommitPartitionResult, error)
            )
        case OffsetFetchRequest():
            return OffsetFetchResponse(
                tuple(
                    OffsetFetchTopicResult(
                        topic.name,
                        tuple(
                            OffsetFetchPartitionResult(one, NO_COMMITTED_OFFSET, "", error)
                            for one in topic.partition_indexes
                        ),
                    )
                    for topic in request.topics or ()
                ),
                error,
            )
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(error, ())
        case DescribeGroupsRequest():
            return DescribeGroupsResponse(tuple(DescribedGroup(error, name, "", "", "", ()) for name in request.groups))
        case ListGroupsRequest():
            return ListGroupsResponse(error, ())
        case DeleteGroupsRequest():
            return DeleteGroupsResponse(tuple(DeletedGroup(name, error) for name in request.groups_names))
        case _:
            return transaction_refusal(request, error)


def transaction_refusal(request: RequestValue, error: ErrorCode) -> ResponseValue:
    match request:
        case AddPartitionsToTxnRequest():
            return AddPartitionsToTxnResponse(
                topic_results(request.topics, AddPartitionsToTxnTopicResult, AddPartitionsToTxnPartitionResult, error)
            )
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(error)
        case EndTxnRequest():
            return EndTxnResponse(error)
        case WriteTxnMarkersRequest():
            return WriteTxnMarkersResponse(tuple(_marker_refused(marker, error) for marker in request.markers))
        case TxnOffsetCommitRequest():
            return TxnOffsetCommitResponse(
                topic_results(request.topics, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition, error)
            )
        case _:
            raise TypeError(f"no error response for a {type(request).__name__}")


def _marker_refused(marker: WritableTxnMarker, error: ErrorCode) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        marker.producer_id,
        tuple(
            WritableTxnMarkerTopicResult(
                topic.name, tuple(WritableTxnMarkerPartitionResult(index, error) for index in topic.partition_indexes)
            )
            for topic in marker.topics
        ),
    )


def topic_results(
    topics: Iterable[Any],
    topic_result: Callable[[str, tuple[P, ...]], T],
    result: Callable[[int, ErrorCode], P],
    errors: ErrorCode | Mapping[tuple[str, int], ErrorCode],
) -> tuple[T, ...]:
    """Each topic's result, with the error for all of its partitions or for each: a request has indexes, or what has
    `partition_index`."""
    return tuple(
        topic_result(
            topic.name,
            tuple(
                result(index, errors if isinstance(errors, ErrorCode) else errors[topic.name, index])
                for index in (getattr(one, "partition_index", one) for one in topic.partitions)
            ),
        )
        for topic in topics
    )


def _fetch(request: FetchRequest, error: ErrorCode) -> FetchResponse:
    topics = tuple(
        FetchTopicData(
            topic.topic, tuple(FetchPartitionData(each.partition, error, NO_OFFSET, b"") for each in topic.partitions)
        )
        for topic in request.topics
    )
    return FetchResponse(topics, error)


def _offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, error: ErrorCode) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        tuple(
            OffsetForLeaderTopicResult(
                topic.topic, tuple(OffsetForLeaderResult(error, each.partition) for each in topic.partitions)
            )
            for topic in request.topics
        )
    )


def altered_resources(
    resources: tuple[AlterConfigsResource, ...] | tuple[IncrementalAlterConfigsResource, ...],
    error: ErrorCode,
    message: str | None,
) -> tuple[AlteredResource, ...]:
    return tuple(AlteredResource(error, message, each.resource_type, each.resource_name) for each in resources)


def topics_named_in(request: LeaderAndIsrRequest) -> tuple[LeaderAndIsrTopicState, ...]:
    """The topics, each once, of which a partition is named: the early responses group rows by name, and can't speak
    of one without rows or of two groups of one name."""
    topics: dict[tuple[str, bytes], LeaderAndIsrTopicState] = {}
    for topic in request.topic_states:
        if topic.partition_states:
            key = (topic.topic_name, topic.topic_id)
            before = topics.get(key)
            if before is None:
                topics[key] = topic
            else:
                topics[key] = replace(topic, partition_states=(*before.partition_states, *topic.partition_states))
    return tuple(topics.values())


def leader_and_isr_error(request: LeaderAndIsrRequest, error: ErrorCode) -> LeaderAndIsrResponse:
    """A whole request refused: the error at its top and for each partition, as Kafka's own."""
    topics = tuple(
        LeaderAndIsrTopicError(
            tuple(LeaderAndIsrPartitionError(state.partition_index, error) for state in topic.partition_states),
            topic.topic_name,
            topic.topic_id,
        )
        for topic in topics_named_in(request)
    )
    return LeaderAndIsrResponse(error, topics)
