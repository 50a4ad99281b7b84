"""A log's life with power cuts, disk errors, truncations and retention against a model, seed by seed; and faults
planted in the log, each of which some seed must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.machine.disk import MemoryDisk, MemoryFile
from controller.storage import producer_states, recovery, segment
from controller.storage.checkpoints import LeaderEpochs
from controller.storage.errors import StorageError
from controller.storage.log import PartitionLog
from controller.storage.recovery import RecoveryVerdict
from controller.storage.segment import Segment
from controller.storage.sparse_index import SparseIndex
from tests.storage.life import run

SEEDS = range(120)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_with_power_cuts_keeps_what_was_flushed_and_invents_nothing(seed: int) -> None:
    run(seed)


def _nothing(*_: object, **__: object) -> None:
    """Instead of what a fault leaves out."""


Plant = Callable[[pytest.MonkeyPatch], None]


def crc_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment, "crc_holds", lambda *_: True)


def index_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SparseIndex, "cut_keys", _nothing)


def time_index_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SparseIndex, "cut_values", _nothing)


def recovery_point_ahead_of_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync", _nothing)


def names_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_sync_names", _nothing)


def epochs_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "truncate_from_end", _nothing)


def recovery_point_left_above_a_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_keep_before_cut", lambda *_: None)


def truncation_not_synced(patch: pytest.MonkeyPatch) -> None:
    sync = MemoryFile.sync

    def sync_appended_only(self: MemoryFile) -> None:
        if not self._inode.cut:
            sync(self)

    patch.setattr(MemoryFile, "sync", sync_appended_only)


def later_segments_survive_a_cut(patch: pytest.MonkeyPatch) -> None:
    def remove_none(segments: list[Segment], _tiers: object) -> None:
        del segments

    patch.setattr(recovery, "_remove", remove_none)


def every_loss_is_taken_for_a_torn_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync", _nothing)
    patch.setattr(
        recovery, "verdict_on", lambda _, damaged, __: RecoveryVerdict.CUT if damaged else RecoveryVerdict.SOUND
    )


def producers_not_rebuilt_after_a_truncation(patch: pytest.MonkeyPatch) -> None:
    restore = producer_states.restore
    states: list[object] = []

    def keep(*arguments: object) -> object:
        if not states:
            states.append(restore(*arguments))  # type: ignore[arg-type]
        return states[0]

    patch.setattr("controller.storage.log.restore", keep)


def flush_without_the_checkpoint_of_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "_write_epochs", _nothing)


PLANTS: tuple[Plant, ...] = (
    crc_not_checked,
    index_not_truncated,
    time_index_not_truncated,
    recovery_point_ahead_of_the_flush,
    names_not_synced,
    epochs_not_truncated,
    recovery_point_left_above_a_truncation,
    truncation_not_synced,
    later_segments_survive_a_cut,
    every_loss_is_taken_for_a_torn_tail,
    producers_not_rebuilt_after_a_truncation,
    flush_without_the_checkpoint_of_epochs,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: str(plant.__name__))
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError)):
        run_all()


def run_all() -> None:
    for seed in SEEDS:
        run(seed)


def test_a_failing_disk_fails_every_change_from_then_on() -> None:
    disk = MemoryDisk()
    file = disk.open("file")
    disk.fail_after = disk.changes
    with pytest.raises(OSError, match="failed"):
        file.append(b"x")
    with pytest.raises(OSError, match="failed"):
        file.sync()
    with pytest.raises(OSError, match="failed"):
        disk.replace("file", b"")
    with pytest.raises(OSError, match="failed"):
        disk.remove("file")
