"""The machine of a transactional id: how far its present transaction, or its last one, has come.

A transaction's coordinator keeps one such state for each transactional id. Source: Kafka 2.8's TransactionMetadata.
"""

from __future__ import annotations

from enum import IntEnum

from transitions import Machine

from statemachines.machine import CompiledMachine, compile_machine


class TransactionState(IntEnum):
    """Numbered as in the records of __transaction_state."""

    Empty = 0
    """Has a producer id and has not written anything with its present epoch."""
    Ongoing = 1
    """Has partitions, and may write to them."""
    PrepareCommit = 2
    """It is decided that the transaction commits; markers are being written."""
    PrepareAbort = 3
    """It is decided that the transaction aborts; markers are being written."""
    CompleteCommit = 4
    """Every partition has its marker."""
    CompleteAbort = 5
    """Every partition has its marker."""
    Dead = 6
    """Expired, and being forgotten."""
    PrepareEpochFence = 7
    """Its producer is being fenced, by the next epoch; its transaction will be aborted."""


Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead, PrepareEpochFence = TransactionState

DECLARATION = Machine(
    model=None,
    states=TransactionState,
    initial=Empty,
    auto_transitions=False,
    # Each trigger has its target's name. Empty to Empty: the next epoch of a producer that has written nothing.
    # Ongoing to Ongoing: more partitions.
    transitions=[
        {"trigger": "Empty", "source": [Empty, CompleteCommit, CompleteAbort], "dest": Empty},
        {"trigger": "Ongoing", "source": [Ongoing, Empty, CompleteCommit, CompleteAbort], "dest": Ongoing},
        {"trigger": "PrepareCommit", "source": Ongoing, "dest": PrepareCommit},
        {"trigger": "PrepareAbort", "source": [Ongoing, PrepareEpochFence], "dest": PrepareAbort},
        {"trigger": "CompleteCommit", "source": PrepareCommit, "dest": CompleteCommit},
        {"trigger": "CompleteAbort", "source": PrepareAbort, "dest": CompleteAbort},
        {"trigger": "Dead", "source": [Empty, CompleteAbort, CompleteCommit], "dest": Dead},
        {"trigger": "PrepareEpochFence", "source": Ongoing, "dest": PrepareEpochFence},
    ],
)
"""Compiled to `TRANSACTION`. Nothing is ever added to it as a model: that is quadratic."""

TRANSACTION: CompiledMachine[TransactionState] = compile_machine("transaction", TransactionState, DECLARATION)
