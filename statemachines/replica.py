"""The replica machine: whether a replica serves its partition, and how far its deletion has come.

The controller keeps one such state for each replica of each partition. Source: Kafka's ReplicaStateMachine
(2.8 to 3.9).
"""

from __future__ import annotations

from enum import IntEnum

from transitions import Machine

from statemachines.machine import CompiledMachine, compile_machine


class ReplicaState(IntEnum):
    NonExistent = 0
    """Never created, or deleted."""
    New = 1
    """Being created with its topic or added by a reassignment; follows at most."""
    Online = 2
    """Its broker is alive and it is part of the assignment; leads or follows."""
    Offline = 3
    """Its broker is dead or stopping it, or its log directory has failed."""
    DeletionStarted = 4
    """Its broker has been sent the request to delete it."""
    DeletionSuccessful = 5
    """Its broker answered that it is deleted."""
    DeletionIneligible = 6
    """Can't be deleted now: its broker is dead, or deleting failed."""


NonExistent, New, Online, Offline, DeletionStarted, DeletionSuccessful, DeletionIneligible = ReplicaState

DECLARATION = Machine(
    model=None,
    states=ReplicaState,
    initial=NonExistent,
    auto_transitions=False,
    # Each trigger has its target's name. Online to Online and Offline to Offline are moves: the same news may come
    # twice, and its requests must go out again.
    transitions=[
        {"trigger": "New", "source": NonExistent, "dest": New},
        {"trigger": "Online", "source": [New, Online, Offline, DeletionIneligible], "dest": Online},
        {"trigger": "Offline", "source": [New, Online, Offline, DeletionIneligible], "dest": Offline},
        {"trigger": "DeletionStarted", "source": Offline, "dest": DeletionStarted},
        {"trigger": "DeletionSuccessful", "source": DeletionStarted, "dest": DeletionSuccessful},
        {"trigger": "DeletionIneligible", "source": [Offline, DeletionStarted], "dest": DeletionIneligible},
        {"trigger": "NonExistent", "source": DeletionSuccessful, "dest": NonExistent},
    ],
)
"""Compiled to `REPLICA`. Nothing is ever added to it as a model: that is quadratic."""

REPLICA: CompiledMachine[ReplicaState] = compile_machine("replica", ReplicaState, DECLARATION)
