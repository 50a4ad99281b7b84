"""The files that a run leaves: `report.json`, `report.html`, `trace.parquet`, and the history of its records if any."""

from __future__ import annotations

import os
from pathlib import Path

from controller.scenarios.records.table import write_history
from controller.scenarios.report import Report, report_json
from controller.scenarios.report_html import report_html
from controller.scenarios.trace_table import write_parquet

PAGE = "report.html"


def write_report(report: Report, folder: Path, replay: str = "") -> None:
    """Write them into `folder`, which is made if it is not there. `replay`: the command that repeats the run, if there
    is one. The trace is last and is complete or absent: where it is, the other files are too.

    Raises:
        OSError: as it comes.
        ImportError: pyarrow is missing; it names the extra to install.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report_json(report), encoding="utf-8")
    (folder / PAGE).write_text(report_html(report, replay), encoding="utf-8")
    if report.judgement.records is not None:
        write_history(report.judgement.records.history, folder)
    partial = folder / f".trace-{os.getpid()}.part"
    write_parquet(report.records, partial)
    partial.replace(folder / "trace.parquet")
