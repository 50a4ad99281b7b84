"""Compiled state machines: a declaration becomes a table that decides every transition.

A machine is declared once, as a `transitions.Machine` without models, and compiled here at import. Then a column of a
million states, or one entity, moves along the same table: a trigger of the library takes 6 to 12 µs, a row of a table
a few nanoseconds. The machines themselves are in `partition`, `replica` and `reassignment`.

No I/O, no clock, no thread, no logging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from transitions import Machine

S = TypeVar("S", bound=IntEnum)

_BYTE_VALUES = 256


class InvalidTransition(Exception):
    """An event that the machine does not allow in the entity's state, which stays as it was.

    An event has the name of the state that it leads to.
    """

    def __init__(self, machine: str, key: object, state: IntEnum, event: IntEnum) -> None:
        super().__init__(machine, key, state, event)
        self.machine = machine
        self.key = key
        self.state = state
        self.event = event

    def __str__(self) -> str:
        return f"{self.machine} {self.key}: event {self.event.name} is not allowed in state {self.state.name}"


@dataclass(frozen=True, slots=True, eq=False)
class CompiledMachine(Generic[S]):
    """One machine's allowed transitions.

    `allowed[source, target]` is the whole declaration as a read-only bool array. States are numbered 0..n-1 in the
    order of their enum, which is the number that a column keeps.
    """

    name: str
    states: tuple[S, ...]
    allowed: NDArray[np.bool_]
    _sources: Mapping[S, frozenset[S]]
    _by_byte: NDArray[np.bool_]
    """[target, byte]: `allowed`, turned, and False for every byte that is no state."""

    def valid_sources(self, target: S) -> frozenset[S]:
        """The states from which `target` may be entered."""
        return self._sources[target]

    def require(self, state: S, event: S, key_of: Callable[[], object]) -> None:
        """Raise InvalidTransition if one entity may not move from `state` to `event`; `key_of` names the entity."""
        if state not in self._sources[event]:
            raise InvalidTransition(self.name, key_of(), state, event)

    def move_column(self, column: NDArray[np.uint8], rows: NDArray[np.integer], target: S) -> NDArray[np.integer]:
        """Move the given rows of a column to `target` in place; return the rows for which this is not allowed.

        Refused rows stay as they were; `refusals` makes their errors. A million rows take about 3 ms.

        Args:
            column: uint8[n], a state's number a row.
            rows: row numbers 0..n-1, in any order; one that is named twice moves once.

        Raises:
            ValueError: the column or rows are of another kind, or a byte is no state. Nothing has moved.
            IndexError: a row is beyond the column. Nothing has moved.
        """
        _require_column(column)
        _require_rows(rows)
        if rows.size == 0:
            return rows
        states = column.take(rows)
        allowed = self._by_byte[target].take(states)
        if allowed.all():
            column[rows] = target
            return rows[:0]
        self._refuse_unknown_states(rows, states)
        column[rows[allowed]] = target
        refused: NDArray[np.integer] = rows[~allowed]
        return refused

    def refusals(
        self, column: NDArray[np.uint8], refused: NDArray[np.integer], target: S, key_of: Callable[[int], object] = int
    ) -> tuple[InvalidTransition, ...]:
        """Return the errors of rows that `move_column` refused; `key_of(row)` is the entity that an error names."""
        return tuple(
            InvalidTransition(self.name, key_of(row), self.states[column[row]], target) for row in refused.tolist()
        )

    def _refuse_unknown_states(self, rows: NDArray[np.integer], states: NDArray[np.uint8]) -> None:
        unknown = np.flatnonzero(states >= len(self.states))
        if unknown.size:
            row, state = rows[unknown[0]], states[unknown[0]]
            raise ValueError(f"{self.name}: row {row} holds {state}, which is no state (0..{len(self.states) - 1})")


def compile_machine(name: str, states: type[S], declaration: Machine) -> CompiledMachine[S]:
    """Reads a declaration into a table.

    Raises ValueError for what a table can't say: states that are not numbered 0..n-1 or differ from the
    declaration's, a trigger that is not named after its target, and a transition with a condition.
    """
    members = tuple(states)
    if [int(state) for state in members] != list(range(len(members))):
        raise ValueError(f"{name}: states must be numbered 0..{len(members) - 1} in order, got {members}")
    if list(declaration.states) != [state.name for state in members]:
        raise ValueError(f"{name}: the declaration's states are {list(declaration.states)}, not {members}")
    allowed = np.zeros((len(members), len(members)), dtype=np.bool_)
    for trigger, event in declaration.events.items():
        for transition in (one for same_source in event.transitions.values() for one in same_source):
            if trigger != transition.dest or transition.conditions:
                raise ValueError(
                    f"{name}: {trigger} from {transition.source} to {transition.dest}: a transition is named after "
                    "its target and has no condition"
                )
            allowed[states[transition.source], states[transition.dest]] = True
    by_byte = np.zeros((len(members), _BYTE_VALUES), dtype=np.bool_)
    by_byte[:, : len(members)] = allowed.T
    allowed.flags.writeable = False
    by_byte.flags.writeable = False
    sources = {target: frozenset(source for source in members if allowed[source, target]) for target in members}
    return CompiledMachine(name, members, allowed, MappingProxyType(sources), by_byte)


def _require_column(column: NDArray[np.uint8]) -> None:
    if column.ndim != 1 or column.dtype != np.uint8:
        raise ValueError(f"a column of states is uint8[n], got {column.dtype}{list(column.shape)}")


def _require_rows(rows: NDArray[np.integer]) -> None:
    # A mask of bools would be taken for the rows 0 and 1.
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"rows are an array of row numbers, got {rows.dtype}{list(rows.shape)}")
    if rows.size and rows.min() < 0:
        raise ValueError(f"rows are numbered from 0, got {rows.min()}")
