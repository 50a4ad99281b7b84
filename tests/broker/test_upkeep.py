"""What is done to logs from time to time, when, and what a failing directory leaves of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.broker.log_maintenance import LogMaintenance, NoLogDirectory, opening_notes
from controller.broker.log_manager import LogManager
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition
from controller.broker.replica_manager import ReplicaManager
from controller.broker.request_context import finish
from controller.clock import VirtualClock
from controller.machine.disk import MemoryDisk
from controller.protocol.errors import ErrorCode
from controller.storage import DuplicateLogs, LogDirectory, PartitionLog
from controller.storage.checkpoints import CLEAN_SHUTDOWN, decode_offsets
from controller.storage.directory import MADE
from tests.broker.harness import BROKER, KeptTrace, leader_and_isr, settings
from tests.storage.batches import batch

KEY = ("t", 0)
PATHS = ("/one", "/other")
CHECKPOINTS = {
    "replication-offset-checkpoint": 5_000,
    "recovery-point-offset-checkpoint": 30_000,
    "log-start-offset-checkpoint": 30_000,
}


class FailingDisk(MemoryDisk):
    """Fails in the directories that are named in `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    def replace_soon(self, path: str, data: bytes) -> None:
        if any(path.startswith(one + "/") for one in self.failing):
            raise OSError(f"planted in {path}")
        super().replace_soon(path, data)


class Kept:
    """Logs with upkeep, and one partition led here."""

    def __init__(self, disk: MemoryDisk | None = None, paths: tuple[str, ...] = PATHS[:1], **given: str) -> None:
        self.clock = VirtualClock()
        self.trace = KeptTrace()
        self.disk = disk or FailingDisk()
        self.settings = settings(log_dirs=",".join(paths), **given)
        self.logs = LogManager(self.disk, paths, lambda _topic: self.settings.log, self.clock.wall_ms)
        self.replicas = ReplicaManager(BROKER, MetadataCache(), self.trace, self.logs, self.clock.now_ms)
        self.ended: list[float] = []
        self.deletions = 0
        self.log_maintenance = LogMaintenance(
            self.settings,
            self.logs,
            self.replicas,
            self.clock,
            self.trace,
            lambda: self.ended.append(self.clock.now_ms()),
            self._deleted,
        )

    def _deleted(self) -> None:
        self.deletions += 1

    def lead(self) -> Partition:
        answer = finish(self.replicas.become_leader_or_follower(leader_and_isr(BROKER, 1)))
        assert answer.error_code == ErrorCode.NONE
        partition = self.replicas.partition(*KEY)
        assert partition is not None
        return partition

    def append(self, count: int) -> PartitionLog:
        """So many batches of one record each, all of them committed."""
        partition = self.replicas.partition(*KEY) or self.lead()
        assert partition.log is not None
        for _ in range(count):
            partition.log.append_as_leader(batch(), 1)
        partition.high_watermark = partition.log.log_end_offset
        return partition.log

    def checkpoint(
        self, name: str = "replication-offset-checkpoint", path: str = PATHS[0]
    ) -> dict[tuple[str, int], int]:
        return decode_offsets(name, self.disk.read(f"{path}/{name}"))

    def checkpoints(self) -> set[str]:
        return set(self.disk.names(PATHS[0])) & set(CHECKPOINTS)


def test_each_checkpoint_is_written_at_its_first_time_and_not_before() -> None:
    kept = Kept()
    kept.append(3)
    kept.log_maintenance.start()
    for time_ms in (4_999, 5_000, 29_999, 30_000):
        kept.clock.advance_to(time_ms)
        assert kept.checkpoints() == {name for name, first_ms in CHECKPOINTS.items() if first_ms <= time_ms}
    assert kept.checkpoint() == {KEY: 3}


def test_each_is_done_again_after_its_interval() -> None:
    kept = Kept(log_flush_offset_checkpoint_interval_ms="7000")
    log = kept.append(1)
    kept.log_maintenance.start()
    kept.clock.advance_to(7_000)
    log.flush()
    assert kept.checkpoint("recovery-point-offset-checkpoint") == {KEY: 0}
    kept.clock.advance_to(13_999)
    assert kept.checkpoint("recovery-point-offset-checkpoint") == {KEY: 0}
    kept.clock.advance_to(14_000)
    assert kept.checkpoint("recovery-point-offset-checkpoint") == {KEY: 1}


def test_nothing_is_flushed_unless_it_was_asked_for() -> None:
    kept = Kept()
    log = kept.append(3)
    kept.log_maintenance.start()
    kept.clock.advance_to(3_600_000)
    assert log.recovery_point == 0


def test_a_log_is_flushed_when_its_time_is_over() -> None:
    kept = Kept(log_flush_scheduler_interval_ms="1000", log_flush_interval_ms="2500")
    log = kept.append(3)
    kept.log_maintenance.start()
    kept.clock.advance_to(2_999)
    assert log.recovery_point == 0
    kept.clock.advance_to(3_000)
    assert log.recovery_point == 3


def test_retention_takes_old_segments_up_to_the_high_watermark() -> None:
    kept = Kept(log_retention_bytes="0", log_segment_bytes="200", log_retention_check_interval_ms="1000")
    log = kept.append(9)
    partition = kept.replicas.partition(*KEY)
    assert partition is not None
    partition.high_watermark = 4
    kept.log_maintenance.start()
    kept.clock.advance_to(1_000)
    assert 0 < log.log_start_offset <= 4
    assert kept.deletions == 1
    assert len(kept.trace.notes("info")) == 1


def test_a_deleted_partitions_files_go_later() -> None:
    kept = Kept(log_segment_delete_delay_ms="2000")
    kept.append(1)
    kept.log_maintenance.start()
    finish(kept.logs.delete_all([KEY]))
    deleted = [name for name in kept.disk.names(PATHS[0]) if name.endswith("-delete")]
    assert len(deleted) == 1
    kept.clock.advance_to(1_999)
    assert deleted[0] in kept.disk.names(PATHS[0])
    kept.clock.advance_to(2_000)
    assert deleted[0] not in kept.disk.names(PATHS[0])


def test_a_log_that_nobody_has_named_yet_keeps_its_high_watermark() -> None:
    first = Kept()
    first.append(3)
    first.log_maintenance.close_logs()
    second = Kept(first.disk)
    second.log_maintenance.start()
    second.clock.advance_to(5_000)
    assert second.checkpoint() == {KEY: 3}


def test_a_directory_that_fails_leaves_the_others_their_upkeep_and_with_the_last_it_is_over() -> None:
    disk = FailingDisk()
    kept = Kept(disk, PATHS)
    kept.append(2)
    kept.log_maintenance.start()
    home = kept.logs.directory_of(*KEY)
    assert home is not None
    other = next(path for path in PATHS if path != home.path)
    disk.failing = {other}
    kept.clock.advance_to(5_000)
    assert [one.path for one in kept.logs.directories if one.health.cause is not None] == [other]
    assert (kept.checkpoint(path=home.path), kept.ended) == ({KEY: 2}, [])
    disk.failing = set(PATHS)
    kept.append(1)
    kept.clock.advance_to(60_000)
    assert kept.ended == [10_000]
    assert kept.trace.notes("error") == ["every log directory is offline"]


def test_closed_the_logs_are_clean_and_nothing_is_done_any_more() -> None:
    kept = Kept()
    kept.append(3)
    kept.log_maintenance.start()
    kept.log_maintenance.close_logs()
    assert CLEAN_SHUTDOWN in kept.disk.names(PATHS[0])
    assert kept.checkpoint() == {KEY: 3}
    changes = kept.disk.changes
    kept.clock.advance_to(600_000)
    assert (kept.disk.changes, kept.clock.next_due_ms()) == (changes, None)


def test_a_kill_leaves_them_to_be_recovered() -> None:
    kept = Kept()
    kept.append(3)
    kept.logs.directories[0].unlock()
    again = Kept(kept.disk)
    assert not again.logs.directories[0].was_clean
    assert again.logs.directories[0].logs[KEY].log_end_offset == 3


def test_what_a_start_found_is_told() -> None:
    first = Kept()
    log = first.append(3)
    first.log_maintenance.close_logs()
    clean = Kept(first.disk)
    assert [(note.level, note.message) for note in opening_notes(clean.logs)] == [
        ("info", "log directory /one: 1 logs, closed cleanly")
    ]
    clean.logs.directories[0].unlock()
    clean.disk.open(f"{log.directory}/{0:020}.log").append(b"torn")
    recovered = Kept(first.disk)
    assert [(note.level, note.message) for note in opening_notes(recovered.logs)] == [
        ("info", "log directory /one: 1 logs, recovered"),
        ("warning", "t-0: 4 bytes of a torn end were cut off at 3"),
    ]


def test_a_start_goes_on_with_what_is_left_and_ends_with_nothing() -> None:
    kept = Kept(paths=PATHS)
    kept.logs.directories[1].health.fail(OSError("planted"))
    assert [note.level for note in opening_notes(kept.logs)] == ["info", "error"]
    kept.logs.directories[0].health.fail(OSError("planted, too"))
    with pytest.raises(
        NoLogDirectory, match=r"/one is offline: planted, too; log directory /other is offline: planted"
    ):
        opening_notes(kept.logs)


def test_a_checkpoint_that_is_left_out_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogDirectory, "write_high_watermarks", lambda *_: None)
    with pytest.raises(AssertionError):
        test_each_checkpoint_is_written_at_its_first_time_and_not_before()


def test_a_start_that_finds_a_log_in_two_directories_changes_nothing() -> None:
    """Opened first, a directory would have lost its mark of a clean shutdown, and what recovery cuts off."""
    kept = Kept(paths=PATHS)
    for number, path in enumerate(PATHS):
        kept.logs.directories[number].create((path[1:], 0))
    kept.logs.close()
    kept.disk.make_directory("/other/one-0")
    with pytest.raises(DuplicateLogs, match="one-0"):
        LogManager(kept.disk, PATHS, lambda _topic: kept.settings.log, kept.clock.wall_ms)
    assert all(CLEAN_SHUTDOWN in kept.disk.names(path) for path in PATHS)


@pytest.mark.parametrize("lost", PATHS)
def test_a_log_that_was_made_while_another_directory_was_offline_counts(lost: str) -> None:
    """The lost directory has a replica of before, which was reassigned away and back while nothing could read it."""
    (other,) = (path for path in PATHS if path != lost)
    kept = Kept(paths=PATHS)

    def start(unusable: Sequence[str] = ()) -> LogManager:
        causes = {path: OSError("planted") for path in unusable}
        return LogManager(kept.disk, PATHS, lambda _topic: kept.settings.log, kept.clock.wall_ms, causes)

    kept.logs.prefer(KEY, lost)
    assert kept.logs.get_or_create(KEY).directory.startswith(lost)
    kept.logs.close()
    one_lost = start([lost])
    one_lost.get_or_create(KEY).append_as_leader(batch(), 1)
    one_lost.close()
    whole = start()
    found = whole.directory_of(*KEY)
    assert found is not None
    assert found.path == other
    assert found.logs[KEY].log_end_offset == 1
    assert [name.rpartition("-")[2] for name in kept.disk.names(lost) if name.startswith("t-0")] == ["stray"]
    whole.close()
    kept.disk.make_directory(f"{lost}/t-0")  # by hand: nothing says which of them counts
    with pytest.raises(DuplicateLogs, match="t-0"):
        start()


def test_a_directory_that_fails_at_the_end_of_opening_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the swarm: the broker did not start, although its other directory could serve."""
    kept = Kept(paths=PATHS)
    kept.logs.directories[0].note_made((KEY,))
    kept.logs.close()
    replace = MemoryDisk.replace

    def failing(disk: MemoryDisk, path: str, data: bytes) -> None:
        if path == f"{PATHS[0]}/{MADE}":
            raise OSError("planted")
        replace(disk, path, data)

    monkeypatch.setattr(MemoryDisk, "replace", failing)
    logs = LogManager(kept.disk, PATHS, lambda _topic: kept.settings.log, kept.clock.wall_ms)
    assert [one.health.cause is None for one in logs.directories] == [False, True]
    assert [note.level for note in opening_notes(logs)] == ["info", "error"]
    assert logs.get_or_create(("another", 0), is_new=True).directory.startswith(PATHS[1])
