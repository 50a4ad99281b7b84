"""Invariants of transactions, over a history: what no order of two clients' requests may bring about.

Pure functions over columns: each returns the rows that break its rule. A transaction whose commit or abort had no
answer is indeterminate: it may be there or not, but as a whole. That no reader of committed records gets aborted ones
is G1a (`anomalies.py`), that what was committed is there lost-write (`delivery_audit.py`).

| invariant | rule |
| --- | --- |
| transactions-atomic | of no transaction some records are there and others not, over all partitions |
| fenced-unwritten | nothing is there that a producer sent after another with its id had its producer id |
| offsets-atomic | the group's offset in the end is that of the last transaction whose records are there |
| exactly-once | each record of a consumed partition, up to the committed offset, was consumed in one transaction |
| timeouts-abort | no transaction is committed whose commit is asked for after its time, and a while, was up |
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from controller.scenarios.records.anomalies import committed_transactions
from controller.scenarios.records.delivery_audit import DeliveryAudit, Flags
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, Floats, Ints
from controller.scenarios.records.transaction_history import COMMITTED, NO_TRANSACTION, TransactionalHistory

_OFFSETS = 2**40
_NONE = np.empty(0, np.int64)


def _transactions(audit: DeliveryAudit) -> TransactionalHistory:
    assert audit.history.transactions is not None
    return audit.history.transactions


def _expected(audit: DeliveryAudit) -> Ints:
    """Sends within transactions, in partitions that were read to their end, but what retention may have taken."""
    sends = audit.history.sends
    expected = (sends.transaction != NO_TRANSACTION) & (sends.outcome != FAILED) & audit.complete[sends.partition]
    expected &= (sends.offset >= audit.start[sends.partition]) | (audit.start[sends.partition] == 0)
    return np.flatnonzero(expected)


def torn(audit: DeliveryAudit) -> Ints:
    """Sends that are missing in the end, while others of their transaction are there. The final reader must read
    committed records alone."""
    if not audit.final_is_committed:
        return _NONE
    sends, count = audit.history.sends, len(_transactions(audit).transactions)
    rows = _expected(audit)
    there = np.bincount(sends.transaction[rows][audit.found[rows] > 0], minlength=count) > 0
    missing: Ints = rows[there[sends.transaction[rows]] & (audit.found[rows] == 0)]
    return missing


def fenced(audit: DeliveryAudit) -> Ints:
    """Reads, by any reader, of a record that was sent after its producer was fenced: a later incarnation, which was
    asked for after the record's own was answered, had its producer id."""
    history, transactions = audit.history, _transactions(audit)
    fenced_at_ms = _fenced_at_ms(transactions)
    rows, send = np.arange(len(history.reads)), audit.send_of_reads
    rows, send = rows[send >= 0], send[send >= 0]
    within = history.sends.transaction[send] != NO_TRANSACTION
    rows, send = rows[within], send[within]
    life = transactions.transactions.incarnation[history.sends.transaction[send]]
    late: Ints = rows[history.sends.sent_at_ms[send] > fenced_at_ms[life]]
    return late


def _fenced_at_ms(transactions: TransactionalHistory) -> Floats:
    """By incarnation, when the first later one of its id was answered; infinite without one."""
    lives = transactions.incarnations
    fenced_at_ms = np.full(len(lives), np.inf)
    for name in range(len(transactions.transactional_ids)):
        mine = np.flatnonzero(lives.transactional_id == name)
        by_asked = mine[np.argsort(lives.asked_at_ms[mine])]
        # The first answer among all that were asked for from one on: a running minimum from the right.
        first_answer = np.append(np.minimum.accumulate(lives.answered_at_ms[by_asked][::-1])[::-1], np.inf)
        later = np.searchsorted(lives.asked_at_ms[by_asked], lives.answered_at_ms[mine], side="right")
        fenced_at_ms[mine] = first_answer[later]
    return fenced_at_ms


