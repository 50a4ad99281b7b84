"""The index of many runs, `index.html`: each run's verdict, what it violated, how to replay it, and its report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.scenarios.judge import PASS
from controller.scenarios.pages import render

INDEX = "index.html"
MOST_FAILED, MOST_PASSED = 2_000, 1_000
"""Rows of the page; what is beyond them is counted."""


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """One run. `settings`: those that differ between runs, "" if none do; `violated`: the name of the first invariant
    that was violated or could not be decided, `detail` why; `report`: its page, relative to the index, "" if none was
    written."""

    seed: int
    settings: str
    verdict: str
    violated: str
    detail: str
    replay: str
    report: str


def write_index(
    folder: Path, name: str, runs: Sequence[IndexedRun], table: Sequence[Sequence[str]] = (), notes: Sequence[str] = ()
) -> None:
    """Write the index of `runs` into `folder`, failed runs first. `name`: the scenario; `table`: figures of
    all runs, a header first; `notes`: sentences about them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(index_html(name, runs, table, notes), encoding="utf-8")


def index_html(
    name: str, runs: Sequence[IndexedRun], table: Sequence[Sequence[str]] = (), notes: Sequence[str] = ()
) -> str:
    """Return the index as a page. Runs keep their order within those that failed, are unknown, and passed."""
    order = {"fail": 0, PASS: 2}
    failed = sorted((run for run in runs if run.verdict != PASS), key=lambda run: order.get(run.verdict, 1))
    passed = [run for run in runs if run.verdict == PASS]
    verdict = PASS if not failed else "fail" if failed[0].verdict == "fail" else "unknown"
    return render(
        "index.html",
        name=name,
        verdict=verdict,
        runs=len(runs),
        failed=failed,
        passed=passed,
        shown=[*failed[:MOST_FAILED], *passed[:MOST_PASSED]],
        left_out=max(len(failed) - MOST_FAILED, 0) + max(len(passed) - MOST_PASSED, 0),
        settings=any(run.settings for run in runs),
        table=table,
        notes=notes,
    )


def first_violation(text: str) -> tuple[str, str]:
    """Split "NAME: detail" or "NAME at TIME: detail", as verdicts have it, into the invariant's name and the rest."""
    found = re.match(r"([\w-]+)(?:: | (?=at ))", text)
    return (found[1], text[found.end() :]) if found else ("", text)
