"""Every API of a broker with an authorizer: what is denied is answered so, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.broker.metadata import NOTHING_KNOWN, MetadataCache
from controller.broker.security.acl_store import ACL_APIS
from controller.broker.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from controller.broker.security.principal import Requester, parse_principal
from controller.broker.security.special_checks import SPECIAL
from controller.broker.security.table import ACCESS, ERRORS, Special
from controller.protocol import admin, client, fetch, groups, produce, security, transactions
from controller.protocol.codec import SUPPORTED, ApiKey, encode_request
from controller.protocol.control import (
    AllocateProducerIdsRequest,
    AlterIsrPartition,
    AlterIsrRequest,
    AlterIsrTopic,
    ControlledShutdownRequest,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.schema import RequestValue
from controller.zookeeper import paths
from tests.broker.access_table import DIFFERENCES, KAFKA, documentation, pairs_of, rows_of
from tests.broker.data_node import DataNode
from tests.broker.harness import Deferred, header, leader_and_isr, live, metadata
from tests.broker.test_control_plane import LAST_EPOCH, forged, markers, stop_replica
from tests.storage.batches import batch

EVE = Requester("PLAINTEXT", "10.6.6.6", parse_principal("User:eve"))
ADMIN = Requester("PLAINTEXT", "10.0.0.1", parse_principal("User:admin"))
AUTHORIZER: Mapping[str, Any] = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "super_users": "User:admin",
}
DENIALS = frozenset(ERRORS.values())
TOPIC = (admin.RESOURCE_TOPIC, "t")

REQUESTS: Mapping[ApiKey, Callable[[], RequestValue]] = {
    ApiKey.PRODUCE: lambda: produce.ProduceRequest(
        1, 1_000, (produce.ProduceTopic("t", (produce.ProducePartition(0, batch()),)),)
    ),
    ApiKey.FETCH: lambda: fetch.FetchRequest(0, 0, (fetch.FetchTopic("t", (fetch.FetchPartition(0, 0, 1_000),)),)),
    ApiKey.LIST_OFFSETS: lambda: fetch.ListOffsetsRequest(
        (fetch.ListOffsetsTopic("t", (fetch.ListOffsetsPartition(0, -1),)),)
    ),
    ApiKey.METADATA: lambda: client.MetadataRequest((client.MetadataRequestTopic("t"),)),
    ApiKey.LEADER_AND_ISR: lambda: leader_and_isr(9, 100, broker_epoch=-1),
    ApiKey.STOP_REPLICA: lambda: stop_replica(1),
    ApiKey.UPDATE_METADATA: lambda: metadata(("t", 0, 9), brokers=live(9), broker_epoch=-1),
    ApiKey.CONTROLLED_SHUTDOWN: lambda: ControlledShutdownRequest(1, 1),
    ApiKey.OFFSET_COMMIT: lambda: groups.OffsetCommitRequest(
        "g", (groups.OffsetCommitTopic("t", (groups.OffsetCommitPartition(0, 1, ""),)),)
    ),
    ApiKey.OFFSET_FETCH: lambda: groups.OffsetFetchRequest("g", (groups.OffsetFetchTopic("t", (0,)),)),
    ApiKey.FIND_COORDINATOR: lambda: client.FindCoordinatorRequest("g"),
    ApiKey.JOIN_GROUP: lambda: groups.JoinGroupRequest(
        "g", 10_000, "", "consumer", (groups.JoinGroupProtocol("range", b""),), 10_000
    ),
    ApiKey.HEARTBEAT: lambda: groups.HeartbeatRequest("g", 1, "m"),
    ApiKey.LEAVE_GROUP: lambda: groups.LeaveGroupRequest("g", (groups.LeavingMember("m"),)),
    ApiKey.SYNC_GROUP: lambda: groups.SyncGroupRequest("g", 1, "m", ()),
    ApiKey.DESCRIBE_GROUPS: lambda: groups.DescribeGroupsRequest(("g",)),
    ApiKey.CREATE_TOPICS: lambda: client.CreateTopicsRequest((client.CreatableTopic("new", 1, 1),)),
    ApiKey.DELETE_TOPICS: lambda: client.DeleteTopicsRequest((client.DeleteTopicState("t"),)),
    ApiKey.DELETE_RECORDS: lambda: admin.DeleteRecordsRequest(
        (admin.DeleteRecordsTopic("t", (admin.DeleteRecordsPartition(0, -1),)),), 1_000
    ),
    ApiKey.INIT_PRODUCER_ID: lambda: produce.InitProducerIdRequest(None, 1_000),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda: fetch.OffsetForLeaderEpochRequest(
        (fetch.OffsetForLeaderTopic("t", (fetch.OffsetForLeaderPartition(0, 0),)),)
    ),
    ApiKey.DESCRIBE_CONFIGS: lambda: admin.DescribeConfigsRequest((admin.DescribeConfigsResource(*TOPIC),)),
    ApiKey.ALTER_CONFIGS: lambda: admin.AlterConfigsRequest(
        (admin.AlterConfigsResource(*TOPIC, (admin.ReplacedConfig("retention.ms", "1"),)),)
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda: admin.AlterReplicaLogDirsRequest(
        (admin.LogDirToMoveTo("/logs", (admin.ReplicasToMove("t", (0,)),)),)
    ),
    ApiKey.DESCRIBE_LOG_DIRS: lambda: admin.DescribeLogDirsRequest(None),
    ApiKey.CREATE_PARTITIONS: lambda: client.CreatePartitionsRequest((client.CreatePartitionsTopic("t", 9),), 1_000),
    ApiKey.DELETE_GROUPS: lambda: groups.DeleteGroupsRequest(("g",)),
    ApiKey.ELECT_LEADERS: lambda: admin.ElectLeadersRequest((admin.ElectLeadersTopic("t", (0,)),)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda: admin.IncrementalAlterConfigsRequest(
        (admin.IncrementalAlterConfigsResource(*TOPIC, (admin.AlterableConfig("retention.ms", 0, "1"),)),)
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda: admin.AlterPartitionReassignmentsRequest(
        (admin.ReassignableTopic("t", (admin.ReassignablePartition(0, (1,)),)),)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda: admin.ListPartitionReassignmentsRequest(None),
    ApiKey.OFFSET_DELETE: lambda: groups.OffsetDeleteRequest(
        "g", (groups.OffsetDeleteTopic("t", (groups.OffsetDeletePartition(0),)),)
    ),
    ApiKey.ALTER_ISR: lambda: AlterIsrRequest(1, (AlterIsrTopic("t", (AlterIsrPartition(0, 0, (1,), 0),)),), 1),
    ApiKey.UPDATE_FEATURES: lambda: admin.UpdateFeaturesRequest((admin.FeatureUpdate("f", 1),), 1_000),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda: AllocateProducerIdsRequest(1, 1),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda: transactions.AddPartitionsToTxnRequest(
        "tx", 1, 0, (transactions.AddPartitionsToTxnTopic("t", (0,)),)
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda: transactions.AddOffsetsToTxnRequest("tx", 1, 0, "g"),
    ApiKey.END_TXN: lambda: transactions.EndTxnRequest("tx", 1, 0, True),
    ApiKey.WRITE_TXN_MARKERS: lambda: transactions.WriteTxnMarkersRequest(
        (transactions.WritableTxnMarker(1, 0, True, (transactions.WritableTxnMarkerTopic("t", (0,)),), 0),)
    ),
    ApiKey.TXN_OFFSET_COMMIT: lambda: transactions.TxnOffsetCommitRequest(
        "tx",
        "g",
        1,
        0,
        (transactions.TxnOffsetCommitRequestTopic("t", (transactions.TxnOffsetCommitRequestPartition(0, 1, ""),)),),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda: security.DescribeClientQuotasRequest((), False),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda: security.AlterClientQuotasRequest(
        (
            security.QuotaAlteration(
                (security.QuotaEntityPart("user", "eve"),),
                (security.QuotaOperation("producer_byte_rate", 1e9, False),),
            ),
        ),
        False,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda: security.DescribeUserScramCredentialsRequest(None),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda: security.AlterUserScramCredentialsRequest(
        (), (security.ScramCredentialUpsertion("eve", 1, 4_096, b"salt", b"salted"),)
    ),
    ApiKey.DESCRIBE_ACLS: lambda: security.DescribeAclsRequest(1, None, None, None, 1, 1, 1),
    ApiKey.CREATE_ACLS: lambda: security.CreateAclsRequest((acl("User:eve", "t"),)),
    ApiKey.DELETE_ACLS: lambda: security.DeleteAclsRequest((security.DeleteAclsFilter(1, None, None, None, 1, 1, 1),)),
}
OPEN = frozenset(key for key, checks in ACCESS.items() if not checks)
LEFT_OUT = frozenset([ApiKey.LIST_GROUPS])
"""Answered with what the client may see."""


def acl(
    principal: str,
    name: str,
    operation: AclOperation = AclOperation.READ,
    permission: AclPermission = AclPermission.ALLOW,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
) -> security.AclCreation:
    return security.AclCreation(kind, name, principal, "*", operation, permission, pattern)


def ask(node: DataNode, who: Requester, key: ApiKey, value: RequestValue, version: int | None = None) -> Any:
    last = 0 if key is ApiKey.ALTER_ISR else SUPPORTED[key].last
    answer = Deferred(key, last if version is None else version)
    node.node.broker.receive(encode_request(header(key, answer.version), value), answer.take, who)
    node.until(lambda: answer.answered)
    return answer.value()


def allow(node: DataNode, *creations: security.AclCreation) -> None:
    results = ask(node, ADMIN, ApiKey.CREATE_ACLS, security.CreateAclsRequest(creations)).results
    assert [one.error_code for one in results] == [0] * len(creations), results
    node.settle()


def codes(value: Any) -> Iterator[int]:
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            found = getattr(value, name)
            if name == "error_code":
                yield found
            else:
                yield from codes(found)
    elif isinstance(value, tuple):
        for one in value:
            yield from codes(one)


def state_of(node: DataNode) -> tuple[Any, ...]:
    broker = node.node.broker
    partition = broker.replicas.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    rows = {row.path: row.data for row in node.zookeeper.rows()}
    log = partition.log
    assert broker.groups is not None
    return (
        rows,
        partition.role,
        partition.leader_epoch,
        log.log_start_offset,
        log.log_end_offset,
        broker.metadata.snapshot,
    )


@pytest.fixture
def node() -> DataNode:
    return DataNode("t", **AUTHORIZER)


def test_every_api_has_a_row_and_every_row_its_function() -> None:
    node = DataNode("t")
    assert set(node.node.broker.apis) | set(SUPPORTED) <= set(ACCESS)
    named = {check.name for checks in ACCESS.values() for check in checks if isinstance(check, Special)}
    assert named == set(SPECIAL)


def test_every_api_has_a_request_here() -> None:
    assert set(DataNode("t").node.broker.apis) - OPEN - LEFT_OUT == set(REQUESTS)


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name)
def test_what_is_denied_is_answered_so_and_changes_nothing(node: DataNode, key: ApiKey) -> None:
    before = state_of(node)
    answer = ask(node, EVE, key, REQUESTS[key]())
    denied = DENIALS & set(codes(answer))
    assert denied, answer
    assert {ErrorCode(code).name for code in denied} <= {error for _, _, error in rows_of(key)}, "as documented"
    node.settle(1_000.0)
    assert state_of(node) == before
    assert any("Principal = User:eve is Denied" in line and "10.6.6.6" in line for line in node.trace.notes("info"))


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name)
def test_a_super_user_is_not_denied(node: DataNode, key: ApiKey) -> None:
    assert not DENIALS & set(codes(ask(node, ADMIN, key, REQUESTS[key]())))


@pytest.mark.parametrize("key", forged(1))
def test_a_client_without_cluster_action_can_not_act_as_the_controller(node: DataNode, key: ApiKey) -> None:
    """Nor mute the real one by an epoch that no other will have."""
    before = state_of(node)
    for epoch in (1, LAST_EPOCH):
        answer = ask(node, EVE, key, forged(epoch)[key])
        assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in set(codes(answer))
        assert state_of(node) == before
    assert ask(node, ADMIN, key, forged(1)[key]).error_code == ErrorCode.NONE
    assert node.node.broker.control.confirmed <= 1


def test_a_client_without_cluster_action_can_not_mute_a_coordinator(node: DataNode) -> None:
    def written(who: Requester, epoch: int) -> set[int]:
        return set(codes(ask(node, who, ApiKey.WRITE_TXN_MARKERS, markers(epoch))))

    assert written(EVE, LAST_EPOCH) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert written(ADMIN, 0) == {ErrorCode.REQUEST_TIMED_OUT}, "written, and not fenced; no follower is here"


TRANSACTIONAL = 0x10


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("of-others", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("own", ErrorCode.NONE),
    ],
)
def test_transactional_records_need_a_transactional_id_that_is_allowed(name: str | None, error: ErrorCode) -> None:
    """Without one they open a transaction that no coordinator ends."""
    node = DataNode("t", **AUTHORIZER)
    allow(
        node,
        acl("User:eve", "t", AclOperation.WRITE),
        acl("User:eve", "own", AclOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID),
    )
    records = batch(producer=(1, 0, 0), attributes=TRANSACTIONAL)
    topics = (produce.ProduceTopic("t", (produce.ProducePartition(0, records),)),)
    assert set(codes(ask(node, EVE, ApiKey.PRODUCE, produce.ProduceRequest(1, 1_000, topics, name)))) == {error}
    plain = (produce.ProduceTopic("t", (produce.ProducePartition(0, batch()),)),)
    answer = ask(node, EVE, ApiKey.PRODUCE, produce.ProduceRequest(1, 1_000, plain, name))
    assert set(codes(answer)) == {ErrorCode.NONE}, "a name without such records is not checked, as in Kafka"


def test_an_api_without_a_row_is_refused(node: DataNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.broker.security.guard.ACCESS", {})
    answer = ask(node, EVE, ApiKey.DESCRIBE_CONFIGS, REQUESTS[ApiKey.DESCRIBE_CONFIGS]())
    assert set(codes(answer)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


def test_records_of_the_allowed_topic_alone_are_appended() -> None:
    node = DataNode("t", "u", **AUTHORIZER)
    allow(node, acl("User:eve", "u", AclOperation.WRITE))
    topics = tuple(produce.ProduceTopic(name, (produce.ProducePartition(0, batch()),)) for name in ("t", "u"))
    answer = ask(node, EVE, ApiKey.PRODUCE, produce.ProduceRequest(1, 1_000, topics))
    assert {topic.name: topic.partition_responses[0].error_code for topic in answer.responses} == {
        "t": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "u": ErrorCode.NONE,
    }
    logs = {name: node.logs.get(name, 0) for name in ("t", "u")}
    assert {name: log.log_end_offset for name, log in logs.items() if log is not None} == {"t": 0, "u": 1}


def test_a_denied_produce_without_acks_closes_the_connection(node: DataNode) -> None:
    value = produce.ProduceRequest(0, 1_000, (produce.ProduceTopic("t", (produce.ProducePartition(0, batch()),)),))
    answer = Deferred(ApiKey.PRODUCE, 9)
    node.node.broker.receive(encode_request(header(ApiKey.PRODUCE, 9), value), answer.take, EVE)
    node.until(lambda: answer.answered)
    assert answer.frames == [None]


def test_before_the_acls_are_read_super_users_alone_are_answered(node: DataNode) -> None:
    """To be denied would end a producer that writes while the broker comes up; a closed connection does not."""
    assert node.node.access.store is not None
    node.node.access.store.rules.loaded = False
    answer = Deferred(ApiKey.FETCH, SUPPORTED[ApiKey.FETCH].last)
    value = REQUESTS[ApiKey.FETCH]()
    node.node.broker.receive(encode_request(header(ApiKey.FETCH, answer.version), value), answer.take, EVE)
    assert answer.frames == [None]
    assert ask(node, ADMIN, ApiKey.FETCH, value).responses[0].partitions[0].error_code == 0
    assert not any("Denied" in line for line in node.trace.notes("info"))


def test_a_topic_that_may_not_be_described_is_not_answered_while_no_broker_is_known(
    monkeypatch: pytest.MonkeyPatch, node: DataNode
) -> None:
    """As in `test_metadata`: librdkafka gives up its brokers for an answer with topics alone."""
    monkeypatch.setattr(MetadataCache, "for_clients", property(lambda _: NOTHING_KNOWN))
    named = client.MetadataRequest((client.MetadataRequestTopic("t"),))
    answer = ask(node, EVE, ApiKey.METADATA, named)
    assert (answer.brokers, answer.topics) == ((), ())


def test_metadata_of_all_topics_are_of_those_that_may_be_described() -> None:
    node = DataNode("t", "u", **AUTHORIZER)
    allow(node, acl("User:eve", "u", AclOperation.READ))
    everything = client.MetadataRequest(None, include_topic_authorized_operations=True)
    (topic,) = ask(node, EVE, ApiKey.METADATA, everything).topics
    assert (topic.name, topic.error_code) == ("u", 0)
    assert topic.topic_authorized_operations == 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
    named = client.MetadataRequest(tuple(map(client.MetadataRequestTopic, ("t", "u", "none"))))
    found = {topic.name: topic.error_code for topic in ask(node, EVE, ApiKey.METADATA, named).topics}
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found == {"t": denied, "u": 0, "none": denied}, "whether a topic exists is not shown"
    cluster = client.MetadataRequest((), include_cluster_authorized_operations=True)
    assert ask(node, EVE, ApiKey.METADATA, cluster, 8).cluster_authorized_operations == 0
    assert ask(node, ADMIN, ApiKey.METADATA, cluster, 8).cluster_authorized_operations != 0


def test_a_revoked_topic_is_no_longer_read_and_a_granted_one_is(node: DataNode) -> None:
    """Also where the client asks for a fetch session: it gets none."""
    asked = fetch.FetchRequest(
        0, 0, (fetch.FetchTopic("t", (fetch.FetchPartition(0, 0, 1_000),)),), session_id=0, session_epoch=0
    )

    def error() -> int:
        answer = ask(node, EVE, ApiKey.FETCH, asked)
        assert answer.session_id == 0
        return int(answer.responses[0].partitions[0].error_code)

    assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    allow(node, acl("User:eve", "t"))
    assert error() == ErrorCode.NONE
    allow(node, acl("User:eve", "t", permission=AclPermission.DENY))
    assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_acls_are_kept_as_kafka_keeps_them_and_followed(node: DataNode) -> None:
    allow(node, acl("User:bob", "t"), acl("User:bob", "pre", pattern=PatternType.PREFIXED))
    assert node.data("/kafka-acl/Topic/t") == (
        b'{"version":1,"acls":[{"principal":"User:bob","permissionType":"Allow","operation":"Read","host":"*"}]}'
    )
    assert node.data("/kafka-acl-extended/prefixed/Topic/pre") is not None
    assert node.data("/kafka-acl-changes/acl_changes_0000000000") == b"TOPIC:t"
    change = b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}'
    assert node.data("/kafka-acl-extended-changes/acl_changes_0000000000") == change
    # another broker's change
    node.write("/kafka-acl/Topic/t", node.data("/kafka-acl/Topic/t").replace(b"bob", b"eve"))  # type: ignore[union-attr]
    node.write("/kafka-acl-changes/acl_changes_0000000001", b"Topic:t")
    node.settle()
    asked = REQUESTS[ApiKey.FETCH]()
    assert ask(node, EVE, ApiKey.FETCH, asked).responses[0].partitions[0].error_code == 0
    found = ask(node, ADMIN, ApiKey.DESCRIBE_ACLS, REQUESTS[ApiKey.DESCRIBE_ACLS]()).resources
    assert [(one.resource_name, one.pattern_type, one.acls[0].principal) for one in found] == [
        ("pre", PatternType.PREFIXED, "User:bob"),
        ("t", PatternType.LITERAL, "User:eve"),
    ]
    match = security.DeleteAclsFilter(ResourceType.TOPIC, "prefix", None, None, 1, 1, PatternType.MATCH)
    (result,) = ask(node, ADMIN, ApiKey.DELETE_ACLS, security.DeleteAclsRequest((match,))).filter_results
    assert [one.resource_name for one in result.matching_acls] == ["pre"]
    assert node.row("/kafka-acl-extended/prefixed/Topic/pre") is None


def test_acls_that_can_not_be_read_deny(node: DataNode) -> None:
    allow(node, acl("User:eve", "*"))
    asked = REQUESTS[ApiKey.FETCH]()
    assert ask(node, EVE, ApiKey.FETCH, asked).responses[0].partitions[0].error_code == 0
    node.write("/kafka-acl/Topic/t", b"{")
    node.write("/kafka-acl-changes/acl_changes_0000000001", b"Topic:t")
    node.settle()
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ask(node, EVE, ApiKey.FETCH, asked).responses[0].partitions[0].error_code == denied
    assert any("/kafka-acl/Topic/t" in line for line in node.trace.notes("error"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (acl("eve", "t"), "TYPE:NAME"),
        (acl("User:eve", ""), "empty resource name"),
        (acl("User:eve", "a/b"), "no /"),
        (acl("User:eve", "c", AclOperation.ALTER, kind=ResourceType.CLUSTER), "kafka-cluster"),
        (acl("User:eve", "t", AclOperation.CLUSTER_ACTION), "does not apply"),
        (acl("User:eve", "t", permission=AclPermission.ANY), "DENY or ALLOW"),
        (acl("User:eve", "t", pattern=PatternType.MATCH), "LITERAL or PREFIXED"),
    ],
)
def test_a_wrong_acl_is_refused_and_the_others_are_made(node: DataNode, wrong: security.AclCreation, says: str) -> None:
    request = security.CreateAclsRequest((wrong, acl("User:eve", "t")))
    refused, made = ask(node, ADMIN, ApiKey.CREATE_ACLS, request).results
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert says in (refused.error_message or "")
    assert made.error_code == ErrorCode.NONE


def test_without_an_authorizer_there_are_no_acls() -> None:
    node = DataNode("t")
    for key in ACL_APIS:
        assert ErrorCode.SECURITY_DISABLED in set(codes(ask(node, EVE, key, REQUESTS[key]())))
    assert node.row(paths.ACLS) is None
    assert node.node.broker.guard is None


def test_what_is_checked_is_what_kafka_checks_or_has_a_reason() -> None:
    assert set(KAFKA) <= set(ACCESS)
    differ = {key for key in ACCESS if pairs_of(key) != set(KAFKA.get(key, ()))}
    assert differ <= set(DIFFERENCES) <= set(ACCESS)
    assert differ == {ApiKey.ALLOCATE_PRODUCER_IDS}


def test_the_table_of_the_documentation_is_the_one_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert "\n".join(documentation()) in page, "python -m tests.broker.access_table"
