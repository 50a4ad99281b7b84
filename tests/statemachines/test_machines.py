"""The compiled tables against the declarations they come from, and what a move does and refuses."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transitions import Machine, MachineError

from statemachines import group, log_segment, partition, reassignment, replica, transaction
from statemachines.group import GROUP
from statemachines.log_segment import SEGMENT
from statemachines.machine import CompiledMachine, InvalidTransition, compile_machine
from statemachines.partition import PARTITION, PartitionState
from statemachines.reassignment import REASSIGNMENT
from statemachines.replica import REPLICA, ReplicaState
from statemachines.transaction import TRANSACTION

MACHINES: list[tuple[CompiledMachine[Any], Machine]] = [
    (PARTITION, partition.DECLARATION),
    (REPLICA, replica.DECLARATION),
    (REASSIGNMENT, reassignment.DECLARATION),
    (GROUP, group.DECLARATION),
    (TRANSACTION, transaction.DECLARATION),
    (SEGMENT, log_segment.DECLARATION),
]
EACH_MACHINE = pytest.mark.parametrize(("compiled", "declaration"), MACHINES, ids=lambda one: getattr(one, "name", ""))


@dataclass(slots=True)
class Thing:
    """A model for the library."""

    name: str
    state: Any


def moved_by_the_library(declaration: Machine, source: IntEnum, target: IntEnum) -> IntEnum | None:
    """The state after the trigger; None if the library refuses it, with the entity where it was."""
    thing = Thing("oracle", source)
    if target.name not in declaration.events:  # nothing leads there
        return None
    try:
        declaration.events[target.name].trigger(thing)
    except MachineError:
        assert thing.state is source
        return None
    state: IntEnum = thing.state
    return state


def check_table(compiled: CompiledMachine[Any], declaration: Machine) -> None:
    """AssertionError where one entity, a column or the table say other than the declaration itself."""
    for source in compiled.states:
        for target in compiled.states:
            expected = moved_by_the_library(declaration, source, target)
            assert expected in (target, None)
            assert bool(compiled.allowed[source, target]) == (expected is target), f"table: {source!r} to {target!r}"
            assert (source in compiled.valid_sources(target)) == (expected is target), f"{source!r} to {target!r}"
            column = np.array([source], dtype=np.uint8)
            refused = compiled.move_column(column, np.array([0]), target)
            assert (column[0], len(refused)) == ((target, 0) if expected is target else (source, 1))
            assert _may(compiled, source, target) == (expected is target)


def _may(compiled: CompiledMachine[Any], source: IntEnum, target: IntEnum) -> bool:
    try:
        compiled.require(source, target, lambda: "t")
    except InvalidTransition:
        return False
    return True


@EACH_MACHINE
def test_table_entity_and_column_say_what_the_declaration_says(
    compiled: CompiledMachine[Any], declaration: Machine
) -> None:
    check_table(compiled, declaration)


def with_one_cell_turned(compiled: CompiledMachine[Any], source: IntEnum, target: IntEnum) -> Machine:
    """A declaration as the machine's own, but for one move: there if it wasn't, not there if it was."""
    states = type(source)
    turned = Machine(model=None, states=states, initial=source, auto_transitions=False)
    for state in states:
        turned.events[state.name] = turned.event_cls(state.name, turned)
    for one, other in np.argwhere(compiled.allowed).tolist():
        if (one, other) != (source, target):
            turned.add_transition(states(other).name, states(one), states(other))
    if not compiled.allowed[source, target]:
        turned.add_transition(target.name, source, target)
    return turned


@EACH_MACHINE
def test_the_check_catches_every_single_wrong_cell(compiled: CompiledMachine[Any], declaration: Machine) -> None:
    check_table(compiled, declaration)
    for source in compiled.states:
        for target in compiled.states:
            with pytest.raises(AssertionError, match="table"):
                check_table(compiled, with_one_cell_turned(compiled, source, target))


@pytest.mark.parametrize(
    ("compiled", "sources"),
    [
        (
            PARTITION,
            {
                "New": {"NonExistent"},
                "Online": {"New", "Online", "Offline"},
                "Offline": {"New", "Online", "Offline"},
                "NonExistent": {"Offline"},
            },
        ),
        (
            REPLICA,
            {
                "New": {"NonExistent"},
                "Online": {"New", "Online", "Offline", "DeletionIneligible"},
                "Offline": {"New", "Online", "Offline", "DeletionIneligible"},
                "DeletionStarted": {"Offline"},
                "DeletionSuccessful": {"DeletionStarted"},
                "DeletionIneligible": {"Offline", "DeletionStarted"},
                "NonExistent": {"DeletionSuccessful"},
            },
        ),
        (
            REASSIGNMENT,
            {
                "Settled": {"Waiting", "Completing"},
                "Waiting": {"Settled", "Waiting"},
                "Adding": {"Settled", "Waiting", "Adding", "Completing"},
                "Completing": {"Settled", "Waiting", "Adding"},
            },
        ),
    ],
    ids=["partition", "replica", "reassignment"],
)
def test_the_machines_are_kafkas(compiled: CompiledMachine[Any], sources: dict[str, set[str]]) -> None:
    table = {state.name: {source.name for source in compiled.valid_sources(state)} for state in compiled.states}
    assert table == sources


@EACH_MACHINE
@given(data=st.data())
def test_a_column_moves_as_its_entities_would_one_by_one(
    compiled: CompiledMachine[Any], declaration: Machine, data: st.DataObject
) -> None:
    states = data.draw(st.lists(st.sampled_from(compiled.states), max_size=20))
    rows = data.draw(st.permutations(range(len(states)))) if states else []
    rows = rows[: data.draw(st.integers(0, len(rows)))]
    target = data.draw(st.sampled_from(compiled.states))
    column = np.array(states, dtype=np.uint8)
    refused = compiled.move_column(column, np.array(rows, dtype=np.int64), target)
    assert refused.tolist() == [row for row in rows if not compiled.allowed[states[row], target]]
    moved = set(rows) - set(refused.tolist())
    assert column.tolist() == [target if row in moved else state for row, state in enumerate(states)]
    errors = compiled.refusals(column, refused, target)
    assert [(error.key, error.state) for error in errors] == [(row, states[row]) for row in refused.tolist()]


def test_a_refused_transition_names_machine_state_event_and_key_and_the_others_move() -> None:
    column = np.array([PartitionState.New, PartitionState.NonExistent, PartitionState.Offline], dtype=np.uint8)
    refused = PARTITION.move_column(column, np.array([2, 1, 0]), PartitionState.Online)
    assert column.tolist() == [PartitionState.Online, PartitionState.NonExistent, PartitionState.Online]
    assert refused.tolist() == [1]
    (error,) = PARTITION.refusals(column, refused, PartitionState.Online, ["a-0", "a-1", "a-2"].__getitem__)
    assert str(error) == "partition a-1: event Online is not allowed in state NonExistent"
    assert (error.machine, error.key, error.state, error.event) == (
        "partition",
        "a-1",
        PartitionState.NonExistent,
        PartitionState.Online,
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_million_rows_move_and_only_the_rows_that_may_not_stay() -> None:
    column = np.full(1_000_000, ReplicaState.Online, dtype=np.uint8)
    column[::1000] = ReplicaState.DeletionStarted
    refused = REPLICA.move_column(column, np.arange(len(column)), ReplicaState.Offline)
    assert refused.tolist() == list(range(0, len(column), 1000))
    assert np.bincount(column, minlength=7).tolist() == [0, 0, 0, 999_000, 1000, 0, 0]


def test_a_row_that_is_named_twice_moves_once() -> None:
    column = np.array([ReplicaState.Offline], dtype=np.uint8)
    assert REPLICA.move_column(column, np.array([0, 0]), ReplicaState.DeletionStarted).size == 0
    assert column.tolist() == [ReplicaState.DeletionStarted]


@pytest.mark.parametrize(
    ("column", "rows", "error", "message"),
    [
        (np.array([2, 2], np.int64), np.array([0]), ValueError, "uint8"),
        (np.array([[2, 2]], np.uint8), np.array([0]), ValueError, "uint8"),
        (np.array([2, 2], np.uint8), np.array([True, False]), ValueError, "row numbers, got bool"),
        (np.array([2, 2], np.uint8), np.array([0, -1]), ValueError, "from 0, got -1"),
        (np.array([2, 2], np.uint8), np.array([0, 2]), IndexError, "out of bounds"),
        (np.array([2, 9], np.uint8), np.array([0, 1]), ValueError, "row 1 holds 9"),
    ],
)
def test_a_column_that_cant_be_meant_is_refused_whole(
    column: NDArray[Any], rows: NDArray[Any], error: type[Exception], message: str
) -> None:
    before = column.copy()
    with pytest.raises(error, match=message):
        PARTITION.move_column(column, rows, PartitionState.Offline)
    np.testing.assert_array_equal(column, before)


class Light(IntEnum):
    Red = 0
    Green = 1


class Gapped(IntEnum):
    Red = 0
    Green = 2


def declared(states: type[IntEnum], **transition: Any) -> Machine:
    first = next(iter(states))
    return Machine(model=None, states=states, initial=first, auto_transitions=False, transitions=[transition])


@pytest.mark.parametrize(
    ("states", "declaration", "message"),
    [
        (Gapped, declared(Gapped, trigger="Green", source="Red", dest="Green"), "numbered 0..1"),
        (Light, partition.DECLARATION, "declaration's states"),
        (Light, declared(Light, trigger="go", source="Red", dest="Green"), "named after its target"),
        (Light, declared(Light, trigger="Green", source="Red", dest="Green", conditions=bool), "no condition"),
    ],
)
def test_what_a_table_cant_say_is_refused_at_import(states: type[IntEnum], declaration: Machine, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_machine("light", states, declaration)


def test_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        PARTITION.allowed[0, 0] = True
