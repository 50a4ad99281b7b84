"""ISR changes: by AlterIsr, refused for each reason that there is, and by the notifications of older leaders."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.core.events import AlterIsrRequested, ControlledShutdownRequested
from controller.core.handlers.isr_changes import HANDLED_AT_0
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    RECOVERING,
    AlterIsrPartition,
    AlterIsrPartitionResult,
    AlterIsrRequest,
    AlterIsrResponse,
    AlterIsrTopic,
    IsrMember,
)
from controller.protocol.errors import ErrorCode
from controller.trace import PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Create, Delete
from tests.core.driving import TOPIC_ID, Cluster, Host
from tests.core.test_broker_changes import cluster_of, keep_busy


def scene() -> tuple[Cluster, Host]:
    """t-0 is led by 1 in epoch 3, in sync is 1 alone; t-1 by 2 with both. Brokers 1, 2, 3; 4 is dead."""
    cluster = Cluster()
    cluster.topic("t", {0: (1, 2, 3, 4), 1: (2, 1)})
    cluster.state("t", 0, 1, (1,), 3)
    cluster.state("t", 1, 2, (2, 1), 0)
    cluster.register(2, 3)
    return cluster, cluster.host(1)


def broker_epoch(cluster: Cluster, broker: int) -> int:
    row = cluster.server.row(paths.broker(broker))
    assert row is not None
    return row.stat.czxid


def ask(
    cluster: Cluster,
    host: Host,
    sender: int,
    topic: str,
    *partitions: AlterIsrPartition,
    stale_by: int = 0,
    version: int = 1,
) -> AlterIsrResponse:
    """`version`: 1 as from a broker of ours, 0 as from one of Kafka 2.8."""
    answers: list[AlterIsrResponse] = []
    epoch = broker_epoch(cluster, sender) - stale_by
    request = AlterIsrRequest(sender, (AlterIsrTopic(topic, partitions),), epoch)
    host.events.put(AlterIsrRequested(request, answers.append, version))
    cluster.settle()
    (answer,) = answers
    return answer


def test_an_isr_grows_keeping_the_leader_epoch_and_all_hear_of_it() -> None:
    cluster, host = scene()
    mark = len(host.sent)
    answer = ask(cluster, host, 1, "t", AlterIsrPartition(0, 3, (1, 3), 0))
    assert answer.error_code == 0
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 3), 1),)
    assert cluster.states()["t-0"] == (1, 3, (1, 3), 1)
    assert [(sent.broker, sent.api, set(sent.states())) for sent in host.sent[mark:]] == [
        (broker, ApiKey.UPDATE_METADATA, {"t-0"}) for broker in (1, 2, 3)
    ]
    assert host.sent[-1].states()["t-0"].isr == (1, 3)
    assert host.trace.of(PartitionStateWritten)[-1].why == "alter isr"
    cluster.check()


GOOD = AlterIsrPartition(0, 3, (1, 2), 0)
REFUSALS = [
    ("an older leader epoch", replace(GOOD, leader_epoch=2), ErrorCode.FENCED_LEADER_EPOCH),
    ("S42: a leader that knows a later controller", replace(GOOD, leader_epoch=4), ErrorCode.NOT_CONTROLLER),
    ("a version of the past", replace(GOOD, current_isr_version=-1), ErrorCode.INVALID_UPDATE_VERSION),
    ("S42: a version of the future", replace(GOOD, current_isr_version=1), ErrorCode.NOT_CONTROLLER),
    ("no such partition", replace(GOOD, partition_index=9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("a member that is dead", replace(GOOD, new_isr=(1, 4)), ErrorCode.OPERATION_NOT_ATTEMPTED),
    ("a member outside the assignment", replace(GOOD, new_isr=(1, 7)), ErrorCode.INVALID_REQUEST),
    ("nobody", replace(GOOD, new_isr=()), ErrorCode.INVALID_REQUEST),
    ("without its leader", replace(GOOD, new_isr=(2, 3)), ErrorCode.INVALID_REQUEST),
    ("one named twice", replace(GOOD, new_isr=(1, 2, 2)), ErrorCode.INVALID_REQUEST),
    ("from one that does not lead it", AlterIsrPartition(1, 0, (2,), 0), ErrorCode.INVALID_REQUEST),
]


@pytest.mark.parametrize(("why", "asked", "error"), REFUSALS, ids=[why for why, _, _ in REFUSALS])
def test_a_change_that_cant_be_is_refused_and_nothing_is_written(
    why: str, asked: AlterIsrPartition, error: ErrorCode
) -> None:
    cluster, host = scene()
    before, mark = cluster.states(), len(host.sent)
    answer = ask(cluster, host, 1, "t", asked)
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(asked.partition_index, error),)
    assert cluster.states() == before
    assert host.sent[mark:] == []


STANDING = AlterIsrPartitionResult(0, 0, 1, 3, (1,), 0)
AT_0 = [
    ("an older leader epoch", replace(GOOD, leader_epoch=2), ErrorCode.FENCED_LEADER_EPOCH),
    ("a leader epoch that nobody wrote", replace(GOOD, leader_epoch=4), ErrorCode.INVALID_UPDATE_VERSION),
    ("a version of the past", replace(GOOD, current_isr_version=-1), STANDING),
    ("a version that nobody wrote", replace(GOOD, current_isr_version=1), ErrorCode.INVALID_UPDATE_VERSION),
    ("no such partition", replace(GOOD, partition_index=9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("a member that is dead", replace(GOOD, new_isr=(1, 4)), STANDING),
    ("a member outside the assignment", replace(GOOD, new_isr=(1, 7)), STANDING),
    ("nobody", replace(GOOD, new_isr=()), STANDING),
    ("without its leader", replace(GOOD, new_isr=(2, 3)), STANDING),
    ("one named twice", replace(GOOD, new_isr=(1, 2, 2)), STANDING),
    ("from one that does not lead it", AlterIsrPartition(1, 0, (2,), 0), ErrorCode.FENCED_LEADER_EPOCH),
]


@pytest.mark.parametrize(("why", "asked", "expected"), AT_0, ids=[why for why, _, _ in AT_0])
def test_a_kafka_leader_gets_an_error_that_it_handles_or_the_state_that_stands(
    why: str, asked: AlterIsrPartition, expected: ErrorCode | AlterIsrPartitionResult
) -> None:
    cluster, host = scene()
    before, mark = cluster.states(), len(host.sent)
    answer = ask(cluster, host, 1, "t", asked, version=0)
    if isinstance(expected, ErrorCode):
        expected = AlterIsrPartitionResult(asked.partition_index, expected)
    assert answer.topics[0].partitions == (expected,)
    assert cluster.states() == before
    assert host.sent[mark:] == []


def test_a_kafka_leader_may_take_a_shutting_down_broker_into_its_isr_and_no_dead_one() -> None:
    """As Kafka 2.8's own controller: refused, the follower would be proposed again with each of its fetches."""
    cluster, host = scene()
    host.events.put(ControlledShutdownRequested(3, broker_epoch(cluster, 3), lambda _: None))
    cluster.settle()
    answer = ask(cluster, host, 1, "t", replace(GOOD, new_isr=(1, 3)), version=0)
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 3), 1),)
    asked = replace(GOOD, new_isr=(1, 3, 4), current_isr_version=1)
    answer = ask(cluster, host, 1, "t", asked, version=0)
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 3), 1),)
    cluster.check()


