"""The files that a run leaves: `report.json`, `report.html`, `trace.parquet`, and the history of its records if any."""

from __future__ import annotations

from pathlib import Path

from controller.scenarios.records.table import write_history
from controller.scenarios.report import Report, report_json
from controller.scenarios.report_html import report_html
from controller.scenarios.trace_table import write_parquet


def write_report(report: Report, folder: Path) -> None:
    """Writes them into `folder`, which is made if it is not there. OSError as it comes; ImportError (with the extra
    to install) where pyarrow is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report_json(report))
    (folder / "report.html").write_text(report_html(report))
    write_parquet(report.records, folder / "trace.parquet")
    if report.judgement.records is not None:
        write_history(report.judgement.records.history, folder)
