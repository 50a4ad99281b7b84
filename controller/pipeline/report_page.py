"""The report of an analysis, as one self-contained HTML page: rows in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from controller.pipeline.analysis import Analysis, Row
from controller.pipeline.report_plots import plots_html
from controller.pipeline.violations import RULES
from controller.report.html import render
from controller.report.layout import patterns_html

ROWS_SHOWN = 60
RUNS_DRAWN = 4

_SECTIONS = (
    ("terms", "Controller terms", "Which broker was controller, in which epoch, and how each term ended."),
    ("losses", "Brokers lost", "Each time a controller handled lost brokers: the last event of the brokers before, when"
     " the loss was noticed, and after how many ms the first, the median and the last partition had another leader."),
    ("failovers", "Failovers as a client saw them", "Of traced runs, by the scenarios' rule; ms from the run's start."),
    ("records", "Records", "Of traced runs: what producers sent and consumers read."),
    ("latencies", "Latency of records", "From when a record was due until its acknowledgement (produce) and until a"
     " consumer had it (fetch): in the whole run, then around each fault that was injected while records were sent."),
    ("phases", "Failover phases", "What each new controller did, in order, and how long it took."),
    ("bad_times_by_kind", "Offline and under-replicated partitions", "According to the partition states that"
     " controllers wrote."),
    ("bad_times", "Offline and under-replicated intervals", ""),
    ("elections", "Elections by kind", "How often leaders were elected, and how often that moved the leadership."),
    ("last_states", "Partitions at the end", "Leader, leader epoch and ISR of each, and how often its leader moved."),
    ("isr_churn", "ISR changes", "Shrinks and expansions in events, and changes of version without an event."),
    ("requests", "Control requests", ""),
    ("leftovers", "Lines that were not parsed", "With the reason."),
)  # fmt: skip


def report_html(analysis: Analysis, title: str) -> str:
    """Return the page of an analysis."""
    from markupsafe import Markup

    runs = sorted({row["run"] for row in (*analysis.rows["terms"], *analysis.rows["leaders"])})
    plots = []
    for run in runs[:RUNS_DRAWN]:
        drawn = ([row for row in analysis.rows[name] if row["run"] == run] for name in _DRAWN)
        plots.append((run, Markup(plots_html(*drawn))))
    return render(
        "analysis.html",
        title=title,
        rules=RULES,
        violations=analysis.rows["violations"],
        headlines=[*headlines(analysis)],
        patterns=Markup(patterns_html()),
        runs=plots,
        sections=_SECTIONS,
        tables=analysis.rows,
        sizes=analysis.sizes,
        rows_shown=ROWS_SHOWN,
        columns=_columns,
        is_figure=_is_figure,
        text=_text,
    )


_DRAWN = ("terms", "losses", "bad_times", "leaders")


def headlines(analysis: Analysis) -> Iterator[str]:
    """Yield the main findings, a sentence each."""
    rows = analysis.rows
    for term in rows["terms"]:
        sign, run = _text(term["last_sign_at"]), f"{term['run']}: " if term["run"] else ""
        yield (
            f"{run}broker {term['node']} became controller in epoch {term['controller_epoch']} at"
            f" {_text(term['elected_at'])}; {term['end']} (last sign {sign})"
        )
    for loss in rows["losses"]:
        who, run = ", ".join(map(str, loss["brokers"])), f"{loss['run']}: " if loss["run"] else ""
        took = f", the last after {loss['last_ms']:g} ms" if loss["last_ms"] is not None else ""
        yield (
            f"{run}{loss['marker']} at {_text(loss['noticed_at'])}: broker {who} lost,"
            f" {loss['elected']} partitions got another leader{took}"
        )
    for one in rows["records"]:
        run = f"{one['run']}: " if one["run"] else ""
        yield f"{run}records: " + ", ".join(
            f"{'?' if value is None else value} {name}" for name, value in one.items() if name != "run"
        )
    kinds: dict[str, int] = {}
    for line in rows["lines"]:
        kinds[line["kind"]] = kinds.get(line["kind"], 0) + line["lines"]
    yield "read: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda one: -one[1]))


def _columns(rows: Sequence[Row]) -> list[str]:
    """The names of a table's columns; the run's is left out where there is only one."""
    several = len({row.get("run") for row in rows}) > 1
    return [name for name in rows[0] if name != "run" or several]


def _is_figure(rows: Sequence[Row], name: str) -> bool:
    """Return True if a column holds numbers, some of which may be missing."""
    values = [row[name] for row in rows if row[name] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime) and value.year <= 1970:
        # A trace has no calendar: its times are counted from the run's start.
        return f"{value.replace(tzinfo=UTC).timestamp():.3f} s"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
