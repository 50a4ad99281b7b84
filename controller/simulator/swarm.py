"""One run of a plan: faults while safety is watched, then the calm, in which the core must come to rest in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.clock import spawn
from controller.report.summary import Report
from controller.scenarios.faults import describe
from controller.scenarios.judge import FAIL, PASS, InvariantResult, Judgement
from controller.scenarios.language import ClusterSpec, Plan, Scenario
from controller.simulator.liveness_checker import LivenessChecker, Unmet
from controller.simulator.record_run import RecordRun
from controller.simulator.run import trace_hash
from controller.simulator.safety_checker import Violation
from controller.simulator.simulation import Simulation
from controller.trace_records import TraceRecord

LOOK_MS = 100.0
"""How often it is looked whether the cluster is at rest."""
STAYS_MS = 1_000.0
"""For how long a cluster must be at rest to be so for good."""
FETCH_LIMIT_MS = 2_000.0
"""Four times replica.fetch.wait.max.ms."""
PRODUCE_LIMIT_MS = 500.0
"""Many times what replicas need when nothing is wrong."""
LATE_MS = 12_000.0
"""How long records may be kept waiting again and again where all else is at rest: longer than a request's own time, and
shorter than a producer's patience."""
ANSWERED_MS = 5_000.0
"""How long a request for metadata may take at rest, the connection included."""
REBALANCE_LIMIT_MS = 10_000.0
"""Longer than a group waits for its members to join, or for their leader's assignments."""
LIMITS_MS = {
    "FETCH": FETCH_LIMIT_MS,
    "PRODUCE": PRODUCE_LIMIT_MS,
    "OFFSET_COMMIT": PRODUCE_LIMIT_MS,
    **dict.fromkeys(
        (
            "INIT_PRODUCER_ID",
            "ADD_PARTITIONS_TO_TXN",
            "ADD_OFFSETS_TO_TXN",
            "TXN_OFFSET_COMMIT",
            "END_TXN",
            "WRITE_TXN_MARKERS",
        ),
        PRODUCE_LIMIT_MS,
    ),
    "JOIN_GROUP": REBALANCE_LIMIT_MS,
    "SYNC_GROUP": REBALANCE_LIMIT_MS,
}


@dataclass(frozen=True, slots=True)
class PlanRun:
    """`ended_ms`: when the run ended, in virtual time; `rest_ms`: how long after the calm the core was at rest, None if
    it did not come to that. `records` by time."""

    plan: Plan
    violation: Violation | None
    ended_ms: float
    rest_ms: float | None
    records: Sequence[TraceRecord]

    @property
    def trace_hash(self) -> str:
        return trace_hash(self.records)


