"""Roles and logs: what a role makes of a log, what a life leaves to the next, what a deletion takes away."""

from __future__ import annotations

import pytest

from controller.broker.partition import Role
from controller.protocol.codec import ApiKey
from controller.protocol.control import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from controller.protocol.errors import ErrorCode
from controller.storage import EpochStart
from tests.broker.harness import BROKER_EPOCH, TOPIC_ID
from tests.broker.leading import CONTROLLER, Holder, fetched, offsets, produced

NEXT_TOPIC_ID = bytes(reversed(range(16)))


def holder(count: int = 3) -> Holder:
    """Leads partition 0 alone, with `count` batches of one record."""
    broker = Holder()
    broker.begin_leading((1,))
    for _ in range(count):
        broker.produce()
    return broker


def test_a_topic_that_was_deleted_and_created_again_starts_empty() -> None:
    broker = holder()
    assert broker.stop_replica(delete=True) == [ErrorCode.NONE]
    assert broker.logs.get("t", 0) is None
    broker.hear((1,), leader_epoch=0)
    assert broker.lead((1,), leader_epoch=0, topic_id=NEXT_TOPIC_ID) == [ErrorCode.NONE]
    assert (broker.log().log_end_offset, broker.partition().high_watermark) == (0, 0)
    assert broker.log().topic_id == NEXT_TOPIC_ID
    assert produced(broker.produce()).base_offset == 0


def test_files_from_an_earlier_life_are_deleted_too() -> None:
    """The topic was deleted while this broker was away: it is told to stop what it never took a role of."""
    broker = holder()
    broker.start()
    assert broker.stop_replica(delete=False) == [ErrorCode.NONE]
    assert broker.logs.get("t", 0) is not None
    assert broker.stop_replica(delete=True) == [ErrorCode.NONE]
    assert broker.logs.get("t", 0) is None
    assert broker.stop_replica(delete=True) == [ErrorCode.NONE]


def test_what_was_appended_is_there_in_the_next_life() -> None:
    broker = holder()
    broker.logs.close()
    broker.start()
    broker.begin_leading((1,), leader_epoch=5)
    assert offsets(fetched(broker.fetch(0))) == [0, 1, 2]
    assert broker.log().epochs.entries() == (EpochStart(4, 0), EpochStart(5, 3))


@pytest.mark.parametrize(("kept", "isr", "expected"), [(2, (1, 2), 2), (9, (1, 2), 3), (None, (1, 2), 0), (2, (1,), 3)])
def test_the_high_watermark_that_was_kept_is_where_the_next_life_begins(
    kept: int | None, isr: tuple[int, ...], expected: int
) -> None:
    broker = holder()
    if kept is not None:
        broker.logs.write_high_watermarks({("t", 0): kept})
    broker.start()
    broker.begin_leading(isr, leader_epoch=5)
    assert broker.partition().high_watermark == expected


def test_a_checkpoint_leaves_alone_what_has_no_role_yet() -> None:
    broker = holder()
    broker.logs.write_high_watermarks(broker.broker.replicas.high_watermarks())
    broker.start()
    broker.logs.write_high_watermarks(broker.broker.replicas.high_watermarks())
    assert broker.logs.kept_high_watermark("t", 0) == 3


def test_a_leader_puts_its_epoch_down_before_its_first_record() -> None:
    broker = holder(0)
    assert broker.log().epochs.entries() == (EpochStart(4, 0),)
    broker.produce()
    broker.begin_leading((1,), leader_epoch=7)
    broker.begin_leading((1,), leader_epoch=8)
    broker.produce()
    assert broker.log().epochs.entries() == (EpochStart(4, 0), EpochStart(8, 1))


