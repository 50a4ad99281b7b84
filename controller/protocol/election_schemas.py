"""The field tables of ElectLeaders, in the versions of Kafka 2.8: facts of the protocol only, in the order of the wire.
Values are in `election_values`.
"""

from __future__ import annotations

from controller.protocol import election_values as v
from controller.protocol.schema import INT8, INT16, INT32, INTS, TEXT, Array, Field, Message, Struct

# --- ElectLeaders, 0-2, flexible from 2

_TOPIC = Struct(v.ElectLeadersTopic, (Field("topic", TEXT), Field("partitions", INTS)))
ELECT_LEADERS_REQUEST = Message(
    Struct(
        v.ElectLeadersRequest,
        (
            Field("election_type", INT8, since=1, must=True),
            Field("topic_partitions", Array(_TOPIC), nullable=0),
            Field("timeout_ms", INT32),
        ),
    ),
    first=0,
    last=2,
    flexible=2,
)
_PARTITION = Struct(
    v.ElectedPartition,
    (Field("partition_id", INT32), Field("error_code", INT16), Field("error_message", TEXT, nullable=0)),
)
_RESULTS = Struct(v.ElectedTopic, (Field("topic", TEXT), Field("partition_result", Array(_PARTITION))))
ELECT_LEADERS_RESPONSE = Message(
    Struct(
        v.ElectLeadersResponse,
        (
            Field("throttle_time_ms", INT32),
            Field("error_code", INT16, since=1),
            Field("replica_election_results", Array(_RESULTS)),
        ),
    ),
    first=0,
    last=2,
    flexible=2,
)
