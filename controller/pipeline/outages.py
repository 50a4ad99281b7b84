"""The impact of faults: each lost broker with the elections that followed, and each partition's outages."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from controller.pipeline.signs import last_signs
from controller.pipeline.states import BROKER_FAILURE, FAILOVER, PARTITION, SHUTDOWN

NO_LEADER, UNDER_REPLICATED, UNDER_MIN_ISR = "no leader", "under-replicated", "under min.insync.replicas"


def broker_losses(events: DataFrame, states: DataFrame) -> DataFrame:
    """A row for each time that a controller dealt with lost brokers: run, controller_epoch, `marker` (how it came to
    know), `noticed_at`, `brokers`, `last_sign_at` (the last event of any of them before; null: none known), how many
    partitions got another leader (`elected`), and after how long the first, the median and the last."""
    of = ("run", "controller_epoch", "marker", "marker_at")
    dealt = states.where(f.col("marker").isin(FAILOVER, BROKER_FAILURE, SHUTDOWN))
    gone = f.coalesce(
        f.when(f.col("lost_replica").isNotNull(), f.array("lost_replica")),
        f.when(f.col("marker") == SHUTDOWN, f.array("marker_broker")),
        f.when(f.col("why") == "replica offline", f.array_except("previous_isr", "isr")),
    )
    brokers = (
        dealt.select(*of, f.explode(gone).alias("broker"))
        .groupBy(*of)
        .agg(f.sort_array(f.collect_set("broker")).alias("brokers"))
    )
    took = (f.col("at").cast("double") - f.col("marker_at").cast("double")) * 1000
    chosen = dealt.where(f.col("why").isin("offline", "controlled shutdown") & (f.col("leader") >= 0))
    elections = chosen.groupBy(*of).agg(
        f.count("*").alias("elected"),
        f.round(f.min(took), 3).alias("first_ms"),
        f.round(f.percentile(took, f.lit(0.5)), 3).alias("median_ms"),
        f.round(f.max(took), 3).alias("last_ms"),
    )
    losses = brokers.join(elections, list(of), "left").fillna(0, ["elected"])
    lost = losses.select(*of, f.explode("brokers").alias("node"), f.col("marker_at").alias("moment"))
    signs = (
        lost.join(last_signs(events, lost.select("run", "node", "moment").distinct()), ["run", "node", "moment"])
        .groupBy(*of)
        .agg(f.max("last_sign_at").alias("last_sign_at"))
    )
    return (
        losses.join(signs, list(of), "left")
        .withColumnRenamed("marker_at", "noticed_at")
        .select("run", "controller_epoch", "marker", "brokers", "last_sign_at", "noticed_at",
                "elected", "first_ms", "median_ms", "last_ms")
        .orderBy("run", "noticed_at")
    )  # fmt: skip


def deletions(events: DataFrame) -> DataFrame:
    """Return run, topic, `started_at` and `gone_at` (null: the end was not seen) of deleted topics.

    There is one row for each name, so a name that was deleted twice has one interval over both deletions.
    """
    named = f.regexp_extract("message", r"^Deletion of topic (\S+) ", 1)
    logged = events.where((f.col("event") == "TopicDeletion") & (named != "")).select(
        "run", named.alias("topic"), "at", f.col("message").endswith("successfully completed").alias("gone")
    )
    moved = events.where(
        (f.col("event") == "PartitionMoved") & (f.col("replica") == -1) & f.col("target").startswith("NonExistent")
    ).select("run", "topic", "at", f.lit(True).alias("gone"))
    both = logged.unionByName(moved).groupBy("run", "topic")
    return both.agg(f.min("at").alias("started_at"), f.max(f.when(f.col("gone"), f.col("at"))).alias("gone_at"))


def bad_times(events: DataFrame, states: DataFrame, min_in_sync: int) -> DataFrame:
    """A row for each stretch in which a partition had no leader, fewer in sync than replicas (where its assignment is
    known), or fewer than `min_in_sync`: PARTITION, `what`, `began_at`, `ended_at` (null: it lasts), `duration_ms`.
    As controllers' writes show it: a leader that died unnoticed still leads. A topic's deletion ends them, and what it
    does to its partitions counts for nothing."""
    conditions = (
        (NO_LEADER, f.col("leader") < 0),
        (UNDER_REPLICATED, f.size("isr") < f.size("assignment")),
        (UNDER_MIN_ISR, (f.size("isr") < min_in_sync) & (f.col("leader") >= 0)),
    )
    flags = states.select(
        *PARTITION, "incarnation", "at", "controller_epoch", "zk_version", "place",
        f.explode(f.array(*(_condition(name, holds) for name, holds in conditions))).alias("one"),
    )  # fmt: skip
    order = ("at", "controller_epoch", "zk_version", "place")
    life = Window.partitionBy(*PARTITION, "incarnation", "one.what").orderBy(*order)
    turned = flags.withColumn("turned", f.coalesce(f.col("one.holds") != f.lag("one.holds").over(life), f.lit(True)))
    turns = turned.where("turned")
    found = turns.withColumn("ended_at", f.lead("at").over(life)).where("one.holds")
    known = found.join(f.broadcast(deletions(events)), ["run", "topic"], "left")
    deleted = (f.col("at") >= f.col("started_at")) & (f.col("at") <= f.coalesce(f.col("gone_at"), f.col("at")))
    ended = f.when(f.col("started_at") > f.col("at"), f.least("ended_at", "started_at")).otherwise(f.col("ended_at"))
    kept = known.where(~f.coalesce(deleted, f.lit(False))).withColumn("ended_at", ended)
    duration = (f.col("ended_at").cast("double") - f.col("at").cast("double")) * 1000
    return kept.select(
        *PARTITION, "incarnation", f.col("one.what").alias("what"), f.col("at").alias("began_at"), "ended_at",
        f.round(duration, 3).alias("duration_ms"),
    ).orderBy("run", "began_at", "topic", "partition", "what")  # fmt: skip


def _condition(name: str, holds: Column) -> Column:
    return f.struct(f.lit(name).alias("what"), f.coalesce(holds, f.lit(False)).alias("holds"))
