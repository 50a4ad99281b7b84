"""The few SVG elements that a timeline is drawn with, each with a title that browsers show on hovering.

States differ by pattern, outline or word as well as by colour. A shape has a class by which `palette.py` colours it,
and a `data-kind` by which tests find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from controller.scenarios.timeline_scale import TimeScale

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
