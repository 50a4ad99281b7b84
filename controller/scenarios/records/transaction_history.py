"""The history of transactions: what their producers did, as they saw it. A part of the history of a run's records.

One format for simulated clients and real ones. The records of a transaction are rows of the history's sends and reads
that name it (`Sends.transaction`, `Reads.transaction`); here are the transactions themselves, the lives of their
producers, and the offsets that they commit for the run's consumer group. Times are milliseconds on the scenario's
clock; NaN where the operation had no answer, or was never asked for.

A `ClientTransactions` belongs to one transactional client, beside its `SendLog` of the same number. Two clients may
share a transactional id: one of them is then to be fenced.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

NO_TRANSACTION = -1
"""The transaction of a record that was sent, or read, outside of any."""

INDETERMINATE, COMMITTED, ABORTED = 0, 1, 2
"""How a transaction ended, as far as its producer knows. COMMITTED and ABORTED: EndTxn was acknowledged. INDETERMINATE:
there was no answer, or an error that leaves it open, or the transaction was never ended. One whose commit was asked for
is then in the log as a whole, or not visible at all; any other is aborted for certain (by its producer, by the next
incarnation or by its timeout), whatever its outcome says."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Incarnations:
    """A row an InitProducerId that was answered with a producer id. `transactional_id` counts in the history's
    `transactional_ids`; `producer` is the client's number. `asked_at_ms`: when its first request was sent.
    `answered_at_ms`: when the producer id was there. One incarnation fences another of the same transactional id that
    was answered before it was asked for."""

    transactional_id: Ints
    producer: Ints
    asked_at_ms: Floats
    answered_at_ms: Floats

    def __len__(self) -> int:
        return len(self.producer)


@dataclass(frozen=True, slots=True, eq=False)
class TransactionRows:
    """A row a transaction. `incarnation` is its producer's row. `committing_at_ms`: when its commit was asked for (NaN:
    never): nothing of it may be visible to a reader of committed records before. `ended_at_ms`: when the answer was
    there, of a commit or an abort. `outcome`: one of INDETERMINATE, COMMITTED, ABORTED."""

    incarnation: Ints
    began_at_ms: Floats
    committing_at_ms: Floats
    ended_at_ms: Floats
    outcome: Ints

    def __len__(self) -> int:
        return len(self.outcome)


@dataclass(frozen=True, slots=True, eq=False)
class TransactionOffsets:
    """A row an offset that a transaction commits for the group (TxnOffsetCommit was acknowledged). `partition` counts
    in the history's partitions. `offset` is exclusive, as Kafka's: the next one to consume."""

    transaction: Ints
    partition: Ints
    offset: Ints

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class TransactionalHistory:
    """`committed_readers`: the readers (numbers of `Reads.reader`, FINAL among them) with isolation level
    read_committed; all others read uncommitted records too. `committed_offsets`: the group's offset of each partition
    in the end (-1: none), or None if it was not fetched. `unreplicated`: reader, partition and offset of each committed
    record that was read while the marker of its transaction was at or above the high watermark of the same response.
    Simulated clients see markers, real ones do not."""

    transactional_ids: tuple[str, ...]
    incarnations: Incarnations
    transactions: TransactionRows
    offsets: TransactionOffsets
    committed_readers: frozenset[int] = frozenset()
    committed_offsets: tuple[int, ...] | None = None
    unreplicated: tuple[tuple[int, int, int], ...] = ()


class ClientTransactions:
    """The transactions of one client. One thread at a time may use it. `producer`: the number of its `SendLog`."""

    def __init__(self, producer: int, transactional_id: str) -> None:
        self.producer = producer
        self.transactional_id = transactional_id
        self.asked_at_ms, self.answered_at_ms = array("d"), array("d")
        self.incarnation, self.outcome = array("q"), array("b")
        self.began_at_ms, self.committing_at_ms, self.ended_at_ms = array("d"), array("d"), array("d")
        self.offset_transaction, self.offset_partition, self.offset = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.outcome)

    def initialised(self, asked_at_ms: float, answered_at_ms: float) -> None:
        """InitProducerId was answered with a producer id and its epoch."""
        self.asked_at_ms.append(asked_at_ms)
        self.answered_at_ms.append(answered_at_ms)

    def began(self, at_ms: float) -> int:
        """A new transaction of the last incarnation; its number, for `SendLog.sent` and `ReadLog.read`. Raises
        ValueError before the first incarnation."""
        if not len(self.answered_at_ms):
            raise ValueError(f"producer {self.producer}: a transaction began before init_transactions")
        self.incarnation.append(len(self.answered_at_ms) - 1)
        self.outcome.append(INDETERMINATE)
        self.began_at_ms.append(at_ms)
        self.committing_at_ms.append(math.nan)
        self.ended_at_ms.append(math.nan)
        return len(self.outcome) - 1

    def offset_sent(self, transaction: int, partition: int, offset: int) -> None:
        """TxnOffsetCommit was acknowledged: the transaction commits `offset`, the next one to consume."""
        self.offset_transaction.append(transaction)
        self.offset_partition.append(partition)
        self.offset.append(offset)

    def committing(self, transaction: int, at_ms: float) -> None:
        """Its commit is asked for. An abort is not noted before it has its answer."""
        if math.isnan(self.committing_at_ms[transaction]):
            self.committing_at_ms[transaction] = at_ms

    def ended(self, transaction: int, outcome: int, at_ms: float) -> None:
        """Raises ValueError for a transaction that has ended before."""
        if not math.isnan(self.ended_at_ms[transaction]):
            raise ValueError(f"producer {self.producer}, transaction {transaction}: ended a second time")
        self.ended_at_ms[transaction] = at_ms
        self.outcome[transaction] = outcome


