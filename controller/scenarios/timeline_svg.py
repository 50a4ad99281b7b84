"""A timeline as SVG: names at the left, rows over one axis of time, a legend; alone or inside a report's page.

Nothing is loaded. On a page the names stay in place while a long or enlarged run scrolls beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from controller.scenarios.host_stalls import HostStall
from controller.scenarios.palette import DEFS, picture_style
from controller.scenarios.timeline_cluster_rows import client_row, controller_row, elections_row, offline_row
from controller.scenarios.timeline_lane_rows import LABELS_WIDTH, MOST_TALL_LANES, fault_words, faults_row, lane_row
from controller.scenarios.timeline_model import Lane, Timeline
from controller.scenarios.timeline_scale import TimeScale, whole_run
from controller.scenarios.timeline_shapes import (
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
    """Return any rows of a run between two axes, over a line for each fault. `shades`: times that are shaded behind all
    rows."""
    marks = [fault.at_ms for fault in timeline.faults if fault.crosses]
    return compose_rows(scale, rows, marks, shades, timeline.standstills)


def compose_rows(
    scale: TimeScale,
    rows: Sequence[Row],
    marks: Sequence[float],
    shades: Sequence[tuple[float, float]] = (),
    standstills: Sequence[HostStall] = (),
) -> Drawing:
    """As `compose`, without a timeline. `marks`: times with a dashed line across all rows."""
    axis = Row(_AXIS, "", _tick_words(scale, 14))
    rows = [axis, *rows, axis]
    height = sum(row.height for row in rows)
    beside: list[str] = []
    above: list[str] = []
    drawn = [
        *_standstills(standstills, scale, height),
        *_shades(scale, shades, height),
        _backdrop(marks, scale, height),
    ]
    top = 0.0
    for number, row in enumerate(rows):
        if number > 0:
            drawn.append(f"<path d='M0 {top:.1f}H{scale.width:.1f}' class='grid'/>")
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


def _backdrop(marks: Sequence[float], scale: TimeScale, height: float) -> str:
    """Return what is behind every row: lines at round times, and a dashed one at each mark."""
    low, high = _AXIS - 2, height - _AXIS + 2
    lines = "".join(f"M{x:.1f} {low}V{high:.1f}" for _, x, _ in scale.ticks())
    parts = [f"<path d='{lines}' class='grid'/>"]
    dashed = "".join(f"M{scale.x(at_ms):.1f} {low}V{high:.1f}" for at_ms in marks if scale.holds(at_ms, at_ms))
    if dashed:
        parts.append(f"<path d='{dashed}' class='mark' stroke-opacity='.45' stroke-dasharray='4 3'/>")
    return "".join(parts)


def _standstills(standstills: Sequence[HostStall], scale: TimeScale, height: float) -> Iterator[str]:
    """Yield what is behind every row while the machine was stalled."""
    for each in standstills:
        if scale.holds(each.from_ms, each.to_ms):
            x = scale.x(each.from_ms)
            detail = f"machine stalled: {lasting(each.from_ms, each.to_ms)}"
            yield box("standstill", x, _AXIS - 2, scale.x(each.to_ms) - x, height - 2 * _AXIS + 4, detail)


def _shades(scale: TimeScale, shades: Sequence[tuple[float, float]], height: float) -> Iterator[str]:
    for from_ms, to_ms in shades:
        if scale.holds(from_ms, to_ms):
            x = scale.x(from_ms)
            yield (
                f"<rect data-kind='shade' x='{x:.1f}' y='{_AXIS - 2}' width='{max(scale.x(to_ms) - x, 1.0):.1f}'"
                f" height='{height - 2 * _AXIS + 4:.1f}' class='shade' fill-opacity='.09'>"
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
    ("unbacked", "stale: session expired, not yet noticed"),
    ("session", "session"),
    ("registered", "session, registered"),
    ("phase-odd", "failover phase"),
    ("complete", "metadata complete"),
    ("incomplete", "incomplete"),
    ("failing", "no answer"),
    ("cut", "link cut"),
    ("standstill", "machine stalled"),
)


def _sample(kind: str, x: float, y: float) -> str:
    height, dashed = (3.0, True) if kind == "cut" else (12.0, kind in ("starting", "unbacked"))
    sample = box(kind, x, y + (12 - height) / 2, 18, height, kind, dashed=dashed)
    return sample.replace("data-kind", "data-sample")


def _legend(width: float) -> tuple[str, float]:
    """Samples with their meanings, in lines of at most `width`; and the height of it all."""
    x, y = 0.0, 6.0
    parts = []
    for kind, meaning in _LEGEND:
        room = 24 + words_width(meaning) + 16
        if x + room > width:
            x, y = 0.0, y + 20
        parts.append(_sample(kind, x + 0.5, y) + words(meaning, x + 24, y + 10, "s"))
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
        f"<style>{picture_style()}</style>{DEFS}<rect width='100%' height='100%' class='paper'/>"
        f"<g transform='translate(12 4)'>{drawing.beside}</g>"
        f"<g transform='translate({12 + LABELS_WIDTH + EDGE:.0f} 4)'>{drawing.drawn}</g>"
        f"<g transform='translate(12 {drawing.height + 8:.0f})'>{legend}</g></svg>\n"
    )


def zoomable_html(draw_at: Callable[[TimeScale], Drawing], scale: TimeScale, label: str) -> str:
    """Return a drawing for a page at every zoom level of `scale`; all but the first are hidden until a script shows
    them (templates/zoom.js). `label`: the same in words, for screen readers."""
    frames = [
        _frame(draw_at(at_level), label, f" data-zoom='{factor}' data-scale='{_turns(at_level)}'", hidden=factor > 1)
        for factor, at_level in scale.zoom_levels()
    ]
    return f"<div class='tl-zoom'>{_BUTTONS if len(frames) > 1 else ''}{''.join(frames)}</div>"


_BUTTONS = (
    "<p class='tl-buttons' hidden><button type='button' data-do='in' aria-label='zoom in'>+</button>"
    "<button type='button' data-do='out' aria-label='zoom out'>\u2212</button>"
    "<button type='button' data-do='left' aria-label='earlier'>\u2190</button>"
    "<button type='button' data-do='right' aria-label='later'>\u2192</button>"
    "<button type='button' data-do='all'>whole run</button> <output></output></p>"
)


def _turns(scale: TimeScale) -> str:
    """Return [ms, pixels] at each end of each piece of a scale, as JSON."""
    ends = [(piece.from_ms, piece.x) for piece in scale.pieces] + [(scale.to_ms, scale.width)]
    return "[" + ",".join(f"[{at_ms:.1f},{x:.1f}]" for at_ms, x in ends) + "]"


def frame_html(drawing: Drawing, label: str) -> str:
    """Return a drawing for a page: names that stay in place beside a part that scrolls. `label`: the same in words, for
    screen readers."""
    return _frame(drawing, label, "", hidden=False)


def _frame(drawing: Drawing, label: str, attributes: str, *, hidden: bool) -> str:
    return (
        f"<div class='tl-frame'{attributes}{' hidden' if hidden else ''}>"
        f"<svg class='tl tl-names' width='{LABELS_WIDTH:.0f}' height='{drawing.height:.0f}'"
        f" aria-hidden='true'>{drawing.beside}</svg>"
        f"<div class='tl-scroll' tabindex='0' role='group' aria-label='{plain(label)}'>"
        f"<svg class='tl tl-plot' width='{drawing.width:.0f}' height='{drawing.height:.0f}' role='img'"
        f" aria-label='{plain(label)}'>"
        f"<g transform='translate({EDGE:.0f} 0)'>{drawing.drawn}</g></svg></div></div>"
    )


def legend_html() -> str:
    """Return the legend as samples with words beside them, which wrap to the width of the page."""
    return (
        "<p class='tl-legend'>"
        + "".join(
            f"<span><svg class='tl' width='19' height='14' aria-hidden='true'>{_sample(kind, 0.5, 1)}</svg>"
            f" {plain(meaning)}</span>"
            for kind, meaning in _LEGEND
        )
        + "</p>"
    )


def patterns_html() -> str:
    """Return the patterns that the pictures of a page refer to, once for each page."""
    return f"<svg class='tl-defs' width='0' height='0' aria-hidden='true'>{DEFS}</svg>"
