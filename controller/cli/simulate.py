"""`camerlengo simulate WHAT`: a scenario, a plan or the swarm's plans in virtual time, from a seed, with a verdict.

One run of a scenario reports progress, stops at a given time to inspect the state, writes a log, and runs a second time
to verify that nothing differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.cli import simulate_plan, values
from controller.cli.gc_tuning import seldom_collected
from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.requirements import TRACES, Need
from controller.cli.scenario_options import HELD, UNKNOWN, VIOLATED, add_scenario_options, chosen_scenario, exit_status
from controller.cli.terminal import ProgressBar, show
from controller.cli.workers import each_seed
from controller.report.files import PAGE, write_report
from controller.report.html import IndexedRun, first_violation, write_index
from controller.report.summary import render_table, report_object, report_text
from controller.scenarios.files import is_plan
from controller.scenarios.judge import FAIL
from controller.scenarios.language import Scenario
from controller.simulator.columns import first_difference, log_text
from controller.simulator.inspection import inside
from controller.simulator.run import ScenarioWorld, SimulationResult, simulate


def run_scenario(arguments: argparse.Namespace, scenario: Scenario, seed: int) -> int:
    """In full, or up to `--until`: then there is a state to look at and no verdict."""
    nodes = scenario.cluster.nodes
    if arguments.show is not None and arguments.show not in nodes:
        raise UsageError(f"--show {arguments.show}: expected a broker from 1 to {nodes[-1]}")
    if arguments.until is not None and (arguments.json or arguments.report is not None or arguments.twice):
        raise UsageError(
            "--until: not allowed with --json, --report or --twice: a stopped run has no report and is not compared"
        )
    world = ScenarioWorld(scenario, seed, _silent if arguments.json else _show)
    world.run() if arguments.until is None else world.run(arguments.until)
    stopped_ms = None if world.ended or arguments.until is None else world.now_ms
    shown = _inside(arguments, world)
    if stopped_ms is not None:
        return _stopped(arguments, world, shown)
    result = world.result()
    _write_log(arguments, world)
    differs = repeat_difference(result) if arguments.twice else None
    if arguments.report is not None:
        write_report(result.report, arguments.report, f"{replay_command(arguments)} {seed}")
    if arguments.json:
        print(json.dumps(report_object(result.report), indent=2, sort_keys=True))
    else:
        parts = [*([shown] if shown else []), report_text(result.report)]
        parts += [f"NOT REPEATABLE: {differs}"] if differs is not None else []
        show("\n" + "\n".join(parts) + f"\nseed {seed}, trace {result.trace_hash[:16]}")
    if differs is not None:
        return VIOLATED
    return exit_status(result.report.verdict, could_not_run=result.could_not_run)


def replay_command(arguments: argparse.Namespace) -> str:
    """Return the command that replays one seed, but for the seed."""
    settings = "".join(f" --set {word}" for word in arguments.set)
    return f"camerlengo simulate {arguments.scenario}{settings} --seed"


def repeat_difference(result: SimulationResult) -> str | None:
    """Repeat the run, and return a description of the first event that differs, or None."""
    seed = result.report.seed
    assert seed is not None
    return first_difference(result.report.records, simulate(result.report.scenario, seed).report.records)


def _stopped(arguments: argparse.Namespace, world: ScenarioWorld, shown: str | None) -> int:
    _write_log(arguments, world)
    if shown is not None:
        print(f"\n{shown}", end="")
    print(f"\nstopped at {world.now_ms:.1f} ms; nothing is judged", flush=True)
    return HELD


def _inside(arguments: argparse.Namespace, world: ScenarioWorld) -> str | None:
    """Return the state of the requested broker, before the world is closed."""
    if arguments.show is None:
        return None
    text = inside(world.host.processes.get(arguments.show), world.host.world.zookeeper)
    return f"broker {arguments.show} at {world.now_ms:.1f} ms\n{text}"


def _write_log(arguments: argparse.Namespace, world: ScenarioWorld) -> None:
    if arguments.log is not None:
        arguments.log.write_text(log_text(world.host.records(), world.scenario.cluster.nodes))


def _show(at_ms: float, line: str) -> None:
    print(f"{at_ms / 1000:8.3f} s  {line}", flush=True)


def _silent(at_ms: float, line: str) -> None:
    """With --json, standard output is the report's alone."""


PROGRESS_EVERY = 50
SHOWN_FAILURES = 20


def configure(parser: argparse.ArgumentParser) -> None:
    add_scenario_options(parser, [simulate_plan.SWARM], "a TOML file of a scenario or a plan")
    simulate_plan.configure(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=values.seed, metavar="N", help="seed of the run (0)")
    which.add_argument("--seeds", type=values.seeds, metavar="A..B", help="run every seed from A to B, inclusive")
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON (with --seeds: a list of reports)"
    )


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return TRACES if arguments.report is not None else ()


def run(arguments: argparse.Namespace) -> int:
    with seldom_collected():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.scenario == simulate_plan.SWARM or is_plan(Path(arguments.scenario)):
        return _run_plans(arguments)
    simulate_plan.refuse_plan_options(arguments)
    scenario = chosen_scenario(arguments, [simulate_plan.SWARM])
    if arguments.seeds is not None:
        simulate_plan.refuse_options_of_one_run(arguments)
        return _run_many(arguments, scenario, arguments.seeds)
    return run_scenario(arguments, scenario, 0 if arguments.seed is None else arguments.seed)


