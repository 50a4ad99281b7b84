"""`camerlengo simulate swarm` and `simulate PLAN.toml`: plans in virtual time, and what to do when one breaks.

A plan is what the swarm draws from a seed (docs/simulator.md). Its runs are judged by what must hold at every moment,
and by what must hold at rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from controller.cli import values
from controller.cli.main import UsageError
from controller.cli.scenario_options import HELD, VIOLATED
from controller.cli.terminal import ProgressBar, show
from controller.cli.values import output_file
from controller.cli.workers import each_seed
from controller.report.files import PAGE, write_report
from controller.report.html import IndexedRun, first_violation, write_index
from controller.scenarios.faults import describe
from controller.scenarios.files import ScenarioError, load_plan, plan_text
from controller.scenarios.judge import FAIL, PASS
from controller.scenarios.language import Plan
from controller.simulator.columns import first_difference, log_text
from controller.simulator.inspection import inside
from controller.simulator.plan_generator import draw_plan
from controller.simulator.safety_checker import Violation
from controller.simulator.shrinking import Shrinker
from controller.simulator.swarm import PlanRun, PlanWorld, plan_report, run_plan

SWARM = "swarm"
PROGRESS_EVERY = 100
SHOWN_EVENTS = 40
SHOWN_FAILURES = 20


def configure(parser: argparse.ArgumentParser) -> None:
    looking = parser.add_argument_group("looking closer", "into one run")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the runs event by event")
    looking.add_argument("--until", type=values.number(), metavar="MS", help="stop at this virtual time")
    looking.add_argument(
        "--show", type=values.integer(1), metavar="NODE", help="show the state of a broker at the end, or at --until"
    )
    looking.add_argument(
        "--log",
        type=output_file,
        metavar="FILE",
        help="write the run's log, with a column for each node and a line for each event",
    )
    parser.add_argument(
        "--jobs", type=values.jobs, default=1, metavar="N", help="number of processes that share the seeds (1)"
    )
    group = parser.add_argument_group("plans", "for `swarm` and for plan files")
    group.add_argument(
        "--tiers", action="store_true", help="swarm: in every seed brokers have an SSD and HDDs, and clients write"
    )
    group.add_argument(
        "--slow-devices",
        action="store_true",
        help="swarm: in every seed some log directory's device is slow now and then, and clients write",
    )
    group.add_argument("--plan", type=output_file, metavar="FILE", help="write the plan of the run")
    group.add_argument(
        "--shrink", type=output_file, metavar="FILE", help="minimize the plan of a failing run, and write the result"
    )


def refuse_plan_options(arguments: argparse.Namespace) -> None:
    """UsageError for what a scenario's run does not have."""
    for name in ("plan", "shrink"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name}: expected `swarm` or a plan file, not a scenario")
    _refuse_drawn(arguments, "a scenario")


def _drawn(arguments: argparse.Namespace) -> dict[str, bool]:
    """What a plan of the swarm is to have whatever the seed draws, as `draw_plan` takes it."""
    return {"tiers": arguments.tiers, "slow_devices": arguments.slow_devices}


def _words(drawn: Mapping[str, bool]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, wanted in drawn.items() if wanted]


def _refuse_drawn(arguments: argparse.Namespace, other: str) -> None:
    for word in _words(_drawn(arguments)):
        raise UsageError(f"{word}: expected `swarm`, not {other}")


def refuse_options_of_one_run(arguments: argparse.Namespace) -> None:
    """UsageError for what only makes sense with one seed."""
    for name in ("until", "show", "log", "plan", "shrink"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name}: expected one seed (--seed), not a range")


def run_many(arguments: argparse.Namespace, seeds: range) -> int:
    """Each seed's plan; those that broke first, each with the command that replays it."""
    refuse_options_of_one_run(arguments)
    drawn = _drawn(arguments)
    tally = _Tally(drawn)
    runs = []
    look = partial(_look, arguments.twice, arguments.report, drawn)
    with nullcontext() if arguments.json else ProgressBar(len(seeds), PROGRESS_EVERY) as bar:
        for number, seen in enumerate(each_seed(look, seeds, arguments.jobs), 1):
            tally.take(seen)
            error = seen.error or ""
            page = f"seed-{seen.seed}/{PAGE}"
            page = page if error and arguments.report is not None and (arguments.report / page).exists() else ""
            verdict = FAIL if error else PASS
            runs.append(IndexedRun(seen.seed, "", verdict, *first_violation(error), _replay(seen.seed, drawn), page))
            if bar is not None:
                bar.update(number, f"{number} of {len(seeds)} seeds, {len(tally.broken)} broke")
    if arguments.report is not None:
        write_index(arguments.report, SWARM, runs)
    if arguments.json:
        print(json.dumps(tally.report(), indent=2))
    else:
        show(tally.text())
    return VIOLATED if tally.broken else HELD


