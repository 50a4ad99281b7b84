"""What every election must satisfy, said as a specification and not as another implementation.

`check_rule` holds one answer of one rule against it; `check_columns` holds a column rule against the scalar one, row
by row. The same two functions check the real code and the planted faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from statemachines import leader_election as scalar
from statemachines import leader_election_columns as columns
from statemachines.leader_election import Elected
from statemachines.leader_election_columns import ElectedColumns


@dataclass(frozen=True, slots=True)
class Case:
    """One partition to elect a leader for; a rule takes of it what it needs."""

    assignment: tuple[int, ...]
    isr: tuple[int, ...] = ()
    live: frozenset[int] = frozenset()
    shutting_down: frozenset[int] = frozenset()
    unclean: bool = False


Rule = Callable[[Case], Elected | None]

RULES: Mapping[str, Rule] = {
    "initial": lambda case: scalar.initial_leader(case.assignment, case.live),
    "offline": lambda case: scalar.elect_offline(case.assignment, case.isr, case.live, case.unclean),
    "reassigned": lambda case: scalar.elect_reassigned(case.assignment, case.isr, case.live),
    "preferred": lambda case: scalar.elect_preferred(case.assignment, case.isr, case.live),
    "controlled shutdown": lambda case: scalar.elect_controlled_shutdown(
        case.assignment, case.isr, case.live, case.shutting_down
    ),
}


def check_rule(name: str, rule: Rule, case: Case) -> None:
    """AssertionError if the rule's answer is not what this case must have."""
    answer = rule(case)
    candidates = [broker for broker in case.assignment if _qualifies(name, case, broker)]
    unclean = name == "offline" and not candidates and case.unclean
    if unclean:
        candidates = [broker for broker in case.assignment if broker in case.live]
    if not candidates:
        assert answer is None, f"{name} {case}: nobody qualifies, yet {answer}"
        return
    assert answer is not None, f"{name} {case}: nobody elected of {candidates}"
    assert answer.leader == candidates[0], f"{name} {case}: {answer.leader} leads, {candidates[0]} comes first"
    assert answer.unclean == unclean, f"{name} {case}: {answer} should say unclean={unclean}"
    assert answer.isr, f"{name} {case}: the ISR is empty"
    assert answer.leader in answer.isr, f"{name} {case}: the leader is not in the ISR {answer.isr}"
    expected = {answer.leader} if unclean else _members_left(name, case)
    order = [broker for broker in (case.assignment if name == "initial" or unclean else case.isr) if broker in expected]
    assert set(answer.isr) == expected, f"{name} {case}: ISR {answer.isr}, expected the members {sorted(expected)}"
    assert list(answer.isr) == order, f"{name} {case}: ISR {answer.isr} lost its order {order}"


def _qualifies(name: str, case: Case, broker: int) -> bool:
    if broker not in case.live:
        return False
    if name == "initial":
        return True
    if name == "preferred" and broker != case.assignment[0]:
        return False
    if name == "controlled shutdown" and broker in case.shutting_down:
        return False
    return broker in case.isr


def _members_left(name: str, case: Case) -> set[int]:
    if name == "initial":
        return set(case.assignment) & case.live
    if name == "offline":
        return set(case.isr) & case.live
    if name == "controlled shutdown":
        return set(case.isr) - case.shutting_down
    return set(case.isr)


def small_cases(name: str) -> Iterator[Case]:
    """Every case of three replicas on brokers 2, 0, 1: each ISR in each order (and one member that the assignment
    does not name), each set of live ones, and where the rule looks at them each set that is shutting down."""
    brokers = (2, 0, 1)
    isrs = [isr for size in range(len(brokers) + 1) for isr in permutations(brokers, size)] + [(7, 1, 2)]
    some = [
        frozenset(one for one, taken in zip((*brokers, 7), bits, strict=True) if taken)
        for bits in product((False, True), repeat=4)
    ]
    for isr, live in product(isrs, some):
        for shutting_down in some if name == "controlled shutdown" else [frozenset[int]()]:
            for unclean in (False, True) if name == "offline" else (False,):
                yield Case(brokers, isr, live, shutting_down, unclean)


