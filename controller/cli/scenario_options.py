"""The common parts of the commands that run scenarios: options, and the exit status of a verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.values import output_folder
from controller.scenarios.files import ScenarioError, built_in, load_scenario
from controller.scenarios.judge import FAIL, PASS
from controller.scenarios.language import Scenario

HELD, VIOLATED, UNKNOWN = 0, 1, 4


def add_scenario_options(
    parser: argparse.ArgumentParser, others: Sequence[str] = (), files: str = "a TOML file"
) -> None:
    """`others` are names that the command takes besides the built-in scenarios, `files` what it reads."""
    parser.add_argument(
        "scenario", help=f"one of {', '.join([*built_in(), *others])} (see `camerlengo list`), or {files}"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set a parameter of the scenario"
    )
    parser.add_argument(
        "--report", type=output_folder, metavar="DIR", help="write report.json, report.html and trace.parquet to DIR"
    )


def chosen_scenario(arguments: argparse.Namespace, others: Sequence[str] = ()) -> Scenario:
    """The scenario with its parameters set. UsageError for anything wrong with either."""
    settings: dict[str, str] = {}
    for word in arguments.set:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word}: expected KEY=VALUE")
        settings[key] = value
    try:
        return load_scenario(arguments.scenario, settings, others)
    except ScenarioError as error:
        raise UsageError(str(error)) from error


def exit_status(verdict: str, *, could_not_run: bool) -> int:
    """0 held, 1 violated, 3 could not run, 4 unknown. A violation that was seen outweighs a host that then failed."""
    if verdict == FAIL:
        return VIOLATED
    if could_not_run:
        return COULD_NOT_RUN
    return HELD if verdict == PASS else UNKNOWN
