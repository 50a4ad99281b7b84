"""The field tables of AlterPartitionReassignments and ListPartitionReassignments, in the versions of Kafka 2.8: facts
of the protocol only, in the order of the wire. Values are in `reassignment_values`.
"""

from __future__ import annotations

from controller.protocol import reassignment_values as v
from controller.protocol.schema import INT16, INT32, INTS, TEXT, Array, Field, Message, Struct

# --- AlterPartitionReassignments, 0, flexible

_WANTED = Struct(v.ReassignablePartition, (Field("partition_index", INT32), Field("replicas", INTS, nullable=0)))
_WANTED_TOPIC = Struct(v.ReassignableTopic, (Field("name", TEXT), Field("partitions", Array(_WANTED))))
ALTER_PARTITION_REASSIGNMENTS_REQUEST = Message(
    Struct(
        v.AlterPartitionReassignmentsRequest,
        (Field("timeout_ms", INT32), Field("topics", Array(_WANTED_TOPIC))),
    ),
    first=0,
    last=0,
    flexible=0,
)
_RESULT = Struct(
    v.ReassignablePartitionResult,
    (Field("partition_index", INT32), Field("error_code", INT16), Field("error_message", TEXT, nullable=0)),
)
_TOPIC_RESULT = Struct(v.ReassignableTopicResult, (Field("name", TEXT), Field("partitions", Array(_RESULT))))
ALTER_PARTITION_REASSIGNMENTS_RESPONSE = Message(
    Struct(
        v.AlterPartitionReassignmentsResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16),
            Field("error_message", TEXT, nullable=0),
            Field("responses", Array(_TOPIC_RESULT)),
        ),
    ),
    first=0,
    last=0,
    flexible=0,
)

# --- ListPartitionReassignments, 0, flexible

_LISTED = Struct(v.ListedTopic, (Field("name", TEXT), Field("partition_indexes", INTS)))
LIST_PARTITION_REASSIGNMENTS_REQUEST = Message(
    Struct(
        v.ListPartitionReassignmentsRequest,
        (Field("timeout_ms", INT32), Field("topics", Array(_LISTED), nullable=0)),
    ),
    first=0,
    last=0,
    flexible=0,
)
_ONGOING = Struct(
    v.OngoingPartition,
    (
        Field("partition_index", INT32),
        Field("replicas", INTS),
        Field("adding_replicas", INTS),
        Field("removing_replicas", INTS),
    ),
)
_ONGOING_TOPIC = Struct(v.OngoingTopic, (Field("name", TEXT), Field("partitions", Array(_ONGOING))))
LIST_PARTITION_REASSIGNMENTS_RESPONSE = Message(
    Struct(
        v.ListPartitionReassignmentsResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16),
            Field("error_message", TEXT, nullable=0),
            Field("topics", Array(_ONGOING_TOPIC)),
        ),
    ),
    first=0,
    last=0,
    flexible=0,
)
