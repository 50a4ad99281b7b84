"""`camerlengo chaos SCENARIO`: a scenario on real processes, or in this process, with real clients and a verdict."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from controller.chaos.live_host import LiveHost
from controller.chaos.run import RunResult, run_scenario
from controller.cli.main import UsageError
from controller.cli.requirements import CLIENTS, TRACES, Need
from controller.cli.scenario_options import add_scenario_options, chosen_scenario, exit_status
from controller.cli.terminal import show
from controller.cli.values import integer, output_folder
from controller.cli.zookeeper_options import add_zookeeper_options, zookeeper_needs
from controller.report.files import write_report
from controller.report.summary import render_table, report_object, report_text
from controller.scenarios.faults import IN_PROCESS, REAL
from controller.scenarios.language import Scenario
from controller.scenarios.runner import refusal


def configure(parser: argparse.ArgumentParser) -> None:
    add_scenario_options(parser)
    parser.add_argument(
        "--runs", type=integer(1, 100_000), default=1, metavar="N", help="run it N times and print a table (1)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON (with --runs: a list of reports)")
    parser.add_argument("--keep", type=output_folder, metavar="DIR", help="keep the brokers' settings and logs in DIR")
    parser.add_argument(
        "--in-process", action="store_true", help="run the brokers in this process, with ZooKeeper in memory"
    )
    add_zookeeper_options(parser)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    traces = TRACES if arguments.report is not None else ()
    servers = 1 if arguments.in_process else chosen_scenario(arguments).cluster.zookeeper_servers
    return (*CLIENTS, *traces, *zookeeper_needs(arguments, servers))


def run(arguments: argparse.Namespace) -> int:
    scenario = chosen_scenario(arguments)
    in_process = arguments.in_process
    if in_process and (arguments.zookeeper or arguments.zookeeper_jars):
        raise UsageError("--in-process: expected no --zookeeper and no --zookeeper-jars, since ZooKeeper is in memory")
    _refuse_unsupported(scenario, IN_PROCESS if in_process else REAL)
    results: list[RunResult] = []
    for number in range(1, arguments.runs + 1):
        folder = _numbered(arguments.keep, number, arguments.runs)
        result = run_scenario(
            scenario,
            folder=folder,
            zookeeper=arguments.zookeeper,
            jars=arguments.zookeeper_jars,
            progress=_silent if arguments.json else _show,
            host=_in_process(folder) if in_process else None,
        )
        results.append(result)
        if arguments.report is not None:
            write_report(result.report, _numbered(arguments.report, number, arguments.runs) or arguments.report)
        if not arguments.json:
            show(_ending(result, number, arguments.runs))
    if arguments.json:
        objects = [report_object(result.report) for result in results]
        print(json.dumps(objects if arguments.runs > 1 else objects[0], indent=2, sort_keys=True))
    elif arguments.runs > 1:
        show(runs_table(results))
    return max((exit_status(one.report.verdict, could_not_run=one.could_not_run) for one in results), key=_severity)


def _in_process(folder: Path | None) -> LiveHost:
    from controller.testing.scenario_host import InProcessHost

    return InProcessHost(folder=folder)


def _refuse_unsupported(scenario: Scenario, host: str) -> None:
    """UsageError, before anything is started, for a step or a key that the host does not know."""
    problem = refusal(scenario, host)
    if problem is not None:
        raise UsageError(f"{problem}: camerlengo simulate {scenario.name}")


def _numbered(folder: Path | None, number: int, runs: int) -> Path | None:
    """A folder a run where there are several."""
    return folder / f"run-{number}" if folder is not None and runs > 1 else folder


def _show(at_ms: float, line: str) -> None:
    print(f"{at_ms / 1000:8.3f} s  {line}", flush=True)


def _silent(at_ms: float, line: str) -> None:
    """With --json, standard output is the report's alone."""


def _ending(result: RunResult, number: int, runs: int) -> str:
    text = report_text(result.report)
    return f"\n{text}" if runs == 1 else f"\n{text}\nrun {number} of {runs}: {result.wall_s:.1f} s\n"


def _severity(status: int) -> int:
    """Which of several runs' statuses speaks for all: a violation, then what was not run, then what is unknown."""
    return (0, 4, 3, 1).index(status)


def runs_table(results: list[RunResult]) -> str:
    """A row a run, then the median over all failovers, by kind."""
    rows: list[tuple[str, ...]] = [("run", "verdict", "seconds", "session end to client (ms)", "fault to client (ms)")]
    for number, result in enumerate(results, 1):
        failovers = result.report.judgement.failovers
        rows.append(
            (
                str(number),
                result.report.verdict,
                f"{result.wall_s:.1f}",
                ", ".join(f"{f.kind} {f.recovery_ms:.0f}" for f in failovers if f.recovery_ms is not None),
                ", ".join(
                    f"{f.kind} {f.recovered_at_ms - f.fault_at_ms:.0f}"
                    for f in failovers
                    if f.recovered_at_ms is not None
                ),
            )
        )
    return "\n".join([render_table(rows), "", *_medians(results)])


def _medians(results: list[RunResult]) -> list[str]:
    passed = sum(result.report.verdict == "pass" for result in results)
    lines = [f"{passed} of {len(results)} passed"]
    for kind in ("broker", "controller"):
        times = [
            failover.recovery_ms
            for result in results
            for failover in result.report.judgement.failovers
            if failover.kind == kind and failover.recovery_ms is not None
        ]
        if times:
            lines.append(
                f"{kind}: session end to client's complete metadata, {len(times)} failovers:"
                f" median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms"
            )
    return lines