class PlanWorld:
    """A plan's cluster, to be run as far as one likes and looked into."""

    def __init__(self, plan: Plan, zookeeper_lag_ms: float = 0.0) -> None:
        self.plan = plan
        self.simulation = Simulation(plan=plan, start=False, zookeeper_lag_ms=zookeeper_lag_ms)
        self.safety_checker = self.simulation.safety_checker
        self.host = self.simulation.host
        for each in plan.happenings:
            self.safety_checker.expect_errors_of(each)
        self.administrator = self.simulation.administrator
        self.injector = self.simulation.injector
        self.liveness_checker = LivenessChecker(self.host, plan.core, self.safety_checker, self.administrator)
        self._late_since_ms: float | None = None
        self.records: RecordRun | None = None
        if plan.records is not None:
            clean = self.safety_checker.is_clean(plan.records.topic)
            self.records = RecordRun(plan, plan.records, self.host, self.liveness_checker, clean=clean)
        self.injector.begin()

    @property
    def now_ms(self) -> float:
        return self.host.clock.now_ms()

    def run_to(self, at_ms: float) -> None:
        """On to that moment, or to the first violation."""
        clock, safety_checker = self.host.clock, self.safety_checker
        clock.run_until(lambda: safety_checker.violation is not None, at_ms)
        if safety_checker.violation is None:
            clock.advance_to(at_ms)

    def settle(self) -> float | None:
        """From the calm on, until the core is at rest and stays so: how long that took. None: it did not, which is a
        violation by now."""
        plan, safety_checker = self.plan, self.safety_checker
        until_ms = plan.calm_ms + plan.bound_ms
        rested_ms: float | None = None
        while safety_checker.violation is None:
            found = self._unmet()
            if found is None:
                rested_ms = self.now_ms if rested_ms is None else rested_ms
                if self.now_ms >= rested_ms + STAYS_MS:
                    if plan.has_hostile_clients:
                        self._judge_answers()
                    self._judge_records()
                    return rested_ms - plan.calm_ms
            else:
                rested_ms = None
                if self.now_ms >= until_ms:
                    late = f"{plan.bound_ms / 1000:g} s after the calm: {found.detail}"
                    safety_checker.violated(found.invariant, found.nodes, late)
            self.run_to(self.now_ms + LOOK_MS)
        return None

    def _judge_answers(self) -> None:
        """Each broker of the core answers clients, whatever hostile ones asked of it before."""
        asked = {node: spawn(self.host.is_answered_by(node)) for node in self.plan.core}
        self.host.clock.run_until(lambda: all(one.done for one in asked.values()), self.now_ms + ANSWERED_MS)
        for node, one in asked.items():
            if not (one.done and one.result()):
                self.safety_checker.violated(
                    "clients-answered", [node], "a client's request for metadata has no answer"
                )

    def _judge_records(self) -> None:
        found = None if self.records is None else self.records.judge()
        if found is not None:
            self.safety_checker.violated(found.invariant, found.nodes, found.detail)

    def _unmet(self) -> Unmet | None:
        found = self.liveness_checker.first_unmet()
        if found is None and self.injector.asking:
            found = Unmet("answered-once", (), f"{self.injector.asking} operations have no outcome yet")
        if found is None:
            return self._waiting()
        self._late_since_ms = None
        return found

    def _waiting(self) -> Unmet | None:
        """A request that waits for its answer is waited for, so that one which never comes is noticed. Followers'
        fetches always wait: each for as long as they say, which is short; and clients of records go on asking. Those
        may be kept waiting now and then, but not again and again where all else is at rest."""
        for node in self.plan.core:
            for one in self.host.processes[node].unanswered():
                if one.waiting_ms < LIMITS_MS.get(one.api, 0.0):
                    continue
                found = Unmet("answered-once", (node,), f"{one.api} unanswered for {one.waiting_ms:.0f} ms")
                if one.api == "PRODUCE":
                    self._late_since_ms = self.now_ms if self._late_since_ms is None else self._late_since_ms
                    if self.now_ms > self._late_since_ms + LATE_MS:
                        self.safety_checker.violated(
                            found.invariant, found.nodes, f"{found.detail}, and all else rests"
                        )
                return found
        return None

    def finish(self, until_ms: float | None = None) -> float | None:
        """To the end, the first violation, or `until_ms`; what `settle` gives, None if it did not come to that."""
        plan = self.plan
        self.run_to(plan.calm_ms if until_ms is None else min(plan.calm_ms, until_ms))
        if self.safety_checker.violation is not None or self.now_ms < plan.calm_ms:
            return None
        self.injector.calm()
        if until_ms is None:
            return self.settle()
        self.run_to(until_ms)
        return None

    def result(self, rest_ms: float | None) -> PlanRun:
        ended_ms = self.now_ms
        spawn(self.host.shut_down()).result()
        return PlanRun(self.plan, self.safety_checker.violation, ended_ms, rest_ms, self.safety_checker.records)


def run_plan(plan: Plan, zookeeper_lag_ms: float = 0.0) -> PlanRun:
    """To its end, or to the first violation. `zookeeper_lag_ms`: as of `Simulation`."""
    world = PlanWorld(plan, zookeeper_lag_ms)
    return world.result(world.finish())


def plan_report(run: PlanRun) -> Report:
    """Return the report of a plan's run, for the same pages as a scenario's. It has no failovers: no client observes a
    set of topics throughout, which would be needed to determine the recovery."""
    plan = run.plan
    scenario = Scenario(
        name=plan.name,
        steps=(),
        description=(
            f"{plan.cluster.brokers} brokers, {_servers(plan.cluster.zookeeper_servers)}, sessions of"
            f" {plan.cluster.session_timeout_ms} ms. Faults end among brokers {', '.join(map(str, plan.core))} at"
            f" {plan.calm_ms / 1000:g} s; the others are {plan.outside.value} from then on."
        ),
        cluster=ClusterSpec(
            brokers=plan.cluster.brokers,
            zookeeper_servers=plan.cluster.zookeeper_servers,
            session_timeout_ms=plan.cluster.session_timeout_ms,
        ),
    )
    if run.violation is None:
        result = InvariantResult("no-violation", True, f"at rest {run.rest_ms or 0:.0f} ms after the faults ended")
    else:
        result = InvariantResult(run.violation.invariant, False, str(run.violation).partition(" ")[2])
    verdict = PASS if run.violation is None else FAIL
    judgement = Judgement(verdict, (result,), ())
    planned = [(each.at_ms, describe(each)) for each in plan.happenings]
    return Report(scenario, "simulated", plan.seed, judgement, run.records, planned)


def _servers(count: int) -> str:
    return f"{count} ZooKeeper server{'' if count == 1 else 's'}"
