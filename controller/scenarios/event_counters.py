"""Counters of events that a scenario may bound, computed from a trace from the first fault on.

`expect.at_most = { "controller-elections" = 0 }` forbids events, `at_least` requires them. Each counter yields a
description of every event, so that the report of an exceeded bound includes the first event above it. A condition that
must hold in every run is an invariant instead (`invariants.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from controller.scenarios.failovers import first_fault
from controller.scenarios.invariants import Evidence, Finding
from controller.trace import (
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    MetadataSeen,
    PartitionStateWritten,
    RequestRefused,
    RequestSent,
    SessionStarted,
)
from controller.trace_records import TraceRecord

Records = Sequence[TraceRecord]
Counter = Callable[[Records, int], Iterator[str]]
"""All records by time, and the index of the first fault: occurrences in words."""


def _elections(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        if isinstance(record.event, ControllerElected):
            yield f"broker {record.node} won epoch {record.event.controller_epoch} at {record.at_ms:.0f} ms"


def _resignations(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        if isinstance(record.event, ControllerResigned) and record.event.reason:
            yield (
                f"broker {record.node} resigned epoch {record.event.controller_epoch} at {record.at_ms:.0f} ms:"
                f" {record.event.reason}"
            )


def _leader_changes(records: Records, first: int) -> Iterator[str]:
    leaders: dict[tuple[str, int], int] = {}
    for index, record in enumerate(records):
        event = record.event
        if isinstance(event, PartitionStateWritten) and event.leader != -1:
            was = leaders.get((event.topic, event.partition))
            leaders[event.topic, event.partition] = event.leader
            if index >= first and was is not None and was != event.leader:
                yield f"{event.topic}-{event.partition} from {was} to {event.leader} at {record.at_ms:.0f} ms"


def _left_leaderless(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        event = record.event
        if isinstance(event, PartitionStateWritten) and event.leader == -1:
            yield f"{event.topic}-{event.partition} written without a leader at {record.at_ms:.0f} ms"


def _unclean_elections(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        event = record.event
        if isinstance(event, PartitionStateWritten) and event.unclean:
            yield f"{event.topic}-{event.partition} led by {event.leader} uncleanly at {record.at_ms:.0f} ms"


def _registrations_lost(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        event = record.event
        if isinstance(event, EphemeralSeen) and event.path != "/controller" and not event.present:
            yield f"{event.path} of session 0x{event.session:x} went at {record.at_ms:.0f} ms"


def _bounces(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        if isinstance(record.event, BrokersChanged):
            for broker in record.event.bounced:
                yield f"broker {broker} was found bounced by {record.node} at {record.at_ms:.0f} ms"


def _client_errors(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        if isinstance(record.event, MetadataSeen) and record.event.error:
            yield f"a metadata request failed at {record.at_ms:.0f} ms: {record.event.error}"


def _client_gaps(records: Records, first: int) -> Iterator[str]:
    """Yield the responses in which a partition has no leader. A response without any broker comes from a broker that
    has just started and has no metadata yet: clients skip it."""
    for record in records[first:]:
        seen = record.event
        if isinstance(seen, MetadataSeen) and seen.brokers and seen.partitions_led < seen.partitions_expected:
            yield f"{seen.partitions_led} of {seen.partitions_expected} partitions led at {record.at_ms:.0f} ms"


def _acts_after_session(records: Records, first: int) -> Iterator[str]:
    """Yield the writes and requests of a term's controller after the observer saw the term's session end."""
    ended = _sessions_ended(records)
    sessions: dict[tuple[int, int], int] = {}
    for record in records:
        event = record.event
        if isinstance(event, ControllerElected):
            sessions[record.node, event.controller_epoch] = event.session
        elif isinstance(event, PartitionStateWritten | RequestSent):
            ended_ms = ended.get(sessions.get((record.node, event.controller_epoch), 0))
            if ended_ms is not None and record.at_ms > ended_ms:
                yield (
                    f"{type(event).__name__} of broker {record.node} in epoch {event.controller_epoch} at"
                    f" {record.at_ms:.1f} ms, its session ended at {ended_ms:.1f} ms"
                )


def _late_resignations(records: Records, first: int) -> Iterator[str]:
    """Terms that were resigned only after their session was seen to end: the lease was to be earlier (S12)."""
    ended = _sessions_ended(records)
    for ended_ms, resigned, session in _resigned_terms(records, ended):
        if resigned.at_ms >= ended_ms:
            yield (
                f"broker {resigned.node} resigned {resigned.at_ms - ended_ms:.0f} ms after its session 0x{session:x}"
                f" was seen to end"
            )


def _early_resignations(records: Records, first: int) -> Iterator[str]:
    """Terms that were resigned before their session was seen to end, with how long before their last request was."""
    ended = _sessions_ended(records)
    for ended_ms, resigned, session in _resigned_terms(records, ended):
        if resigned.at_ms < ended_ms:
            sent = [record.at_ms for record in records if _is_sent_by(record, resigned)]
            last = f", its last request {ended_ms - sent[-1]:.0f} ms" if sent else ""
            yield (
                f"broker {resigned.node} resigned {ended_ms - resigned.at_ms:.0f} ms{last}"
                f" before its session 0x{session:x} was seen to end"
            )


def _is_sent_by(record: TraceRecord, resigned: TraceRecord) -> bool:
    """Return True if a record is a request of the term that the other one ended."""
    sent, ending = record.event, resigned.event
    return (
        isinstance(sent, RequestSent)
        and isinstance(ending, ControllerResigned)
        and (record.node, sent.controller_epoch) == (resigned.node, ending.controller_epoch)
    )


def _sessions_ended(records: Records) -> dict[int, float]:
    return {
        record.event.session: record.at_ms
        for record in records
        if isinstance(record.event, EphemeralSeen) and record.event.path == "/controller" and not record.event.present
    }


def _resigned_terms(records: Records, ended: Mapping[int, float]) -> Iterator[tuple[float, TraceRecord, int]]:
    """Yield the session's end as observed, the resignation and the session, for each term for which all are known."""
    sessions: dict[tuple[int, int], int] = {}
    for record in records:
        event = record.event
        if isinstance(event, ControllerElected):
            sessions[record.node, event.controller_epoch] = event.session
        elif isinstance(event, ControllerResigned):
            session = sessions.get((record.node, event.controller_epoch), 0)
            if session in ended:
                yield ended[session], record, session


