"""Leader election for one partition: five rules, each a pure function.

Every rule walks the *assignment* in order and takes the first replica that qualifies; the ISR's order never decides
(it changes with who fell behind when, the assignment's first is the preferred leader). Where a rule filters the ISR
it keeps the ISR's own order. The resulting ISR always contains the leader, so it is never empty; where no replica
qualifies the result is None, and the caller keeps the last ISR with leader -1 (KAFKA-708).

`live` is the brokers that are alive and whose replica is not on a failed log directory. It leaves out brokers that
are shutting down, except for `elect_controlled_shutdown`, which has a separate argument for them.

`leader_election_columns` has the same rules for a million partitions at once. Source: Kafka's
PartitionLeaderElectionAlgorithms and Election (2.8 to 3.9).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elected:
    """A leader and the ISR it starts with. `unclean`: it was not in the ISR, so acknowledged records may be lost."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool


def initial_leader(assignment: Sequence[int], live: Collection[int]) -> Elected | None:
    """A new partition's: the first live replica leads, all live ones are the ISR, in assignment order.

    Broker ids are 0 or more and each is named once (ValueError otherwise), here and in all the rules below.
    """
    _require_distinct_brokers("assignment", assignment)
    isr = tuple(broker for broker in assignment if broker in live)
    return Elected(isr[0], isr, unclean=False) if isr else None


def elect_offline(
    assignment: Sequence[int], isr: Sequence[int], live: Collection[int], unclean: bool = False
) -> Elected | None:
    """Elect for a partition whose leader is lost: the first live replica that is in the ISR.

    The ISR's live members stay in it. With `unclean` allowed and no live member in the ISR, the first live replica
    leads an ISR of itself alone.
    """
    _require_distinct_brokers("assignment", assignment)
    _require_distinct_brokers("isr", isr)
    for broker in assignment:
        if broker in live and broker in isr:
            return Elected(broker, tuple(member for member in isr if member in live), unclean=False)
    if unclean:
        for broker in assignment:
            if broker in live:
                return Elected(broker, (broker,), unclean=True)
    return None


def elect_reassigned(target: Sequence[int], isr: Sequence[int], live: Collection[int]) -> Elected | None:
    """Elect for a reassignment that drops the leader: the first target replica that is live and in the ISR."""
    _require_distinct_brokers("target", target)
    _require_distinct_brokers("isr", isr)
    for broker in target:
        if broker in live and broker in isr:
            return Elected(broker, tuple(isr), unclean=False)
    return None


def elect_preferred(assignment: Sequence[int], isr: Sequence[int], live: Collection[int]) -> Elected | None:
    """Elect the assignment's first replica if it is live and in the ISR, and no other replica."""
    _require_distinct_brokers("assignment", assignment)
    _require_distinct_brokers("isr", isr)
    for preferred in assignment[:1]:
        if preferred in live and preferred in isr:
            return Elected(preferred, tuple(isr), unclean=False)
    return None


def elect_controlled_shutdown(
    assignment: Sequence[int], isr: Sequence[int], live: Collection[int], shutting_down: Collection[int]
) -> Elected | None:
    """Elect for a leader that is shutting down: the first live replica in the ISR that is not shutting down too.

    `live` includes the brokers in `shutting_down`, which are still alive; they are left out of the new ISR. Dead
    members stay in it: the handling of the broker's failure removes them.
    """
    _require_distinct_brokers("assignment", assignment)
    _require_distinct_brokers("isr", isr)
    for broker in assignment:
        if broker in live and broker in isr and broker not in shutting_down:
            return Elected(broker, tuple(member for member in isr if member not in shutting_down), unclean=False)
    return None


def _require_distinct_brokers(name: str, brokers: Sequence[int]) -> None:
    if len(set(brokers)) != len(brokers):
        raise ValueError(f"{name} {list(brokers)}: a broker is named twice")
    if min(brokers, default=0) < 0:
        raise ValueError(f"{name} {list(brokers)}: a broker id is 0 or more")
