"""The five election rules: tables of what they decide, the whole of the small cases, random ones, and that the
checker that says so catches the faults that it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.leader_election import (
    Elected,
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
    initial_leader,
)
from tests.statemachines.election_check import RULES, Case, Rule, check_rule, check_small_cases
from tests.statemachines.election_strategies import cases


@pytest.mark.parametrize(
    ("assignment", "live", "expected"),
    [
        ((1, 2, 3), {1, 2, 3}, Elected(1, (1, 2, 3), False)),
        ((3, 1, 2), {1, 2}, Elected(1, (1, 2), False)),
        ((3, 1, 2), {2, 3}, Elected(3, (3, 2), False)),
        ((1, 2), set(), None),
        ((1, 2), {7}, None),
        ((), {1}, None),
        ((0,), {0}, Elected(0, (0,), False)),
    ],
)
def test_a_new_partition_is_led_by_its_first_live_replica(
    assignment: tuple[int, ...], live: set[int], expected: Elected | None
) -> None:
    assert initial_leader(assignment, live) == expected


@pytest.mark.parametrize(
    ("assignment", "isr", "live", "unclean", "expected"),
    [
        # The assignment's order decides, the ISR keeps its own.
        ((1, 2, 3), (3, 2, 1), {2, 3}, False, Elected(2, (3, 2), False)),
        ((1, 2, 3), (3, 1), {2, 3}, False, Elected(3, (3,), False)),
        # KAFKA-708: the only member is dead; nobody leads, the caller keeps the ISR.
        ((1, 2, 3), (1,), {2, 3}, False, None),
        ((1, 2, 3), (1,), {2, 3}, True, Elected(2, (2,), True)),
        ((1, 2, 3), (), {3}, True, Elected(3, (3,), True)),
        ((1, 2, 3), (1,), set(), True, None),
        # Allowed is not wanted: a live member of the ISR goes before any other replica.
        ((1, 2, 3), (3,), {1, 2, 3}, True, Elected(3, (3,), False)),
        # A member that the assignment does not name (while a reassignment removes it) stays, and does not lead.
        ((1, 2), (9, 2), {2, 9}, False, Elected(2, (9, 2), False)),
        ((1, 2), (9,), {9}, False, None),
    ],
)
def test_an_offline_partition(
    assignment: tuple[int, ...], isr: tuple[int, ...], live: set[int], unclean: bool, expected: Elected | None
) -> None:
    assert elect_offline(assignment, isr, live, unclean) == expected


@pytest.mark.parametrize(
    ("target", "isr", "live", "expected"),
    [
        ((4, 5, 6), (6, 1, 5), {1, 4, 5, 6}, Elected(5, (6, 1, 5), False)),
        ((4, 5), (1, 4), {1, 5}, None),
        ((4, 5), (4, 1), {4}, Elected(4, (4, 1), False)),
    ],
)
def test_a_reassigned_partition_goes_to_the_first_target_replica_in_the_isr(
    target: tuple[int, ...], isr: tuple[int, ...], live: set[int], expected: Elected | None
) -> None:
    assert elect_reassigned(target, isr, live) == expected


@pytest.mark.parametrize(
    ("assignment", "isr", "live", "expected"),
    [
        ((1, 2), (2, 1), {1, 2}, Elected(1, (2, 1), False)),
        ((1, 2), (2, 1), {1}, Elected(1, (2, 1), False)),
        ((1, 2), (2,), {1, 2}, None),
        ((1, 2), (2, 1), {2}, None),
        ((), (), {1}, None),
    ],
)
def test_a_preferred_election_takes_the_head_or_nobody(
    assignment: tuple[int, ...], isr: tuple[int, ...], live: set[int], expected: Elected | None
) -> None:
    assert elect_preferred(assignment, isr, live) == expected


@pytest.mark.parametrize(
    ("assignment", "isr", "live", "shutting_down", "expected"),
    [
        ((1, 2, 3), (3, 1, 2), {1, 2, 3}, {1}, Elected(2, (3, 2), False)),
        ((1, 2, 3), (3, 1, 2), {1, 2, 3}, {1, 2}, Elected(3, (3,), False)),
        # A dead member is not this rule's to take out.
        ((1, 2, 3), (3, 1, 2), {1, 2}, {1}, Elected(2, (3, 2), False)),
        ((1, 2, 3), (1,), {1, 2, 3}, {1}, None),
        ((1, 2), (1, 2), {1, 2}, {1, 2}, None),
    ],
)
def test_a_controlled_shutdown_hands_over(
    assignment: tuple[int, ...], isr: tuple[int, ...], live: set[int], shutting_down: set[int], expected: Elected | None
) -> None:
    assert elect_controlled_shutdown(assignment, isr, live, shutting_down) == expected


@pytest.mark.parametrize("name", RULES)
def test_every_small_case_is_as_specified(name: str) -> None:
    check_small_cases(name, RULES[name])


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_random_cases_are_as_specified(name: str, data: st.DataObject) -> None:
    check_rule(name, RULES[name], data.draw(cases()))


@given(case=cases())
def test_it_does_not_matter_whether_live_names_the_brokers_that_are_shutting_down(case: Case) -> None:
    with_them = elect_controlled_shutdown(case.assignment, case.isr, case.live | case.shutting_down, case.shutting_down)
    without = elect_controlled_shutdown(case.assignment, case.isr, case.live - case.shutting_down, case.shutting_down)
    assert with_them == without


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("broken", [(1, 2, 1), (1, -1)])
def test_a_broker_named_twice_or_below_zero_is_refused(name: str, broken: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="broker"):
        RULES[name](Case(broken, (1,), frozenset({1, 2})))
    if name != "initial":
        with pytest.raises(ValueError, match=r"isr \[1, "):
            RULES[name](Case((1, 2), broken, frozenset({1, 2})))


def _offline(case: Case) -> Elected | None:
    return elect_offline(case.assignment, case.isr, case.live, case.unclean)


def _leader_from_the_isr_order(case: Case) -> Elected | None:
    right = _offline(case)
    return right and replace(right, leader=right.isr[0])


def _isr_filtered_in_assignment_order(case: Case) -> Elected | None:
    right = _offline(case)
    return right and replace(right, isr=tuple(sorted(right.isr, key=(*case.assignment, 7).index)))


def _dead_members_kept(case: Case) -> Elected | None:
    right = _offline(case)
    return replace(right, isr=case.isr) if right and not right.unclean else right


def _isr_emptied(case: Case) -> Elected | None:
    right = _offline(case)
    return right and replace(right, isr=())


def _leader_out_of_the_isr(case: Case) -> Elected | None:
    right = _offline(case)
    return right and replace(right, isr=tuple(broker for broker in case.assignment if broker != right.leader))


def _unclean_without_leave(case: Case) -> Elected | None:
    return elect_offline(case.assignment, case.isr, case.live, unclean=True)


def _unclean_refused(case: Case) -> Elected | None:
    return elect_offline(case.assignment, case.isr, case.live)


def _unclean_keeps_the_old_isr(case: Case) -> Elected | None:
    right = _offline(case)
    return replace(right, isr=(right.leader, *case.isr)) if right and right.unclean else right


def _unclean_unsaid(case: Case) -> Elected | None:
    right = _offline(case)
    return right and replace(right, unclean=False)


def _all_replicas_in_sync(case: Case) -> Elected | None:
    right = initial_leader(case.assignment, case.live)
    return right and replace(right, isr=case.assignment)


def _dead_target_elected(case: Case) -> Elected | None:
    return elect_reassigned(case.assignment, case.isr, case.assignment)


def _isr_filtered_by_a_reassignment(case: Case) -> Elected | None:
    return elect_offline(case.assignment, case.isr, case.live)


def _next_best_for_the_preferred(case: Case) -> Elected | None:
    return elect_reassigned(case.assignment, case.isr, case.live)


def _hands_over_to_one_that_leaves_too(case: Case) -> Elected | None:
    return elect_reassigned(case.assignment, case.isr, case.live)


def _drops_dead_members_in_a_shutdown(case: Case) -> Elected | None:
    right = elect_controlled_shutdown(case.assignment, case.isr, case.live, case.shutting_down)
    return right and replace(right, isr=tuple(member for member in right.isr if member in case.live))


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("offline", _leader_from_the_isr_order, "comes first"),
        ("offline", _isr_filtered_in_assignment_order, "lost its order"),
        ("offline", _dead_members_kept, "expected the members"),
        ("offline", _isr_emptied, "the ISR is empty"),
        ("offline", _leader_out_of_the_isr, "the leader is not in the ISR"),
        ("offline", _unclean_without_leave, "nobody qualifies"),
        ("offline", _unclean_refused, "nobody elected"),
        ("offline", _unclean_keeps_the_old_isr, "expected the members"),
        ("offline", _unclean_unsaid, "should say unclean=True"),
        ("initial", _all_replicas_in_sync, "expected the members"),
        ("reassigned", _dead_target_elected, "nobody qualifies"),
        ("reassigned", _isr_filtered_by_a_reassignment, "expected the members"),
        ("preferred", _next_best_for_the_preferred, "nobody qualifies"),
        ("controlled shutdown", _hands_over_to_one_that_leaves_too, "nobody qualifies"),
        ("controlled shutdown", _drops_dead_members_in_a_shutdown, "expected the members"),
    ],
)
def test_the_check_catches_a_planted_fault(name: str, fault: Rule, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_small_cases(name, fault)
