"""Faults planted where records are written, replicated, committed and recovered; for `tests.simulator.planted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from controller.broker.partition import LeaderState, Live
from controller.broker.records.writes import DelayedProduce
from controller.storage import PartitionLog
from tests.broker import test_following_lives as following
from tests.broker.test_produce import AnsweredTooEarly
from tests.storage import test_lives as storage

Patch = pytest.MonkeyPatch


def high_watermark_one_too_far(patch: Patch) -> None:
    """A leader takes for committed what one of its ISR may not have."""
    right = LeaderState.high_watermark

    def one_too_far(self: LeaderState, log_end: int, now_ms: float, lag_max_ms: float, live: Live) -> int:
        return min(right(self, log_end, now_ms, lag_max_ms, live) + 1, log_end)

    patch.setattr(LeaderState, "high_watermark", one_too_far)


def leader_waits_for_nobody(patch: Patch) -> None:
    patch.setattr(LeaderState, "high_watermark", lambda self, log_end, *_: log_end)


def acknowledged_before_replication(patch: Patch) -> None:
    """acks=all is answered when the leader has it."""
    patch.setattr("controller.broker.records.writes.Replication", AnsweredTooEarly)


def produce_never_completed(patch: Patch) -> None:
    """Its time-out alone ends it (S58)."""
    patch.setattr(DelayedProduce, "try_complete", lambda self: False)


def duplicate_accepted(patch: Patch) -> None:
    """An idempotent producer's batch that is sent again is written again."""
    patch.setattr("controller.storage.producer_states.ProducerStates.duplicate_of", lambda self, header: None)
    patch.setattr("controller.storage.producer_states.ProducerStates.check_all", lambda self, headers: None)


def isr_shrunk_without_the_controller(patch: Patch) -> None:
    """Who is behind is waited for no more, and may be elected still."""
    right = LeaderState.high_watermark

    def shrunk(self: LeaderState, log_end: int, now_ms: float, lag_max_ms: float, live: Live) -> int:
        behind = self.behind(log_end, now_ms, lag_max_ms)
        self.isr = tuple(one for one in self.isr if one not in behind)
        return right(self, log_end, now_ms, lag_max_ms, live)

    patch.setattr(LeaderState, "high_watermark", shrunk)


def consumers_read_to_the_end(patch: Patch) -> None:
    """Beyond the high watermark."""
    right = PartitionLog.read

    def without_limit(
        self: PartitionLog, offset: int, max_bytes: int, up_to: Any = None, *, whole_first_batch: bool = True
    ) -> Any:
        return right(self, offset, max_bytes, whole_first_batch=whole_first_batch)

    patch.setattr(PartitionLog, "read", without_limit)


RECORD_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "high-watermark-one-too-far": high_watermark_one_too_far,
    "leader-waits-for-nobody": leader_waits_for_nobody,
    "acknowledged-before-replication": acknowledged_before_replication,
    "produce-never-completed": produce_never_completed,
    "duplicate-accepted": duplicate_accepted,
    "isr-shrunk-without-the-controller": isr_shrunk_without_the_controller,
    "consumers-read-to-the-end": consumers_read_to_the_end,
    "truncation-skipped": following.truncation_is_skipped,
    "truncated-to-the-high-watermark": following.every_follower_begins_at_its_high_watermark,
    "answers-of-former-leaders-taken": following.answers_are_taken_whoever_leads_by_now,
    "last-epoch-not-told": following.the_last_epoch_is_not_told,
    "crc-not-checked": storage.crc_not_checked,
    "recovery-point-ahead-of-the-flush": storage.recovery_point_ahead_of_the_flush,
}
