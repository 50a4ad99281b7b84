"""Tables computed from events, on Spark: partition states, controller terms and failover phases, outages, elections,
ISR churn, leaders over time, request latencies, and the failovers of traced runs.

Real logs and traces have different information about a state; `partition_states` normalises it. A log shows the kind of
an election only by the line that the controller wrote before it (its last marker: a requested election, a broker's
shutdown, a reassignment). A log repeats states that did not change. It has no ISR changes that leaders made themselves
(Kafka logs those elsewhere): a gap in the znode's versions shows that there were some.

What a client saw decides when the failover of a traced run was over, by the scenarios' rule
(`controller.scenarios.failovers`), so a trace has the figures of its run's report.
"""

from __future__ import annotations

import typing
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from controller.scenarios.failovers import find_failovers
from controller.trace_records import EVENT_TYPES, TraceRecord

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


def last_seen(events: DataFrame, moments: DataFrame) -> DataFrame:
    """`moments` (run, node, moment) with `last_sign_at`: the newest event of that node up to then, faults apart; null
    where there is none. A join would hold each event against all moments of its broker."""
    seen = events.where((f.col("event") != "FaultInjected") & f.col("at").isNotNull())
    both = seen.select(
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
    seen = last_seen(events, terms.select("run", "node", f.col("bound").alias("moment")))
    ended = terms.withColumn("node", f.col("node").cast("bigint")).withColumnRenamed("bound", "moment")
    return (
        ended.join(seen, ["run", "node", "moment"], "left")
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
    seen = (
        lost.join(last_seen(events, lost.select("run", "node", "moment").distinct()), ["run", "node", "moment"])
        .groupBy(*of)
        .agg(f.max("last_sign_at").alias("last_sign_at"))
    )
    return (
        losses.join(seen, list(of), "left")
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
    known = sorted({field for name in _NEEDED for field in EVENT_TYPES[name].__struct_fields__})
    needed = events.where((f.col("origin") == "trace") & f.col("event").isin(*_NEEDED))
    at_ms = (f.unix_micros("at") / 1000).alias("at_ms")
    rows = needed.select("run", at_ms, "place", "node", "event", *known)
    return rows.groupBy("run").applyInArrow(_failovers, _SCHEMA).orderBy("run", "fault_at_ms", "kind")


def _failovers(table: pa.Table) -> pa.Table:
    ordered = table.sort_by([("at_ms", "ascending"), ("place", "ascending")])
    run = ordered.column("run")[0].as_py()
    records = [_record(row) for row in ordered.to_pylist()]
    names = [field.name for field in _ARROW if field.name != "run"]
    found = [{"run": run} | {name: getattr(one, name) for name in names} for one in find_failovers(records)]
    return pa.Table.from_pylist(found, schema=_ARROW)


def _record(row: dict[str, Any]) -> TraceRecord:
    kind = EVENT_TYPES[row["event"]]
    hints = typing.get_type_hints(kind)
    fields = {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in hints}
    return TraceRecord(row["at_ms"], row["node"], kind(**fields))
