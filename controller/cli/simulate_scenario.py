"""One run of a scenario in virtual time, for `camerlengo simulate`: reports progress, stops at a given time to inspect
the state, writes a log, and runs a second time to verify that nothing differs."""

from __future__ import annotations

import argparse
import json

from controller.cli.main import UsageError
from controller.cli.scenario_options import HELD, VIOLATED, exit_status
from controller.report.files import write_report
from controller.report.summary import report_object, report_text
from controller.scenarios.language import Scenario
from controller.scenarios.runner import cluster_spec
from controller.simulator.columns import first_difference, log_text
from controller.simulator.inspection import inside
from controller.simulator.run import ScenarioWorld, SimulationResult, simulate


def run_one(arguments: argparse.Namespace, scenario: Scenario, seed: int) -> int:
    """In full, or up to `--until`: then there is a state to look at and no verdict."""
    nodes = cluster_spec(scenario).nodes
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
    differs = difference(result) if arguments.twice else None
    if arguments.report is not None:
        write_report(result.report, arguments.report, f"{command(arguments)} {seed}")
    if arguments.json:
        print(json.dumps(report_object(result.report), indent=2, sort_keys=True))
    else:
        parts = [*([shown] if shown else []), report_text(result.report)]
        parts += [f"NOT REPEATABLE: {differs}"] if differs is not None else []
        print("\n" + "\n".join(parts) + f"\nseed {seed}, trace {result.trace_hash[:16]}", flush=True)
    if differs is not None:
        return VIOLATED
    return exit_status(result.report.verdict, could_not_run=result.could_not_run)


def command(arguments: argparse.Namespace) -> str:
    """Return the command that replays one seed, but for the seed."""
    settings = "".join(f" --set {word}" for word in arguments.set)
    return f"camerlengo simulate {arguments.scenario}{settings} --seed"


def difference(result: SimulationResult) -> str | None:
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
        arguments.log.write_text(log_text(world.host.records(), cluster_spec(world.scenario).nodes))


def _show(at_ms: float, line: str) -> None:
    print(f"{at_ms / 1000:8.3f} s  {line}", flush=True)


def _silent(at_ms: float, line: str) -> None:
    """With --json, standard output is the report's alone."""
