"""Signs of life: when each broker was last heard of before given moments, by one ordered pass over its events."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f


def last_signs(events: DataFrame, moments: DataFrame) -> DataFrame:
    """`moments` (run, node, moment) with `last_sign_at`: the newest event of that node up to then, faults apart; null
    where there is none. A join would hold each event against all moments of its broker."""
    signs = events.where((f.col("event") != "FaultInjected") & f.col("at").isNotNull())
    both = signs.select(
        "run", f.col("node").cast("bigint").alias("node"), "at", f.lit(0).alias("asked")
    ).unionByName(
        moments.select("run", f.col("node").cast("bigint").alias("node"), f.col("moment").alias("at")).withColumn(
            "asked", f.lit(1)
        )
    )  # fmt: skip
    so_far = Window.partitionBy("run", "node").orderBy("at", "asked")
    sign = f.when(f.col("asked") == 0, f.col("at"))
    # Signs come before a moment that they share: up to the row itself, not to its peers.
    newest = f.max(sign).over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    answered = both.withColumn("last_sign_at", newest).where(f.col("asked") == 1)
    return answered.select("run", "node", f.col("at").alias("moment"), "last_sign_at").distinct()
