"""The delivery audit: a history's final read joined with its sends and earlier reads, to find anomalous rows.

The functions are pure and work on columns. Each returns the indices of the rows with one kind of anomaly and makes no
judgement. The index of a send refers to the history's sends, that of a read to its reads. Rows that the final read did
not reach are in no result: `complete` is True for the partitions that were read to their end. In a history with
transactions a reader of committed records sees those of committed transactions alone, and markers take offsets too.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, FINAL, History, Ints, Reached
from controller.scenarios.records.transaction_history import ABORTED, COMMITTED, NO_TRANSACTION, TransactionalHistory

Flags = NDArray[np.bool_]

_SEQUENCES = 2**40
_OFFSETS = 2**40
"""Both far beyond a run's."""


class DeliveryAudit:
    """`rows`: the final read's, one an offset, by partition and offset. `send_of` gives each one's send (-1: there is
    none); `first` whether the record was not already at a lower offset of the partition; `found` how often each send
    is in its own partition. `by_committed`: whether a read is a committed reader's. `must_be_there`, `aborted`: by
    send, whether it was acknowledged (with its transaction, in one) and whether its transaction is aborted for
    certain."""

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
        self.by_committed: Flags = np.zeros(len(reads), np.bool_)
        self.must_be_there: Flags = sends.outcome == ACKNOWLEDGED
        self.aborted: Flags = np.zeros(len(sends), np.bool_)
        if history.transactions is not None:
            self._mark(history.transactions)
        ends = [final.reached is Reached.END for final in history.finals] or [False] * len(history.partitions)
        self.complete: Flags = np.array(ends, np.bool_)
        self.start: Ints = np.array(
            [final.start_offset for final in history.finals] or [0] * len(history.partitions), np.int64
        )

    def _mark(self, transactions: TransactionalHistory) -> None:
        sends, rows = self.history.sends, transactions.transactions
        self.by_committed = np.isin(self.history.reads.reader, sorted(transactions.committed_readers))
        within = sends.transaction != NO_TRANSACTION
        own = sends.transaction[within]
        self.must_be_there[within] = (rows.outcome[own] == COMMITTED) & (sends.outcome[within] != FAILED)
        self.aborted[within] = ((rows.outcome == ABORTED) | np.isnan(rows.committing_at_ms))[own]

    @property
    def final_is_committed(self) -> bool:
        transactions = self.history.transactions
        return transactions is not None and FINAL in transactions.committed_readers

    @cached_property
    def send_of_reads(self) -> Ints:
        """By read, of any reader, its send (-1: there is none)."""
        return self.sends_named(np.arange(len(self.history.reads)))

    @cached_property
    def successive(self) -> tuple[Ints, Ints, Flags]:
        """The reads by reader and partition, each reader's in its order; what offset the one before it is at (for the
        first one, its own less 1; of the final read the partition's beginning less 1); which are a reader's first."""
        reads = self.history.reads
        order = np.lexsort((reads.partition, reads.reader))  # stable: each reader's rows in a partition stay in order
        reader, partition, offset = reads.reader[order], reads.partition[order], reads.offset[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (np.diff(reader) != 0) | (np.diff(partition) != 0)
        before = np.empty(len(order), np.int64)
        before[1:] = offset[:-1]
        before[begins] = np.where(reader == FINAL, self.start[partition], offset)[begins] - 1
        return order, before, begins

    @cached_property
    def after_gaps(self) -> Ints:
        """See `after_a_gap`."""
        return _after_gaps(self)

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
    """Sends that were acknowledged (and whose transaction was) and are not in the final read, but those that retention
    has taken."""
    sends = audit.history.sends
    missing = np.flatnonzero(audit.must_be_there & (audit.found == 0))
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
    """Return the rows of the final read that no send explains: sent by no producer, or found under another key or in
    another partition than it was sent to."""
    reads, sends = audit.history.reads, audit.history.sends
    rows, send = audit.rows, audit.send_of
    wrong = send < 0
    known = ~wrong
    wrong[known] = (sends.key[send[known]] != reads.key[rows[known]]) | (
        sends.partition[send[known]] != reads.partition[rows[known]]
    )
    return rows[wrong]


def _earlier_reads(audit: DeliveryAudit) -> tuple[Ints, Ints]:
    """Consumers' reads, and which row of the final read is at the same place (-1: none)."""
    reads = audit.history.reads
    rows = np.flatnonzero(reads.reader != FINAL)
    return rows, audit.row_at(reads.partition[rows], reads.offset[rows])


def vanished(audit: DeliveryAudit) -> Ints:
    """Reads of consumers: at their offset there is another record in the end, or none. What a reader of uncommitted
    records read of a transaction may be aborted, and missing for a final reader of committed ones."""
    reads = audit.history.reads
    rows, at = _earlier_reads(audit)
    gone = audit.complete[reads.partition[rows]] & (reads.offset[rows] >= audit.start[reads.partition[rows]])
    there = np.flatnonzero(at >= 0)
    end = audit.rows[at[there]]
    gone[there] = (reads.producer[rows[there]] != reads.producer[end]) | (
        reads.sequence[rows[there]] != reads.sequence[end]
    )
    if audit.final_is_committed:
        send = audit.sends_named(rows)
        gone &= audit.by_committed[rows] | (send < 0) | (audit.history.sends.transaction[send] == NO_TRANSACTION)
    return rows[gone]


def beyond_high_watermark(audit: DeliveryAudit) -> Ints:
    """Return the reads, by any reader, at or after the high watermark of the same response."""
    reads = audit.history.reads
    return np.flatnonzero((reads.high_watermark >= 0) & (reads.offset >= reads.high_watermark))


def after_a_gap(audit: DeliveryAudit) -> Ints:
    """Reads whose reader had passed over an offset of the partition just before; for the final read, from the
    partition's beginning. Nothing but records of the workload takes an offset, so none may be missing. In a history
    with transactions markers take offsets, and only records count that another reader read (of committed records, for
    a reader of those): Jepsen's "poll-skip"."""
    return audit.after_gaps


def _after_gaps(audit: DeliveryAudit) -> Ints:
    reads = audit.history.reads
    if not len(reads):
        return np.empty(0, np.int64)
    order, before, _ = audit.successive
    offset, place = reads.offset[order], reads.partition[order] * _OFFSETS
    if audit.history.transactions is None:
        return np.sort(order[offset > before + 1])
    skipped = np.zeros(len(order), np.bool_)
    places = reads.partition * _OFFSETS + reads.offset
    for committed in (False, True):
        mine = np.flatnonzero((audit.by_committed[order] == committed) & (offset > before + 1))
        if len(mine):
            known = np.unique(places[_seen_as_committed(audit)] if committed else places)
            first, last = (place + before)[mine] + 1, (place + offset)[mine]
            skipped[mine] = np.searchsorted(known, last) > np.searchsorted(known, first)
    return np.sort(order[skipped])


def _seen_as_committed(audit: DeliveryAudit) -> Flags:
    """Reads of committed readers, but those of aborted records, which no other such reader is to get."""
    send = audit.send_of_reads
    aborted = np.append(audit.aborted, False)  # a record without a send is none
    seen: Flags = audit.by_committed & ~aborted[send]
    return seen


def backwards(audit: DeliveryAudit) -> Ints:
    """Reads at or before the offset that their reader had read of the partition just before."""
    order, before, begins = audit.successive
    return np.sort(order[(audit.history.reads.offset[order] <= before) & ~begins])


def before_in_reader(audit: DeliveryAudit, rows: Ints) -> Ints:
    """For each of those reads the same reader's read of the partition just before; -1: it is its first."""
    order, _, begins = audit.successive
    previous = np.full(len(order), -1, np.int64)
    previous[order[1:]] = np.where(begins[1:], -1, order[:-1])
    return previous[rows]
