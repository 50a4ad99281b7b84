"""The delayed operation's machine: how a request that waits for a condition ends, and that it ends once.

The purgatory keeps one such state for each operation. Source: Kafka's DelayedOperation (0.9 to 3.9), whose one flag
says "completed" and leaves out why; cancelling a key's operations is Kafka's cancelForKey.
"""

from __future__ import annotations

from enum import IntEnum

from transitions import Machine


class OperationState(IntEnum):
    Pending = 0
    """It is not answered: its condition does not hold yet, and its timeout has not expired."""
    Completed = 1
    """Its condition holds, or it was completed by force."""
    Expired = 2
    """Its timeout expired first; it was answered with the data available."""
    Cancelled = 3
    """What it waits for no longer exists; the code that cancelled it answers."""


Pending, Completed, Expired, Cancelled = OperationState

DECLARATION = Machine(
    model=None,
    states=OperationState,
    initial=Pending,
    auto_transitions=False,
    # Each trigger has its target's name. Three ways lead out of Pending and none leads further: a condition that comes
    # to hold, the timer and a cancellation may meet, and whichever is first is the only one that answers.
    transitions=[
        {"trigger": "Completed", "source": Pending, "dest": Completed},
        {"trigger": "Expired", "source": Pending, "dest": Expired},
        {"trigger": "Cancelled", "source": Pending, "dest": Cancelled},
    ],
)
"""Compiled to `tables.OPERATION`. Nothing is ever added to it as a model: that is quadratic."""
