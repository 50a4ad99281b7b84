"""Failovers in a report: a table with a row for each, and a chart with a bar for each on the run's time axis.

A broker that was controller fails over twice: its partitions get other leaders, and another broker becomes controller.
Both are named by their kind, with the fault, what was affected, and for how long.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.scenarios.failovers import FATAL_FAULTS, Failover
from controller.scenarios.timeline_lane_rows import fault_words
from controller.scenarios.timeline_model import Timeline
from controller.scenarios.timeline_scale import TimeScale
from controller.scenarios.timeline_shapes import Row, duration, labelled_box, lasting, words
from controller.scenarios.timeline_svg import Drawing, compose

HEADER = ("failover", "fault", "affected", "session ended after", "served again after", "without service")
"""The last three in ms: from the fault, from the fault, and from the session's end until the client had complete
metadata again."""

_HEIGHT = 30.0


def failover_rows(failovers: Sequence[Failover], timeline: Timeline) -> list[tuple[str, ...]]:
    """Return the table of failovers, a header first."""
    rows: list[tuple[str, ...]] = [HEADER]
    for failover in failovers:
        rows.append(
            (
                _name(failover, timeline),
                f"{_fault(failover, timeline)} at {failover.fault_at_ms / 1000:.3f} s",
                _affected(failover),
                _after(failover.detected_at_ms, failover.fault_at_ms),
                _after(failover.recovered_at_ms, failover.fault_at_ms),
                "-" if failover.recovery_ms is None else f"{failover.recovery_ms:.0f}",
            )
        )
    return rows


def failovers_drawing(failovers: Sequence[Failover], timeline: Timeline, scale: TimeScale) -> Drawing:
    """Return a row for each failover: from the fault to the session's end, then until the client was served again."""
    return compose(timeline, scale, [_row(failover, timeline, scale) for failover in failovers])


def _row(failover: Failover, timeline: Timeline, scale: TimeScale) -> Row:
    name, end_ms = _name(failover, timeline), timeline.duration_ms
    detected_ms = end_ms if failover.detected_at_ms is None else failover.detected_at_ms
    served_ms = end_ms if failover.recovered_at_ms is None else failover.recovered_at_ms
    alive, outage = duration(detected_ms - failover.fault_at_ms), duration(served_ms - detected_ms)
    before = f"{name}: session alive after {_fault(failover, timeline)}, {lasting(failover.fault_at_ms, detected_ms)}"
    drawn = labelled_box(
        "undetected", scale, failover.fault_at_ms, detected_ms, 5, 18, [f"session alive {alive}", alive], before
    )
    if failover.detected_at_ms is not None:
        text = f"{name}: without service, {lasting(detected_ms, served_ms)}; {_affected(failover)}"
        kind = f"outage-{failover.kind}"
        drawn += labelled_box(kind, scale, detected_ms, served_ms, 5, 18, [f"without service {outage}"], text)
        if scale.x(served_ms) < scale.width - 60:
            drawn += words(outage, scale.x(served_ms) + 5, 18)
        else:
            drawn += words(outage, scale.x(failover.fault_at_ms) - 5, 18, "se")
    return Row(
        _HEIGHT,
        words(f"{failover.kind} {failover.node}", 0, 13, "b") + words(_fault(failover, timeline), 0, 26, "sf"),
        drawn,
    )


def _name(failover: Failover, timeline: Timeline) -> str:
    if failover.kind != "controller":
        return f"{failover.kind} {failover.node}"
    successor = _successor(failover, timeline)
    return f"controller {failover.node} → {'none' if successor is None else successor}"


def _successor(failover: Failover, timeline: Timeline) -> int | None:
    """The broker whose term began first after the old controller's session had ended."""
    if failover.detected_at_ms is None:
        return None
    began = [(term.from_ms, term.broker) for term in timeline.terms if term.from_ms >= failover.detected_at_ms]
    return min(began)[1] if began else None


def _fault(failover: Failover, timeline: Timeline) -> str:
    for fault in timeline.faults:
        if (
            fault.at_ms == failover.fault_at_ms
            and fault.fault in FATAL_FAULTS
            and fault.lane == f"broker {failover.node}"
        ):
            return fault_words(fault)
    return "fault"


def _affected(failover: Failover) -> str:
    one = failover.partitions == 1
    partitions = f"{failover.partitions} partition{'' if one else 's'}"
    if failover.kind == "controller":
        return f"{partitions} taken over by the new controller"
    return f"{partitions} without {'its' if one else 'their'} leader"


def _after(at_ms: float | None, since_ms: float) -> str:
    return "-" if at_ms is None else f"{at_ms - since_ms:.0f}"
