"""Who may change a broker's replicas and metadata: broker epoch (S29), controller epoch (S01, S31), leader epoch
(S30, KIP-570), topic id. The answers are Kafka 2.8's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from controller.broker.partition import Partition, Role
from controller.broker.replica_manager import METADATA_AT_ONCE
from controller.broker.request_context import SLICE, SerialSteps, Steps, finish, first_of
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    LeaderAndIsrRequest,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.trace import MetadataApplied, ReplicaRoleApplied, RequestRefused
from tests.broker.harness import BROKER_EPOCH, BrokerUnderTest, leader_and_isr, metadata
from tests.broker.leading import Holder, Leader

OLD_LIFE = BROKER_EPOCH - 1
NEXT_LIFE = BROKER_EPOCH + 1
UNTOLD = -1


def stop(
    leader_epoch: int, delete: bool = False, controller_epoch: int = 1, broker_epoch: int = BROKER_EPOCH
) -> StopReplicaRequest:
    topics = (StopReplicaTopicState("t", (StopReplicaPartitionState(0, leader_epoch, delete),)),)
    return StopReplicaRequest(1, controller_epoch, topics, broker_epoch)


def hosted(under_test: BrokerUnderTest) -> Partition | None:
    return under_test.broker.replicas.partition("t", 0)


def apply(under_test: BrokerUnderTest, request: LeaderAndIsrRequest) -> tuple[int, int]:
    """The response's own error, and the partition's."""
    response = under_test.ask(ApiKey.LEADER_AND_ISR, request)
    (topic,) = response.topics
    (partition,) = topic.partition_errors
    return response.error_code, partition.error_code


@pytest.fixture
def following() -> BrokerUnderTest:
    """A broker that knows 1, 2 and 3, and follows broker 2 in t-0 at leader epoch 5, told by controller epoch 3."""
    under_test = BrokerUnderTest()
    under_test.ask(ApiKey.UPDATE_METADATA, metadata(controller_epoch=3))
    assert apply(under_test, leader_and_isr(2, 5, controller_epoch=3)) == (ErrorCode.NONE, ErrorCode.NONE)
    return under_test


@pytest.mark.parametrize("epoch", [BROKER_EPOCH, NEXT_LIFE, UNTOLD])
def test_requests_for_this_life_or_a_later_one_are_taken(epoch: int) -> None:
    """A later one is no error: the controller may see a registration before its broker has the answer."""
    under_test = BrokerUnderTest()
    assert under_test.ask(ApiKey.UPDATE_METADATA, metadata(broker_epoch=epoch)).error_code == ErrorCode.NONE
    assert apply(under_test, leader_and_isr(1, 0, broker_epoch=epoch)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert under_test.ask(ApiKey.STOP_REPLICA, stop(1, broker_epoch=epoch)).error_code == ErrorCode.NONE


def test_s29_requests_for_an_earlier_life_change_nothing(following: BrokerUnderTest) -> None:
    """KAFKA-7235: the broker bounced, and what was on the way to its former life arrives."""
    stale = ErrorCode.STALE_BROKER_EPOCH
    before = following.broker.metadata.snapshot
    late = metadata(("t", 0, 3), controller_epoch=3, broker_epoch=OLD_LIFE)
    assert following.ask(ApiKey.UPDATE_METADATA, late).error_code == stale
    assert following.broker.metadata.snapshot is before
    assert apply(following, leader_and_isr(1, 9, controller_epoch=3, broker_epoch=OLD_LIFE)) == (stale, stale)
    gone = following.ask(ApiKey.STOP_REPLICA, stop(9, delete=True, controller_epoch=3, broker_epoch=OLD_LIFE))
    assert gone.error_code == stale
    partition = hosted(following)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch) == (2, 5)
    refused = following.trace.events(RequestRefused)
    assert [event.api for event in refused] == ["UpdateMetadata", "LeaderAndIsr", "StopReplica"]


@pytest.mark.parametrize(("life", "error"), [(OLD_LIFE, ErrorCode.STALE_BROKER_EPOCH), (BROKER_EPOCH, ErrorCode.NONE)])
def test_s29_what_comes_before_a_broker_is_registered_waits_until_it_knows_which_life_is_meant(
    life: int, error: ErrorCode
) -> None:
    """The registration of the life before lasts as long as its session: a controller that has noticed nothing would
    make a broker lead on that has lost power, in an epoch whose records it has forgotten."""
    under_test = BrokerUnderTest()
    under_test.identity.broker_epoch = UNTOLD
    requests = (
        (ApiKey.UPDATE_METADATA, metadata(broker_epoch=life)),
        (ApiKey.LEADER_AND_ISR, leader_and_isr(1, 0, broker_epoch=life)),
        (ApiKey.STOP_REPLICA, stop(1, broker_epoch=life)),
    )
    waiting = [under_test.begin(key, request) for key, request in requests]
    under_test.broker.registered()  # a thread too early
    assert not any(one.answered for one in waiting)
    assert hosted(under_test) is None
    under_test.identity.broker_epoch = BROKER_EPOCH
    under_test.broker.registered()
    under_test.broker.registered()
    assert [one.value().error_code for one in waiting] == [error] * 3
    assert (hosted(under_test) is not None) == (error is ErrorCode.NONE)


@pytest.mark.parametrize("make", [Holder, partial(Leader, 2 * SLICE)], ids=["new logs", "many partitions"])
def test_s29_what_waits_while_the_broker_registers_anew_changes_nothing_more(make: Callable[[], Leader]) -> None:
    """Files of new logs on a slow device, a large request's slices, a snapshot of many partitions."""
    under_test = make()

    def registering(steps: Steps) -> None:
        waiting = first_of(steps)
        assert waiting is not None
        under_test.identity.broker_epoch = NEXT_LIFE
        finish(waiting)

    states = tuple(StopReplicaPartitionState(number, 9) for number in range(under_test.partitions))
    stopped = StopReplicaRequest(1, 1, (StopReplicaTopicState("t", states),), BROKER_EPOCH)
    told = metadata(*(("t", number, 1) for number in range(METADATA_AT_ONCE + 1)))
    asked = [(ApiKey.LEADER_AND_ISR, under_test.roles((1, 2, 3))), (ApiKey.UPDATE_METADATA, told)]
    if under_test.partitions > SLICE:
        asked.append((ApiKey.STOP_REPLICA, stopped))
    before = under_test.broker.metadata.snapshot
    if under_test.broker.data is not None:
        under_test.broker.data.logs.drive = registering
    for key, request in asked:
        under_test.identity.broker_epoch = BROKER_EPOCH
        if key is ApiKey.STOP_REPLICA:
            under_test.broker._orders = SerialSteps()
            under_test.lead((1, 2, 3))
        under_test.broker._orders = SerialSteps(registering)
        waiting = under_test.begin(key, request)
        assert waiting.value().error_code == ErrorCode.STALE_BROKER_EPOCH
        last = under_test.broker.replicas.partition("t", under_test.partitions - 1)
        assert (last is not None and last.role is Role.LEADER) == (key is ApiKey.STOP_REPLICA)
    assert under_test.broker.metadata.snapshot is before
    assert under_test.trace.notes("error") == [], "each is answered once"


