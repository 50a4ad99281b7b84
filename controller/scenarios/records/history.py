"""The history of produce and fetch operations: one format for real clients and for simulated ones.

A run of half a minute has tens of thousands of operations, so a history is a few columns and no objects. Every record
sent ends in one of three ways: acknowledged; failed, that is, it was certainly not written; or indeterminate: the
outcome is unknown. Every record read is a row too, with its reader and its place. At the end of a run a separate
reader (`FINAL`) reads all partitions once more, from their beginning to their end.

Times are milliseconds on the scenario's clock. A producer numbers its records from 0 (`sequence`), so that
(producer, sequence) names one record for good.
"""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from controller.scenarios.records.group_history import GroupHistory
from controller.scenarios.records.transaction_history import (
    NO_TRANSACTION,
    ClientTransactions,
    TransactionalHistory,
    to_lists,
    transaction_bases,
    transaction_history_of,
)
from controller.scenarios.records.workload import PartitionName

INDETERMINATE, ACKNOWLEDGED, FAILED = 0, 1, 2
"""How an operation ended. One that never ended is indeterminate, with no time of its end (NaN)."""

FINAL = -1
"""The reader of the final read."""
COMMITTED_READER, ALL_READER = 900, 901
"""Readers of the partitions that are written in transactions, by isolation level."""

FOREIGN = -1
"""The producer of a record whose value is no producer's."""

NO_OFFSET = -1
NO_WATERMARK = -1
NO_POLL = -1

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """A row a record sent. `partition` counts in the history's partitions; `offset` is NO_OFFSET where the answer did
    not tell or there was none; `error` counts in the history's errors (0: none). `transaction`: its row in the
    history's transactions, or NO_TRANSACTION. The outcome of a record of a transaction is that of its Produce request
    alone; it counts once its transaction is committed."""

    producer: Ints
    sequence: Ints
    key: Ints
    partition: Ints
    sent_at_ms: Floats
    ended_at_ms: Floats
    outcome: Ints
    offset: Ints
    error: Ints
    transaction: Ints

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """A row a record read; each reader's rows in the order in which it read them. `high_watermark` is what the same
    answer said, for a reader of committed records its last stable offset (NO_WATERMARK where a client does not learn
    it). `poll`: the reader's polls are numbered from 0 upwards;
    the records of one answer have one number (NO_POLL where a client does not keep it). `transaction`: the row of the
    transaction that consumed the record, which commits the group's offset after it (NO_TRANSACTION: none did). A
    reader that begins again at a committed offset, after a rebalance or an abort, gets a number of its own."""

    reader: Ints
    partition: Ints
    offset: Ints
    producer: Ints
    sequence: Ints
    key: Ints
    read_at_ms: Floats
    high_watermark: Ints
    poll: Ints
    transaction: Ints

    def __len__(self) -> int:
        return len(self.offset)


class Reached(enum.Enum):
    """The outcome of the final read of a partition."""

    END = "end"
    """Every record from the beginning to the end was read."""
    PART = "part"
    """Time ran out while records still came: what was not read may be there."""
    NOTHING_MORE = "nothing more"
    """Not its end, and nothing more came for as long as the reader waited: it is not readable."""


@dataclass(frozen=True, slots=True)
class FinalRead:
    """The final read of one partition: the range of offsets to read, and the reason why the read ended.

    `end_offset` is exclusive. An offset is -1 if the leader did not return it.
    """

    start_offset: int
    end_offset: int
    reached: Reached
    detail: str = ""


SETTLE_MS = 5_000.0
"""How long an end may stay below an acknowledged record: the high watermark advances after the followers have it."""

PATIENCE_MS = 20_000.0
"""How long a partition may return no record before it counts as unreadable, and offsets in transactions be unstable."""


