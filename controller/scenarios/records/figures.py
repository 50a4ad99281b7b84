"""Figures of a history: how many operations ended how, and how long they took around each fault.

Produce latency runs from a record's sending (when it was due, not when the wire was free) to its acknowledgement.
Fetch latency runs from the sending to the moment at which a consumer has the record for the first time. A record that
was in flight when a fault was injected waited for the end of the outage, and counts with the records sent during it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.scenarios.records import delivery_audit
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, FINAL, INDETERMINATE, Floats, History


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """`lost`, `duplicated` and `reordered` are None where the final read did not show it. `duplicated` counts every
    occurrence after a record's first, `reordered` the acknowledged records that lie after one sent later."""

    sent: int
    acknowledged: int
    failed: int
    indeterminate: int
    read: int
    """Records read by consumers, without the final read."""
    lost: int | None
    duplicated: int | None
    reordered: int | None


def count_records(audit: DeliveryAudit) -> RecordCounts:
    history = audit.history
    outcome = history.sends.outcome
    lost = len(delivery_audit.lost(audit))
    overtaken = delivery_audit.overtaken(audit)
    reordered = int(np.count_nonzero(outcome[audit.sends_named(overtaken)] == ACKNOWLEDGED))
    seen_all = bool(history.finals) and bool(audit.complete.all())
    accounted = bool(history.finals) and not len(delivery_audit.unaccounted(audit))
    repeated = len(delivery_audit.repeated(audit))
    return RecordCounts(
        sent=len(outcome),
        acknowledged=int(np.count_nonzero(outcome == ACKNOWLEDGED)),
        failed=int(np.count_nonzero(outcome == FAILED)),
        indeterminate=int(np.count_nonzero(outcome == INDETERMINATE)),
        read=int(np.count_nonzero(history.reads.reader != FINAL)),
        lost=lost if lost or accounted else None,
        duplicated=repeated if repeated or seen_all else None,
        reordered=reordered if reordered or seen_all else None,
    )


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    worst_ms: float


def latency(times_ms: Floats) -> Latency | None:
    """None for no times."""
    if not len(times_ms):
        return None
    p50, p95, p99 = np.percentile(times_ms, (50, 95, 99))
    return Latency(len(times_ms), float(p50), float(p95), float(p99), float(times_ms.max()))


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Latencies with the moment of each one's sending."""

    at_ms: Floats
    took_ms: Floats

    @property
    def ended_ms(self) -> Floats:
        return self.at_ms + self.took_ms


def produce_times(history: History) -> Timed:
    sends = history.sends
    acknowledged = sends.outcome == ACKNOWLEDGED
    at_ms = sends.sent_at_ms[acknowledged]
    return Timed(at_ms, sends.ended_at_ms[acknowledged] - at_ms)


def fetch_times(audit: DeliveryAudit) -> Timed:
    """Each record once a consumer, when it first had it."""
    reads = audit.history.reads
    rows = np.flatnonzero(reads.reader != FINAL)
    send = audit.sends_named(rows)
    rows, send = rows[send >= 0], send[send >= 0]
    _, first = np.unique(reads.reader[rows] * max(len(audit.history.sends), 1) + send, return_index=True)
    at_ms = audit.history.sends.sent_at_ms[send[first]]
    return Timed(at_ms, reads.read_at_ms[rows[first]] - at_ms)


@dataclass(frozen=True, slots=True)
class InjectedFault:
    at_ms: float
    fault: str
    target: str


@dataclass(frozen=True, slots=True)
class Windows:
    """Latencies around a fault.

    `before`: of records sent since the recovery from the previous fault and completed before this one was injected;
    `during`: of records in flight at that time or sent until the recovery; `after`: of records sent after the recovery
    and completed before the next fault.
    """

    before: Latency | None
    during: Latency | None
    after: Latency | None


@dataclass(frozen=True, slots=True)
class AroundFault:
    """`recovered_at_ms`: when every partition that was written to after the fault had acknowledged something sent
    after it; None if that was not before the next fault."""

    fault: InjectedFault
    recovered_at_ms: float | None
    produce: Windows
    fetch: Windows


