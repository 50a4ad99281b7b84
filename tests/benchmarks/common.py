"""What benchmarks share: plots, tables of documentation pages, aligned text, worker processes, options.

Plots are PNG files in one style: colours that colour-blind readers tell apart (Okabe and Ito's), and a marker for each
line. This is the only module that imports matplotlib, and only as it draws. A table in a page is replaced between two
marks:

<!-- table: NAME -->
...
<!-- end -->
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from controller.cli.requirements import PLOTS, Need
from controller.cli.values import integer, output_file, output_folder

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


class CouldNotRun(Exception):
    """A benchmark can't run or can't write its results: `camerlengo bench` prints the message and exits with 3."""


class PlotsUnavailable(CouldNotRun):
    """matplotlib is not installed; the message says how to install it."""


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

    Raises ValueError if there is no panel, CouldNotRun if matplotlib is missing or the file can't be written.
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
    try:
        figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    except OSError as error:
        raise CouldNotRun(f"{path}: {error.strerror or error}") from error


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


ROOT = Path(__file__).parents[2]
END = "<!-- end -->"


class NoSuchTable(CouldNotRun, ValueError):
    """A page has no mark for a table of that name, or no end after it."""


def page_with(*names: str) -> Callable[[str], Path]:
    """Return the type of an option that names a page with tables of these names, which can be written."""

    def parse(text: str) -> Path:
        page = output_file(text)
        try:
            for name in names:
                _parts(page, name)
        except (OSError, ValueError) as error:
            raise ArgumentTypeError(str(error)) from error
        return page

    return parse


def put_table(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what is between the marks. Raises CouldNotRun."""
    try:
        before, after = _parts(page, name)
        page.write_text("".join([before, *(f"{line}\n" for line in lines), after]), encoding="utf-8")
    except OSError as error:
        raise CouldNotRun(f"{page}: {error.strerror or error}") from error


def _parts(page: Path, name: str) -> tuple[str, str]:
    """The text up to the table's first line, and from its end mark on. NoSuchTable, OSError."""
    begin = f"<!-- table: {name} -->\n"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise NoSuchTable(f"{page}: no table {name} between {begin.strip()} and {END}")
    return before + begin, ended + after


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. ValueError: a row of another length."""
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"row {row}: expected {len(head)} cells")
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def make_folder(folder: Path) -> None:
    """Make the directory of plots before anything is measured. Raises CouldNotRun."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CouldNotRun(f"{folder}: {error.strerror or error}") from error


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def spread(values: Sequence[float], digits: int | None = 1) -> dict[str, float]:
    """Return the median, the least and the most of `values`."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def show(arguments: argparse.Namespace, found: Any, text: str) -> None:
    """Print the figures, as `text` or (--json) as JSON."""
    print(json.dumps(found, indent=2) if arguments.json else text)


def note(line: str) -> None:
    """Print a line about the progress of a benchmark."""
    print(line, file=sys.stderr, flush=True)


def progress(words: str) -> None:
    """Show what is measured now: on a terminal one line that is overwritten, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
    elif words:
        note(f"{time.process_time():7.1f} s CPU  {words}")


# -- options


def integers(least: int = 1) -> Callable[[str], tuple[int, ...]]:
    """Return the type of a list of integers, ascending, each once."""
    return lambda text: tuple(sorted({integer(least)(word) for word in text.split(",")}))


def subset(*names: str) -> Callable[[str], tuple[str, ...]]:
    """Return the type of a list of some of `names`."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        if unknown := [word for word in words if word not in names]:
            raise ArgumentTypeError(f"{unknown[0]}: expected some of {', '.join(names)}")
        return words

    return parse


def add_count(parser: argparse.ArgumentParser, flag: str, default: int | None, help_: str, least: int = 1) -> None:
    """Add an option that takes an integer of at least `least`; its help ends with the default."""
    shown = help_ if default is None else f"{help_} ({default})"
    parser.add_argument(flag, type=integer(least), default=default, metavar="N", help=shown)


def add_output(parser: argparse.ArgumentParser, plots: str = "", page: str = "", tables: Sequence[str] = ()) -> None:
    """Add --json, and --plots and --page where the benchmark draws `plots` and fills `tables` of a page."""
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    if plots:
        parser.add_argument("--plots", type=output_folder, metavar="DIR", help=f"write {plots} to DIR")
    if tables:
        parser.add_argument(
            "--page", type=page_with(*tables), metavar="FILE", help=f"replace the tables in this page, such as {page}"
        )


def add_zookeeper_jars(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--zookeeper-jars", metavar="DIR", type=Path, help="directory of Apache ZooKeeper's jars (PySpark's)"
    )


def plots_needed(arguments: argparse.Namespace) -> tuple[Need, ...]:
    return PLOTS if arguments.plots is not None else ()


# -- processes


def run_worker(
    module: str, *words: str, limit_s: float = 600.0, environment: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Run a module in a fresh process and return its answer, one JSON object. `environment` has variables besides ours.
    Raises CalledProcessError."""
    command = [sys.executable, "-m", module, *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit_s, check=True, cwd=ROOT, env=env)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def circumstances(load_before: float) -> str:
    """Return the machine and the commit of a run. Load averages are of the minute before it and of its last."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    return (
        f"Python {platform.python_version()}; {os.cpu_count()} cores, load average {load_before:.1f} before the runs"
        f" and {os.getloadavg()[0]:.1f} at their end; commit {commit or 'unknown'}."
    )
