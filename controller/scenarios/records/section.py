"""From what a scenario says of records to the workload; what is wrong with it, in words."""

from __future__ import annotations

from controller.scenarios.language import RecordsSection
from controller.scenarios.records.checks import ANY_LOSS, NO_LOSS, SOME_LOSS
from controller.scenarios.records.payload import LEAST_BYTES
from controller.scenarios.records.workload import ACKS_ALL, ACKS_LEADER, ACKS_NONE, MEMBERS_MAX, RecordWorkload

ACKS = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}

_LIMITS = {
    "producers": (1, 64),
    "consumers": (0, 64),
    "keys": (1, 1_000_000),
    "record_bytes": (LEAST_BYTES, 1_000_000),
    "in_flight": (1, 5),
    "members": (0, MEMBERS_MAX),
    "group_session_ms": (100, 1_800_000),
    "rate_per_s": (0, 1_000_000),
    "simulated_rate_per_s": (0, 1_000_000),
}


def section_error(section: RecordsSection, lost: str | None) -> str | None:
    """Return the error in the section, with its place in the file, or None."""
    for name, (low, high) in _LIMITS.items():
        value = getattr(section, name)
        if value is not None and not low <= value <= high:
            return f"workload.records.{name}: expected {low} to {high}, found {value}"
    if str(section.acks) not in ACKS:
        return f"workload.records.acks: expected {', '.join(ACKS)}, found {section.acks!r}"
    if section.idempotent and ACKS[str(section.acks)] != ACKS_ALL:
        return f"workload.records.idempotent: expected false with acks of {section.acks}"
    if lost not in (None, NO_LOSS, SOME_LOSS, ANY_LOSS):
        return f"expect.lost: expected {NO_LOSS}, {SOME_LOSS} or {ANY_LOSS}, found {lost!r}"
    return None


def workload_of(section: RecordsSection, host: str) -> RecordWorkload:
    """Return the workload for a host, "real" or "simulated"."""
    rate_per_s = section.rate_per_s
    if host == "simulated" and section.simulated_rate_per_s is not None:
        rate_per_s = section.simulated_rate_per_s
    return RecordWorkload(
        topics=section.topics,
        rate_per_s=rate_per_s,
        producers=section.producers,
        consumers=section.consumers,
        keys=section.keys,
        record_bytes=section.record_bytes,
        acks=ACKS[str(section.acks)],
        idempotent=section.idempotent,
        in_flight=section.in_flight,
        members=section.members,
        group_session_ms=section.group_session_ms,
        static_members=section.static_members,
    )


def expected_loss(lost: str | None, workload: RecordWorkload) -> str:
    """Return the scenario's expectation of acknowledged records, or the default."""
    if lost is not None:
        return lost
    return NO_LOSS if workload.keeps_records else ANY_LOSS
