"""The HTML report of an in-process cluster: the page of a scenario's run, without steps. Loaded when used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from controller.report.files import PAGE
from controller.report.html import report_html
from controller.report.summary import Report
from controller.scenarios.failovers import find_failovers
from controller.scenarios.judge import Judgement
from controller.scenarios.language import ClusterSpec, Scenario
from controller.trace_records import TraceRecord


def write_report(
    records: Sequence[TraceRecord], began_ms: float, brokers: int, name: str, verdict: str, directory: Path
) -> Path:
    """Write report.html into `directory`, which is made if it is not there. Return its path."""
    shifted = [TraceRecord(record.at_ms - began_ms, record.node, record.event) for record in records]
    scenario = Scenario(name=name, steps=(), cluster=ClusterSpec(brokers=brokers))
    judgement = Judgement(verdict, (), find_failovers(shifted))
    page = report_html(Report(scenario, "in-process", None, judgement, shifted))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / PAGE
    path.write_text(page, encoding="utf-8")
    return path
