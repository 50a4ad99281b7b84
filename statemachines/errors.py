"""The error of a refused transition: the machine, the entity, its state and the refused target."""

from __future__ import annotations

from enum import IntEnum


class TransitionError(Exception):
    """A move that did not happen; the entity is as it was."""

    def __init__(self, machine: str, entity: object, state: IntEnum, target: IntEnum) -> None:
        super().__init__(machine, entity, state, target)
        self.machine = machine
        self.entity = entity
        self.state = state
        self.target = target


class InvalidTransition(TransitionError):
    """The machine has no such move."""

    def __str__(self) -> str:
        return f"{self.machine} {self.entity}: no move from {_name(self.state)} to {_name(self.target)}"


class ListenerFailed(TransitionError):
    """A listener raised during the move; its error is this one's `__cause__`."""

    def __str__(self) -> str:
        return (
            f"{self.machine} {self.entity}: a listener failed in the move from {_name(self.state)} "
            f"to {_name(self.target)}: {self.__cause__!r}"
        )


def _name(state: object) -> str:
    # An entity may hold what is no state at all, and the error must be able to say so.
    return state.name if isinstance(state, IntEnum) else repr(state)
