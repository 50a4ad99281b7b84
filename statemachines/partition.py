"""The partition machine: whether a partition has a leader.

The controller keeps one such state for each partition. Source: Kafka's PartitionStateMachine (2.8 to 3.9).
"""

from __future__ import annotations

from enum import IntEnum

from transitions import Machine

from statemachines.machine import CompiledMachine, compile_machine


class PartitionState(IntEnum):
    NonExistent = 0
    """Never created, or deleted."""
    New = 1
    """Has replicas, but neither leader nor ISR yet."""
    Online = 2
    """Has a leader."""
    Offline = 3
    """Had a leader, which is gone, or is about to be deleted."""


NonExistent, New, Online, Offline = PartitionState

DECLARATION = Machine(
    model=None,
    states=PartitionState,
    initial=NonExistent,
    auto_transitions=False,
    # Each trigger has its target's name. Online to Online elects again: a preferred leader, a reassignment, a
    # controlled shutdown. New goes Offline when a partition that never had a leader is deleted (KAFKA-6650).
    transitions=[
        {"trigger": "New", "source": NonExistent, "dest": New},
        {"trigger": "Online", "source": [New, Online, Offline], "dest": Online},
        {"trigger": "Offline", "source": [New, Online, Offline], "dest": Offline},
        {"trigger": "NonExistent", "source": Offline, "dest": NonExistent},
    ],
)
"""Compiled to `PARTITION`. Nothing is ever added to it as a model: that is quadratic."""

PARTITION: CompiledMachine[PartitionState] = compile_machine("partition", PartitionState, DECLARATION)
