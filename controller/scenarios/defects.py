"""Detection of internal errors of the code under test, independent of all other checks of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.scenarios.judge import FAIL, InvariantResult, Judgement
from controller.trace import FaultInjected, Noted
from controller.trace_records import TraceRecord

NO_DEFECTS = "no-defects"
OF_BROKEN_DISKS = ("offline", "failed log directories")
"""Texts of the errors of brokers and controllers that a broken disk causes."""
OF_HAND_EDITS = (
    "no controller can be elected",
    "was rewritten by hand",
    "/controller_epoch held",
    "/controller_epoch was missing",
)
"""Texts of the errors of controllers that an administrator's edits of /controller and /controller_epoch cause."""
OF_SPOILED_ZNODES = ("is left out: ", "stays as it was known: ")
"""Texts of a controller's errors about an invalid znode."""
EXPECTED_WITH: Mapping[str, tuple[str, ...]] = {
    "break-disk": OF_BROKEN_DISKS,
    "break-log-directory": OF_BROKEN_DISKS,
    "spoil-znode": OF_SPOILED_ZNODES,
    "edit-controller": OF_HAND_EDITS,
    "edit-controller-epoch": OF_HAND_EDITS,
}
"""Texts of the errors that a fault explains, by fault."""


def with_defects(judgement: Judgement, records: Sequence[TraceRecord]) -> Judgement:
    """Adds whether any node noted an error: an event that a handler did not bring to its end, a request that failed
    in its handler, an exception in a callback. A node goes on after those; a run exists to find them. An error that a
    fault of the run explains is none (`EXPECTED_WITH`)."""
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
            expected += EXPECTED_WITH.get(event.fault, ())
        elif isinstance(event, Noted) and event.level == "error" and not any(one in event.message for one in expected):
            found.append(record)
    return found
