"""A small, sound run's trace, and ways to bend it: what the tests of checkers and reports work on."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from controller.scenarios.failovers import find_failovers
from controller.scenarios.host import PartitionView, Snapshot, TopicSpec
from controller.scenarios.invariants import Evidence
from controller.trace import (
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    FailoverCompleted,
    FaultInjected,
    MetadataSeen,
    PartitionStateWritten,
    RequestAnswered,
    RequestSent,
    StepEnded,
    StepStarted,
    TraceEvent,
)
from controller.trace_records import OBSERVER, TraceRecord


def written(**changes: Any) -> PartitionStateWritten:
    """Partition t-0 of brokers 1, 2, 3 as created, with fields changed."""
    state = PartitionStateWritten(
        controller_epoch=1,
        topic="t",
        partition=0,
        why="initial",
        leader=1,
        leader_epoch=0,
        isr=(1, 2, 3),
        zk_version=0,
        assignment=(1, 2, 3),
        previous_isr=(1, 2, 3),
        live=(1, 2, 3),
        unclean=False,
    )
    return replace(state, **changes)


AFTER_KILL = written(controller_epoch=2, why="offline", leader=2, leader_epoch=1, isr=(2, 3), zk_version=1, live=(2, 3))

SOUND: tuple[tuple[float, int, TraceEvent], ...] = (
    (0.0, OBSERVER, StepStarted(0, "kill", "kill broker 1")),
    (1.0, 1, ControllerElected(1, 1, 0xA)),
    (2.0, OBSERVER, EphemeralSeen("/brokers/ids/1", 1, True, 0xA)),
    (3.0, OBSERVER, EphemeralSeen("/controller", 1, True, 0xA)),
    (10.0, 1, written()),
    (11.0, 1, RequestSent(1, 2, 50, "LeaderAndIsr", 0, 1)),
    (12.0, 1, RequestAnswered(1, 2, "LeaderAndIsr", 0, 0)),
    (20.0, OBSERVER, MetadataSeen(1, 1, 1, (1, 2, 3), "")),
    (100.0, OBSERVER, FaultInjected("kill", "1")),
    (101.0, OBSERVER, StepEnded(0, "kill", True, "")),
    (110.0, OBSERVER, MetadataSeen(1, 1, 1, (1, 2, 3), "")),
    (2100.0, OBSERVER, EphemeralSeen("/brokers/ids/1", 1, False, 0xA)),
    (2101.0, OBSERVER, EphemeralSeen("/controller", 1, False, 0xA)),
    (2110.0, 2, ControllerElected(2, 2, 0xB)),
    (2112.0, OBSERVER, EphemeralSeen("/controller", 2, True, 0xB)),
    (2120.0, OBSERVER, MetadataSeen(1, 0, -1, (2, 3), "")),
    (2130.0, 2, AFTER_KILL),
    (2140.0, 2, FailoverCompleted(2, 30.0, 1)),
    (2150.0, OBSERVER, MetadataSeen(1, 1, -1, (2, 3), "")),
    (2170.0, OBSERVER, MetadataSeen(1, 1, 2, (2, 3), "")),
)

VIEW = PartitionView(leader=2, isr=(2, 3), assignment=(1, 2, 3), leader_epoch=1, controller_epoch=2)
SNAPSHOT = Snapshot({("t", 0): VIEW}, (2, 3), 2, 2, {2: {("t", 0): VIEW}, 3: {("t", 0): VIEW}})
TOPICS = (TopicSpec("t", 1, 3),)


def records(*events: tuple[float, int, TraceEvent], base: tuple[Any, ...] = SOUND) -> list[TraceRecord]:
    """The sound run with `events` added, by time."""
    return sorted((TraceRecord(*event) for event in (*base, *events)), key=lambda record: record.at_ms)


def evidence(
    *events: tuple[float, int, TraceEvent],
    base: tuple[Any, ...] = SOUND,
    snapshot: Snapshot | None = SNAPSHOT,
    bound_ms: float = 1000.0,
) -> Evidence:
    trace = records(*events, base=base)
    return Evidence(trace, TOPICS, snapshot, find_failovers(trace), bound_ms)


__all__ = ["AFTER_KILL", "SNAPSHOT", "SOUND", "TOPICS", "VIEW", "ControllerResigned", "evidence", "records", "written"]
