"""Faults planted in logs on two tiers; for `tests.simulator.planted`, which gives every seed tiers for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from controller.broker import tier_maintenance
from controller.broker.broker import DataPlane
from controller.broker.replica_manager import ReplicaManager
from controller.broker.request_context import Steps
from controller.broker.transactions.coordinator import Partition, TransactionCoordinator
from controller.broker.transactions.transaction import TransactionMetadata
from controller.protocol.control import LeaderAndIsrRequest
from controller.storage import PartitionLog, tiered_log
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


def broker_epoch_checked_before_the_disk_alone(patch: Patch) -> None:
    """A LeaderAndIsr that waited for its logs is applied, though the broker has registered anew."""
    right = ReplicaManager.become_leader_or_follower

    def whatever_came(self: ReplicaManager, request: LeaderAndIsrRequest, refused: object) -> Steps:
        return (yield from right(self, request))

    patch.setattr(ReplicaManager, "become_leader_or_follower", whatever_came)


def timeouts_by_the_wall_clock(patch: Patch) -> None:
    """A transaction that began on a broker whose clock was ahead waits for that time, as in Kafka."""

    def expect_end(self: TransactionCoordinator, partition: Partition, transaction: TransactionMetadata) -> None:
        if transaction.timeout is None:
            left_ms = transaction.start_ms + transaction.timeout_ms - self._clock.wall_ms()
            timed_out = partial(self._timed_out, partition, transaction)
            transaction.timeout = self._clock.call_later(max(left_ms, 0) + 1, timed_out)

    patch.setattr(TransactionCoordinator, "_expect_end", expect_end)


def empty_segment_goes_first(patch: Patch) -> None:
    """Before the one that takes its place is in the list; the removal may fail."""

    def roll_files(self: PartitionLog, base_offset: int) -> None:
        sealed = self._active
        if sealed.size_bytes:
            right(self, base_offset)
            return
        begun = self._begin(base_offset, self._now_ms())
        self._remove(self._segments.pop())
        self._segments.append(begun)
        self._new_names = True

    right = PartitionLog._roll_files
    patch.setattr(PartitionLog, "_roll_files", roll_files)
    patch.setattr(TieredLog, "_remove", TieredLog._remove_files)


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
    "broker-epoch-checked-before-the-disk-alone": broker_epoch_checked_before_the_disk_alone,
    "timeouts-by-the-wall-clock": timeouts_by_the_wall_clock,
    "empty-segment-goes-first": empty_segment_goes_first,
}