@dataclass(slots=True)
class FinalReadProgress:
    """The progress of the final read of one partition.

    `expected`: an offset below which a record was acknowledged; if the partition ends before it, SETTLE_MS are left for
    the end to reach it. `start`, `end`: -1 until the leader has returned them. `full_since_ms`: the time since which
    everything up to `end` has been read although records beyond it were acknowledged.
    """

    expected: int
    start: int = -1
    end: int = -1
    full_since_ms: float | None = None
    reached: Reached | None = None

    def look(self, position: int, progress_ms: float, now_ms: float) -> None:
        """Note what was reached. `position`: of the reader, which last came on at `progress_ms`."""
        if self.start < 0 or self.end < 0 or position < self.end:
            self.full_since_ms = None
            if now_ms - progress_ms > PATIENCE_MS:
                self.reached = Reached.NOTHING_MORE
            return
        if self.full_since_ms is None:
            self.full_since_ms = now_ms
        if self.end >= self.expected or now_ms - self.full_since_ms > SETTLE_MS:
            self.reached = Reached.END

    def verdict(self, position: int, error: str = "") -> FinalRead:
        detail = ""
        if self.reached is not Reached.END:
            detail = f"read to {position} of {self.end}"
            detail += f": {error}" if error else ""
        return FinalRead(max(self.start, 0), self.end, self.reached or Reached.PART, detail)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """`finals` by partition; empty if the run never came to its final read. `errors[0]` is "". `troubles`: why
    clients gave up before they were asked to, in words. `group`: of a consumer group, if there is one. `transactions`:
    of transactional producers, if there are some. `renewed`: idempotent producers whose client went on in another
    epoch."""

    partitions: tuple[PartitionName, ...]
    sends: Sends
    reads: Reads
    finals: tuple[FinalRead, ...] = ()
    errors: tuple[str, ...] = ("",)
    troubles: tuple[str, ...] = ()
    group: GroupHistory | None = None
    transactions: TransactionalHistory | None = None
    renewed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.finals and len(self.finals) != len(self.partitions):
            raise ValueError(f"{len(self.finals)} final reads of {len(self.partitions)} partitions")

    def partition_name(self, partition: int) -> str:
        topic, number = self.partitions[partition]
        return f"{topic}-{number}"


class SendLog:
    """The operations of one producer. One thread at a time may use it. `transactions`: those of a transactional one,
    whose numbers `sent` takes."""

    def __init__(self, producer: int, transactional_id: str | None = None) -> None:
        self.producer = producer
        self.transactions = None if transactional_id is None else ClientTransactions(producer, transactional_id)
        self.open = 0
        """Operations that have not ended."""
        self.renewed = False
        """See `History`."""
        self.key, self.partition, self.offset = array("q"), array("q"), array("q")
        self.outcome, self.error, self.transaction = array("b"), array("q"), array("q")
        self.sent_at_ms, self.ended_at_ms = array("d"), array("d")
        self.errors: dict[str, int] = {"": 0}

    def sent(self, key: int, partition: int, at_ms: float, transaction: int = NO_TRANSACTION) -> int:
        """A new operation; its sequence. `transaction`: the number that `transactions.began` returned."""
        self.key.append(key)
        self.partition.append(partition)
        self.offset.append(NO_OFFSET)
        self.outcome.append(INDETERMINATE)
        self.error.append(0)
        self.transaction.append(transaction)
        self.sent_at_ms.append(at_ms)
        self.ended_at_ms.append(math.nan)
        self.open += 1
        return len(self.key) - 1

    def ended(self, sequence: int, outcome: int, at_ms: float, *, offset: int = NO_OFFSET, error: str = "") -> None:
        """Raises ValueError for an operation that has ended before: each ends once."""
        if not math.isnan(self.ended_at_ms[sequence]):
            raise ValueError(f"producer {self.producer}, record {sequence}: ended a second time")
        self.ended_at_ms[sequence] = at_ms
        self.outcome[sequence] = outcome
        self.offset[sequence] = offset
        self.error[sequence] = self.errors.setdefault(error, len(self.errors))
        self.open -= 1


FIRST_TRANSACTIONAL = 100
"""The producers of transactions are numbered from here; a workload has at most 64 others."""


class TransactionalLogs:
    """The logs of all transactional clients of a run, a number for each life."""

    def __init__(self) -> None:
        self.logs: list[SendLog] = []

    def new(self, transactional_id: str) -> SendLog:
        log = SendLog(FIRST_TRANSACTIONAL + len(self.logs), transactional_id)
        self.logs.append(log)
        return log


class ReadLog:
    """The records that one reader read. One thread at a time may use it. `committed`: whether its isolation level is
    read_committed. `transactions`: of the client that consumes what it reads in its transactions, if one does."""

    def __init__(self, reader: int, *, committed: bool = False, transactions: ClientTransactions | None = None) -> None:
        self.reader = reader
        self.committed = committed
        self.transactions = transactions
        self.partition, self.offset, self.producer = array("q"), array("q"), array("q")
        self.sequence, self.key, self.high_watermark = array("q"), array("q"), array("q")
        self.poll, self.transaction = array("q"), array("q")
        self.read_at_ms = array("d")
        self.unreplicated: list[tuple[int, int]] = []
        """Partition and offset; see `TransactionalHistory`."""

    def read(
        self,
        partition: int,
        offset: int,
        producer: int,
        sequence: int,
        key: int,
        at_ms: float,
        high_watermark: int = NO_WATERMARK,
        *,
        poll: int = NO_POLL,
        transaction: int = NO_TRANSACTION,
    ) -> None:
        """`transaction`: the number that `transactions.began` returned; `consumed` sets it later."""
        self.partition.append(partition)
        self.offset.append(offset)
        self.producer.append(producer)
        self.sequence.append(sequence)
        self.key.append(key)
        self.read_at_ms.append(at_ms)
        self.high_watermark.append(high_watermark)
        self.poll.append(poll)
        self.transaction.append(transaction)

    def consumed(self, row: int, transaction: int) -> None:
        """A transaction consumes the record of that row (the rows are numbered from 0); the last one that does so
        counts. Raises ValueError for a reader whose records no client consumes in transactions."""
        if self.transactions is None:
            raise ValueError(f"reader {self.reader} belongs to no transactional client")
        self.transaction[row] = transaction


