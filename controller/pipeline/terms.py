"""Controllers' terms and the phases of their failovers, from events alone."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from controller.pipeline.signs import last_signs

_EVENT_THREAD = "ControllerEventThread"
"""Begins with the process of a broker, controller or not."""
RESIGNED, KILLED, RESTARTED, SUPERSEDED, LEADING = (
    "resigned",
    "ended by a fault",
    "process restarted",
    "went silent; replaced by a successor",
    "leading at the end",
)


def controller_terms(events: DataFrame) -> DataFrame:
    """Return one row for each term: run, node, controller_epoch, `elected_at`, `end` (how it ended, as far as events
    show it), `ended_at` (null where they do not), `last_sign_at` (the last event of that node before its end or its
    successor's election), `succeeded_at`."""
    elected = f.col("event") == "ControllerElected"
    faulted = (f.col("event") == "FaultInjected") & f.col("fault").isin("kill", "stop", "restart")
    began = (
        (f.col("event") == "ControllerThread")
        & (f.col("message") == "Starting")
        & f.col("who").startswith(_EVENT_THREAD)
    )
    bounds = events.where(elected | (f.col("event") == "ControllerResigned") | began | faulted).select(
        "run", f.when(faulted, f.col("target").try_cast("int")).otherwise(f.col("node")).alias("node"),
        "at", "place", "controller_epoch", "event",
    )  # fmt: skip
    by_node = Window.partitionBy("run", "node").orderBy("at", "place")
    following = f.lead(f.struct("event", "at")).over(by_node)
    begun = bounds.withColumn("following", following).where(f.col("event") == "ControllerElected")
    succeeded = f.lead("at").over(Window.partitionBy("run").orderBy("controller_epoch", "at"))
    end = (
        f.when(f.col("following.event") == "ControllerResigned", RESIGNED)
        .when(f.col("following.event") == "FaultInjected", KILLED)
        .when(f.col("succeeded_at").isNotNull(), SUPERSEDED)
        .when(f.col("following.event") == "ControllerThread", RESTARTED)
        .otherwise(LEADING)
    )
    ended_at = f.when(end.isin(RESIGNED, KILLED), f.col("following.at"))
    terms = begun.withColumn("succeeded_at", succeeded).select(
        "run", "node", "controller_epoch", f.col("at").alias("elected_at"), end.alias("end"),
        ended_at.alias("ended_at"), "succeeded_at",
        f.coalesce(f.least(ended_at, f.col("succeeded_at"), f.col("following.at")),
                   f.lit("9999-01-01").cast("timestamp")).alias("bound"),
    )  # fmt: skip
    signs = last_signs(events, terms.select("run", "node", f.col("bound").alias("moment")))
    ended = terms.withColumn("node", f.col("node").cast("bigint")).withColumnRenamed("bound", "moment")
    return (
        ended.join(signs, ["run", "node", "moment"], "left")
        # Its election is a sign too, and the last one where epochs went back and its end seems to come before it.
        .withColumn("last_sign_at", f.greatest("last_sign_at", "elected_at"))
        .select("run", "node", "controller_epoch", "elected_at", "end", "ended_at", "succeeded_at", "last_sign_at")
        .orderBy("run", "controller_epoch", "elected_at")
    )


def failover_phases(events: DataFrame) -> DataFrame:
    """Return one row for each phase of each failover, in order: run, node, controller_epoch, `number`, phase, `at`,
    `duration_ms`. The last row of each is the total, phase "all". A log has the times when phases begin, a trace their
    durations."""
    taken = events.where(f.col("event").isin("ControllerElected", "FailoverPhase", "FailoverCompleted"))
    by_node = Window.partitionBy("run", "node").orderBy("at", "place")
    of_term = f.last(f.when(f.col("event") == "ControllerElected", f.col("controller_epoch")), ignorenulls=True)
    begun = f.last(f.when(f.col("event") == "ControllerElected", f.col("at")), ignorenulls=True)
    known = taken.withColumn("controller_epoch", f.coalesce(f.col("controller_epoch"), of_term.over(by_node)))
    until = f.lead("at").over(by_node)
    phase = (
        f.when(f.col("event") == "ControllerElected", "after the election")
        .when(f.col("event") == "FailoverCompleted", "all")
        .otherwise(f.col("phase"))
    )
    own = f.when(f.col("event") == "FailoverCompleted", _ms(f.col("at"), begun.over(by_node))).otherwise(
        _ms(until, f.col("at"))
    )
    number = f.row_number().over(Window.partitionBy("run", "node", "controller_epoch").orderBy("at", "place"))
    timed = known.select(
        "run", "node", "controller_epoch", phase.alias("phase"), "at", "origin", "event",
        f.coalesce(f.col("duration_ms"), own).alias("duration_ms"),
        number.alias("number"),
    )  # fmt: skip
    # A trace's phases come with their lengths as they end: the time from the election to the first end is the first's.
    phases = timed.where((f.col("event") != "ControllerElected") | (f.col("origin") == "log"))
    return phases.drop("origin", "event").orderBy("run", "controller_epoch", "node", "number")


def _ms(later: Column, earlier: Column) -> Column:
    return f.round((later.cast("double") - earlier.cast("double")) * 1000, 3)
