"""Where a moment lies on a timeline's axis: linear, but for quiet stretches of long runs, which are cut short.

A stretch is quiet when nothing on the timeline changes in it. Each one that is cut keeps a margin at both ends and is
drawn as a gap of fixed width with its length beside it, so that readers do not take it for time to scale.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from controller.scenarios.timeline_model import Timeline

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
