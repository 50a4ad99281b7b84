"""The APIs, their versions, and the conversion of frames to values and back: the entry points of this package.

`MESSAGES` names each API's request and response. Among brokers nothing is negotiated: the versions of the controller's
requests follow `inter.broker.protocol.version` (Kafka's ApiVersion and ControllerChannelManager of 2.8). AlterIsr alone
goes over a channel that asks ApiVersions first, and is sent in the newest version that both ends know.

A frame is what a connection carries after the four bytes of its size (`framing`): a header and a body. Decoding
raises MalformedFrame, UnknownApi or UnsupportedVersion, whatever the bytes are, and nothing else; a frame has to be
used up exactly (see `REST_ALLOWED`). Encoding raises UnencodableValue for a value that its version can't hold.

A request's header is flexible (a section of tagged fields at its end) where its message is, a response's too, except
that of ApiVersions: its client doesn't know yet what the broker speaks. The client id keeps its int16 length in all
versions, for the same reason. ControlledShutdown version 0 has no client id at all.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Container, Mapping
from enum import IntEnum
from functools import cache, lru_cache
from types import MappingProxyType

import msgspec

from controller.protocol import admin, client, control, fetch, groups, produce, security, transactions
from controller.protocol.admin import DescribeConfigsResponse, DescribeConfigsResult
from controller.protocol.client import ApiVersion, ApiVersionsResponse, MetadataResponse, MetadataResponsePartition
from controller.protocol.compiler import Entries, Writer, compile_struct, layout
from controller.protocol.errors import ErrorCode, MalformedFrame, ProtocolError, UnencodableValue, UnknownApi
from controller.protocol.fetch import FetchResponse
from controller.protocol.framing import Frame, Part, joined
from controller.protocol.primitives import read_tags, read_text, write_text
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


class MessagePair(msgspec.Struct, frozen=True):
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
        ApiKey.ALTER_REPLICA_LOG_DIRS: _pair(admin.AlterReplicaLogDirsRequest, admin.AlterReplicaLogDirsResponse),
        ApiKey.DESCRIBE_LOG_DIRS: _pair(admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _pair(
            admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse
        ),
    }
)
"""What is asked of brokers that hold records, and of their settings."""

GROUP_MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType(
    {
        ApiKey.OFFSET_COMMIT: _pair(groups.OffsetCommitRequest, groups.OffsetCommitResponse),
        ApiKey.OFFSET_FETCH: _pair(groups.OffsetFetchRequest, groups.OffsetFetchResponse),
        ApiKey.JOIN_GROUP: _pair(groups.JoinGroupRequest, groups.JoinGroupResponse),
        ApiKey.HEARTBEAT: _pair(groups.HeartbeatRequest, groups.HeartbeatResponse),
        ApiKey.LEAVE_GROUP: _pair(groups.LeaveGroupRequest, groups.LeaveGroupResponse),
        ApiKey.SYNC_GROUP: _pair(groups.SyncGroupRequest, groups.SyncGroupResponse),
        ApiKey.DESCRIBE_GROUPS: _pair(groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
        ApiKey.LIST_GROUPS: _pair(groups.ListGroupsRequest, groups.ListGroupsResponse),
        ApiKey.DELETE_GROUPS: _pair(groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
        ApiKey.OFFSET_DELETE: _pair(groups.OffsetDeleteRequest, groups.OffsetDeleteResponse),
    }
)
"""What is asked of the coordinator of consumer groups."""

TRANSACTION_MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN: _pair(
            transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: _pair(transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
        ApiKey.END_TXN: _pair(transactions.EndTxnRequest, transactions.EndTxnResponse),
        ApiKey.WRITE_TXN_MARKERS: _pair(transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
        ApiKey.TXN_OFFSET_COMMIT: _pair(transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    }
)
"""What is asked of the coordinator of transactions, of that of a group within one, and of partitions' leaders."""

