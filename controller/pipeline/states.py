"""All states of each partition, computed from events: DataFrames in, DataFrames out, with window functions.

Real logs and traces have different information about a state; this module normalises it. A log shows the kind of an
election only by the line that the controller wrote before it (its last marker: a requested election, a broker's
shutdown, a reassignment). A log repeats states that did not change. It has no ISR changes that leaders made themselves
(Kafka logs those elsewhere): a gap in the znode's versions shows that there were some.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

PARTITION = ("run", "topic", "partition")
FAILOVER, BROKER_FAILURE, SHUTDOWN, ELECTION, REASSIGNMENT = (
    "failover",
    "broker failure",
    "controlled shutdown",
    "preferred",
    "reassigned",
)


def _marker() -> Column:
    """Return the controller's next operation for events that announce one; null for others."""
    event = f.col("event")
    return (
        f.when(event == "ControllerElected", FAILOVER)
        .when((event == "BrokersChanged") & (f.size("dead") + f.size("bounced") > 0), BROKER_FAILURE)
        .when(event == "ControlledShutdown", SHUTDOWN)
        .when((event == "ElectionStarted") & (f.col("why") == "PREFERRED"), ELECTION)
        .when(event == "ElectionStarted", f.lower("why"))
        .when(event == "ReassignmentStep", REASSIGNMENT)
    )


def marked(events: DataFrame) -> DataFrame:
    """Events with `marker`, `marker_at` and `marker_broker` (who is shutting down): the controller's last before."""
    by_controller = Window.partitionBy("run", "node").orderBy("at", "order", "place")
    # A marker that bears an event's own millisecond came before it.
    with_marker = events.withColumn("own", _marker()).withColumn("order", f.col("own").isNull().cast("int"))
    last = f.struct("own", "at", "broker")
    kept = f.last(f.when(f.col("own").isNotNull(), last), ignorenulls=True).over(by_controller)
    return (
        with_marker.withColumn("kept", kept)
        .withColumn("marker", f.col("kept.own"))
        .withColumn("marker_at", f.col("kept.at"))
        .withColumn("marker_broker", f.col("kept.broker"))
        .drop("kept", "own", "order")
    )


def _why() -> Column:
    """A trace says why; of a log, what the partition came from, and else the marker."""
    return (
        f.when(f.col("why").isNotNull(), f.col("why"))
        .when(f.col("source") == "NewPartition", "initial")
        .when(f.col("source") == "OfflinePartition", "offline")
        .when(f.col("marker").isin(SHUTDOWN, ELECTION, REASSIGNMENT), f.col("marker"))
        .otherwise("other")
    )


_KEPT = ("at", "place", "node", "origin", "controller_epoch", "leader", "leader_epoch", "isr", "zk_version")


def partition_states(events: DataFrame) -> DataFrame:
    """A row a state: PARTITION, `incarnation` (of the topic, from 1), what is in the event, `why`, `assignment` (as
    last said; null where never), `previous_leader`, `previous_isr`, `previous_version` (null for the first known),
    `unclean`, `lost_replica` (the broker that a shrink was for; logs only), the marker, and `until`: when the next
    state came, null for the last."""
    said = marked(events.where(f.col("event").isin(*_TELLING)))
    partitions = said.where(f.col("topic").isNotNull() & f.col("partition").isNotNull())
    ordered = Window.partitionBy(*PARTITION).orderBy("at", "controller_epoch", "zk_version", "place")
    known = f.when(f.size("assignment") > 0, f.col("assignment"))
    assigned = partitions.withColumn("assignment", f.last(known, ignorenulls=True).over(ordered))
    written = assigned.where(f.col("event") == "PartitionStateWritten").withColumn("why", _why())
    born = f.sum((f.col("why") == "initial").cast("int")).over(ordered)
    numbered = written.withColumn("incarnation", f.greatest(born, f.lit(1)))
    life = Window.partitionBy(*PARTITION, "incarnation").orderBy("at", "controller_epoch", "zk_version", "place")
    before = f.lag(f.struct("zk_version", "leader_epoch", "leader", "isr")).over(life)
    changed = numbered.withColumn("before", before).where(
        f.col("before").isNull()
        | (f.col("before.zk_version") != f.col("zk_version"))
        | (f.col("before.leader_epoch") != f.col("leader_epoch"))
        | (f.col("before.leader") != f.col("leader"))
        | (f.col("before.isr") != f.col("isr"))
    )
    previous_isr = f.coalesce(f.col("previous_isr"), f.col("before.isr"))
    unclean = f.coalesce(
        f.col("unclean"),
        # Of a log, only where no change of the ISR in between can have been missed.
        (f.col("leader") >= 0)
        & ~f.array_contains(previous_isr, f.col("leader"))
        & (f.col("zk_version") == f.col("before.zk_version") + 1)
        & (f.col("why") != "initial"),
        f.lit(False),
    )
    return changed.select(
        *PARTITION, "incarnation", *_KEPT, "why", "assignment",
        f.col("before.leader").alias("previous_leader"), previous_isr.alias("previous_isr"),
        f.col("before.zk_version").alias("previous_version"), f.col("before.leader_epoch").alias("previous_epoch"),
        unclean.alias("unclean"), f.col("replica").alias("lost_replica"), "marker", "marker_at", "marker_broker",
        f.lead("at").over(life).alias("until"),
    )  # fmt: skip


_TELLING = (
    "PartitionStateWritten",
    "PartitionMoved",
    "AssignmentChanged",
    "ControllerElected",
    "BrokersChanged",
    "ControlledShutdown",
    "ElectionStarted",
    "ReassignmentStep",
)


def last_states(states: DataFrame) -> DataFrame:
    """The last state of each partition's last incarnation, with `moves`: how many times its leader changed before."""
    all_of = Window.partitionBy(*PARTITION)
    changed = (f.col("leader") >= 0) & (f.col("leader") != f.col("previous_leader"))
    moved = f.coalesce(changed.cast("int"), f.lit(0))
    newest = f.row_number().over(
        all_of.orderBy(f.desc("incarnation"), f.desc("at"), f.desc("controller_epoch"), f.desc("zk_version"))
    )
    return (
        states.withColumn("moves", f.sum(moved).over(all_of))
        .withColumn("newest", newest)
        .where(f.col("newest") == 1)
        .select(*PARTITION, "leader", "leader_epoch", "isr", "zk_version", "controller_epoch", "why", "at", "moves")
    )
