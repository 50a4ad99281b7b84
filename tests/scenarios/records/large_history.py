"""A large history of transactions without an anomaly, to measure the checkers.

`python -m tests.scenarios.records.large_history --records 1000000` prints the CPU time of each.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from controller.scenarios.records.checks import RECORD_CHECKS, TRANSACTION_RECORD_CHECKS, RecordEvidence
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.history import FINAL, FinalRead, Floats, History, Ints, Reached, Reads, Sends
from controller.scenarios.records.transaction_history import (
    Incarnations,
    TransactionalHistory,
    TransactionOffsets,
    TransactionRows,
)
from controller.scenarios.records.workload import RecordWorkload

PARTITIONS, PRODUCERS, IN_A_TRANSACTION, IN_A_POLL = 16, 8, 10, 100
A_MS = 100
"""Records sent in a millisecond."""


def large_history(records: int) -> History:
    """`records` of transactions that interleave, each read by a consumer of committed records, in a later transaction
    of its own, and by the final reader. Every second offset is a marker's."""
    number = np.arange(records, dtype=np.int64)
    producer, sequence = number % PRODUCERS, number // PRODUCERS
    transaction = sequence // IN_A_TRANSACTION * PRODUCERS + producer
    partition = sequence % PARTITIONS
    offset = np.zeros(records, np.int64)
    for one in range(PARTITIONS):
        rows = np.flatnonzero(partition == one)
        offset[rows] = 2 * np.arange(len(rows))
    count = int(transaction.max()) + 1
    rounds = np.arange(count, dtype=np.int64) // PRODUCERS + 1
    sent_ms: Floats = number.astype(np.float64) / A_MS
    committing_ms: Floats = (rounds * IN_A_TRANSACTION * PRODUCERS).astype(np.float64) / A_MS
    consumer = transaction + 2 * PRODUCERS
    consumer[consumer >= count] = -1
    order = np.lexsort((offset, partition))

    def both(consumed: Ints, final: Ints) -> Ints:
        return np.concatenate([consumed[order], final[order]])

    nothing = np.full(records, -1, np.int64)
    empty = np.empty(0, np.int64)
    return History(
        tuple(("t", one) for one in range(PARTITIONS)),
        Sends(
            producer,
            sequence,
            partition,
            partition,
            sent_ms,
            sent_ms + np.float64(1),
            np.ones(records, np.int64),
            offset,
            np.zeros(records, np.int64),
            transaction,
        ),
        Reads(
            both(np.zeros(records, np.int64), np.full(records, FINAL)),
            both(partition, partition),
            both(offset, offset),
            both(producer, producer),
            both(sequence, sequence),
            both(partition, partition),
            np.tile(committing_ms[transaction][order] + 5.0, 2),
            both(nothing, nothing),
            np.tile(number // IN_A_POLL, 2),
            both(consumer, nothing),
        ),
        tuple(FinalRead(0, 2 * int(np.count_nonzero(partition == one)), Reached.END) for one in range(PARTITIONS)),
        transactions=TransactionalHistory(
            tuple(f"id-{one}" for one in range(PRODUCERS)),
            Incarnations(
                np.arange(PRODUCERS), np.arange(PRODUCERS), np.full(PRODUCERS, -2.0), np.full(PRODUCERS, -1.0)
            ),
            TransactionRows(
                np.arange(count) % PRODUCERS,
                committing_ms - np.float64(1),
                committing_ms,
                committing_ms + np.float64(1),
                np.ones(count, np.int64),
            ),
            TransactionOffsets(empty, empty, empty),
            frozenset((0, FINAL)),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    history = large_history(parser.parse_args().records)
    began_s = last_s = time.process_time()
    evidence = RecordEvidence(RecordWorkload(), DeliveryAudit(history), frozenset(history.partitions))
    for name, check in (("audit", None), *RECORD_CHECKS.items(), *TRANSACTION_RECORD_CHECKS.items()):
        found = None if check is None else check(evidence)
        now_s = time.process_time()
        print(f"{name:24} {now_s - last_s:6.2f} s {'' if found is None else found.detail}")
        last_s = now_s
    print(f"{len(history.sends)} records sent, {len(history.reads)} read: {last_s - began_s:.2f} s of CPU")


if __name__ == "__main__":
    main()
