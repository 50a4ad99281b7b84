"""Messages of producers: records to append, and an id to number them by.

As in `control`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for those
that a version lacks.
"""

from __future__ import annotations

from controller.protocol.schema import (
    Int16,
    Int32,
    Int64,
    Records,
    RequestValue,
    ResponseValue,
    String,
    Structure,
    field,
)

# ProduceRequest.acks
ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1


class ProducePartition(Structure):
    """`records`: one batch from version 3 on (Kafka's rule, not checked here), message sets before; None is refused
    by a broker."""

    index: Int32
    records: Records | None


class ProduceTopic(Structure):
    name: String
    partition_data: tuple[ProducePartition, ...]


class ProduceRequest(RequestValue, first=0, last=9, flexible=9):
    """Not answered at all when `acks` is 0."""

    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[ProduceTopic, ...]
    transactional_id: String | None = field(default=None, since=3, must=True, before="acks")


class ProduceRecordError(Structure):
    batch_index: Int32
    batch_index_error_message: String | None = field(default=None, nullable=8)


class ProducePartitionResult(Structure):
    """`log_append_time_ms` is -1 unless the topic has the broker's time in its records."""

    index: Int32
    error_code: Int16
    base_offset: Int64 = NO_OFFSET
    log_append_time_ms: Int64 = field(default=NO_TIMESTAMP, since=2)
    log_start_offset: Int64 = field(default=NO_OFFSET, since=5)
    record_errors: tuple[ProduceRecordError, ...] = field(default=(), since=8)
    error_message: String | None = field(default=None, since=8)


class ProduceTopicResult(Structure):
    name: String
    partition_responses: tuple[ProducePartitionResult, ...]


class ProduceResponse(ResponseValue, first=0, last=9, flexible=9):
    responses: tuple[ProduceTopicResult, ...]
    throttle_time_ms: Int32 = field(default=0, since=1)


class InitProducerIdRequest(RequestValue, first=0, last=4, flexible=2):
    """`producer_id` and `producer_epoch`: what a producer had, when it asks for the next epoch of it."""

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field(default=NO_PRODUCER_ID, since=3, must=True)
    producer_epoch: Int16 = field(default=NO_PRODUCER_EPOCH, since=3, must=True)


class InitProducerIdResponse(ResponseValue, first=0, last=4, flexible=2):
    error_code: Int16
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = NO_PRODUCER_EPOCH
    throttle_time_ms: Int32 = field(default=0, before="error_code")
