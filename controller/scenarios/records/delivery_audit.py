"""The delivery audit: a history's final read joined with its sends and earlier reads, to find anomalous rows.

The functions are pure and work on columns. Each returns the indices of the rows with one kind of anomaly and makes no
judgement. The index of a send refers to the history's sends, that of a read to its reads. Rows that the final read did
not reach are in no result: `complete` is True for the partitions that were read to their end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, FINAL, History, Ints, Reached

Flags = NDArray[np.bool_]

_SEQUENCES = 2**40
_OFFSETS = 2**40
"""Both far beyond a run's."""


class DeliveryAudit:
    """`rows`: the final read's, one an offset, by partition and offset. `send_of` gives each one's send (-1: there is
    none); `first` whether the record was not already at a lower offset of the partition; `found` how often each send
    is in its own partition."""

    def __init__(self, history: History) -> None:
        self.history = history
        sends, reads = history.sends, history.reads
        final = np.flatnonzero(reads.reader == FINAL)
        places, last = np.unique((reads.partition[final] * _OFFSETS + reads.offset[final])[::-1], return_index=True)
        self.places: Ints = places
        self.rows: Ints = final[::-1][last] if len(final) else final
        names = sends.producer * _SEQUENCES + sends.sequence
        self._order = np.argsort(names, kind="stable")
        self._names = names[self._order]
        if np.any(np.diff(self._names) == 0):
            raise ValueError("two sends have one producer and sequence")
        self.send_of = self.sends_named(self.rows)
        at_home = self.send_of >= 0
        at_home[at_home] &= sends.partition[self.send_of[at_home]] == reads.partition[self.rows][at_home]
        self.found: Ints = np.bincount(self.send_of[at_home], minlength=len(sends)).astype(np.int64)
        self.first = self._firsts()
        ends = [final.reached is Reached.END for final in history.finals] or [False] * len(history.partitions)
        self.complete: Flags = np.array(ends, np.bool_)
        self.start: Ints = np.array(
            [final.start_offset for final in history.finals] or [0] * len(history.partitions), np.int64
        )

    def sends_named(self, rows: Ints) -> Ints:
        """The send that each of those reads says it came from; -1 where there is none."""
        reads = self.history.reads
        names = reads.producer[rows] * _SEQUENCES + reads.sequence[rows]
        if not len(self._names):
            return np.full(len(rows), -1, np.int64)
        at = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        return np.where((self._names[at] == names) & (reads.producer[rows] >= 0), self._order[at], -1)

    def _firsts(self) -> Flags:
        """By (partition, send), the row of the lowest offset; a row without a send counts as a first."""
        first = np.ones(len(self.rows), np.bool_)
        known = np.flatnonzero(self.send_of >= 0)
        names = self.history.reads.partition[self.rows[known]] * max(len(self.history.sends), 1) + self.send_of[known]
        _, at = np.unique(names, return_index=True)
        first[known] = False
        first[known[at]] = True
        return first

    def row_at(self, partition: Ints, offset: Ints) -> Ints:
        """Which of `rows` is at each of those places; -1 where none is."""
        if not len(self.places):
            return np.full(len(partition), -1, np.int64)
        wanted = partition * _OFFSETS + offset
        at = np.minimum(np.searchsorted(self.places, wanted), len(self.places) - 1)
        return np.where(self.places[at] == wanted, at, -1)


def _missing(audit: DeliveryAudit) -> Ints:
    """Sends that were acknowledged and are not in the final read, but those that retention has taken."""
    sends = audit.history.sends
    missing = np.flatnonzero((sends.outcome == ACKNOWLEDGED) & (audit.found == 0))
    offset = sends.offset[missing]
    return missing[(offset < 0) | (offset >= audit.start[sends.partition[missing]])]


def lost(audit: DeliveryAudit) -> Ints:
    """Sends that were acknowledged and are not in a partition that was read to its end."""
    missing = _missing(audit)
    return missing[audit.complete[audit.history.sends.partition[missing]]]


def unaccounted(audit: DeliveryAudit) -> Ints:
    """Sends that were acknowledged and not found, in a partition whose end was not reached."""
    missing = _missing(audit)
    return missing[~audit.complete[audit.history.sends.partition[missing]]]


