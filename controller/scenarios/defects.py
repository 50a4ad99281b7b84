"""Detection of internal errors of the code under test, independent of all other checks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.scenarios.faults import Fault, kind_of, kinds
from controller.scenarios.judge import FAIL, InvariantResult, Judgement
from controller.trace import FaultInjected, Noted
from controller.trace_records import TraceRecord

NO_DEFECTS = "no-defects"


def expected_errors(fault: str) -> tuple[str, ...]:
    """Return texts of the errors that a fault of that name explains."""
    return _EXPECTED.get(fault, ())


_EXPECTED = {kind_of(kind): kind.expected_errors for kind in kinds(Fault) if issubclass(kind, Fault)}


def with_defects(judgement: Judgement, records: Sequence[TraceRecord]) -> Judgement:
    """Adds whether any node noted an error: an event that a handler did not bring to its end, a request that failed
    in its handler, an exception in a callback. A node goes on after those; a run exists to find them. An error that a
    fault of the run explains is none (`Fault.expected_errors`)."""
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
        if isinstance(event, FaultInjected):
            expected += expected_errors(event.fault)
        elif isinstance(event, Noted) and event.level == "error" and not any(one in event.message for one in expected):
            found.append(record)
    return found
