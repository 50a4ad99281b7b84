"""Which messages belong to which API, and which versions are spoken: to clients, and among brokers.

Among brokers nothing is negotiated: the versions of the controller's requests follow `inter.broker.protocol.version`
(Kafka's ApiVersion and ControllerChannelManager of 2.8). AlterIsr alone goes over a channel that asks ApiVersions
first, and is asked in the newest version that both ends know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from controller.protocol import admin, client, control, fetch, produce
from controller.protocol.schema import Message, RequestValue, ResponseValue


class ApiKey(IntEnum):
    """Every API key up to those that Kafka 2.8 added, under 2.8's names, and of later ones those that are spoken here:
    a name's being here does not say that the API is spoken (`SUPPORTED` does)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_ISR = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    ALLOCATE_PRODUCER_IDS = 67


@dataclass(frozen=True, slots=True)
class MessagePair:
    """A request and its response; both have the same versions and become flexible in the same one."""

    request: Message
    response: Message


def _pair(request: type[RequestValue], response: type[ResponseValue]) -> MessagePair:
    return MessagePair(request.message, response.message)


CLUSTER_MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType(
    {
        ApiKey.METADATA: _pair(client.MetadataRequest, client.MetadataResponse),
        ApiKey.LEADER_AND_ISR: _pair(control.LeaderAndIsrRequest, control.LeaderAndIsrResponse),
        ApiKey.STOP_REPLICA: _pair(control.StopReplicaRequest, control.StopReplicaResponse),
        ApiKey.UPDATE_METADATA: _pair(control.UpdateMetadataRequest, control.UpdateMetadataResponse),
        ApiKey.CONTROLLED_SHUTDOWN: _pair(control.ControlledShutdownRequest, control.ControlledShutdownResponse),
        ApiKey.API_VERSIONS: _pair(client.ApiVersionsRequest, client.ApiVersionsResponse),
        ApiKey.CREATE_TOPICS: _pair(client.CreateTopicsRequest, client.CreateTopicsResponse),
        ApiKey.DELETE_TOPICS: _pair(client.DeleteTopicsRequest, client.DeleteTopicsResponse),
        ApiKey.CREATE_PARTITIONS: _pair(client.CreatePartitionsRequest, client.CreatePartitionsResponse),
        ApiKey.ELECT_LEADERS: _pair(admin.ElectLeadersRequest, admin.ElectLeadersResponse),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _pair(
            admin.AlterPartitionReassignmentsRequest, admin.AlterPartitionReassignmentsResponse
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: _pair(
            admin.ListPartitionReassignmentsRequest, admin.ListPartitionReassignmentsResponse
        ),
        ApiKey.ALTER_ISR: _pair(control.AlterIsrRequest, control.AlterIsrResponse),
        ApiKey.UPDATE_FEATURES: _pair(admin.UpdateFeaturesRequest, admin.UpdateFeaturesResponse),
        ApiKey.ALLOCATE_PRODUCER_IDS: _pair(control.AllocateProducerIdsRequest, control.AllocateProducerIdsResponse),
    }
)
"""What is asked of a cluster that needs not hold records: the control plane, metadata and topics."""

RECORD_MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType(
    {
        ApiKey.PRODUCE: _pair(produce.ProduceRequest, produce.ProduceResponse),
        ApiKey.FETCH: _pair(fetch.FetchRequest, fetch.FetchResponse),
        ApiKey.LIST_OFFSETS: _pair(fetch.ListOffsetsRequest, fetch.ListOffsetsResponse),
        ApiKey.FIND_COORDINATOR: _pair(client.FindCoordinatorRequest, client.FindCoordinatorResponse),
        ApiKey.DELETE_RECORDS: _pair(admin.DeleteRecordsRequest, admin.DeleteRecordsResponse),
        ApiKey.INIT_PRODUCER_ID: _pair(produce.InitProducerIdRequest, produce.InitProducerIdResponse),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: _pair(fetch.OffsetForLeaderEpochRequest, fetch.OffsetForLeaderEpochResponse),
        ApiKey.DESCRIBE_CONFIGS: _pair(admin.DescribeConfigsRequest, admin.DescribeConfigsResponse),
        ApiKey.ALTER_CONFIGS: _pair(admin.AlterConfigsRequest, admin.AlterConfigsResponse),
        ApiKey.DESCRIBE_LOG_DIRS: _pair(admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _pair(
            admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse
        ),
    }
)
"""What is asked of brokers that hold records, and of their settings."""

MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType({**CLUSTER_MESSAGES, **RECORD_MESSAGES})


@dataclass(frozen=True, slots=True)
class VersionRange:
    first: int
    last: int


SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: VersionRange(pair.request.first, pair.request.last) for key, pair in sorted(MESSAGES.items())}
)
"""The versions of each API that can be decoded and encoded, by API key in ascending order."""


