"""The log of a run as text for a person: one column a node, one line an event, time downwards.

An event starts in its node's column and extends to the right as far as it needs, because the line is its own. Of
frequent events (a client's responses, partition moves) only changes are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from controller.trace import (
    BrokerRegistered,
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    FailoverCompleted,
    FailoverPhase,
    FaultInjected,
    IsrProposed,
    LogTruncated,
    MetadataApplied,
    MetadataSeen,
    Noted,
    PartitionMoved,
    PartitionStateWritten,
    ReplicaRoleApplied,
    RequestAnswered,
    RequestRefused,
    RequestSent,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
    StoodStill,
    TraceEvent,
)
from controller.trace_records import OBSERVER, TraceRecord, encode_record

TIME_WIDTH = 11
COLUMN_WIDTH = 14
LEFT_OUT = (PartitionMoved, FailoverPhase)
"""Told by what they lead to."""


def log_lines(records: Sequence[TraceRecord], nodes: Sequence[int]) -> Iterator[str]:
    """The header, then a line an event."""
    columns = {OBSERVER: 0} | {node: place for place, node in enumerate(nodes, 1)}
    heads = ["outside", *(f"broker {node}" for node in nodes)]
    yield (" " * TIME_WIDTH + "".join(head.ljust(COLUMN_WIDTH) for head in heads)).rstrip()
    for record in _changes(records):
        indent = COLUMN_WIDTH * columns.get(record.node, 0)
        yield f"{record.at_ms:9.1f}  {' ' * indent}{event_text(record.event)}"


def log_text(records: Sequence[TraceRecord], nodes: Sequence[int], last: int | None = None) -> str:
    """As one text; with `last`, that many events from the end on."""
    header, *lines = log_lines(records, nodes)
    left_out = 0 if last is None else max(0, len(lines) - last)
    omission = [f"{left_out} events before"] if left_out else []
    return "\n".join([*omission, header, *lines[left_out:]]) + "\n"


def _changes(records: Iterable[TraceRecord]) -> Iterator[TraceRecord]:
    seen: MetadataSeen | None = None
    for record in records:
        if isinstance(record.event, LEFT_OUT):
            continue
        if isinstance(record.event, MetadataSeen):
            if record.event == seen:
                continue
            seen = record.event
        yield record


def event_text(event: TraceEvent) -> str:
    """The event as a line for a person, without its time and place."""
    format_event = _TEXTS.get(type(event))
    return str(event) if format_event is None else " ".join(format_event(event).split("\n", 1)[0].split())


def _members(members: Sequence[int]) -> str:
    return "[" + " ".join(map(str, members)) + "]"


def _state(event: PartitionStateWritten) -> str:
    return (
        f"wrote {event.topic}-{event.partition}: leader {event.leader} epoch {event.leader_epoch}"
        f" ISR {_members(event.isr)} v{event.zk_version} ({event.why}{', unclean' if event.unclean else ''})"
    )


def _metadata(event: MetadataSeen) -> str:
    if event.error:
        return f"client: {event.error}"
    led = f", {event.partitions_led} of {event.partitions_expected} led" if event.partitions_expected else ""
    return f"client: brokers {_members(event.brokers)}, controller {event.controller}{led}"


def _brokers(event: BrokersChanged) -> str:
    changes = [(word, who) for word, who in (("new", event.added), ("dead", event.dead), ("bounced", event.bounced))]
    return "sees brokers: " + ", ".join(f"{word} {_members(who)}" for word, who in changes if who)


_TEXTS: dict[type, Callable[[Any], str]] = {
    SessionStarted: lambda e: f"session 0x{e.session:x} begins",
    SessionEnded: lambda e: f"session 0x{e.session:x} is over",
    BrokerRegistered: lambda e: f"registered, broker epoch {e.broker_epoch}",
    ControllerElected: lambda e: f"ELECTED, controller epoch {e.controller_epoch}",
    ControllerResigned: lambda e: f"RESIGNS epoch {e.controller_epoch}: {e.reason}",
    FailoverCompleted: lambda e: f"failover done, {e.partitions} partitions",
    BrokersChanged: _brokers,
    PartitionStateWritten: _state,
    RequestSent: lambda e: f"-> {e.to_broker} {e.api} #{e.sequence} ({e.partitions})",
    RequestAnswered: lambda e: (
        f"<- {e.to_broker} {e.api} #{e.sequence}" + (f" error {e.error_code}" * bool(e.error_code))
    ),
    RequestRefused: lambda e: f"refuses {e.api}: {e.reason}",
    ReplicaRoleApplied: lambda e: f"{e.role} of {e.topic}-{e.partition}, leader {e.leader} epoch {e.leader_epoch}",
    IsrProposed: lambda e: (
        f"asks for ISR {_members(e.proposed)} of {e.topic}-{e.partition} in epoch {e.leader_epoch},"
        f" now {_members(e.isr)}"
    ),
    LogTruncated: lambda e: f"cuts {e.topic}-{e.partition} off at {e.offset}",
    MetadataApplied: lambda e: f"metadata: live {_members(e.live)}, {e.partitions} partitions",
    Noted: lambda e: f"{e.level}: {e.message}",
    StepStarted: lambda e: f"step: {e.text}",
    StepEnded: lambda e: f"step {e.step}: {'done' if e.ok else 'FAILED: ' + e.detail}",
    FaultInjected: lambda e: f"** {e.fault} {e.target}",
    EphemeralSeen: lambda e: f"{e.path} {'of' if e.present else 'gone, of'} {e.broker}, session 0x{e.session:x}",
    MetadataSeen: _metadata,
    StoodStill: lambda e: f"the machine stood still for {e.duration_ms:.0f} ms",
}


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
