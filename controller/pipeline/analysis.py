"""All that is asked of a table of events, as tables by name; what a person sees of them, as rows.

Everything row-level stays in Spark: what comes to the driver is limited, and the whole is written as Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from controller.pipeline.metrics import (
    bad_times,
    broker_losses,
    controller_terms,
    elections,
    failover_phases,
    isr_churn,
    last_states,
    leaders_over_time,
    partition_states,
    request_latencies,
    trace_failovers,
)
from controller.pipeline.store import kept, read_counts, read_events, read_latencies, read_leftovers, read_records
from controller.pipeline.violations import violations

Row = Mapping[str, Any]

SHOWN = {"leaders": 4_000, "phases": 1_000}
SHOWN_OTHERWISE = 500


@dataclass(frozen=True, slots=True)
class Analysis:
    """Rows by table, each cut off at SHOWN; `sizes` has how many rows each has in all."""

    rows: Mapping[str, tuple[Row, ...]]
    sizes: Mapping[str, int]

    @property
    def broken(self) -> bool:
        return self.sizes["violations"] > 0


def tables(events: DataFrame, states: DataFrame, min_in_sync: int) -> dict[str, DataFrame]:
    """Every table by its name (docs/pipeline.md describes them)."""
    bad = bad_times(events, states, min_in_sync)
    return {
        "violations": violations(events, states),
        "terms": controller_terms(events),
        "phases": failover_phases(events),
        "losses": broker_losses(events, states),
        "failovers": trace_failovers(events),
        "bad_times": bad,
        "bad_times_by_kind": bad.groupBy("run", "what")
        .agg(
            f.count("*").alias("stretches"),
            f.countDistinct("topic", "partition").alias("partitions"),
            f.round(f.sum("duration_ms"), 3).alias("total_ms"),
            f.max("duration_ms").alias("longest_ms"),
            f.sum(f.col("ended_at").isNull().cast("int")).alias("lasting"),
        )
        .orderBy("run", "what"),
        "elections": elections(states),
        "isr_churn": isr_churn(states),
        "leaders": leaders_over_time(states),
        "requests": request_latencies(events),
        "last_states": last_states(states).orderBy("run", "topic", "partition"),
    }


def analyse(
    spark: SparkSession, folder: Path, min_in_sync: int = 1, until: datetime | None = None, keep: Path | None = None
) -> Analysis:
    """Of the table of events in `folder`; of events up to `until` (UTC), if given (records are always a whole run's).
    `keep`: a folder for all tables as Parquet, one below it each."""
    events = read_events(spark, folder)
    if until is not None:
        events = events.where(f.col("at") <= f.lit(until.isoformat()).cast("timestamp"))
    # Read again for each table, by columns: a cache would hold them all, and each plan would hold how states are made.
    states = kept(partition_states(events), folder / "states")
    asked = tables(events, states, min_in_sync)
    asked["lines"] = read_counts(spark, folder).groupBy("run", "kind").agg(f.sum("lines").alias("lines"))
    asked["records"] = read_records(spark, folder).orderBy("run")
    asked["latencies"] = read_latencies(spark, folder).orderBy("run", "fault_at_ms", "what", "when")
    asked["leftovers"] = read_leftovers(spark, folder).orderBy("run", "file", "place")
    rows: dict[str, tuple[Row, ...]] = {}
    sizes: dict[str, int] = {}
    for name, table in asked.items():
        if keep is not None:
            table = kept(table, keep / name)
        shown = SHOWN.get(name, SHOWN_OTHERWISE)
        taken = table.limit(shown + 1).collect()
        rows[name] = tuple(row.asDict(recursive=True) for row in taken[:shown])
        sizes[name] = len(taken) if len(taken) <= shown else table.count()
    return Analysis(rows, sizes)
