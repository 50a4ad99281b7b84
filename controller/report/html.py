"""Self-contained HTML pages, rendered from `templates/`: the report of a run, and the index of many runs.

A page loads nothing. Its script enlarges the drawings over time and is not needed to read the page. Values are escaped
unless they are `Markup`. jinja2 is imported when the first page is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from controller.report.charts import chart, failover_rows, failovers_drawing
from controller.report.layout import draw, in_words, legend_html, patterns_html
from controller.report.palette import page_style, picture_style
from controller.report.summary import (
    Report,
    counts_text,
    host_stalls_note,
    latency_around_faults,
    latency_rows,
    record_counts,
    steps_of,
)
from controller.report.svg import TimeScale, close_up, frame_html, whole_run, zoomable_html
from controller.report.timeline import Lane, Timeline
from controller.scenarios.failovers import Failover
from controller.scenarios.judge import PASS

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Return a template as text, with these values. UndefinedError if it names a value that is not there."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("controller.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.globals["styles"] = Markup(page_style() + picture_style())
    return environment


def _printable(value: Any) -> Any:
    """Replace control characters in text: HTML has no escape for them."""
    if type(value) is str and not value.isprintable():
        return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in value)
    return value


MOST_CLOSE_UPS = 12
_LANES_IN_A_CLOSE_UP = 6
_UNRECOVERED_MS = 2_000.0


def report_html(report: Report, replay: str = "") -> str:
    """Return the page of a run. `replay`: the command that repeats it, if there is one."""
    from markupsafe import Markup

    timeline, failovers, counts = report.timeline, report.judgement.failovers, record_counts(report)
    scale = _scale(report)
    records = ""
    if report.judgement.records is not None and counts is not None:
        audit, around = report.judgement.records, latency_around_faults(report)
        label = f"Records over time: {counts_text(counts)}"
        records = Markup(zoomable_html(lambda at: chart(audit, around, timeline, at), scale, label))
    return render(
        "report.html",
        report=report,
        note=host_stalls_note(report),
        replay=replay,
        violated=[result for result in report.judgement.invariants if result.held is False],
        patterns=Markup(patterns_html()),
        legend=Markup(legend_html()),
        timeline=timeline.lanes and Markup(zoomable_html(lambda at: draw(timeline, at), scale, in_words(timeline))),
        close_ups=[*_close_ups(timeline, failovers)] if timeline.lanes else [],
        most_close_ups=MOST_CLOSE_UPS,
        records=records,
        counts="" if counts is None else counts_text(counts),
        latency_rows=latency_rows(report),
        failovers=failovers
        and Markup(zoomable_html(lambda at: failovers_drawing(failovers, timeline, at), scale, "Failovers over time")),
        failover_rows=failover_rows(failovers, timeline),
        steps=steps_of(report.records),
    )


def _scale(report: Report) -> TimeScale:
    """The one axis of all drawings: the whole run, to scale while records were sent."""
    audit = report.judgement.records
    if audit is None or not len(audit.history.sends):
        return whole_run(report.timeline)
    sends = audit.history.sends
    last_ms = float(np.nanmax(np.concatenate([sends.sent_at_ms, sends.ended_at_ms])))
    return whole_run(report.timeline, [(float(sends.sent_at_ms.min()), last_ms)])


def _close_ups(timeline: Timeline, failovers: Sequence[Failover]) -> Iterator[tuple[str, str]]:
    """Yield a heading and a picture of each failover, enlarged: from the session's end until the client was served.
    Failovers that overlap are in one picture. Where the client was never served again, it shows the time in which a
    successor should have taken over."""
    from markupsafe import Markup

    windows: list[tuple[float, float, list[Failover]]] = []
    for failover in sorted(failovers, key=lambda one: one.fault_at_ms):
        if failover.detected_at_ms is None:
            continue
        from_ms, to_ms = failover.detected_at_ms, failover.recovered_at_ms
        if to_ms is None:
            to_ms = min(from_ms + _UNRECOVERED_MS, timeline.duration_ms)
        if windows and from_ms <= windows[-1][1]:
            before_ms, until_ms, together = windows.pop()
            from_ms, to_ms = min(before_ms, from_ms), max(until_ms, to_ms)
            windows.append((from_ms, to_ms, [*together, failover]))
        else:
            windows.append((from_ms, to_ms, [failover]))
    for from_ms, to_ms, together in windows:
        margin_ms = max((to_ms - from_ms) * 0.1, 5.0)
        scale = close_up(max(from_ms - margin_ms, 0.0), to_ms + margin_ms)
        names = ", ".join(f"{failover.kind} {failover.node}" for failover in together)
        lanes = _lanes_of(timeline, together, scale.from_ms, scale.to_ms)
        heading = f"Close-up: failover of {names}, {from_ms / 1000:.2f} to {to_ms / 1000:.2f} s"
        yield heading, Markup(frame_html(draw(timeline, scale, lanes), heading))


def _lanes_of(timeline: Timeline, failovers: Sequence[Failover], from_ms: float, to_ms: float) -> list[Lane]:
    """All lanes of a small cluster; of a large one those that failed and those that were controller meanwhile."""
    if len(timeline.lanes) <= _LANES_IN_A_CLOSE_UP:
        return [*timeline.lanes]
    failed = {failover.node for failover in failovers}
    ruled = {term.broker for term in timeline.terms if term.from_ms <= to_ms and term.to_ms >= from_ms}
    return [lane for lane in timeline.lanes if lane.broker in failed | ruled]


INDEX = "index.html"
MOST_FAILED, MOST_PASSED = 2_000, 1_000
"""Rows of the page; what is beyond them is counted."""


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """One run. `settings`: those that differ between runs, "" if none do; `violated`: the name of the first invariant
    that was violated or could not be decided, `detail` why; `report`: its page, relative to the index, "" if none was
    written."""

    seed: int
    settings: str
    verdict: str
    violated: str
    detail: str
    replay: str
    report: str


def write_index(
    folder: Path, name: str, runs: Sequence[IndexedRun], table: Sequence[Sequence[str]] = (), notes: Sequence[str] = ()
) -> None:
    """Write the index of `runs` into `folder`, failed runs first. `name`: the scenario; `table`: figures of
    all runs, a header first; `notes`: sentences about them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(index_html(name, runs, table, notes), encoding="utf-8")


def index_html(
    name: str, runs: Sequence[IndexedRun], table: Sequence[Sequence[str]] = (), notes: Sequence[str] = ()
) -> str:
    """Return the index as a page. Runs keep their order within those that failed, are unknown, and passed."""
    order = {"fail": 0, PASS: 2}
    failed = sorted((run for run in runs if run.verdict != PASS), key=lambda run: order.get(run.verdict, 1))
    passed = [run for run in runs if run.verdict == PASS]
    verdict = PASS if not failed else "fail" if failed[0].verdict == "fail" else "unknown"
    return render(
        "index.html",
        name=name,
        verdict=verdict,
        runs=len(runs),
        failed=failed,
        passed=passed,
        shown=[*failed[:MOST_FAILED], *passed[:MOST_PASSED]],
        left_out=max(len(failed) - MOST_FAILED, 0) + max(len(passed) - MOST_PASSED, 0),
        settings=any(run.settings for run in runs),
        table=table,
        notes=notes,
    )


def first_violation(text: str) -> tuple[str, str]:
    """Split "NAME: detail" or "NAME at TIME: detail", as verdicts have it, into the invariant's name and the rest."""
    found = re.match(r"([\w-]+)(?:: | (?=at ))", text)
    return (found[1], text[found.end() :]) if found else ("", text)
