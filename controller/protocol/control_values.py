"""The values of the control plane's requests: what the controller sends to brokers, and brokers to the controller.

A value holds the fields of all supported versions, under the names of Kafka 2.8; a field that a version lacks has its
default after decoding, and is left out when encoding. Older versions encode some of them differently (partitions in one
flat list, a broker's address without its listener): the codec turns those into the same values, so that a handler need
not know the request's version. Only values live here.

`error_code` fields hold Kafka's numbers (`errors.ErrorCode`); unknown numbers are kept as they came. Topic ids are
their 16 bytes, all zero for "none".
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class LeaderAndIsrPartitionState:
    """One partition's state for one replica. `is_new`: the broker is to make the replica, not to find it."""

    partition_index: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class LeaderAndIsrTopicState:
    topic_name: str
    partition_states: tuple[LeaderAndIsrPartitionState, ...]
    topic_id: bytes = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class LeaderAndIsrLiveLeader:
    """Where the inter-broker listener of a broker that leads one of the request's partitions is reached."""

    broker_id: int
    host_name: str
    port: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    controller_id: int
    controller_epoch: int
    topic_states: tuple[LeaderAndIsrTopicState, ...]
    live_leaders: tuple[LeaderAndIsrLiveLeader, ...]
    broker_epoch: int = NO_BROKER_EPOCH
    type: int = LEADER_AND_ISR_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class LeaderAndIsrPartitionError:
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsrTopicError:
    """A topic's answers. Versions 0 to 4 name the topic, version 5 gives its id instead."""

    partition_errors: tuple[LeaderAndIsrPartitionError, ...]
    topic_name: str = ""
    topic_id: bytes = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    error_code: int
    topics: tuple[LeaderAndIsrTopicError, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadataPartitionState:
    partition_index: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadataTopicState:
    topic_name: str
    partition_states: tuple[UpdateMetadataPartitionState, ...]
    topic_id: bytes = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class UpdateMetadataEndpoint:
    """`security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL. Versions 0 to 2 have no listener name
    (it is then the security protocol's), version 0 no security protocol and one endpoint a broker."""

    port: int
    host: str
    listener: str = ""
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadataBroker:
    id: int
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """`partitions_follow`: a controller of ours says, in a request without partitions, that its next has them.

    `complete_but`: in some requests of a controller of ours, the topics of which the request does not name every
    partition. Then a topic that is neither named nor listed does not exist. None: nothing follows from what is missing.
    """

    controller_id: int
    controller_epoch: int
    topic_states: tuple[UpdateMetadataTopicState, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]
    broker_epoch: int = NO_BROKER_EPOCH
    partitions_follow: bool = False
    complete_but: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    error_code: int


@dataclass(frozen=True, slots=True)
class StopReplicaPartitionState:
    """`leader_epoch` is -1 where the version has none (0 to 2), and -2 when the topic is being deleted."""

    partition_index: int
    leader_epoch: int = NO_EPOCH
    delete_partition: bool = False


@dataclass(frozen=True, slots=True)
class StopReplicaTopicState:
    topic_name: str
    partition_states: tuple[StopReplicaPartitionState, ...]


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    """Versions 0 to 2 have one flag for all partitions, `delete_partitions`; each partition's own flag equals it
    after decoding and must equal it for encoding. Version 3 has only the partitions' flags."""

    controller_id: int
    controller_epoch: int
    topic_states: tuple[StopReplicaTopicState, ...]
    broker_epoch: int = NO_BROKER_EPOCH
    delete_partitions: bool = False


@dataclass(frozen=True, slots=True)
class StopReplicaPartitionError:
    topic_name: str
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    error_code: int
    partition_errors: tuple[StopReplicaPartitionError, ...] = ()


SHUTDOWN_UNSAID = 0
SHUTDOWN_CHECKED = 1
SHUTDOWN_FORCED = 2


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """`manner`: a broker of ours says that it takes a reason why it may not go yet (`SHUTDOWN_CHECKED`), or that it
    goes whatever it leaves in sync (`SHUTDOWN_FORCED`); Kafka's, and those below version 3, say neither."""

    broker_id: int
    broker_epoch: int = NO_BROKER_EPOCH
    manner: int = SHUTDOWN_UNSAID


@dataclass(frozen=True, slots=True)
class RemainingPartition:
    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """The partitions that the broker still leads, or is held back for: it may go once there are none. `reason`: why it
    is held back, for one that said that it takes it."""

    error_code: int
    remaining_partitions: tuple[RemainingPartition, ...] = ()
    reason: str = ""


RECOVERED = 0
RECOVERING = 1


@dataclass(frozen=True, slots=True)
class IsrMember:
    broker_id: int
    broker_epoch: int = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True)
class AlterIsrPartition:
    """The ISR a leader asks for. `current_isr_version` is the zkVersion it believes the partition's state to have.
    `new_isr_epochs`: which life of each member it speaks of, -1 unknown; empty from leaders that do not tell. From
    version 3 on (AlterPartition, by then) both are in `new_isr_with_epochs`; from 1 on a leader says whether it still
    recovers from an unclean election."""

    partition_index: int
    leader_epoch: int
    new_isr: tuple[int, ...] = ()
    current_isr_version: int = 0
    new_isr_epochs: tuple[int, ...] = ()
    new_isr_with_epochs: tuple[IsrMember, ...] = ()
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True)
class AlterIsrTopic:
    """By name up to version 1, by id from 2 on."""

    name: str = ""
    partitions: tuple[AlterIsrPartition, ...] = ()
    topic_id: bytes = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class AlterIsrRequest:
    broker_id: int
    topics: tuple[AlterIsrTopic, ...]
    broker_epoch: int = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True)
class AlterIsrPartitionResult:
    """The state after the change, or an error; with an error the other fields are Kafka's zeros and empty."""

    partition_index: int
    error_code: int
    leader_id: int = 0
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    current_isr_version: int = 0
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True)
class AlterIsrTopicResult:
    name: str = ""
    partitions: tuple[AlterIsrPartitionResult, ...] = ()
    topic_id: bytes = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class AlterIsrResponse:
    error_code: int
    topics: tuple[AlterIsrTopicResult, ...] = ()
    throttle_time_ms: int = 0