@dataclass(frozen=True, slots=True)
class _Seen:
    """The summary of one of many runs."""

    seed: int
    error: str | None
    took_s: float
    ended_ms: float
    rest_ms: float | None


def _look(twice: bool, report: Path | None, drawn: Mapping[str, bool], seed: int) -> _Seen:
    """Run one seed's plan, and write the report of one that fails. An error in the run is a violation of that seed."""
    began_s = time.process_time()
    try:
        run = run_plan(draw_plan(seed, **drawn))
    except Exception as failure:  # noqa: BLE001 - the other seeds are run all the same
        return _Seen(seed, f"no-defects: {type(failure).__name__}: {failure}", time.process_time() - began_s, 0.0, None)
    took_s = time.process_time() - began_s
    error = _difference(run) if twice else None
    if run.violation is not None:
        error = str(run.violation).splitlines()[0]
    if report is not None and error is not None:
        _write_report(run, report / f"seed-{seed}", _replay(seed, drawn))
    return _Seen(seed, error, took_s, run.ended_ms, run.rest_ms)


class _Tally:
    """The totals of many runs."""

    def __init__(self, drawn: Mapping[str, bool]) -> None:
        self._drawn = drawn
        self.took_s: list[float] = []
        self.rests_ms: list[float] = []
        self.virtual_ms = 0.0
        self.broken: list[tuple[int, str]] = []

    def take(self, seen: _Seen) -> None:
        self.took_s.append(seen.took_s)
        self.virtual_ms += seen.ended_ms
        if seen.rest_ms is not None:
            self.rests_ms.append(seen.rest_ms)
        if seen.error is not None:
            self.broken.append((seen.seed, seen.error))

    def report(self) -> dict[str, Any]:
        return {
            "format": 1,
            "seeds": len(self.took_s),
            "violations": [{"seed": seed, "violation": error} for seed, error in self.broken],
            "cpu_s_median": round(statistics.median(self.took_s), 3),
            "virtual_s": round(self.virtual_ms / 1000, 3),
            "rest_ms_worst": max(self.rests_ms, default=None),
        }

    def text(self) -> str:
        parts = []
        for seed, error in self.broken[:SHOWN_FAILURES]:
            parts += [_replay(seed, self._drawn), f"    {error}"]
        if len(self.broken) > SHOWN_FAILURES:
            parts.append(f"and {len(self.broken) - SHOWN_FAILURES} more seeds")
        if self.rests_ms:
            parts.append(
                f"from the calm to rest: median {statistics.median(self.rests_ms) / 1000:.1f} s,"
                f" worst {max(self.rests_ms) / 1000:.1f} s of virtual time"
            )
        parts.append(
            f"{self.virtual_ms / 1000:.0f} s of virtual time; {statistics.median(self.took_s):.2f} s of CPU a seed"
            f" (median), {max(self.took_s):.2f} s at most"
        )
        parts.append(f"{len(self.took_s) - len(self.broken)} of {len(self.took_s)} seeds held")
        return "\n".join(parts)


def _write_report(run: PlanRun, folder: Path, command: str) -> None:
    write_report(plan_report(run), folder, command)


def _replay(seed: int, drawn: Mapping[str, bool]) -> str:
    return " ".join(["camerlengo", "simulate", SWARM, "--seed", str(seed), *_words(drawn)])


def _difference(run: PlanRun) -> str | None:
    """Run the same plan again, and return a description of the first event that differs."""
    return first_difference(run.records, run_plan(run.plan).records)


def chosen_plan(arguments: argparse.Namespace) -> Plan:
    """The one plan that the arguments name: the swarm's of that seed, or a file's, with its own seed or that given."""
    if arguments.scenario == SWARM:
        return draw_plan(0 if arguments.seed is None else arguments.seed, **_drawn(arguments))
    _refuse_drawn(arguments, "a plan file")
    try:
        plan = load_plan(Path(arguments.scenario))
    except ScenarioError as error:
        raise UsageError(str(error)) from error
    if arguments.seed is None:
        return plan
    return replace(plan, seed=arguments.seed)


