"""ListOffsets and OffsetForLeaderEpoch: which offset is told to whom, and who is refused."""

from __future__ import annotations

import gzip

import cramjam
import pytest

from controller.broker.records.list_offsets import DECOMPRESSED_BYTES_MAX, decompress, offsets_before
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    CONSUMER,
    DEBUGGING_CONSUMER,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderResult,
    OffsetForLeaderTopic,
)
from controller.storage import LogSettings
from controller.storage.batches import Record, encode_batch, encode_record
from tests.broker.data_harness import DataBroker

FOLLOWER = 2


def asked(
    broker: DataBroker,
    timestamp: int,
    *,
    replica: int = CONSUMER,
    version: int = 6,
    epoch: int = -1,
    count: int = 1,
    topic: str = "t",
    isolation: int = 0,
) -> ListOffsetsPartitionResult:
    one = ListOffsetsPartition(0, timestamp, epoch, count)
    request = ListOffsetsRequest((ListOffsetsTopic(topic, (one,)),), replica, isolation)
    (result,) = broker.ask(ApiKey.LIST_OFFSETS, request, version).topics[0].partitions
    assert isinstance(result, ListOffsetsPartitionResult)
    return result


@pytest.mark.parametrize(
    ("replica", "isolation", "offset"),
    [(CONSUMER, 0, 3), (CONSUMER, READ_COMMITTED, 3), (FOLLOWER, 0, 5), (DEBUGGING_CONSUMER, 0, 5)],
)
def test_the_end_is_the_high_watermark_for_consumers_and_the_logs_end_for_replicas(
    replica: int, isolation: int, offset: int
) -> None:
    broker = DataBroker()
    partition = broker.lead(epoch=4)
    broker.append(partition, 3)
    broker.append(partition, 2, committed=False)
    result = asked(broker, LATEST_TIMESTAMP, replica=replica, isolation=isolation)
    assert result == ListOffsetsPartitionResult(0, ErrorCode.NONE, -1, offset, 4)


def test_the_beginning_is_the_logs_start_in_its_epoch() -> None:
    broker = DataBroker()
    assert asked_after_deletion(broker, 0) == ListOffsetsPartitionResult(0, ErrorCode.NONE, -1, 0, 2)
    assert asked_after_deletion(broker, 4) == ListOffsetsPartitionResult(0, ErrorCode.NONE, -1, 4, 3)


def asked_after_deletion(broker: DataBroker, offset: int) -> ListOffsetsPartitionResult:
    partition = broker.broker.replicas.partition("t", 0)
    if partition is None:
        broker.append(broker.lead(epoch=2), 3)
        partition = broker.lead(epoch=3)
        broker.append(partition, 3)
    assert partition.log is not None
    partition.log.delete_records_before(offset, partition.high_watermark)
    return asked(broker, EARLIEST_TIMESTAMP)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(500, (1_000, 0)), (1_000, (1_000, 0)), (1_001, (2_000, 1)), (2_000, (2_000, 1)), (2_001, None), (3_000, None)],
)
def test_the_first_record_of_a_time_that_is_committed(timestamp: int, found: tuple[int, int] | None) -> None:
    """The third record is not: there is no offset for its time yet."""
    broker = DataBroker()
    partition = broker.lead()
    for at_ms, committed in ((1_000, True), (2_000, True), (3_000, False)):
        broker.append(partition, timestamp_ms=at_ms, committed=committed)
    time, offset = found or (-1, -1)
    epoch = 0 if found else -1
    assert asked(broker, timestamp) == ListOffsetsPartitionResult(0, ErrorCode.NONE, time, offset, epoch)


def test_a_new_leader_tells_no_end_before_its_epoch_is_committed() -> None:
    """KIP-207: what its predecessor had committed may be more than it knows of."""
    broker = DataBroker()
    partition = broker.lead()
    log = broker.append(partition, 3, timestamp_ms=1_000, committed=False)
    partition.high_watermark = 1
    broker.lead(epoch=1)
    for version, error in ((6, ErrorCode.OFFSET_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE), (4, 5), (1, 5)):
        assert asked(broker, LATEST_TIMESTAMP, version=version).error_code == error
        assert asked(broker, 5_000, version=version).error_code == error
    assert asked(broker, EARLIEST_TIMESTAMP).error_code == ErrorCode.NONE
    assert asked(broker, 1_000).offset == 0
    for replica in (2, DEBUGGING_CONSUMER):  # a follower truncates to the end, and Kafka tells it
        assert asked(broker, LATEST_TIMESTAMP, replica=replica).offset == 3
        assert asked(broker, 5_000, replica=replica).error_code == ErrorCode.NONE
    partition.high_watermark = log.log_end_offset
    assert asked(broker, LATEST_TIMESTAMP).offset == 3


