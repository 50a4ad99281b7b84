"""The values of what producers ask: records to append, and an id to number them by.

As in `control_values`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for
those that a version lacks. Only values live here.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.protocol.records import Records

# ProduceRequest.acks
ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class ProducePartition:
    """`records`: one batch from version 3 on (Kafka's rule, not checked here), message sets before; None is refused
    by a broker."""

    index: int
    records: Records | None


@dataclass(frozen=True, slots=True)
class ProduceTopic:
    name: str
    partition_data: tuple[ProducePartition, ...]


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Not answered at all when `acks` is 0."""

    acks: int
    timeout_ms: int
    topic_data: tuple[ProduceTopic, ...]
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProduceRecordError:
    batch_index: int
    batch_index_error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ProducePartitionResult:
    """`log_append_time_ms` is -1 unless the topic has the broker's time in its records."""

    index: int
    error_code: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    record_errors: tuple[ProduceRecordError, ...] = ()
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ProduceTopicResult:
    name: str
    partition_responses: tuple[ProducePartitionResult, ...]


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    responses: tuple[ProduceTopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """`producer_id` and `producer_epoch`: what a producer had, when it asks for the next epoch of it."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    error_code: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    throttle_time_ms: int = 0