def check_small_cases(name: str, rule: Rule) -> None:
    for case in small_cases(name):
        check_rule(name, rule, case)


@dataclass(frozen=True, slots=True)
class CaseColumns:
    """Cases as the column functions take them. `shutting_down` is one set for all."""

    assignment: NDArray[np.int32]
    isr: NDArray[np.int32]
    live: NDArray[np.bool_]
    isr_live: NDArray[np.bool_]
    unclean: NDArray[np.bool_]
    shutting_down: frozenset[int]


ColumnRule = Callable[[CaseColumns], ElectedColumns]

COLUMN_RULES: Mapping[str, ColumnRule] = {
    "initial": lambda c: columns.initial_leader_columns(c.assignment, c.live),
    "offline": lambda c: columns.elect_offline_columns(c.assignment, c.isr, c.live, c.unclean, isr_live=c.isr_live),
    "reassigned": lambda c: columns.elect_reassigned_columns(c.assignment, c.isr, c.live),
    "preferred": lambda c: columns.elect_preferred_columns(c.assignment, c.isr, c.live),
    "controlled shutdown": lambda c: columns.elect_controlled_shutdown_columns(
        c.assignment, c.isr, c.live, c.shutting_down
    ),
}


def padded(rows: Sequence[Sequence[int]], width: int) -> NDArray[np.int32]:
    """A row each, -1 after its end."""
    array = np.full((len(rows), width), -1, dtype=np.int32)
    for row, values in enumerate(rows):
        array[row, : len(values)] = values
    return array


def as_columns(cases: Sequence[Case], padding: int = 0) -> CaseColumns:
    """The cases, as wide as the longest of them and `padding` more. They share one `shutting_down`."""
    (shutting_down,) = {case.shutting_down for case in cases} or {frozenset()}
    assignment = padded([c.assignment for c in cases], padding + max((len(c.assignment) for c in cases), default=0))
    isr = padded([c.isr for c in cases], padding + max((len(c.isr) for c in cases), default=0))
    live = np.zeros(assignment.shape, dtype=np.bool_)
    isr_live = np.zeros(isr.shape, dtype=np.bool_)
    for row, case in enumerate(cases):
        live[row] = [broker in case.live for broker in assignment[row].tolist()]
        isr_live[row] = [broker in case.live for broker in isr[row].tolist()]
    unclean = np.array([case.unclean for case in cases], dtype=np.bool_)
    return CaseColumns(assignment, isr, live, isr_live, unclean, shutting_down)


def check_columns(name: str, rule: ColumnRule, cases: Sequence[Case], padding: int = 0) -> None:
    """AssertionError if a row of the column rule's answer differs from the scalar rule's."""
    answer = rule(as_columns(cases, padding))
    assert answer.leader.dtype == np.int32
    assert answer.isr.dtype == np.int32
    for row, case in enumerate(cases):
        expected = RULES[name](case)
        members = [broker for broker in answer.isr[row].tolist() if broker >= 0]
        assert answer.isr[row].tolist()[: len(members)] == members, f"{name} {case}: a gap in {answer.isr[row]}"
        assert bool(answer.elected[row]) == (expected is not None), f"{name} {case}: elected differs from {expected}"
        leader, isr, unclean = int(answer.leader[row]), tuple(members), bool(answer.unclean[row])
        if expected is None:
            kept = () if name == "initial" else case.isr
            assert (leader, isr, unclean) == (-1, kept, False), f"{name} {case}: {leader} {isr}, nobody qualifies"
        else:
            assert Elected(leader, isr, unclean) == expected, f"{name} {case}: {leader} {isr}, not {expected}"
