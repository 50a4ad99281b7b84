"""Frames of any kind: each is answered once or closes its own connection, and the broker lives on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.events import AlterIsrRequested, ControlledShutdownRequested
from controller.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    FeatureUpdate,
    ListedTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    UpdateFeaturesRequest,
)
from controller.protocol.client import (
    ApiVersionsRequest,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    MetadataRequest,
)
from controller.protocol.codec import SUPPORTED, ApiKey, decode_response, encode_request
from controller.protocol.control import (
    SHUTDOWN_CHECKED,
    SHUTDOWN_FORCED,
    AllocateProducerIdsRequest,
    AlterIsrRequest,
    AlterIsrResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
    StopReplicaRequest,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.schema import RequestValue
from controller.protocol.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.broker.harness import BrokerUnderTest, header, leader_and_isr, metadata

EXAMPLES: dict[ApiKey, RequestValue] = {
    ApiKey.API_VERSIONS: ApiVersionsRequest("test", "1.0"),
    ApiKey.METADATA: MetadataRequest(None),
    ApiKey.CREATE_TOPICS: CreateTopicsRequest((CreatableTopic("t", 1, 1),)),
    ApiKey.CREATE_PARTITIONS: CreatePartitionsRequest((CreatePartitionsTopic("t", 2),), 1_000),
    ApiKey.DELETE_TOPICS: DeleteTopicsRequest((DeleteTopicState("t"),), 1_000),
    ApiKey.ELECT_LEADERS: ElectLeadersRequest((ElectLeadersTopic("t", (0,)),)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignmentsRequest(
        (ReassignableTopic("t", (ReassignablePartition(0, (1, 2)), ReassignablePartition(1, None))),)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignmentsRequest((ListedTopic("t", (0,)),)),
    ApiKey.LEADER_AND_ISR: leader_and_isr(1, 0),
    ApiKey.UPDATE_METADATA: metadata(),
    ApiKey.STOP_REPLICA: StopReplicaRequest(1, 1, ()),
    ApiKey.CONTROLLED_SHUTDOWN: ControlledShutdownRequest(1),
    ApiKey.ALTER_ISR: AlterIsrRequest(1, ()),
    ApiKey.UPDATE_FEATURES: UpdateFeaturesRequest((FeatureUpdate("f", 1),)),
    ApiKey.ALLOCATE_PRODUCER_IDS: AllocateProducerIdsRequest(1, 61),
    ApiKey.DESCRIBE_ACLS: DescribeAclsRequest(1, None, None, None, 1, 1),
    ApiKey.CREATE_ACLS: CreateAclsRequest((AclCreation(2, "t", "User:u", "*", 3, 3),)),
    ApiKey.SASL_HANDSHAKE: SaslHandshakeRequest("PLAIN"),
    ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRequest(b"x"),
    ApiKey.DELETE_ACLS: DeleteAclsRequest((DeleteAclsFilter(1, None, None, None, 1, 1),)),
}


def test_what_is_offered_is_what_is_answered() -> None:
    """Each API of the ApiVersions answer, in each of its versions, gets an answer of that version."""
    under_test = BrokerUnderTest()
    offered = under_test.ask(ApiKey.API_VERSIONS, EXAMPLES[ApiKey.API_VERSIONS]).api_keys
    assert {ApiKey(api.api_key) for api in offered} == set(EXAMPLES)
    assert ApiKey.ALTER_REPLICA_LOG_DIRS not in set(EXAMPLES)
    for api in offered:
        assert (api.min_version, api.max_version) == (SUPPORTED[api.api_key].first, SUPPORTED[api.api_key].last)
        for version in range(api.min_version, api.max_version + 1):
            under_test.ask(ApiKey(api.api_key), EXAMPLES[ApiKey(api.api_key)], version)
    assert under_test.trace.notes("error") == []


@pytest.mark.parametrize("version", [4, 100, 32767])
def test_api_versions_of_an_unknown_version_says_which_are_known(version: int) -> None:
    frame = b"\0\x12" + version.to_bytes(2, "big") + b"\0\0\0\x07\xff\xff"
    answer = BrokerUnderTest().send(frame)
    assert answer is not None
    correlation_id, value = decode_response(ApiKey.API_VERSIONS, 3, answer)
    assert (correlation_id, value.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("librdkafka", "1.9-x", ErrorCode.NONE),
        ("", "1", ErrorCode.INVALID_REQUEST),
        ("a b", "1", ErrorCode.INVALID_REQUEST),
        ("a", "-1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_client_software_names_are_held_to_kafkas_form(name: str, version: str, error: ErrorCode) -> None:
    response = BrokerUnderTest().ask(ApiKey.API_VERSIONS, ApiVersionsRequest(name, version), 3)
    assert response.error_code == error


BAD_FRAMES = {
    "empty": b"",
    "half a header": b"\0\x03\0",
    "unknown API": b"\x03\xe7\0\0\0\0\0\1\0\0",
    "API of Kafka's that is not served": b"\0\0\0\x03\0\0\0\1\xff\xff",
    "AlterReplicaLogDirs": b"\0\x22\0\2\0\0\0\1\xff\xff\0\1\1\0",
    "version above": b"\0\x03\0\x63\0\0\0\1\xff\xff",
    "version below": b"\0\x03\xff\xff\0\0\0\1\xff\xff",
    "truncated": encode_request(header(ApiKey.UPDATE_METADATA, 7), EXAMPLES[ApiKey.UPDATE_METADATA])[:-3],
    "trailing": encode_request(header(ApiKey.STOP_REPLICA, 1), EXAMPLES[ApiKey.STOP_REPLICA]) + b"\0",
    "impossible count": encode_request(header(ApiKey.METADATA, 1), MetadataRequest(()))[:-4] + b"\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_closes_its_connection_and_nothing_else(frame: bytes) -> None:
    under_test = BrokerUnderTest()
    assert under_test.send(frame) is None
    assert len(under_test.trace.notes("warning")) == 1
    under_test.ask(ApiKey.METADATA, EXAMPLES[ApiKey.METADATA])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_frames_are_answered_or_closed_once(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(EXAMPLES)))
    frame = bytearray(encode_request(header(key, SUPPORTED[key].last), EXAMPLES[key]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    under_test = BrokerUnderTest()
    under_test.send(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    assert under_test.trace.notes("error") == []


def test_a_fault_in_a_handler_costs_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    under_test = BrokerUnderTest()

    def fail(*_request: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(under_test.broker.replicas, "update_metadata", fail)
    response = under_test.ask(ApiKey.UPDATE_METADATA, EXAMPLES[ApiKey.UPDATE_METADATA])
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    (note,) = under_test.trace.notes("error")
    assert "UPDATE_METADATA" in note
    assert "ZeroDivisionError: planted" in note
    assert under_test.ask(ApiKey.LEADER_AND_ISR, EXAMPLES[ApiKey.LEADER_AND_ISR]).error_code == ErrorCode.NONE


def test_an_answer_that_can_not_be_encoded_is_the_servers_error() -> None:
    under_test = BrokerUnderTest(controller=True)
    asked = under_test.begin(ApiKey.ALTER_ISR, EXAMPLES[ApiKey.ALTER_ISR])
    under_test.events.put_so_far[0].respond(AlterIsrResponse(1 << 40))
    assert asked.value().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(under_test.trace.notes("error")) == 1


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_ISR,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    ],
)
def test_a_broker_that_is_not_the_controller_says_so(key: ApiKey) -> None:
    under_test = BrokerUnderTest(controller=False)
    response = under_test.ask(key, EXAMPLES[key])
    assert under_test.events.put_so_far == []
    match key:
        case ApiKey.CREATE_TOPICS:
            assert [topic.error_code for topic in response.topics] == [ErrorCode.NOT_CONTROLLER]
        case ApiKey.CREATE_PARTITIONS:
            assert [topic.error_code for topic in response.results] == [ErrorCode.NOT_CONTROLLER]
        case _:
            assert response.error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(("manner", "forced"), [(SHUTDOWN_CHECKED, False), (SHUTDOWN_FORCED, True)])
def test_a_broker_of_ours_is_told_why_it_may_not_go_and_may_go_by_force(manner: int, forced: bool) -> None:
    under_test = BrokerUnderTest(controller=True)
    leave = under_test.begin(ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownRequest(2, 61, manner))
    (event,) = under_test.events.put_so_far
    assert isinstance(event, ControlledShutdownRequested)
    assert event.forced == forced
    event.respond(ControlledShutdownResponse(ErrorCode.NONE, (RemainingPartition("t", 0),), "why"))
    assert leave.value().reason == "why"


def test_what_the_controller_decides_becomes_its_event_and_is_answered_by_it() -> None:
    under_test = BrokerUnderTest(controller=True)
    alter = under_test.begin(ApiKey.ALTER_ISR, AlterIsrRequest(2, (), 61))
    leave = under_test.begin(ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownRequest(2, 61))
    first, second = under_test.events.put_so_far
    assert isinstance(first, AlterIsrRequested)
    assert isinstance(second, ControlledShutdownRequested)
    assert (first.value.broker_id, second.broker, second.broker_epoch) == (2, 2, 61)
    assert not alter.answered
    assert not second.forced
    second.respond(ControlledShutdownResponse(ErrorCode.NONE, (), "why"))
    first.refuse()
    assert leave.value() == ControlledShutdownResponse(ErrorCode.NONE), "a Kafka broker has no use for a reason"
    assert alter.value().error_code == ErrorCode.NOT_CONTROLLER
