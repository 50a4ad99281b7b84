"""A follower's rolls, flushes and truncations are jobs of the device: other partitions of its leader are fetched on."""

from __future__ import annotations

from controller.storage import DeviceUnavailable, LogSettings
from tests.broker.fetching import BACKOFF_MS, EPOCH, OTHER, Follower, data
from tests.broker.test_upkeep_on_devices import Jobs
from tests.storage.batches import batch

SIZE = len(batch())
SILENT = DeviceUnavailable("8:1", "no answer")


def batches(first: int, count: int = 1) -> bytes:
    """Of a leader's log: a record each, from this offset on."""
    return b"".join((first + number).to_bytes(8, "big") + batch()[8:] for number in range(count))


def following(settings: LogSettings, count: int = 2) -> tuple[Follower, Jobs]:
    follower, jobs = Follower(count), Jobs()
    follower.fetchers.drive = jobs.drive
    for index in range(count):
        follower.log(index).settings = settings
    follower.follow()
    return follower, jobs


def test_the_other_partitions_are_fetched_while_a_roll_has_not_ended() -> None:
    follower, jobs = following(LogSettings(segment_bytes=2 * SIZE))
    follower.answer_fetch(data(0, batches(0, 2)), data(1))
    follower.answer_fetch(data(0, batches(2)), data(1))
    count = follower.count
    assert [job.what for _, job in jobs.waiting] == ["roll of logs/t-0"]
    assert follower.log().log_end_offset == 2
    follower.later(15.0)
    assert follower.count == count + 1
    assert follower.fetched() == [(1, 0)]
    assert follower.asked().max_wait_ms <= 100, "what waits for the job is fetched soon after it"
    jobs.run()
    assert follower.log().segment_offsets == (0, 2)
    assert follower.log().log_end_offset == 3
    follower.answer_fetch()
    assert (0, 3) in follower.fetched()


def test_a_short_job_is_waited_for() -> None:
    follower, jobs = following(LogSettings(segment_bytes=2 * SIZE))
    follower.answer_fetch(data(0, batches(0, 2)), data(1))
    follower.answer_fetch(data(0, batches(2)), data(1))
    count = follower.count
    jobs.run()
    assert follower.count == count + 1
    assert sorted(follower.fetched()) == [(0, 3), (1, 0)]


def test_a_device_without_an_answer_delays_its_partition_alone() -> None:
    follower, jobs = following(LogSettings(segment_bytes=2 * SIZE))
    follower.answer_fetch(data(0, batches(0, 2)), data(1))
    follower.answer_fetch(data(0, batches(2)), data(1))
    jobs.fail(SILENT)
    assert follower.log().log_end_offset == 2
    assert follower.fetched() == [(1, 0)]
    follower.later(BACKOFF_MS)
    follower.answer_fetch()
    assert (0, 2) in follower.fetched()
    follower.answer_fetch(data(0, batches(2)))
    jobs.run()
    assert follower.log().log_end_offset == 3
    assert not follower.trace.notes("error")


def test_the_leader_learns_of_a_record_after_its_flush() -> None:
    follower, jobs = following(LogSettings(flush_messages=1), 1)
    follower.answer_fetch(data(0, batches(0)))
    assert follower.log().log_end_offset == 1
    follower.later(150.0)
    assert follower.count == 1
    assert jobs.run().what == "flush of logs/t-0"
    assert follower.log().recovery_point == 1
    assert follower.fetched() == [(0, 1)]


def test_a_flush_without_an_answer_is_made_again_before_the_leader_learns_of_the_record() -> None:
    follower, jobs = following(LogSettings(flush_messages=1), 1)
    follower.answer_fetch(data(0, batches(0)))
    jobs.fail(SILENT)
    follower.later(BACKOFF_MS + 150.0)
    assert follower.count == 1
    assert jobs.run().what == "flush of logs/t-0"
    assert follower.log().recovery_point == 1
    assert follower.fetched() == [(0, 1)]


