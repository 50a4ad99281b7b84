"""A run as one self-contained HTML page: verdict, timeline, failovers as bars, what held, the steps.

Nothing is loaded from anywhere and no script runs: styles are inline, the pictures are SVG.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from controller.scenarios.failovers import Failover
from controller.scenarios.records.chart import chart
from controller.scenarios.report import (
    Report,
    counts_text,
    failover_rows,
    latency_around_faults,
    latency_rows,
    record_counts,
    standstills_note,
    steps_of,
)
from controller.scenarios.timeline import timeline_of
from controller.scenarios.timeline_model import Lane, Timeline
from controller.scenarios.timeline_scale import close_up, whole_run
from controller.scenarios.timeline_svg import PAGE_STYLE, draw, frame_html, in_words, legend_html

_COLOURS = {"pass": "#1a7f37", "fail": "#c4281c", "unknown": "#9a6700"}
_MARKS = {True: ("✓", "#1a7f37"), False: ("✗", "#c4281c"), None: ("?", "#9a6700")}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328; }
h1 { margin-bottom: .2rem; } h2 { margin-top: 2.2rem; font-size: 1.15rem; }
p.lead { color: #59636e; margin-top: 0; }
p.note { background: #fff1c2; border-left: .3rem solid #9a6700; padding: .4rem .8rem; }
.verdict { display: inline-block; color: #fff; border-radius: .4rem; padding: .1rem .8rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid #d1d9e0; vertical-align: top; }
th { font-weight: 600; color: #59636e; } td.n, th.n { text-align: right; } td.n { font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } .mono { font-family: ui-monospace, monospace; font-size: .9em; }
"""


def report_html(report: Report) -> str:
    scenario = report.scenario
    where = f"{report.host} host" + (f", seed {report.seed}" if report.seed is not None else "")
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<title>{escape(scenario.name)}: {report.verdict}</title><style>{_STYLE}{PAGE_STYLE}</style></head><body>"
        f"<h1>{escape(scenario.name)} <span class='verdict' style='background:{_COLOURS[report.verdict]}'>"
        f"{report.verdict}</span></h1>"
        f"<p class='lead'>{escape(scenario.description)}<br>{escape(where)},"
        f" {report.duration_ms / 1000:.1f} s, {len(report.records)} events</p>{_note(report)}"
        f"{_timeline(report)}{_records(report)}{_failovers(report)}{_invariants(report)}{_steps(report)}"
        f"{_parameters(report)}</body></html>\n"
    )


def _note(report: Report) -> str:
    note = standstills_note(report)
    return f"<p class='note'>{escape(note)}.</p>" if note else ""


MOST_CLOSE_UPS = 12
_LANES_IN_A_CLOSE_UP = 6
_UNRECOVERED_MS = 2_000.0


def _timeline(report: Report) -> str:
    timeline = timeline_of(report.records)
    if not timeline.lanes:
        return "<h2>Timeline</h2><p>No broker left a trace.</p>"
    whole = frame_html(draw(timeline, whole_run(timeline)), in_words(timeline), defs=True)
    closer = [*_close_ups(timeline, report.judgement.failovers)]
    more = f"<p>The first {MOST_CLOSE_UPS} failovers only.</p>" if len(closer) > MOST_CLOSE_UPS else ""
    return (
        f"<section class='timeline'><h2>Timeline</h2>{legend_html()}{whole}"
        f"{''.join(closer[:MOST_CLOSE_UPS])}{more}</section>"
    )


def _records(report: Report) -> str:
    """Throughput and latency over time, then latencies around each fault as a table."""
    joined, counts = report.judgement.records, record_counts(report)
    if joined is None or counts is None:
        return ""
    timeline, around = timeline_of(report.records), latency_around_faults(report)
    picture = frame_html(chart(joined, around, timeline), f"Records over time: {counts_text(counts)}", defs=False)
    header, *rows = latency_rows(report)
    table = f"<tr>{_cells('th', header)}</tr>" + "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    lead = (
        f"<p>{escape(counts_text(counts))}. A fault is shaded until every partition that was written to had"
        f" acknowledged something sent after it.</p>"
    )
    below = f"<h3>Around each fault: median / 99th percentile (ms)</h3><table>{table}</table>" if rows else ""
    return f"<section class='timeline'><h2>Records</h2>{lead}{picture}</section>{below}"


def _close_ups(timeline: Timeline, failovers: Sequence[Failover]) -> Iterator[str]:
    """Each failover from the session's end until the client was served, enlarged; those that overlap together. Where
    the client never was, the time in which a successor should have taken over."""
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
    for number, (from_ms, to_ms, together) in enumerate(windows):
        margin_ms = max((to_ms - from_ms) * 0.1, 5.0)
        scale = close_up(max(from_ms - margin_ms, 0.0), to_ms + margin_ms)
        names = ", ".join(f"{failover.kind} {failover.node}" for failover in together)
        lanes = _lanes_of(timeline, together, scale.from_ms, scale.to_ms)
        picture = frame_html(draw(timeline, scale, lanes), in_words(timeline), defs=False)
        heading = f"Close-up: failover of {names}, {from_ms / 1000:.2f} to {to_ms / 1000:.2f} s"
        yield f"<details{' open' if number == 0 else ''}><summary>{escape(heading)}</summary>{picture}</details>"


