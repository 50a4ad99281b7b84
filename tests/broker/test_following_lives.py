"""Followers through leader changes, zombies, kills and power cuts: logs are their leaders', and nothing committed is
lost; and faults planted in the follower, each of which some course of events must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.broker.fetcher import Fetcher, ReplicaFetcherManager
from controller.broker.fetcher_state import FetchedPartition, FetcherQueue, FollowerLogs, Truncation, truncation
from controller.broker.partition import Partition
from controller.storage import EpochEnd, PartitionLog
from controller.storage.checkpoints import LeaderEpochs
from tests.broker.following_steps import HOW_MUCH, STEPS, Step, drawn, play

SEEDS = range(40)
ON_FETCH, BEFORE_FETCH = "2.8", "2.6"
"""Inter-broker protocols: where logs part is told with an answer to a fetch, or asked before the first one."""

steps = st.lists(
    st.tuples(st.sampled_from([*STEPS, "append", "append", "tell"]), st.integers(0, 2), st.integers(0, HOW_MUCH)),
    max_size=50,
)


@pytest.mark.parametrize("protocol", [ON_FETCH, BEFORE_FETCH])
@given(course=steps)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_befalls_them_logs_become_their_leaders_and_keep_what_was_committed(
    protocol: str, course: list[Step]
) -> None:
    play(course, protocol)


@pytest.mark.parametrize("protocol", [ON_FETCH, BEFORE_FETCH])
def test_long_courses_of_events_too(protocol: str) -> None:
    truncated = 0
    for seed in SEEDS:
        cluster = play(drawn(seed), protocol)
        truncated += sum("truncated" in note for one in cluster.replicas.values() for note in one.trace.notes("info"))
    assert truncated > 5, "or nothing was shown"


def test_two_replicas_of_which_one_is_cut_off_again_and_again() -> None:
    for seed in range(10):
        play(drawn(seed), ON_FETCH, size=2)


# Faults

Plant = Callable[[pytest.MonkeyPatch], None]


def truncation_is_skipped(patch: pytest.MonkeyPatch) -> None:
    def agree(_: FollowerLogs, followed: FetchedPartition, leader: EpochEnd) -> None:
        followed.agreed = True

    patch.setattr(FollowerLogs, "agree", agree)


def truncation_is_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def to_high_watermark(own: LeaderEpochs, log_end: int, high_watermark: int, leader: EpochEnd) -> Truncation:
        return Truncation(min(high_watermark, log_end), agreed=True)

    patch.setattr("controller.broker.fetcher_state.truncation", to_high_watermark)


def every_follower_begins_at_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: a member of the ISR that has everything and does not know yet that it is committed."""
    begun = ReplicaFetcherManager._begun

    def cut_first(self: ReplicaFetcherManager, partition: Partition, log: PartitionLog) -> FetchedPartition | None:
        followed = begun(self, partition, log)
        assert followed is not None
        self._logs.cut(followed, max(partition.high_watermark, log.log_start_offset), "planted")
        return followed

    patch.setattr(ReplicaFetcherManager, "_begun", cut_first)


def an_epoch_that_was_never_here_is_taken_for_agreement(patch: pytest.MonkeyPatch) -> None:
    """KIP-279."""

    def at_once(own: LeaderEpochs, log_end: int, high_watermark: int, leader: EpochEnd) -> Truncation:
        found = truncation(own, log_end, high_watermark, leader)
        return found if found.agreed else Truncation(min(leader.end_offset, log_end), agreed=True)

    patch.setattr("controller.broker.fetcher_state.truncation", at_once)


def answers_are_taken_whoever_leads_by_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetcherQueue, "asked", lambda self, key: self._followed.get(key))


def what_is_left_is_followed_still(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fetcher, "remove", lambda *_: None)


def the_high_watermark_is_one_too_far(patch: pytest.MonkeyPatch) -> None:
    move = FollowerLogs._move_high_watermark
    patch.setattr(FollowerLogs, "_move_high_watermark", lambda self, followed, at: move(self, followed, at + 1))


def the_last_epoch_is_not_told(patch: pytest.MonkeyPatch) -> None:
    question = FetchedPartition.question

    def without_epoch(self: FetchedPartition, max_bytes: int, sends_epoch: bool) -> object:
        return replace(question(self, max_bytes, sends_epoch), last_fetched_epoch=-1)

    patch.setattr(FetchedPartition, "question", without_epoch)


def an_epoch_without_records_is_kept(patch: pytest.MonkeyPatch) -> None:
    truncate_to = PartitionLog.truncate_to

    def without_the_end(self: PartitionLog, offset: int) -> bool:
        return offset < self.log_end_offset and truncate_to(self, offset)

    patch.setattr(PartitionLog, "truncate_to", without_the_end)


@pytest.mark.parametrize(
    ("plant", "protocol", "likely"),
    [
        (truncation_is_skipped, ON_FETCH, 3),
        (truncation_is_skipped, BEFORE_FETCH, 14),
        (truncation_is_to_the_high_watermark, ON_FETCH, 84),
        (truncation_is_to_the_high_watermark, BEFORE_FETCH, 21),
        (every_follower_begins_at_its_high_watermark, ON_FETCH, 1),
        (an_epoch_that_was_never_here_is_taken_for_agreement, BEFORE_FETCH, 75),
        (answers_are_taken_whoever_leads_by_now, ON_FETCH, 29),
        (what_is_left_is_followed_still, ON_FETCH, 12),
        (the_high_watermark_is_one_too_far, ON_FETCH, 243),
        (the_last_epoch_is_not_told, ON_FETCH, 0),
        (an_epoch_without_records_is_kept, ON_FETCH, 5),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_fault_is_found(plant: Plant, protocol: str, likely: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`likely`: the seed that found it when last looked for; any will do."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play_all((likely, *range(400)), protocol)


def play_all(seeds: Iterable[int], protocol: str) -> None:
    for seed in seeds:
        play(drawn(seed), protocol)
