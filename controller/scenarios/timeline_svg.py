"""A timeline as SVG: names at the left, rows over one axis of time, a legend; alone or inside a report's page.

Nothing is loaded and no script runs. On a page the names stand still while a long run scrolls beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.scenarios.timeline_cluster_rows import client_row, controller_row, elections_row, offline_row
from controller.scenarios.timeline_lane_rows import LABELS_WIDTH, MOST_TALL_LANES, fault_words, faults_row, lane_row
from controller.scenarios.timeline_model import Lane, Timeline
from controller.scenarios.timeline_scale import TimeScale, whole_run
from controller.scenarios.timeline_shapes import (
    DEFS,
    FILLS,
    GRID,
    PAPER,
    STYLE,
    Row,
    box,
    duration,
    lasting,
    plain,
    title,
    words,
    words_width,
)

EDGE = 12.0
"""Room at both ends of the axis, for signs and words that stand on its ends."""

_AXIS = 22.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """The two halves of a picture, of one height: names, and what is drawn over time."""

    beside: str
    drawn: str
    width: float
    height: float


def draw(timeline: Timeline, scale: TimeScale, lanes: Sequence[Lane] | None = None) -> Drawing:
    """The rows of `timeline` over `scale`, for all lanes or those given."""
    lanes = timeline.lanes if lanes is None else lanes
    tall = len(lanes) <= MOST_TALL_LANES
    rows = [
        faults_row(timeline, scale),
        controller_row(timeline, scale),
        *(lane_row(timeline, lane, scale, tall=tall) for lane in lanes),
        elections_row(timeline, scale),
        offline_row(timeline, scale),
        client_row(timeline, scale),
    ]
    return compose(timeline, scale, rows)


def compose(
    timeline: Timeline, scale: TimeScale, rows: Sequence[Row], shades: Sequence[tuple[float, float]] = ()
) -> Drawing:
    """Any rows, between two axes, over the faults' lines. `shades`: times that are shaded behind all rows."""
    axis = Row(_AXIS, "", _tick_words(scale, 14))
    rows = [axis, *rows, axis]
    height = sum(row.height for row in rows)
    beside: list[str] = []
    above: list[str] = []
    drawn = [
        *_standstills(timeline, scale, height),
        *_shades(scale, shades, height),
        _backdrop(timeline, scale, height),
    ]
    top = 0.0
    for number, row in enumerate(rows):
        if number > 0:
            drawn.append(f"<path d='M0 {top:.1f}H{scale.width:.1f}' stroke='{GRID}'/>")
        beside.append(f"<g transform='translate(0 {top:.1f})'>{row.beside}</g>")
        (above if row.above else drawn).append(f"<g transform='translate(0 {top:.1f})'>{row.drawn}</g>")
        top += row.height
    drawn += [*_gaps(scale, height), *above]
    return Drawing("".join(beside), "".join(drawn), scale.width + 2 * EDGE, height)


def _tick_words(scale: TimeScale, y: float) -> str:
    parts = []
    for _, x, label in scale.ticks():
        room = words_width(label) / 2 - EDGE
        parts.append(words(label, min(max(x, room), scale.width - room), y, "sfm"))
    return "".join(parts)


def _backdrop(timeline: Timeline, scale: TimeScale, height: float) -> str:
    """Behind every row: lines at round times, and one where each fault struck."""
    low, high = _AXIS - 2, height - _AXIS + 2
    parts = [f"<path d='M{x:.1f} {low}V{high:.1f}' stroke='{GRID}'/>" for _, x, _ in scale.ticks()]
    for fault in timeline.faults:
        if scale.holds(fault.at_ms, fault.at_ms):
            x = scale.x(fault.at_ms)
            parts.append(
                f"<path d='M{x:.1f} {low}V{high:.1f}' stroke='{FILLS['fault'][1]}' stroke-opacity='.45'"
                f" stroke-dasharray='4 3'/>"
            )
    return "".join(parts)


def _standstills(timeline: Timeline, scale: TimeScale, height: float) -> Iterator[str]:
    """Behind every row: when the machine gave nobody any time."""
    for each in timeline.standstills:
        if scale.holds(each.from_ms, each.to_ms):
            x = scale.x(each.from_ms)
            detail = f"the machine stood still: {lasting(each.from_ms, each.to_ms)}"
            yield box("standstill", x, _AXIS - 2, scale.x(each.to_ms) - x, height - 2 * _AXIS + 4, detail)


def _shades(scale: TimeScale, shades: Sequence[tuple[float, float]], height: float) -> Iterator[str]:
    for from_ms, to_ms in shades:
        if scale.holds(from_ms, to_ms):
            x = scale.x(from_ms)
            yield (
                f"<rect data-kind='shade' x='{x:.1f}' y='{_AXIS - 2}' width='{max(scale.x(to_ms) - x, 1.0):.1f}'"
                f" height='{height - 2 * _AXIS + 4:.1f}' fill='{FILLS['fault'][1]}' fill-opacity='.09'>"
                f"{title(lasting(from_ms, to_ms))}</rect>"
            )