@settings(max_examples=150)
@given(
    st.integers(0, 2),
    st.integers(-1, 5),
    st.integers(-1, 3),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from((None, 2, 3)),
    st.booleans(),
)
def test_no_answer_to_version_0_leaves_the_partition_of_a_kafka_leader_wedged(
    index: int, epoch: int, version: int, isr: list[int], leaving: int | None, moved: bool
) -> None:
    """Whatever is asked, whoever shuts down, and whether or not somebody else writes the state meanwhile: an error that
    Kafka 2.8 handles, and a state wherever the sender leads in the epoch that it names."""
    cluster, host = scene()
    if leaving is not None:
        host.events.put(ControlledShutdownRequested(leaving, broker_epoch(cluster, leaving), lambda _: None))
        cluster.settle()
    if moved:
        cluster.state("t", 0, 1, (1, 2), 3)
    asked = AlterIsrPartition(index, epoch, tuple(isr), version)
    (result,) = ask(cluster, host, 1, "t", asked, version=0).topics[0].partitions
    assert result.error_code in {ErrorCode.NONE, *HANDLED_AT_0}
    stands = cluster.states().get(f"t-{index}")
    if stands is not None and stands[:2] == (1, epoch) and version <= stands[3]:
        assert (result.leader_id, result.leader_epoch, result.isr, result.current_isr_version) == stands
    assert not host.failures()


