"""What a version can't say is refused, and early versions' spellings are the same values."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
from msgspec.structs import replace

from controller.protocol import (
    ApiKey,
    ApiVersionsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    MetadataRequest,
    MetadataRequestTopic,
    RequestHeader,
    RequestValue,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UnencodableValue,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    decode_request,
    encode_request,
    encode_request_body,
    primitives,
    schema,
)
from controller.protocol.admin import DescribeConfigsRequest, DescribeConfigsResource
from controller.protocol.client import COORDINATOR_OF_TRANSACTION, FindCoordinatorRequest
from controller.protocol.codec import MESSAGES
from controller.protocol.compiler import compile_struct, layout
from controller.protocol.control import (
    SHUTDOWN_FORCED,
    AlterIsrPartition,
    AlterIsrRequest,
    AlterIsrTopic,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from controller.protocol.fetch import (
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ReplicaState,
)
from controller.protocol.produce import InitProducerIdRequest, ProducePartition, ProduceRequest, ProduceTopic
from controller.protocol.schema import (
    INT32,
    NO_DEFAULT,
    TEXT,
    Array,
    Field,
    Inline,
    Message,
    Nested,
    Struct,
    Structure,
    Ungrouped,
    default_of,
)
from controller.trace import RequestRefused

STATE = LeaderAndIsrPartitionState(0, 1, 2, 3, (2, 1), 4, (2, 1))
LEADER_AND_ISR = LeaderAndIsrRequest(1, 1, (LeaderAndIsrTopicState("pay", (STATE,)),), ())
STOP = StopReplicaRequest(1, 1, (StopReplicaTopicState("pay", (StopReplicaPartitionState(0),)),))
FETCH = FetchRequest(500, 1, ())
TOPICS = CreateTopicsRequest((CreatableTopic("pay", 1, 1),))
TWO_ENDPOINTS = UpdateMetadataBroker(1, (UpdateMetadataEndpoint(1, "a"), UpdateMetadataEndpoint(2, "b")))

UNENCODABLE: dict[str, tuple[ApiKey, int, RequestValue, str]] = {
    "a value of another request": (ApiKey.METADATA, 1, TOPICS, "got a CreateTopicsRequest"),
    "a number out of range": (ApiKey.LEADER_AND_ISR, 5, replace(LEADER_AND_ISR, controller_id=2**31), "2147483647"),
    "a topic id of another length": (
        ApiKey.LEADER_AND_ISR,
        5,
        replace(LEADER_AND_ISR, topic_states=(LeaderAndIsrTopicState("pay", (), b"short"),)),
        "topic_id has not 16 bytes",
    ),
    "a type before there was one": (ApiKey.LEADER_AND_ISR, 4, replace(LEADER_AND_ISR, type=2), "type is not in"),
    "validate_only before there was one": (ApiKey.CREATE_TOPICS, 0, replace(TOPICS, validate_only=True), "validate"),
    "no auto creation before it could be said": (
        ApiKey.METADATA,
        3,
        MetadataRequest(None, allow_auto_topic_creation=False),
        "allow_auto_topic_creation",
    ),
    "no topics, in the version where that is all": (ApiKey.METADATA, 0, MetadataRequest(()), "asks for all"),
    "a topic by id before there were ids": (
        ApiKey.METADATA,
        9,
        MetadataRequest((MetadataRequestTopic(None, bytes(16)),)),
        "name can not be null",
    ),
    "delete flags that differ, with one for all": (
        ApiKey.STOP_REPLICA,
        2,
        replace(STOP, delete_partitions=True),
        "one flag",
    ),
    "two endpoints where there is one": (
        ApiKey.UPDATE_METADATA,
        0,
        UpdateMetadataRequest(1, 1, (), (TWO_ENDPOINTS,)),
        "not exactly one",
    ),
    "an empty group in a flat list": (
        ApiKey.LEADER_AND_ISR,
        1,
        replace(LEADER_AND_ISR, topic_states=(LeaderAndIsrTopicState("pay", ()),)),
        "a group has rows",
    ),
    "a group in two parts in a flat list": (
        ApiKey.LEADER_AND_ISR,
        1,
        replace(LEADER_AND_ISR, topic_states=LEADER_AND_ISR.topic_states * 2),
        "another name",
    ),
    "a transaction's records before there were any": (
        ApiKey.PRODUCE,
        2,
        ProduceRequest(-1, 1_000, (), "transfer"),
        "transactional_id is not in version 2",
    ),
    "committed records only, before that could be asked": (
        ApiKey.FETCH,
        3,
        replace(FETCH, isolation_level=READ_COMMITTED),
        "isolation_level is not in version 3",
    ),
    "a session before there were any": (ApiKey.FETCH, 6, replace(FETCH, session_id=5), "session_id is not in"),
    "forgotten topics without a session to forget them": (
        ApiKey.FETCH,
        6,
        replace(FETCH, forgotten_topics_data=(ForgottenTopic("pay", (0,)),)),
        "forgotten_topics_data is not in",
    ),
    "a last fetched epoch that the version does not look at": (
        ApiKey.FETCH,
        11,
        replace(FETCH, topics=(FetchTopic("pay", (FetchPartition(0, 5, 1, last_fetched_epoch=3),)),)),
        "last_fetched_epoch is not in",
    ),
    "a producer's next epoch before it could be asked for": (
        ApiKey.INIT_PRODUCER_ID,
        2,
        InitProducerIdRequest(None, 0, producer_id=7),
        "producer_id is not in version 2",
    ),
    "more offsets than the version gives": (
        ApiKey.LIST_OFFSETS,
        1,
        ListOffsetsRequest((ListOffsetsTopic("pay", (ListOffsetsPartition(0, -1, max_num_offsets=2),)),)),
        "max_num_offsets is not in",
    ),
    "a transaction's coordinator before there were any": (
        ApiKey.FIND_COORDINATOR,
        0,
        FindCoordinatorRequest("transfer", COORDINATOR_OF_TRANSACTION),
        "key_type is not in",
    ),
    "records that are none": (
        ApiKey.PRODUCE,
        9,
        ProduceRequest(-1, 1_000, (ProduceTopic("pay", (ProducePartition(0, cast(bytes, bytearray(b"ab"))),)),)),
        "length",
    ),
    "a setting's name that is null": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        DescribeConfigsRequest((DescribeConfigsResource(2, "pay", cast(tuple[str], (None,))),)),
        "null in an array",
    ),
    "a string too long": (ApiKey.API_VERSIONS, 3, ApiVersionsRequest("x" * 40_000, ""), "40000 bytes"),
    "a string without UTF-8": (ApiKey.API_VERSIONS, 3, ApiVersionsRequest("\ud800", ""), "surrogates"),
}


@pytest.mark.parametrize(("api_key", "version", "value", "reason"), UNENCODABLE.values(), ids=UNENCODABLE.keys())
def test_a_value_that_the_version_can_not_say_is_refused(
    api_key: ApiKey, version: int, value: RequestValue, reason: str
) -> None:
    with pytest.raises(UnencodableValue, match=reason):
        encode_request_body(api_key, version, value)


def test_a_client_id_that_can_not_be_said_is_refused() -> None:
    for header in (
        RequestHeader(ApiKey.API_VERSIONS, 0, 2**31, "a"),
        RequestHeader(ApiKey.API_VERSIONS, 0, 1, "\ud800"),
    ):
        with pytest.raises(UnencodableValue):
            encode_request(header, ApiVersionsRequest())


def test_a_version_that_is_not_spoken_can_not_be_encoded() -> None:
    with pytest.raises(UnencodableValue, match="has versions 0 to 5"):
        encode_request_body(ApiKey.LEADER_AND_ISR, 6, LEADER_AND_ISR)


SAME: dict[str, tuple[ApiKey, tuple[int, ...], RequestValue]] = {
    "flat and grouped partitions of LeaderAndIsr": (
        ApiKey.LEADER_AND_ISR,
        (0, 1, 2, 3, 4, 5),
        replace(LEADER_AND_ISR, topic_states=(*LEADER_AND_ISR.topic_states, LeaderAndIsrTopicState("x", (STATE,)))),
    ),
    "StopReplica": (ApiKey.STOP_REPLICA, (0, 1, 2, 3), STOP),
    "one flag for all of StopReplica": (
        ApiKey.STOP_REPLICA,
        (0, 1, 2),
        StopReplicaRequest(
            1,
            1,
            (StopReplicaTopicState("pay", (StopReplicaPartitionState(0, delete_partition=True),)),),
            delete_partitions=True,
        ),
    ),
    "an UpdateMetadata's broker": (
        ApiKey.UPDATE_METADATA,
        tuple(range(8)),
        UpdateMetadataRequest(1, 1, (), (UpdateMetadataBroker(1, (UpdateMetadataEndpoint(9092, "host"),)),)),
    ),
    "all topics": (ApiKey.METADATA, tuple(range(12)), MetadataRequest(None)),
}


@pytest.mark.parametrize(("api_key", "versions", "value"), SAME.values(), ids=SAME.keys())
def test_versions_that_spell_it_otherwise_give_the_same_value(
    api_key: ApiKey, versions: tuple[int, ...], value: RequestValue
) -> None:
    for version in versions:
        header = RequestHeader(
            api_key, version, 1, "c" if version or api_key is not ApiKey.CONTROLLED_SHUTDOWN else None
        )
        assert decode_request(encode_request(header, value)).value == value


def tables(table: Struct) -> list[Struct]:
    """A table and all that it contains."""
    found = [table]
    for field in table.fields:
        match field.type:
            case Array(of=of) | Inline(of=of) | Nested(of=of):
                found += tables(of)
            case Ungrouped(row=row):
                found += tables(row)
    return found


def faults(message: Message) -> list[str]:
    """Where a table and its value class don't fit: unknown fields, a required field that a version lacks."""
    wrong = []
    for table in tables(message.struct):
        declared = {name: default_of(table.value, name) for name in table.value.__struct_fields__}
        wrong += [f"{table.value.__name__}.{field.name}" for field in table.fields if field.name not in declared]
        always = set.intersection(
            *(
                {field.name for field in table.fields if field.is_in(version)}
                for version in range(message.first, message.last + 1)
            )
        )
        grouped = {name for name in ("topic_name", "partition_states", "partition_errors") if name in declared}
        for name, default in declared.items():
            if (
                default is NO_DEFAULT
                and name not in always | grouped
                and not table.bare
                and not _partial(message, table)
            ):
                wrong.append(f"{table.value.__name__}.{name} is required, but not in all versions")
    return wrong


