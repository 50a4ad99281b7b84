"""From what a run left behind to its verdict. Both hosts' runs, and traces read back from a file, are judged here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.scenarios.event_counters import bounded
from controller.scenarios.failovers import Failover, find_failovers
from controller.scenarios.faults import expected_errors
from controller.scenarios.invariants import INVARIANTS, Evidence, Finding
from controller.scenarios.language import Scenario
from controller.scenarios.records.checks import RecordEvidence, all_served, check_records, timeouts_abort
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.section import expected_loss
from controller.scenarios.records.workload import RecordWorkload
from controller.scenarios.runner import Outcome
from controller.trace import FaultInjected, Noted
from controller.trace_records import TraceRecord

NO_DEFECTS = "no-defects"
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"

STEPS = "steps-completed"
EXPECTED = "expected-failovers"
NO_EVENTS = "evidence"


@dataclass(frozen=True, slots=True)
class InvariantResult:
    name: str
    held: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of all checks of a run.

    `verdict`: "fail" if anything was violated, "unknown" if nothing was but a check had insufficient evidence, else
    "pass". `records`: the delivery audit of the records; None if there were none.
    """

    verdict: str
    invariants: tuple[InvariantResult, ...]
    failovers: tuple[Failover, ...]
    records: DeliveryAudit | None = None


def judge(scenario: Scenario, outcome: Outcome, records: Sequence[TraceRecord]) -> Judgement:
    """`records` by time."""
    failovers = find_failovers(records)
    expect = scenario.expect
    evidence = Evidence(records, outcome.topics, outcome.snapshot, failovers, expect.recovery_ms)
    results = [_steps(outcome), _evidence(records)]
    results += [
        _named(name, check(evidence))
        for name, check in INVARIANTS.items()
        if expect.invariants is None or name in expect.invariants
    ]
    audit = None if outcome.history is None else DeliveryAudit(outcome.history)
    if audit is not None and outcome.workload is not None:
        results += _records(scenario, outcome, audit, outcome.workload)
    for name, bound in sorted(expect.at_most.items()):
        results.append(_named(f"at-most-{bound}-{name}", bounded(evidence, name, at_most=bound)))
    for name, bound in sorted(expect.at_least.items()):
        results.append(_named(f"at-least-{bound}-{name}", bounded(evidence, name, at_least=bound)))
    if expect.failovers:
        results.append(_named(EXPECTED, _expected_failovers(expect.failovers, failovers, outcome)))
    if expect.all_registered:
        results.append(_named("all-registered", _all_registered(scenario, outcome)))
    return Judgement(_verdict(results), tuple(results), failovers, audit)


def _records(
    scenario: Scenario, outcome: Outcome, audit: DeliveryAudit, workload: RecordWorkload
) -> list[InvariantResult]:
    snapshot = outcome.snapshot
    led = None
    if snapshot is not None:
        led = frozenset(name for name, state in snapshot.partitions.items() if state.leader in snapshot.registered)
    evidence = RecordEvidence(workload, audit, led)
    loss = expected_loss(scenario.expect.lost, workload)
    found = [_named(name, finding) for name, finding in check_records(evidence, scenario.expect.invariants, loss)]
    if scenario.expect.unacknowledged is not None:
        most = scenario.expect.unacknowledged
        found.append(_named(f"at-most-{most}-unacknowledged", all_served(evidence, most)))
    if scenario.expect.overdue_ms is not None:
        found.append(_named("timeouts-abort", timeouts_abort(evidence, scenario.expect.overdue_ms)))
    return found


def _named(name: str, finding: Finding) -> InvariantResult:
    return InvariantResult(name, finding.held, finding.detail)


def _steps(outcome: Outcome) -> InvariantResult:
    if outcome.failure is None:
        return InvariantResult(STEPS, True, "every step was carried out")
    return InvariantResult(STEPS, None if outcome.could_not_run else False, outcome.failure)


def _evidence(records: Sequence[TraceRecord]) -> InvariantResult:
    """Checkers that find nothing wrong in an empty trace have shown nothing."""
    nodes = {record.node for record in records if record.node >= 0}
    if not nodes:
        return InvariantResult(NO_EVENTS, None, "no broker left a trace")
    return InvariantResult(NO_EVENTS, True, f"{len(records)} events from {len(nodes)} brokers")


def _expected_failovers(expected: dict[str, int], failovers: Sequence[Failover], outcome: Outcome) -> Finding:
    if outcome.could_not_run:
        return Finding(None, "the run did not come to its end")
    counted = Counter(failover.kind for failover in failovers)
    for kind, count in sorted(expected.items()):
        if counted[kind] != count:
            return Finding(False, f"expected {count} failovers of kind {kind}, saw {counted[kind]}")
    return Finding(True, ", ".join(f"{count} of kind {kind}" for kind, count in sorted(expected.items())))


def _all_registered(scenario: Scenario, outcome: Outcome) -> Finding:
    if outcome.snapshot is None:
        return Finding(None, "the run did not come to its last look at the cluster")
    absent = [node for node in range(1, scenario.cluster.brokers + 1) if node not in outcome.snapshot.registered]
    return Finding(False, f"not registered: {absent}") if absent else Finding(True, "every broker is registered")


def _verdict(results: Sequence[InvariantResult]) -> str:
    if any(result.held is False for result in results):
        return FAIL
    return UNKNOWN if any(result.held is None for result in results) else PASS


# -- internal errors of the code under test, independent of all other checks


def with_defects(judgement: Judgement, records: Sequence[TraceRecord]) -> Judgement:
    """Adds whether any node noted an error: an event that a handler did not bring to its end, a request that failed
    in its handler, an exception in a callback. A node goes on after those; a run exists to find them. An error that a
    fault of the run explains is none (`Fault.expected_errors`)."""
    errors = _errors(records)
    if not errors:
        result = InvariantResult(NO_DEFECTS, True, "no node noted an error")
        return replace(judgement, invariants=(*judgement.invariants, result))
    first = errors[0]
    assert isinstance(first.event, Noted)
    detail = f"{len(errors)} errors, the first of node {first.node} at {first.at_ms:.1f} ms: {first.event.message}"
    return replace(
        judgement, verdict=FAIL, invariants=(*judgement.invariants, InvariantResult(NO_DEFECTS, False, detail))
    )


def _errors(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    found: list[TraceRecord] = []
    expected: tuple[str, ...] = ()
    for record in records:
        event = record.event
        if isinstance(event, FaultInjected):
            expected += expected_errors(event.fault)
        elif isinstance(event, Noted) and event.level == "error" and not any(one in event.message for one in expected):
            found.append(record)
    return found
