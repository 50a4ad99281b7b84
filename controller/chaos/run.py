"""One run of a scenario with real clients, from the start of ZooKeeper to the judged report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controller.chaos.host import RealHost
from controller.chaos.live_host import LiveHost
from controller.clock import Coro
from controller.report.summary import Report
from controller.scenarios.faults import Cut, Expire, Heal, HostFailure, Isolate
from controller.scenarios.judge import judge, with_defects
from controller.scenarios.language import Scenario
from controller.scenarios.runner import Outcome, Progress, run_steps
from controller.zookeeper.embedded import EmbeddedServerUnavailable, ServerDied, ServerTimedOut, ZooKeeperKind


@dataclass(frozen=True, slots=True)
class RunResult:
    report: Report
    could_not_run: bool
    wall_s: float


def run_scenario(
    scenario: Scenario,
    *,
    folder: Path | None = None,
    zookeeper: ZooKeeperKind | None = None,
    jars: Path | None = None,
    progress: Progress,
    host: LiveHost | None = None,
) -> RunResult:
    """Runs it; whatever happens, nothing that it started is left. KeyboardInterrupt passes through, after that.
    `zookeeper` and `jars` are as EmbeddedZooKeeper takes them. `host`: None for real processes."""
    began = time.monotonic()
    if host is None:
        cuttable = any(isinstance(step, Cut | Heal | Expire | Isolate) for step in scenario.steps)
        host = RealHost(folder=folder, zookeeper=zookeeper, jars=jars, cuttable=cuttable)
    try:
        outcome = _blocking(lambda: run_steps(scenario, host, progress))
    except (EmbeddedServerUnavailable, ServerDied, ServerTimedOut, TimeoutError) as error:
        outcome = Outcome(failure=str(error), could_not_run=True)
        progress(host.clock.now_ms(), f"could not run: {error}")
    finally:
        host.close()
    records = host.records()
    judgement = with_defects(judge(scenario, outcome, records), records)
    report = Report(scenario, host.name, host.seed, judgement, records)
    return RunResult(report, outcome.could_not_run, time.monotonic() - began)


def _blocking(task: Callable[[], Coro[Outcome]]) -> Outcome:
    """Drives the runner, which on this host never has anything to wait for: the host has blocked in it already."""
    try:
        task().send(None)
    except StopIteration as ended:
        outcome: Outcome = ended.value
        return outcome
    raise HostFailure("a step waited for a response that this host never sends")
