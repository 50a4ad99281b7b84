"""The machine of a log segment on two tiers: on which devices a segment's files are, and whether they may be used.

A broker keeps one such state for each segment of a log that has an SSD and HDDs. The states OnlyCache, Cached and
WithoutCache are those of Meituan's SSD cache for Kafka, which places data by age in the application; the others name
what happens between them. A segment's files are its records, two indexes and a producer snapshot.
"""

from __future__ import annotations

from enum import IntEnum

from transitions import Machine

from statemachines.machine import CompiledMachine, compile_machine


class SegmentState(IntEnum):
    Active = 0
    """Records are appended to it, on the SSD alone. The publication counts it as OnlyCache."""
    OnlyCache = 1
    """Sealed, on the SSD alone: to lose the SSD is to lose it."""
    Copying = 2
    """On the SSD; a copy on an HDD is under way and can't be relied upon."""
    Cached = 3
    """On both; the copy is durable. The one state from which the SSD's files may be evicted."""
    WithoutCache = 4
    """Sealed, on an HDD alone. What is read of it is never written back to the SSD."""
    ActiveOnHdd = 5
    """Records are appended to it, on an HDD: a follower's, where its topic wants that."""
    Deleting = 6
    """Its files are being removed from every tier."""
    Lost = 7
    """The only device that had it is lost."""


Active, OnlyCache, Copying, Cached, WithoutCache, ActiveOnHdd, Deleting, Lost = SegmentState

DECLARATION = Machine(
    model=None,
    states=SegmentState,
    initial=Active,
    auto_transitions=False,
    # Each trigger has its target's name. To Active from a sealed state: a truncation makes it the log's last, and a
    # copy is dropped before that. Cached to OnlyCache: its HDD is lost. Cached to WithoutCache: eviction. WithoutCache
    # to itself: a truncation cuts it where it is, and the log goes on in a new segment.
    transitions=[
        {"trigger": "Active", "source": [OnlyCache, Copying, Cached], "dest": Active},
        {"trigger": "OnlyCache", "source": [Active, Copying, Cached], "dest": OnlyCache},
        {"trigger": "Copying", "source": OnlyCache, "dest": Copying},
        {"trigger": "Cached", "source": Copying, "dest": Cached},
        {"trigger": "WithoutCache", "source": [Cached, WithoutCache, ActiveOnHdd], "dest": WithoutCache},
        {"trigger": "ActiveOnHdd", "source": WithoutCache, "dest": ActiveOnHdd},
        {
            "trigger": "Deleting",
            "source": [Active, OnlyCache, Copying, Cached, WithoutCache, ActiveOnHdd, Lost],
            "dest": Deleting,
        },
        {"trigger": "Lost", "source": [Active, OnlyCache, Copying, WithoutCache, ActiveOnHdd], "dest": Lost},
    ],
)
"""Compiled to `SEGMENT`. Nothing is ever added to it as a model: that is quadratic."""

SEGMENT: CompiledMachine[SegmentState] = compile_machine("segment", SegmentState, DECLARATION)

ON_SSD = frozenset((Active, OnlyCache, Copying, Cached))
"""States in which the SSD has the whole segment: it is read there."""
APPENDED_TO = frozenset((Active, ActiveOnHdd))
