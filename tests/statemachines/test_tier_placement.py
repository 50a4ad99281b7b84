"""The rules that place a log's segments on an SSD and HDDs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.log_segment import ON_SSD, SEGMENT, SegmentState
from statemachines.tier_placement import (
    CopyBudget,
    CopyRate,
    FlushReason,
    Tier,
    admits,
    append_tier,
    flush_reason,
    least_used,
    next_to_copy,
    read_tier,
    to_evict,
    to_seal,
)

MIB = 1 << 20


@dataclass(frozen=True)
class Placed:
    state: SegmentState
    size_bytes: int
    sealed_ms: int


PLACED = st.lists(st.builds(Placed, st.sampled_from(SegmentState), st.integers(0, 1000), st.integers(0, 50)))


@given(PLACED)
def test_the_oldest_sealed_segment_without_a_copy_is_copied_next(segments: list[Placed]) -> None:
    waiting = [one for one in segments if one.state is SegmentState.OnlyCache]
    chosen = next_to_copy(segments)
    assert (chosen is None) == (not waiting)
    if chosen is not None:
        assert chosen.state is SegmentState.OnlyCache
        assert chosen.sealed_ms == min(one.sealed_ms for one in waiting)


@given(PLACED, st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_eviction_takes_the_oldest_copied_segments_and_no_others(
    segments: list[Placed], used: int, one_limit: int, other_limit: int
) -> None:
    target, threshold = sorted((one_limit, other_limit))
    chosen = to_evict(segments, used, threshold, target)
    assert all(one.state is SegmentState.Cached for one in chosen)
    if used <= threshold:
        assert chosen == []
        return
    left = used - sum(one.size_bytes for one in chosen)
    kept = [one for one in segments if one.state is SegmentState.Cached and not any(one is other for other in chosen)]
    assert left <= target or not kept
    # None too many: without the last one the use would still be above the target.
    assert not chosen or left + chosen[-1].size_bytes > target
    for one in kept:
        assert all(other.sealed_ms <= one.sealed_ms for other in chosen)


@given(PLACED, st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_the_largest_active_segments_are_sealed_where_nothing_else_will_leave_the_ssd(
    segments: list[Placed], used: int, one_limit: int, other_limit: int
) -> None:
    target, threshold = sorted((one_limit, other_limit))
    chosen = to_seal(segments, used, threshold, target)
    assert all(one.state is SegmentState.Active and one.size_bytes for one in chosen)
    if used <= threshold:
        assert chosen == []
        return
    leaving = sum(one.size_bytes for one in segments if one.state in ON_SSD - {SegmentState.Active})
    left = used - leaving - sum(one.size_bytes for one in chosen)
    kept = [one for one in segments if one.state is SegmentState.Active and not any(one is other for other in chosen)]
    assert left <= target or not any(one.size_bytes for one in kept)
    assert not chosen or left + chosen[-1].size_bytes > target
    assert all(one.size_bytes <= other.size_bytes for one in kept for other in chosen)


def test_an_eviction_target_above_its_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="the target must not be above the threshold, 5 bytes, got 6"):
        to_evict([], 0, 5, 6)


def test_leaders_append_to_the_ssd_and_followers_where_their_topic_says() -> None:
    assert [append_tier(is_leader, on) for is_leader in (True, False) for on in Tier] == [
        *(Tier.SSD, Tier.SSD),
        *(Tier.SSD, Tier.HDD),
    ]


def test_a_segment_is_read_from_the_ssd_as_long_as_that_has_it() -> None:
    assert {state for state in SegmentState if read_tier(state) is Tier.SSD} == ON_SSD
    assert {state.name for state in SegmentState if read_tier(state) is Tier.HDD} == {"WithoutCache", "ActiveOnHdd"}


def test_only_a_copied_segment_can_leave_the_ssd() -> None:
    sources = SEGMENT.valid_sources(SegmentState.WithoutCache) & ON_SSD
    assert sources == {SegmentState.Cached}
    assert SEGMENT.valid_sources(SegmentState.Cached) == {SegmentState.Copying}


def test_a_segment_on_an_hdd_never_comes_back_to_the_ssd() -> None:
    for state in ON_SSD:
        assert not SEGMENT.valid_sources(state) & {SegmentState.WithoutCache, SegmentState.ActiveOnHdd}


def test_the_hdd_with_the_fewest_bytes_takes_the_next_copies() -> None:
    assert least_used([5, 3, 1], [True, True, False]) == 1
    assert least_used([5], [False]) is None


def test_an_append_that_would_touch_the_reserve_is_refused() -> None:
    assert admits(100, 40, 60)
    assert not admits(100, 41, 60)


def test_a_slow_produce_halves_the_copy_rate_and_a_fast_one_raises_it_to_its_limits() -> None:
    rate = CopyRate(100 * MIB, MIB, 200 * MIB, produce_p99_limit_ms=20, urgent_use=0.9)
    assert rate.after(21, 0.5).rate == 50 * MIB
    assert rate.after(20, 0.5).rate > 100 * MIB
    slow, fast = rate, rate
    for _ in range(50):
        slow, fast = slow.after(1000, 0.5), fast.after(1, 0.5)
    assert (slow.rate, fast.rate) == (MIB, 200 * MIB)


def test_an_ssd_that_fills_up_takes_precedence_over_the_latency() -> None:
    rate = CopyRate(100 * MIB, MIB, 200 * MIB, produce_p99_limit_ms=20, urgent_use=0.9)
    assert rate.after(1000, 0.9).rate > rate.rate


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_a_fixed_rate_stays(latency_ms: float, use: float) -> None:
    fixed = CopyRate(5.0, 5.0, 5.0, produce_p99_limit_ms=1)
    assert fixed.after(latency_ms, use).rate == 5.0


def test_rates_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="0 < least <= rate <= most, got 2, 1, 3"):
        CopyRate(1, 2, 3)


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(1, 300_000)), max_size=60))
def test_a_budget_never_exceeds_its_rate_but_for_one_burst_and_one_piece(pieces: list[tuple[float, int]]) -> None:
    rate, now_ms, copied = 1_000_000.0, 0.0, 0
    budget = CopyBudget(0.0)
    for wait_ms, size in pieces:
        now_ms += wait_ms
        budget = budget.earned(now_ms, rate)
        if budget.wait_ms(rate) == 0:
            budget, copied = budget.spent(size), copied + size
        assert copied <= rate * now_ms / 1000 + 300_000 + 1


def test_the_wait_for_the_next_piece_is_what_the_last_one_was_too_large() -> None:
    budget = CopyBudget(0.0).earned(0.0, 1000.0).spent(500)
    assert budget.wait_ms(1000.0) == 500.0
    assert budget.earned(500.0, 1000.0).wait_ms(1000.0) == 0.0


def test_a_log_is_flushed_by_count_by_rate_or_by_time() -> None:
    assert flush_reason(0, 0, 10**9, 1, 0, 1) is None
    assert flush_reason(50_000, 10, 0, 50_000, 10**9, 10**9) is FlushReason.COUNT
    assert flush_reason(1, 2 * MIB, 0, 50_000, 10**9, 2 * MIB) is FlushReason.RATE
    assert flush_reason(1, 1, 1000, 50_000, 1000, 2 * MIB) is FlushReason.TIME
    assert flush_reason(1, 1, 999, 50_000, 1000, 2 * MIB) is None
