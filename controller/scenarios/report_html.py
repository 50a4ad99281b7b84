"""A run as one self-contained HTML page: verdict, timeline, records, failovers, invariants, steps.

The page loads nothing. Its script enlarges the drawings over time and is not needed to read the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from controller.scenarios.failover_figures import failover_rows, failovers_drawing
from controller.scenarios.failovers import Failover
from controller.scenarios.pages import render
from controller.scenarios.records.chart import chart
from controller.scenarios.report import (
    Report,
    counts_text,
    host_stalls_note,
    latency_around_faults,
    latency_rows,
    record_counts,
    steps_of,
)
from controller.scenarios.timeline_model import Lane, Timeline
from controller.scenarios.timeline_scale import TimeScale, close_up, whole_run
from controller.scenarios.timeline_svg import draw, frame_html, in_words, legend_html, patterns_html, zoomable_html

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
        joined, around = report.judgement.records, latency_around_faults(report)
        label = f"Records over time: {counts_text(counts)}"
        records = Markup(zoomable_html(lambda at: chart(joined, around, timeline, at), scale, label))
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
    joined = report.judgement.records
    if joined is None or not len(joined.history.sends):
        return whole_run(report.timeline)
    sends = joined.history.sends
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