def transaction_bases(logs: Sequence[ClientTransactions]) -> dict[int, int]:
    """By producer, the row of its first transaction."""
    bases, base = {}, 0
    for log in logs:
        bases[log.producer] = base
        base += len(log)
    return bases


def transaction_history_of(
    logs: Sequence[ClientTransactions],
    committed_readers: Iterable[int] = (),
    committed_offsets: Sequence[int] | None = None,
    unreplicated: Iterable[tuple[int, int, int]] = (),
) -> TransactionalHistory:
    """The logs as one history, in their given order."""
    names = tuple(dict.fromkeys(log.transactional_id for log in logs))
    lives = [len(log.answered_at_ms) for log in logs]
    first_life = np.concatenate([[0], np.cumsum(lives)]).astype(np.int64)
    bases = transaction_bases(logs)
    return TransactionalHistory(
        names,
        Incarnations(
            np.repeat(np.array([names.index(log.transactional_id) for log in logs], np.int64), lives),
            np.repeat(np.array([log.producer for log in logs], np.int64), lives),
            _floats(log.asked_at_ms for log in logs),
            _floats(log.answered_at_ms for log in logs),
        ),
        TransactionRows(
            _ints(np.array(log.incarnation, np.int64) + first for log, first in zip(logs, first_life, strict=False)),
            _floats(log.began_at_ms for log in logs),
            _floats(log.committing_at_ms for log in logs),
            _floats(log.ended_at_ms for log in logs),
            _ints(log.outcome for log in logs),
        ),
        TransactionOffsets(
            _ints(np.array(log.offset_transaction, np.int64) + bases[log.producer] for log in logs),
            _ints(log.offset_partition for log in logs),
            _ints(log.offset for log in logs),
        ),
        frozenset(committed_readers),
        None if committed_offsets is None else tuple(committed_offsets),
        tuple(unreplicated),
    )


def _ints(columns: Iterable[array[int] | Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *(np.array(column, np.int64) for column in columns)])


def _floats(columns: Iterable[array[float]]) -> Floats:
    return np.concatenate([np.empty(0, np.float64), *(np.array(column, np.float64) for column in columns)])


def to_lists(history: TransactionalHistory) -> dict[str, object]:
    """The history as values that JSON knows; NaN as None."""
    tables = {name: getattr(history, name) for name in _TABLES}
    return {
        "transactional_ids": list(history.transactional_ids),
        "committed_readers": sorted(history.committed_readers),
        "committed_offsets": None if history.committed_offsets is None else list(history.committed_offsets),
        "unreplicated": [list(row) for row in history.unreplicated],
        **{
            name: {
                field.name: [None if one != one else one for one in getattr(table, field.name).tolist()]
                for field in fields(table)
            }
            for name, table in tables.items()
        },
    }


_TABLES = {"incarnations": Incarnations, "transactions": TransactionRows, "offsets": TransactionOffsets}


def from_lists(found: dict[str, object]) -> TransactionalHistory:
    """The inverse of `to_lists`. Raises KeyError for a value of another format."""
    tables = {}
    for name, kind in _TABLES.items():
        columns = found[name]
        assert isinstance(columns, dict)
        tables[name] = kind(
            *(
                np.array(
                    [math.nan if one is None else one for one in columns[field.name]],
                    np.float64 if field.name.endswith("_ms") else np.int64,
                )
                for field in fields(kind)
            )
        )
    ids, readers, offsets = found["transactional_ids"], found["committed_readers"], found["committed_offsets"]
    unreplicated = found.get("unreplicated", [])
    assert isinstance(unreplicated, list)
    assert isinstance(ids, list)
    assert isinstance(readers, list)
    assert offsets is None or isinstance(offsets, list)
    return TransactionalHistory(
        tuple(ids),
        tables["incarnations"],
        tables["transactions"],
        tables["offsets"],
        frozenset(readers),
        None if offsets is None else tuple(offsets),
        tuple((reader, partition, offset) for reader, partition, offset in unreplicated),
    )
