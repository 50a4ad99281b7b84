"""The failovers of traced runs, by the scenarios' own rule, a run at a time: Arrow in, Arrow out.

What a client saw decides when a failover was over, and that rule is the scenarios' (`controller.scenarios.failovers`);
it is asked here, not written again, so a trace gives the figures of its run's report.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from controller.scenarios.failovers import find_failovers
from controller.trace_records import EVENT_TYPES, TraceRecord

_SCHEMA = (
    "run string, kind string, node bigint, fault_at_ms double, detected_at_ms double, recovered_at_ms double, "
    "partitions bigint"
)
_ARROW = pa.schema(
    [("run", pa.string()), ("kind", pa.string()), ("node", pa.int64())]
    + [(name, pa.float64()) for name in ("fault_at_ms", "detected_at_ms", "recovered_at_ms")]
    + [("partitions", pa.int64())]
)
_NEEDED = (
    "FaultInjected",
    "EphemeralSeen",
    "MetadataSeen",
    "MetadataApplied",
    "FailoverCompleted",
    "PartitionStateWritten",
)


def trace_failovers(events: DataFrame) -> DataFrame:
    """run, kind ("broker", "controller"), node, fault_at_ms, detected_at_ms, recovered_at_ms, partitions."""
    known = sorted({field.name for name in _NEEDED for field in dataclasses.fields(EVENT_TYPES[name])})
    needed = events.where((f.col("origin") == "trace") & f.col("event").isin(*_NEEDED))
    at_ms = (f.unix_micros("at") / 1000).alias("at_ms")
    rows = needed.select("run", at_ms, "place", "node", "event", *known)
    return rows.groupBy("run").applyInArrow(_failovers, _SCHEMA).orderBy("run", "fault_at_ms", "kind")


def _failovers(table: pa.Table) -> pa.Table:
    ordered = table.sort_by([("at_ms", "ascending"), ("place", "ascending")])
    run = ordered.column("run")[0].as_py()
    records = [_record(row) for row in ordered.to_pylist()]
    found = [{"run": run, **_fields(one)} for one in find_failovers(records)]
    return pa.Table.from_pylist(found, schema=_ARROW)


def _fields(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}


def _record(row: dict[str, Any]) -> TraceRecord:
    kind = EVENT_TYPES[row["event"]]
    hints = typing.get_type_hints(kind)
    fields = {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in hints}
    return TraceRecord(row["at_ms"], row["node"], kind(**fields))
