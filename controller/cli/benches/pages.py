"""What a benchmark measured, written into a page of the documentation: a table between two marks is made anew.

<!-- table: NAME -->
...
<!-- end -->
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

END = "<!-- end -->"


class NoSuchTable(ValueError):
    """A page has no mark for a table of that name, or no end after it."""


def put_table(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replaces what stands between the marks. NoSuchTable, OSError."""
    text = page.read_text(encoding="utf-8")
    begin = f"<!-- table: {name} -->\n"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise NoSuchTable(f"{page}: no table {name} between {begin.strip()} and {END}")
    page.write_text("".join([before, begin, *(f"{line}\n" for line in lines), END, after]), encoding="utf-8")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. ValueError: a row of another length."""
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"row {row}: expected {len(head)} cells")
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
