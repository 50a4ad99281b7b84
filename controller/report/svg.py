"""Drawings over one axis of time, as SVG: the scale, shapes and words, rows put together, zoom levels for a page.

The scale is linear, but for quiet stretches of long runs, in which nothing changes: each is cut short, keeps a margin
at both ends and is drawn as a gap of fixed width with its length beside it, so that readers do not take it for time to
scale. On a page the names stay in place while a long or enlarged run scrolls beside them. Nothing is loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape

from controller.report.timeline import Timeline
from controller.scenarios.host_stalls import HostStall

LONG_RUN_MS = 30_000.0
"""Shorter runs are drawn to scale throughout."""

QUIET_MS = 5_000.0
QUIET_MARGIN_MS = 500.0
QUIET_WIDTH = 20.0

NARROWEST, WIDEST = 960.0, 2_880.0
"""Of the part drawn, in pixels: one screen, or three to scroll through."""

PIXELS_A_SECOND = 12.0
"""What a second of a long run gets at least, until WIDEST is reached."""

_STEPS_MS = tuple(base * 10**power for power in range(7) for base in (1, 2, 5)) + (60_000, 300_000, 600_000, 3_600_000)
_CLOCK_STEPS_MS = (
    *(base * 10**power for power in range(3) for base in (1, 2, 5)),
    *(seconds * 1000 for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080)),
)
_TICK_WIDTH = 80.0
_ZOOMED_TICK_WIDTH = 140.0
"""Fewer ticks on a wide picture, of which only a part is seen at a time, keep the page small."""

_ZOOM = 4.0
_FINEST_PIXELS_A_MS = 0.5
"""There is no further zoom level once a level has this resolution."""
_WIDEST_ZOOMED = 262_144.0
"""Nor one that were wider than this: each level is on the page, with its ticks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time and where it is drawn; within it, x grows evenly."""

    from_ms: float
    to_ms: float
    x: float
    width: float
    quiet: bool


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Maps times to pixels. `clock`: times are ms since 1970 and are shown as HH:MM:SS (UTC); otherwise they are ms
    from the start of the run and are shown in seconds."""

    pieces: tuple[Piece, ...]
    clock: bool = False
    tick_width: float = _TICK_WIDTH

    @property
    def from_ms(self) -> float:
        return self.pieces[0].from_ms

    @property
    def to_ms(self) -> float:
        return self.pieces[-1].to_ms

    @property
    def width(self) -> float:
        return self.pieces[-1].x + self.pieces[-1].width

    def x(self, at_ms: float) -> float:
        """Pixels from the left; a moment outside is drawn at the end that it is beyond."""
        at_ms = min(max(at_ms, self.from_ms), self.to_ms)
        piece = self.pieces[bisect_right(self.pieces, at_ms, key=lambda piece: piece.from_ms) - 1]
        return piece.x + (at_ms - piece.from_ms) / (piece.to_ms - piece.from_ms) * piece.width

    def holds(self, from_ms: float, to_ms: float) -> bool:
        """Whether any of that time is drawn."""
        return from_ms <= self.to_ms and to_ms >= self.from_ms

    def clear(self, from_ms: float, to_ms: float) -> tuple[float, float]:
        """From where to where on the picture the longest part of that time is drawn to scale: the place for words.
        No place at all, if all of it is cut short."""
        best = (self.x(from_ms), self.x(from_ms))
        for piece in self.pieces:
            left, right = self.x(max(from_ms, piece.from_ms)), self.x(min(to_ms, piece.to_ms))
            if not piece.quiet and right - left > best[1] - best[0]:
                best = (left, right)
        return best

    def ticks(self) -> Iterator[tuple[float, float, str]]:
        """Moment, place and label, at round times that are drawn to scale and keep apart from each other."""
        drawn = [piece for piece in self.pieces if not piece.quiet]
        pixels_a_ms = sum(piece.width for piece in drawn) / sum(piece.to_ms - piece.from_ms for piece in drawn)
        steps = _CLOCK_STEPS_MS if self.clock else sorted(_STEPS_MS)
        step_ms = next((step for step in steps if step * pixels_a_ms >= self.tick_width), steps[-1])
        last_x = -self.tick_width
        for piece in drawn:
            for at_ms in _round_times(piece, step_ms):
                x = self.x(at_ms)
                if x - last_x >= _TICK_WIDTH * 0.8:
                    yield at_ms, x, self._tick(at_ms, step_ms)
                    last_x = x

    def _tick(self, at_ms: float, step_ms: int) -> str:
        digits = 0 if step_ms % 1000 == 0 else 1 if step_ms % 100 == 0 else 2 if step_ms % 10 == 0 else 3
        if not self.clock:
            return f"{at_ms / 1000:.{digits}f} s"
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        if self.to_ms - self.from_ms > 86_400_000:
            return f"{at:%m-%d %H:%M}"
        return f"{at:%H:%M:%S}" + (f"{round(at_ms) % 1000 / 1000:.{digits}f}"[1:] if digits else "")

    def zoomed(self, factor: float) -> TimeScale:
        """Return the same time, `factor` times as wide; stretches that are cut short keep their width."""
        pieces, x = [], 0.0
        for piece in self.pieces:
            width = piece.width if piece.quiet else piece.width * factor
            pieces.append(Piece(piece.from_ms, piece.to_ms, x, width, piece.quiet))
            x += width
        return replace(self, pieces=tuple(pieces), tick_width=_ZOOMED_TICK_WIDTH)

    def zoom_levels(self) -> Iterator[tuple[int, TimeScale]]:
        """Yield each zoom factor with its scale, the unzoomed one first, up to about a pixel a millisecond."""
        factor = 1.0
        busy = next(piece for piece in self.pieces if not piece.quiet)
        while True:
            yield int(factor), self if factor == 1.0 else self.zoomed(factor)
            fine = busy.width * factor / (busy.to_ms - busy.from_ms) >= _FINEST_PIXELS_A_MS
            factor *= _ZOOM
            if fine or self.width * factor > _WIDEST_ZOOMED:
                return


