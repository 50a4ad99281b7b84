"""What clients are told of the cluster, version by version, from what UpdateMetadata requests said."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.broker.error_responses import refusal
from controller.broker.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, metadata_response
from controller.protocol.client import NO_AUTHORIZED_OPERATIONS, MetadataRequest, MetadataRequestTopic, MetadataResponse
from controller.protocol.codec import ApiKey
from controller.protocol.control import LEADER_DURING_DELETE
from controller.protocol.errors import ErrorCode
from tests.broker.harness import BROKER_EPOCH, TOPIC_ID, BrokerUnderTest, live, metadata

ALL = MetadataRequest(None)


def asking(*names: str) -> MetadataRequest:
    return MetadataRequest(tuple(MetadataRequestTopic(name) for name in names))


def told(under_test: BrokerUnderTest, request: MetadataRequest = ALL, version: int = 11) -> MetadataResponse:
    response = under_test.ask(ApiKey.METADATA, request, version)
    assert isinstance(response, MetadataResponse)
    return response


@pytest.fixture
def under_test() -> BrokerUnderTest:
    broker = BrokerUnderTest()
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 2), ("u", 0, 3)))
    return broker


@pytest.mark.parametrize("asked", [ALL, asking("t")], ids=["all topics", "one"])
def test_a_broker_that_was_told_nothing_names_nobody_and_no_topic(asked: MetadataRequest) -> None:
    """librdkafka asks again. For a topic without any broker it gives up all brokers that it knows."""
    assert told(BrokerUnderTest(), asked) == MetadataResponse((), (), "a-cluster", -1)


def test_a_request_that_is_refused_as_a_whole_is_answered_without_topics() -> None:
    assert refusal(asking("t"), ErrorCode.UNKNOWN_SERVER_ERROR) == MetadataResponse((), ())


def test_a_broker_that_is_yet_to_hear_of_partitions_names_nobody() -> None:
    """A failover tells of the live brokers first. Who has just started would say that there are no topics."""
    under_test = BrokerUnderTest()
    nobody = MetadataResponse((), (), "a-cluster", -1)
    under_test.ask(ApiKey.UPDATE_METADATA, replace(metadata(), partitions_follow=True))
    assert told(under_test) == nobody
    assert set(under_test.broker.metadata.snapshot.brokers) == {1, 2, 3}, "its own fetchers know them"
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1)))
    assert [broker.node_id for broker in told(under_test).brokers] == [1, 2, 3]
    assert [topic.name for topic in told(under_test).topics] == ["t"]


def test_in_a_cluster_without_topics_the_brokers_are_told_at_once() -> None:
    under_test = BrokerUnderTest()
    under_test.ask(ApiKey.UPDATE_METADATA, replace(metadata(), partitions_follow=True))
    under_test.ask(ApiKey.UPDATE_METADATA, metadata())
    assert [broker.node_id for broker in told(under_test).brokers] == [1, 2, 3], "another controller knows of none"


def test_a_broker_that_knows_partitions_tells_them_on_while_a_new_controller_begins(
    under_test: BrokerUnderTest,
) -> None:
    under_test.ask(ApiKey.UPDATE_METADATA, replace(metadata(brokers=live(1, 2)), partitions_follow=True))
    response = told(under_test)
    assert [broker.node_id for broker in response.brokers] == [1, 2]
    assert [topic.name for topic in response.topics] == ["t", "u"]


@pytest.mark.parametrize("version", range(12))
def test_every_version_names_brokers_topics_and_leaders(under_test: BrokerUnderTest, version: int) -> None:
    # Version 0 has no "all" but the empty list, which is what None is on the wire there.
    response = told(under_test, ALL, version)
    assert [(broker.node_id, broker.port) for broker in response.brokers] == [(1, 9091), (2, 9092), (3, 9093)]
    assert {topic.name: [partition.leader_id for partition in topic.partitions] for topic in response.topics} == {
        "t": [1, 2],
        "u": [3],
    }
    assert all(topic.error_code == ErrorCode.NONE for topic in response.topics)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_id == ("a-cluster" if version >= 2 else None)
    assert {topic.topic_id for topic in response.topics} == {TOPIC_ID if version >= 10 else bytes(16)}


def test_asking_for_no_topic_gets_none(under_test: BrokerUnderTest) -> None:
    assert told(under_test, MetadataRequest(())).topics == ()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no good", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 249, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_unknown_topics_get_their_error_and_the_others_their_answer(
    under_test: BrokerUnderTest, name: str, error: ErrorCode
) -> None:
    missing, found = told(under_test, asking(name, "u")).topics
    assert (missing.name, missing.error_code, missing.partitions) == (name, error, ())
    assert (found.name, found.error_code) == ("u", ErrorCode.NONE)


def test_asking_by_id_is_not_supported_yet(under_test: BrokerUnderTest) -> None:
    (topic,) = told(under_test, MetadataRequest((MetadataRequestTopic(None, TOPIC_ID),))).topics
    assert topic.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("version", "error"), [(0, ErrorCode.LEADER_NOT_AVAILABLE), (11, ErrorCode.LEADER_NOT_AVAILABLE)]
)
@pytest.mark.parametrize("leader", [-1, 3])
def test_a_leader_that_is_none_or_gone_is_not_available(version: int, error: ErrorCode, leader: int) -> None:
    under_test = BrokerUnderTest()
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, leader), brokers=live(1, 2)))
    ((partition,),) = (topic.partitions for topic in told(under_test, ALL, version).topics)
    assert (partition.error_code, partition.leader_id) == (error, -1)


def test_version_0_leaves_out_what_it_has_no_address_for() -> None:
    under_test = BrokerUnderTest()
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), brokers=live(1, 2)))
    ((old,),) = (topic.partitions for topic in told(under_test, ALL, 0).topics)
    assert (old.error_code, old.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, (1, 2))
    ((new,),) = (topic.partitions for topic in told(under_test, ALL, 1).topics)
    assert (new.error_code, new.replica_nodes) == (ErrorCode.NONE, (1, 2, 3))


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
def test_a_leader_without_the_clients_listener_is_told_apart(version: int, error: ErrorCode) -> None:
    under_test = BrokerUnderTest()
    brokers = live(1) + live(2, listener="OTHER")
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 2), brokers=brokers))
    response = told(under_test, ALL, version)
    assert [broker.node_id for broker in response.brokers] == [1]
    ((partition,),) = (topic.partitions for topic in response.topics)
    assert (partition.error_code, partition.leader_id) == (error, -1)


def test_operations_are_told_to_those_who_ask(under_test: BrokerUnderTest) -> None:
    plain = told(under_test, asking("t"), 10)
    assert plain.cluster_authorized_operations == NO_AUTHORIZED_OPERATIONS
    assert plain.topics[0].topic_authorized_operations == NO_AUTHORIZED_OPERATIONS
    asked = told(under_test, MetadataRequest(asking("t").topics, True, True, True), 10)
    assert asked.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert asked.topics[0].topic_authorized_operations == TOPIC_OPERATIONS


def test_the_same_is_encoded_once_a_snapshot(under_test: BrokerUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    right = metadata_response

    def counted(*arguments: Any) -> Any:
        made.append(arguments[2])
        return right(*arguments)

    monkeypatch.setattr("controller.broker.metadata.metadata_response", counted)
    first = told(under_test)
    assert told(under_test) == first
    assert len(told(under_test, asking("t")).topics) == 1
    assert told(under_test, version=9).brokers == first.brokers
    assert made == [11, 11, 9]
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, 1), brokers=live(1, 2)))
    assert told(under_test) != first
    assert made == [11, 11, 9, 11]


def test_what_was_encoded_before_is_told_as_if_it_were_encoded_now() -> None:
    steps = (
        metadata(("t", 0, 1), ("t", 1, 2), ("t", 2, 3)),
        metadata(("t", 1, 3)),
        metadata(brokers=live(1, 2)),
        metadata(("t", 1, 2), brokers=live(1, 2), isr=(2,)),
        metadata(brokers=live(1) + live(2, listener="ELSEWHERE") + live(3)),
        metadata(("t", 0, LEADER_DURING_DELETE)),
    )
    kept = BrokerUnderTest()
    for done, step in enumerate(steps, start=1):
        kept.ask(ApiKey.UPDATE_METADATA, step)
        fresh = BrokerUnderTest()
        for one in steps[:done]:
            fresh.ask(ApiKey.UPDATE_METADATA, one)
        for version in (0, 5, 6, 9, 11):
            assert told(kept, ALL, version) == told(fresh, ALL, version), (done, version)


def test_no_more_is_kept_encoded_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.broker.metadata.ROWS_KEPT", 2)
    broker = BrokerUnderTest()
    for number in range(5):
        broker.ask(ApiKey.UPDATE_METADATA, metadata(*((f"t{number}", index, 1) for index in range(3))))
        assert [len(topic.partitions) for topic in told(broker).topics] == [3] * (number + 1)
        rows = broker.broker.metadata_bodies._rows
        assert sum(map(len, rows._known.values())) <= 2 + 3


def test_an_update_replaces_brokers_and_keeps_other_partitions(under_test: BrokerUnderTest) -> None:
    before = under_test.broker.metadata.snapshot
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, 1), brokers=live(1, 2), controller_id=2))
    after = told(under_test)
    assert [broker.node_id for broker in after.brokers] == [1, 2]
    assert after.controller_id == 2
    assert {(t.name, p.partition_index): p.leader_id for t in after.topics for p in t.partitions} == {
        ("t", 0): 1,
        ("t", 1): 1,
        ("u", 0): -1,
    }
    assert before.topics["t"][1].leader == 2, "a snapshot that somebody holds does not change"


def test_a_deleted_partition_goes_and_with_the_last_one_its_topic(under_test: BrokerUnderTest) -> None:
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, LEADER_DURING_DELETE)))
    assert {topic.name: len(topic.partitions) for topic in told(under_test).topics} == {"t": 1, "u": 1}
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 1, LEADER_DURING_DELETE)))
    assert [topic.name for topic in told(under_test).topics] == ["u"]
    (gone,) = told(under_test, asking("t")).topics
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_new_registration_is_told_of_everything_and_forgets_the_rest(under_test: BrokerUnderTest) -> None:
    """A broker can outlive its session; of what was deleted meanwhile nobody tells it. Who is alive says nothing of
    topics yet: a new controller begins with that."""
    life = BROKER_EPOCH + 1
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(broker_epoch=life))
    assert {topic.name for topic in told(under_test).topics} == {"t", "u"}
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 2), broker_epoch=life))
    (topic,) = told(under_test).topics
    assert [(topic.name, one.partition_index, one.leader_id) for one in topic.partitions] == [("t", 0, 2)]
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("u", 0, 1), broker_epoch=life))
    assert {topic.name for topic in told(under_test).topics} == {"t", "u"}, "only the first replaces"


def test_of_a_complete_request_only_the_topics_that_it_names_or_lists_stay(under_test: BrokerUnderTest) -> None:
    """The registration is the same: the controller could not read it for a while."""
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 2), ("u", 0, 3), ("v", 0, 3), ("v", 1, 3)))
    under_test.ask(ApiKey.UPDATE_METADATA, replace(metadata(("t", 0, 2), ("v", 0, 1)), complete_but=("u", "v", "w")))
    shown = {topic.name: [one.leader_id for one in topic.partitions] for topic in told(under_test).topics}
    assert shown == {"t": [2], "u": [3], "v": [1, 3]}
    under_test.ask(ApiKey.UPDATE_METADATA, replace(metadata(controller_epoch=2), complete_but=()))
    assert told(under_test).topics == ()


def test_a_complete_request_that_arrives_again_takes_away_nothing(under_test: BrokerUnderTest) -> None:
    """It was sent over a connection that broke, and then over the next one, which also carried what came later."""
    complete = replace(metadata(("t", 0, 2)), complete_but=())
    under_test.ask(ApiKey.UPDATE_METADATA, complete)
    assert {topic.name for topic in told(under_test).topics} == {"t"}
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(("new", 0, 1)))
    under_test.ask(ApiKey.UPDATE_METADATA, complete)
    assert {topic.name for topic in told(under_test).topics} == {"t", "new"}
