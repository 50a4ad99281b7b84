"""The life of a log on two tiers against a model, seed by seed, and planted faults, each of which a seed finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.machine.disk import MemoryDisk, MemoryFile
from controller.storage import tiered_log, tiers
from controller.storage.segment import Segment
from controller.storage.tiered_log import TieredLog
from controller.storage.tiers import HddStore, LogTiers
from statemachines.log_segment import ON_SSD, SegmentState
from tests.storage import tiered_compacting, tiered_life
from tests.storage.tiered_life import run

SEEDS = range(50)
COMPACTED = (33, 37, 49, 66)
"""Each found a fault that lost records or left a second copy: see docs/tiered-log.md."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_on_two_tiers_keeps_every_record_whole_on_a_tier(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", COMPACTED)
def test_a_compacted_life_on_two_tiers_keeps_the_last_record_of_each_key(seed: int) -> None:
    assert tiered_compacting.run(seed) > 0


def _nothing(*_: object, **__: object) -> None:
    """Instead of what a fault leaves out."""


Plant = Callable[[pytest.MonkeyPatch], None]


def evicts_what_is_on_the_ssd_alone(patch: pytest.MonkeyPatch) -> None:
    def evict(log: TieredLog, segment: Segment) -> bool:
        if segment.state in ON_SSD:
            segment.state = SegmentState.WithoutCache
            for suffix in tiered_log.EVICTED:
                log._disk.remove(segment.path_of(suffix))
        return True

    patch.setattr(TieredLog, "evict", evict)
    patch.setattr(tiered_life, "to_evict", lambda segments, *_: [one for one in segments if one.state == 1])


def evicts_the_active_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiered_life, "to_evict", lambda segments, *_: [one for one in segments if one.state == 0])

    def evict(log: TieredLog, segment: Segment) -> bool:
        for suffix in tiered_log.EVICTED:
            log._disk.remove(segment.path_of(suffix))
        return True

    patch.setattr(TieredLog, "evict", evict)


class _UnsyncedFile(MemoryFile):
    def sync(self) -> None:
        """A power cut takes what was written."""


def marks_before_the_copy_is_synced(patch: pytest.MonkeyPatch) -> None:
    real = MemoryDisk.open

    def open_file(disk: MemoryDisk, path: str) -> MemoryFile:
        file = real(disk, path)
        return _UnsyncedFile(disk, file._inode, file._directory, path) if path.endswith(tiers.COPYING) else file

    patch.setattr(MemoryDisk, "open", open_file)


def writes_back_on_a_read(patch: pytest.MonkeyPatch) -> None:
    real = TieredLog.read

    def read(log: TieredLog, offset: int, *rest: object, **named: object) -> object:
        found = real(log, offset, *rest, **named)  # type: ignore[arg-type]
        for segment in log.segments:
            if segment.state is SegmentState.WithoutCache and segment.base_offset <= offset < segment.next_offset:
                log._disk.open(f"{log.directory}/{segment.base_offset:020d}.log").append(found.read())
        return found

    patch.setattr(TieredLog, "read", read)


def forgets_the_indexes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiered_log, "INDEX_SUFFIXES", ())


def a_copy_overtakes_a_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiered_log, "_go_on", _nothing)
    patch.setattr(LogTiers, "drop_copy", _nothing)


def places_are_not_noted_before_an_eviction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogTiers, "require", _nothing)


def a_removal_leaves_the_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogTiers, "remove_files", _nothing)


def the_ssd_is_not_durable_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    def flush_sealed(log: TieredLog) -> None:
        log.recovery_point = max(log.recovery_point, log.segments[-1].base_offset)

    patch.setattr(TieredLog, "flush_sealed", flush_sealed)


PLANTS: tuple[Plant, ...] = (
    evicts_what_is_on_the_ssd_alone,
    evicts_the_active_segment,
    marks_before_the_copy_is_synced,
    writes_back_on_a_read,
    forgets_the_indexes,
    a_copy_overtakes_a_truncation,
    places_are_not_noted_before_an_eviction,
    a_removal_leaves_the_copy,
    the_ssd_is_not_durable_before_the_copy,
)


def a_copy_outlives_a_compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogTiers, "before_replacing", _nothing)


def compacted_segments_are_sought_on_their_hdds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogTiers, "replaced", _nothing)


def compacted_segments_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogTiers, "remove_group", _nothing)


def an_hdd_that_comes_back_has_what_was_compacted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogTiers, "remove_replaced", _nothing)


def segments_move_while_they_are_cleaned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TieredLog, "is_being_cleaned", False)


def a_lost_hdd_does_not_end_a_cleaning(patch: pytest.MonkeyPatch) -> None:
    real = TieredLog.hdd_lost

    def hdd_lost(log: TieredLog, store: HddStore) -> bool:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(TieredLog, "end_cleaning", _nothing)
            return real(log, store)

    patch.setattr(TieredLog, "hdd_lost", hdd_lost)


@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (a_copy_outlives_a_compaction, range(3)),
        (compacted_segments_are_sought_on_their_hdds, range(3)),
        (compacted_segments_stay, range(3)),
        (an_hdd_that_comes_back_has_what_was_compacted, range(99, 102)),
        (segments_move_while_they_are_cleaned, range(7, 10)),
        (a_lost_hdd_does_not_end_a_cleaning, range(5, 8)),
    ],
)
def test_a_planted_fault_of_a_compaction_is_found(plant: Plant, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - of any kind: a check of the model's, or the log's own
        compact_all(seeds)


def compact_all(seeds: range) -> None:
    for seed in seeds:
        tiered_compacting.run(seed)


def run_all(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda one: one.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - of any kind: a check of the model's, or the log's own
        run_all(range(200))
