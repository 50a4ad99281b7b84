"""Tables of benchmark results in a documentation page: a table between two marks is replaced.

<!-- table: NAME -->
...
<!-- end -->
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path

from controller.cli.values import output_file

END = "<!-- end -->"


class NoSuchTable(ValueError):
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
    """Replaces what stands between the marks. NoSuchTable, OSError."""
    before, after = _parts(page, name)
    page.write_text("".join([before, *(f"{line}\n" for line in lines), after]), encoding="utf-8")


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
