"""Runs with a verdict inside a test: seeds, scenarios and plans in virtual time, scenarios on real processes.

A run that does not pass raises `RunFailed`, which says what was violated and how to repeat the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from controller.report.summary import Report, report_text
from controller.scenarios.faults import IN_PROCESS, REAL
from controller.scenarios.files import is_plan, load_plan, load_scenario, plan_text
from controller.scenarios.judge import FAIL, PASS
from controller.scenarios.language import Plan, Scenario, property_text
from controller.scenarios.runner import refusal
from controller.testing.html_report import report_of, write_page
from controller.testing.timeline import timeline_of

if TYPE_CHECKING:
    from controller.simulator.simulation import Simulation

SWARM = "swarm"
Settings = Mapping[str, str | int | float | bool]


class RunFailed(AssertionError):
    """A run's verdict is not "pass". `report` has the whole run, `replay` the command that repeats it."""

    def __init__(self, report: Report, replay: str) -> None:
        broken = [f"{one.name}: {one.detail}" for one in report.judgement.invariants if one.held is not True]
        super().__init__("\n".join([f"verdict: {report.verdict}", *broken, f"replay: {replay}"]))
        self.report = report
        self.replay = replay


class RunNotPossible(RuntimeError):
    """A run could not be made on this machine, or could not be judged; the message says why."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the report of a failed test shows of one run."""

    report: Callable[[str], Report]
    """Given the test's name."""
    replay: str
    text: Callable[[], str]


class _Runs:
    """What both kinds of runs report."""

    heading = ""

    def __init__(self, directory: Path, settings: Settings | None) -> None:
        self._directory = directory
        self._settings: Settings = settings or {}
        self._shown: list[_Shown] = []

    def _judged(self, report: Report, replay: str, *, could_not_run: bool) -> Report:
        self._shown.append(_Shown(lambda _name: report, replay, lambda: _run_text(report, replay)))
        if could_not_run and report.verdict != FAIL:
            reasons = "; ".join(one.detail for one in report.judgement.invariants if one.held is not True)
            raise RunNotPossible(f"{report.scenario.name} could not be run: {reasons}")
        if report.verdict != PASS:
            raise RunFailed(report, replay)
        return report

    def _scenario(self, what: str | Path | Scenario, settings: Settings) -> tuple[Scenario, list[str]]:
        """The scenario, and the words that name it in a command."""
        texts = _texts(settings)
        if isinstance(what, Scenario):
            if texts:
                raise ValueError(
                    f"settings {', '.join(texts)}: expected none, since {what.name} has its parameters set"
                )
            return what, [what.name]
        words = [word for name, value in texts.items() for word in ("--set", f"{name}={value}")]
        return load_scenario(str(what), texts), [str(what), *words]

    def sections(self) -> list[tuple[str, str]]:
        """Return what the report of a failed test shows."""
        return [(self.heading, one.text()) for one in self._shown]

    def write_pages(self, directory: Path, name: str) -> list[Path]:
        """Write a page for each run."""
        return [
            write_page(one.report(name), directory if number == 1 else directory / f"run-{number}", one.replay)
            for number, one in enumerate(self._shown, 1)
        ]


