"""The heat map of pairs of brokers, as one SVG that loads nothing: values in, text out."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.pipeline.worst_sets import HeatMap

_SIDE = 720
_MARGIN = 70
_LABELS = 25
"""As many as can be read beside the map."""
_PALETTE = (
    "#f5f6f8",
    "#fde0c5",
    "#facba6",
    "#f8b58b",
    "#f59e72",
    "#f2855d",
    "#ef6a4c",
    "#d23b3b",
    "#9c1f3f",
    "#5f0f40",
)


def heat_map_svg(heat: HeatMap) -> str:
    """Two maps side by side: partitions offline, and partitions under min.insync.replicas."""
    width, height = 2 * (_SIDE + _MARGIN) + 40, _SIDE + _MARGIN + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, sans-serif" font-size="12" fill="#2b2f36">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    parts += _map(heat.labels, heat.offline, "partitions offline when both brokers are lost", 0)
    parts += _map(heat.labels, heat.under, "partitions under min.insync.replicas", _SIDE + _MARGIN + 40)
    return "\n".join([*parts, "</svg>", ""])


def _map(labels: tuple[str, ...], values: Any, title: str, left: int) -> Iterator[str]:
    cells = len(labels)
    most = int(values.max()) if cells else 0
    side = _SIDE / max(cells, 1)
    yield f'<g transform="translate({left + _MARGIN},44)">'
    yield f'<text x="0" y="-24" font-size="15" font-weight="600">{escape(title)}</text>'
    yield f'<text x="0" y="-8" fill="#5c6470">darkest: {most}</text>'
    for row in range(cells):
        for column in range(cells):
            value = int(values[row, column])
            text = f"{labels[row]} and {labels[column]}: {value}" if row != column else f"{labels[row]}: {value}"
            yield (
                f'<rect x="{column * side:.2f}" y="{row * side:.2f}" width="{side + 0.3:.2f}" height="{side + 0.3:.2f}"'
                f' fill="{_colour(value, most)}"><title>{escape(text)}</title></rect>'
            )
    for cell in range(0, cells, max(1, -(-cells // _LABELS))):
        middle = (cell + 0.5) * side
        yield f'<text x="-6" y="{middle + 4:.1f}" text-anchor="end">{escape(labels[cell])}</text>'
        yield (f'<text transform="translate({middle + 4:.1f},{_SIDE + 8}) rotate(90)">{escape(labels[cell])}</text>')
    yield "</g>"


def _colour(value: int, most: int) -> str:
    """Return the colour of a value. Every loss above 0 has another colour than 0."""
    return _PALETTE[0] if value == 0 else _PALETTE[1 + (value * (len(_PALETTE) - 2)) // most]
