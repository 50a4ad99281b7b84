"""One run of a scenario in virtual time, from its seed to the judged report. The same seed gives the same records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from controller.clock import spawn
from controller.report.summary import Report
from controller.scenarios.judge import judge, with_defects
from controller.scenarios.language import Scenario
from controller.scenarios.runner import Outcome, Progress, run_steps
from controller.simulator.host import SimulatedHost
from controller.trace_records import TraceRecord, encode_record

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


class ScenarioWorld:
    """A scenario's world, to be run as far as one likes and looked into."""

    def __init__(self, scenario: Scenario, seed: int, progress: Progress = _silent) -> None:
        self.scenario = scenario
        self.seed = seed
        self.host = SimulatedHost(seed)
        self._running = spawn(run_steps(scenario, self.host, progress))

    @property
    def now_ms(self) -> float:
        return self.host.clock.now_ms()

    @property
    def ended(self) -> bool:
        """Whether every step was taken, or one failed."""
        return self._running.done

    def run(self, until_ms: float = VIRTUAL_LIMIT_MS) -> None:
        """To its end, or to that moment. KeyboardInterrupt passes through."""
        clock = self.host.clock
        if not clock.run_until(lambda: self._running.done, until_ms) and until_ms < VIRTUAL_LIMIT_MS:
            clock.advance_to(until_ms)

    def result(self) -> SimulationResult:
        """Ends everything, and judges what there was; a run that has not ended could not be made."""
        if self._running.done:
            outcome = self._running.result()
        else:
            reason = f"no end after {self.now_ms / 1000:.0f} s of virtual time"
            outcome = Outcome(failure=reason, could_not_run=True)
        spawn(self.host.shut_down()).result()
        records = self.host.records()
        judgement = with_defects(judge(self.scenario, outcome, records), records)
        report = Report(self.scenario, self.host.name, self.seed, judgement, records)
        return SimulationResult(report, outcome.could_not_run)


def simulate(scenario: Scenario, seed: int, progress: Progress = _silent) -> SimulationResult:
    """Runs it to its end."""
    world = ScenarioWorld(scenario, seed, progress)
    world.run()
    return world.result()


def trace_hash(records: Iterable[TraceRecord]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(encode_record(record))
    return digest.hexdigest()