class SimulationRuns(_Runs):
    """The fixture `simulation`: runs of the simulator. Each has the seed and the settings of the mark unless given.

    Args:
        directory: where plans are written that a command is to repeat.
        seed: of the runs.
        settings: parameters of scenarios; for `cluster` settings of brokers, as in server.properties.
    """

    heading = "Simulation"

    def __init__(self, directory: Path, *, seed: int = 0, settings: Settings | None = None) -> None:
        super().__init__(directory, settings)
        self.seed = seed

    def run(
        self, what: str | Path | Scenario | Plan = SWARM, *, seed: int | None = None, settings: Settings | None = None
    ) -> Report:
        """Run to the end and return the report; the verdict is "pass".

        Args:
            what: "swarm" (the plan that the swarm generates from the seed), the name of a built-in scenario, a TOML
                file of a scenario or a plan, or one of these as an object.
            seed: None: the mark's, or that of `--kafka-seed`, or 0. A plan has its own unless one is given here.
            settings: parameters of the scenario, in place of the mark's.

        Raises:
            RunFailed: an invariant or an expectation of the scenario does not hold.
            RunNotPossible: a step could not be carried out.
            ScenarioError: the file can't be used.
        """
        file = _file(what)
        if file is not None and is_plan(file):
            return self._run_plan(load_plan(file), seed, str(file))
        if isinstance(what, Plan):
            return self._run_plan(what, seed, None)
        if what == SWARM:
            from controller.simulator.plan_generator import draw_plan

            number = self.seed if seed is None else seed
            return self._run_plan(draw_plan(number), None, SWARM, number)
        from controller.simulator.run import simulate

        scenario, words = self._scenario(what, self._settings if settings is None else settings)
        number = self.seed if seed is None else seed
        result = simulate(scenario, number)
        replay = _command("simulate", *words, "--seed", str(number))
        return self._judged(result.report, replay, could_not_run=result.could_not_run)

    def _run_plan(self, plan: Plan, seed: int | None, named: str | None, drawn: int | None = None) -> Report:
        from msgspec.structs import replace

        from controller.simulator.swarm import plan_report, run_plan

        if seed is not None:
            plan = replace(plan, seed=seed)
        if named is None:
            path = self._directory / f"{plan.name}.toml"
            path.write_text(plan_text(plan), encoding="utf-8")
            named = str(path)
        number = seed if drawn is None else drawn
        words = [] if number is None else ["--seed", str(number)]
        return self._judged(plan_report(run_plan(plan)), _command("simulate", named, *words), could_not_run=False)

    def cluster(self, brokers: int = 3, *, seed: int | None = None, **arguments: Any) -> Simulation:
        """Return a simulated cluster that the test steps by itself (docs/embedding.md): the first violation of an
        invariant raises `BrokenInvariant`. `arguments` are those of `Simulation`."""
        from controller.simulator.simulation import Simulation

        number = self.seed if seed is None else seed
        arguments.setdefault("settings", _texts(self._settings))
        world = Simulation(brokers, seed=number, **arguments)
        replay = f"the same test with seed {number}"

        def report(name: str) -> Report:
            return report_of(world.records, 0.0, brokers, name, FAIL, host="simulated", seed=number)

        self._shown.append(_Shown(report, replay, lambda: f"{timeline_of(world.records, 0.0)}\nreplay: {replay}"))
        return world


class ChaosRuns(_Runs):
    """The fixture `chaos`: scenarios with real clients, on broker processes and a ZooKeeper server or in this process.

    Needs the extra `chaos`. Each run takes as long as its scenario says.

    Args:
        directory: where the brokers' settings and logs are kept.
        settings: parameters of the scenarios.
        host: what runs the brokers: "process" (a process each) or "memory" (this process).

    Raises:
        ValueError: there is no such host.
    """

    heading = "Chaos"

    def __init__(
        self, directory: Path, *, settings: Settings | None = None, host: Literal["memory", "process"] = "process"
    ) -> None:
        super().__init__(directory, settings)
        if host not in ("memory", "process"):
            raise ValueError(f"host {host!r}: expected 'memory' or 'process'")
        self._in_process = host == "memory"
        self._count = 0

    def run(self, what: str | Path | Scenario, *, settings: Settings | None = None) -> Report:
        """Run a scenario to its end and return the report; the verdict is "pass". Nothing that it started is left.

        Args:
            what: the name of a built-in scenario, its TOML file, or a scenario as an object.
            settings: parameters of the scenario, in place of the mark's.

        Raises:
            RunFailed: an invariant or an expectation of the scenario does not hold.
            RunNotPossible: a step could not be carried out, or only the simulator has its fault.
            ScenarioError: the file can't be used.
        """
        from controller.chaos.run import run_scenario

        scenario, words = self._scenario(what, self._settings if settings is None else settings)
        problem = refusal(scenario, IN_PROCESS if self._in_process else REAL)
        if problem is not None:
            raise RunNotPossible(problem)
        self._count += 1
        folder = self._directory / f"chaos-{self._count}"
        host = None
        if self._in_process:
            from controller.testing.scenario_host import InProcessHost

            host = InProcessHost(folder=folder)
        result = run_scenario(scenario, folder=folder, progress=lambda _at_ms, _line: None, host=host)
        replay = _command("chaos", *words, *(["--in-process"] if self._in_process else []))
        return self._judged(result.report, replay, could_not_run=result.could_not_run)


def _file(what: str | Path | Scenario | Plan) -> Path | None:
    if isinstance(what, str):
        return Path(what) if what.endswith(".toml") else None
    return what if isinstance(what, Path) else None


def _texts(settings: Settings) -> dict[str, str]:
    return {name: property_text(one) if isinstance(one, bool) else str(one) for name, one in settings.items()}


def _command(*words: str) -> str:
    return shlex.join(["camerlengo", *words])


def _run_text(report: Report, replay: str) -> str:
    return f"{timeline_of(report.records, 0.0)}\n\n{report_text(report)}\nreplay: {replay}"