def around_faults(audit: DeliveryAudit, faults: Sequence[InjectedFault]) -> tuple[AroundFault, ...]:
    """Return the latencies around each fault that was injected while records were sent. `faults` are sorted by time."""
    sent_at_ms = audit.history.sends.sent_at_ms
    if not len(sent_at_ms):
        return ()
    begin_ms, end_ms = float(sent_at_ms.min()), float(sent_at_ms.max())
    faults = [fault for fault in faults if begin_ms <= fault.at_ms <= end_ms]
    produce, fetch = produce_times(audit.history), fetch_times(audit)
    found: list[AroundFault] = []
    before_ms = begin_ms
    for index, fault in enumerate(faults):
        next_ms = faults[index + 1].at_ms if index + 1 < len(faults) else float("inf")
        recovered_ms = _recovered(audit.history, fault.at_ms, next_ms)
        after_ms = next_ms if recovered_ms is None else recovered_ms
        found.append(
            AroundFault(
                fault,
                recovered_ms,
                *(_windows(times, before_ms, fault.at_ms, after_ms, next_ms) for times in (produce, fetch)),
            )
        )
        before_ms = after_ms
    return tuple(found)


def _windows(times: Timed, before_ms: float, fault_ms: float, after_ms: float, next_ms: float) -> Windows:
    at_ms, ended_ms = times.at_ms, times.ended_ms
    return Windows(
        latency(times.took_ms[(at_ms >= before_ms) & (ended_ms < fault_ms)]),
        latency(times.took_ms[(at_ms < after_ms) & (ended_ms >= fault_ms) & (at_ms >= before_ms)]),
        latency(times.took_ms[(at_ms >= after_ms) & (ended_ms < next_ms)]),
    )


def _recovered(history: History, fault_ms: float, next_ms: float) -> float | None:
    sends = history.sends
    after = (sends.sent_at_ms >= fault_ms) & (sends.sent_at_ms < next_ms)
    written_to = np.unique(sends.partition[after])
    if not len(written_to):
        return None
    acknowledged = after & (sends.outcome == ACKNOWLEDGED)
    firsts = np.full(len(history.partitions), np.inf)
    np.minimum.at(firsts, sends.partition[acknowledged], sends.ended_at_ms[acknowledged])
    recovered_ms = float(firsts[written_to].max())
    return recovered_ms if recovered_ms <= next_ms and np.isfinite(recovered_ms) else None


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Values for each `bucket_ms` from `from_ms` on: a rate, or percentiles (NaN for an empty bucket)."""

    from_ms: float
    bucket_ms: float
    values: tuple[Floats, ...]


def rate_over_time(at_ms: Floats, from_ms: float, to_ms: float, bucket_ms: float) -> Course:
    """Events a second."""
    count = max(math.ceil((to_ms - from_ms) / bucket_ms), 1)
    counts, _ = np.histogram(at_ms, bins=count, range=(from_ms, from_ms + count * bucket_ms))
    return Course(from_ms, bucket_ms, (counts * (1000.0 / bucket_ms),))


def latency_over_time(times: Timed, from_ms: float, to_ms: float, bucket_ms: float) -> Course:
    """Return p50 and p99 of the records sent in each bucket, in ms."""
    count = max(math.ceil((to_ms - from_ms) / bucket_ms), 1)
    bucket = ((times.at_ms - from_ms) // bucket_ms).astype(np.int64)
    within = (bucket >= 0) & (bucket < count)
    order = np.argsort(bucket[within], kind="stable")
    took_ms, bounds = times.took_ms[within][order], np.searchsorted(bucket[within][order], np.arange(count + 1))
    medians, highs = np.full(count, np.nan), np.full(count, np.nan)
    for each in range(count):
        if bounds[each] < bounds[each + 1]:
            medians[each], highs[each] = np.percentile(took_ms[bounds[each] : bounds[each + 1]], (50, 99))
    return Course(from_ms, bucket_ms, (medians, highs))