def test_a_follower_leads_no_more_and_keeps_its_log() -> None:
    broker = holder()
    broker.lead((2, 3), leader=2, leader_epoch=5)
    partition = broker.partition()
    assert (partition.role, partition.leading, partition.high_watermark) == (Role.FOLLOWER, None, 3)
    assert broker.log().log_end_offset == 3
    assert produced(broker.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_replica_that_is_stopped_leads_no_more_until_it_is_told_again() -> None:
    broker = holder()
    broker.stop_replica(delete=False)
    assert produced(broker.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.begin_leading((1,), leader_epoch=7)
    assert produced(broker.produce()).base_offset == 3


def test_with_nobody_to_follow_there_is_a_log_all_the_same() -> None:
    """KAFKA-1647: or its high watermark would be missing in the next checkpoint."""
    broker = Holder()
    broker.hear((9,))
    assert broker.lead((9,), leader=9) == [ErrorCode.NONE]
    assert (broker.partition().role, broker.log().log_end_offset) == (Role.NONE, 0)


@pytest.mark.parametrize("leader", [-1, 9])
def test_who_led_stands_down_though_there_is_nobody_to_follow(leader: int) -> None:
    """Cut off and back, it would take records in its old epoch that the next leader has never seen."""
    broker = Holder()
    broker.begin_leading((1, 2))
    waiting = broker.produce()
    assert broker.lead((1, 2), leader=leader, leader_epoch=5) == [ErrorCode.NONE]
    assert produced(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(broker.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (broker.partition().role, broker.partition().leader_epoch) == (Role.NONE, 4)
    broker.begin_leading((1,), leader_epoch=5)
    assert produced(broker.produce()).error_code == ErrorCode.NONE


@pytest.mark.parametrize(("is_new", "error"), [(True, ErrorCode.NONE), (False, ErrorCode.KAFKA_STORAGE_ERROR)])
def test_what_may_lie_in_an_offline_directory_is_not_made_anew(is_new: bool, error: ErrorCode) -> None:
    broker = Holder(disks=2)
    broker.logs.directories[0].health.fail(OSError("a bad sector"))
    broker.hear((1,))
    state = LeaderAndIsrPartitionState(0, 1, 1, 4, (1,), 7, (1,), is_new=is_new)
    request = LeaderAndIsrRequest(CONTROLLER, 1, (LeaderAndIsrTopicState("t", (state,), TOPIC_ID),), (), BROKER_EPOCH)
    response = broker.ask(ApiKey.LEADER_AND_ISR, request)
    assert response.topics[0].partition_errors[0].error_code == error
    expected = ErrorCode.NONE if is_new else ErrorCode.KAFKA_STORAGE_ERROR
    assert produced(broker.produce()).error_code == expected


def test_partitions_are_spread_over_the_directories() -> None:
    broker = Holder(partitions=4, disks=2)
    broker.begin_leading((1,))
    assert [len(directory.logs) for directory in broker.logs.directories] == [2, 2]


def test_a_disk_that_fails_takes_the_partitions_of_its_directory_and_no_others() -> None:
    broker = Holder(partitions=2, disks=2)
    broker.begin_leading((1,))
    broker.disk.fail_after = broker.disk.changes
    assert broker.lead((1,), leader_epoch=5) == [ErrorCode.NONE] * 2, "an epoch is written with the next flush"
    assert produced(broker.produce(numbers=(0,))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.later(1)
    assert [broker.partition(number).offline for number in (0, 1)] == [True, False]
    assert broker.lead((1,), leader_epoch=6) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    (told,) = [note for note in broker.trace.notes("error") if "offline" in note]
    assert broker.logs.directories[0].path in told


def test_a_replica_that_could_not_be_deleted_takes_no_role_that_it_can_not_fill() -> None:
    """The deletion is what finds the directory broken: later the partition comes back to this broker."""
    broker = holder()
    broker.disk.fail_after = broker.disk.changes
    assert broker.stop_replica(delete=True) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert broker.partition().offline
    assert broker.lead((1,), leader_epoch=6) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_replica_that_may_lie_in_a_directory_that_is_offline_is_not_said_to_be_deleted() -> None:
    """No file of it is known where the directory was offline from the start; Kafka's ignores the request as well."""
    broker = Holder(disks=2)
    broker.logs.directories[0].health.fail(OSError("a bad sector"))
    broker.hear((1,))
    state = LeaderAndIsrPartitionState(0, 1, 1, 4, (1,), 7, (1,), is_new=False)
    topics = (LeaderAndIsrTopicState("t", (state,), TOPIC_ID),)
    broker.ask(ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest(CONTROLLER, 1, topics, (), BROKER_EPOCH))
    assert broker.partition().offline
    assert broker.stop_replica(delete=True) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert broker.partition().offline
