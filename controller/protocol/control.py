"""Messages of the control plane: what the controller sends to brokers, and what brokers ask the controller.

A value holds the fields of all supported versions, under the names of Kafka 2.8 (where Kafka's own name differs by
version, the later one); a field that a version lacks has its default after decoding, and is left out when encoding.
Older versions encode some of them differently (partitions in one flat list, a broker's address without its listener):
the codec turns those into the same values, so that a handler need not know the request's version.

`error_code` fields hold Kafka's numbers (`errors.ErrorCode`); unknown numbers are kept as they came. Topic ids are
their 16 bytes, all zero for "none".
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.protocol.schema import (
    Adaptation,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    RequestValue,
    ResponseValue,
    String,
    Structure,
    Uuid,
    field,
)

NO_TOPIC_ID = bytes(16)

# LeaderAndIsrRequest.type. A 2.8 controller has two kinds in mind and no place that sets the second: what it sends
# is always 0 (docs/protocol.md).
LEADER_AND_ISR_UNSPECIFIED = 0
LEADER_AND_ISR_INCREMENTAL = 1
LEADER_AND_ISR_FULL = 2

# The leader of UpdateMetadata for a partition that is being deleted (LeaderAndIsr.LeaderDuringDelete), and the
# leader epoch of StopReplica for one (LeaderAndIsr.EpochDuringDelete): newer than anything, whatever the broker has.
LEADER_DURING_DELETE = -2
EPOCH_DURING_DELETE = -2
NO_LEADER = -1
NO_EPOCH = -1
NO_BROKER_EPOCH = -1


class LeaderAndIsrPartitionState(Structure):
    """One partition's state for one replica. `is_new`: the broker is to make the replica, not to find it."""

    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...]
    zk_version: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...] = field(default=(), since=3)
    removing_replicas: tuple[Int32, ...] = field(default=(), since=3)
    is_new: Bool = field(default=False, since=1)


class LeaderAndIsrTopicState(Structure):
    topic_name: String
    partition_states: tuple[LeaderAndIsrPartitionState, ...]
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=5, before="partition_states")


class LeaderAndIsrLiveLeader(Structure):
    """Where the inter-broker listener of a broker that leads one of the request's partitions is reached."""

    broker_id: Int32
    host_name: String
    port: Int32


class LeaderAndIsrRequest(RequestValue, first=0, last=5, flexible=4):
    controller_id: Int32
    controller_epoch: Int32
    topic_states: tuple[LeaderAndIsrTopicState, ...] = field(flat_until=1)
    live_leaders: tuple[LeaderAndIsrLiveLeader, ...]
    broker_epoch: Int64 = field(default=NO_BROKER_EPOCH, since=2, before="topic_states")
    type: Int8 = field(default=LEADER_AND_ISR_UNSPECIFIED, since=5, must=True, before="topic_states")


class LeaderAndIsrPartitionError(Structure):
    partition_index: Int32
    error_code: Int16


class LeaderAndIsrTopicError(Structure):
    """A topic's answers. Versions 0 to 4 name the topic, version 5 gives its id instead."""

    partition_errors: tuple[LeaderAndIsrPartitionError, ...]
    topic_name: String = field(default="", until=4, before="partition_errors")
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=5, before="partition_errors")


class LeaderAndIsrResponse(ResponseValue, first=0, last=5, flexible=4):
    error_code: Int16
    topics: tuple[LeaderAndIsrTopicError, ...] = field(default=(), flat_until=4)


class UpdateMetadataPartitionState(Structure):
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...]
    zk_version: Int32
    replicas: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...] = field(default=(), since=4)


class UpdateMetadataTopicState(Structure):
    topic_name: String
    partition_states: tuple[UpdateMetadataPartitionState, ...]
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=7, before="partition_states")


class UpdateMetadataEndpoint(Structure):
    """`security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL. Versions 0 to 2 have no listener name
    (it is then the security protocol's), version 0 no security protocol and one endpoint a broker."""

    port: Int32
    host: String
    listener: String = field(default="", since=3)
    security_protocol: Int16 = field(default=0, since=1)


class UpdateMetadataBroker(Structure):
    id: Int32
    endpoints: tuple[UpdateMetadataEndpoint, ...] = field(inline_until=0, inline=("host", "port"))
    rack: String | None = field(default=None, since=2)


class UpdateMetadataRequest(RequestValue, first=0, last=7, flexible=6):
    """`partitions_follow`: a controller of ours says, in a request without partitions, that its next has them.

    `complete_but`: in some requests of a controller of ours, the topics of which the request does not name every
    partition. Then a topic that is neither named nor listed does not exist. None: nothing follows from what is missing.
    """

    controller_id: Int32
    controller_epoch: Int32
    topic_states: tuple[UpdateMetadataTopicState, ...] = field(flat_until=4)
    live_brokers: tuple[UpdateMetadataBroker, ...]
    broker_epoch: Int64 = field(default=NO_BROKER_EPOCH, since=5, before="topic_states")
    # These two fields are this project's own. Kafka's brokers ignore them.
    partitions_follow: Bool = field(default=False, since=6, tag=0)
    complete_but: tuple[String, ...] | None = field(default=None, since=6, tag=1)


class UpdateMetadataResponse(ResponseValue, first=0, last=7, flexible=6):
    error_code: Int16


class StopReplicaPartitionState(Structure, bare_until=2):
    """`leader_epoch` is -1 where the version has none (0 to 2), and -2 when the topic is being deleted."""

    partition_index: Int32
    leader_epoch: Int32 = field(default=NO_EPOCH, since=3)
    delete_partition: Bool = field(default=False, since=3)