def _partial(message: Message, table: Struct) -> bool:
    """A table that is one of several for its value class: each is only for some versions."""
    return sum(other.value is table.value for other in tables(message.struct)) > 1


@pytest.mark.parametrize("api_key", MESSAGES)
def test_field_tables_fit_their_value_classes(api_key: ApiKey) -> None:
    for message in (MESSAGES[api_key].request, MESSAGES[api_key].response):
        assert faults(message) == []
        for version in range(message.first, message.last + 1):
            layout(message, version)


def test_a_table_that_does_not_fit_is_found() -> None:
    wrong = Struct(MetadataRequestTopic, (Field("title", TEXT), Field("name", TEXT, since=1)))
    assert faults(Message(wrong, first=0, last=1, flexible=9)) == [
        "MetadataRequestTopic.title",
        "MetadataRequestTopic.name is required, but not in all versions",
    ]


@pytest.mark.parametrize(
    ("field", "flexible", "reason"),
    [
        (Field("throttle_time_ms", INT32, tag=0), False, "not flexible"),
        (Field("error_code", INT32, tag=0), True, "no default"),
    ],
)
def test_a_table_that_can_not_be_compiled_is_refused(field: Field, flexible: bool, reason: str) -> None:
    value: Any = MESSAGES[ApiKey.API_VERSIONS].response.struct.value
    with pytest.raises((ValueError, TypeError), match=reason):
        compile_struct(Struct(value, (field,)), 0, flexible)


