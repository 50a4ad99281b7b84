"""What a follower does when an answer is an error, none comes, or what it follows has changed meanwhile: a partition's
trouble is its own, and an answer to another leader epoch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.broker import fetcher
from controller.core.channels import PeerTimedOut
from controller.protocol.control import UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest
from controller.protocol.errors import ErrorCode
from controller.storage import PartitionLog
from tests.broker.fetching import BACKOFF_MS, EPOCH, LEADER, ME, OTHER, Follower, data, following
from tests.broker.harness import AskedPeers, live
from tests.storage.batches import batch

# Errors


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ErrorCode.UNKNOWN_LEADER_EPOCH, "debug"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "debug"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "debug"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "warning"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "warning"),
    ],
)
def test_a_partition_with_an_error_waits_and_its_neighbour_does_not(error: ErrorCode, level: str) -> None:
    follower = Follower(count=2)
    follower.follow()
    follower.answer_fetch(data(0, error=error), data(1, batch(1, leader_epoch=EPOCH)))
    assert follower.fetched() == [(1, 1)]
    assert any(error.name in note for note in follower.trace.notes(level))
    follower.later(BACKOFF_MS)
    follower.answer_fetch(data(1))
    assert follower.fetched() == [(1, 1), (0, 0)]


def test_a_leader_that_does_not_know_yet_is_asked_again_soon_and_then_later_each_time() -> None:
    """In an election the follower may hear of it milliseconds before the leader does."""
    follower = Follower()
    follower.follow()
    waits = []
    for count in range(1, 12):
        assert follower.count == count
        follower.answer_fetch(data(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        before_ms = follower.clock.now_ms()
        while follower.count == count:
            follower.later(1)
        waits.append(follower.clock.now_ms() - before_ms)
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000, 1_000]
    follower.answer_fetch(data(0))
    follower.answer_fetch(data(0, error=ErrorCode.UNKNOWN_LEADER_EPOCH))
    follower.later(10)
    assert follower.count == 14


def test_the_leader_is_not_to_wait_for_longer_than_until_a_partition_is_due() -> None:
    follower = Follower(count=2)
    follower.follow()
    assert follower.asked().max_wait_ms == 500
    follower.answer_fetch(data(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER), data(1))
    assert follower.asked().max_wait_ms == 10
    follower.later(10)
    follower.answer_fetch(data(1))
    assert (follower.fetched(), follower.asked().max_wait_ms) == ([(1, 0), (0, 0)], 500)


def test_a_fenced_partition_waits_for_the_next_leader_epoch() -> None:
    follower = Follower(count=2)
    follower.follow()
    follower.answer_fetch(data(0, error=ErrorCode.FENCED_LEADER_EPOCH), data(1))
    follower.later(10 * BACKOFF_MS)
    assert follower.fetched() == [(1, 0)]
    follower.follow(0, epoch=EPOCH + 1)
    follower.answer_fetch(data(1))
    assert follower.asked().topics[0].partitions[-1].current_leader_epoch == EPOCH + 1


def test_a_damaged_batch_is_told_and_fetched_again() -> None:
    follower = Follower(count=2)
    follower.follow()
    whole = batch(1, leader_epoch=EPOCH)
    follower.answer_fetch(data(0, whole[:-1] + b"\x01"), data(1, whole))
    assert (follower.log(0).log_end_offset, follower.log(1).log_end_offset) == (0, 1)
    assert any("CRC" in note for note in follower.trace.notes("warning"))
    assert follower.fetched() == [(1, 1)]
    follower.later(BACKOFF_MS)
    follower.answer_fetch(data(1))
    follower.answer_fetch(data(0, whole))
    assert follower.log(0).log_end_offset == 1


def test_batches_that_do_not_go_on_from_the_logs_end_are_told_and_not_appended() -> None:
    follower = following(0, 0)
    follower.answer_fetch(data(0, batch(1, base_offset=1, leader_epoch=EPOCH)))
    assert follower.log().log_end_offset == 2
    assert any("expected 2 or more" in note for note in follower.trace.notes("warning"))


def test_a_disk_that_fails_ends_the_following_of_its_partitions_and_is_told() -> None:
    follower = Follower(count=2)
    follower.follow()
    follower.disk.fail_after = follower.disk.changes
    follower.answer_fetch(data(0, batch(1, leader_epoch=EPOCH)), data(1))
    assert any("is offline" in note for note in follower.trace.notes("error"))
    assert follower.fetched() == [(1, 0)]
    follower.follow(0, epoch=EPOCH + 1)
    assert sum("is offline" in note for note in follower.trace.notes("error")) == 2


def test_a_fault_with_one_partition_is_told_with_its_place_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follower = Follower(count=2)
    follower.follow()
    broken, append = follower.log(0), PartitionLog.append_as_follower
    monkeypatch.setattr(
        PartitionLog, "append_as_follower", lambda log, batches: 1 / 0 if log is broken else append(log, batches)
    )
    follower.answer_fetch(data(0, batch(1, leader_epoch=EPOCH)), data(1))
    assert any("ZeroDivisionError" in note for note in follower.trace.notes("error"))
    assert follower.fetched() == [(1, 0)]


def test_a_fault_of_the_fetcher_is_told_and_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = following()
    with monkeypatch.context() as broken:
        broken.setattr(fetcher, "error_of", lambda _: 1 / 0)
        follower.answer_fetch(data(0))
    assert any("ZeroDivisionError" in note for note in follower.trace.notes("error"))
    follower.later(BACKOFF_MS)
    assert follower.count == 2


# The leader is away


def test_a_leader_that_does_not_answer_is_asked_again_over_a_new_connection() -> None:
    follower = following()
    follower.answer_fetch(data(0), session=77)
    follower.peers.asked[-1][3].fail(PeerTimedOut("nothing came"))
    assert follower.count == 2
    assert follower.peers.closed == [9090 + LEADER]
    follower.later(BACKOFF_MS)
    assert (follower.asked().session_id, follower.asked().session_epoch) == (77, 0)


def test_a_body_that_is_no_answer_costs_the_connection() -> None:
    follower = following()
    follower.peers.asked[-1][3].resolve(b"nonsense")
    assert follower.peers.closed == [9090 + LEADER]
    follower.later(BACKOFF_MS)
    assert follower.count == 2


def test_a_fetch_refused_as_a_whole_is_made_again_at_once_and_then_after_a_while() -> None:
    follower = following()
    error = int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    follower.answer_fetch(error=error)
    assert follower.count == 2
    follower.answer_fetch(error=error)
    assert follower.count == 2
    follower.later(BACKOFF_MS)
    assert follower.count == 3


def test_a_leader_without_an_address_is_asked_once_it_has_one() -> None:
    follower = Follower()
    follower.metadata.update(UpdateMetadataRequest(1, 1, (), live(ME, OTHER)))
    follower.follow()
    follower.later(3 * BACKOFF_MS)
    assert follower.count == 0
    follower.metadata.update(UpdateMetadataRequest(1, 1, (), live(ME, LEADER)))
    follower.fetchers.leaders_changed()
    assert follower.count == 1


def test_a_leader_that_is_elsewhere_is_asked_there_at_once() -> None:
    follower = following()
    moved = UpdateMetadataBroker(LEADER, (UpdateMetadataEndpoint(7_777, "127.0.0.1", "PLAINTEXT"),))
    follower.fetchers.leaders_changed()
    assert follower.peers.closed == [], "where it was"
    follower.metadata.update(UpdateMetadataRequest(1, 1, (), (*live(ME, OTHER), moved)))
    follower.fetchers.leaders_changed()
    assert follower.peers.closed == [9090 + LEADER]
    follower.peers.asked[-1][3].fail(PeerTimedOut("closed at this end"))
    assert [port for port, *_ in follower.peers.asked] == [9090 + LEADER, 7_777]


def test_a_leader_that_the_metadata_has_lost_is_still_followed() -> None:
    follower = following()
    follower.metadata.update(UpdateMetadataRequest(1, 1, (), live(ME, OTHER)))
    follower.fetchers.leaders_changed()
    assert follower.peers.closed == []


# Coming and going


@pytest.mark.parametrize("leader", [LEADER, OTHER])
def test_an_answer_to_an_earlier_leader_epoch_changes_nothing(leader: int) -> None:
    follower = Follower(count=2)
    follower.follow()
    follower.follow(0, leader=leader, epoch=EPOCH + 1)
    follower.answer_fetch(
        data(0, batch(1, leader_epoch=EPOCH), high_watermark=1),
        data(1, batch(1, leader_epoch=EPOCH)),
        number=0,
    )
    assert (follower.log(0).log_end_offset, follower.partitions[0].high_watermark) == (0, 0)
    assert follower.log(1).log_end_offset == 1
    epochs = {
        (one.partition, one.current_leader_epoch)
        for number in range(1, follower.count)
        for topic in follower.asked(number).topics
        for one in topic.partitions
    }
    assert epochs == {(0, EPOCH + 1), (1, EPOCH)}


def test_an_answer_for_what_was_left_changes_nothing() -> None:
    follower = Follower(count=2)
    follower.follow()
    follower.fetchers.leave([follower.partitions[0]])
    follower.answer_fetch(data(0, batch(1, leader_epoch=EPOCH)), data(1))
    assert follower.log(0).log_end_offset == 0
    assert follower.fetched() == [(1, 0)]


def test_an_answer_for_a_log_that_has_moved_meanwhile_is_dropped() -> None:
    follower = following()
    follower.log().append_as_follower(batch(1, leader_epoch=EPOCH))
    follower.answer_fetch(data(0, batch(1, leader_epoch=EPOCH), high_watermark=1))
    assert (follower.log().log_end_offset, follower.partitions[0].high_watermark) == (1, 0)


def test_a_fetcher_with_nothing_to_follow_is_closed_and_a_new_one_opened_when_there_is() -> None:
    follower = following()
    follower.fetchers.leave(follower.partitions)
    assert follower.peers.closed == [9090 + LEADER]
    follower.follow(epoch=EPOCH + 1)
    assert follower.count == 2
    follower.answer_fetch(data(0, error=ErrorCode.FENCED_LEADER_EPOCH))
    assert follower.peers.closed == [9090 + LEADER] * 2
    follower.follow(epoch=EPOCH + 2)
    assert follower.count == 3


def test_what_has_no_log_is_not_followed() -> None:
    follower = Follower()
    follower.partitions[0].log = None
    follower.follow()
    assert follower.count == 0


@pytest.mark.parametrize("state", ["asking", "backing off", "without an address"])
def test_closing_leaves_nothing_running(state: str) -> None:
    follower = Follower()
    if state == "without an address":
        follower.metadata.update(UpdateMetadataRequest(1, 1, (), live(ME)))
    follower.follow()
    if state == "backing off":
        follower.answer_fetch(data(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    before = follower.count
    follower.fetchers.close()
    if state == "asking":
        follower.answer_fetch(data(0, batch(1, leader_epoch=EPOCH)))
    follower.later(100 * BACKOFF_MS)
    assert (follower.count, follower.log().log_end_offset) == (before, 0)
    assert follower.clock.next_due_ms() is None
    assert unclosed(follower.peers) == []


def unclosed(peers: AskedPeers) -> Sequence[int]:
    """Ports that were asked and whose connection was not closed."""
    return sorted({port for port, *_ in peers.asked} - set(peers.closed))


# A leader that is gone


def test_a_leader_that_is_gone_is_asked_again_and_again_without_a_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = following()
    driven: list[object] = []
    monkeypatch.setattr(fetcher, "spawn", driven.append)
    for count in range(2, 6):
        follower.peers.asked[-1][3].fail(PeerTimedOut("gone"))
        follower.later(BACKOFF_MS - 1)
        assert follower.count == count - 1
        follower.later(1)
        assert follower.count == count
        assert follower.asked().topics == follower.asked(1).topics != ()
    assert driven == []


def test_a_fault_of_ours_in_another_attempt_is_told_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = following()
    follower.peers.asked[-1][3].fail(PeerTimedOut("gone"))
    with monkeypatch.context() as patch:
        patch.setattr(fetcher, "fetch_request", None)
        follower.later(BACKOFF_MS)
    assert [note for note in follower.trace.notes("error") if "Traceback" in note]
    count = follower.count
    follower.later(BACKOFF_MS)
    assert follower.count == count + 1


def test_one_that_was_dropped_by_its_fetcher_leaves_no_connection_once_roles_change() -> None:
    follower = Follower(count=2)
    follower.follow(0)
    follower.answer_fetch(data(0, error=ErrorCode.FENCED_LEADER_EPOCH))
    follower.follow(1, leader=OTHER)
    assert len(follower.fetchers) == 1
    assert follower.peers.closed == [9090 + LEADER]