class StopReplicaTopicState(Structure):
    topic_name: String
    partition_states: tuple[StopReplicaPartitionState, ...]


def _spread_delete_flag(request: StopReplicaRequest) -> StopReplicaRequest:
    if not request.delete_partitions:
        return request
    return replace(
        request,
        topic_states=tuple(
            replace(
                topic, partition_states=tuple(replace(state, delete_partition=True) for state in topic.partition_states)
            )
            for topic in request.topic_states
        ),
    )


def _one_delete_flag(request: StopReplicaRequest) -> StopReplicaRequest:
    flags = {state.delete_partition for topic in request.topic_states for state in topic.partition_states}
    if flags - {request.delete_partitions}:
        raise ValueError("before version 3 all partitions of a StopReplica have one flag, delete_partitions")
    return request


class StopReplicaRequest(
    RequestValue, first=0, last=3, flexible=2, adaptation=Adaptation(2, _spread_delete_flag, _one_delete_flag)
):
    """Versions 0 to 2 have one flag for all partitions, `delete_partitions`; each partition's own flag equals it
    after decoding and must equal it for encoding. Version 3 has only the partitions' flags."""

    controller_id: Int32
    controller_epoch: Int32
    topic_states: tuple[StopReplicaTopicState, ...] = field(flat_until=0)
    broker_epoch: Int64 = field(default=NO_BROKER_EPOCH, since=1, before="topic_states")
    delete_partitions: Bool = field(default=False, until=2, before="topic_states")


class StopReplicaPartitionError(Structure):
    topic_name: String
    partition_index: Int32
    error_code: Int16


class StopReplicaResponse(ResponseValue, first=0, last=3, flexible=2):
    error_code: Int16
    partition_errors: tuple[StopReplicaPartitionError, ...] = ()


SHUTDOWN_UNSAID = 0
SHUTDOWN_CHECKED = 1
SHUTDOWN_FORCED = 2


class ControlledShutdownRequest(RequestValue, first=0, last=3, flexible=3):
    """`manner`: a broker of ours says that it takes a reason why it may not go yet (`SHUTDOWN_CHECKED`), or that it
    goes whatever it leaves in sync (`SHUTDOWN_FORCED`); Kafka's, and those below version 3, say neither."""

    broker_id: Int32
    broker_epoch: Int64 = field(default=NO_BROKER_EPOCH, since=2)
    # This project's own, as the response's `reason`. Kafka's brokers ignore them.
    manner: Int8 = field(default=SHUTDOWN_UNSAID, since=3, tag=0)


class RemainingPartition(Structure):
    topic_name: String
    partition_index: Int32


class ControlledShutdownResponse(ResponseValue, first=0, last=3, flexible=3):
    """The partitions that the broker still leads, or is held back for: it may go once there are none. `reason`: why it
    is held back, for one that said that it takes it."""

    error_code: Int16
    remaining_partitions: tuple[RemainingPartition, ...] = ()
    reason: String = field(default="", since=3, tag=0)


RECOVERED = 0
RECOVERING = 1


class IsrMember(Structure):
    """Version 3 sends it for each member (KIP-903). Before, a tagged field does, which other implementations skip."""

    broker_id: Int32
    broker_epoch: Int64 = NO_BROKER_EPOCH


class AlterIsrPartition(Structure):
    """The ISR a leader asks for. `current_isr_version` is the zkVersion it believes the partition's state to have.
    `new_isr_epochs`: which life of each member it speaks of, -1 unknown; empty from leaders that do not tell. From
    version 3 on (AlterPartition, by then) both are in `new_isr_with_epochs`; from 1 on a leader says whether it still
    recovers from an unclean election."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: tuple[Int32, ...] = field(default=(), until=2)
    current_isr_version: Int32 = 0
    new_isr_epochs: tuple[Int64, ...] = field(default=(), until=2, tag=0)
    new_isr_with_epochs: tuple[IsrMember, ...] = field(default=(), since=3, before="current_isr_version")
    leader_recovery_state: Int8 = field(default=RECOVERED, since=1, before="current_isr_version")


class AlterIsrTopic(Structure):
    """By name up to version 1, by id from 2 on."""

    name: String = field(default="", until=1)
    partitions: tuple[AlterIsrPartition, ...] = ()
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=2, before="partitions")


class AlterIsrRequest(RequestValue, first=0, last=3, flexible=0):
    broker_id: Int32
    topics: tuple[AlterIsrTopic, ...]
    broker_epoch: Int64 = field(default=NO_BROKER_EPOCH, before="topics")


class AlterIsrPartitionResult(Structure):
    """The state after the change, or an error; with an error the other fields are Kafka's zeros and empty."""

    partition_index: Int32
    error_code: Int16
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: tuple[Int32, ...] = ()
    current_isr_version: Int32 = 0
    leader_recovery_state: Int8 = field(default=RECOVERED, since=1, before="current_isr_version")


class AlterIsrTopicResult(Structure):
    name: String = field(default="", until=1)
    partitions: tuple[AlterIsrPartitionResult, ...] = ()
    topic_id: Uuid = field(default=NO_TOPIC_ID, since=2, before="partitions")


class AlterIsrResponse(ResponseValue, first=0, last=3, flexible=0):
    error_code: Int16
    topics: tuple[AlterIsrTopicResult, ...] = ()
    throttle_time_ms: Int32 = field(default=0, before="error_code")


class AllocateProducerIdsRequest(RequestValue, first=0, last=0, flexible=0):
    broker_id: Int32
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(ResponseValue, first=0, last=0, flexible=0):
    """The ids from `producer_id_start` on, so many as `producer_id_len` says."""

    error_code: Int16
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
    throttle_time_ms: Int32 = field(default=0, before="error_code")
