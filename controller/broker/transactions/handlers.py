"""The requests about transactions: from the fields of a request to the coordinator's call, and back; and the markers
that coordinators have this broker write.

Producers that do not know PRODUCER_FENCED are sent INVALID_PRODUCER_EPOCH. Source: Kafka 2.8's KafkaApis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from controller.broker.error_responses import topic_results
from controller.broker.groups.coordinator import Errors, GroupCoordinator
from controller.broker.groups.group import TopicPartition
from controller.broker.groups.offsets_topic import OFFSETS_TOPIC, CommittedOffset
from controller.broker.metadata import INTERNAL_TOPICS, MetadataCache
from controller.broker.records.writes import ProduceHandler
from controller.broker.request_context import SLICE, Drive, Handler, RequestContext, Steps
from controller.broker.settings import BrokerSettings
from controller.broker.transactions.coordinator import ProducerIdAndEpoch, TransactionCoordinator
from controller.clock import Clock
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.groups import NO_EPOCH, NO_TIMESTAMP
from controller.protocol.produce import (
    ACKS_ALL,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
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
from controller.storage.transactions import Marker, Origin, encode_marker

PRODUCE_VERSION = 8
_KNOWS_FENCED = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""From which version on a client knows PRODUCER_FENCED."""
_KNOWS_LOADING = 2
"""From this version of TxnOffsetCommit on a client knows COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""
GiveId = Callable[[Callable[[InitProducerIdResponse], None]], None]


def _known(exchange: RequestContext, error: int) -> ErrorCode:
    """The error as the client's version of the request knows it."""
    header = exchange.header
    if error == ErrorCode.PRODUCER_FENCED and header.api_version < _KNOWS_FENCED[header.api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode(error)


@dataclass(eq=False)
class TransactionHandlers:
    """`_give_id` gives a producer without a transactional id its id."""

    _coordinator: TransactionCoordinator
    _groups: GroupCoordinator
    _markers: MarkerHandler
    _metadata: MetadataCache
    _give_id: GiveId
    _clock: Clock

    @property
    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.WRITE_TXN_MARKERS: self._write_markers,
        }

    def _init(self, exchange: RequestContext, request: InitProducerIdRequest) -> None:
        def answer(response: InitProducerIdResponse) -> None:
            error = _known(exchange, response.error_code)
            exchange.answer(msgspec.structs.replace(response, error_code=error))

        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            answer(InitProducerIdResponse(ErrorCode.INVALID_REQUEST))  # an id without an epoch, or an epoch of none
        elif request.transactional_id is None:
            self._give_id(answer)
        else:
            expected = None
            if request.producer_id != NO_PRODUCER_ID:
                expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            self._coordinator.init(request.transactional_id, request.transaction_timeout_ms, expected, answer)

    def _add_partitions(self, exchange: RequestContext, request: AddPartitionsToTxnRequest) -> Steps:
        partitions: dict[TopicPartition, ErrorCode] = {}
        topics = self._metadata.snapshot.topics
        for topic in request.topics:
            for index in topic.partitions:
                error = ErrorCode.OPERATION_NOT_ATTEMPTED
                if topic.name in INTERNAL_TOPICS:
                    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif index not in topics.get(topic.name, ()):
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partitions[topic.name, index] = error
                if len(partitions) % SLICE == 0:
                    yield None
        if any(error is not ErrorCode.OPERATION_NOT_ATTEMPTED for error in partitions.values()):
            exchange.answer_made(lambda: _added(request, partitions))
            return

        def answer(error: ErrorCode) -> None:
            known = _known(exchange, error)
            exchange.answer_made(lambda: _added(request, dict.fromkeys(partitions, known)))

        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        self._coordinator.add_partitions(request.transactional_id, producer, partitions, answer)

    def _add_offsets(self, exchange: RequestContext, request: AddOffsetsToTxnRequest) -> None:
        partition = (OFFSETS_TOPIC, self._groups.partition_of(request.group_id))
        self._coordinator.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            (partition,),
            lambda error: exchange.answer(AddOffsetsToTxnResponse(_known(exchange, error))),
        )

    def _end(self, exchange: RequestContext, request: EndTxnRequest) -> None:
        self._coordinator.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            commits=request.committed,
            answer=lambda error: exchange.answer(EndTxnResponse(_known(exchange, error))),
        )

    def _commit_offsets(self, exchange: RequestContext, request: TxnOffsetCommitRequest) -> Steps:
        now_ms = self._clock.wall_ms()
        offsets: dict[TopicPartition, CommittedOffset] = {}
        unknown: dict[TopicPartition, ErrorCode] = {}
        topics = self._metadata.snapshot.topics
        for topic in request.topics:
            for one in topic.partitions:
                key = (topic.name, one.partition_index)
                if one.partition_index not in topics.get(topic.name, ()):
                    unknown[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    offsets[key] = CommittedOffset(
                        one.committed_offset,
                        max(one.committed_leader_epoch, NO_EPOCH),
                        one.committed_metadata or "",
                        now_ms,
                        NO_TIMESTAMP,
                    )
                if (len(offsets) + len(unknown)) % SLICE == 0:
                    yield None
        old = exchange.header.api_version < _KNOWS_LOADING

        def answer(errors: Errors) -> None:
            exchange.answer_made(lambda: _offsets_committed(request, {**errors, **unknown}, old))

        if not offsets:
            answer({})
            return
        yield from self._groups.commit_in_transaction(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            (request.producer_id, request.producer_epoch),
            offsets,
            answer,
        )

    def _write_markers(self, exchange: RequestContext, request: WriteTxnMarkersRequest) -> None:
        self._markers.write(request, exchange.answer)


class MarkerHandler:
    """WriteTxnMarkers: a control batch for each partition, answered when all that were written are replicated. Offsets
    that the transaction has committed count, or are dropped, once the marker is in their partition."""

    def __init__(
        self, settings: BrokerSettings, produce: ProduceHandler, groups: GroupCoordinator, clock: Clock, drive: Drive
    ) -> None:
        self._settings = settings
        self._produce = produce
        self._groups = groups
        self._clock = clock
        self._drive = drive

    def write(self, request: WriteTxnMarkersRequest, answer: Callable[[WriteTxnMarkersResponse], None]) -> None:
        results: list[WritableTxnMarkerResult | None] = [None] * len(request.markers)
        left = len(results)
        if not left:
            answer(WriteTxnMarkersResponse(()))

        def written(place: int, marker: WritableTxnMarker, response: ProduceResponse) -> None:
            nonlocal left
            results[place] = self._written(marker, response)
            left -= 1
            if not left:
                answer(WriteTxnMarkersResponse(tuple(one for one in results if one is not None)))

        for place, marker in enumerate(request.markers):
            self._write(marker, partial(written, place, marker))

    def _write(self, marker: WritableTxnMarker, then: Callable[[ProduceResponse], None]) -> None:
        what = Marker(marker.transaction_result, marker.coordinator_epoch)
        batch = encode_marker(marker.producer_id, marker.producer_epoch, what, self._clock.wall_ms())
        topics = tuple(
            ProduceTopic(topic.name, tuple(ProducePartition(index, batch) for index in topic.partition_indexes))
            for topic in marker.topics
        )
        request = ProduceRequest(ACKS_ALL, self._settings.request_timeout_ms, topics)
        self._drive(self._produce.handle(request, PRODUCE_VERSION, then, origin=Origin.COORDINATOR))

    def _written(self, marker: WritableTxnMarker, response: ProduceResponse) -> WritableTxnMarkerResult:
        topics = []
        for topic in response.responses:
            for one in topic.partition_responses:
                if topic.name == OFFSETS_TOPIC and one.error_code == ErrorCode.NONE:
                    commits = marker.transaction_result
                    self._groups.end_transaction(one.index, marker.producer_id, commits=commits)
            results = (WritableTxnMarkerPartitionResult(one.index, one.error_code) for one in topic.partition_responses)
            topics.append(WritableTxnMarkerTopicResult(topic.name, tuple(results)))
        return WritableTxnMarkerResult(marker.producer_id, tuple(topics))


def _added(
    request: AddPartitionsToTxnRequest, errors: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        topic_results(request.topics, AddPartitionsToTxnTopicResult, AddPartitionsToTxnPartitionResult, errors)
    )


def _offsets_committed(request: TxnOffsetCommitRequest, errors: Errors, old: bool) -> TxnOffsetCommitResponse:
    def result(index: int, error: ErrorCode) -> TxnOffsetCommitResponsePartition:
        loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return TxnOffsetCommitResponsePartition(
            index, ErrorCode.COORDINATOR_NOT_AVAILABLE if loading and old else error
        )

    return TxnOffsetCommitResponse(topic_results(request.topics, TxnOffsetCommitResponseTopic, result, errors))