def test_a_new_leader_learns_of_a_record_after_its_flush_too() -> None:
    """The job of the flush was waited for under the former one."""
    follower, jobs = following(LogSettings(flush_messages=1), 1)
    follower.answer_fetch(data(0, batches(0), high_watermark=1))
    assert follower.log().log_end_offset == 1
    follower.fetchers.leave(follower.partitions)
    jobs.fail(SILENT)
    count = follower.count
    follower.follow(leader=OTHER, epoch=EPOCH + 1)
    follower.later(150.0)
    assert follower.count == count
    assert jobs.run().what == "flush of logs/t-0"
    assert follower.log().recovery_point == 1
    assert follower.fetched() == [(0, 1)]


def test_a_throttled_replica_waits_for_its_turn_after_its_job() -> None:
    follower, jobs = following(LogSettings(segment_bytes=2 * SIZE), 1)
    follower.throttle.rate, follower.throttle.replicas = lambda: SIZE // 20, lambda _topic: "*"
    follower.answer_fetch(data(0, batches(0, 2), high_watermark=100))
    follower.later(60 * BACKOFF_MS)
    follower.answer_fetch(data(0, batches(2), high_watermark=100))
    count = follower.count
    jobs.run()
    assert follower.log().log_end_offset == 3
    follower.later(150.0)
    assert follower.count == count


def diverged(epochs: int = 3) -> tuple[Follower, Jobs]:
    follower, jobs = Follower(), Jobs()
    follower.filled(*[EPOCH - 1] * epochs)
    follower.log().flush()
    follower.directory.checkpoint_recovery_points()
    follower.fetchers.drive = jobs.drive
    follower.follow()
    follower.answer_fetch(data(0, diverging=(EPOCH - 1, 1)))
    return follower, jobs


def recovery_point(follower: Follower) -> int:
    return int(follower.disk.read("logs/recovery-point-offset-checkpoint").split()[-1])


def test_a_truncation_begins_with_a_job_that_lowers_the_recovery_point() -> None:
    follower, jobs = diverged()
    assert follower.log().log_end_offset == 3
    assert recovery_point(follower) == 3
    assert jobs.run().what == "truncation of logs/t-0"
    assert recovery_point(follower) == 1
    assert follower.log().log_end_offset == 1
    assert follower.fetched() == [(0, 1)]


def test_a_truncation_whose_device_has_no_answer_cuts_nothing_and_is_made_later() -> None:
    follower, jobs = diverged()
    jobs.fail(SILENT)  # not begun
    assert follower.log().log_end_offset == 3
    follower.later(BACKOFF_MS)
    follower.answer_fetch(data(0, diverging=(EPOCH - 1, 1)))
    assert recovery_point(follower) == 3
    jobs.run()
    assert recovery_point(follower) == 1, "though it was lowered in memory before"
    assert follower.log().log_end_offset == 1


def test_a_log_that_is_not_followed_any_more_is_not_cut() -> None:
    follower, jobs = diverged()
    follower.fetchers.leave(follower.partitions)
    jobs.run()
    assert follower.log().log_end_offset == 3


def test_a_failed_job_takes_the_directory_offline() -> None:
    follower, jobs = diverged()
    follower.disk.fail_after = follower.disk.changes
    jobs.run()
    assert follower.directory.health.cause is not None
    assert any("is not followed any more" in note for note in follower.trace.notes("error"))


def test_a_new_leader_appends_to_a_segment_that_begins_no_later() -> None:
    """A roll for a follower's append that has a gap before it (of a compacted log), and was not made."""
    follower, jobs = following(LogSettings(segment_bytes=2 * SIZE), 1)
    follower.answer_fetch(data(0, batches(0, 2)))
    follower.answer_fetch(data(0, batches(7)))
    follower.fetchers.leave(follower.partitions)
    jobs.run()
    log = follower.log()
    assert log.segment_offsets == (0, 7)
    log.append_as_leader(batch(), EPOCH + 1)
    assert log.segment_offsets == (0, 2)
    assert log.read(2, 1_000).length == SIZE
