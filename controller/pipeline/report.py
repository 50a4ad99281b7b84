"""The report of an analysis as one self-contained HTML page: tables, and plots on one time axis (controller terms,
partitions without a leader, leaders by broker). Rows in, text out.

The plots are drawn with the same shapes as the timeline of a run's report, and zoom like it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from controller.pipeline.analysis import Analysis, Row
from controller.pipeline.violations import RULES
from controller.report.html import render
from controller.report.layout import patterns_html
from controller.report.svg import (
    LABELS_WIDTH,
    NARROWEST,
    Drawing,
    Piece,
    TimeScale,
    box,
    compose_rows,
    labelled_box,
    sign,
    title,
    words,
    words_width,
    zoomable_html,
)
from controller.report.svg import Row as Band

BARS_DRAWN = 300
BROKERS_NAMED = 12
_LANE = 22.0
_LOSS_LINES = 4
_LINES = 7
"""As many colours as the palette has for lines."""
_DASHES = ("", "6 3", "2 3", "9 3 2 3")
_BESIDE = LABELS_WIDTH - 12
_GAP = 1.5
"""Pixels between the lines of two brokers with the same number of leaders, which would hide each other."""


def plots_html(terms: Sequence[Row], losses: Sequence[Row], bad: Sequence[Row], leaders: Sequence[Row]) -> str:
    """Return one run's plots; an empty string if there is nothing to draw."""
    times = [row[name] for row in terms for name in ("elected_at", "ended_at", "last_sign_at")]
    times += [row["noticed_at"] for row in losses] + [row["at"] for row in leaders]
    times += [row[name] for row in bad for name in ("began_at", "ended_at")]
    known = [_ms(at) for at in times if at is not None]
    if not known:
        return ""
    first_ms, last_ms = min(known), max(known)
    # A trace's times are counted from 1970: it has no calendar, and is shown in seconds from its start.
    clock = datetime.fromtimestamp(first_ms / 1000, UTC).year > 1970
    pieces = (Piece(first_ms, max(last_ms, first_ms + 1.0), 0.0, NARROWEST, False),)

    def draw_at(scale: TimeScale) -> Drawing:
        bands = [
            _losses(losses, scale),
            *(_term(term, scale) for term in terms),
            *_bad(bad, scale),
            *([_leaders(leaders, scale)] if leaders else []),
        ]
        return compose_rows(scale, bands, [_ms(row["noticed_at"]) for row in losses])

    label = (
        f"{len(terms)} controller terms, {len(losses)} losses of brokers, {len(bad)} intervals of partitions, over time"
    )
    return zoomable_html(draw_at, TimeScale(pieces, clock=clock), label)


def _ms(at: datetime) -> float:
    """Milliseconds since 1970. Spark's times have no time zone, and are UTC."""
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000


def _term(term: Row, scale: TimeScale) -> Band:
    name = f"epoch {term['controller_epoch']}"
    detail = f"broker {term['node']} was controller in {name}; {term['end']}"
    from_ms, to_ms = _ms(term["elected_at"]), _ms(term["ended_at"] or term["last_sign_at"])
    labels = [f"broker {term['node']}, {name}", name, str(term["controller_epoch"])]
    bar = labelled_box("term", scale, from_ms, to_ms, 3, 16, labels, detail)
    return Band(_LANE, words(f"controller {term['node']}", 0, 15, "b") + words(name, _BESIDE, 15, "sfe"), bar)


