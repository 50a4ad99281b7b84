"""Messages of transactions: adding partitions and offsets, ending, and the markers that a coordinator has written.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks.
"""

from __future__ import annotations

from controller.protocol.groups import NO_EPOCH, NO_GENERATION, NO_MEMBER
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


class AddPartitionsToTxnTopic(Structure):
    name: String
    partitions: tuple[Int32, ...]


class AddPartitionsToTxnRequest(RequestValue, first=0, last=3, flexible=3):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[AddPartitionsToTxnTopic, ...]


class AddPartitionsToTxnPartitionResult(Structure):
    partition_index: Int32
    error_code: Int16


class AddPartitionsToTxnTopicResult(Structure):
    name: String
    results: tuple[AddPartitionsToTxnPartitionResult, ...]


class AddPartitionsToTxnResponse(ResponseValue, first=0, last=3, flexible=3):
    results: tuple[AddPartitionsToTxnTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, before="results")


class AddOffsetsToTxnRequest(RequestValue, first=0, last=3, flexible=3):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(ResponseValue, first=0, last=3, flexible=3):
    error_code: Int16
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class EndTxnRequest(RequestValue, first=0, last=3, flexible=3):
    """`committed` False: it is aborted."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(ResponseValue, first=0, last=3, flexible=3):
    error_code: Int16
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class WritableTxnMarkerTopic(Structure):
    name: String
    partition_indexes: tuple[Int32, ...]


class WritableTxnMarker(Structure):
    """`transaction_result` True: it commits. `coordinator_epoch`: the leader epoch of the coordinator's partition."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32


class WriteTxnMarkersRequest(RequestValue, first=0, last=1, flexible=1):
    """From a transaction's coordinator to the leaders of its partitions."""

    markers: tuple[WritableTxnMarker, ...]


class WritableTxnMarkerPartitionResult(Structure):
    partition_index: Int32
    error_code: Int16


class WritableTxnMarkerTopicResult(Structure):
    name: String
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


class WritableTxnMarkerResult(Structure):
    producer_id: Int64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


class WriteTxnMarkersResponse(ResponseValue, first=0, last=1, flexible=1):
    markers: tuple[WritableTxnMarkerResult, ...]


class TxnOffsetCommitRequestPartition(Structure):
    partition_index: Int32
    committed_offset: Int64
    committed_metadata: String | None
    committed_leader_epoch: Int32 = field(default=NO_EPOCH, since=2, before="committed_metadata")


class TxnOffsetCommitRequestTopic(Structure):
    name: String
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


class TxnOffsetCommitRequest(RequestValue, first=0, last=3, flexible=3):
    """`generation_id` -1 and `member_id` "": not checked."""

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TxnOffsetCommitRequestTopic, ...]
    generation_id: Int32 = field(default=NO_GENERATION, since=3, must=True, before="topics")
    member_id: String = field(default=NO_MEMBER, since=3, must=True, before="topics")
    group_instance_id: String | None = field(default=None, since=3, must=True, before="topics")


class TxnOffsetCommitResponsePartition(Structure):
    partition_index: Int32
    error_code: Int16


class TxnOffsetCommitResponseTopic(Structure):
    name: String
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


class TxnOffsetCommitResponse(ResponseValue, first=0, last=3, flexible=3):
    topics: tuple[TxnOffsetCommitResponseTopic, ...]
    throttle_time_ms: Int32 = field(default=0, before="topics")


# What the topic __transaction_state holds: a key and a value for each transactional id. Both begin with their version
# as an int16.


class TransactionLogKey(RequestValue, first=0, last=0):
    transactional_id: String


class PartitionsSchema(Structure):
    topic: String
    partition_ids: tuple[Int32, ...]


class TransactionLogValue(RequestValue, first=0, last=0):
    """`transaction_status`: the number of a TransactionState. `transaction_partitions` is null where there is no
    transaction."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: tuple[PartitionsSchema, ...] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