@dataclass(frozen=True, slots=True)
class ControlVersions:
    """The versions for one `inter.broker.protocol.version`.

    `alter_isr` is None where leaders change the ISR in ZooKeeper themselves and leave a notification; otherwise it is
    the version for a controller that offers nothing newer. `topic_ids` and `feature_znode` say what the znodes hold.
    Followers use the last three. From Fetch 12 on, a fetch answer shows a follower where its log diverges from the
    leader's; before, OffsetForLeaderEpoch does."""

    leader_and_isr: int
    update_metadata: int
    stop_replica: int
    controlled_shutdown: int
    alter_isr: int | None
    topic_ids: bool
    feature_znode: bool
    fetch: int
    offset_for_leader_epoch: int
    list_offsets: int

    @property
    def truncation_on_fetch(self) -> bool:
        return self.fetch >= 12


# In Kafka's order of internal versions; each row is what holds from that version on, in the order of the fields.
_CONTROL_VERSIONS: tuple[tuple[str, ControlVersions], ...] = (
    ("2.2-IV0", ControlVersions(2, 5, 1, 2, None, False, False, 10, 2, 4)),
    ("2.2-IV1", ControlVersions(2, 5, 1, 2, None, False, False, 10, 2, 5)),
    ("2.3-IV0", ControlVersions(2, 5, 1, 2, None, False, False, 10, 2, 5)),
    ("2.3-IV1", ControlVersions(2, 5, 1, 2, None, False, False, 11, 3, 5)),
    ("2.4-IV0", ControlVersions(3, 5, 1, 2, None, False, False, 11, 3, 5)),
    ("2.4-IV1", ControlVersions(4, 6, 2, 3, None, False, False, 11, 3, 5)),
    ("2.5-IV0", ControlVersions(4, 6, 2, 3, None, False, False, 11, 3, 5)),
    ("2.6-IV0", ControlVersions(4, 6, 3, 3, None, False, False, 11, 3, 5)),
    ("2.7-IV0", ControlVersions(4, 6, 3, 3, None, False, True, 11, 3, 5)),
    ("2.7-IV1", ControlVersions(4, 6, 3, 3, None, False, True, 12, 3, 5)),
    ("2.7-IV2", ControlVersions(4, 6, 3, 3, 0, False, True, 12, 3, 5)),
    ("2.8-IV0", ControlVersions(4, 6, 3, 3, 0, True, True, 12, 4, 6)),
    ("2.8-IV1", ControlVersions(5, 7, 3, 3, 0, True, True, 12, 4, 6)),
)


def control_versions(inter_broker_protocol: str) -> ControlVersions:
    """The versions for a setting as Kafka takes it: "2.8", "2.8.2" (the release's last), or "2.7-IV1" exactly.

    ValueError, naming what is known, for any other.
    """
    exact = dict(_CONTROL_VERSIONS)
    if inter_broker_protocol in exact:
        return exact[inter_broker_protocol]
    release = re.fullmatch(r"(\d+\.\d+)(\.\d+)*", inter_broker_protocol)
    if release is not None:
        of_release = [versions for name, versions in _CONTROL_VERSIONS if name.startswith(f"{release[1]}-")]
        if of_release:
            return of_release[-1]
    releases = ", ".join(sorted({name.split("-")[0] for name in exact}))
    raise ValueError(f"inter.broker.protocol.version {inter_broker_protocol!r} is not known; known are {releases}")