def _lanes_of(timeline: Timeline, failovers: Sequence[Failover], from_ms: float, to_ms: float) -> list[Lane]:
    """All lanes of a small cluster; of a large one those that failed and those that were controller meanwhile."""
    if len(timeline.lanes) <= _LANES_IN_A_CLOSE_UP:
        return [*timeline.lanes]
    struck = {failover.node for failover in failovers}
    ruled = {term.broker for term in timeline.terms if term.from_ms <= to_ms and term.to_ms >= from_ms}
    return [lane for lane in timeline.lanes if lane.broker in struck | ruled]


def _failovers(report: Report) -> str:
    if not report.judgement.failovers:
        return "<h2>Failovers</h2><p>None.</p>"
    header, *rows = failover_rows(report)
    head = _cells("th", header)
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    bars = _bars(report.judgement.failovers, report.duration_ms)
    return f"<h2>Failovers (ms)</h2>{bars}<table><tr>{head}</tr>{body}</table>"


def _cells(tag: str, row: Sequence[str]) -> str:
    """A row's cells: a word first, figures after it."""
    return "".join(f"<{tag}{'' if index == 0 else ' class=n'}>{escape(cell)}</{tag}>" for index, cell in enumerate(row))


_LEFT, _WIDTH, _ROW = 150, 850, 34


def _bars(failovers: tuple[Failover, ...], duration_ms: float) -> str:
    """Each failover on the run's own time axis: unnoticed (grey), then noticed but not yet over (red)."""
    scale = _WIDTH / max(duration_ms, 1.0)
    height = _ROW * len(failovers) + 46
    parts = [f"<svg viewBox='0 0 {_LEFT + _WIDTH + 20} {height}' role='img' aria-label='failovers over time'>"]
    parts.append(_axis(duration_ms, scale, height - 40))
    for index, failover in enumerate(failovers):
        top = 6 + index * _ROW
        detected_ms = failover.detected_at_ms if failover.detected_at_ms is not None else duration_ms
        recovered_ms = failover.recovered_at_ms if failover.recovered_at_ms is not None else duration_ms
        parts.append(
            f"<text x='{_LEFT - 10}' y='{top + 17}' text-anchor='end' font-size='14'>"
            f"{escape(failover.kind)} {failover.node}</text>"
            + _bar(failover.fault_at_ms, detected_ms, scale, top, "#8c959f")
            + _bar(detected_ms, recovered_ms, scale, top, "#cf222e")
        )
    parts.append(
        f"<g font-size='13' fill='#59636e'><rect x='{_LEFT}' y='{height - 14}' width='12' height='12' fill='#8c959f'/>"
        f"<text x='{_LEFT + 18}' y='{height - 3}'>struck, session still alive</text>"
        f"<rect x='{_LEFT + 230}' y='{height - 14}' width='12' height='12' fill='#cf222e'/>"
        f"<text x='{_LEFT + 248}' y='{height - 3}'>session ended, client not yet served</text></g></svg>"
    )
    return "".join(parts)


def _bar(from_ms: float, to_ms: float, scale: float, top: int, colour: str) -> str:
    width = max((to_ms - from_ms) * scale, 2.0)
    return f"<rect x='{_LEFT + from_ms * scale:.1f}' y='{top}' width='{width:.1f}' height='22' fill='{colour}'/>"


def _axis(duration_ms: float, scale: float, bottom: int) -> str:
    seconds = duration_ms / 1000
    step = next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600) if seconds / step <= 12), 3600)
    marks = []
    for number in range(int(seconds / step) + 1):
        x = _LEFT + number * step * 1000 * scale
        marks.append(
            f"<line x1='{x:.1f}' y1='0' x2='{x:.1f}' y2='{bottom}' stroke='#eaeef2'/>"
            f"<text x='{x:.1f}' y='{bottom + 16}' font-size='12' fill='#59636e' text-anchor='middle'>"
            f"{number * step:g} s</text>"
        )
    return "".join(marks)


def _invariants(report: Report) -> str:
    rows = []
    for result in report.judgement.invariants:
        mark, colour = _MARKS[result.held]
        rows.append(
            f"<tr><td style='color:{colour}'><b>{mark}</b></td><td class='mono'>{escape(result.name)}</td>"
            f"<td>{escape(result.detail)}</td></tr>"
        )
    return f"<h2>What had to hold</h2><table>{''.join(rows)}</table>"


def _steps(report: Report) -> str:
    rows = []
    for step in steps_of(report.records):
        mark, colour = _MARKS[step.ok]
        detail = f"<br>{escape(step.detail)}" if step.detail else ""
        rows.append(
            f"<tr><td class='n'>{step.at_ms:.0f} ms</td><td style='color:{colour}'><b>{mark}</b></td>"
            f"<td>{escape(step.text)}{detail}</td></tr>"
        )
    return f"<h2>Steps</h2><table>{''.join(rows)}</table>"


def _parameters(report: Report) -> str:
    rows = "".join(
        f"<tr><td class='mono'>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in report.scenario.parameters.items()
    )
    return f"<h2>Parameters</h2><table>{rows}</table>" if rows else ""
