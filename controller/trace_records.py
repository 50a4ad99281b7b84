"""Trace events with their time and place, and their form as a line of JSON.

A record is one event, the node that emitted it and when. Processes that share a machine write their records as
lines (`encode_record`), on the machine's monotonic clock, and the collector shifts them to a common zero.
A line is a JSON object: `at_ms`, `node`, `event` (the type's name), then the event's own fields.
"""

from __future__ import annotations

import typing
from typing import Any, NamedTuple

import msgspec

from controller.trace import TraceEvent

EVENT_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(TraceEvent)}
"""Every type of event there is, by name."""

OBSERVER = -1
"""The `node` of records that no broker made: the scenario runner's, its observer's and its client's."""


class TraceRecord(NamedTuple):
    at_ms: float
    node: int
    event: TraceEvent


class DamagedRecord(ValueError):
    """A line that is not a record; the message shows it."""


def encode_record(record: TraceRecord) -> bytes:
    """One line, with its newline. The same record gives the same bytes."""
    fields = msgspec.structs.asdict(record.event)
    head = {"at_ms": round(record.at_ms, 3), "node": record.node, "event": type(record.event).__name__}
    if head.keys() & fields.keys():
        raise TypeError(f"{type(record.event).__name__}: at_ms, node and event are the record's own")
    return msgspec.json.encode(head | fields) + b"\n"


def decode_record(line: bytes) -> TraceRecord:
    """The record of one line. Raises DamagedRecord for a torn line, an unknown event or fields that don't fit."""
    try:
        fields = msgspec.json.decode(line)
        at_ms, node, kind = fields.pop("at_ms"), fields.pop("node"), EVENT_TYPES[fields.pop("event")]
        event = msgspec.convert(fields, kind)
        return TraceRecord(float(at_ms), int(node), event)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRecord(f"not a trace record ({error}): {line[:200]!r}") from error


class Recorder:
    """A Trace that keeps its records in memory, in the order in which they were emitted."""

    enabled = True

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def take(self, at_ms: float, node: int, event: TraceEvent) -> None:
        self.records.append(TraceRecord(at_ms, node, event))
