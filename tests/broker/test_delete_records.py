"""DeleteRecords is answered when every live replica has deleted, when leadership is lost, or at its timeout, once."""

from __future__ import annotations

import pytest

from controller.broker.partition import LeaderState
from controller.protocol.admin import (
    UP_TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import EARLIEST_TIMESTAMP, FetchPartition, FetchRequest, FetchTopic
from tests.broker.data_harness import DataBroker
from tests.broker.data_node import DataNode
from tests.broker.harness import Deferred, live, metadata
from tests.broker.test_list_offsets import asked as offsets

TIMEOUT_MS = 5_000


def begin(broker: DataBroker, offset: int, *, topic: str = "t", timeout_ms: int = TIMEOUT_MS) -> Deferred:
    asked = DeleteRecordsTopic(topic, (DeleteRecordsPartition(0, offset),))
    return broker.begin(ApiKey.DELETE_RECORDS, DeleteRecordsRequest((asked,), timeout_ms))


def result(deferred: Deferred) -> tuple[int, int]:
    (one,) = deferred.value().topics[0].partitions
    assert isinstance(one, DeleteRecordsPartitionResult)
    return one.error_code, one.low_watermark


def fetch(broker: DataBroker, follower: int, log_start_offset: int, *, offset: int = 5, epoch: int = 0) -> None:
    """A follower's, which tells where its log begins."""
    one = FetchPartition(0, offset, 1_000, current_leader_epoch=epoch, log_start_offset=log_start_offset)
    request = FetchRequest(0, 0, (FetchTopic("t", (one,)),), replica_id=follower)
    assert broker.ask(ApiKey.FETCH, request).error_code == ErrorCode.NONE


@pytest.fixture
def broker() -> DataBroker:
    """Leads five records, all committed, of which its followers have heard."""
    broker = DataBroker()
    broker.append(broker.lead(), 5)
    for follower in (2, 3):
        fetch(broker, follower, 0)
    return broker


def test_the_answer_waits_for_the_last_follower(broker: DataBroker) -> None:
    answer = begin(broker, 3)
    assert offsets(broker, EARLIEST_TIMESTAMP).offset == 3, "readers begin there at once"
    fetch(broker, 2, 3)
    assert not answer.answered
    fetch(broker, 3, 2)
    assert not answer.answered
    fetch(broker, 3, 3)
    assert result(answer) == (ErrorCode.NONE, 3)
    broker.clock.advance_to(broker.clock.now_ms() + 2 * TIMEOUT_MS)
    assert result(answer) == (ErrorCode.NONE, 3), "the timer does not answer again"


def test_up_to_the_high_watermark(broker: DataBroker) -> None:
    partition = broker.broker.replicas.partition("t", 0)
    assert partition is not None
    broker.append(partition, 2, committed=False)
    answer = begin(broker, UP_TO_HIGH_WATERMARK)
    for follower in (2, 3):
        fetch(broker, follower, 5)
    assert result(answer) == (ErrorCode.NONE, 5)


def test_what_is_deleted_everywhere_is_answered_at_once(broker: DataBroker) -> None:
    for follower in (2, 3):
        fetch(broker, follower, 0)
    assert result(begin(broker, 0)) == (ErrorCode.NONE, 0)


def test_it_times_out_with_what_is_deleted_everywhere(broker: DataBroker) -> None:
    answer = begin(broker, 4)
    fetch(broker, 2, 4)
    fetch(broker, 3, 2)
    broker.clock.advance_to(broker.clock.now_ms() + TIMEOUT_MS - 2)
    assert not answer.answered
    broker.clock.advance_to(broker.clock.now_ms() + 3)
    assert result(answer) == (ErrorCode.REQUEST_TIMED_OUT, 2)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_who_gives_no_time_is_answered_at_once(broker: DataBroker, timeout_ms: int) -> None:
    answer = begin(broker, 4, timeout_ms=timeout_ms)
    broker.clock.advance_to(broker.clock.now_ms() + 2)
    assert result(answer) == (ErrorCode.REQUEST_TIMED_OUT, 0)


def test_a_dead_follower_is_not_waited_for(broker: DataBroker) -> None:
    answer = begin(broker, 4)
    fetch(broker, 2, 4)
    assert not answer.answered
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), brokers=live(1, 2)))
    assert result(answer) == (ErrorCode.NONE, 4)


def test_a_follower_that_was_not_heard_of_is_waited_for() -> None:
    broker = DataBroker()
    broker.append(broker.lead(), 5)
    answer = begin(broker, 0)
    assert not answer.answered
    for follower in (2, 3):
        fetch(broker, follower, 0)
    assert result(answer) == (ErrorCode.NONE, 0)


def test_who_leads_no_more_says_so(broker: DataBroker) -> None:
    answer = begin(broker, 4)
    broker.follow(epoch=1)
    assert result(answer) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize(
    ("topic", "offset", "error"),
    [
        ("t", 6, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("unknown", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__consumer_offsets", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_what_is_refused(broker: DataBroker, topic: str, offset: int, error: ErrorCode) -> None:
    assert result(begin(broker, offset, topic=topic)) == (error, -1)
    assert offsets(broker, EARLIEST_TIMESTAMP).offset == 0


def test_a_follower_refuses() -> None:
    broker = DataBroker()
    broker.follow()
    assert result(begin(broker, 0)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize(
    ("deletes", "error"), [(False, ErrorCode.POLICY_VIOLATION), (None, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_a_topic_whose_records_stay(broker: DataBroker, deletes: bool | None, error: ErrorCode) -> None:
    broker.configs.deleting = deletes
    assert result(begin(broker, 1)) == (error, -1)
    assert offsets(broker, EARLIEST_TIMESTAMP).offset == 0


def test_an_offline_log_is_told(broker: DataBroker) -> None:
    partition = broker.broker.replicas.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    partition.log.health.fail(OSError("planted"))
    assert result(begin(broker, 1)) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_one_partition_that_is_refused_does_not_keep_the_others(broker: DataBroker) -> None:
    topics = (
        DeleteRecordsTopic("t", (DeleteRecordsPartition(0, 2), DeleteRecordsPartition(9, 2))),
        DeleteRecordsTopic("unknown", (DeleteRecordsPartition(0, 2),)),
    )
    answer = broker.begin(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics, TIMEOUT_MS))
    for follower in (2, 3):
        fetch(broker, follower, 2)
    errors = [
        (one.name, part.partition_index, part.error_code) for one in answer.value().topics for part in one.partitions
    ]
    assert errors == [("t", 0, 0), ("t", 9, 3), ("unknown", 0, 3)]


def test_an_answer_before_all_have_deleted_is_found(broker: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the leader alone counts. The tests above see it."""
    monkeypatch.setattr(LeaderState, "low_watermark", lambda _self, log_start, _live: log_start)
    with pytest.raises(AssertionError):
        test_the_answer_waits_for_the_last_follower(broker)


def test_a_cleanup_policy_of_zookeepers_decides() -> None:
    node = DataNode("t")
    assert node.services.configs.deletes("t") is True
    assert node.services.configs.deletes("unknown") is None
    node.write_config("/config/topics/t", {"cleanup.policy": "compact"})
    node.notify(b'{"version":2,"entity_path":"topics/t"}')
    assert node.services.configs.deletes("t") is False
