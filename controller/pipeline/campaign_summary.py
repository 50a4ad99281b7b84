"""The summary of a campaign: failing runs first, then the effect of each parameter, with confidence intervals.

Pure: results in, values and text out. Shares have Wilson's interval, means Student's; both 95%. Runs of one campaign
share seeds between settings, which these intervals leave aside: they err on the wide side.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.pipeline.campaign_runs import Campaign, Result, kept_in
from controller.report.files import PAGE
from controller.report.html import IndexedRun, first_violation, write_index
from controller.report.summary import render_table

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
