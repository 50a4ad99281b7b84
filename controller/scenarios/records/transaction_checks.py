"""Invariants of transactions: checkers over what producers did and what readers of committed records got.

Pure; the history says what each transaction wrote and how it ended, as far as its producer knows. A transaction whose
commit or abort had no answer is indeterminate: it may be there or not, but whole. Values are unique.

| invariant | rule |
| --- | --- |
| `transactions-committed` | every value of a committed transaction is there in the end |
| `transactions-atomic` | of no transaction there are some values and not others; its offsets count like its values |
| `aborted-unread` | no reader of committed records got a value of an aborted transaction |
| `fenced-unwritten` | nothing is there that a producer sent after another with its id had begun |
| `transactions-once` | no value is there twice |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from controller.scenarios.invariants import Finding

Partition = tuple[str, int]


class TransactionOutcome(Enum):
    """How a transaction ended, as far as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class TransactionalWrite:
    """A value that a transaction sent to a partition. Times are milliseconds of one clock."""

    partition: Partition
    value: bytes
    sent_at_ms: float


@dataclass(frozen=True, slots=True)
class TransactionDone:
    """One transaction. `transactional_id` and `incarnation` name its producer: the incarnations of an id are numbered
    in the order in which they were initialised. `offsets`: what it committed for a group, by partition."""

    transactional_id: str
    incarnation: int
    written: Sequence[TransactionalWrite]
    outcome: TransactionOutcome
    offsets: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionHistory:
    """`initialised_ms`: when each producer, by id and incarnation, had its producer id. `reads`: the values that
    readers of committed records got while the run went on. `final`: the values in each partition in the end, in their
    order, by such a reader. `offsets`: what is committed for the group in the end. None: it could not be read."""

    transactions: Sequence[TransactionDone]
    initialised_ms: Mapping[tuple[str, int], float]
    reads: Sequence[tuple[Partition, bytes]]
    final: Mapping[Partition, Sequence[bytes]] | None
    offsets: Mapping[Partition, int] | None = None


def _there(history: TransactionHistory) -> Counter[tuple[Partition, bytes]]:
    found: Counter[tuple[Partition, bytes]] = Counter()
    for partition, values in (history.final or {}).items():
        found.update((partition, value) for value in values)
    return found


def _named(done: TransactionDone) -> str:
    first = done.written[0].value if done.written else b""
    return f"{done.transactional_id} incarnation {done.incarnation}, {done.outcome.value}, first value {first!r}"


def _finding(wrong: Sequence[str], what: str, held: str, history: TransactionHistory) -> Finding:
    if wrong:
        return Finding(False, f"{len(wrong)} {what}, the first: {wrong[0]}")
    if history.final is None:
        return Finding(None, "there was no final read")
    return Finding(True, held)


def transactions_committed(history: TransactionHistory) -> Finding:
    there = _there(history)
    committed = [one for one in history.transactions if one.outcome is TransactionOutcome.COMMITTED]
    if not committed:
        return Finding(None, "no transaction was committed")
    wrong = [
        f"{_named(one)}: {sent.value!r} is not in {sent.partition}"
        for one in committed
        for sent in one.written
        if history.final is not None and not there[sent.partition, sent.value]
    ]
    return _finding(wrong, "values of committed transactions lost", f"all {len(committed)} are there", history)


def transactions_atomic(history: TransactionHistory) -> Finding:
    there = _there(history)
    wrong = []
    for one in history.transactions if history.final is not None else ():
        present = [sent for sent in one.written if there[sent.partition, sent.value]]
        if present and len(present) < len(one.written):
            wrong.append(f"{_named(one)}: {len(present)} of {len(one.written)} values are there")
        elif history.offsets is not None and one.written:
            wrong += _torn_offsets(history, history.offsets, one, whole=bool(present))
    return _finding(wrong, "transactions in part", "every transaction is there whole, or not at all", history)


def _torn_offsets(
    history: TransactionHistory, committed: Mapping[Partition, int], one: TransactionDone, *, whole: bool
) -> list[str]:
    """Of a transaction that is there, a group's offset may not lie before its own. Of one that is not, the group's may
    not be its own, unless another transaction that is there has committed the same."""
    if whole:
        return [
            f"{_named(one)}: its values are there, and of {partition} {committed.get(partition, -1)} is committed"
            for partition, offset in one.offsets.items()
            if committed.get(partition, -1) < offset
        ]
    there = _there(history)
    explained = {
        (partition, offset)
        for other in history.transactions
        if other.written and all(there[sent.partition, sent.value] for sent in other.written)
        for partition, offset in other.offsets.items()
    }
    return [
        f"{_named(one)}: its values are not there, and its offset {offset} of {partition} is committed"
        for partition, offset in one.offsets.items()
        if committed.get(partition) == offset and (partition, offset) not in explained
    ]


def aborted_unread(history: TransactionHistory) -> Finding:
    aborted = {
        (sent.partition, sent.value): one
        for one in history.transactions
        if one.outcome is TransactionOutcome.ABORTED
        for sent in one.written
    }
    read = [*history.reads, *_there(history)]
    wrong = [f"{_named(aborted[key])}: {key[1]!r} of {key[0]}" for key in read if key in aborted]
    return _finding(wrong, "values of aborted transactions read", f"none of {len(aborted)} was read", history)


def fenced_unwritten(history: TransactionHistory) -> Finding:
    """A transaction whose producer was fenced before it sent one of its values must not be there at all: what it had
    sent before is aborted."""
    there = _there(history)
    read = {*history.reads, *there}
    wrong = []
    for one in history.transactions:
        fenced_ms = min(
            (
                at_ms
                for (name, incarnation), at_ms in history.initialised_ms.items()
                if name == one.transactional_id and incarnation > one.incarnation
            ),
            default=None,
        )
        late = [sent for sent in one.written if fenced_ms is not None and sent.sent_at_ms > fenced_ms]
        wrong += [
            f"{_named(one)}: {sent.value!r}, sent {sent.sent_at_ms:.1f} ms, fenced {fenced_ms:.1f} ms"
            for sent in late
            if (sent.partition, sent.value) in read
        ]
    return _finding(wrong, "values of fenced producers", "no fenced producer wrote anything", history)


def transactions_once(history: TransactionHistory) -> Finding:
    wrong = [f"{value!r} in {partition}: {n} times" for (partition, value), n in _there(history).items() if n > 1]
    return _finding(wrong, "values more than once", "no value is there twice", history)


TRANSACTION_CHECKS: Mapping[str, Callable[[TransactionHistory], Finding]] = {
    "transactions-committed": transactions_committed,
    "transactions-atomic": transactions_atomic,
    "aborted-unread": aborted_unread,
    "fenced-unwritten": fenced_unwritten,
    "transactions-once": transactions_once,
}
