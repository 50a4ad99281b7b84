"""Column elections say row by row what the scalar rules say, refuse arrays that can't be meant, and the comparison
catches wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from statemachines import leader_election_columns as module
from statemachines.leader_election_columns import (
    ElectedColumns,
    elect_controlled_shutdown_columns,
    elect_offline_columns,
    initial_leader_columns,
    is_member,
    live_mask,
)
from tests.statemachines.election_check import (
    COLUMN_RULES,
    Case,
    CaseColumns,
    ColumnRule,
    as_columns,
    check_columns,
    padded,
    small_cases,
)
from tests.statemachines.election_strategies import BROKERS, cases


def check_small_columns(name: str, rule: ColumnRule) -> None:
    ordered = sorted(small_cases(name), key=lambda case: sorted(case.shutting_down))
    for _, together in groupby(ordered, key=lambda case: case.shutting_down):
        check_columns(name, rule, list(together))


@pytest.mark.parametrize("name", COLUMN_RULES)
def test_every_small_case_equals_the_scalar_rule(name: str) -> None:
    check_small_columns(name, COLUMN_RULES[name])


@pytest.mark.parametrize("name", COLUMN_RULES)
def test_blocks_are_put_together_in_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 7)
    check_small_columns(name, COLUMN_RULES[name])


@pytest.mark.parametrize("name", COLUMN_RULES)
@given(data=st.data())
def test_random_columns_equal_the_scalar_rule(name: str, data: st.DataObject) -> None:
    shutting_down = frozenset(data.draw(st.lists(st.sampled_from(BROKERS), unique=True)))
    rows = data.draw(st.lists(cases(shutting_down), max_size=12))
    check_columns(name, COLUMN_RULES[name], rows, padding=data.draw(st.integers(0, 2)))


@given(rows=st.lists(cases(), max_size=12))
def test_an_isr_member_outside_the_assignment_counts_as_dead_unless_said_otherwise(rows: list[Case]) -> None:
    def offline(c: CaseColumns) -> ElectedColumns:
        return elect_offline_columns(c.assignment, c.isr, c.live, c.unclean)

    within = [replace(case, live=case.live & set(case.assignment), shutting_down=frozenset()) for case in rows]
    check_columns("offline", offline, within)


def test_holes_and_padding_are_nobody_even_if_a_mask_calls_them_live() -> None:
    assignment = np.array([[-1, 4, -1], [-1, -1, -1]], dtype=np.int32)
    live = np.ones((2, 3), dtype=np.bool_)
    initial = initial_leader_columns(assignment, live)
    assert initial.leader.tolist() == [4, -1]
    assert initial.isr.tolist() == [[4, -1, -1], [-1, -1, -1]]
    offline = elect_offline_columns(assignment, assignment, live, unclean=True, isr_live=live)
    assert offline.leader.tolist() == [4, -1]
    assert offline.elected.tolist() == [True, False]


def test_unclean_election_may_be_allowed_for_some_rows_only() -> None:
    assignment = np.array([[1, 2], [1, 2], [1, 2]], dtype=np.int32)
    isr = np.array([[1, -1], [1, -1], [2, 1]], dtype=np.int32)
    live = live_mask(assignment, [2])
    answer = elect_offline_columns(assignment, isr, live, np.array([True, False, True]))
    assert answer.leader.tolist() == [2, -1, 2]
    assert answer.isr.tolist() == [[2, -1], [1, -1], [2, -1]]
    assert answer.unclean.tolist() == [True, False, False]


@pytest.mark.parametrize("name", COLUMN_RULES)
def test_arguments_are_left_as_they_were(name: str) -> None:
    (given_columns, before) = (as_columns([*small_cases("reassigned")], 1) for _ in range(2))
    COLUMN_RULES[name](given_columns)
    for field in ("assignment", "isr", "live", "isr_live", "unclean"):
        np.testing.assert_array_equal(getattr(given_columns, field), getattr(before, field))


IDS = np.array([[1, 2], [3, -1]], dtype=np.int32)
LIVE = np.array([[True, True], [True, False]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: initial_leader_columns(IDS, LIVE[:1]), r"live is bool\[2, 2\]"),
        (lambda: initial_leader_columns(IDS, LIVE.astype(np.int8)), "live is bool"),
        (lambda: initial_leader_columns(IDS.astype(np.int64), LIVE), "int64"),
        (lambda: initial_leader_columns(IDS[0], LIVE[0]), r"assignment is int32\[n, width\]"),
        (lambda: initial_leader_columns(IDS - 2, LIVE), "got -3"),
        (lambda: initial_leader_columns(np.array([[1, 2], [3, 3]], np.int32), LIVE), r"row 1 \[3, 3\]"),
        (lambda: elect_offline_columns(IDS, IDS[:1], LIVE), "assignment has 2 rows, isr 1"),
        (lambda: elect_offline_columns(IDS, IDS[0], LIVE), r"isr is int32\[n, width\]"),
        (lambda: elect_offline_columns(IDS, IDS, LIVE, isr_live=LIVE[:, :1]), r"isr_live is bool\[2, 2\]"),
        (lambda: elect_offline_columns(IDS, IDS, LIVE, np.array([True])), r"unclean is a bool or bool\[2\]"),
        (lambda: elect_controlled_shutdown_columns(IDS, IDS, LIVE[:1], [1]), "live is bool"),
        (lambda: live_mask(IDS - 2, [1]), "got -3"),
    ],
)
def test_arrays_that_cant_be_meant_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


ARRAYS = {
    "initial": ("assignment", "live"),
    "offline": ("assignment", "isr", "live", "isr_live", "unclean"),
    "reassigned": ("assignment", "isr", "live"),
    "preferred": ("assignment", "isr", "live"),
    "controlled shutdown": ("assignment", "isr", "live"),
}
"""The arrays that each rule takes."""


def _wrong(array: NDArray[np.generic]) -> list[NDArray[np.generic]]:
    """Arrays that a rule must refuse in place of this one."""
    other_rows = [array[:1], array[:0]]
    if array.dtype == np.bool_:
        return [*other_rows, array.astype(np.int32), *([array[:, :1], array[:, 0]] if array.ndim == 2 else [])]
    twice, below = array.copy(), array.copy()
    twice[1], below[1, 0] = 3, -2
    return [*other_rows, array[:, 0], array.astype(np.int64), array.astype(np.float64), twice, below]


@pytest.mark.parametrize("name", COLUMN_RULES)
def test_every_rule_refuses_each_of_its_arrays_that_does_not_fit(name: str) -> None:
    sound = as_columns([Case((1, 2), (1, 2), frozenset({1})), Case((3, 4), (4, 3), frozenset({4}), unclean=True)])
    COLUMN_RULES[name](sound)
    for field in ARRAYS[name]:
        for place, wrong in enumerate(_wrong(getattr(sound, field))):
            changed: dict[str, Any] = {field: wrong}
            with pytest.raises(ValueError, match=r"is bool|is a bool|is int32|rows|broker"):
                pytest.fail(f"{field}, {place}: {COLUMN_RULES[name](replace(sound, **changed))}")


def test_a_bad_row_keeps_its_number_whatever_block_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 2)
    assignment = padded([(1, 2), (2, 3), (3, 4), (5, 5)], 2)
    with pytest.raises(ValueError, match=r"assignment, row 3 \[5, 5\]"):
        initial_leader_columns(assignment, np.ones((4, 2), dtype=np.bool_))


@given(
    rows=st.lists(st.lists(st.one_of(st.just(-1), st.sampled_from(BROKERS)), min_size=3, max_size=3)),
    live=st.lists(st.sampled_from([-1, *BROKERS])),
    width=st.sampled_from([1, 3]),
)
@example(rows=[[4, 4, 4]], live=[4], width=1)
def test_liveness_by_broker_id(rows: list[list[int]], live: list[int], width: int) -> None:
    ids = np.array(rows, dtype=np.int32).reshape(-1, 3)[:, :width]
    expected = [[broker >= 0 and broker in live for broker in row] for row in ids.tolist()]
    assert live_mask(ids, live).tolist() == expected


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.sampled_from(BROKERS), unique=True, max_size=4),
            st.lists(st.sampled_from(BROKERS), unique=True, max_size=2),
        )
    )
)
def test_membership_row_by_row(rows: list[tuple[list[int], list[int]]]) -> None:
    values, sets = padded([one for one, _ in rows], 4), padded([other for _, other in rows], 2)
    expected = [[value >= 0 and value in other for value in row] for row, (_, other) in zip(values, rows, strict=True)]
    assert is_member(values, sets).tolist() == expected


def _isr_as_it_was(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    return replace(found, isr=c.isr)


def _leader_from_the_isr_order(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    return replace(found, leader=np.where(found.elected, found.isr[:, 0], found.leader))


def _isr_in_assignment_order(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    members = is_member(c.assignment, found.isr)
    return replace(found, isr=initial_leader_columns(c.assignment, members).isr)


def _isr_not_packed(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    return replace(found, isr=np.where(c.isr_live, c.isr, -1).astype(np.int32))


def _isr_emptied_where_nobody_leads(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    return replace(found, isr=np.where(found.elected[:, None], found.isr, -1).astype(np.int32))


def _unclean_unsaid(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    return replace(found, unclean=np.zeros_like(found.unclean))


def _padding_leads(found: ElectedColumns, c: CaseColumns) -> ElectedColumns:
    return replace(found, elected=np.ones_like(found.elected))


@pytest.mark.parametrize(
    "fault",
    [
        _isr_as_it_was,
        _leader_from_the_isr_order,
        _isr_in_assignment_order,
        _isr_not_packed,
        _isr_emptied_where_nobody_leads,
        _unclean_unsaid,
        _padding_leads,
    ],
)
def test_the_comparison_catches_a_planted_fault(fault: Callable[[ElectedColumns, CaseColumns], ElectedColumns]) -> None:
    with pytest.raises(AssertionError, match="offline"):
        check_small_columns("offline", lambda c: fault(COLUMN_RULES["offline"](c), c))


def test_a_fault_inside_the_columns_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(replicas: NDArray[np.int32], eligible: NDArray[np.bool_]) -> NDArray[np.int32]:
        return first(replicas[::-1], eligible[::-1])

    first = module._first
    monkeypatch.setattr(module, "_first", last)
    with pytest.raises(AssertionError, match="offline"):
        check_small_columns("offline", COLUMN_RULES["offline"])
