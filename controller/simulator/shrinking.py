"""From a plan that breaks to a small one that breaks in the same way: fewer happenings, brokers, partitions, shorter.

A plan's runs are repeatable, and each use of chance has a stream of its own, so that what is left of a plan does much
of what it did before. A smaller plan counts if it violates the same invariant. The passes are those of delta debugging,
taken in turn until none finds anything to leave out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from controller.scenarios.faults import AddPartitions, CreateTopic, Reassign
from controller.scenarios.files import plan_error
from controller.scenarios.language import Happening, Outside, Plan
from controller.simulator.safety_checker import Violation
from controller.simulator.swarm import run_plan

RUNS = 600
"""A shrinking's runs at most."""
T = TypeVar("T")
Progress = Callable[[Plan, int], None]


def _silent(plan: Plan, runs: int) -> None:
    pass


class Shrinker:
    """Minimise a plan. Every smaller plan must violate the same invariant as `violation`.

    `progress` is called with each smaller plan that does and with the number of runs so far; `runs`: the maximum number
    of runs (RUNS unless given).
    """

    def __init__(self, violation: Violation, progress: Progress = _silent, runs: int | None = None) -> None:
        self._violation = violation
        self._progress = progress
        self._limit = RUNS if runs is None else runs
        self.runs = 0

    def shrink(self, plan: Plan) -> Plan:
        least = self._first(plan, _cut_short(plan, self._violation.at_ms)) or plan
        while True:
            before = least
            for step in (self._happenings, self._brokers, self._simpler, self._sooner):
                least = step(least)
            if least == before or self.runs >= self._limit:
                return replace(least, name=f"{plan.name}-least")

    def _breaks(self, plan: Plan) -> bool:
        if self.runs >= self._limit or plan_error(plan) is not None:
            return False
        self.runs += 1
        violation = run_plan(plan).violation
        return violation is not None and violation.invariant == self._violation.invariant

    def _first(self, least: Plan, candidates: Iterator[Plan]) -> Plan | None:
        for candidate in candidates:
            if candidate != least and self._breaks(candidate):
                self._progress(candidate, self.runs)
                return candidate
        return None

    def _as_long_as(self, least: Plan, candidates: Callable[[Plan], Iterator[Plan]]) -> Plan:
        while (smaller := self._first(least, candidates(least))) is not None:
            least = smaller
        return least

    # -- the passes

    def _happenings(self, plan: Plan) -> Plan:
        """Halves, then quarters and so on are left out, down to one at a time."""
        size = len(plan.happenings)
        while size >= 1:
            size = (size + 1) // 2 if size > 1 else 0
            if size:
                plan = self._as_long_as(plan, lambda least, size=size: _without_pieces(least, size))  # type: ignore[misc]
        return plan

    def _brokers(self, plan: Plan) -> Plan:
        return self._as_long_as(plan, _without_a_broker)

    def _simpler(self, plan: Plan) -> Plan:
        return self._as_long_as(plan, _simpler)

    def _sooner(self, plan: Plan) -> Plan:
        return self._as_long_as(plan, _sooner)


def _cut_short(plan: Plan, violated_ms: float) -> Iterator[Plan]:
    """Nothing that was to happen after the violation, and the calm right behind it."""
    if violated_ms < plan.calm_ms:
        before = tuple(each for each in plan.happenings if each.at_ms <= violated_ms)
        yield replace(plan, happenings=before, calm_ms=float(math.ceil(violated_ms)) + 1.0)


def _without_pieces(plan: Plan, size: int) -> Iterator[Plan]:
    for start in range(0, len(plan.happenings), size):
        yield replace(plan, happenings=(*plan.happenings[:start], *plan.happenings[start + size :]))


def _without_a_broker(plan: Plan) -> Iterator[Plan]:
    """The others keep their order and move up; what spoke of the one that is gone goes with it."""
    for gone in reversed(plan.cluster.nodes):
        if plan.cluster.brokers == 1:
            return
        kept = [moved for each in plan.happenings if (moved := _moved_up(each, gone, plan.cluster.brokers - 1))]
        core = tuple(_number(node, gone) for node in plan.core if node != gone)
        yield replace(
            plan, cluster=replace(plan.cluster, brokers=plan.cluster.brokers - 1), core=core, happenings=tuple(kept)
        )


def _number(node: int, gone: int) -> int:
    return node - 1 if node > gone else node


def _moved_up(happening: Happening, gone: int, brokers: int) -> Happening | None:
    changes: dict[str, Any] = {}
    for name in ("node", "source", "target"):
        node = getattr(happening, name, None)
        if node == gone:
            return None
        if isinstance(node, int):  # otherwise a name, as of who leads a partition
            changes[name] = _number(node, gone)
    if isinstance(happening, CreateTopic):
        changes["replication_factor"] = min(happening.replication_factor, brokers)
    if isinstance(happening, Reassign) and happening.replicas:
        changes["replicas"] = [_number(node, gone) for node in happening.replicas if node != gone]
        if not changes["replicas"]:
            return None
    return replace(happening, **changes)


def _simpler(plan: Plan) -> Iterator[Plan]:
    """The whole cluster is the core, one ZooKeeper server, fewer partitions and replicas."""
    yield replace(plan, core=tuple(plan.cluster.nodes), outside=Outside.DEAD)
    yield replace(plan, cluster=replace(plan.cluster, zookeeper_servers=1))
    for index, happening in enumerate(plan.happenings):
        if isinstance(happening, CreateTopic | AddPartitions):
            for fewer in sorted({1, happening.partitions // 2} - {0, happening.partitions}):
                yield _with(plan, index, replace(happening, partitions=fewer))
        if isinstance(happening, CreateTopic):
            for fewer in range(1, happening.replication_factor):
                yield _with(plan, index, replace(happening, replication_factor=fewer))


def _with(plan: Plan, index: int, happening: Happening) -> Plan:
    return replace(plan, happenings=_replaced(plan.happenings, index, happening))


def _replaced(items: Sequence[T], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _sooner(plan: Plan) -> Iterator[Plan]:
    """Time without anything is left out: before the calm, and between one happening and the next."""
    last_ms = max((each.at_ms for each in plan.happenings), default=0.0)
    for calm_ms in (last_ms + 500.0, last_ms + (plan.calm_ms - last_ms) / 2):
        if calm_ms < plan.calm_ms - 100.0:
            yield replace(plan, calm_ms=float(round(calm_ms)))
    times = [0.0, *(each.at_ms for each in plan.happenings)]
    for index in range(1, len(times)):
        gap_ms = times[index] - times[index - 1]
        if gap_ms > 1_000.0:
            by_ms = float(round(gap_ms / 2))
            moved = tuple(
                replace(each, at_ms=round(each.at_ms - by_ms, 1)) if place >= index - 1 else each
                for place, each in enumerate(plan.happenings)
            )
            yield replace(plan, happenings=moved, calm_ms=plan.calm_ms - by_ms)