SECURITY_MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType(
    {
        ApiKey.DESCRIBE_ACLS: _pair(security.DescribeAclsRequest, security.DescribeAclsResponse),
        ApiKey.CREATE_ACLS: _pair(security.CreateAclsRequest, security.CreateAclsResponse),
        ApiKey.DELETE_ACLS: _pair(security.DeleteAclsRequest, security.DeleteAclsResponse),
        ApiKey.SASL_HANDSHAKE: _pair(security.SaslHandshakeRequest, security.SaslHandshakeResponse),
        ApiKey.SASL_AUTHENTICATE: _pair(security.SaslAuthenticateRequest, security.SaslAuthenticateResponse),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: _pair(
            security.DescribeClientQuotasRequest, security.DescribeClientQuotasResponse
        ),
        ApiKey.ALTER_CLIENT_QUOTAS: _pair(security.AlterClientQuotasRequest, security.AlterClientQuotasResponse),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _pair(
            security.DescribeUserScramCredentialsRequest, security.DescribeUserScramCredentialsResponse
        ),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _pair(
            security.AlterUserScramCredentialsRequest, security.AlterUserScramCredentialsResponse
        ),
    }
)
"""What is asked of access: ACLs, authentication, credentials, quotas."""

MESSAGES: Mapping[ApiKey, MessagePair] = MappingProxyType(
    {**CLUSTER_MESSAGES, **RECORD_MESSAGES, **GROUP_MESSAGES, **TRANSACTION_MESSAGES, **SECURITY_MESSAGES}
)


class VersionRange(msgspec.Struct, frozen=True):
    first: int
    last: int


SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: VersionRange(pair.request.first, pair.request.last) for key, pair in sorted(MESSAGES.items())}
)
"""The versions of each API that can be decoded and encoded, by API key in ascending order."""


class ControlVersions(msgspec.Struct, frozen=True):
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


