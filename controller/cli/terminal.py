"""Output for people: colour and a progress bar on a terminal, by rich; the same plain lines as ever elsewhere.

rich is imported when something is shown on a terminal, and not for `--help` or piped output.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STYLES = (
    ("bold", r"(?m)^.+(?=\n-+(?: +-+)*$)"),  # the header of a table
    ("green", r"(?m)^held\b|(?<=verdict: )pass\b"),
    ("bold red", r"\bVIOLATED\b|\bNOT REPEATABLE\b|(?<=verdict: )fail\b"),
    ("yellow", r"(?m)^unknown\b|(?<=verdict: )unknown\b"),
)


def show(text: str) -> None:
    """Print `text`, on a terminal with its verdicts and table headers marked."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    marked = Text(text)
    for style, pattern in STYLES:
        marked.highlight_regex(pattern, style)
    Console(highlight=False).print(marked, soft_wrap=True)


class ProgressBar:
    """Progress of runs on standard error: a bar on a terminal, elsewhere a line for every `every` runs."""

    def __init__(self, total: int, every: int) -> None:
        self._total, self._every = total, max(every, 1)
        self._shown = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = BarColumn(), TextColumn("{task.description}", markup=False)
            self._bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, status: str) -> None:
        """`status`: the progress in words."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=status, refresh=True)
            return
        step = self._total if done == self._total else done // self._every
        if step > self._shown:
            self._shown = step
            print(status, file=sys.stderr, flush=True)
