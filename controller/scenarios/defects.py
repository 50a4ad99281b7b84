"""Whether the code under test tripped over itself, whatever else a run shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.scenarios.judge import FAIL, InvariantResult, Judgement
from controller.trace import FaultInjected, Noted
from controller.trace_records import TraceRecord

NO_DEFECTS = "no-defects"
OF_BROKEN_DISKS = ("offline", "failed log directories")
"""What brokers' and controllers' errors say that come of a broken disk."""
BREAK_DISKS = frozenset({"break-disk", "break-log-directory"})


def with_defects(judgement: Judgement, records: Sequence[TraceRecord]) -> Judgement:
    """Adds whether any node noted an error: an event that a handler did not bring to its end, a request that failed
    in its handler, an exception in a callback. A node goes on after those; a run exists to find them. What is said of
    a disk is none once one was broken."""
    errors = _errors(records)
    if not errors:
        result = InvariantResult(NO_DEFECTS, True, "no node noted an error")
        return replace(judgement, invariants=(*judgement.invariants, result))
    first = errors[0]
    assert isinstance(first.event, Noted)
    detail = f"{len(errors)} errors, the first of node {first.node} at {first.at_ms:.1f} ms: {first.event.message}"
    return replace(
        judgement, verdict=FAIL, invariants=(*judgement.invariants, InvariantResult(NO_DEFECTS, False, detail))
    )


def _errors(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    found: list[TraceRecord] = []
    expected: tuple[str, ...] = ()
    for record in records:
        event = record.event
        if isinstance(event, FaultInjected) and event.fault in BREAK_DISKS:
            expected = OF_BROKEN_DISKS
        elif isinstance(event, Noted) and event.level == "error" and not any(one in event.message for one in expected):
            found.append(record)
    return found
