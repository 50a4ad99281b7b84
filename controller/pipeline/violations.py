"""Violations of invariants, found in events: the checkers of scenarios, fed with each run's events on Spark.

The rules are those of `scenarios/checkers.py` that logs and traces can show. A rule that cannot tell (an
assignment that no event named, whether unclean elections are allowed) finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from controller.scenarios.checkers import (
    CONTROLLER_EPOCH_BACK,
    STATE_RULES,
    TWO_WRITERS,
    UNCLEAN_LEADER,
    EpochWriters,
    StateWrite,
    election_errors,
)
from controller.trace import PartitionStateWritten

ASSIGNMENT_ORDER = "a leader that is not the first in assignment order"
RULES = (
    TWO_WRITERS,
    CONTROLLER_EPOCH_BACK,
    *(rule for rule in STATE_RULES if rule != UNCLEAN_LEADER),
    ASSIGNMENT_ORDER,
)

_DDL = "rule string, run string, at_us long, topic string, partition long, detail string"
_ARROW = pa.schema(
    [("rule", pa.string()), ("run", pa.string()), ("at_us", pa.int64()), ("topic", pa.string())]
    + [("partition", pa.int64()), ("detail", pa.string())]
)
_OF_ROW = ("run", "at_us", "topic", "partition")
_BATCH = 10_000
"""Rows that are Python objects at a time."""


def violations(events: DataFrame, states: DataFrame) -> DataFrame:
    """rule, run, at, topic, partition (null where it is no partition's), detail."""
    at_us = f.unix_micros("at").alias("at_us")
    writers = events.where(
        f.col("event").isin("ControllerElected", "PartitionStateWritten") & f.col("controller_epoch").isNotNull()
    ).select("run", at_us, "place", "event", f.col("node").cast("bigint").alias("node"), "controller_epoch")
    written = states.select(
        "run", at_us, "topic", "partition", "incarnation", "controller_epoch", "zk_version", "leader", "leader_epoch",
        "isr", "assignment", "why", "unclean",
    )  # fmt: skip
    rows = writers.unionByName(written, allowMissingColumns=True)
    found = rows.groupBy("run").applyInArrow(_violations, _DDL)
    return found.select("rule", "run", f.timestamp_micros("at_us").alias("at"), "topic", "partition", "detail").orderBy(
        "run", "at", "rule", "topic", "partition"
    )


def _violations(table: pa.Table) -> pa.Table:
    """As `applyInArrow` calls it: with the rows of one run."""
    order = ("at_us", "controller_epoch", "zk_version", "place")
    ordered = table.sort_by([(name, "ascending") for name in order])
    found = list(_found(row for batch in ordered.to_batches(_BATCH) for row in batch.to_pylist()))
    return pa.Table.from_pylist(found, schema=_ARROW)


def _found(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    writers, shared = EpochWriters(complete=False), set[int]()
    last: dict[tuple[str, int], tuple[int, PartitionStateWritten]] = {}
    for row in rows:
        problems: list[tuple[str, str]] = []
        if row["event"] == "ControllerElected":
            problems += writers.elected(row["node"], row["controller_epoch"])
        elif row["event"] is not None:
            # A state that a controller logs was written by the node of that line.
            problem = writers.wrote(row["node"], row["controller_epoch"])
            problems += [] if problem is None else [(TWO_WRITERS, problem)]
        else:
            key = (row["topic"], row["partition"])
            state = _state(row)
            incarnation, before = last.get(key, (0, None))
            problems += _of_state(state, before if incarnation == row["incarnation"] else None, row)
            last[key] = (row["incarnation"], state)
        for rule, detail in problems:
            if rule != TWO_WRITERS or row["controller_epoch"] not in shared:
                yield {name: row[name] for name in _OF_ROW} | {"rule": rule, "detail": detail}
            if rule == TWO_WRITERS:
                shared.add(row["controller_epoch"])  # once for each epoch


def _state(row: dict[str, Any]) -> PartitionStateWritten:
    isr = tuple(row["isr"])
    return PartitionStateWritten(
        controller_epoch=row["controller_epoch"],
        topic=row["topic"],
        partition=row["partition"],
        why=row["why"] or "",
        leader=row["leader"],
        leader_epoch=row["leader_epoch"],
        isr=isr,
        zk_version=row["zk_version"],
        assignment=tuple(row["assignment"] or ()),
        previous_isr=isr,
        live=isr,
        unclean=bool(row["unclean"]),
    )


def _of_state(
    state: PartitionStateWritten, last: PartitionStateWritten | None, row: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    assignment = None if row["assignment"] is None else state.assignment
    write = StateWrite(f"{state.topic}-{state.partition}", -1, state, last, assignment)
    for rule, problem in ((rule, check(write)) for rule, check in STATE_RULES.items()):
        if problem is not None:
            yield rule, problem
    # After this election the ISR holds its live members alone, so the first of the assignment among them must lead.
    if assignment is not None and state.why == "offline" and not state.unclean and state.leader in state.isr:
        for problem in election_errors(state):
            yield ASSIGNMENT_ORDER, problem
