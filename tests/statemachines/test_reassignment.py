"""Where a reassignment goes, what may be asked for, and how many may be on their way at once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.reassignment import (
    Assignment,
    ReassignmentLimits,
    admitted,
    is_in_sync,
    kept_on_the_way,
    strands,
    target_fault,
)

BROKERS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(tuple)


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        # What a 2.8.2 cluster was recorded doing.
        (Assignment((2, 3)), (3, 1), Assignment((3, 1, 2), (1,), (2,))),
        (Assignment((1, 2)), (1, 2, 3), Assignment((1, 2, 3), (3,))),
        # An order alone, fewer replicas, nothing at all.
        (Assignment((1, 2)), (2, 1), Assignment((2, 1))),
        (Assignment((1, 2, 3)), (3,), Assignment((3, 1, 2), (), (1, 2))),
        (Assignment((1, 2)), (1, 2), Assignment((1, 2))),
        # Another target on the way, and the way back.
        (Assignment((3, 1, 2), (1,), (2,)), (4, 3), Assignment((4, 3, 2), (4,), (2,))),
        (Assignment((3, 1, 2), (1,), (2,)), (3, 2), Assignment((3, 2))),
    ],
)
def test_the_way_to_a_target_is_kafkas(before: Assignment, target: tuple[int, ...], after: Assignment) -> None:
    assert before.toward(target) == after


@given(BROKERS, BROKERS, BROKERS)
def test_an_override_forgets_the_target_before_and_keeps_the_origin(
    origin: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    start = Assignment(origin)
    moved = start.toward(first)
    assert set(moved.origin) == set(origin)
    assert moved.target == first
    assert moved.reached() == Assignment(first)
    over = moved.toward(second)
    assert over.target == second
    assert set(over.origin) == set(origin)
    back = over.toward(over.origin)
    assert not back.is_moving
    assert set(back.replicas) == set(origin)


@pytest.mark.parametrize(
    ("before", "target", "kept"),
    [
        (Assignment((3, 1, 2), (1,), (2,)), (3, 4), Assignment((3, 2), (), (2,))),
        (Assignment((3, 2), (3,), (2,)), (1,), Assignment((2,))),
        (Assignment((3, 4, 2), (3, 4), (2,)), (4, 1), Assignment((4, 2), (4,), (2,))),
        (Assignment((3, 1, 2), (1,), (2,)), (2, 3), Assignment((3, 2), (), (2,))),
        (Assignment((3, 1, 2), (1,), (2,)), (1, 3, 4), Assignment((3, 1, 2), (1,), (2,))),
        (Assignment((2, 3)), (1,), Assignment((2, 3))),
    ],
)
def test_what_another_target_needs_no_more_is_left_out_before_anything_is_added(
    before: Assignment, target: tuple[int, ...], kept: Assignment
) -> None:
    assert kept_on_the_way(before, before.toward(target)) == kept


@given(BROKERS, BROKERS, BROKERS)
def test_what_is_kept_on_the_way_is_within_both(
    origin: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    before = Assignment(origin).toward(first)
    after = before.toward(second)
    kept = kept_on_the_way(before, after)
    assert set(kept.replicas) == set(before.replicas) & set(after.replicas)
    assert set(kept.origin) == set(origin)


@pytest.mark.parametrize(
    ("target", "live", "fault"),
    [
        ((3, 1), (1, 2, 3), None),
        ((3, 9), None, None),  # the znode's way: it may come
        ((), (1, 2, 3), "Empty replica list"),
        ((3, 3), (1, 2, 3), "Duplicate replica ids"),
        ((3, -1), (1, 2, 3), "Invalid broker id"),
        ((3, 9), (1, 2, 3), r"not alive. Replica list: \[9\], live broker list: \[1, 2, 3\]"),
    ],
)
def test_what_may_be_asked_for(target: tuple[int, ...], live: tuple[int, ...] | None, fault: str | None) -> None:
    found = target_fault(target, Assignment((2, 3)), live)
    assert (found is None) if fault is None else (found is not None and re.search(fault, found)), found


def test_a_replica_that_is_one_already_need_not_live() -> None:
    assert target_fault((3, 2), Assignment((2, 3)), (1,)) is None


@pytest.mark.parametrize(
    ("isr", "assignment", "in_sync"),
    [
        ((2, 3), Assignment((3, 1, 2), (1,), (2,)), False),
        ((2, 3, 1), Assignment((3, 1, 2), (1,), (2,)), True),
        ((1, 3), Assignment((3, 1, 2), (1,), (2,)), True),
        ((2,), Assignment((2, 3)), True),  # not on its way: nothing to wait for
        ((1,), Assignment((3, 1, 2), (), (1, 2)), False),
    ],
)
def test_a_target_is_in_sync_when_all_of_it_is(isr: tuple[int, ...], assignment: Assignment, in_sync: bool) -> None:
    assert is_in_sync(isr, assignment) is in_sync


def test_what_stops_everybody_in_sync_strands_the_partition() -> None:
    on_its_way = Assignment((3, 1, 2), (3, 1), (2,))
    assert strands((3,), on_its_way.toward((2,)))
    assert not strands((3, 2), on_its_way.toward((2,)))
    assert not strands((), on_its_way.toward((2,)))


def test_limits_hold_by_cluster_and_by_broker_and_a_busy_broker_holds_up_no_other() -> None:
    def to(broker: int) -> Assignment:
        return Assignment((0,)).toward((broker,))

    wanted = [to(1), to(1), to(2), to(3), Assignment((0, 1)).toward((1, 0))]
    assert admitted([], wanted, ReassignmentLimits()) == [True] * 5
    assert admitted([], wanted, ReassignmentLimits(in_cluster=2)) == [True, True, False, False, True]
    assert admitted([to(3)], wanted, ReassignmentLimits(in_cluster=2)) == [True, False, False, False, True]
    assert admitted([], wanted, ReassignmentLimits(on_broker=1)) == [True, False, True, True, True]
    assert admitted([to(1)], wanted, ReassignmentLimits(in_cluster=3, on_broker=1)) == [False, False, True, True, True]


def test_what_is_on_its_way_stays_as_it_is_written_where_nothing_is_unneeded() -> None:
    """A znode that Kafka wrote may name the replicas in another order than ours would."""
    before = Assignment((2, 3), adding=(3,), removing=(2,))
    assert kept_on_the_way(before, before.toward((3, 4))) is before
    assert kept_on_the_way(before, before.toward((4,))) == Assignment((2,))