def run_one(arguments: argparse.Namespace) -> int:
    """One plan, in full: its faults, the violation with the events before it, and how to see more."""
    plan = chosen_plan(arguments)
    if arguments.show is not None and arguments.show not in plan.cluster.nodes:
        raise UsageError(f"--show {arguments.show}: expected a broker from 1 to {plan.cluster.brokers}")
    if arguments.until is not None and arguments.report is not None:
        raise UsageError("--until: not allowed with --report: a stopped run has no report")
    if arguments.plan is not None:
        arguments.plan.write_text(plan_text(plan))
    world = PlanWorld(plan)
    rest_ms = world.finish(arguments.until)
    shown = None
    if arguments.show is not None:
        shown = inside(world.host.processes.get(arguments.show), world.host.world.zookeeper)
    run = world.result(rest_ms)
    difference = _difference(run) if arguments.twice and arguments.until is None else None
    if arguments.log is not None:
        arguments.log.write_text(log_text(run.records, plan.cluster.nodes))
    if arguments.report is not None:
        _write_report(run, arguments.report, " ".join(_command(arguments)))
    if arguments.json:
        print(json.dumps(_report(run, difference), indent=2))
    else:
        _tell(arguments, run, shown, difference)
    if arguments.shrink is not None:
        if run.violation is not None:
            _shrink(arguments, plan, run.violation)
        else:
            print(f"--shrink: no violation; {arguments.shrink} was not written", file=sys.stderr)
    return VIOLATED if run.violation is not None or difference is not None else HELD


def _report(run: PlanRun, difference: str | None) -> dict[str, Any]:
    violation = run.violation
    return {
        "format": 1,
        "plan": run.plan.name,
        "seed": run.plan.seed,
        "verdict": "pass" if violation is None and difference is None else "fail",
        "violation": None
        if violation is None
        else {
            "invariant": violation.invariant,
            "at_ms": round(violation.at_ms, 3),
            "nodes": list(violation.nodes),
            "detail": violation.detail,
        },
        "difference": difference,
        "ended_ms": round(run.ended_ms, 3),
        "rest_ms": None if run.rest_ms is None else round(run.rest_ms, 3),
        "trace": run.trace_hash,
    }


def _tell(arguments: argparse.Namespace, run: PlanRun, shown: str | None, difference: str | None) -> None:
    plan = run.plan
    print(
        f"{plan.cluster.brokers} brokers, {plan.cluster.zookeeper_servers} ZooKeeper servers, sessions of"
        f" {plan.cluster.session_timeout_ms} ms; calm at {plan.calm_ms / 1000:g} s among brokers"
        f" {', '.join(map(str, plan.core))} (others {plan.outside.value})"
    )
    for happening in plan.happenings:
        print(f"{happening.at_ms / 1000:8.3f} s  {describe(happening)}")
    if shown is not None:
        print(f"\nbroker {arguments.show} at {run.ended_ms:.1f} ms\n{shown}", end="")
    if run.violation is not None:
        print(f"\n{log_text(run.records, plan.cluster.nodes, last=SHOWN_EVENTS)}\nVIOLATED {run.violation}")
        more = [f"--until {run.violation.at_ms:.1f} --show {node}" for node in run.violation.nodes[:1] if node > 0]
        print("look closer: " + " ".join([*_command(arguments), *more, "--log FILE"]))
    elif arguments.until is not None:
        print(f"\nstopped at {run.ended_ms:.1f} ms; nothing was violated")
    else:
        print(f"\nheld: at rest {(run.rest_ms or 0) / 1000:.1f} s after the calm")
    if difference is not None:
        print(f"NOT REPEATABLE: {difference}")
    print(f"seed {plan.seed}, {len(run.records)} events, trace {run.trace_hash[:16]}", flush=True)


def _command(arguments: argparse.Namespace) -> list[str]:
    seed = [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    return ["camerlengo", "simulate", str(arguments.scenario), *seed, *_words(_drawn(arguments))]


def _shrink(arguments: argparse.Namespace, plan: Plan, violation: Violation) -> None:
    def progress(least: Plan, tried: int) -> None:
        print(
            f"{tried} runs: {least.cluster.brokers} brokers, {len(least.faults)} faults,"
            f" {len(least.happenings) - len(least.faults)} operations, calm at {least.calm_ms / 1000:g} s",
            file=sys.stderr,
            flush=True,
        )

    least = Shrinker(violation, progress).shrink(plan)
    arguments.shrink.write_text(plan_text(least))
    print(
        f"shrunk to {least.cluster.brokers} brokers and {len(least.faults)} faults:"
        f" camerlengo simulate {arguments.shrink}"
    )