def misplaced(audit: DeliveryAudit) -> Ints:
    """Return the sends that are in the partition, while another record is at the offset that was acknowledged."""
    sends = audit.history.sends
    acknowledged = np.flatnonzero((sends.outcome == ACKNOWLEDGED) & (sends.offset >= 0) & (audit.found > 0))
    row = audit.row_at(sends.partition[acknowledged], sends.offset[acknowledged])
    other = np.where(row >= 0, audit.send_of[row] != acknowledged, audit.complete[sends.partition[acknowledged]])
    return acknowledged[other]


def overtaken(audit: DeliveryAudit) -> Ints:
    """Reads of the final read: a record that lies, at its first occurrence, after one that its producer sent later."""
    reads = audit.history.reads
    rows = audit.rows[audit.first & (audit.send_of >= 0)]
    order = np.lexsort((reads.offset[rows], reads.producer[rows], reads.partition[rows]))
    rows = rows[order]
    if not len(rows):
        return rows
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (np.diff(reads.partition[rows]) != 0) | (np.diff(reads.producer[rows]) != 0)
    # Each group above the one before it, so that one running maximum serves all.
    ranks = np.cumsum(begins) * _SEQUENCES + reads.sequence[rows]
    return rows[ranks < np.maximum.accumulate(ranks)]


def repeated(audit: DeliveryAudit) -> Ints:
    """Reads of the final read: a record that is at a lower offset of the partition too."""
    return audit.rows[~audit.first]


def unexplained(audit: DeliveryAudit) -> Ints:
    """Return the rows of the final read that no send explains: sent by no producer, found under another key or in
    another partition than it was sent to, or from a send that had failed."""
    reads, sends = audit.history.reads, audit.history.sends
    rows, send = audit.rows, audit.send_of
    wrong = send < 0
    known = ~wrong
    wrong[known] = (
        (sends.key[send[known]] != reads.key[rows[known]])
        | (sends.partition[send[known]] != reads.partition[rows[known]])
        | (sends.outcome[send[known]] == FAILED)
    )
    return rows[wrong]


def _earlier_reads(audit: DeliveryAudit) -> tuple[Ints, Ints]:
    """Consumers' reads, and which row of the final read is at the same place (-1: none)."""
    reads = audit.history.reads
    rows = np.flatnonzero(reads.reader != FINAL)
    return rows, audit.row_at(reads.partition[rows], reads.offset[rows])


def vanished(audit: DeliveryAudit) -> Ints:
    """Reads of consumers: at their offset there is another record in the end, or none."""
    reads = audit.history.reads
    rows, at = _earlier_reads(audit)
    gone = audit.complete[reads.partition[rows]] & (reads.offset[rows] >= audit.start[reads.partition[rows]])
    there = np.flatnonzero(at >= 0)
    end = audit.rows[at[there]]
    gone[there] = (reads.producer[rows[there]] != reads.producer[end]) | (
        reads.sequence[rows[there]] != reads.sequence[end]
    )
    return rows[gone]


def unconfirmed(audit: DeliveryAudit) -> Ints:
    """Reads of consumers at offsets that the final read did not come to."""
    rows, at = _earlier_reads(audit)
    return rows[(at < 0) & ~audit.complete[audit.history.reads.partition[rows]]]


def beyond_high_watermark(audit: DeliveryAudit) -> Ints:
    """Return the reads, by any reader, at or after the high watermark of the same response."""
    reads = audit.history.reads
    return np.flatnonzero((reads.high_watermark >= 0) & (reads.offset >= reads.high_watermark))


def after_a_gap(audit: DeliveryAudit) -> Ints:
    """Reads whose reader had passed over an offset of the partition just before; for the final read, from the
    partition's beginning. Nothing but records of the workload takes an offset, so none may be missing."""
    reads = audit.history.reads
    if not len(reads):
        return np.empty(0, np.int64)
    order = np.lexsort((reads.partition, reads.reader))  # stable: each reader's rows in a partition stay in order
    reader, partition, offset = reads.reader[order], reads.partition[order], reads.offset[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(reader) != 0) | (np.diff(partition) != 0)
    expected = np.concatenate([np.zeros(1, np.int64), offset[:-1] + 1])
    expected[begins] = np.where(reader == FINAL, audit.start[partition], offset)[begins]
    return np.sort(order[offset > expected])
