"""The plots of an analysis' page, as SVG: rows in, text out. Shapes as well as colours tell things apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from controller.pipeline.analysis import Row

WIDTH, LEFT, LANE = 1120, 170, 22
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("", "6 3", "2 3", "9 3 2 3")
_INK, _GRID, _BAD = "#2b2f36", "#d9dce1", "#b3261e"
BARS_DRAWN = 300


class _Axis:
    """Times to places from left to right."""

    def __init__(self, times: Sequence[datetime]) -> None:
        self.first, last = min(times), max(times)
        self.span = max((last - self.first).total_seconds(), 0.001)

    def x(self, at: datetime) -> float:
        return LEFT + (at - self.first).total_seconds() / self.span * (WIDTH - LEFT - 20)

    def ticks(self, height: int) -> Iterator[str]:
        for part in range(6):
            at = self.first + timedelta(seconds=self.span * part / 5)
            x = self.x(at)
            yield f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 20}" stroke="{_GRID}"/>'
            anchor = "end" if part == 5 else "middle" if part else "start"
            yield (
                f'<text x="{x:.1f}" y="{height - 5}" text-anchor="{anchor}" fill="#5c6470">'
                f"{at:%H:%M:%S}.{at.microsecond // 1000:03}</text>"
            )


def timeline_plot(terms: Sequence[Row], losses: Sequence[Row], bad: Sequence[Row]) -> str:
    """Lanes: a term a bar, a loss a dashed line, and each partition's time without a leader."""
    ends = [row["ended_at"] or row["last_sign_at"] for row in terms]
    times = [row["elected_at"] for row in terms] + ends + [row["noticed_at"] for row in losses]
    times += [row["began_at"] for row in bad] + [row["ended_at"] for row in bad if row["ended_at"]]
    if not times:
        return "<p>Nothing to draw: no term and no loss.</p>"
    axis = _Axis(times)
    last = max(times)
    whats = sorted({row["what"] for row in bad})
    height = LANE * (len(terms) + len(whats) + 1) + 30
    parts = [_open(height), *axis.ticks(height)]
    for lane, (term, end) in enumerate(zip(terms, ends, strict=True)):
        told = f"broker {term['node']}, epoch {term['controller_epoch']}: {term['end']}"
        parts += _bar(axis, lane, f"controller {term['node']}, epoch {term['controller_epoch']}", [
            (term["elected_at"], end, _COLOURS[0], told)])  # fmt: skip
    for lane, what in enumerate(whats, len(terms)):
        of_kind = [row for row in bad if row["what"] == what][:BARS_DRAWN]
        colour = _BAD if what == "no leader" else _COLOURS[4]
        bars = [
            (row["began_at"], row["ended_at"] or last, colour, f"{row['topic']}-{row['partition']}: {what}")
            for row in of_kind
        ]
        parts += _bar(axis, lane, what, bars)
    for row in losses:
        x = axis.x(row["noticed_at"])
        told = f"{row['marker']}: broker {', '.join(map(str, row['brokers']))}, {row['elected']} leaders elected"
        parts.append(
            f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 20}" stroke="{_BAD}" stroke-dasharray="4 3">'
            f"<title>{escape(told)}</title></line>"
        )
    return "".join([*parts, "</svg>"])


def _bar(axis: _Axis, lane: int, name: str, bars: Sequence[tuple[datetime, datetime, str, str]]) -> Iterator[str]:
    y = lane * LANE + 4
    yield f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
    for start, end, colour, told in bars:
        x, width = axis.x(start), max(1.5, axis.x(end) - axis.x(start))
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 6}" fill="{colour}" fill-opacity="0.75">'
            f"<title>{escape(told)}</title></rect>"
        )


def leaders_plot(leaders: Sequence[Row]) -> str:
    """A step line a broker."""
    if not leaders:
        return "<p>No leader was seen to change.</p>"
    axis = _Axis([row["at"] for row in leaders])
    brokers = sorted({row["broker"] for row in leaders})
    most = max(row["leaders"] for row in leaders) or 1
    height = 220
    plot = height - 40

    def y(count: Any) -> float:
        return 10 + plot * (1 - float(count) / most)

    parts = [_open(height), *axis.ticks(height)]
    for count in (0, most):
        parts.append(f'<text x="{LEFT - 10}" y="{y(count) + 4:.1f}" text-anchor="end">{count}</text>')
    for number, broker in enumerate(brokers):
        points, before = [], 0.0
        for row in (row for row in leaders if row["broker"] == broker):
            x = axis.x(row["at"])
            points += [f"{x:.1f},{y(before):.1f}", f"{x:.1f},{y(row['leaders']):.1f}"]
            before = row["leaders"]
        points.append(f"{WIDTH - 20},{y(before):.1f}")
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"'
            f' stroke-dasharray="{dash}"><title>broker {broker}</title></polyline>'
        )
        if number < 10:
            at = 24 + number * 18
            parts.append(f'<line x1="6" x2="34" y1="{at - 4}" y2="{at - 4}" stroke="{colour}" stroke-width="2"'
                         f' stroke-dasharray="{dash}"/><text x="40" y="{at}">broker {broker}</text>')  # fmt: skip
    return "".join([*parts, "</svg>"])


def _open(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">'
    )
