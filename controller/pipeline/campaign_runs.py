"""The runs of a campaign, one after the other, in whatever process they are given to; knows no Spark.

A run's result is a line of JSON, appended as the run ends; its trace and report, if wanted, are in place before
that. So what was finished is known from the lines alone, whatever became of the process: a line torn by its death is no
line, and that run is run again. The same run gives the same line wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from controller.report.files import write_report
from controller.report.summary import Report
from controller.scenarios.judge import FAIL, PASS, InvariantResult, Judgement
from controller.scenarios.language import Cluster, Scenario
from controller.simulator.plan import describe
from controller.simulator.plan_generator import draw_plan
from controller.simulator.run import simulate
from controller.simulator.swarm import PlanRun, run_plan

COULD_NOT_RUN = "could not run"


class Traces(StrEnum):
    """The runs whose traces are kept."""

    NONE = "none"
    FAILING = "failing"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of the parameters; the scenario has them set already. None: the swarm's plans, drawn from seeds."""

    settings: tuple[tuple[str, str], ...]
    scenario: Scenario | None


@dataclass(frozen=True, slots=True)
class Campaign:
    """`name` is the scenario as the command named it. A run is a number: seeds vary fastest."""

    name: str
    points: tuple[Point, ...]
    first_seed: int
    seeds: int
    traces: Traces

    def __len__(self) -> int:
        return len(self.points) * self.seeds

    def run_of(self, number: int) -> tuple[int, int]:
        """(point, seed)."""
        return number // self.seeds, self.first_seed + number % self.seeds

    def replay(self, point: int, seed: int) -> str:
        settings = "".join(f" --set {name}={value}" for name, value in self.points[point].settings)
        return f"camerlengo simulate {self.name}{settings} --seed {seed}"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The stored result of a run; times in virtual ms. `error` is the first error, in one line."""

    number: int
    point: int
    seed: int
    verdict: str
    error: str = msgspec.field(name="trouble")
    trace_hash: str
    duration_ms: float
    broker_recoveries_ms: tuple[float, ...]
    controller_recoveries_ms: tuple[float, ...]

    @property
    def passed(self) -> bool:
        return self.verdict == PASS


_RESULT = msgspec.json.Decoder(Result)


def run(campaign: Campaign, number: int) -> tuple[Result, Report]:
    """Execute a run, and return its result and its report, from which files can be written."""
    point, seed = campaign.run_of(number)
    scenario = campaign.points[point].scenario
    if scenario is None:
        return _plan_run(number, point, seed)
    found = simulate(scenario, seed)
    judgement = found.report.judgement
    errors = [f"{each.name}: {each.detail}" for each in judgement.invariants if each.held is not True]
    times = [(each.kind, each.recovery_ms) for each in judgement.failovers if each.recovery_ms is not None]
    result = Result(
        number=number,
        point=point,
        seed=seed,
        verdict=COULD_NOT_RUN if found.could_not_run else judgement.verdict,
        error=errors[0].splitlines()[0] if errors else "",
        trace_hash=found.trace_hash,
        duration_ms=found.report.records[-1].at_ms if found.report.records else 0.0,
        broker_recoveries_ms=tuple(ms for kind, ms in times if kind == "broker"),
        controller_recoveries_ms=tuple(ms for kind, ms in times if kind == "controller"),
    )
    return result, found.report


def _plan_run(number: int, point: int, seed: int) -> tuple[Result, Report]:
    found = run_plan(draw_plan(seed))
    result = Result(
        number=number,
        point=point,
        seed=seed,
        verdict=PASS if found.violation is None else "fail",
        error="" if found.violation is None else str(found.violation).splitlines()[0],
        trace_hash=found.trace_hash,
        duration_ms=found.ended_ms,
        broker_recoveries_ms=() if found.rest_ms is None else (found.rest_ms,),
        controller_recoveries_ms=(),
    )
    return result, plan_report(found)


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
        cluster=Cluster(
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


def run_all(campaign: Campaign, numbers: Iterable[int], folder: Path, name: str) -> Iterator[Result]:
    """Runs what no line of `folder`/results/`name`.jsonl has yet, and gives each result once its line is written."""
    lines = folder / "results" / f"{name}.jsonl"
    lines.parent.mkdir(parents=True, exist_ok=True)
    done = {result.number for result in read_results([lines])}
    with lines.open("ab") as file:
        if lines.stat().st_size and not lines.read_bytes().endswith(b"\n"):
            file.write(b"\n")  # ends the line that a dying process tore
        for number in numbers:
            if number in done:
                continue
            result, report = run(campaign, number)
            if campaign.traces is Traces.ALL or (campaign.traces is Traces.FAILING and not result.passed):
                write_report(report, kept_in(folder, result), campaign.replay(result.point, result.seed))
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            yield result


def _servers(count: int) -> str:
    return f"{count} ZooKeeper server{'' if count == 1 else 's'}"


def kept_in(folder: Path, result: Result) -> Path:
    """Return the folder of a run's trace and report."""
    return folder / "traces" / f"point-{result.point}" / f"seed-{result.seed}"


def read_results(files: Iterable[Path]) -> list[Result]:
    """Return the results in all complete lines, each run once, in order."""
    found: dict[int, Result] = {}
    for file in files:
        if not file.exists():
            continue
        for line in file.read_bytes().splitlines():
            try:
                result = _RESULT.decode(line)
            except msgspec.DecodeError:
                continue  # torn: its run is not done
            found[result.number] = result
    return [found[number] for number in sorted(found)]
