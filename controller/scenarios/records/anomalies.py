"""Anomalies of logs with transactions, by the names of Jepsen's Kafka workload and of Adya's isolation levels.

Pure functions over columns: each returns the rows that have the anomaly and judges nothing; `checks.py` says what a run
is promised. The version order of a partition is that of its offsets. The transactions of the dependency graph are those
that are committed: their producer knows, or a reader of committed records has read some of them.

| anomaly | here |
| --- | --- |
| inconsistent-offsets | `inconsistent_offsets`, `delivery_audit.misplaced` |
| nonmonotonic-send | `sent_backwards`, `delivery_audit.overtaken` |
| G1a | `aborted_reads` |
| G1b | `intermediate_reads` |
| G0, G1c | `write_cycle`, `read_cycle` |

The rest (lost-write, duplicate, poll-skip, nonmonotonic-poll) is in `delivery_audit.py`. Jepsen draws no rw edges
either: a consumer that has not reached a record yet would seem to precede its producer.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import numpy as np

from controller.scenarios.records.delivery_audit import DeliveryAudit, Flags
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, Ints
from controller.scenarios.records.transaction_history import COMMITTED, NO_TRANSACTION

_OFFSETS = 2**40
_SEQUENCES = 2**40
_NONE = np.empty(0, np.int64)


def inconsistent_offsets(audit: DeliveryAudit, *, acknowledged: bool = True) -> Ints:
    """Reads at an offset at which another reader has another record; or, if `acknowledged`, at which the
    acknowledgement of another one was, which was read somewhere else. Of each such offset one read."""
    sends, reads = audit.history.sends, audit.history.reads
    if not len(reads):
        return _NONE
    ever_read = np.zeros(len(sends), np.bool_)
    of = audit.send_of_reads
    ever_read[of[of >= 0]] = True
    stated = np.flatnonzero((sends.outcome == ACKNOWLEDGED) & (sends.offset >= 0) & ever_read & acknowledged)
    places = np.concatenate(
        [reads.partition * _OFFSETS + reads.offset, sends.partition[stated] * _OFFSETS + sends.offset[stated]]
    )
    names = np.concatenate(
        [
            np.where(reads.producer < 0, -1, reads.producer * _SEQUENCES + reads.sequence),
            sends.producer[stated] * _SEQUENCES + sends.sequence[stated],
        ]
    )
    order = np.argsort(places, kind="stable")
    places, names = places[order], names[order]
    begins = np.flatnonzero(np.concatenate([[True], np.diff(places) != 0]))
    lowest, highest = np.minimum.reduceat(names, begins), np.maximum.reduceat(names, begins)
    differ = lowest != highest
    if not differ.any():
        return _NONE
    sizes = np.diff(np.concatenate([begins, [len(places)]]))
    there = order[np.repeat(differ, sizes)]
    there = there[there < len(reads)]
    _, last = np.unique((reads.partition[there] * _OFFSETS + reads.offset[there])[::-1], return_index=True)
    return np.sort(there[::-1][last])


def sent_backwards(audit: DeliveryAudit) -> Ints:
    """Sends that were acknowledged at or below the offset of one that their producer sent to the partition before."""
    sends = audit.history.sends
    rows = np.flatnonzero((sends.outcome == ACKNOWLEDGED) & (sends.offset >= 0))
    rows = rows[np.lexsort((sends.sequence[rows], sends.producer[rows], sends.partition[rows]))]
    if not len(rows):
        return rows
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (np.diff(sends.partition[rows]) != 0) | (np.diff(sends.producer[rows]) != 0)
    ranks = np.cumsum(begins) * _OFFSETS + sends.offset[rows]
    latest = np.maximum.accumulate(ranks)
    return np.sort(rows[np.concatenate([[False], ranks[1:] <= latest[:-1]])])


def aborted_reads(audit: DeliveryAudit) -> Ints:
    """G1a. Reads of a record whose send had failed for certain, by any reader; and reads of records of aborted
    transactions by readers of committed records."""
    rows, send = np.arange(len(audit.history.reads)), audit.send_of_reads
    known = send >= 0
    wrong = known.copy()
    wrong[known] = (audit.history.sends.outcome[send[known]] == FAILED) | (
        audit.aborted[send[known]] & audit.by_committed[known]
    )
    return rows[wrong]


def intermediate_reads(audit: DeliveryAudit) -> Ints:
    """G1b. Reads by readers of committed records of a transaction whose commit was asked for later: it was still being
    written. Of one that was aborted: `aborted_reads`."""
    history = audit.history
    if history.transactions is None:
        return _NONE
    rows = np.flatnonzero(audit.by_committed)
    send = audit.send_of_reads[rows]
    rows, send = rows[send >= 0], send[send >= 0]
    within = (history.sends.transaction[send] != NO_TRANSACTION) & ~audit.aborted[send]
    rows, send = rows[within], send[within]
    committing = history.transactions.transactions.committing_at_ms[history.sends.transaction[send]]
    early: Ints = rows[history.reads.read_at_ms[rows] < committing]
    return early


def committed_transactions(audit: DeliveryAudit) -> Flags:
    """By transaction: its producer knows that it is committed, or a reader of committed records has read some of it."""
    transactions = audit.history.transactions
    assert transactions is not None
    committed: Flags = transactions.transactions.outcome == COMMITTED
    send = audit.send_of_reads[audit.by_committed]
    seen = audit.history.sends.transaction[send[send >= 0]]
    committed[seen[seen != NO_TRANSACTION]] = True
    return committed


def write_cycle(audit: DeliveryAudit) -> list[int]:
    """G0. Transactions each of which wrote, to some partition, just before the next one (the last one before the first
    one), or [] if there is no such cycle. Kafka permits it: records of open transactions interleave."""
    if audit.history.transactions is None:
        return []
    return _cycle(_write_edges(audit), len(audit.history.transactions.transactions))


def read_cycle(audit: DeliveryAudit) -> list[int]:
    """G1c without write edges. Transactions of which each one consumed what the one before it wrote, and the first one
    what the last one wrote; or []. Among readers of committed records each would have ended before the other."""
    history = audit.history
    if history.transactions is None:
        return []
    rows = np.flatnonzero(audit.by_committed & (history.reads.transaction != NO_TRANSACTION))
    send = audit.send_of_reads[rows]
    rows, send = rows[send >= 0], send[send >= 0]
    edges = np.stack([history.sends.transaction[send], history.reads.transaction[rows]], axis=1)
    return _cycle(edges[_among_committed(audit, edges)], len(history.transactions.transactions))


def _among_committed(audit: DeliveryAudit, edges: Ints) -> Flags:
    committed = committed_transactions(audit)
    real: Flags = (edges != NO_TRANSACTION).all(axis=1) & (edges[:, 0] != edges[:, 1])
    real[real] = committed[edges[real]].all(axis=1)
    return real


def _write_edges(audit: DeliveryAudit) -> Ints:
    """Pairs of committed transactions with records next to each other in a partition, as far as offsets are known."""
    history = audit.history
    reads, sends = history.reads, history.sends
    rows = np.arange(len(reads))
    send = audit.send_of_reads[rows]
    rows, send = rows[send >= 0], send[send >= 0]
    stated = np.flatnonzero((sends.outcome == ACKNOWLEDGED) & (sends.offset >= 0))
    places = np.concatenate(
        [
            reads.partition[rows] * _OFFSETS + reads.offset[rows],
            sends.partition[stated] * _OFFSETS + sends.offset[stated],
        ]
    )
    writer = sends.transaction[np.concatenate([send, stated])]
    committed = np.append(committed_transactions(audit), False)  # NO_TRANSACTION is none
    places, writer = places[committed[writer]], writer[committed[writer]]
    places, at = np.unique(places, return_index=True)
    writer = writer[at]
    edges = np.stack([writer[:-1], writer[1:]], axis=1) if len(writer) else np.empty((0, 2), np.int64)
    near = (places[:-1] // _OFFSETS == places[1:] // _OFFSETS) & (edges[:, 0] != edges[:, 1])
    ordered: Ints = edges[near]
    return ordered


def _cycle(edges: Ints, transactions: int) -> list[int]:
    """A cycle of the graph, or []. Linear in the edges."""
    pairs = np.unique(edges[:, 0] * max(transactions, 1) + edges[:, 1])
    graph: TopologicalSorter[int] = TopologicalSorter()
    for source, target in zip((pairs // transactions).tolist(), (pairs % transactions).tolist(), strict=True):
        graph.add(target, source)
    try:
        graph.prepare()
    except CycleError as error:
        found: list[int] = error.args[1][:-1]
        return found
    return []
