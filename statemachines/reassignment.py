"""A partition's reassignment: its assignment at each step, and the allowed transitions between steps.

`replicas` is the whole replica set that brokers are sent, the target first; `adding` of these are new, `removing` are
removed at the end. A target is reached in two phases: with all of both sets (Adding) until the target is in sync, then
with the target alone (Completing). Pure values and a table. Source: Kafka's ReplicaAssignment and
onPartitionReassignment (2.8 to 3.9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from transitions import Machine

from statemachines.machine import CompiledMachine, compile_machine


class ReassignmentState(IntEnum):
    Settled = 0
    """Its replicas are those that it was to have."""
    Waiting = 1
    """Asked for; begins when fewer others are on their way."""
    Adding = 2
    """Both sets are its replicas; the target is not in sync yet."""
    Completing = 3
    """The target is in sync: it leads, what is left over stops and is deleted."""


Settled, Waiting, Adding, Completing = ReassignmentState

DECLARATION = Machine(
    model=None,
    states=ReassignmentState,
    initial=Settled,
    auto_transitions=False,
    # Each trigger has its target's name. Adding to Adding: another target, or the next controller takes it up. What is
    # in sync from the beginning (an order alone, fewer replicas, a cancellation) completes at once. Completing to
    # Adding: no replica of the target could be elected.
    transitions=[
        {"trigger": "Waiting", "source": [Settled, Waiting], "dest": Waiting},
        {"trigger": "Adding", "source": [Settled, Waiting, Adding, Completing], "dest": Adding},
        {"trigger": "Completing", "source": [Settled, Waiting, Adding], "dest": Completing},
        {"trigger": "Settled", "source": [Waiting, Completing], "dest": Settled},
    ],
)
"""Compiled to `REASSIGNMENT`. Nothing is ever added to it as a model: that is quadratic."""

REASSIGNMENT: CompiledMachine[ReassignmentState] = compile_machine("reassignment", ReassignmentState, DECLARATION)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition's replicas. `adding` and `removing` are among `replicas`; both empty: it is Settled."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """Those from before: what a cancellation goes back to."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def toward(self, target: Sequence[int]) -> Assignment:
        """On its way to `target`, wherever it was going before: the origin stays what it was.

        >>> Assignment((2, 3)).toward((3, 1))
        Assignment(replicas=(3, 1, 2), adding=(1,), removing=(2,))
        """
        origin = self.origin
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return Assignment(
            replicas,
            adding=tuple(broker for broker in replicas if broker not in origin),
            removing=tuple(broker for broker in replicas if broker not in target),
        )

    def reached(self) -> Assignment:
        """Its target alone."""
        return Assignment(self.target)


def kept_on_the_way(before: Assignment, after: Assignment) -> Assignment:
    """`before` without what `after` (another target, same origin) needs no more, while that is being stopped: within
    both, so that an ISR which is within this is within what ZooKeeper names, written yet or not. `before` itself where
    nothing is unneeded.

    >>> before = Assignment((2,)).toward((3,))
    >>> kept_on_the_way(before, before.toward((1,)))
    Assignment(replicas=(2,), adding=(), removing=())
    """
    target = tuple(broker for broker in before.target if broker in after.replicas)
    return before if target == before.target else before.toward(target or before.origin)


def target_fault(target: Sequence[int], assignment: Assignment, live: Collection[int] | None) -> str | None:
    """Return Kafka's error message for a target that a partition can't be reassigned to, or None if it can be.

    `live` None: new replicas need not be live now (as for requests in the znode).
    """
    if not target:
        return "Empty replica list specified in partition reassignment."
    if len(set(target)) != len(target):
        return f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
    if min(target) < 0:
        return f"Invalid broker id in replica list: {list(target)}"
    adding = assignment.toward(target).adding
    if live is not None and not set(adding) <= set(live):
        return (
            "Replica assignment has brokers that are not alive. Replica list: "
            f"{list(adding)}, live broker list: {sorted(live)}"
        )
    return None


def strands(isr: Collection[int], after: Assignment) -> bool:
    """Return whether all in-sync replicas would be stopped: acknowledged records would be lost, or wait without end."""
    return bool(isr) and not set(isr) & set(after.replicas)


def is_in_sync(isr: Collection[int], assignment: Assignment) -> bool:
    """Return whether every replica of the target has all committed records, so that the reassignment may complete."""
    return not assignment.is_moving or set(assignment.target) <= set(isr)


@dataclass(frozen=True, slots=True)
class ReassignmentLimits:
    """How many partitions may gain replicas at the same time; 0: as many as are requested, as in Kafka."""

    in_cluster: int = 0
    on_broker: int = 0


def admitted(moving: Iterable[Assignment], wanted: Sequence[Assignment], limits: ReassignmentLimits) -> list[bool]:
    """Which of `wanted` may begin beside those that are `moving`: in order, each that fits, so that one that must wait
    for a busy broker holds up no other. What gains no replica copies nothing, and always may."""
    gaining = [one.adding for one in moving if one.adding]
    partitions, brokers = len(gaining), Counter(broker for adding in gaining for broker in adding)
    answers = []
    for one in wanted:
        full = bool(limits.in_cluster) and partitions >= limits.in_cluster
        busy = bool(limits.on_broker) and any(brokers[broker] >= limits.on_broker for broker in one.adding)
        answers.append(not one.adding or not (full or busy))
        if one.adding and answers[-1]:
            partitions += 1
            brokers.update(one.adding)
    return answers
