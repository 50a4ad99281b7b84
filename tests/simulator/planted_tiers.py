"""Faults planted in logs on two tiers; for `tests.simulator.planted`, which gives every seed tiers for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from controller.broker import tier_maintenance
from controller.broker.broker import DataPlane
from controller.storage import tiered_log
from controller.storage.segment import Segment
from controller.storage.tiered_log import TieredLog
from statemachines.log_segment import ON_SSD, Active, Cached, OnlyCache, SegmentState
from statemachines.tier_placement import CopyBudget
from tests.storage import test_tiered_lives as storage

Patch = pytest.MonkeyPatch


def _evicts(patch: Patch, states: frozenset[SegmentState]) -> None:
    def evict(log: TieredLog, segment: Segment) -> bool:
        if segment.state in ON_SSD:
            segment.state = SegmentState.WithoutCache
            for suffix in tiered_log.EVICTED:
                log._disk.remove(segment.path_of(suffix))
        return True

    def chosen(segments: list[Segment], used_bytes: int, threshold_bytes: int, _: int) -> list[Segment]:
        return [one for one in segments if one.state in states] if used_bytes > threshold_bytes else []

    patch.setattr(TieredLog, "evict", evict)
    patch.setattr(tier_maintenance, "to_evict", chosen)


def evicts_what_is_on_the_ssd_alone(patch: Patch) -> None:
    _evicts(patch, frozenset((OnlyCache, Cached)))


def evicts_the_active_segment(patch: Patch) -> None:
    _evicts(patch, frozenset((Active,)))


def serves_after_a_lost_ssd(patch: Patch) -> None:
    patch.setattr(DataPlane, "_directory_failed", lambda *_: None)


def throttle_ignored(patch: Patch) -> None:
    """No seed of the swarm looks at a rate: `tests/simulator/test_tiers.py` does."""
    patch.setattr(CopyBudget, "wait_ms", lambda *_: 0.0)


def full_ssd_stays_full(patch: Patch) -> None:
    """What was refused does not count as used, and active segments are sealed by appends alone."""
    patch.setattr("controller.storage.tiers.SsdSpace.wanted", lambda _: 0)
    patch.setattr(tier_maintenance, "to_seal", lambda *_: [])


TIER_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "tiers-evict-what-the-ssd-alone-has": evicts_what_is_on_the_ssd_alone,
    "tiers-evict-the-active-segment": evicts_the_active_segment,
    "tiers-mark-before-the-sync": storage.marks_before_the_copy_is_synced,
    "tiers-serve-after-a-lost-ssd": serves_after_a_lost_ssd,
    "tiers-write-back-on-a-read": storage.writes_back_on_a_read,
    "tiers-forget-the-indexes": storage.forgets_the_indexes,
    "tiers-copy-overtakes-a-truncation": storage.a_copy_overtakes_a_truncation,
    "tiers-throttle-ignored": throttle_ignored,
    "tiers-a-full-ssd-stays-full": full_ssd_stays_full,
}
