"""Two runs that should be one: where they part, in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from controller.simulator.columns import event_text
from controller.trace_records import TraceRecord, encode_record


def first_difference(first: Sequence[TraceRecord], second: Sequence[TraceRecord]) -> str | None:
    """The first event that is not the same in both; None if every one is, to the byte that a trace would have."""
    for index, (one, other) in enumerate(zip_longest(first, second)):
        if one is None or other is None or encode_record(one) != encode_record(other):
            return f"event {index}: {_describe_record(one)} in one run, {_describe_record(other)} in the other"
    return None


def _describe_record(record: TraceRecord | None) -> str:
    if record is None:
        return "nothing more"
    return f'"{event_text(record.event)}" of node {record.node} at {record.at_ms:.3f} ms'