def test_a_leader_that_knows_a_later_state_than_the_context_has_it_read_again() -> None:
    """The leader, or an administrator, wrote the state itself, and no notification said so."""
    for version in (0, 1):
        cluster, host = scene()
        cluster.state("t", 0, 1, (1, 3), 3)
        asked = AlterIsrPartition(0, 3, (1, 2, 3), 1)
        answer = ask(cluster, host, 1, "t", asked, version=version)
        assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 2, 3), 2),)
        cluster.check()


def test_an_older_life_of_a_broker_is_refused_as_a_whole() -> None:
    cluster, host = scene()
    assert ask(cluster, host, 1, "t", GOOD, stale_by=1) == AlterIsrResponse(ErrorCode.STALE_BROKER_EPOCH)
    answers: list[AlterIsrResponse] = []
    host.events.put(AlterIsrRequested(AlterIsrRequest(9, (), 5), answers.append))
    cluster.settle()
    assert answers == [AlterIsrResponse(ErrorCode.STALE_BROKER_EPOCH)]


def test_some_of_a_request_may_be_refused_and_the_rest_done() -> None:
    cluster, host = scene()
    answer = ask(cluster, host, 1, "t", GOOD, AlterIsrPartition(5, 0, (1,), 0), AlterIsrPartition(1, 0, (1,), 0))
    errors = [partition.error_code for partition in answer.topics[0].partitions]
    assert errors == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST]
    assert cluster.states()["t-0"] == (1, 3, (1, 2), 1)


def test_what_is_so_already_is_granted_without_a_write() -> None:
    cluster, host = scene()
    zxid = cluster.server.zxid
    answer = ask(cluster, host, 1, "t", replace(GOOD, new_isr=(1,), current_isr_version=7))
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1,), 0),)
    assert cluster.server.zxid == zxid


def test_s39_a_follower_that_shuts_down_joins_no_isr() -> None:
    """KAFKA-14140."""
    cluster, host = scene()
    host.events.put(ControlledShutdownRequested(3, broker_epoch(cluster, 3), lambda _: None))
    cluster.settle()
    answer = ask(cluster, host, 1, "t", replace(GOOD, new_isr=(1, 3)))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.OPERATION_NOT_ATTEMPTED
    assert ask(cluster, host, 1, "t", replace(GOOD, new_isr=(1, 2))).topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize(
    ("lives", "error"),
    [
        (lambda mine, registered: (mine, registered), ErrorCode.NONE),
        (lambda mine, registered: (mine, registered - 1), ErrorCode.OPERATION_NOT_ATTEMPTED),
        (lambda mine, registered: (mine, registered + 1), ErrorCode.OPERATION_NOT_ATTEMPTED),
        (lambda mine, registered: (mine - 1, registered), ErrorCode.NONE),  # who is in it already is no question
        (lambda mine, registered: (mine, -1), ErrorCode.NONE),  # a follower that did not say, as Kafka 2.8's
        (lambda mine, registered: (), ErrorCode.NONE),  # a leader that does not, as Kafka 2.8's
    ],
)
def test_s40_a_follower_joins_in_the_life_that_was_seen_to_have_everything(
    lives: Callable[[int, int], tuple[int, ...]], error: ErrorCode
) -> None:
    """KIP-903: a change that was long under way speaks of a life that has ended since, its log perhaps with it."""
    cluster, host = scene()
    told = lives(broker_epoch(cluster, 1), broker_epoch(cluster, 3))
    before = cluster.states()
    answer = ask(cluster, host, 1, "t", replace(GOOD, new_isr=(1, 3), new_isr_epochs=told))
    assert answer.topics[0].partitions[0].error_code == error
    assert (cluster.states() == before) == (error is not ErrorCode.NONE)


def test_a_state_that_moved_under_the_write_is_an_invalid_version() -> None:
    cluster, host = scene()
    cluster.state("t", 0, 1, (1, 3), 3)
    answer = ask(cluster, host, 1, "t", GOOD)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert host.context_states()["t-0"] == (1, 3, (1, 3), 1)
    answer = ask(cluster, host, 1, "t", replace(GOOD, current_isr_version=1))
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 2), 2),)
    cluster.state("t", 0, 1, (1, 3), 3)
    answer = ask(cluster, host, 1, "t", replace(GOOD, new_isr=(1,), current_isr_version=2), version=0)
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 3), 3),)
    cluster.check()


# -- notifications


def notify(cluster: Cluster, *partitions: tuple[str, int]) -> None:
    named = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    data = json.dumps({"version": 1, "partitions": named}).encode()
    cluster.write(Create(f"{paths.ISR_CHANGE_NOTIFICATION}/isr_change_", data, sequential=True))


