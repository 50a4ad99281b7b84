"""`camerlengo campaign SCENARIO|swarm --seeds A..B`: simulations fanned out over Spark, a table of what moved what."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

import msgspec

from controller.cli.main import UsageError
from controller.cli.requirements import SPARK, Need
from controller.cli.simulate_plan import SWARM
from controller.cli.terminal import ProgressBar, show
from controller.cli.values import integer, output_folder, seeds
from controller.scenarios.files import ScenarioError, built_in, load_scenario

if TYPE_CHECKING:
    from controller.pipeline.campaign import Campaign, Result, SettingPoint

HELD, VIOLATED = 0, 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Simulates every seed with every combination of the settings, on all cores or a Spark cluster. Results are"
        " kept as they end; the same command goes on where an interrupted one stopped."
    )
    parser.add_argument("scenario", help=f"`swarm`, {', '.join(built_in())} (see `camerlengo list`), or a TOML file")
    parser.add_argument(
        "--seeds", type=seeds, required=True, metavar="A..B", help="run every seed from A to B, inclusive"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=V1,V2", help="run with each of these values of a parameter"
    )
    parser.add_argument(
        "--report",
        type=output_folder,
        required=True,
        metavar="DIR",
        help="write results, traces, reports and index.html to DIR",
    )
    parser.add_argument(
        "--traces",
        choices=("failing", "all", "none"),
        default="failing",
        help="runs whose traces and reports are kept (failing)",
    )
    parser.add_argument(
        "--partitions", type=integer(1), metavar="N", help="number of Spark tasks (eight for each core)"
    )
    parser.add_argument("--master", default="local[*]", metavar="URL", help="URL of the Spark master (local[*])")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return SPARK


def run(arguments: argparse.Namespace) -> int:
    from controller.pipeline.campaign import AnotherCampaign, retrying, run_campaign, summary_text, write_campaign_index
    from controller.pipeline.session import spark_session

    campaign = _campaign(arguments)
    try:
        total = len(campaign)
        with spark_session("campaign", retrying(arguments.master)) as spark, ProgressBar(total, total // 10) as bar:
            results = run_campaign(spark, campaign, arguments.report, arguments.partitions, _Progress(bar, total))
    except AnotherCampaign as error:
        raise UsageError(f"--report {error}") from error
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        raise
    text = summary_text(campaign, results)
    (arguments.report / "summary.txt").write_text(text + "\n", encoding="utf-8")
    rows = b"".join(msgspec.json.encode(result) + b"\n" for result in results)
    (arguments.report / "results.jsonl").write_bytes(rows)
    write_campaign_index(campaign, results, arguments.report)
    show(text)
    return VIOLATED if any(not result.passed for result in results) else HELD


def _campaign(arguments: argparse.Namespace) -> Campaign:
    from controller.pipeline.campaign import Campaign, SettingPoint, Traces

    seeds = arguments.seeds
    swept = [_values(word) for word in arguments.set]
    if len({name for name, _ in swept}) < len(swept):
        raise UsageError(
            "--set: a parameter is set twice; expected all of its values in one option, separated by commas"
        )
    if arguments.scenario == SWARM:
        if swept:
            raise UsageError("--set: expected a scenario; the plans of the swarm have no parameters except the seed")
        points: tuple[SettingPoint, ...] = (SettingPoint((), None),)
    else:
        points = tuple(_point(arguments.scenario, swept, values) for values in product(*(each for _, each in swept)))
    return Campaign(arguments.scenario, points, seeds.start, len(seeds), Traces(arguments.traces))


def _values(word: str) -> tuple[str, list[str]]:
    name, equals, values = word.partition("=")
    if not equals or not name or not all(values.split(",")):
        raise UsageError(f"--set {word}: expected KEY=VALUE[,VALUE...]")
    return name, values.split(",")


def _point(scenario: str, swept: Sequence[tuple[str, list[str]]], values: Sequence[str]) -> SettingPoint:
    from controller.pipeline.campaign import SettingPoint

    settings = tuple(zip((name for name, _ in swept), values, strict=True))
    try:
        return SettingPoint(settings, load_scenario(scenario, dict(settings), [SWARM]))
    except ScenarioError as error:
        raise UsageError(str(error)) from error


class _Progress:
    """Completed and total runs, their rate, and failures."""

    def __init__(self, bar: ProgressBar, total: int) -> None:
        self._bar, self._total = bar, total
        self._began_s = time.monotonic()
        self._known: int | None = None

    def __call__(self, results: Sequence[Result]) -> None:
        done, failing = len(results), sum(not result.passed for result in results)
        if self._known is None:
            self._known = done
        rate = (done - self._known) / max(time.monotonic() - self._began_s, 0.001)
        self._bar.update(done, f"{done} of {self._total}, {rate:.1f}/s, {failing} failing")