def history_of(
    partitions: Sequence[PartitionName],
    sends: Sequence[SendLog],
    reads: Sequence[ReadLog],
    finals: Sequence[FinalRead] = (),
    troubles: Sequence[str] = (),
    group: GroupHistory | None = None,
    committed_offsets: Sequence[int] | None = None,
) -> History:
    """The logs as one history, producers and readers in their given order. It has transactions if a producer's log
    has. `committed_offsets`: the group's offset of each partition in the end (-1: none), where it was fetched."""
    transactions = [log.transactions for log in sends if log.transactions is not None]
    bases = transaction_bases(transactions)
    errors: dict[str, int] = {"": 0}
    renumbered = []
    for log in sends:
        numbers = np.array([errors.setdefault(error, len(errors)) for error in log.errors], np.int64)
        renumbered.append(numbers[np.array(log.error, np.int64)])
    lengths = [len(log.key) for log in sends]
    return History(
        tuple(partitions),
        Sends(
            producer=np.repeat(np.array([log.producer for log in sends], np.int64), lengths),
            sequence=_joined([np.arange(length, dtype=np.int64) for length in lengths]),
            key=_ints(log.key for log in sends),
            partition=_ints(log.partition for log in sends),
            sent_at_ms=_floats(log.sent_at_ms for log in sends),
            ended_at_ms=_floats(log.ended_at_ms for log in sends),
            outcome=_ints(log.outcome for log in sends),
            offset=_ints(log.offset for log in sends),
            error=_joined(renumbered),
            transaction=_joined([_rows(log.transaction, bases.get(log.producer, 0)) for log in sends]),
        ),
        Reads(
            reader=np.repeat(np.array([log.reader for log in reads], np.int64), [len(log.offset) for log in reads]),
            partition=_ints(log.partition for log in reads),
            offset=_ints(log.offset for log in reads),
            producer=_ints(log.producer for log in reads),
            sequence=_ints(log.sequence for log in reads),
            key=_ints(log.key for log in reads),
            read_at_ms=_floats(log.read_at_ms for log in reads),
            high_watermark=_ints(log.high_watermark for log in reads),
            poll=_ints(log.poll for log in reads),
            transaction=_joined(
                [_rows(log.transaction, bases[log.transactions.producer] if log.transactions else 0) for log in reads]
            ),
        ),
        tuple(finals),
        tuple(errors),
        tuple(troubles),
        group,
        transaction_history_of(
            transactions,
            (log.reader for log in reads if log.committed),
            committed_offsets,
            ((log.reader, *one) for log in reads for one in log.unreplicated),
        )
        if transactions
        else None,
        tuple(log.producer for log in sends if log.renewed),
    )


def _rows(numbers: array[int], base: int) -> Ints:
    """A client's own numbers of transactions as rows."""
    own = np.array(numbers, np.int64)
    return np.where(own == NO_TRANSACTION, own, own + base)


def acknowledged_ends(partitions: int, logs: Sequence[SendLog]) -> list[int]:
    """For each partition the offset after the last one that was acknowledged: what a final read can look forward to."""
    ends = [0] * partitions
    for log in logs:
        for partition, offset in zip(log.partition, log.offset, strict=True):
            ends[partition] = max(ends[partition], offset + 1)
    return ends


def _joined(columns: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _ints(columns: Iterable[array[int]]) -> Ints:
    return _joined([np.array(column, np.int64) for column in columns])


def _floats(columns: Iterable[array[float]]) -> Floats:
    return np.concatenate([np.empty(0, np.float64), *(np.array(column, np.float64) for column in columns)])


def same(one: History, other: History) -> bool:
    """Equal in every column (NaN is NaN)."""
    tables = ((one.sends, other.sends), (one.reads, other.reads))
    words = [
        (each.partitions, each.finals, each.errors, each.troubles, repr(each.group), _transactions(each), each.renewed)
        for each in (one, other)
    ]
    return words[0] == words[1] and all(
        np.array_equal(getattr(left, each.name), getattr(right, each.name), equal_nan=True)
        for left, right in tables
        for each in fields(left)
    )


def _transactions(history: History) -> dict[str, object] | None:
    return None if history.transactions is None else to_lists(history.transactions)
