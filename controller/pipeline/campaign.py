"""A campaign: many runs of a scenario, fanned out over Spark's executors, a slice of them a task; and its summary.

A run's result is a line of JSON, appended as the run ends; its trace and report, if wanted, are in place before that.
What was finished is known from the lines alone: a line torn by a process's death is no line, and that run is run again.
So a worker's death costs the runs that it was in, and an interrupted campaign goes on, with any number of partitions.
The same run gives the same line wherever it runs. The folder has to be reachable under one path from all machines.

The summary has failing runs first, then the effect of each parameter. Shares have Wilson's interval, means Student's;
both 95%. Runs of one campaign share seeds between settings, which these intervals leave aside: they err on the wide
side. Spark is imported when a campaign starts.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from controller.report.files import PAGE, write_report
from controller.report.html import IndexedRun, first_violation, write_index
from controller.report.summary import Report, render_table
from controller.scenarios.judge import PASS
from controller.scenarios.language import Scenario
from controller.simulator.plan_generator import draw_plan
from controller.simulator.run import simulate
from controller.simulator.swarm import plan_report, run_plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

COULD_NOT_RUN = "could not run"


class Traces(StrEnum):
    """The runs whose traces are kept."""

    NONE = "none"
    FAILING = "failing"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class SettingPoint:
    """One setting of the parameters; the scenario has them set already. None: the swarm's plans, drawn from seeds."""

    settings: tuple[tuple[str, str], ...]
    scenario: Scenario | None


@dataclass(frozen=True, slots=True)
class Campaign:
    """`name` is the scenario as the command named it. A run is a number: seeds vary fastest."""

    name: str
    points: tuple[SettingPoint, ...]
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
    error: str
    trace_hash: str
    duration_ms: float
    broker_recoveries_ms: tuple[float, ...]
    controller_recoveries_ms: tuple[float, ...]

    @property
    def passed(self) -> bool:
        return self.verdict == PASS


FORMER_ERROR_KEY = b'"trouble":'
"""The key of `Result.error` in files of earlier campaigns."""

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
                result = _RESULT.decode(line.replace(FORMER_ERROR_KEY, b'"error":', 1))
            except msgspec.DecodeError:
                continue  # torn: its run is not done
            found[result.number] = result
    return [found[number] for number in sorted(found)]


ATTEMPTS = 4
POLL_S = 0.5
SLICES_A_CORE = 8
"""Runs differ in length: many slices keep all cores at work to the end."""

Progress = Callable[[Sequence[Result]], None]
Batches: TypeAlias = "Iterator[pa.RecordBatch]"


class AnotherCampaign(Exception):
    """The folder holds the results of a campaign that is not this one."""


def retrying(master: str) -> str:
    """A local master that tries a task again, as every other one does."""
    return f"{master[:-1]},{ATTEMPTS}]" if master.startswith("local[") and "," not in master else master


def run_campaign(
    spark: SparkSession,
    campaign: Campaign,
    folder: Path,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """All results, those of an earlier, interrupted call included. `progress` is given what there is, now and then.
    Raises KeyboardInterrupt once Spark was asked to stop the running tasks."""
    _claim(campaign, folder)
    known = folder / "results"
    done = {result.number for result in _all(known)}
    left = [number for number in range(len(campaign)) if number not in done]
    if left:
        wanted = partitions or spark.sparkContext.defaultParallelism * SLICES_A_CORE
        slices = min(wanted, len(left))
        attempt = len({file.name.split("-")[0] for file in known.glob("*.jsonl")}) if known.exists() else 0
        work = spark.sparkContext.broadcast((campaign, left, slices, f"{attempt:04}"))
        job = spark.range(0, slices, 1, slices).mapInArrow(_slice(work, folder), "runs long")
        _watched(spark, job.count, known, progress)
    results = _all(known)
    if progress is not None:
        progress(results)
    return results


def _slice(work: Any, folder: Path) -> Callable[[Batches], Batches]:
    def runs(batches: Batches) -> Batches:
        import pyarrow as pa

        campaign, left, slices, attempt = work.value
        for batch in batches:
            for place in batch.column("id").to_pylist():
                # Every `slices`-th run: neighbouring seeds of a slow setting are spread over all slices.
                finished = sum(1 for _ in run_all(campaign, left[place::slices], folder, f"{attempt}-{place:06}"))
                yield pa.RecordBatch.from_pydict({"runs": [finished]})

    return runs


def _watched(spark: SparkSession, job: Callable[[], Any], known: Path, progress: Progress | None) -> None:
    """Runs the job on a thread of its own, so that this one can look at what is there and be interrupted."""
    failures: list[BaseException] = []

    def carry_out() -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - raised again on the caller's thread
            failures.append(error)

    thread = threading.Thread(target=carry_out, name="campaign", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            if progress is not None:
                progress(_all(known))
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):  # the signal's handler may have killed the JVM
            spark.sparkContext.cancelAllJobs()
        raise
    if failures:
        raise failures[0]


def _all(known: Path) -> list[Result]:
    return read_results(sorted(known.glob("*.jsonl")))


def _claim(campaign: Campaign, folder: Path) -> None:
    """Results of another campaign are not mixed with these."""
    folder.mkdir(parents=True, exist_ok=True)
    points = [dict(point.settings) for point in campaign.points]
    content = msgspec.json.encode(
        {"name": campaign.name, "points": points, "first_seed": campaign.first_seed, "seeds": campaign.seeds}
    )
    marker = folder / "campaign.json"
    if marker.exists() and marker.read_bytes() != content:
        raise AnotherCampaign(f"{folder} holds another campaign: {marker.read_text()}")
    marker.write_bytes(content)


_Z = 1.959964
SHOWN_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Interval:
    """A value between two bounds that hold it in 95 of 100 campaigns."""

    low: float
    value: float
    high: float


def wilson(hits: int, of: int) -> Interval:
    """The share hits/of. Sound where all or none hit, as in most campaigns. ValueError without any run."""
    if not 0 <= hits <= of or not of:
        raise ValueError(f"{hits} of {of} is no share")
    share = hits / of
    middle = (share + _Z**2 / (2 * of)) / (1 + _Z**2 / of)
    half = _Z * math.sqrt(share * (1 - share) / of + _Z**2 / (4 * of**2)) / (1 + _Z**2 / of)
    return Interval(max(0.0, middle - half), share, min(1.0, middle + half))


def mean(values: Sequence[float]) -> Interval:
    """ValueError without any value; a single one has no bounds but itself."""
    if not values:
        raise ValueError("no values to take a mean of")
    value = statistics.fmean(values)
    half = 0.0 if len(values) == 1 else _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(value - half, value, value + half)


def _student(freedom: int) -> float:
    """The 97.5th percentile of Student's t, by Cornish and Fisher's expansion: within 0.3% from 5 degrees on, and the
    exact ones below."""
    exact = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}
    if freedom in exact:
        return exact[freedom]
    z = _Z
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True, slots=True)
class Group:
    """All runs with one value of one parameter (`name` "" for all runs)."""

    name: str
    value: str
    runs: int
    failing: Interval
    broker_recovery_ms: Interval | None
    controller_recovery_ms: Interval | None