def _gaps(scale: TimeScale, height: float) -> Iterator[str]:
    """Over every row: the stretches cut short, each with its length, so that no bar seems to run through one."""
    low, high = _AXIS - 2, height - _AXIS + 2
    for piece in scale.pieces:
        if piece.quiet:
            length = duration(piece.to_ms - piece.from_ms)
            detail = f"nothing changed for {length}: {lasting(piece.from_ms, piece.to_ms)}, not to scale"
            x, y = piece.x + piece.width / 2, (low + high) / 2
            yield (
                f"<g data-kind='quiet'><rect x='{piece.x:.1f}' y='{low}' width='{piece.width:.1f}'"
                f" height='{high - low:.1f}' fill='url(#tl-quiet)' fill-opacity='.88'/>"
                f"<g transform='rotate(-90 {x:.1f} {y:.1f})'>{words(f'{length} quiet, cut short', x, y + 4, 'sm')}</g>"
                f"{title(detail)}</g>"
            )


_LEGEND = (
    ("running", "process running"),
    ("starting", "starting"),
    ("stopping", "stopping, restarting"),
    ("paused", "paused"),
    ("term", "controller"),
    ("unbacked", "over, and it did not know"),
    ("session", "session"),
    ("registered", "session, registered"),
    ("phase-odd", "failover phase"),
    ("complete", "metadata complete"),
    ("incomplete", "incomplete"),
    ("failing", "no answer"),
    ("cut", "link cut"),
    ("standstill", "the machine stood still"),
)


def _legend(width: float) -> tuple[str, float]:
    """Samples with their meanings, in lines of at most `width`; and the height of it all."""
    x, y = 0.0, 6.0
    parts = []
    for kind, meaning in _LEGEND:
        room = 24 + words_width(meaning) + 16
        if x + room > width:
            x, y = 0.0, y + 20
        height, dashed = (3.0, True) if kind == "cut" else (12.0, kind in ("starting", "unbacked"))
        sample = box(kind, x + 0.5, y + (12 - height) / 2, 18, height, meaning, dashed=dashed)
        parts.append(sample.replace("data-kind", "data-sample") + words(meaning, x + 24, y + 10, "s"))
        x += room
    return "".join(parts), y + 22


def in_words(timeline: Timeline) -> str:
    """The picture for those who do not see it."""
    brokers = sum(lane.broker is not None for lane in timeline.lanes)
    faults = ", ".join(f"{fault_words(fault)} at {fault.at_ms / 1000:.1f} s" for fault in timeline.faults[:12])
    peak = max((point.offline for point in timeline.offline), default=0)
    return (
        f"Timeline of {duration(timeline.duration_ms)}: {brokers} brokers, {len(timeline.terms)} controller terms,"
        f" {len(timeline.faults)} faults{f' ({faults})' if faults else ''}, at most {peak} partitions offline."
    )


def picture_svg(timeline: Timeline) -> str:
    """The whole run as one file, legend included."""
    drawing = draw(timeline, whole_run(timeline))
    width = LABELS_WIDTH + drawing.width
    legend, legend_height = _legend(width - 24)
    height = drawing.height + legend_height + 16
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' class='tl' viewBox='0 0 {width + 16:.0f} {height:.0f}'"
        f" width='{width + 16:.0f}' height='{height:.0f}' role='img' aria-label='{plain(in_words(timeline))}'>"
        f"<style>{STYLE}</style>{DEFS}<rect width='100%' height='100%' fill='{PAPER}'/>"
        f"<g transform='translate(12 4)'>{drawing.beside}</g>"
        f"<g transform='translate({12 + LABELS_WIDTH + EDGE:.0f} 4)'>{drawing.drawn}</g>"
        f"<g transform='translate(12 {drawing.height + 8:.0f})'>{legend}</g></svg>\n"
    )


PAGE_STYLE = (
    STYLE
    + "section.timeline{width:min(96vw,80rem);margin-left:calc(50% - min(48vw,40rem))}"
    + ".tl-frame{display:flex;margin:.6rem 0}.tl-frame .tl-names{flex:none}"
    + ".tl-scroll{overflow-x:auto;flex:0 1 auto;min-width:0}"
    + "section.timeline svg{width:auto;max-width:none}"
)


def frame_html(drawing: Drawing, label: str, *, defs: bool) -> str:
    """A drawing on a page: names that stand still beside what scrolls. `label`: the same in words. `defs`: for the
    first one of a page."""
    return (
        f"<div class='tl-frame'><svg class='tl tl-names' width='{LABELS_WIDTH:.0f}' height='{drawing.height:.0f}'"
        f" aria-hidden='true'>{DEFS if defs else ''}{drawing.beside}</svg>"
        f"<div class='tl-scroll' tabindex='0'><svg class='tl tl-plot' width='{drawing.width:.0f}'"
        f" height='{drawing.height:.0f}' role='img' aria-label='{plain(label)}'>"
        f"<g transform='translate({EDGE:.0f} 0)'>{drawing.drawn}</g></svg></div></div>"
    )


def legend_html() -> str:
    legend, height = _legend(1080.0)
    return f"<svg class='tl tl-legend' width='1080' height='{height:.0f}' aria-hidden='true'>{legend}</svg>"
