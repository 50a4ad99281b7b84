"""A log directory: its partitions, its checkpoints, and what outlives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.storage import LogDirectory, LogOffline, LogSettings, headers_of
from controller.storage.directory import partition_of
from controller.storage.disk_files import FileDisk
from tests.storage.batches import Clock, batch

ONE, OTHER = ("one", 0), ("other-topic", 12)
TOPIC_ID = bytes(range(16))


def opened(path: Path, settings: LogSettings | None = None) -> LogDirectory:
    directory = LogDirectory(FileDisk(), str(path), lambda _: settings or LogSettings(), Clock())
    assert directory.health.cause is None
    return directory


@pytest.mark.parametrize("clean", [True, False])
def test_partitions_are_there_again_after_a_restart(tmp_path: Path, clean: bool) -> None:
    directory = opened(tmp_path)
    directory.create(ONE, TOPIC_ID).append_as_leader(batch(3), 4)
    directory.create(OTHER)
    directory.write_high_watermarks({ONE: 2})
    directory.close() if clean else directory.unlock()
    directory = opened(tmp_path)
    assert directory.was_clean is clean
    assert sorted(directory.logs) == [ONE, OTHER]
    log = directory.logs[ONE]
    assert (log.log_end_offset, log.topic_id, log.epochs.latest) == (3, TOPIC_ID, 4)
    assert directory.high_watermarks == {ONE: 2}
    assert directory.create(ONE) is log


def test_a_deleted_partition_leaves_nothing_to_its_next_life(tmp_path: Path) -> None:
    directory = opened(tmp_path, LogSettings(segment_bytes=200))
    log = directory.create(ONE, TOPIC_ID)
    for _ in range(9):
        log.append_as_leader(batch(), 0)
    log.flush()
    log.delete_records_before(8, 9)
    directory.write_high_watermarks({ONE: 9})
    directory.checkpoint_recovery_points()
    directory.checkpoint_log_start_offsets()
    directory.delete(ONE)
    with pytest.raises(LogOffline, match="deleted"):
        log.read(8, 100)
    again = directory.create(ONE)
    assert (again.log_start_offset, again.log_end_offset, again.topic_id) == (0, 0, bytes(16))
    assert directory.purge_deleted() == 1
    directory.unlock()
    directory = opened(tmp_path)
    assert directory.logs[ONE].log_end_offset == 0
    assert directory.high_watermarks == {}


def test_the_start_after_deleted_records_outlives_a_crash_once_it_is_checkpointed(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.create(ONE)
    log.append_as_leader(batch(9), 0)
    log.delete_records_before(5, 9)
    directory.checkpoint_log_start_offsets()
    directory.unlock()
    assert opened(tmp_path).logs[ONE].log_start_offset == 5


@pytest.mark.parametrize(
    ("clean", "start", "left", "said"),
    [
        (True, "40", (0, 9), "log start offset 40 is above the log's end 9, and is ignored"),
        (False, "40", (40, 40), "log start offset 40 is above the log's end 9; the offsets 0 to 9 are removed"),
        (
            True,
            str(2**63 - 1),
            (0, 9),
            "at most 9223372034707292160; the logs begin with their first segments",
        ),
        (
            False,
            str(2**63 - 1),
            (0, 9),
            "at most 9223372034707292160; the logs begin with their first segments",
        ),
    ],
)
def test_a_log_start_offset_above_the_end_is_logged_and_removes_nothing_that_was_closed_cleanly(
    tmp_path: Path, clean: bool, start: str, left: tuple[int, int], said: str
) -> None:
    directory = opened(tmp_path)
    directory.create(ONE).append_as_leader(batch(9), 0)
    directory.close() if clean else directory.unlock()
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\none 0 {start}\n")
    directory = opened(tmp_path)
    log = directory.logs[ONE]
    assert (log.log_start_offset, log.log_end_offset) == left
    assert [one for one in directory.health.warnings if said in one]
    log.append_as_leader(batch(2), 0)
    directory.close()
    assert opened(tmp_path).logs[ONE].log_end_offset == left[1] + 2


@pytest.mark.parametrize("is_link", [False, True])
def test_a_start_leaves_no_mark_of_a_clean_shutdown(tmp_path: Path, is_link: bool) -> None:
    """Neither where the recovery points can't be read nor where the mark is a link to nothing."""
    directory = opened(tmp_path)
    directory.create(ONE).append_as_leader(batch(9), 0)
    directory.close()
    mark, points = tmp_path / ".kafka_cleanshutdown", tmp_path / "recovery-point-offset-checkpoint"
    if is_link:
        mark.unlink()
        mark.symlink_to("nowhere")
    else:
        points.write_text("0\n1\none 0 x\n")
    directory = opened(tmp_path)
    assert directory.was_clean is is_link
    directory.checkpoint_recovery_points()
    directory.unlock()  # as a crash leaves it
    assert not opened(tmp_path).was_clean


def test_a_link_to_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create(ONE).append_as_leader(batch(9), 0)
    directory.close()
    points = tmp_path / "recovery-point-offset-checkpoint"
    points.unlink()
    points.symlink_to("nowhere")
    directory = opened(tmp_path)
    assert not directory.was_clean
    assert [one for one in directory.health.warnings if f"{points} is a link to a file that does not exist" in one]
    directory.close()
    assert not points.is_symlink()


def test_leader_epochs_that_are_missing_after_a_clean_shutdown_are_logged(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.create(ONE).append_as_leader(batch(9), 4)
    directory.create(OTHER)
    directory.close()
    path = tmp_path / "one-0" / "leader-epoch-checkpoint"
    path.unlink()
    directory = opened(tmp_path)
    assert directory.logs[ONE].epochs.latest == 4
    assert directory.health.warnings == [f"{path} is missing; the leader epochs are read from the batches"]


def test_upkeep_over_all_logs(tmp_path: Path) -> None:
    directory = opened(tmp_path, LogSettings(segment_bytes=200, retention_bytes=0, flush_ms=100))
    for one in (ONE, OTHER):
        for _ in range(5):
            directory.create(one).append_as_leader(batch(), 0)
    now_ms = Clock().now_ms
    assert directory.flush_due(now_ms + 99) == []
    due = directory.flush_due(now_ms + 100)
    assert len(due) == 2
    for log in due:
        log.flush()
    assert directory.flush_due(now_ms + 500) == []
    assert directory.apply_retention({ONE: 5, ("gone", 1): 3}) == 3
    assert directory.logs[ONE].log_start_offset == directory.logs[ONE].log_end_offset == 5
    assert headers_of(directory.logs[OTHER].read(0, 1).read())[0].base_offset == 0


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("topic-0", ("topic", 0)),
        ("a-b-17", ("a-b", 17)),
        ("topic", None),
        ("-3", None),
        ("topic-0.00ff-delete", None),
        ("topic-0.00ff-future", None),
        ("meta.properties", None),
    ],
)
def test_which_names_are_partitions(name: str, partition: tuple[str, int] | None) -> None:
    assert partition_of(name) == partition
