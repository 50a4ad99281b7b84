"""The machine of a consumer group: who its members are, and whether each has its assignment.

A group's coordinator keeps one such state for each group. Source: Kafka 2.8's GroupMetadata.
"""

from __future__ import annotations

from enum import IntEnum

from transitions import Machine

from statemachines.machine import CompiledMachine, compile_machine


class GroupState(IntEnum):
    Empty = 0
    """Without members; it may have committed offsets."""
    PreparingRebalance = 1
    """Waits for its members to join the next generation."""
    CompletingRebalance = 2
    """Has a new generation, whose leader has not sent the assignments yet."""
    Stable = 3
    """Every member has its assignment, or can ask for it."""
    Dead = 4
    """Deleted, or coordinated by another broker."""


Empty, PreparingRebalance, CompletingRebalance, Stable, Dead = GroupState

DECLARATION = Machine(
    model=None,
    states=GroupState,
    initial=Empty,
    auto_transitions=False,
    # Each trigger has its target's name. PreparingRebalance to Empty: no member has joined by the end of the rebalance
    # timeout, and none is left.
    transitions=[
        {"trigger": "Empty", "source": PreparingRebalance, "dest": Empty},
        {"trigger": "PreparingRebalance", "source": [Empty, CompletingRebalance, Stable], "dest": PreparingRebalance},
        {"trigger": "CompletingRebalance", "source": PreparingRebalance, "dest": CompletingRebalance},
        {"trigger": "Stable", "source": CompletingRebalance, "dest": Stable},
        {"trigger": "Dead", "source": list(GroupState), "dest": Dead},
    ],
)
"""Compiled to `GROUP`. Nothing is ever added to it as a model: that is quadratic."""

GROUP: CompiledMachine[GroupState] = compile_machine("group", GroupState, DECLARATION)
