"""The strokes a timeline is drawn with: colours, patterns, and the few SVG elements, every one with a title to hover.

Colour never speaks alone: states also differ by pattern, outline or word. Lines and outlines keep a contrast of 3 to 1
to the page, words one of 4.5 to 1 to what they stand on. Each drawn thing has a `data-kind`, by which it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from controller.scenarios.timeline_scale import TimeScale

PAPER, INK, FAINT_INK, GRID = "#ffffff", "#1f2328", "#59636e", "#e4e8ec"

FILLS: dict[str, tuple[str, str, str]] = {
    "running": ("#cfe2f6", "#2a6fb0", INK),
    "starting": (PAPER, "#2a6fb0", INK),
    "paused": ("url(#tl-paused)", "#7a3e9d", INK),
    "stopping": ("url(#tl-stopping)", "#2a6fb0", INK),
    "restarting": ("url(#tl-stopping)", "#2a6fb0", INK),
    "registered": ("#12806f", "#0b5d50", PAPER),
    "session": ("#d3efe9", "#12806f", INK),
    "believed": ("url(#tl-stale)", "#b42318", INK),
    "term": ("#1f3a68", "#14284a", PAPER),
    "disputed": ("#b42318", "#14284a", PAPER),
    "unbacked": ("url(#tl-stale)", "#b42318", INK),
    "phase-odd": ("#f2c14e", "#8a6100", INK),
    "phase-even": ("#fae3a5", "#8a6100", INK),
    "vacant": (PAPER, "#b42318", "#b42318"),
    "elected": ("#e7ecf3", "#1f3a68", INK),
    "unclean": ("#b42318", "#7a1710", PAPER),
    "offline": ("#f3b6b0", "#b42318", INK),
    "complete": ("#c9e8d0", "#1a7f37", INK),
    "incomplete": ("url(#tl-incomplete)", "#9a6700", INK),
    "failing": ("url(#tl-failing)", "#b42318", INK),
    "cut": ("none", "#b42318", "#b42318"),
    "fault": (PAPER, "#b42318", "#b42318"),
    "trouble": ("#fff1c2", "#7a4b00", INK),
    "standstill": ("url(#tl-standstill)", "#6e7781", INK),
}
"""Kind to fill, outline and the colour of words on it."""

DEFS = (
    "<defs>"
    "<pattern id='tl-paused' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect width='6' height='6' fill='#f3e8f9'/><rect width='2' height='6' fill='#c9a3dd'/></pattern>"
    "<pattern id='tl-stopping' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(-45)'>"
    "<rect width='6' height='6' fill='#eef5fc'/><rect width='2' height='6' fill='#a9cbec'/></pattern>"
    "<pattern id='tl-stale' width='5' height='5' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect width='5' height='5' fill='#fdeceb'/><rect width='1.5' height='5' fill='#e08b84'/></pattern>"
    "<pattern id='tl-incomplete' width='7' height='7' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect width='7' height='7' fill='#fff4d6'/><rect width='2' height='7' fill='#e9c46a'/></pattern>"
    "<pattern id='tl-failing' width='6' height='6' patternUnits='userSpaceOnUse'>"
    "<rect width='6' height='6' fill='#fdeceb'/><path d='M0 0L6 6M6 0L0 6' stroke='#e08b84'/></pattern>"
    "<pattern id='tl-quiet' width='8' height='8' patternUnits='userSpaceOnUse'>"
    "<rect width='8' height='8' fill='#f6f8fa'/><path d='M0 6L4 2L8 6' fill='none' stroke='#b6bfc9'/></pattern>"
    "<pattern id='tl-standstill' width='4' height='4' patternUnits='userSpaceOnUse'>"
    "<rect width='4' height='4' fill='#eceff2'/><rect width='1.5' height='1.5' fill='#8c959f'/></pattern>"
    "</defs>"
)
"""Once a page: the pictures after the first refer to these."""

STYLE = (
    ".tl{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328;display:block}"
    ".tl .s{font-size:11px}.tl .f{fill:#59636e}.tl .b{font-weight:600}.tl .m{text-anchor:middle}.tl .e{text-anchor:end}"
)

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
    fill, outline, _ = FILLS[kind]
    dash = " stroke-dasharray='3 2'" if dashed else ""
    return (
        f"<rect data-kind='{kind}' x='{x:.1f}' y='{y:.1f}' width='{max(width, 1.0):.1f}' height='{height:.1f}'"
        f" rx='{min(2.0, width / 3):.1f}' fill='{fill}' stroke='{outline}'{dash}>{title(detail)}</rect>"
    )


def words(text: str, x: float, y: float, style: str = "s", colour: str | None = None) -> str:
    """Text on a base line. `style`: letters of s (small), f (faint), b (bold), m (middle), e (end)."""
    fill = f" style='fill:{colour}'" if colour else ""
    return f"<text class='{' '.join(style)}' x='{x:.1f}' y='{y:.1f}'{fill}>{plain(text)}</text>"


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
    middle = words(label, (left + right) / 2, y + height / 2 + 4, "sm", FILLS[kind][2])
    return f"<g>{shape}<g pointer-events='none'>{middle}</g></g>"


def sign(fault: str, x: float, y: float, detail: str, radius: float) -> str:
    """A fault's sign in a circle."""
    _, outline, _ = FILLS["fault"]
    path = GLYPHS.get(fault, "M-1-1H1V1H-1Z")
    filled = outline if fault in ("stop", "resume", "start", "expire") else "none"
    return (
        f"<g data-kind='fault' transform='translate({x:.1f} {y:.1f}) scale({radius / 7:.2f})'>"
        f"<circle r='7' fill='{PAPER}' stroke='{outline}' stroke-width='1.4'/>"
        f"<path d='{path}' fill='{filled}' stroke='{outline}' stroke-width='1.6'/>{title(detail)}</g>"
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
