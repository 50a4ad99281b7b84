"""Violations of invariants, found in events: each rule yields the rows that violate it, with its name.

The rules are those of the scenarios (docs/scenarios.md) that events can show. A rule that cannot tell (an assignment
that no event named) finds nothing.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from controller.pipeline.metrics import PARTITION

TWO_WRITERS = "two writers in a controller epoch"
CONTROLLER_EPOCH_BACK = "a controller epoch that did not grow"
LEADER_EPOCH_BACK = "a leader epoch that went back"
TWO_LEADERS = "two leaders in a leader epoch"
LEADER_OUTSIDE_ISR = "a leader outside its ISR"
EMPTY_ISR = "an empty ISR"
ISR_OUTSIDE_ASSIGNMENT = "an ISR outside the assignment"
ASSIGNMENT_ORDER = "a leader that is not the first in assignment order"
RULES = (
    TWO_WRITERS,
    CONTROLLER_EPOCH_BACK,
    LEADER_EPOCH_BACK,
    TWO_LEADERS,
    LEADER_OUTSIDE_ISR,
    EMPTY_ISR,
    ISR_OUTSIDE_ASSIGNMENT,
    ASSIGNMENT_ORDER,
)


def violations(events: DataFrame, states: DataFrame) -> DataFrame:
    """rule, run, at, topic, partition (null where it is no partition's), detail."""
    parts = [_two_writers(events), _controller_epochs(events), *_of_states(states)]
    return reduce(DataFrame.unionByName, parts).orderBy("run", "at", "rule", "topic", "partition")


def _rows(frame: DataFrame, rule: str, detail: Column, topic: bool = True) -> DataFrame:
    own = [f.col("topic"), f.col("partition")]
    none = [f.lit(None).cast("string").alias("topic"), f.lit(None).cast("bigint").alias("partition")]
    return frame.select(f.lit(rule).alias("rule"), "run", "at", *(own if topic else none), detail.alias("detail"))


def _two_writers(events: DataFrame) -> DataFrame:
    """Find epochs with several writers. A writer was elected in the epoch, or wrote a partition's state in it."""
    wrote = events.where(
        f.col("event").isin("ControllerElected", "PartitionStateWritten") & f.col("controller_epoch").isNotNull()
    )
    # A state that a controller logs was written by the node of that line.
    writers = wrote.groupBy("run", "controller_epoch").agg(
        f.sort_array(f.collect_set("node")).alias("nodes"), f.max("at").alias("at")
    )
    detail = f.concat(f.lit("epoch "), f.col("controller_epoch"), f.lit(": brokers "), f.array_join("nodes", ", "))
    return _rows(writers.where(f.size("nodes") > 1), TWO_WRITERS, detail, topic=False)


def _controller_epochs(events: DataFrame) -> DataFrame:
    elected = events.where(f.col("event") == "ControllerElected")
    highest = f.max("controller_epoch").over(
        Window.partitionBy("run").orderBy("at", "place").rowsBetween(Window.unboundedPreceding, -1)
    )
    back = elected.withColumn("highest", highest).where(f.col("controller_epoch") <= f.col("highest"))
    detail = f.concat(
        f.lit("broker "), f.col("node"), f.lit(" elected in epoch "), f.col("controller_epoch"),
        f.lit(" after epoch "), f.col("highest"),
    )  # fmt: skip
    return _rows(back, CONTROLLER_EPOCH_BACK, detail, topic=False)


def _of_states(states: DataFrame) -> list[DataFrame]:
    ids = f.array_join("isr", ",")
    leader_and_isr = f.concat(f.lit("leader "), f.col("leader"), f.lit(", ISR "), ids)
    led = f.col("leader") >= 0
    back = states.where(f.col("leader_epoch") < f.col("previous_epoch"))
    both = f.concat(f.lit("leader epoch "), f.col("leader_epoch"), f.lit(" after "), f.col("previous_epoch"))
    by_epoch = Window.partitionBy(*PARTITION, "incarnation", "leader_epoch")
    rivals = states.where(led).withColumn("leaders", f.collect_set("leader").over(by_epoch))
    two = rivals.where(f.size("leaders") > 1).dropDuplicates([*PARTITION, "incarnation", "leader_epoch"])
    two_detail = f.concat(
        f.lit("leader epoch "), f.col("leader_epoch"), f.lit(": brokers "), f.array_join(f.sort_array("leaders"), ", ")
    )
    outside = f.array_except("isr", "assignment")
    first = f.element_at(f.filter("assignment", lambda replica: f.array_contains(f.col("isr"), replica)), 1)
    # After this election the ISR holds its live members alone, so the first of the assignment among them must lead.
    clean = led & f.array_contains("isr", f.col("leader")) & ~f.col("unclean")
    unordered = states.where(clean & (f.col("why") == "offline") & (first != f.col("leader")))
    order_detail = f.concat(leader_and_isr, f.lit(", assignment "), f.array_join("assignment", ","))
    return [
        _rows(back, LEADER_EPOCH_BACK, both),
        _rows(two, TWO_LEADERS, two_detail),
        _rows(states.where(led & ~f.array_contains("isr", f.col("leader"))), LEADER_OUTSIDE_ISR, leader_and_isr),
        _rows(states.where(f.size("isr") == 0), EMPTY_ISR, leader_and_isr),
        _rows(states.where(f.size(outside) > 0), ISR_OUTSIDE_ASSIGNMENT, order_detail),
        _rows(unordered, ASSIGNMENT_ORDER, order_detail),
    ]
