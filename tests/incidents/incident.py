"""What an incident of the index is, where it may be proved, and short words for the places."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Where(Enum):
    """What a test runs on. The value is how the page says it."""

    PURE = "pure rules"
    CORE = "core, ZooKeeper in memory"
    SIMULATED = "simulated host"
    ZOOKEEPER = "real ZooKeeper"
    REAL = "real host"
    THREADS = "timer and purgatory, threads"


@dataclass(frozen=True, slots=True)
class Proof:
    """`node`: a test function's id as pytest takes it, without parameters."""

    where: Where
    node: str


@dataclass(frozen=True, slots=True)
class Incident:
    """`issue`: where it was reported. `must`: where it has to be proved because the fault is there (a thread, kazoo or
    the server); any place will do for the others."""

    number: str
    issue: str
    title: str
    proofs: tuple[Proof, ...]
    must: frozenset[Where] = frozenset()


def core(node: str) -> Proof:
    return Proof(Where.CORE, f"tests/{node}")


def simulated(node: str) -> Proof:
    return Proof(Where.SIMULATED, f"tests/{node}")


def zookeeper(node: str) -> Proof:
    return Proof(Where.ZOOKEEPER, f"tests/{node}")


def real(node: str) -> Proof:
    return Proof(Where.REAL, f"tests/{node}")


def pure(node: str) -> Proof:
    return Proof(Where.PURE, f"tests/{node}")


def threads(node: str) -> Proof:
    return Proof(Where.THREADS, f"tests/{node}")


ON_ZOOKEEPER = frozenset({Where.ZOOKEEPER})
ON_THREADS = frozenset({Where.REAL})
ON_TIMER_THREADS = frozenset({Where.THREADS})


def golden(plan: str) -> Proof:
    """A plan's whole log, and what must be in it whatever else changes."""
    return simulated(f"simulator/test_golden.py::test_the_log_is_the_one_expected[{plan}]")


def story(name: str) -> Proof:
    """The whole log of a world."""
    return simulated(f"simulator/test_golden_worlds.py::test_the_log_is_the_one_expected[{name}]")


BUILT_IN = "simulator/test_runs.py::test_built_in_scenarios_pass"
"""zombie-controller, zookeeper-cut, bounce and rolling-restart are among them."""
INTERRUPTED = "incidents/test_prefixes.py::test_wherever_it_is_interrupted_the_next_controller_completes_it"