def test_which_lives_are_spoken_of_is_told_in_tagged_fields_that_kafka_passes_over() -> None:
    """KIP-903 between our own brokers, in the versions that a 2.8 broker is spoken to in: without a word of it the
    bytes are Kafka's, and with it all of Kafka's fields are what they were."""
    fetch = layout(MESSAGES[ApiKey.FETCH].request, 12)
    told = replace(FETCH, replica_state=ReplicaState(3, 77))
    assert fetch.read(fetch.write(told), 0) == told
    assert fetch.write(told).startswith(fetch.write(FETCH)[:-1])  # whose last byte says that there are no tags
    alter = layout(MESSAGES[ApiKey.ALTER_ISR].request, 0)
    silent = AlterIsrRequest(1, (AlterIsrTopic("t", (AlterIsrPartition(0, 5, (1, 2), 3),)),), 40)
    asked = AlterIsrRequest(1, (AlterIsrTopic("t", (AlterIsrPartition(0, 5, (1, 2), 3, (40, 41)),)),), 40)
    assert alter.read(alter.write(asked), 0) == asked
    assert alter.read(alter.write(silent), 0) == silent
    assert len(alter.write(asked)) > len(alter.write(silent))
    before = layout(MESSAGES[ApiKey.FETCH].request, 11)
    assert before.write(told) == before.write(FETCH)