SHORT_BYTES = 24
"""Bodies of responses up to here may be decoded once for all that are the same."""
REST_ALLOWED = frozenset({ApiKey.METADATA, ApiKey.ALTER_USER_SCRAM_CREDENTIALS})
"""Requests that real clients send with bytes after their end: librdkafka writes "all topics" in Metadata 9 and later
as a count of four bytes where one is read, and a byte more after AlterUserScramCredentials; Kafka ignores what a
request leaves over."""
_HEAD = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
_API_KEYS = {int(key): key for key in ApiKey}


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedVersion(ProtocolError):
    """The API is spoken here, but not in the header's version. To an ApiVersions the answer is
    `unsupported_api_versions`; for any other the connection is closed."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"{header.api_key.name} version {header.api_version} is not spoken here")
        self.header = header


def read_request_header(frame: bytes, served: Container[int]) -> tuple[RequestHeader, int]:
    """The header and where the body begins. MalformedFrame, UnknownApi for what is not among `served`,
    UnsupportedVersion."""
    if len(frame) < _HEAD.size:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has no request header")
    key, version, correlation = _HEAD.unpack_from(frame)
    if key not in served or key not in MESSAGES:
        raise UnknownApi(key)
    api_key, has_client_id, is_spoken, is_flexible = _form(key, version)
    client_id: str | None = None
    pos = _HEAD.size
    try:
        if has_client_id:
            client_id, pos = read_text(frame, pos, len(frame), False)
        header = RequestHeader(api_key, version, correlation, None if client_id is None else sys.intern(client_id))
        if not is_spoken:
            raise UnsupportedVersion(header)
        if is_flexible:
            pos = pos + 1 if frame[pos] == 0 else read_tags(frame, pos, len(frame))[1]
    except (struct.error, IndexError):
        raise MalformedFrame(f"{api_key.name} version {version}: the frame ends within its header") from None
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"{api_key.name} version {version}: client id is not UTF-8: {error.reason}") from None
    return header, pos


@lru_cache(maxsize=1_000)
def _form(key: int, version: int) -> tuple[ApiKey, bool, bool, bool]:
    """Of a request's header: the API, whether a client id is in it, whether the version is spoken, whether it is
    flexible."""
    api_key = _API_KEYS[key]
    request = MESSAGES[api_key].request
    has_client_id = not (api_key is ApiKey.CONTROLLED_SHUTDOWN and version == 0)
    return api_key, has_client_id, request.first <= version <= request.last, version >= request.flexible


def write_request_header(header: RequestHeader) -> bytes:
    return request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)


def request_header(api_key: ApiKey, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """As `write_request_header`, without a RequestHeader object. Raises UnencodableValue."""
    try:
        return _HEAD.pack(api_key, version, correlation_id) + _after_ids(api_key, version, client_id)
    except (struct.error, UnicodeEncodeError) as error:
        header = RequestHeader(api_key, version, correlation_id, client_id)
        raise UnencodableValue(f"{header}: {error}") from error


@lru_cache(maxsize=1_000)  # a connection's requests differ in their correlation ids alone
def _after_ids(api_key: ApiKey, version: int, client_id: str | None) -> bytes:
    out = bytearray()
    if not (api_key is ApiKey.CONTROLLED_SHUTDOWN and version == 0):
        write_text(out, client_id, False)
    if version >= MESSAGES[api_key].request.flexible:
        out.append(0)
    return bytes(out)


def read_response_header(api_key: ApiKey, version: int, frame: Frame) -> tuple[int, int]:
    """The correlation id and where the body begins. MalformedFrame."""
    try:
        (correlation,) = _CORRELATION.unpack_from(frame)
        pos = _CORRELATION.size
        if _flexible_response(api_key, version):
            pos = pos + 1 if frame[pos] == 0 else read_tags(bytes(frame), pos, len(frame))[1]
    except (struct.error, IndexError):
        raise MalformedFrame(f"{api_key.name} version {version}: a response that ends within its header") from None
    return correlation, pos


def write_response_header(api_key: ApiKey, version: int, correlation_id: int) -> bytes:
    tags = b"\x00" if _flexible_response(api_key, version) else b""
    return _CORRELATION.pack(correlation_id) + tags


@lru_cache(maxsize=1_000)
def _flexible_response(api_key: ApiKey, version: int) -> bool:
    return api_key is not ApiKey.API_VERSIONS and version >= MESSAGES[api_key].response.flexible


class Request(msgspec.Struct, frozen=True, gc=False):
    header: RequestHeader
    value: RequestValue


def decode_request(
    frame: bytes, served: Container[int] = CLUSTER_MESSAGES, entries: Entries | None = None, entries_max: int = 0
) -> Request:
    """MalformedFrame, UnknownApi, UnsupportedVersion (with the header).

    `served`: the API keys that the receiver answers; of any other the body is not looked at. By default the data plane
    is none of them. Records in the value are views into `frame`. `entries`: TooManyEntries for a request whose arrays
    have more than `entries_max` elements together; see `Entries`.
    """
    header, pos = read_request_header(frame, served)
    if entries is not None:
        entries.left = entries_max
    value: RequestValue = layout(MESSAGES[header.api_key].request, header.api_version, entries).read(
        frame, pos, rest_allowed=header.api_key in REST_ALLOWED
    )
    return Request(header, value)


def request_head(header: RequestHeader) -> bytes:
    """A request's bytes before its body, so that one body can go out under many headers."""
    return write_request_header(header)


def encode_request_body(api_key: ApiKey, version: int, value: RequestValue) -> bytes:
    return layout(MESSAGES[api_key].request, version).write(value)


def encode_request(header: RequestHeader, value: RequestValue) -> bytes:
    return joined(layout(MESSAGES[header.api_key].request, header.api_version).write_parts(value, request_head(header)))


def encode_response_body(api_key: ApiKey, version: int, value: ResponseValue) -> bytes:
    """What follows the header, of a response without records."""
    return layout(MESSAGES[api_key].response, version).write(value)


def encode_described_resource(version: int, value: DescribeConfigsResult) -> bytes:
    """One result of a DescribeConfigs answer, for `written`. UnencodableValue."""
    out = bytearray()
    try:
        _described_resource_writer(version)(value, out)
    except (struct.error, TypeError, AttributeError) as error:
        raise UnencodableValue(f"DescribeConfigs version {version}: {error}") from error
    return bytes(out)


@cache
def _described_resource_writer(version: int) -> Writer:
    return compile_struct(
        DescribeConfigsResult.struct, version, version >= DescribeConfigsResponse.message.flexible
    ).write


def encode_metadata_partition(version: int, value: MetadataResponsePartition) -> bytes:
    """One partition of a Metadata answer's topic, for `written`. UnencodableValue."""
    out = bytearray()
    try:
        _metadata_partition_writer(version)(value, out)
    except (struct.error, TypeError) as error:
        raise UnencodableValue(f"Metadata version {version}: {error}") from error
    return bytes(out)


