"""A follower against a leader whose every answer is written here: what it asks, and what it makes of the answer."""

from __future__ import annotations

from typing import Any

import pytest

from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderResult,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from controller.trace import LogTruncated
from tests.broker.fetching import BACKOFF_MS, EPOCH, LEADER, MAX_BYTES, ME, OTHER, Follower, data, following
from tests.storage.batches import batch

# What is asked


def test_the_first_fetch_is_kafkas_field_by_field() -> None:
    """As a 2.8.2 broker's first fetch in the recording, of a log with three records from offset 1 on."""
    follower = following(0, 0, 4, high_watermark=2, start=1)
    asked = FetchPartition(0, 3, MAX_BYTES, EPOCH, 4, 1)
    assert follower.asked() == FetchRequest(
        500, 1, (FetchTopic("t", (asked,)),), ME, 10_485_760, session_id=0, session_epoch=0
    )
    assert follower.peers.asked[0][0] == 9090 + LEADER


def test_a_session_names_what_changed_and_what_is_left() -> None:
    follower = Follower(count=2)
    follower.follow()
    follower.answer_fetch(data(0), data(1), session=77)
    assert follower.asked() == FetchRequest(500, 1, (), ME, 10_485_760, session_id=77, session_epoch=1)
    follower.answer_fetch(data(1, batch(2, leader_epoch=EPOCH)), session=77)
    assert follower.fetched() == [(1, 2)]
    follower.fetchers.leave([follower.partitions[0]])
    follower.answer_fetch(session=77)
    assert follower.asked().forgotten_topics_data == (ForgottenTopic("t", (0,)),)


def test_a_log_start_that_own_retention_has_moved_is_told_with_the_next_fetch() -> None:
    follower = following(0, 0, 0, high_watermark=3)
    follower.answer_fetch(data(0, high_watermark=3), session=77)
    follower.log().delete_records_before(2, 3)
    follower.fetchers.logs_changed()
    follower.answer_fetch(session=77)
    assert follower.asked().topics[0].partitions[0].log_start_offset == 2
    follower.answer_fetch(session=77)
    assert follower.asked().topics == ()


def test_below_2_7_where_logs_part_is_asked_before_the_first_fetch() -> None:
    follower = Follower(protocol="2.6")
    log = follower.filled(0, 0, 3, 3)
    follower.follow()
    assert follower.asked() == OffsetForLeaderEpochRequest(
        (OffsetForLeaderTopic("t", (OffsetForLeaderPartition(0, 3, EPOCH),)),), ME
    )
    follower.answer(epoch_ends(OffsetForLeaderResult(0, 0, 2, 2)))
    assert log.log_end_offset == 2
    # Epoch 2 was never here: what is left is compared by what it is of.
    assert follower.asked().topics[0].partitions == (OffsetForLeaderPartition(0, 0, EPOCH),)
    follower.answer(epoch_ends(OffsetForLeaderResult(0, 0, 0, 1)))
    assert log.log_end_offset == 1
    assert follower.asked().topics[0].partitions == (FetchPartition(0, 1, MAX_BYTES, EPOCH, -1, 0),)


def epoch_ends(*results: OffsetForLeaderResult) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse((OffsetForLeaderTopicResult("t", results),) if results else ())


@pytest.mark.parametrize(
    "answer",
    [
        epoch_ends(OffsetForLeaderResult(int(ErrorCode.UNKNOWN_LEADER_EPOCH), 0)),
        epoch_ends(OffsetForLeaderResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)),
        epoch_ends(),
    ],
    ids=["behind", "not leader", "not answered"],
)
def test_where_logs_part_is_asked_again_after_a_while(answer: OffsetForLeaderEpochResponse) -> None:
    follower = Follower(protocol="2.6")
    follower.filled(0)
    follower.follow()
    follower.answer(answer)
    assert follower.count == 1
    follower.later(BACKOFF_MS)
    assert follower.count == 2


def test_a_log_without_leader_epochs_keeps_what_is_committed() -> None:
    """From before there were epochs: batches that say -1."""
    follower = Follower()
    log = follower.log()
    log.append_as_follower(b"".join(batch(1, base_offset=offset) for offset in range(5)))
    assert log.epochs.latest == -1
    follower.partitions[0].high_watermark = 3
    follower.follow()
    assert log.log_end_offset == 3
    assert follower.fetched() == [(0, 3)]


def test_fetchers_to_one_leader_share_its_partitions() -> None:
    follower = Follower(count=6, num_replica_fetchers="3")
    follower.follow()
    shares = [sorted(index for index, _ in follower.fetched(number)) for number in range(3)]
    assert sorted(index for share in shares for index in share) == [0, 1, 2, 3, 4, 5]
    assert all(len(share) == 2 for share in shares)


# What is made of the answer


