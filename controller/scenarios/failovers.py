"""The failovers of a run, computed from its trace: times of the fault, of its detection and of the recovery.

Detected: the observer saw the removal of the broker's ephemeral node. Recovered: the first metadata response to a
client after that which shows a leader for every electable partition, does not list the broker and, if the broker was
the controller, names another one. A broker that came back, and has metadata from the controller again, may be listed; a
broker that was elected again may be the controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.trace import (
    EphemeralSeen,
    FailoverCompleted,
    FaultInjected,
    MetadataApplied,
    MetadataSeen,
    PartitionStateWritten,
)
from controller.trace_records import TraceRecord

FATAL_FAULTS = ("kill", "stop", "pause", "expire", "restart", "cut")
"""Faults that may cost a broker its ephemerals. One that did not was no failover."""


@dataclass(frozen=True, slots=True)
class Failover:
    """`kind` "broker" or "controller". Times in ms from the scenario's start; None: it did not come to that.
    `partitions`: for a broker those that it led, for a controller those that its successor took over."""

    kind: str
    node: int
    fault_at_ms: float
    detected_at_ms: float | None
    recovered_at_ms: float | None
    partitions: int

    @property
    def recovery_ms(self) -> float | None:
        """From the session's end to the client's complete metadata."""
        if self.detected_at_ms is None or self.recovered_at_ms is None:
            return None
        return self.recovered_at_ms - self.detected_at_ms


def find_failovers(records: Sequence[TraceRecord]) -> tuple[Failover, ...]:
    """All failovers, in the order of their faults; for one broker the broker's own first. `records` by time."""
    return tuple(failover for index, node in _faults(records) for failover in _of_fault(records, index, node))


def _faults(records: Sequence[TraceRecord]) -> Iterator[tuple[int, int]]:
    for index, record in enumerate(records):
        event = record.event
        if isinstance(event, FaultInjected) and event.fault in FATAL_FAULTS:
            node = _struck(event)
            if node is not None:
                yield index, node


def first_fault(records: Sequence[TraceRecord]) -> int:
    """The index of the first fault's record; their number if there was none."""
    faults = (index for index, record in enumerate(records) if isinstance(record.event, FaultInjected))
    return next(faults, len(records))


def _struck(event: FaultInjected) -> int | None:
    """Return the broker whose session a fault endangers: the target, or the broker's end of its link to ZooKeeper.

    None if the target is a ZooKeeper server.
    """
    if event.fault != "cut":
        return int(event.target) if event.target.isdigit() else None
    source, _, target = event.target.partition("->")
    return int(source) if target == "zookeeper" else None


def _of_fault(records: Sequence[TraceRecord], index: int, node: int) -> Iterator[Failover]:
    fault_at_ms = records[index].at_ms
    before, after = records[:index], _until_next_fault(records, index, node)
    detected_at_ms = _ephemeral_gone(after, f"/brokers/ids/{node}")
    event = records[index].event
    assert isinstance(event, FaultInjected)
    # A pause, a cut or a quick restart may end before the session does: nothing failed over then.
    if detected_at_ms is not None or event.fault in ("kill", "stop"):
        recovered_at_ms = _recovered(after, detected_at_ms, node, controller_too=False)
        yield Failover("broker", node, fault_at_ms, detected_at_ms, recovered_at_ms, _led_by(before, node))
    if _controller_before(before) == node:
        moved_at_ms = _ephemeral_gone(after, "/controller")
        if moved_at_ms is not None or event.fault in ("kill", "stop"):
            recovered_at_ms = _recovered(after, moved_at_ms, node, controller_too=True)
            yield Failover("controller", node, fault_at_ms, moved_at_ms, recovered_at_ms, _taken_over(after))


def _until_next_fault(records: Sequence[TraceRecord], index: int, node: int) -> Sequence[TraceRecord]:
    """Return the records after a fault, up to the next fault of the same broker."""
    for later in range(index + 1, len(records)):
        event = records[later].event
        if isinstance(event, FaultInjected) and event.fault in FATAL_FAULTS and _struck(event) == node:
            return records[index + 1 : later]
    return records[index + 1 :]


def _ephemeral_gone(records: Sequence[TraceRecord], path: str) -> float | None:
    for record in records:
        if isinstance(record.event, EphemeralSeen) and record.event.path == path and not record.event.present:
            return record.at_ms
    return None


def _recovered(
    records: Sequence[TraceRecord], detected_at_ms: float | None, node: int, *, controller_too: bool
) -> float | None:
    if detected_at_ms is None:
        return None
    back = leads_again = False
    for record in records:
        seen = record.event
        if record.at_ms < detected_at_ms:
            continue
        # A broker that came back at once may be in every answer: no client need ever see the cluster without it. What
        # counts then is an answer given after the controller has dealt with its return.
        back = back or (isinstance(seen, MetadataApplied) and record.node == node)
        if isinstance(seen, EphemeralSeen) and seen.present and seen.broker == node:
            leads_again = leads_again or seen.path == "/controller"
        if not isinstance(seen, MetadataSeen) or seen.error:
            continue
        complete = 0 < seen.partitions_expected == seen.partitions_led and (back or node not in seen.brokers)
        moved = (leads_again or seen.controller != node) and seen.controller in seen.brokers
        if complete and (moved or not controller_too):
            return record.at_ms
    return None


def _led_by(records: Sequence[TraceRecord], node: int) -> int:
    leaders: dict[tuple[str, int], tuple[int, int]] = {}
    for record in records:
        event = record.event
        if isinstance(event, PartitionStateWritten):
            key = (event.topic, event.partition)
            leaders[key] = max(leaders.get(key, (-1, -1)), (event.zk_version, event.leader))
    return sum(leader == node for _, leader in leaders.values())


def _controller_before(records: Sequence[TraceRecord]) -> int | None:
    for record in reversed(records):
        if isinstance(record.event, EphemeralSeen) and record.event.path == "/controller":
            return record.event.broker if record.event.present else None
    return None


def _taken_over(records: Sequence[TraceRecord]) -> int:
    for record in records:
        if isinstance(record.event, FailoverCompleted):
            return record.event.partitions
    return 0
