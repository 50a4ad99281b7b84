"""What a run says to people and programs: `report.json`, tables and lines to read. `files.py` writes files.

The same run gives the same bytes of `report.json` (keys sorted, times in ms with three decimals), so that two runs
of one seed can be compared as files. Format 1 is described in `docs/reports.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from controller.report.charts import failover_rows
from controller.report.timeline import Timeline, timeline_of
from controller.scenarios.host_stalls import host_stalls_of, host_stalls_text
from controller.scenarios.judge import Judgement
from controller.scenarios.language import Scenario
from controller.scenarios.records.figures import (
    AroundFault,
    InjectedFault,
    Latency,
    RecordCounts,
    Windows,
    around_faults,
    count_records,
)
from controller.trace import FaultInjected, StepEnded, StepStarted
from controller.trace_records import TraceRecord

FORMAT = 1


@dataclass(frozen=True)
class Report:
    scenario: Scenario
    host: str
    seed: int | None
    judgement: Judgement
    records: Sequence[TraceRecord]
    """By time."""
    planned: Sequence[tuple[float, str]] = ()
    """Faults and operations of a plan: when, in ms, and what. A scenario has steps in their place."""

    @property
    def verdict(self) -> str:
        return self.judgement.verdict

    @cached_property
    def timeline(self) -> Timeline:
        return timeline_of(self.records)

    @property
    def duration_ms(self) -> float:
        return max((record.at_ms for record in self.records), default=0.0)


def report_object(report: Report) -> dict[str, Any]:
    """`report.json` as an object."""
    return {
        "format": FORMAT,
        "scenario": report.scenario.name,
        "description": report.scenario.description,
        "parameters": dict(report.scenario.parameters),
        "host": report.host,
        "seed": report.seed,
        "verdict": report.verdict,
        "duration_ms": _ms(report.duration_ms),
        "invariants": [
            {"name": result.name, "held": result.held, "detail": result.detail}
            for result in report.judgement.invariants
        ],
        "failovers": [
            {
                "kind": failover.kind,
                "node": failover.node,
                "fault_at_ms": _ms(failover.fault_at_ms),
                "detected_at_ms": _ms(failover.detected_at_ms),
                "recovered_at_ms": _ms(failover.recovered_at_ms),
                "partitions": failover.partitions,
            }
            for failover in report.judgement.failovers
        ],
        "steps": [
            {"at_ms": _ms(step.at_ms), "text": step.text, "ok": step.ok, "detail": step.detail}
            for step in steps_of(report.records)
        ],
        "records": _counts_object(report),
        "latency": [
            {
                "fault": each.fault.fault,
                "target": each.fault.target,
                "at_ms": _ms(each.fault.at_ms),
                "recovered_at_ms": _ms(each.recovered_at_ms),
                "produce": _windows_object(each.produce),
                "fetch": _windows_object(each.fetch),
            }
            for each in latency_around_faults(report)
        ],
        "standstills": [
            {"from_ms": _ms(each.from_ms), "to_ms": _ms(each.to_ms)} for each in host_stalls_of(report.records)
        ],
    }


def record_counts(report: Report) -> RecordCounts | None:
    """None for a run without records."""
    return None if report.judgement.records is None else count_records(report.judgement.records)


def _counts_object(report: Report) -> dict[str, Any] | None:
    counts = record_counts(report)
    return None if counts is None else asdict(counts)


def latency_around_faults(report: Report) -> tuple[AroundFault, ...]:
    audit = report.judgement.records
    if audit is None:
        return ()
    faults = [
        InjectedFault(record.at_ms, record.event.fault, record.event.target)
        for record in report.records
        if isinstance(record.event, FaultInjected)
    ]
    return around_faults(audit, faults)


def _windows_object(windows: Windows) -> dict[str, Any]:
    return {
        "before": _latency_object(windows.before),
        "during": _latency_object(windows.during),
        "after": _latency_object(windows.after),
    }


def _latency_object(latency: Latency | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    return {
        "count": latency.count,
        "p50_ms": _ms(latency.p50_ms),
        "p95_ms": _ms(latency.p95_ms),
        "p99_ms": _ms(latency.p99_ms),
        "worst_ms": _ms(latency.worst_ms),
    }


def host_stalls_note(report: Report) -> str:
    return host_stalls_text(host_stalls_of(report.records), report.scenario.cluster.session_timeout_ms)


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step as it was taken; `ok` None if it never ended."""

    at_ms: float
    text: str
    ok: bool | None
    detail: str


def steps_of(records: Sequence[TraceRecord]) -> list[StepLine]:
    ended = {record.event.index: record.event for record in records if isinstance(record.event, StepEnded)}
    lines = []
    for record in records:
        if isinstance(record.event, StepStarted):
            end = ended.get(record.event.index)
            lines.append(StepLine(record.at_ms, record.event.text, end.ok if end else None, end.detail if end else ""))
    return lines


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def report_json(report: Report) -> str:
    return json.dumps(report_object(report), indent=2, sort_keys=True) + "\n"


def latency_rows(report: Report) -> list[tuple[str, ...]]:
    """Return a row for each fault and kind, a header first: p50 / p99 in ms, before, until recovery, after."""
    rows: list[tuple[str, ...]] = [
        ("fault", "at", "recovered after", "latency (ms)", "before", "until recovery", "after")
    ]
    for each in latency_around_faults(report):
        name = f"{each.fault.fault} {each.fault.target}"
        for kind, windows in (("produce", each.produce), ("fetch", each.fetch)):
            cells = (_percentiles(one) for one in (windows.before, windows.during, windows.after))
            after = _after(each.recovered_at_ms, each.fault.at_ms)
            rows.append((name, f"{each.fault.at_ms:.0f}", after, kind, *cells))
    return rows


def _percentiles(latency: Latency | None) -> str:
    return "-" if latency is None else f"{latency.p50_ms:.1f} / {latency.p99_ms:.1f}"


def counts_text(counts: RecordCounts) -> str:
    words = [f"{'?' if value is None else f'{value:,}'} {name}" for name, value in asdict(counts).items()]
    return ", ".join(words)


def _after(at_ms: float | None, since_ms: float) -> str:
    return "-" if at_ms is None else f"{at_ms - since_ms:.0f}"


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text, the first one a header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def report_text(report: Report) -> str:
    """Return the text that a command prints after a run: failovers, violated and undecided checks, verdict."""
    parts = []
    if report.judgement.failovers:
        parts += ["failovers (ms)", render_table(failover_rows(report.judgement.failovers, report.timeline)), ""]
    counts = record_counts(report)
    if counts is not None:
        parts += [f"records: {counts_text(counts)}"]
        rows = latency_rows(report)
        if len(rows) > 1:
            parts += ["", "latency around faults, p50 / p99 (ms)", render_table(rows)]
        parts.append("")
    for result in report.judgement.invariants:
        word = {True: "held", False: "VIOLATED", None: "unknown"}[result.held]
        parts.append(f"{word:9} {result.name}: {result.detail}")
    if note := host_stalls_note(report):
        parts += ["", note]
    parts += ["", f"verdict: {report.verdict}"]
    return "\n".join(parts)
