"""The invariants of transactions find what is planted in a history, and nothing in a sound one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from controller.scenarios.records.transaction_checks import (
    TRANSACTION_CHECKS,
    TransactionalWrite,
    TransactionDone,
    TransactionHistory,
    TransactionOutcome,
)

A, B, SOURCE = ("out", 0), ("out", 1), ("in", 0)


def transaction(
    number: int,
    outcome: TransactionOutcome,
    *,
    incarnation: int = 0,
    offset: int | None = None,
    sent_at_ms: float = 0.0,
) -> TransactionDone:
    written = tuple(TransactionalWrite(partition, b"%d" % number, sent_at_ms) for partition in (A, B))
    return TransactionDone("x", incarnation, written, outcome, {} if offset is None else {SOURCE: offset})


SOUND = TransactionHistory(
    (
        transaction(0, TransactionOutcome.COMMITTED, offset=3, sent_at_ms=10),
        transaction(1, TransactionOutcome.ABORTED, offset=6, sent_at_ms=20),
        transaction(2, TransactionOutcome.INDETERMINATE, offset=6, sent_at_ms=30),
        transaction(3, TransactionOutcome.INDETERMINATE, offset=9, sent_at_ms=40),
        transaction(4, TransactionOutcome.INDETERMINATE, sent_at_ms=60),
    ),
    {("x", 0): 0.0, ("x", 1): 50.0},
    ((A, b"0"), (B, b"2")),
    {A: (b"0", b"2"), B: (b"0", b"2")},
    {SOURCE: 6},
)


def with_final(*values: bytes, others: tuple[bytes, ...] = (b"0", b"2")) -> Callable[[], TransactionHistory]:
    return lambda: replace(SOUND, final={A: values, B: others})


PLANTED: Mapping[str, tuple[Callable[[], TransactionHistory], str]] = {
    "a committed value is lost": (with_final(b"2"), "transactions-committed"),
    "an aborted value is there": (
        with_final(b"0", b"1", b"2", others=(b"0", b"1", b"2")),
        "aborted-unread",
    ),
    "an aborted value was read": (lambda: replace(SOUND, reads=((A, b"1"),)), "aborted-unread"),
    "half of an indeterminate transaction is there": (with_final(b"0", b"2", b"3"), "transactions-atomic"),
    "the values are there and the offsets are not": (
        lambda: replace(SOUND, offsets={SOURCE: 3}),
        "transactions-atomic",
    ),
    "no offset at all": (lambda: replace(SOUND, offsets={}), "transactions-atomic"),
    "the offsets are there and the values are not": (
        lambda: replace(SOUND, offsets={SOURCE: 9}),
        "transactions-atomic",
    ),
    "a fenced producer has written": (
        with_final(b"0", b"2", b"4", others=(b"0", b"2", b"4")),
        "fenced-unwritten",
    ),
    "a fenced producer's value was read": (lambda: replace(SOUND, reads=((B, b"4"),)), "fenced-unwritten"),
    "a value is there twice": (with_final(b"0", b"2", b"2"), "transactions-once"),
}


def violated(history: TransactionHistory) -> set[str]:
    return {name for name, check in TRANSACTION_CHECKS.items() if check(history).held is False}


def test_a_sound_history_holds() -> None:
    assert {name: check(SOUND).held for name, check in TRANSACTION_CHECKS.items()} == dict.fromkeys(
        TRANSACTION_CHECKS, True
    )


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what: str) -> None:
    make, expected = PLANTED[what]
    assert expected in violated(make())


def test_without_a_final_read_nothing_is_known_to_hold() -> None:
    history = replace(SOUND, final=None)
    assert {check(history).held for check in TRANSACTION_CHECKS.values()} == {None}
    assert violated(replace(history, reads=((A, b"1"),))) == {"aborted-unread"}


def test_without_a_committed_transaction_there_is_nothing_to_find() -> None:
    history = replace(SOUND, transactions=SOUND.transactions[1:2], final={A: (), B: ()}, reads=(), offsets={})
    assert TRANSACTION_CHECKS["transactions-committed"](history).held is None
    assert violated(history) == set()