def _losses(losses: Sequence[Row], scale: TimeScale) -> Band:
    """Each loss of brokers with its words, in as many lines as keep them apart; what is left has a sign alone."""
    ends = [-100.0] * _LOSS_LINES
    drawn, used = [], 0
    for row in losses:
        x, brokers = scale.x(_ms(row["noticed_at"])), ", ".join(map(str, row["brokers"]))
        text = f"broker {brokers}: {row['marker']}"
        detail = f"{text}, {row['elected']} leaders elected"
        width = words_width(text) + 14
        to_left = x + width > scale.width
        left, right = (x - width, x + 8) if to_left else (x - 8, x + width)
        line = next((line for line, end in enumerate(ends) if left >= end + 4), None)
        y = 10.0 + 17 * (_LOSS_LINES - 1 if line is None else line)
        drawn.append(sign("stop" if row["marker"] == "controlled shutdown" else "kill", x, y, detail, 6.5))
        used = max(used, _LOSS_LINES if line is None else line + 1)
        if line is not None:
            ends[line] = right
            drawn.append(words(text, x + (-11 if to_left else 11), y + 4, "se" if to_left else "s", "fault"))
    return Band(
        17.0 * used + 6 if used else 0.0, words("brokers lost", 0, 14, "b") if used else "", "".join(drawn), True
    )


def _bad(bad: Sequence[Row], scale: TimeScale) -> Iterator[Band]:
    """A row for each kind of interval, with a bar for each partition's."""
    for what in sorted({row["what"] for row in bad}):
        of_kind = [row for row in bad if row["what"] == what]
        kind = "outage-broker" if what == "no leader" else "under-replicated"
        bars = []
        for row in of_kind[:BARS_DRAWN]:
            left = scale.x(_ms(row["began_at"]))
            right = scale.x(_ms(row["ended_at"])) if row["ended_at"] else scale.width
            bars.append(box(kind, left, 3, right - left, 16, f"{row['topic']}-{row['partition']}: {what}"))
        beside = words(what, 0, 13, "b" if words_width(what, "b") < _BESIDE else "s")
        yield Band(_LANE + 10, beside + words(f"{len(of_kind)} intervals", 0, 26, "sf"), "".join(bars))


def _leaders(leaders: Sequence[Row], scale: TimeScale) -> Band:
    """Partitions led by each broker, as one step line a broker with its name at the left."""
    brokers = sorted({row["broker"] for row in leaders})
    named = brokers[:BROKERS_NAMED]
    most = max(row["leaders"] for row in leaders) or 1
    top, low = 14.0, max(124.0, 40.0 + 16 * (len(named) + (len(brokers) > len(named))))
    beside = words("partitions led", 0, 14, "b")
    beside += "".join(words(str(count), _BESIDE, _height(count, most, top, low) + 4, "sfe") for count in (0, most))
    drawn = [
        "".join(f"<path d='M0 {_height(n, most, top, low):.1f}H{scale.width:.1f}' class='grid'/>" for n in (0, most))
    ]
    for number, broker in enumerate(brokers):
        style = f"class='l{number % _LINES}' stroke-width='2' stroke-dasharray='{_DASHES[number % len(_DASHES)]}'"
        shift = (number - (len(brokers) - 1) / 2) * min(_GAP, 12 / len(brokers))
        path: list[str] = []
        y = _height(0, most, top, low) - shift
        for row in leaders:
            if row["broker"] == broker:
                x, before = scale.x(_ms(row["at"])), y
                y = _height(row["leaders"], most, top, low) - shift
                path.append(f"{'H' if path else 'M'}{x:.1f}{'' if path else f' {before:.1f}'}V{y:.1f}")
        drawn.append(
            f"<path data-kind='leaders' d='{''.join(path)}H{scale.width:.1f}' {style}>"
            f"{title(f'broker {broker}')}</path>"
        )
        if number < len(named):
            line = 34 + 16 * number
            beside += f"<path d='M0 {line - 4}H24' {style}/>" + words(f"broker {broker}", 30, line, "sf")
    if len(brokers) > len(named):
        beside += words(f"and {len(brokers) - len(named)} more", 30, 34 + 16 * len(named), "sf")
    return Band(low + 14, beside, "".join(drawn))


def _height(count: float, most: float, top: float, low: float) -> float:
    return low - (low - top) * count / most


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