def test_records_are_appended_and_the_high_watermark_is_the_leaders_as_far_as_there_are_records() -> None:
    follower = following()
    partition, log = follower.partitions[0], follower.log()
    records = batch(2, leader_epoch=4) + batch(1, base_offset=2, leader_epoch=EPOCH)
    follower.answer_fetch(data(0, records + records[:30], high_watermark=9))
    assert (log.log_end_offset, log.epochs.latest, partition.high_watermark) == (3, EPOCH, 3)
    assert follower.changes == [partition]
    assert follower.fetched() == [(0, 3)]
    follower.answer_fetch(data(0, high_watermark=3))
    assert follower.changes == [partition], "nothing changed"
    follower.answer_fetch(data(0, high_watermark=1))
    assert partition.high_watermark == 1, "a new leader may know less"
    assert len(follower.changes) == 2


def test_the_log_start_follows_the_leaders_up_to_the_high_watermark() -> None:
    follower = following(0, 0, 0, 0, high_watermark=4)
    follower.answer_fetch(data(0, high_watermark=4, start=2))
    assert follower.log().log_start_offset == 2
    assert follower.asked().topics[0].partitions[0].log_start_offset == 2
    follower.answer_fetch(data(0, high_watermark=3, start=4))
    assert (follower.log().log_start_offset, follower.partitions[0].high_watermark) == (3, 3)


def test_a_piece_of_a_batch_alone_is_fetched_again_and_first() -> None:
    follower = Follower(count=2)
    follower.follow()
    whole = batch(1, leader_epoch=EPOCH, value=b"x" * 100)
    follower.answer_fetch(data(0, whole), data(1, whole[:60]))
    assert follower.fetched() == [(1, 0), (0, 1)]
    assert not follower.trace.notes("warning")


def test_a_diverging_epoch_cuts_the_log_and_is_told() -> None:
    follower = following(0, 0, 3, 3, high_watermark=1)
    follower.answer_fetch(data(0, diverging=(2, 9)))
    assert follower.log().log_end_offset == 2
    assert follower.trace.events(LogTruncated) == [LogTruncated("t", 0, 2, EPOCH)]
    assert any("truncated from 4 to 2" in note for note in follower.trace.notes("info"))
    asked = follower.asked().topics[0].partitions[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (2, 0)
    follower.answer_fetch(data(0, diverging=(0, 1)))
    assert follower.log().log_end_offset == 1


def test_a_truncation_below_the_high_watermark_is_a_warning() -> None:
    follower = following(0, 0, 0, high_watermark=3)
    follower.answer_fetch(data(0, diverging=(0, 1)))
    assert follower.partitions[0].high_watermark == 1
    assert any("below the high watermark 3" in note for note in follower.trace.notes("warning"))


# Out of range


def listed(offset: int, index: int = 0, error: ErrorCode = ErrorCode.NONE) -> ListOffsetsResponse:
    result = ListOffsetsPartitionResult(index, int(error), offset=offset)
    return ListOffsetsResponse((ListOffsetsTopicResult("t", (result,)),))


def out_of_range(*epochs: int, **given: Any) -> Follower:
    follower = following(*epochs, **given)
    follower.answer_fetch(data(0, error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert follower.asked() == ListOffsetsRequest(
        (ListOffsetsTopic("t", (ListOffsetsPartition(0, LATEST_TIMESTAMP, EPOCH),)),), ME
    )
    return follower


def test_a_leader_that_ends_before_takes_the_rest_with_it() -> None:
    """After an unclean election."""
    follower = out_of_range(0, 0, 0, high_watermark=3)
    follower.answer(listed(1))
    assert (follower.log().log_end_offset, follower.partitions[0].high_watermark) == (1, 1)
    assert follower.fetched() == [(0, 1)]


def test_a_leader_that_begins_after_has_the_log_begin_there() -> None:
    """The follower was away while its leader's retention went on."""
    follower = out_of_range(0, 0, 0, high_watermark=2)
    follower.answer(listed(90))
    assert follower.asked().topics[0].partitions[0].timestamp == EARLIEST_TIMESTAMP
    follower.answer(listed(40))
    log = follower.log()
    assert (log.log_start_offset, log.log_end_offset, follower.partitions[0].high_watermark) == (40, 40, 40)
    assert follower.fetched() == [(0, 40)]
    follower.answer_fetch(data(0, batch(3, base_offset=38, leader_epoch=4), high_watermark=41, start=40))
    assert (log.log_start_offset, log.log_end_offset) == (40, 41)


def test_a_leader_within_whose_range_the_log_ends_is_asked_again_after_a_while() -> None:
    follower = out_of_range(0, 0, 0)
    follower.answer(listed(90))
    follower.answer(listed(2))
    assert (follower.log().log_end_offset, follower.count) == (3, 3)
    follower.later(BACKOFF_MS)
    assert follower.fetched() == [(0, 3)]


def test_an_answer_about_ranges_for_what_is_followed_no_more_changes_nothing() -> None:
    follower = out_of_range(0, 0, 0)
    follower.follow(leader=OTHER, epoch=EPOCH + 1)
    before = follower.count
    follower.answer(listed(0), number=before - 2)
    assert follower.log().log_end_offset == 3
