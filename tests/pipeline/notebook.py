"""`python -m tests.pipeline.notebook FILE...`: runs notebooks' code cells, without Jupyter, and keeps in the file what
they print and draw. Tests run the same cells and compare.

A cell's outputs are its printed text and one picture for each figure that it leaves open; an expression at its end is
not shown, so cells print.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

DOTS_AN_INCH = 80


@dataclass(frozen=True, slots=True)
class Shown:
    """What one code cell printed, and the pictures (PNG) that it drew."""

    text: str
    pictures: tuple[bytes, ...]


def run_cells(path: Path) -> Iterator[Shown]:
    """Runs the code cells in order, in one namespace and in the notebook's folder, as Jupyter does."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    matplotlib.use("Agg")  # no window is opened
    with chdir(path.parent):
        for number, cell in enumerate(code_cells(json.loads(path.read_text(encoding="utf-8")))):
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), namespace)
            yield Shown(printed.getvalue(), tuple(_pictures()))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kept(cell: dict[str, Any]) -> tuple[str, int]:
    """What the file says that a cell printed, and how many pictures."""
    texts = ["".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"]
    return "".join(texts), sum(output["output_type"] == "display_data" for output in cell["outputs"])


def _pictures() -> Iterator[bytes]:
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=DOTS_AN_INCH, metadata={"Software": None})
        yield picture.getvalue()
    plt.close("all")


def rewrite(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, shown) in enumerate(zip(code_cells(notebook), run_cells(path), strict=True), 1):
        cell["execution_count"] = number
        text = {"output_type": "stream", "name": "stdout", "text": shown.text.splitlines(keepends=True)}
        pictures = [
            {
                "output_type": "display_data",
                "data": {"image/png": base64.b64encode(picture).decode(), "text/plain": ["<Figure>"]},
                "metadata": {},
            }
            for picture in shown.pictures
        ]
        cell["outputs"] = [*([text] if shown.text else []), *pictures]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name).resolve())