@cache
def _metadata_partition_writer(version: int) -> Writer:
    return compile_struct(MetadataResponsePartition.struct, version, version >= MetadataResponse.message.flexible).write


def encode_response(header: RequestHeader, value: ResponseValue) -> bytes:
    """The frame that answers the request with this header, in its version. Ranges of records are read."""
    return joined(encode_response_parts(header, value))


def encode_response_parts(header: RequestHeader, value: ResponseValue) -> list[Part]:
    """The same frame in parts: bytes, and between them the records as they stand in the value, neither copied nor read,
    so that a server can send them from their file. `framing.framed_parts` puts the size before."""
    head = write_response_header(header.api_key, header.api_version, header.correlation_id)
    if isinstance(value, FetchResponse) and _is_repeated(value):
        return [head + _repeated_body(header.api_version, value)]
    return layout(MESSAGES[header.api_key].response, header.api_version).write_parts(value, head)


def _is_repeated(value: FetchResponse) -> bool:
    """Return True for answers that many fetches get: nothing, or one partition whose records are in memory, which were
    read once for all consumers that waited for them."""
    responses = value.responses
    if not responses:
        return True
    return (
        len(responses) == 1
        and len(partitions := responses[0].partitions) == 1
        and isinstance(records := partitions[0].records, bytes)
        and len(records) <= REPEATED_BYTES
    )


REPEATED_BYTES = 16 * 1024


@lru_cache(maxsize=128)
def _repeated_body(version: int, value: FetchResponse) -> bytes:
    """The same in each answer to a session's fetches, as long as its partitions are idle."""
    return encode_response_body(ApiKey.FETCH, version, value)


def response_body(api_key: ApiKey, version: int, frame: bytes) -> tuple[int, bytes]:
    """A response's correlation id and body, which is not looked at. MalformedFrame."""
    correlation_id, pos = read_response_header(api_key, version, frame)
    return correlation_id, frame[pos:]


def decode_response_body(api_key: ApiKey, version: int, body: bytes) -> ResponseValue:
    """As `decode_response`, of what follows the header."""
    if len(body) <= SHORT_BYTES and isinstance(body, bytes):
        return _read_short(api_key, version, body)
    return _read_response(api_key, version, body, 0)


@lru_cache(maxsize=128)
def _read_short(api_key: ApiKey, version: int, body: bytes) -> ResponseValue:
    """What says next to nothing says it again and again, as the answers to fetches of idle partitions do."""
    return _read_response(api_key, version, body, 0)


def decode_response(api_key: ApiKey, version: int, frame: bytes) -> tuple[int, ResponseValue]:
    """A response's correlation id and value, in which records are views into `frame`. MalformedFrame.

    An ApiVersions response is read in version 0 when it carries UNSUPPORTED_VERSION, since a broker that does not know
    the version asked for answers so.
    """
    correlation_id, pos = read_response_header(api_key, version, frame)
    return correlation_id, _read_response(api_key, version, frame, pos)


def _read_response(api_key: ApiKey, version: int, frame: bytes, pos: int) -> ResponseValue:
    if api_key is ApiKey.API_VERSIONS and frame[pos : pos + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
        version = 0
    value: ResponseValue = layout(MESSAGES[api_key].response, version).read(frame, pos)
    return value


def unsupported_api_versions(header: RequestHeader) -> bytes:
    """The answer to an ApiVersions of a version that is not spoken here: version 0 with error 35 and the versions of
    ApiVersions itself, from which the client picks the one to ask again with (KIP-511)."""
    if header.api_key is not ApiKey.API_VERSIONS:
        raise ValueError(f"{header.api_key.name} has no answer to an unsupported version")
    own = MESSAGES[ApiKey.API_VERSIONS].request
    value = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, (ApiVersion(ApiKey.API_VERSIONS, own.first, own.last),))
    body = layout(MESSAGES[ApiKey.API_VERSIONS].response, 0).write(value)
    return write_response_header(ApiKey.API_VERSIONS, 0, header.correlation_id) + body
