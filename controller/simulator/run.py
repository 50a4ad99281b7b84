"""One run of a scenario in virtual time, from its seed to the judged report. The same seed gives the same records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from controller.scenarios.defects import with_defects
from controller.scenarios.judge import judge
from controller.scenarios.language import Scenario
from controller.scenarios.report import Report
from controller.scenarios.runner import Outcome, Progress, run_steps
from controller.simulator.host import SimulatedHost
from controller.trace_records import TraceRecord, encode_record
from controller.zookeeper.drive import drive

VIRTUAL_LIMIT_MS = 3_600_000.0
"""Virtual time after which a run is given up: every step has a deadline of its own, far below."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    report: Report
    could_not_run: bool

    @property
    def trace_hash(self) -> str:
        """Of every event with its time and node: equal for equal runs."""
        return trace_hash(self.report.records)


def _silent(at_ms: float, line: str) -> None:
    pass


def simulate(scenario: Scenario, seed: int, progress: Progress = _silent) -> SimulationResult:
    """Runs it to its end. KeyboardInterrupt passes through."""
    host = SimulatedHost(seed)
    running = drive(run_steps(scenario, host, progress))
    if host.clock.run_until(lambda: running.done, VIRTUAL_LIMIT_MS):
        outcome = running.result()
    else:
        reason = f"no end after {host.clock.now_ms() / 1000:.0f} s of virtual time"
        outcome = Outcome(failure=reason, could_not_run=True)
    drive(host.shut_down()).result()
    records = host.records()
    judgement = with_defects(judge(scenario, outcome, records), records)
    return SimulationResult(Report(scenario, host.name, seed, judgement, records), outcome.could_not_run)


def trace_hash(records: Iterable[TraceRecord]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(encode_record(record))
    return digest.hexdigest()
