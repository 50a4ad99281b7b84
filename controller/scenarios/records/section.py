"""From what a scenario says of records to the workload; what is wrong with it, in words."""

from __future__ import annotations

from dataclasses import replace

from controller.scenarios.language import RecordsSection, TransactionsSection, WorkloadSection
from controller.scenarios.records.checks import ANY_LOSS, NO_LOSS, SOME_LOSS
from controller.scenarios.records.payload import LEAST_BYTES
from controller.scenarios.records.workload import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    MEMBERS_MAX,
    TRANSACTIONAL_MAX,
    RecordWorkload,
    TransactionWorkload,
)

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


_TRANSACTION_LIMITS = {
    "writers": (0, TRANSACTIONAL_MAX),
    "partitions": (1, 100),
    "records": (1, 1_000),
    "abort_every": (0, 1_000_000),
    "timeout_ms": (1, 900_000),
    "rate_per_s": (0.001, 10_000),
    "simulated_rate_per_s": (0.001, 10_000),
}


def transactions_error(section: TransactionsSection, records: RecordsSection | None) -> str | None:
    """Return the error in the section of transactions, with its place in the file, or None."""
    for name, (low, high) in _TRANSACTION_LIMITS.items():
        value = getattr(section, name)
        if value is not None and not low <= value <= high:
            return f"workload.transactions.{name}: expected {low} to {high}, found {value}"
    if not section.topics:
        return "workload.transactions.topics: expected the prefix of topics that no other client writes to"
    if section.abort_every == 1:
        return "workload.transactions.abort_every: expected 0 (none) or 2 and more, found 1: nothing would be committed"
    if records is not None and records.topics and records.topics.startswith(section.topics):
        return f"workload.transactions.topics: {section.topics!r} has the topics of workload.records too"
    if section.transform and (records is None or not records.members):
        return "workload.transactions.transform: expected members in workload.records, which consume"
    if not section.writers and not section.transform:
        return "workload.transactions.writers: expected 1 or more, or transform"
    return None


def workload_of(section: WorkloadSection, host: str) -> RecordWorkload | None:
    """Return the workload for a host, "real", "simulated" or "in-process"; None without records and transactions."""
    if section.records is None and section.transactions is None:
        return None
    transactions = None if section.transactions is None else _transactions_of(section.transactions, host)
    if section.records is None:
        return RecordWorkload(rate_per_s=0, producers=0, consumers=0, transactions=transactions)
    return replace(_records_of(section.records, host), transactions=transactions)


def _transactions_of(section: TransactionsSection, host: str) -> TransactionWorkload:
    return TransactionWorkload(
        topics=section.topics,
        writers=section.writers,
        rate_per_s=_rate(section, host),
        partitions=section.partitions,
        records=section.records,
        abort_every=section.abort_every,
        timeout_ms=section.timeout_ms,
        transform=section.transform,
    )


def _rate(section: RecordsSection | TransactionsSection, host: str) -> float:
    if host == "simulated" and section.simulated_rate_per_s is not None:
        return section.simulated_rate_per_s
    return section.rate_per_s


def _records_of(section: RecordsSection, host: str) -> RecordWorkload:
    return RecordWorkload(
        topics=section.topics,
        rate_per_s=_rate(section, host),
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
