"""HTML reports of what a test ran: the page of a scenario's run, without steps. Loaded when used."""

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


def report_of(
    records: Sequence[TraceRecord],
    began_ms: float,
    brokers: int,
    name: str,
    verdict: str,
    *,
    host: str,
    seed: int | None = None,
) -> Report:
    """Return the report of a cluster that a test drove by itself; times become those since `began_ms`."""
    shifted = [TraceRecord(record.at_ms - began_ms, record.node, record.event) for record in records]
    scenario = Scenario(name=name, steps=(), cluster=ClusterSpec(brokers=brokers))
    return Report(scenario, host, seed, Judgement(verdict, (), find_failovers(shifted)), shifted)


def write_page(report: Report, directory: Path, replay: str = "") -> Path:
    """Write report.html into `directory`, which is made if it is not there. Return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / PAGE
    path.write_text(report_html(report, replay), encoding="utf-8")
    return path
