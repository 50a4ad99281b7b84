"""Counts and latencies, from events alone: elections by kind, ISR churn, leaders over time, control requests."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from controller.pipeline.states import PARTITION


def elections(states: DataFrame) -> DataFrame:
    """Count elections by run, `why` and `unclean`; `moved` counts those that moved leadership to another broker."""
    chosen = states.where((f.col("leader") >= 0) & ~f.col("why").isin("alter isr", "replica offline", "reassignment"))
    moved = (f.col("leader") != f.coalesce(f.col("previous_leader"), f.lit(-2))).cast("int")
    counted = chosen.groupBy("run", "why", "unclean").agg(f.count("*").alias("elections"), f.sum(moved).alias("moved"))
    return counted.orderBy("run", "why", "unclean")


def isr_churn(states: DataFrame) -> DataFrame:
    """By partition: `shrinks` and `expansions` that events show, and `unseen`: versions of its state they don't."""
    smaller = f.size(f.array_except("previous_isr", "isr")) > 0
    larger = f.size(f.array_except("isr", "previous_isr")) > 0
    skipped = f.greatest(f.col("zk_version") - f.col("previous_version") - 1, f.lit(0))
    return (
        states.groupBy(*PARTITION)
        .agg(
            f.sum(smaller.cast("int")).alias("shrinks"),
            f.sum(larger.cast("int")).alias("expansions"),
            f.sum(skipped).alias("unseen"),
        )
        .fillna(0)
        .orderBy(f.desc(f.col("shrinks") + f.col("expansions") + f.col("unseen")), *PARTITION)
    )


def leaders_over_time(states: DataFrame) -> DataFrame:
    """Return how many partitions each broker led, at each second in which that changed: run, at, broker, leaders."""
    second = f.date_trunc("second", f.col("at")).alias("at")
    changes = states.where(f.col("leader") != f.coalesce(f.col("previous_leader"), f.lit(-2)))
    came = changes.where(f.col("leader") >= 0).select(
        "run", second, f.col("leader").alias("broker"), f.lit(1).alias("by")
    )
    went = changes.where(f.col("previous_leader") >= 0).select(
        "run", second, f.col("previous_leader").alias("broker"), f.lit(-1).alias("by")
    )
    summed = came.unionByName(went).groupBy("run", "at", "broker").agg(f.sum("by").alias("by"))
    running = Window.partitionBy("run", "broker").orderBy("at")
    return summed.select("run", "at", "broker", f.sum("by").over(running).alias("leaders")).orderBy(
        "run", "at", "broker"
    )


def request_latencies(events: DataFrame) -> DataFrame:
    """By run and api: requests, and percentiles in ms. From a trace: until the controller had the answer. From a log:
    what the broker says it took to handle them."""
    sent = events.where(f.col("event") == "RequestSent").select(
        "run", "node", "to_broker", "api", "sequence", f.col("at").alias("sent_at")
    )
    answered = events.where(f.col("event") == "RequestAnswered").select(
        "run", "node", "to_broker", "sequence", "api", "at"
    )
    both = sent.join(answered, ["run", "node", "to_broker", "sequence", "api"]).select(
        "run", "api", ((f.col("at").cast("double") - f.col("sent_at").cast("double")) * 1000).alias("ms")
    )
    handled = events.where(f.col("event") == "RequestHandled").select("run", "api", f.col("duration_ms").alias("ms"))
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return (
        both.unionByName(handled)
        .groupBy("run", "api")
        .agg(
            f.count("*").alias("requests"),
            *(f.round(f.percentile("ms", f.lit(share)), 3).alias(name) for name, share in shares.items()),
            f.round(f.max("ms"), 3).alias("max_ms"),
        )
        .orderBy("run", "api")
    )
