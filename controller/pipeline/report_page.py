"""What an analysis found, as one page that loads nothing and runs no script: rows in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Any

from controller.pipeline.analysis import Analysis, Row
from controller.pipeline.report_plots import leaders_plot, timeline_plot
from controller.pipeline.violations import RULES

ROWS_SHOWN = 60
RUNS_DRAWN = 4

_SECTIONS = (
    ("terms", "Controller terms", "Who was controller, in which epoch, and how each term ended."),
    ("losses", "Brokers lost", "Each time a controller dealt with lost brokers: their last sign of life, when it was"
     " noticed, and after how many ms the first, the median and the last partition had another leader."),
    ("failovers", "Failovers as a client saw them", "Of traced runs, by the scenarios' rule; ms from the run's start."),
    ("records", "Records", "Of traced runs: what producers sent and consumers read."),
    ("latencies", "Latency of records", "From when a record was due to its acknowledgement (produce) and until a"
     " consumer had it (fetch): in the whole run, then around each fault that struck while records were sent."),
    ("phases", "Failover phases", "What each new controller did, in order, and how long it took."),
    ("bad_times_by_kind", "Partitions in trouble", "As controllers' writes show it."),
    ("bad_times", "The stretches themselves", ""),
    ("elections", "Elections by kind", "How often leaders were chosen; how often that moved the leadership."),
    ("last_states", "Partitions at the end", "Leader, leader epoch and ISR of each, and how often its leader moved."),
    ("isr_churn", "ISR churn", "Shrinks and expansions that events show; changes that they don't (by versions)."),
    ("requests", "Control requests", ""),
    ("leftovers", "Lines that are no event", "Kept apart, with the reason."),
)  # fmt: skip

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#2b2f36;background:#fff;max-width:1180px;margin:32px auto}
body{padding:0 24px} h1{font-size:26px;margin:0 0 4px} h2{font-size:18px;margin:34px 0 4px}
p{margin:4px 0 10px;color:#5c6470}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums} td,th{padding:4px 14px 4px 0;
text-align:left;border-bottom:1px solid #e8eaee;vertical-align:top;white-space:nowrap} th{color:#5c6470;font-weight:600}
td.n{text-align:right} .scroll{overflow-x:auto}
.verdict{display:inline-block;padding:3px 12px;border-radius:4px;color:#fff;font-weight:600}
.held{background:#00795a}.broken{background:#b3261e} li{margin:2px 0} svg{max-width:100%;height:auto}
"""


def report_html(analysis: Analysis, title: str) -> str:
    return "\n".join(_page(analysis, title))


def _page(analysis: Analysis, title: str) -> Iterator[str]:
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    yield f"<h1>{escape(title)}</h1>"
    broken = analysis.sizes["violations"]
    if broken:
        yield f'<p><span class="verdict broken">{broken} violations</span></p>'
        yield _table(analysis.rows["violations"])
    else:
        yield f'<p><span class="verdict held">no violation found</span> of {len(RULES)} rules: {"; ".join(RULES)}.</p>'
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in headlines(analysis)) + "</ul>"
    runs = sorted({row["run"] for row in (*analysis.rows["terms"], *analysis.rows["leaders"])})
    for run in runs[:RUNS_DRAWN]:
        of_run = {name: [row for row in rows if row.get("run") == run] for name, rows in analysis.rows.items()}
        yield f"<h2>{escape(f'Timeline of {run}' if run else 'Timeline')}</h2>"
        yield timeline_plot(of_run["terms"], of_run["losses"], of_run["bad_times"])
        yield "<p>Partitions led by each broker, from each second in which that changed.</p>"
        yield leaders_plot(of_run["leaders"])
    for name, heading, told in _SECTIONS:
        rows = analysis.rows[name]
        if rows:
            yield f"<h2>{heading}</h2>" + (f"<p>{told}</p>" if told else "")
            yield _table(rows)
            if analysis.sizes[name] > ROWS_SHOWN:
                yield f"<p>{ROWS_SHOWN} of {analysis.sizes[name]} rows; the table has all.</p>"
    yield "</html>"


def headlines(analysis: Analysis) -> Iterator[str]:
    """What a reader in a hurry wants, a sentence each."""
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


def _table(rows: Sequence[Row]) -> str:
    several = len({row.get("run") for row in rows}) > 1
    names = [name for name in rows[0] if name != "run" or several]
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(row[name]) for name in names) + "</tr>" for row in rows[:ROWS_SHOWN])
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=n' if number else ''}>{escape(_text(value))}</td>"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