def test_s31_requests_of_an_earlier_controller_change_nothing(following: BrokerUnderTest) -> None:
    """KAFKA-1188: whichever request told of the newer controller, all three of an older one are refused."""
    stale = ErrorCode.STALE_CONTROLLER_EPOCH
    assert following.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 3), controller_epoch=2)).error_code == stale
    assert apply(following, leader_and_isr(1, 9, controller_epoch=2)) == (stale, stale)
    assert following.ask(ApiKey.STOP_REPLICA, stop(9, delete=True, controller_epoch=2)).error_code == stale
    partition = hosted(following)
    assert partition is not None
    assert partition.leader_epoch == 5
    assert following.broker.metadata.snapshot.topics == {}
    assert len(following.trace.events(RequestRefused)) == 3


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (4, ErrorCode.STALE_CONTROLLER_EPOCH),
        (5, ErrorCode.STALE_CONTROLLER_EPOCH),
        (6, ErrorCode.NONE),
    ],
)
def test_a_leader_epoch_must_be_above_the_one_held(
    following: BrokerUnderTest, leader_epoch: int, error: ErrorCode
) -> None:
    request = leader_and_isr(1, leader_epoch, controller_epoch=3)
    assert apply(following, request) == (ErrorCode.NONE, error)
    partition = hosted(following)
    assert partition is not None
    taken = error is ErrorCode.NONE
    assert (partition.role, partition.leader_epoch) == ((Role.LEADER, 6) if taken else (Role.FOLLOWER, 5))


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.NONE),
        (-1, ErrorCode.NONE),  # a version without leader epochs
        (-2, ErrorCode.NONE),  # the topic is being deleted
    ],
)
def test_s30_a_late_stop_replica_does_not_stop_a_newer_role(
    following: BrokerUnderTest, leader_epoch: int, error: ErrorCode
) -> None:
    """KAFKA-9539: a StopReplica that was overtaken by a LeaderAndIsr with a higher leader epoch."""
    response = following.ask(ApiKey.STOP_REPLICA, stop(leader_epoch, delete=True, controller_epoch=3))
    assert response.error_code == ErrorCode.NONE
    assert [partition.error_code for partition in response.partition_errors] == [error]
    assert (hosted(following) is None) == (error is ErrorCode.NONE)


