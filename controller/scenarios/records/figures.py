"""Figures of a history: how many operations ended how, and how long they took around each fault.

Produce latency runs from a record's sending (when it was due, not when the wire was free) to its acknowledgement.
Fetch latency runs from the sending to the moment at which a consumer has the record for the first time. Both belong to
the time of the sending: what was sent during an outage waited for its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.scenarios.records import joined as rows_of
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, FINAL, INDETERMINATE, Floats, History
from controller.scenarios.records.joined import Joined


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """`lost`, `duplicated` and `reordered` are None where the final read did not show it. `duplicated` counts every
    occurrence after a record's first, `reordered` the acknowledged records that lie after one sent later."""

    sent: int
    acknowledged: int
    failed: int
    indeterminate: int
    read: int
    """By consumers; the final read apart."""
    lost: int | None
    duplicated: int | None
    reordered: int | None


def count_records(joined: Joined) -> RecordCounts:
    history = joined.history
    outcome = history.sends.outcome
    lost = len(rows_of.lost(joined))
    overtaken = rows_of.overtaken(joined)
    reordered = int(np.count_nonzero(outcome[joined.sends_named(overtaken)] == ACKNOWLEDGED))
    seen_all = bool(history.finals) and bool(joined.complete.all())
    accounted = bool(history.finals) and not len(rows_of.unaccounted(joined))
    repeated = len(rows_of.repeated(joined))
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
    """Latencies with the moment to which each belongs."""

    at_ms: Floats
    took_ms: Floats

    def between(self, from_ms: float, to_ms: float) -> Latency | None:
        return latency(self.took_ms[(self.at_ms >= from_ms) & (self.at_ms < to_ms)])


def produce_times(history: History) -> Timed:
    sends = history.sends
    acknowledged = sends.outcome == ACKNOWLEDGED
    at_ms = sends.sent_at_ms[acknowledged]
    return Timed(at_ms, sends.ended_at_ms[acknowledged] - at_ms)


def fetch_times(joined: Joined) -> Timed:
    """Each record once a consumer, when it first had it."""
    reads = joined.history.reads
    rows = np.flatnonzero(reads.reader != FINAL)
    send = joined.sends_named(rows)
    rows, send = rows[send >= 0], send[send >= 0]
    _, first = np.unique(reads.reader[rows] * max(len(joined.history.sends), 1) + send, return_index=True)
    at_ms = joined.history.sends.sent_at_ms[send[first]]
    return Timed(at_ms, reads.read_at_ms[rows[first]] - at_ms)


@dataclass(frozen=True, slots=True)
class Fault:
    at_ms: float
    fault: str
    target: str


@dataclass(frozen=True, slots=True)
class Windows:
    """Of what was sent before a fault (since the one before had been recovered from), from it to the recovery, and
    after that, to the next fault."""

    before: Latency | None
    during: Latency | None
    after: Latency | None


@dataclass(frozen=True, slots=True)
class AroundFault:
    """`recovered_at_ms`: when every partition that was written to after the fault had acknowledged something sent
    after it; None if that was not before the next fault."""

    fault: Fault
    recovered_at_ms: float | None
    produce: Windows
    fetch: Windows


def around_faults(joined: Joined, faults: Sequence[Fault]) -> tuple[AroundFault, ...]:
    """For each fault that struck while records were sent. `faults` by time."""
    sent_at_ms = joined.history.sends.sent_at_ms
    if not len(sent_at_ms):
        return ()
    begin_ms, end_ms = float(sent_at_ms.min()), float(sent_at_ms.max())
    faults = [fault for fault in faults if begin_ms <= fault.at_ms <= end_ms]
    produce, fetch = produce_times(joined.history), fetch_times(joined)
    found: list[AroundFault] = []
    before_ms = begin_ms
    for index, fault in enumerate(faults):
        next_ms = faults[index + 1].at_ms if index + 1 < len(faults) else float("inf")
        recovered_ms = _recovered(joined.history, fault.at_ms, next_ms)
        after_ms = next_ms if recovered_ms is None else recovered_ms
        found.append(
            AroundFault(
                fault,
                recovered_ms,
                *(
                    Windows(
                        times.between(before_ms, fault.at_ms),
                        times.between(fault.at_ms, after_ms),
                        times.between(after_ms, next_ms),
                    )
                    for times in (produce, fetch)
                ),
            )
        )
        before_ms = after_ms
    return tuple(found)


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