def groups(campaign: Campaign, results: Sequence[Result]) -> list[Group]:
    """All runs, then each value of each parameter that has more than one."""
    found = [_group("", "", results)]
    names = [name for name, _ in campaign.points[0].settings]
    for place, name in enumerate(names):
        values = list(dict.fromkeys(point.settings[place][1] for point in campaign.points))
        if len(values) < 2:
            continue
        for value in values:
            points = {number for number, point in enumerate(campaign.points) if point.settings[place][1] == value}
            of_value = [result for result in results if result.point in points]
            if of_value:
                found.append(_group(name, value, of_value))
    return found


def _group(name: str, value: str, results: Sequence[Result]) -> Group:
    brokers = [ms for result in results for ms in result.broker_recoveries_ms]
    controllers = [ms for result in results for ms in result.controller_recoveries_ms]
    return Group(
        name,
        value,
        len(results),
        wilson(sum(not result.passed for result in results), len(results)),
        mean(brokers) if brokers else None,
        mean(controllers) if controllers else None,
    )


def moved(found: Sequence[Group]) -> Iterator[str]:
    """Which parameter moved what: where the intervals of two of its values have nothing in common."""
    for name in dict.fromkeys(group.name for group in found if group.name):
        values = [group for group in found if group.name == name]
        for what in ("failing", "broker_recovery_ms", "controller_recovery_ms"):
            known = [(one.value, interval) for one in values if (interval := getattr(one, what)) is not None]
            if not known:
                continue
            low, high = min(known, key=lambda one: one[1].value), max(known, key=lambda one: one[1].value)
            if low[1].high < high[1].low:
                scale = 100 if what == "failing" else 1
                yield (
                    f"{name} moved {what.replace('_', ' ')}{' %' if scale > 1 else ''}:"
                    f" {_spelled(low[1], scale)} at {low[0]}, {_spelled(high[1], scale)} at {high[0]}"
                )


def _spelled(interval: Interval, scale: float) -> str:
    return f"{interval.value * scale:.4g} [{interval.low * scale:.4g}, {interval.high * scale:.4g}]"


def summary_text(campaign: Campaign, results: Sequence[Result]) -> str:
    """Failing runs first, each with how to run it again; then the table, by parameter."""
    return "\n".join(_lines(campaign, results))


def _lines(campaign: Campaign, results: Sequence[Result]) -> Iterator[str]:
    failing = [result for result in results if not result.passed]
    for result in failing[:SHOWN_FAILURES]:
        yield campaign.replay(result.point, result.seed)
        yield f"    {result.verdict}: {result.error}"
    if len(failing) > SHOWN_FAILURES:
        yield f"and {len(failing) - SHOWN_FAILURES} more"
    if failing:
        yield ""
    found = groups(campaign, results)
    yield render_table(figures(found))
    yield TOLD
    yield from moved(found)
    yield f"{len(results) - len(failing)} of {len(results)} runs passed"


TOLD = "virtual times, means; in brackets 95% confidence"


def figures(found: Sequence[Group]) -> list[tuple[str, ...]]:
    """Return the table of all groups, a header first."""
    head = ("parameter", "value", "runs", "failing %", "broker recovery ms", "controller recovery ms")
    return [head, *(_row(group) for group in found)]


def write_campaign_index(campaign: Campaign, results: Sequence[Result], folder: Path) -> None:
    """Write index.html, with a link to each report in `folder`."""
    runs = []
    for result in results:
        page = kept_in(folder, result) / PAGE
        settings = ", ".join(f"{name}={value}" for name, value in campaign.points[result.point].settings)
        runs.append(
            IndexedRun(
                result.seed,
                settings,
                result.verdict,
                *first_violation(result.error),
                campaign.replay(result.point, result.seed),
                page.relative_to(folder).as_posix() if page.exists() else "",
            )
        )
    found = groups(campaign, results)
    write_index(folder, campaign.name, runs, figures(found), [f"{TOLD}.".capitalize(), *moved(found)])


def _row(group: Group) -> tuple[str, ...]:
    share = Interval(group.failing.low * 100, group.failing.value * 100, group.failing.high * 100)
    times = (_told(group.broker_recovery_ms), _told(group.controller_recovery_ms))
    return (group.name or "all", group.value, str(group.runs), _told(share), *times)


def _told(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
