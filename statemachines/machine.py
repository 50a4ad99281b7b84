"""Compiled state machines: a declaration in, a table and the two ways of moving along it out.

A machine is declared once, as a `transitions.Machine` without models, and compiled here at import. One entity with
listeners and a column of a million rows then move along the same table: a trigger of the library costs 6 to 12 µs,
a row of a table a few nanoseconds. This file knows no machine in particular; `tables.py` has those.

No I/O, no clock, no thread, no logging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from transitions import Machine

from statemachines.errors import InvalidTransition, ListenerFailed, TransitionError

S = TypeVar("S", bound=IntEnum)

Listener = Callable[[Any, S, S], None]
"""Called as `listener(entity, source, target)`."""

_BYTE_VALUES = 256


class Entity(Protocol[S]):
    """Anything that keeps its state in an attribute."""

    state: S


@dataclass(frozen=True, slots=True, eq=False)
class CompiledMachine(Generic[S]):
    """One machine's moves. A value: `with_listeners` gives a new one and leaves this one as it is.

    `allowed[source, target]` is the whole declaration as a read-only bool array. States are numbered 0..n-1 in the
    order of their enum, which is the number that a column keeps.
    """

    name: str
    states: tuple[S, ...]
    allowed: NDArray[np.bool_]
    _sources: Mapping[S, frozenset[S]]
    _by_byte: NDArray[np.bool_]
    """[target, byte]: `allowed`, turned, and False for every byte that is no state."""
    _on_exit: Mapping[S, tuple[Listener[S], ...]]
    _on_entry: Mapping[S, tuple[Listener[S], ...]]

    def valid_sources(self, target: S) -> frozenset[S]:
        """The states from which `target` may be entered."""
        return self._sources[target]

    def with_listeners(
        self,
        *,
        on_exit: Mapping[S, Iterable[Listener[S]]] | None = None,
        on_entry: Mapping[S, Iterable[Listener[S]]] | None = None,
    ) -> CompiledMachine[S]:
        """The same machine, calling these too (after the ones it has) as one entity leaves or enters a state.

        Columns have no listeners: their caller knows the rows that moved.
        """
        return replace(self, _on_exit=_joined(self._on_exit, on_exit), _on_entry=_joined(self._on_entry, on_entry))

    def move(self, entity: Entity[S], target: S) -> None:
        """Moves one entity: exit listeners of its state, the new state, entry listeners of that.

        Either all of it happens or the entity's state is what it was; what listeners did elsewhere is theirs.
        Raises InvalidTransition (no listener was called) and ListenerFailed, with what the listener raised as its
        cause.
        """
        source = entity.state
        if source not in self._sources[target]:
            raise InvalidTransition(self.name, entity, source, target)
        try:
            for listener in self._on_exit.get(source, ()):
                listener(entity, source, target)
            entity.state = target
            for listener in self._on_entry.get(target, ()):
                listener(entity, source, target)
        except BaseException as error:
            entity.state = source
            if isinstance(error, Exception):
                raise ListenerFailed(self.name, entity, source, target) from error
            raise

    def move_each(self, entities: Iterable[Entity[S]], target: S) -> tuple[TransitionError, ...]:
        """Moves every entity that can, in order, and gives the errors of those that stayed as they were."""
        refused: list[TransitionError] = []
        for entity in entities:
            try:
                self.move(entity, target)
            except TransitionError as error:
                refused.append(error)
        return tuple(refused)

    def move_column(self, column: NDArray[np.uint8], rows: NDArray[np.integer], target: S) -> NDArray[np.integer]:
        """Moves the named rows of a column, in place; gives the rows that may not go there, left as they were.

        `column` is uint8[n], a state's number a row; `rows` holds row numbers 0..n-1, in any order (one that is
        named twice moves once). `refusals` makes errors of the rows that are handed back. Raises ValueError for a
        column or rows of another kind and for a byte that is no state, IndexError for a row beyond the column; then
        nothing has moved. A million rows take about 3 ms.
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
        self,
        column: NDArray[np.uint8],
        refused: NDArray[np.integer],
        target: S,
        name_of: Callable[[int], object] = int,
    ) -> tuple[InvalidTransition, ...]:
        """The errors of the rows that `move_column` handed back; `name_of(row)` is the entity that they name."""
        return tuple(
            InvalidTransition(self.name, name_of(row), self.states[column[row]], target) for row in refused.tolist()
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
    none: Mapping[S, tuple[Listener[S], ...]] = MappingProxyType({})
    return CompiledMachine(name, members, allowed, MappingProxyType(sources), by_byte, none, none)


def _joined(
    present: Mapping[S, tuple[Listener[S], ...]], added: Mapping[S, Iterable[Listener[S]]] | None
) -> Mapping[S, tuple[Listener[S], ...]]:
    joined = dict(present)
    for state, listeners in (added or {}).items():
        joined[state] = (*joined.get(state, ()), *listeners)
    return MappingProxyType(joined)


def _require_column(column: NDArray[np.uint8]) -> None:
    if column.ndim != 1 or column.dtype != np.uint8:
        raise ValueError(f"a column of states is uint8[n], got {column.dtype}{list(column.shape)}")


def _require_rows(rows: NDArray[np.integer]) -> None:
    # A mask of bools would be taken for the rows 0 and 1.
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"rows are an array of row numbers, got {rows.dtype}{list(rows.shape)}")
    if rows.size and rows.min() < 0:
        raise ValueError(f"rows are numbered from 0, got {rows.min()}")