def test_a_replica_that_is_stopped_and_not_deleted_keeps_its_epoch(following: BrokerUnderTest) -> None:
    following.ask(ApiKey.STOP_REPLICA, stop(5, controller_epoch=3))
    partition = hosted(following)
    assert partition is not None
    assert not partition.fetching
    assert apply(following, leader_and_isr(2, 5, controller_epoch=3))[1] == ErrorCode.STALE_CONTROLLER_EPOCH
    assert apply(following, leader_and_isr(2, 6, controller_epoch=3))[1] == ErrorCode.NONE
    assert partition.fetching


def test_stopping_what_is_not_here_is_no_error() -> None:
    response = BrokerUnderTest().ask(ApiKey.STOP_REPLICA, stop(5, delete=True))
    assert [partition.error_code for partition in response.partition_errors] == [ErrorCode.NONE]


def test_another_life_of_the_topic_is_told_by_its_id(following: BrokerUnderTest) -> None:
    other = leader_and_isr(1, 9, controller_epoch=3, topic_id=bytes(15) + b"\1")
    assert apply(following, other) == (ErrorCode.NONE, ErrorCode.INCONSISTENT_TOPIC_ID)
    untold = leader_and_isr(1, 9, controller_epoch=3, topic_id=bytes(16))
    assert apply(following, untold) == (ErrorCode.NONE, ErrorCode.NONE)


def test_a_partition_of_others_is_unknown_here() -> None:
    under_test = BrokerUnderTest()
    error = apply(under_test, leader_and_isr(2, 1, replicas=(2, 3)))
    assert error == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert hosted(under_test) is None


def test_s32_a_leader_that_is_not_known_is_not_followed() -> None:
    """KAFKA-4443: as Kafka, the replica then waits for a later leader epoch, or the same one again."""
    under_test = BrokerUnderTest()
    assert apply(under_test, leader_and_isr(2, 1)) == (ErrorCode.NONE, ErrorCode.NONE)
    partition = hosted(under_test)
    assert partition is not None
    assert (partition.role, partition.leader_epoch) == (Role.NONE, -1)
    under_test.ask(ApiKey.UPDATE_METADATA, metadata())
    assert apply(under_test, leader_and_isr(2, 1)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert partition.role is Role.FOLLOWER


def test_roles_and_metadata_are_traced(following: BrokerUnderTest) -> None:
    apply(following, leader_and_isr(1, 6, controller_epoch=3))
    assert following.trace.events(MetadataApplied) == [MetadataApplied(3, (1, 2, 3), 0)]
    assert following.trace.events(ReplicaRoleApplied) == [
        ReplicaRoleApplied(3, "t", 0, 2, 5, "follower"),
        ReplicaRoleApplied(3, "t", 0, 1, 6, "leader"),
    ]