def _round_times(piece: Piece, step_ms: int) -> list[float]:
    """The multiples of a step in a piece; if it has none, one of the longest step that has (of whole seconds)."""
    for step in (step_ms, *sorted((step for step in _STEPS_MS if 1000 <= step < step_ms), reverse=True)):
        first = -int(-piece.from_ms // step)
        times = [float(number * step) for number in range(first, int(piece.to_ms // step) + 1)]
        if times:
            return times if step == step_ms else times[:1]
    return []


def whole_run(timeline: Timeline, busy: Sequence[tuple[float, float]] = ()) -> TimeScale:
    """Return the scale of all of a run, its quiet stretches cut short if it was long. `busy`: times that are drawn to
    scale though nothing on the timeline changes in them."""
    end_ms = max(timeline.duration_ms, 1.0)
    quiet = [*_quiet(timeline, busy)] if end_ms >= LONG_RUN_MS else []
    busy_ms = end_ms - sum(to_ms - from_ms for from_ms, to_ms in quiet)
    needed = busy_ms / 1000 * PIXELS_A_SECOND + QUIET_WIDTH * len(quiet)
    width = min(max(needed, NARROWEST), WIDEST)
    # So many gaps that little were left for what happened: the picture grows, however wide.
    pixels_a_ms = max(width - QUIET_WIDTH * len(quiet), width / 2) / busy_ms
    return TimeScale(tuple(_pieces(end_ms, quiet, pixels_a_ms)))


def close_up(from_ms: float, to_ms: float) -> TimeScale:
    """A part of a run, to scale."""
    return TimeScale((Piece(from_ms, max(to_ms, from_ms + 1.0), 0.0, NARROWEST, False),))


def _pieces(end_ms: float, quiet: list[tuple[float, float]], pixels_a_ms: float) -> Iterator[Piece]:
    at_ms, x = 0.0, 0.0
    for from_ms, to_ms in quiet:
        if from_ms > at_ms:
            yield Piece(at_ms, from_ms, x, (from_ms - at_ms) * pixels_a_ms, False)
            x += (from_ms - at_ms) * pixels_a_ms
        yield Piece(from_ms, to_ms, x, QUIET_WIDTH, True)
        at_ms, x = to_ms, x + QUIET_WIDTH
    if end_ms > at_ms:
        yield Piece(at_ms, end_ms, x, (end_ms - at_ms) * pixels_a_ms, False)


def _quiet(timeline: Timeline, busy: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    last_ms = 0.0
    during = [from_ms + part * (to_ms - from_ms) for from_ms, to_ms in busy for part in _parts(to_ms - from_ms)]
    for at_ms in [*sorted([*_moments(timeline), *during]), timeline.duration_ms]:
        if at_ms - last_ms >= QUIET_MS:
            yield last_ms + QUIET_MARGIN_MS, at_ms - QUIET_MARGIN_MS
        last_ms = max(last_ms, at_ms)


def _moments(timeline: Timeline) -> Iterator[float]:
    """Every moment at which something on the timeline changes."""
    for lane in timeline.lanes:
        for life in lane.life:
            yield from (life.from_ms, life.to_ms)
        for session in lane.sessions:
            yield from (session.from_ms, session.to_ms, session.believed_until_ms)
            for registration in session.registrations:
                yield from (registration.from_ms, registration.to_ms)
        for cut in lane.cuts:
            yield from (cut.from_ms, cut.to_ms)
    for term in timeline.terms:
        yield from (term.from_ms, term.to_ms, term.backed_until_ms)
        for phase in term.phases:
            yield from (phase.from_ms, phase.to_ms)
    for holder in timeline.holders:
        yield from (holder.from_ms, holder.to_ms)
    for span in timeline.client:
        yield from (span.from_ms, span.to_ms)
    for election in timeline.elections:
        yield from (election.from_ms, election.to_ms)
    yield from (fault.at_ms for fault in timeline.faults)
    yield from (error.at_ms for error in timeline.errors)
    yield from (point.at_ms for point in timeline.offline)
    for standstill in timeline.standstills:
        # Nothing can change in it, and it must not be cut short: its length is its information.
        yield from (standstill.from_ms + part * standstill.duration_ms for part in _parts(standstill.duration_ms))


def _parts(duration_ms: float) -> list[float]:
    """Shares of a time, from 0 to 1, closer to each other than a stretch that is cut short."""
    count = int(duration_ms // QUIET_MS) + 1
    return [number / count for number in range(count + 1)]


_START = "M-2-3.4L3.4 0L-2 3.4Z"

GLYPHS = {
    "kill": "M-3.2-3.2L3.2 3.2M3.2-3.2L-3.2 3.2",
    "stop": "M-2.8-2.8H2.8V2.8H-2.8Z",
    "pause": "M-1.8-3.4V3.4M1.8-3.4V3.4",
    "resume": _START,
    "start": _START,
    "restart": "M3.2-1.4A3.5 3.5 0 1 0 3.4 1.2M3.4-4V-1.2H.6",
    "cut": "M-5 0H-1.6M1.6 0H5M-1.6-3.4V3.4M1.6-3.4V3.4",
    "heal": "M-5 0H5M-1.6-3.4V3.4M1.6-3.4V3.4",
    "expire": "M-3-3.6H3L-3 3.6H3Z",
}
"""A fault's sign, around its middle; one that is not here is a dot."""

_LETTER = {"": 6.9, "s": 6.4, "sf": 6.4, "b": 7.4}


def words_width(text: str, style: str = "s") -> float:
    """About how wide `text` comes out, rather too wide than too narrow: fonts differ."""
    return len(text) * _LETTER.get(style.replace("m", "").replace("e", "").strip(), 6.9)


def plain(text: str) -> str:
    """`text` as it may stand in XML: escaped, without the control characters that no escape saves."""
    return escape("".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text))


def title(text: str) -> str:
    return f"<title>{plain(text)}</title>"


def box(kind: str, x: float, y: float, width: float, height: float, detail: str, *, dashed: bool = False) -> str:
    """A filled rectangle that is at least a pixel wide."""
    dash = " stroke-dasharray='3 2'" if dashed else ""
    return (
        f"<rect data-kind='{kind}' class='k-{kind}' x='{x:.1f}' y='{y:.1f}' width='{max(width, 1.0):.1f}'"
        f" height='{height:.1f}' rx='{min(2.0, width / 3):.1f}'{dash}>{title(detail)}</rect>"
    )


def words(text: str, x: float, y: float, style: str = "s", on: str | None = None) -> str:
    """Return text on a base line. `style`: letters of s (small), f (faint), b (bold), m (middle), e (end); `on`: the
    kind of shape that it is written on."""
    ink = f" on-{on}" if on else ""
    return f"<text class='{' '.join(style)}{ink}' x='{x:.1f}' y='{y:.1f}'>{plain(text)}</text>"


def labelled_box(
    kind: str,
    scale: TimeScale,
    from_ms: float,
    to_ms: float,
    y: float,
    height: float,
    labels: Sequence[str],
    detail: str,
    *,
    dashed: bool = False,
) -> str:
    """A box over a time, with the first of `labels` that fits into what of it is drawn to scale, if one does."""
    x = scale.x(from_ms)
    shape = box(kind, x, y, scale.x(to_ms) - x, height, detail, dashed=dashed)
    left, right = scale.clear(from_ms, to_ms)
    label = next((label for label in labels if words_width(label) + 8 <= right - left), None)
    if label is None or height < 11:
        return shape
    middle = words(label, (left + right) / 2, y + height / 2 + 4, "sm", kind)
    return f"<g>{shape}<g pointer-events='none'>{middle}</g></g>"


def sign(fault: str, x: float, y: float, detail: str, radius: float) -> str:
    """A fault's sign in a circle."""
    path = GLYPHS.get(fault, "M-1-1H1V1H-1Z")
    filled = "solid" if fault in ("stop", "resume", "start", "expire") else "mark"
    return (
        f"<g data-kind='fault' transform='translate({x:.1f} {y:.1f}) scale({radius / 7:.2f})'>"
        f"<circle r='7' class='k-fault' stroke-width='1.4'/>"
        f"<path d='{path}' class='{filled}' stroke-width='1.6'/>{title(detail)}</g>"
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A band of the picture as drawn: what stands beside it and what is in it, both from its own top. `above`: over
    the marks of stretches cut short, for what stands at a moment and is wider than it."""

    height: float
    beside: str
    drawn: str
    above: bool = False


def seconds(at_ms: float) -> str:
    return f"{at_ms / 1000:.3f} s"


def lasting(from_ms: float, to_ms: float, *, open_end: bool = False) -> str:
    """A span in words."""
    end = "the end of the run" if open_end else seconds(to_ms)
    return f"{seconds(from_ms)} to {end} ({duration(to_ms - from_ms)})"


def duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


LABELS_WIDTH = 150.0
"""Of the column of names at the left."""


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
