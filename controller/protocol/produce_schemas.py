"""The field tables of Produce and InitProducerId, in the versions of Kafka 2.8: facts of the protocol only, in the
order of the wire. Values are in `produce_values`.
"""

from __future__ import annotations

from controller.protocol import produce_values as v
from controller.protocol.schema import INT16, INT32, INT64, RECORDS, TEXT, Array, Field, Message, Struct

# --- Produce, 0-9, flexible from 9

_PARTITION = Struct(v.ProducePartition, (Field("index", INT32), Field("records", RECORDS, nullable=0)))
_TOPIC = Struct(v.ProduceTopic, (Field("name", TEXT), Field("partition_data", Array(_PARTITION))))
PRODUCE_REQUEST = Message(
    Struct(
        v.ProduceRequest,
        (
            Field("transactional_id", TEXT, since=3, nullable=3, must=True),
            Field("acks", INT16),
            Field("timeout_ms", INT32),
            Field("topic_data", Array(_TOPIC)),
        ),
    ),
    first=0,
    last=9,
    flexible=9,
)
_RECORD_ERROR = Struct(
    v.ProduceRecordError, (Field("batch_index", INT32), Field("batch_index_error_message", TEXT, nullable=8))
)
_PARTITION_RESULT = Struct(
    v.ProducePartitionResult,
    (
        Field("index", INT32),
        Field("error_code", INT16),
        Field("base_offset", INT64),
        Field("log_append_time_ms", INT64, since=2),
        Field("log_start_offset", INT64, since=5),
        Field("record_errors", Array(_RECORD_ERROR), since=8),
        Field("error_message", TEXT, since=8, nullable=8),
    ),
)
PRODUCE_RESPONSE = Message(
    Struct(
        v.ProduceResponse,
        (
            Field(
                "responses",
                Array(
                    Struct(
                        v.ProduceTopicResult,
                        (Field("name", TEXT), Field("partition_responses", Array(_PARTITION_RESULT))),
                    )
                ),
            ),
            Field("throttle_time_ms", INT32, since=1),
        ),
    ),
    first=0,
    last=9,
    flexible=9,
)

# --- InitProducerId, 0-4, flexible from 2

INIT_PRODUCER_ID_REQUEST = Message(
    Struct(
        v.InitProducerIdRequest,
        (
            Field("transactional_id", TEXT, nullable=0),
            Field("transaction_timeout_ms", INT32),
            Field("producer_id", INT64, since=3, must=True),
            Field("producer_epoch", INT16, since=3, must=True),
        ),
    ),
    first=0,
    last=4,
    flexible=2,
)
INIT_PRODUCER_ID_RESPONSE = Message(
    Struct(
        v.InitProducerIdResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16),
            Field("producer_id", INT64),
            Field("producer_epoch", INT16),
        ),
    ),
    first=0,
    last=4,
    flexible=2,
)
