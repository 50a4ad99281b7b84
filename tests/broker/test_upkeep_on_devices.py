"""Retention and the removal of deleted partitions are jobs of the device: the broker's thread does not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.broker.log_maintenance import LogMaintenance
from controller.broker.request_context import Job, Steps, finish
from controller.storage import DeviceUnavailable
from tests.broker.test_upkeep import KEY, PATHS, Kept


class Jobs:
    """A driver of steps whose jobs the test runs, in any order and with any outcome."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Steps, Job]] = []

    def drive(self, steps: Steps) -> None:
        self._go_on(steps, lambda: steps.send(None))

    def _go_on(self, steps: Steps, step: Callable[[], Any]) -> None:
        try:
            yielded = step()
            while not isinstance(yielded, Job):
                if yielded is not None and not yielded.enter(lambda: self._go_on(steps, lambda: steps.send(None))):
                    return
                yielded = steps.send(None)
            self.waiting.append((steps, yielded))
        except StopIteration:
            return

    def run(self) -> Job:
        steps, job = self.waiting.pop(0)
        result = job.call()
        self._go_on(steps, lambda: steps.send(result))
        return job

    def fail(self, error: Exception) -> None:
        steps, _ = self.waiting.pop(0)
        self._go_on(steps, lambda: steps.throw(error))


def kept_with(jobs: Jobs, **given: str) -> Kept:
    kept = Kept(**{"log_retention_bytes": "0", "log_segment_bytes": "200", **given})  # type: ignore[arg-type]
    kept.append(9)
    partition = kept.replicas.partition(*KEY)
    assert partition is not None
    partition.high_watermark = 9
    kept.log_maintenance = LogMaintenance(
        kept.settings,
        kept.logs,
        kept.replicas,
        kept.clock,
        kept.trace,
        on_deleted=kept._deleted,
        drive=jobs.drive,
    )
    return kept


def let_go(kept: Kept, jobs: Jobs) -> None:
    """Up to the removal: where all segments go, a job makes the next first."""
    kept.log_maintenance.apply_retention()
    if jobs.waiting and jobs.waiting[0][1].what.startswith("roll of"):
        jobs.run()


def files(kept: Kept) -> list[str]:
    return [name for name in kept.disk.names(f"{PATHS[0]}/{KEY[0]}-{KEY[1]}") if name.endswith(".log")]


def test_retention_moves_the_start_at_once_and_a_job_removes_the_files() -> None:
    jobs = Jobs()
    kept = kept_with(jobs)
    before = files(kept)
    let_go(kept, jobs)
    (log,) = kept.logs.directories[0].logs.values()
    start = log.log_start_offset
    assert start > 0
    assert len(files(kept)) >= len(before)
    job = jobs.run()
    assert job.lane == kept.logs.directories[0].device
    assert job.order == PATHS[0], "files of a new log of this name are made after the removal"
    assert job.what == f"removal of {len(before)} segments of {log.directory}"
    assert not set(before) & set(files(kept))
    assert kept.deletions == 1


def test_a_job_reads_in_the_indexes_that_retention_by_time_looks_at() -> None:
    """They are let go after each look, and many logs have one: on a slow disk that would hold up the broker."""
    jobs = Jobs()
    kept = kept_with(jobs, log_retention_bytes="-1", log_retention_ms="1000")
    (log,) = kept.logs.directories[0].logs.values()
    kept.log_maintenance.apply_retention()
    while jobs.waiting:
        jobs.run()
    before = files(kept)
    assert len(before) > 1
    kept.disk.evict()
    kept.clock.advance_to(kept.clock.now_ms() + 2_000)
    kept.log_maintenance.apply_retention()
    what = jobs.run().what
    assert what.startswith("read of"), what
    assert files(kept) == before, "nothing is let go before it is known what"
    while jobs.waiting:
        jobs.run()
    assert not set(before) & set(files(kept))
    assert log.log_start_offset == log.log_end_offset


@pytest.mark.parametrize("times", [1, 2])
def test_what_was_not_removed_is_the_next_removals_to_do_first(times: int) -> None:
    jobs = Jobs()
    kept = kept_with(jobs)
    before = files(kept)
    for _ in range(times):
        let_go(kept, jobs)
        jobs.fail(DeviceUnavailable("8:1", "no answer"))
        assert "maintenance is postponed: device 8:1: no answer" in kept.trace.notes("warning")[-1]
    assert kept.logs.directories[0].health.cause is None
    let_go(kept, jobs)
    jobs.run()
    assert not set(before) & set(files(kept))
    let_go(kept, jobs)
    assert jobs.waiting == []


def test_an_error_of_the_disk_in_the_job_takes_the_directory_offline() -> None:
    jobs = Jobs()
    kept = kept_with(jobs)
    let_go(kept, jobs)
    jobs.fail(OSError(5, "input/output error"))
    assert kept.logs.directories[0].health.cause is not None


def test_a_partition_that_is_deleted_meanwhile_has_nothing_left_to_remove() -> None:
    jobs = Jobs()
    kept = kept_with(jobs)
    kept.log_maintenance.apply_retention()
    finish(kept.logs.delete_all([KEY]))
    jobs.run()
    assert kept.logs.directories[0].health.cause is None


def test_one_removal_of_a_kind_is_under_way_at_a_time() -> None:
    jobs = Jobs()
    kept = kept_with(jobs)
    kept.log_maintenance.apply_retention()
    kept.log_maintenance.apply_retention()
    assert len(jobs.waiting) == 1


def test_deleted_partitions_are_removed_by_a_job() -> None:
    jobs = Jobs()
    kept = kept_with(jobs)
    finish(kept.logs.delete_all([KEY]))
    kept.log_maintenance.purge_deleted()
    deleted = [name for name in kept.disk.names(PATHS[0]) if name.endswith("-delete")]
    assert len(deleted) == 1
    jobs.run()
    assert deleted[0] not in kept.disk.names(PATHS[0])
    kept.log_maintenance.purge_deleted()
    jobs.fail(DeviceUnavailable("8:1", "no answer"))
    kept.log_maintenance.purge_deleted()
    assert len(jobs.waiting) == 1
