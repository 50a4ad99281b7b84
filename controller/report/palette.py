"""Colours of reports for light and dark screens, and the CSS that sets them.

A drawing names a class and no colour, so that the same picture serves both schemes. Text has a contrast of at least 4.5
to 1 to its background, lines and outlines one of 3 to 1 to the page (WCAG 2.1 AA), as tests check for every pair here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paint:
    """The colours of one kind of shape. `fill` is a colour, "none", or `url(#tl-NAME)` for a pattern of the palette;
    `ink` is the colour of text on it."""

    fill: str
    outline: str
    ink: str


@dataclass(frozen=True, slots=True)
class Palette:
    """All colours of one scheme. `patterns` maps a name to (background, mark), `page` CSS variables to colours."""

    paper: str
    ink: str
    faint: str
    grid: str
    kinds: Mapping[str, Paint]
    patterns: Mapping[str, tuple[str, str]]
    lines: tuple[str, ...]
    page: Mapping[str, str]


_INK, _DARK_INK = "#1f2328", "#e6edf3"
_PAPER, _DARK_PAPER = "#ffffff", "#0d1117"

LIGHT = Palette(
    paper=_PAPER,
    ink=_INK,
    faint="#59636e",
    grid="#e4e8ec",
    kinds={
        "running": Paint("#cfe2f6", "#2a6fb0", _INK),
        "starting": Paint(_PAPER, "#2a6fb0", _INK),
        "paused": Paint("url(#tl-paused)", "#7a3e9d", _INK),
        "stopping": Paint("url(#tl-stopping)", "#2a6fb0", _INK),
        "restarting": Paint("url(#tl-stopping)", "#2a6fb0", _INK),
        "registered": Paint("#12806f", "#0b5d50", _PAPER),
        "session": Paint("#d3efe9", "#12806f", _INK),
        "believed": Paint("url(#tl-stale)", "#b42318", _INK),
        "term": Paint("#1f3a68", "#14284a", _PAPER),
        "disputed": Paint("#b42318", "#14284a", _PAPER),
        "unbacked": Paint("url(#tl-stale)", "#b42318", _INK),
        "phase-odd": Paint("#f2c14e", "#8a6100", _INK),
        "phase-even": Paint("#fae3a5", "#8a6100", _INK),
        "vacant": Paint(_PAPER, "#b42318", "#b42318"),
        "elected": Paint("#e7ecf3", "#1f3a68", _INK),
        "unclean": Paint("#b42318", "#7a1710", _PAPER),
        "offline": Paint("#f3b6b0", "#b42318", _INK),
        "complete": Paint("#c9e8d0", "#1a7f37", _INK),
        "incomplete": Paint("url(#tl-incomplete)", "#9a6700", _INK),
        "failing": Paint("url(#tl-failing)", "#b42318", _INK),
        "cut": Paint("none", "#b42318", "#b42318"),
        "fault": Paint(_PAPER, "#b42318", "#b42318"),
        "error": Paint("#fff1c2", "#7a4b00", _INK),
        "standstill": Paint("url(#tl-standstill)", "#6e7781", _INK),
        "undetected": Paint("url(#tl-stopping)", "#59636e", _INK),
        "outage-broker": Paint("#b42318", "#7a1710", _PAPER),
        "outage-controller": Paint("#1f3a68", "#b42318", _PAPER),
        "under-replicated": Paint("#fae3a5", "#8a6100", _INK),
    },
    patterns={
        "paused": ("#f3e8f9", "#c9a3dd"),
        "stopping": ("#eef5fc", "#a9cbec"),
        "stale": ("#fdeceb", "#e08b84"),
        "incomplete": ("#fff4d6", "#e9c46a"),
        "failing": ("#fdeceb", "#e08b84"),
        "quiet": ("#f6f8fa", "#b6bfc9"),
        "standstill": ("#eceff2", "#8c959f"),
    },
    lines=("#2a6fb0", "#b42318", "#12806f", "#6e7781", "#8a3ffc", "#9a6700", "#b3267a"),
    page={"rule": "#d1d9e0", "note": "#fff1c2", "pass": "#1a7f37", "fail": "#c4281c", "unknown": "#8a5c00",
          "link": "#0b5cad"},
)  # fmt: skip

DARK = Palette(
    paper=_DARK_PAPER,
    ink=_DARK_INK,
    faint="#9aa4ae",
    grid="#262c34",
    kinds={
        "running": Paint("#1d3a5c", "#5b9fdc", _DARK_INK),
        "starting": Paint(_DARK_PAPER, "#5b9fdc", _DARK_INK),
        "paused": Paint("url(#tl-paused)", "#b98ae0", _DARK_INK),
        "stopping": Paint("url(#tl-stopping)", "#5b9fdc", _DARK_INK),
        "restarting": Paint("url(#tl-stopping)", "#5b9fdc", _DARK_INK),
        "registered": Paint("#4cc2ad", "#7ad8c7", _DARK_PAPER),
        "session": Paint("#12433b", "#3aa893", _DARK_INK),
        "believed": Paint("url(#tl-stale)", "#f0806f", _DARK_INK),
        "term": Paint("#a9c4ea", "#d0e0f7", _DARK_PAPER),
        "disputed": Paint("#f0806f", "#ffb3a7", _DARK_PAPER),
        "unbacked": Paint("url(#tl-stale)", "#f0806f", _DARK_INK),
        "phase-odd": Paint("#7a5a12", "#d9a93a", _DARK_INK),
        "phase-even": Paint("#4d3a10", "#d9a93a", _DARK_INK),
        "vacant": Paint(_DARK_PAPER, "#f0806f", "#f0806f"),
        "elected": Paint("#21283a", "#8fb0e6", _DARK_INK),
        "unclean": Paint("#f0806f", "#ffb3a7", _DARK_PAPER),
        "offline": Paint("#5c2622", "#f0806f", _DARK_INK),
        "complete": Paint("#143d22", "#3fb950", _DARK_INK),
        "incomplete": Paint("url(#tl-incomplete)", "#d9a93a", _DARK_INK),
        "failing": Paint("url(#tl-failing)", "#f0806f", _DARK_INK),
        "cut": Paint("none", "#f0806f", "#f0806f"),
        "fault": Paint(_DARK_PAPER, "#f0806f", "#f0806f"),
        "error": Paint("#4d3a10", "#e3b341", _DARK_INK),
        "standstill": Paint("url(#tl-standstill)", "#8b949e", _DARK_INK),
        "undetected": Paint("url(#tl-stopping)", "#9aa4ae", _DARK_INK),
        "outage-broker": Paint("#f0806f", "#ffb3a7", _DARK_PAPER),
        "outage-controller": Paint("#a9c4ea", "#f0806f", _DARK_PAPER),
        "under-replicated": Paint("#4d3a10", "#d9a93a", _DARK_INK),
    },
    patterns={
        "paused": ("#2d1f40", "#5d3f7d"),
        "stopping": ("#14263a", "#2f5f90"),
        "stale": ("#3d1a1a", "#8c3a35"),
        "incomplete": ("#332a10", "#6b5619"),
        "failing": ("#3d1a1a", "#8c3a35"),
        "quiet": ("#161b22", "#484f58"),
        "standstill": ("#1c2128", "#57606a"),
    },
    lines=("#6cb0f5", "#ff8a7a", "#4cc2ad", "#9aa4ae", "#c79bff", "#e3b341", "#ff8ac4"),
    page={"rule": "#30363d", "note": "#3a2f0f", "pass": "#56d364", "fail": "#ff8a7a", "unknown": "#e3b341",
          "link": "#79b8ff"},
)  # fmt: skip

DEFS = (
    "<defs>"
    "<pattern id='tl-paused' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect class='pg-paused' width='6' height='6'/><rect class='pm-paused' width='2' height='6'/></pattern>"
    "<pattern id='tl-stopping' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(-45)'>"
    "<rect class='pg-stopping' width='6' height='6'/><rect class='pm-stopping' width='2' height='6'/></pattern>"
    "<pattern id='tl-stale' width='5' height='5' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect class='pg-stale' width='5' height='5'/><rect class='pm-stale' width='1.5' height='5'/></pattern>"
    "<pattern id='tl-incomplete' width='7' height='7' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect class='pg-incomplete' width='7' height='7'/><rect class='pm-incomplete' width='2' height='7'/></pattern>"
    "<pattern id='tl-failing' width='6' height='6' patternUnits='userSpaceOnUse'>"
    "<rect class='pg-failing' width='6' height='6'/><path class='pl-failing' d='M0 0L6 6M6 0L0 6'/></pattern>"
    "<pattern id='tl-quiet' width='8' height='8' patternUnits='userSpaceOnUse'>"
    "<rect class='pg-quiet' width='8' height='8'/><path class='pl-quiet' d='M0 6L4 2L8 6'/></pattern>"
    "<pattern id='tl-standstill' width='4' height='4' patternUnits='userSpaceOnUse'>"
    "<rect class='pg-standstill' width='4' height='4'/>"
    "<rect class='pm-standstill' width='1.5' height='1.5'/></pattern>"
    "</defs>"
)
"""Once a page: the pictures after the first refer to these."""


def picture_style() -> str:
    """Return the CSS of all drawings, for both schemes."""
    return (
        ".tl{font:12px system-ui,'DejaVu Sans',sans-serif;display:block}.tl .s{font-size:11px}.tl .b{font-weight:600}"
        ".tl .m{text-anchor:middle}.tl .e{text-anchor:end}"
        f"{''.join(_rules(LIGHT))}@media(prefers-color-scheme:dark){{{''.join(_rules(DARK))}}}"
    )


def _rules(palette: Palette) -> Iterator[str]:
    yield f".tl text{{fill:{palette.ink}}}.tl .f{{fill:{palette.faint}}}.tl .paper{{fill:{palette.paper}}}"
    yield f".tl .grid{{fill:none;stroke:{palette.grid}}}.tl .base{{fill:none;stroke:{palette.faint}}}"
    for kind, paint in palette.kinds.items():
        yield f".tl .k-{kind}{{fill:{paint.fill};stroke:{paint.outline}}}.tl .on-{kind}{{fill:{paint.ink}}}"
    fault = palette.kinds["fault"].outline
    yield f".tl .mark{{fill:none;stroke:{fault}}}.tl .solid{{fill:{fault};stroke:{fault}}}.tl .shade{{fill:{fault}}}"
    for name, (ground, mark) in palette.patterns.items():
        yield f".pg-{name}{{fill:{ground}}}.pm-{name}{{fill:{mark}}}.pl-{name}{{fill:none;stroke:{mark}}}"
    for number, colour in enumerate(palette.lines):
        yield f".tl .l{number}{{fill:none;stroke:{colour}}}.tl .d{number}{{fill:{colour}}}"


def page_style() -> str:
    """Return the CSS variables of pages, for both schemes."""
    dark = f"@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    return f":root{{color-scheme:light dark;{_variables(LIGHT)}}}{dark}"


def _variables(palette: Palette) -> str:
    values = {"paper": palette.paper, "ink": palette.ink, "faint": palette.faint, **palette.page}
    return ";".join(f"--{name}:{colour}" for name, colour in values.items())