def test_how_a_broker_goes_and_why_it_may_not_are_told_in_tagged_fields_that_kafka_passes_over() -> None:
    exchange = MESSAGES[ApiKey.CONTROLLED_SHUTDOWN]
    request, response = layout(exchange.request, 3), layout(exchange.response, 3)
    kafkas, ours = ControlledShutdownRequest(2, 67), ControlledShutdownRequest(2, 67, SHUTDOWN_FORCED)
    assert request.read(request.write(ours), 0) == ours
    assert request.write(ours).startswith(request.write(kafkas)[:-1])
    answer = ControlledShutdownResponse(0, (RemainingPartition("t", 1),), "why")
    assert response.read(response.write(answer), 0) == answer
    assert response.write(answer).startswith(response.write(replace(answer, reason=""))[:-1])
    assert layout(exchange.request, 2).write(ours) == layout(exchange.request, 2).write(kafkas)
    assert layout(exchange.response, 2).write(answer) == layout(exchange.response, 2).write(replace(answer, reason=""))


def test_what_our_controllers_add_to_update_metadata_is_in_tagged_fields_that_kafka_ignores() -> None:
    request = MESSAGES[ApiKey.UPDATE_METADATA].request
    kafkas = UpdateMetadataRequest(1, 2, (), (), 67)
    for told in ({"partitions_follow": True}, {"complete_but": ()}, {"complete_but": ("t", "u")}):
        ours = replace(kafkas, **told)
        for version in (6, 7):
            assert layout(request, version).read(layout(request, version).write(ours), 0) == ours
            assert layout(request, version).write(ours).startswith(layout(request, version).write(kafkas)[:-1])
        assert layout(request, 5).write(ours) == layout(request, 5).write(kafkas)


def test_short_arrays_of_brokers_are_one_object_each_and_no_more_are_known_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(primitives, "SHORT_INTS_KEPT", 4)  # of two requests
    primitives.SHORT_INTS.clear()
    for first in range(20):
        state = LeaderAndIsrPartitionState(0, 1, first, 1, (first, 2), 0, (first, 2, 3))
        request = LeaderAndIsrRequest(1, 1, (LeaderAndIsrTopicState("t", (state, state), bytes(16)),), (), 1)
        frame = encode_request(RequestHeader(ApiKey.LEADER_AND_ISR, 5, 1, "x"), request)
        read = cast(LeaderAndIsrRequest, decode_request(frame).value)
        assert read == request
        one, other = read.topic_states[0].partition_states
        assert one.isr is other.isr
        assert one.replicas is other.replicas
        assert len(primitives.SHORT_INTS) <= 4


@pytest.mark.parametrize("value", [FETCH, LEADER_AND_ISR, RequestRefused("a", 1, 2, "b")])
def test_a_value_is_immutable_and_equal_by_its_fields(value: Any) -> None:
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], 2)
    copied = pickle.loads(pickle.dumps(value))
    assert copied == value
    assert hash(copied) == hash(value)
    assert replace(value, **{value.__struct_fields__[0]: 77}) != value


def test_a_field_can_not_precede_one_that_its_class_lacks() -> None:
    with pytest.raises(ValueError, match="not in list"):

        class Planted(Structure):
            a: int = schema.field(before="b")