def overdue(audit: DeliveryAudit, limit_ms: float) -> Ints:
    """Transactions that were committed although their commit was asked for later than `limit_ms` after a record of
    theirs was acknowledged, and so after the coordinator knew of them."""
    sends, rows = audit.history.sends, _transactions(audit).transactions
    own = np.flatnonzero((sends.transaction != NO_TRANSACTION) & (sends.outcome == ACKNOWLEDGED))
    known_at_ms = np.full(len(rows), np.inf)
    np.minimum.at(known_at_ms, sends.transaction[own], sends.ended_at_ms[own])
    late: Ints = np.flatnonzero((rows.outcome == COMMITTED) & (rows.committing_at_ms - known_at_ms > limit_ms))
    return late


def _absent(audit: DeliveryAudit) -> Flags:
    """By transaction: it is certainly not committed: aborted, or none of its records is there, and all were looked
    for."""
    sends, transactions = audit.history.sends, _transactions(audit)
    rows = _expected(audit)
    count = len(transactions.transactions)
    own = np.flatnonzero(sends.transaction != NO_TRANSACTION)
    absent = np.zeros(count, np.bool_)
    absent[sends.transaction[audit.aborted & (sends.transaction != NO_TRANSACTION)]] = True
    if audit.final_is_committed:
        sent = np.bincount(sends.transaction[own], minlength=count)
        looked_for = np.bincount(sends.transaction[rows], minlength=count)
        there = np.bincount(sends.transaction[rows][audit.found[rows] > 0], minlength=count)
        absent |= (sent > 0) & (looked_for == sent) & (there == 0)
    return absent & ~committed_transactions(audit)


def torn_offsets(audit: DeliveryAudit) -> Iterator[tuple[int, int, int]]:
    """Partitions whose offset in the end no transaction explains: (partition, the group's offset in the end, the last
    offset that a transaction committed whose records are there)."""
    transactions = _transactions(audit)
    if transactions.committed_offsets is None:
        return
    rows, committed, absent = transactions.offsets, committed_transactions(audit), _absent(audit)
    by_group = {commit.partition for commit in audit.history.group.commits} if audit.history.group else set()
    for partition in np.unique(rows.partition).tolist():
        if partition in by_group:  # the group's members committed offsets outside of transactions too
            continue
        mine = rows.partition == partition
        found = transactions.committed_offsets[partition]
        last = int(rows.offset[mine & committed[rows.transaction]].max(initial=-1))
        explained = found == -1 or bool(np.any(rows.offset[mine & ~absent[rows.transaction]] == found))
        if found < last or not explained:
            yield partition, found, last


def consumed_twice(audit: DeliveryAudit) -> Ints:
    """Reads that committed transactions consumed, of a record that another committed transaction consumed as well."""
    reads = audit.history.reads
    committed = np.append(committed_transactions(audit), False)
    rows = np.flatnonzero(committed[reads.transaction])
    if not len(rows):
        return rows
    places = reads.partition[rows] * _OFFSETS + reads.offset[rows]
    order = np.lexsort((reads.transaction[rows], places))
    again = np.zeros(len(rows), np.bool_)
    again[1:] = (np.diff(places[order]) == 0) & (np.diff(reads.transaction[rows][order]) != 0)
    return np.sort(rows[order[again]])


def never_consumed(audit: DeliveryAudit) -> Ints:
    """Rows of the final read below the offset of a committed transaction that no transaction consumed which is, or may
    be, committed: the group went past them."""
    reads, transactions = audit.history.reads, _transactions(audit)
    ends = np.zeros(len(audit.history.partitions), np.int64)
    rows = transactions.offsets
    known = committed_transactions(audit)[rows.transaction]
    np.maximum.at(ends, rows.partition[known], rows.offset[known])
    if not ends.any():
        return _NONE
    maybe = np.append(~_absent(audit), False)
    consumed = maybe[reads.transaction]
    seen = np.unique(reads.partition[consumed] * _OFFSETS + reads.offset[consumed])
    final = audit.rows if audit.final_is_committed else _NONE
    places = reads.partition[final] * _OFFSETS + reads.offset[final]
    missed: Ints = final[(reads.offset[final] < ends[reads.partition[final]]) & ~np.isin(places, seen)]
    return missed
