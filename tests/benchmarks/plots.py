"""Plots of the benchmarks, as PNG: values in, a file out. The only module that imports matplotlib, and only as it
draws. One style for all: colours that colour-blind readers tell apart (Okabe and Ito's), and a marker for each line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette without its yellow, which white paper swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANEL_WIDTH_IN, PANEL_HEIGHT_IN = 5.6, 4.2
DOTS_PER_INCH = 110
GRID = "#d9dce1"
INK = "#2b2f36"


class PlotsUnavailable(Exception):
    """matplotlib is not installed; the message says how to come by it."""


class Look(Enum):
    """Measured points joined by a line (dashed, for a second line of one colour), points alone, or a line that was
    computed."""

    Measured = "measured"
    Dashed = "dashed"
    Points = "points"
    Computed = "computed"


@dataclass(frozen=True, slots=True)
class Line:
    """`x` and `y` of one length. `colour`: an index into COLOURS and MARKERS, the same for what belongs together."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int
    look: Look = Look.Measured

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"line {self.name!r}: {len(self.x)} x and {len(self.y)} y")
        if not 0 <= self.colour < len(COLOURS):
            raise ValueError(f"line {self.name!r}: colour {self.colour}, expected 0 to {len(COLOURS) - 1}")


@dataclass(frozen=True, slots=True)
class Mark:
    """An upright line at `x`, named at the top of the panel."""

    x: float
    name: str
    colour: int = 6
    look: Look = Look.Measured


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, with units in their labels. `diagonal`: also draw y = x, for a target against what came."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    diagonal: bool = False
    marks: Sequence[Mark] = ()


def save(path: Path, title: str, panels: Sequence[Panel], columns: int = 3, same_y: bool = False) -> None:
    """Draws `panels`, at most `columns` of them side by side, into the PNG file `path`. `same_y`: all with one range
    of y. The legend is below if it is the same for all panels.

    Raises ValueError if there is no panel, PlotsUnavailable, and OSError if the file can't be written.
    """
    if not panels:
        raise ValueError(f"{path.name}: no panel to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsUnavailable("plots need matplotlib: pip install 'camerlengo[docs]'") from error
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    # A Figure of its own, without pyplot: no state of the process is touched and no window opened.
    figure = Figure(figsize=(PANEL_WIDTH_IN * columns, PANEL_HEIGHT_IN * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=13, color=INK)
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, sharey=same_y).flat)
    for place, panel in zip(axes, panels, strict=False):
        _draw(place, panel)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    legends = [place.get_legend_handles_labels() for place in axes[: len(panels)]]
    if len({tuple(labels) for _, labels in legends}) == 1:
        if len(legends[0][1]) > 1:
            figure.legend(*legends[0], loc="outside lower center", ncols=min(2 * columns, 4), fontsize=9, frameon=False)
    else:
        for place, (_, labels) in zip(axes, legends, strict=False):
            if len(labels) > 1:
                place.legend(fontsize=8, frameon=False)
    # Without the writer's name and version, equal figures are equal files wherever they are drawn.
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})


def _draw(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    if panel.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    if panel.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    if panel.diagonal:
        reach = max((max(line.x, default=0) for line in panel.lines), default=0)
        axes.plot([0, reach], [0, reach], color=GRID, linewidth=1.2, zorder=1)
    for mark in panel.marks:
        dashes = ":" if mark.look is Look.Measured else "--"
        axes.axvline(mark.x, color=COLOURS[mark.colour], linestyle=dashes, linewidth=1.1, zorder=1, label=mark.name)
    axes.set_title(panel.title, fontsize=11, color=INK)
    axes.set_xlabel(panel.x_label, color=INK)
    axes.set_ylabel(panel.y_label, color=INK)
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plain_numbers(axis: Axis) -> None:
    """0.1, 1 and 1,000 rather than powers of ten, and nothing at the small ticks between."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_line(axes: Axes, line: Line) -> None:
    colour, marker = COLOURS[line.colour], MARKERS[line.colour]
    if line.look is Look.Computed:
        axes.plot(line.x, line.y, color=colour, linestyle="--", linewidth=1.2, label=line.name)
        return
    joined = {Look.Measured: "-", Look.Dashed: "--", Look.Points: "none"}[line.look]
    axes.plot(
        line.x, line.y, color=colour, linestyle=joined, linewidth=1.6, marker=marker, markersize=4.5, label=line.name
    )