def _run_plans(arguments: argparse.Namespace) -> int:
    if arguments.set:
        raise UsageError("--set: expected a scenario, not a plan")
    if arguments.seeds is None:
        return simulate_plan.run_one(arguments)
    if arguments.scenario != simulate_plan.SWARM:
        raise UsageError("--seeds: expected `swarm` or a scenario, not a plan file, which has one seed")
    return simulate_plan.run_many(arguments, arguments.seeds)


@dataclass(frozen=True, slots=True)
class _Summary:
    """The summary of one of many runs."""

    seed: int
    verdict: str
    status: int
    error: str
    recoveries_ms: tuple[tuple[str, float], ...]

    @property
    def index_verdict(self) -> str:
        """The verdict, but for a run that could not run or is not repeatable."""
        return {VIOLATED: FAIL, COULD_NOT_RUN: "could not run"}.get(self.status, self.verdict)


@dataclass(frozen=True, slots=True)
class _OneOfMany:
    """One seed's run, as a worker process does it."""

    scenario: Scenario
    twice: bool
    report: Path | None
    json: bool
    command: str
    """The command that replays one seed, but for the seed."""

    def __call__(self, seed: int) -> tuple[_Summary, Any]:
        """The summary, and with `json` the report as an object. Writes the report's files."""
        result = simulate(self.scenario, seed)
        difference = repeat_difference(result) if self.twice else None
        if self.report is not None:
            write_report(result.report, self.report / f"seed-{seed}", f"{self.command} {seed}")
        return _summary(seed, result, difference), report_object(result.report) if self.json else None


def _run_many(arguments: argparse.Namespace, scenario: Scenario, seeds: range) -> int:
    summaries: list[_Summary] = []
    objects = []
    command = replay_command(arguments)
    work = _OneOfMany(scenario, arguments.twice, arguments.report, arguments.json, command)
    with nullcontext() if arguments.json else ProgressBar(len(seeds), PROGRESS_EVERY) as bar:
        for number, (summary, shown) in enumerate(each_seed(work, seeds, arguments.jobs), 1):
            summaries.append(summary)
            if bar is None:
                objects.append(shown)
            else:
                failing = sum(summary.status != HELD for summary in summaries)
                bar.update(number, f"{number} of {len(seeds)} seeds, {failing} failed")
    if arguments.report is not None:
        runs = [
            IndexedRun(
                one.seed,
                "",
                one.index_verdict,
                *first_violation(one.error),
                f"{command} {one.seed}",
                f"seed-{one.seed}/{PAGE}",
            )
            for one in summaries
        ]
        figures = recovery_rows(summaries)
        write_index(arguments.report, scenario.name, runs, figures, [f"{RECOVERY}.".capitalize()] * (len(figures) > 1))
    if arguments.json:
        print(json.dumps(objects, indent=2, sort_keys=True))
    else:
        show(summary_text(summaries, command))
    return max((summary.status for summary in summaries), key=(HELD, UNKNOWN, COULD_NOT_RUN, VIOLATED).index)


def _summary(seed: int, result: SimulationResult, difference: str | None) -> _Summary:
    judgement = result.report.judgement
    errors = [f"{each.name}: {each.detail}" for each in judgement.invariants if each.held is not True]
    error = errors[0].splitlines()[0] if errors else ""  # a traceback is for the run that replays it
    recoveries = tuple(
        (failover.kind, failover.recovery_ms) for failover in judgement.failovers if failover.recovery_ms is not None
    )
    if difference is not None:
        return _Summary(seed, judgement.verdict, VIOLATED, f"not repeatable: {difference}", recoveries)
    status = exit_status(result.report.verdict, could_not_run=result.could_not_run)
    return _Summary(seed, judgement.verdict, status, error, recoveries)


def summary_text(summaries: Sequence[_Summary], command: str) -> str:
    """Return the failed seeds, each with the command that replays it, then the table."""
    failing = [summary for summary in summaries if summary.status != HELD]
    parts = []
    for summary in failing[:SHOWN_FAILURES]:
        parts += [f"{command} {summary.seed}", f"    {summary.verdict}: {summary.error}"]
    if len(failing) > SHOWN_FAILURES:
        parts.append(f"and seeds {ranges([summary.seed for summary in failing[SHOWN_FAILURES:]])}")
    if failing:
        parts.append("")
    rows = recovery_rows(summaries)
    if len(rows) > 1:
        parts += [RECOVERY, render_table(rows), ""]
    parts.append(f"{len(summaries) - len(failing)} of {len(summaries)} seeds passed")
    return "\n".join(parts)


RECOVERY = "session end to client's complete metadata (virtual ms)"


def recovery_rows(summaries: Sequence[_Summary]) -> list[tuple[str, ...]]:
    """Return the table of recovery times, a header first."""
    rows: list[tuple[str, ...]] = [("failover", "count", "p50", "p99", "worst")]
    for kind in ("broker", "controller"):
        times = sorted(ms for summary in summaries for each, ms in summary.recoveries_ms if each == kind)
        if times:
            ninety_ninth = times[min(len(times) - 1, len(times) * 99 // 100)]
            rows.append(
                (kind, str(len(times)), f"{statistics.median(times):.1f}", f"{ninety_ninth:.1f}", f"{times[-1]:.1f}")
            )
    return rows


def ranges(seeds: Sequence[int]) -> str:
    """Ascending seeds as text, three or more in a row as A..B."""
    rows: list[list[int]] = []
    for seed in seeds:
        if rows and rows[-1][-1] == seed - 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return ", ".join(f"{row[0]}..{row[-1]}" if len(row) > 2 else ", ".join(str(seed) for seed in row) for row in rows)
