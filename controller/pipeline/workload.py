"""Counts and latencies of the records of a traced run, by the rules of the scenarios. This module does not use Spark.

A run's history (`sends.parquet`, `reads.parquet`) lies beside its trace, and one task reads both. The rules are asked
where they are written (`controller.scenarios.records.figures`), so a run has the figures of its report.json here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.figures import (
    AroundFault,
    Fault,
    Latency,
    Timed,
    around_faults,
    count_records,
    fetch_times,
    latency,
    produce_times,
)
from controller.scenarios.records.table import SENDS, read_history

PRODUCE, FETCH = "produce", "fetch"
WHOLE_RUN, BEFORE, DURING, AFTER = "whole run", "before", "during", "after"

LATENCIES = pa.schema(
    [("run", pa.string()), ("fault", pa.string()), ("target", pa.string())]
    + [(name, pa.float64()) for name in ("fault_at_ms", "recovered_at_ms")]
    + [("what", pa.string()), ("when", pa.string()), ("records", pa.int64())]
    + [(name, pa.float64()) for name in ("p50_ms", "p95_ms", "p99_ms", "worst_ms")]
)
"""A row for each run, fault, `what` (PRODUCE, FETCH) and `when`, where any record was. The fault is null for WHOLE_RUN;
docs/reports.md says what the others are. Times are ms on the trace's axis, percentiles ms."""

RECORDS = pa.schema(
    [("run", pa.string())]
    + [(name, pa.int64()) for name in ("sent", "acknowledged", "failed", "indeterminate", "read")]
    + [(name, pa.int64()) for name in ("lost", "duplicated", "reordered")]
)
"""A row a run with records: `records` of report.json."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Tables of LATENCIES and RECORDS of one run."""

    latencies: pa.Table
    records: pa.Table


def has_history(trace: Path) -> bool:
    return (trace.parent / SENDS).exists()


def workload_of(run: str, trace: Path, table: pa.Table) -> Workload:
    """`table` is the trace's, as in the file. OSError, ValueError or KeyError where the history can't be read."""
    audit = DeliveryAudit(read_history(trace.parent))
    faults = [*_faults(table)]
    rows = [*_whole_run(audit), *(row for each in around_faults(audit, faults) for row in _around(each))]
    return Workload(
        pa.Table.from_pylist([{"run": run, **row} for row in rows], schema=LATENCIES),
        pa.Table.from_pylist([{"run": run, **asdict(count_records(audit))}], schema=RECORDS),
    )


def _faults(table: pa.Table) -> Iterator[Fault]:
    faults = table.filter(pc.equal(table.column("event"), "FaultInjected"))
    for row in faults.select(["at_ms", "fault", "target"]).to_pylist():
        yield Fault(row["at_ms"], row["fault"], row["target"])


def _whole_run(audit: DeliveryAudit) -> Iterator[dict[str, Any]]:
    both: tuple[tuple[str, Timed], ...] = ((PRODUCE, produce_times(audit.history)), (FETCH, fetch_times(audit)))
    for what, times in both:
        yield from _row({}, what, WHOLE_RUN, latency(times.took_ms))


def _around(each: AroundFault) -> Iterator[dict[str, Any]]:
    fault = {
        "fault": each.fault.fault,
        "target": each.fault.target,
        "fault_at_ms": each.fault.at_ms,
        "recovered_at_ms": each.recovered_at_ms,
    }
    for what, windows in ((PRODUCE, each.produce), (FETCH, each.fetch)):
        for when, found in ((BEFORE, windows.before), (DURING, windows.during), (AFTER, windows.after)):
            yield from _row(fault, what, when, found)


def _row(fault: dict[str, Any], what: str, when: str, found: Latency | None) -> Iterator[dict[str, Any]]:
    if found is not None:
        figures = asdict(found)
        yield {**fault, "what": what, "when": when, "records": figures.pop("count"), **figures}