def left() -> Any:
    return paths.ISR_CHANGE_NOTIFICATION


def test_s28_a_notification_tells_of_the_partitions_that_it_names_and_no_others() -> None:
    """KAFKA-2406, KAFKA-2722."""
    cluster, host = scene()
    mark = len(host.sent)
    cluster.state("t", 1, 2, (2,), 0)
    notify(cluster, ("t", 1), ("unknown", 0))
    cluster.settle()
    assert {(sent.api, tuple(sent.states())) for sent in host.sent[mark:]} == {(ApiKey.UPDATE_METADATA, ("t-1",))}
    assert host.sent[-1].states()["t-1"].isr == (2,)
    assert cluster.server.children(left()) == ()
    cluster.check()


def test_s23_notifications_are_listed_when_their_turn_comes_and_one_that_is_gone_is_fine() -> None:
    """KAFKA-5879: several are queued; whatever handles the first takes them all."""
    for at in range(1, 8):
        cluster, host = cluster_of(1, 2)
        cluster.topic("t", {0: (1, 2)})
        cluster.settle()
        busy = keep_busy(host)
        for version in range(3):
            cluster.state("t", 0, 1, ((1,), (1, 2))[version % 2], 0)
            notify(cluster, ("t", 0))
        busy()
        stop = host.awaits + at
        cluster.until(lambda host=host, stop=stop: host.awaits >= stop or host.idle)  # type: ignore[misc]
        for name in (cluster.server.children(left()) or ())[:1]:
            cluster.write(Delete(f"{left()}/{name}", ANY_VERSION))
        notify(cluster, ("t", 0))
        cluster.settle()
        assert cluster.server.children(left()) == (), at
        cluster.check()


def test_a_damaged_notification_is_named_and_deleted() -> None:
    cluster, host = scene()
    cluster.write(Create(f"{left()}/isr_change_", b"?", sequential=True))
    cluster.settle()
    (said,) = host.notes("error")
    assert left() in said
    assert cluster.server.children(left()) == ()


TOPIC_16 = b64decode(TOPIC_ID + "==", altchars=b"-_")


def ask_by_id(
    cluster: Cluster, host: Host, version: int, topic_id: bytes, asked: AlterIsrPartition
) -> AlterIsrResponse:
    """As AlterPartition 2 and 3 have it."""
    answers: list[AlterIsrResponse] = []
    request = AlterIsrRequest(1, (AlterIsrTopic("", (asked,), topic_id),), broker_epoch(cluster, 1))
    host.events.put(AlterIsrRequested(request, answers.append, version))
    cluster.settle()
    (answer,) = answers
    assert [topic.topic_id for topic in answer.topics] == [topic_id]
    return answer


def members(*pairs: tuple[int, int]) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(broker, epoch) for broker, epoch in pairs)


def test_alter_partition_names_a_topic_by_its_id_and_pairs_members_with_their_lives() -> None:
    cluster, host = scene()
    two = broker_epoch(cluster, 2)
    asked = AlterIsrPartition(0, 3, current_isr_version=0, new_isr_with_epochs=members((1, -1), (2, two)))
    answer = ask_by_id(cluster, host, 3, TOPIC_16, asked)
    assert answer.topics[0].partitions == (AlterIsrPartitionResult(0, 0, 1, 3, (1, 2), 1),)
    assert cluster.states()["t-0"] == (1, 3, (1, 2), 1)


def test_what_later_versions_refuse_has_its_own_errors() -> None:
    cluster, host = scene()
    before = cluster.states()
    earlier = members((1, -1), (2, broker_epoch(cluster, 2) - 1))
    for version, topic_id, asked, error in (
        (3, bytes([7] * 16), replace(GOOD, new_isr_with_epochs=members((1, -1))), ErrorCode.UNKNOWN_TOPIC_ID),
        (3, TOPIC_16, AlterIsrPartition(0, 3, (), 0, (), earlier), ErrorCode.INELIGIBLE_REPLICA),
        (2, TOPIC_16, replace(GOOD, new_isr=(1, 4)), ErrorCode.INELIGIBLE_REPLICA),
        (2, TOPIC_16, replace(GOOD, leader_recovery_state=RECOVERING), ErrorCode.INVALID_REQUEST),
        (2, TOPIC_16, replace(GOOD, partition_index=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        answer = ask_by_id(cluster, host, version, topic_id, asked)
        assert [one.error_code for one in answer.topics[0].partitions] == [error]
    assert cluster.states() == before