def _refusals(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        if isinstance(record.event, RequestRefused):
            yield f"broker {record.node} refused {record.event.api} at {record.at_ms:.0f} ms: {record.event.reason}"


def _new_sessions(records: Records, first: int) -> Iterator[str]:
    for record in records[first:]:
        if isinstance(record.event, SessionStarted):
            yield f"broker {record.node} began session 0x{record.event.session:x} at {record.at_ms:.0f} ms"


EVENT_COUNTERS: dict[str, Counter] = {
    "acts-after-session": _acts_after_session,
    "bounces": _bounces,
    "client-errors": _client_errors,
    "client-gaps": _client_gaps,
    "controller-elections": _elections,
    "early-resignations": _early_resignations,
    "late-resignations": _late_resignations,
    "leader-changes": _leader_changes,
    "left-leaderless": _left_leaderless,
    "new-sessions": _new_sessions,
    "registrations-lost": _registrations_lost,
    "requests-refused": _refusals,
    "resignations": _resignations,
    "unclean-elections": _unclean_elections,
}


def bounded(evidence: Evidence, name: str, *, at_most: int | None = None, at_least: int | None = None) -> Finding:
    """Whether the count of `name` is within its bounds. `held` None where the run did not come to its end and too few
    may only mean too early."""
    found = list(EVENT_COUNTERS[name](evidence.records, first_fault(evidence.records)))
    if at_most is not None and len(found) > at_most:
        return Finding(False, f"{len(found)}, expected at most {at_most}; the first beyond: {found[at_most]}")
    if at_least is not None and len(found) < at_least:
        short = f"{len(found)}, expected at least {at_least}"
        return Finding(None if evidence.snapshot is None else False, short)
    return Finding(True, f"{len(found)}: {'; '.join(found[:3])}" if found else "0")
