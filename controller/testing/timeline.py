"""What happened in a cluster, as text: one line for each fault, controller, change of a leader, and error."""

from __future__ import annotations

from collections.abc import Iterable

from controller.trace import (
    BrokerRegistered,
    ControllerElected,
    ControllerResigned,
    FaultInjected,
    LogTruncated,
    Noted,
    PartitionStateWritten,
    SessionEnded,
    TraceEvent,
)
from controller.trace_records import TraceRecord

LINES_MAX = 200
"""The latest lines that are shown."""


def timeline_of(records: Iterable[TraceRecord], began_ms: float) -> str:
    """Return the lines; times are milliseconds since `began_ms`."""
    lines = [
        f"{record.at_ms - began_ms:10.1f} ms  {sentence}"
        for record in records
        if (sentence := _sentence(record.node, record.event)) is not None
    ]
    left_out = len(lines) - LINES_MAX
    head = ["Timeline of the cluster:"]
    if left_out > 0:
        head.append(f"({left_out} earlier lines)")
    return "\n".join(head + lines[-LINES_MAX:])


def _sentence(node: int, event: TraceEvent) -> str | None:
    match event:
        case FaultInjected():
            return f"FAULT {event.fault}: {'broker ' if event.target[:1].isdigit() else ''}{event.target}"
        case BrokerRegistered():
            return f"broker {event.broker} registered"
        case SessionEnded():
            return f"broker {node} lost its ZooKeeper session"
        case ControllerElected():
            return f"broker {node} is the controller, epoch {event.controller_epoch}"
        case ControllerResigned():
            return f"broker {node} is no longer the controller: {event.reason}"
        case PartitionStateWritten():
            leader = "no leader" if event.leader < 0 else f"leader {event.leader}"
            unclean = " (unclean)" if event.unclean else ""
            return f"{event.topic}-{event.partition}: {leader}, ISR {list(event.isr)}{unclean}: {event.why}"
        case LogTruncated():
            return f"broker {node} truncated {event.topic}-{event.partition}"
        case Noted() if event.level in ("warning", "error"):
            return f"broker {node} {event.level}: {event.message}"
        case _:
            return None