@pytest.mark.parametrize(
    ("leads", "topic", "epoch", "replica", "error"),
    [
        (True, "unknown", -1, CONSUMER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (False, "t", -1, CONSUMER, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (False, "t", -1, FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (False, "t", -1, DEBUGGING_CONSUMER, ErrorCode.NONE),
        (True, "t", 3, CONSUMER, ErrorCode.FENCED_LEADER_EPOCH),
        (True, "t", 4, CONSUMER, ErrorCode.NONE),
        (True, "t", 5, CONSUMER, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (False, "t", 3, DEBUGGING_CONSUMER, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_who_is_refused(leads: bool, topic: str, epoch: int, replica: int, error: ErrorCode) -> None:
    broker = DataBroker()
    broker.lead(epoch=4) if leads else broker.follow(epoch=4)
    for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        assert asked(broker, timestamp, topic=topic, epoch=epoch, replica=replica).error_code == error


def test_a_partition_that_only_others_have_is_theirs_to_tell() -> None:
    broker = DataBroker()
    broker.lead()
    request = ListOffsetsRequest((ListOffsetsTopic("t", (ListOffsetsPartition(7, LATEST_TIMESTAMP),)),))
    (result,) = broker.ask(ApiKey.LIST_OFFSETS, request).topics[0].partitions
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_is_named_twice_is_answered_so() -> None:
    broker = DataBroker()
    broker.append(broker.lead())
    twice = ListOffsetsPartition(0, LATEST_TIMESTAMP)
    request = ListOffsetsRequest((ListOffsetsTopic("t", (twice, twice)),))
    for result in broker.ask(ApiKey.LIST_OFFSETS, request).topics[0].partitions:
        assert result.error_code == ErrorCode.INVALID_REQUEST


def test_an_offline_directory_is_told() -> None:
    broker = DataBroker()
    partition = broker.lead()
    assert partition.log is not None
    partition.log.health.fail(OSError("planted"))
    assert asked(broker, 5).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_batch_whose_records_are_no_records_is_told_as_corrupt() -> None:
    """A log may have such batches from a leader that did not check them."""
    broker = DataBroker()
    partition = broker.lead()
    assert partition.log is not None
    partition.log.append_as_follower(encode_batch([Record(0, 5, None, b"x")], leader_epoch=0, payload=b"\x05"))
    partition.high_watermark = 1
    assert asked(broker, 1).error_code == ErrorCode.CORRUPT_MESSAGE


# -- version 0


def test_version_0_tells_where_segments_begin() -> None:
    broker = DataBroker(log=LogSettings(segment_bytes=150))
    partition = broker.lead()
    for at_ms in (1_000, 2_000, 3_000, 4_000):
        log = broker.append(partition, timestamp_ms=at_ms)
    assert log.segment_offsets == (0, 2)
    told = {
        (timestamp, count): asked(broker, timestamp, version=0, count=count).old_style_offsets
        for timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, 1_999, 2_000, 4_000)
        for count in (1, 10)
    }
    assert told == {
        (LATEST_TIMESTAMP, 1): (4,),
        (LATEST_TIMESTAMP, 10): (4, 2, 0),
        (EARLIEST_TIMESTAMP, 1): (0,),
        (EARLIEST_TIMESTAMP, 10): (0,),
        (1_999, 1): (),
        (1_999, 10): (),
        (2_000, 1): (0,),
        (2_000, 10): (0,),
        (4_000, 1): (2,),
        (4_000, 10): (2, 0),
    }
    partition.high_watermark = 3
    assert asked(broker, LATEST_TIMESTAMP, version=0, count=10).old_style_offsets == (3, 2, 0)
    replica = asked(broker, LATEST_TIMESTAMP, version=0, count=10, replica=FOLLOWER)
    assert replica.old_style_offsets == (4, 2, 0)


def test_version_0_of_an_empty_log_and_of_none() -> None:
    broker = DataBroker()
    broker.lead()
    assert asked(broker, LATEST_TIMESTAMP, version=0, count=5).old_style_offsets == (0,)
    refusal = asked(broker, LATEST_TIMESTAMP, version=0, topic="unknown")
    assert (refusal.error_code, refusal.old_style_offsets) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())


@pytest.mark.parametrize("count", [0, -1])
def test_version_0_with_no_room_for_offsets(count: int) -> None:
    assert offsets_before([(0, 5), (3, 9)], LATEST_TIMESTAMP, count) == ()


# -- compressed batches


def gzipped(broker: DataBroker, level: int = 9, spoiled: bool = False) -> None:
    records = [Record(at, 1_000 * (at + 1), None, b"x" * 50) for at in range(3)]
    packed = gzip.compress(b"".join(encode_record(one, 0, 1_000) for one in records), level)
    partition = broker.lead()
    assert partition.log is not None
    data = packed[:20] + b"\0\0\0\0" + packed[24:] if spoiled else packed
    partition.log.append_as_follower(encode_batch(records, leader_epoch=0, attributes=1, payload=data))
    partition.high_watermark = 3


def test_a_record_in_a_gzip_batch_is_found() -> None:
    broker = DataBroker()
    gzipped(broker)
    assert [asked(broker, at_ms).offset for at_ms in (1, 1_500, 2_500, 3_500)] == [0, 1, 2, -1]


def test_a_batch_that_does_not_inflate_counts_as_a_whole() -> None:
    broker = DataBroker()
    gzipped(broker, spoiled=True)
    assert asked(broker, 2_500).offset == 0


def test_what_would_fill_memory_is_not_inflated() -> None:
    bomb = gzip.compress(b"\0" * (DECOMPRESSED_BYTES_MAX + 1))
    assert len(bomb) < 100_000
    assert decompress(1, bomb) is None
    assert decompress(1, gzip.compress(b"abc")) == b"abc"
    assert decompress(1, gzip.compress(b"abc")[:-3]) is None
    assert decompress(4, b"abc") is None
    assert decompress(5, b"abc") is None
    assert decompress(4, bytes(cramjam.zstd.compress(b"abc"))) == b"abc"


# -- OffsetForLeaderEpoch


def epoch_end(broker: DataBroker, epoch: int, current: int = -1, *, topic: str = "t", version: int = 4) -> object:
    request = OffsetForLeaderEpochRequest(
        (OffsetForLeaderTopic(topic, (OffsetForLeaderPartition(0, epoch, current),)),), FOLLOWER
    )
    return broker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, version).topics[0].partitions[0]


def test_where_an_epoch_ends() -> None:
    broker = DataBroker()
    broker.append(broker.lead(epoch=2), 3)
    broker.append(broker.lead(epoch=5), 2)
    ends = {epoch: epoch_end(broker, epoch) for epoch in (1, 2, 4, 5, 6)}
    assert ends == {
        1: OffsetForLeaderResult(ErrorCode.NONE, 0, 1, 0),
        2: OffsetForLeaderResult(ErrorCode.NONE, 0, 2, 3),
        4: OffsetForLeaderResult(ErrorCode.NONE, 0, 2, 3),
        5: OffsetForLeaderResult(ErrorCode.NONE, 0, 5, 5),
        6: OffsetForLeaderResult(ErrorCode.NONE, 0, -1, -1),
    }


@pytest.mark.parametrize(
    ("leads", "topic", "current", "error"),
    [
        (True, "t", 4, ErrorCode.FENCED_LEADER_EPOCH),
        (True, "t", 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (True, "t", 5, ErrorCode.NONE),
        (False, "t", 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (True, "unknown", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_whose_epoch_is_told(leads: bool, topic: str, current: int, error: ErrorCode) -> None:
    broker = DataBroker()
    broker.lead(epoch=5) if leads else broker.follow(epoch=5)
    result = epoch_end(broker, 5, current, topic=topic)
    assert isinstance(result, OffsetForLeaderResult)
    assert result.error_code == error


def test_the_epoch_of_an_offline_log_is_not_told() -> None:
    broker = DataBroker()
    partition = broker.lead(epoch=5)
    assert partition.log is not None
    partition.log.health.fail(OSError("planted"))
    result = epoch_end(broker, 5)
    assert isinstance(result, OffsetForLeaderResult)
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
