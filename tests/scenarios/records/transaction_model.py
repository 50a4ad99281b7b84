"""A correct log with transactions, in little, and random clients of it: histories in which nothing is wrong.

Two output partitions and one that transactions consume. Producers 0 and 1 share a transactional id (each may fence the
other); producer 2 consumes, transforms and produces; producer 3 writes without
transactions. Reader 0 reads committed records, reader 1 all; each life of the consuming client has a reader of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from controller.scenarios.records.history import (
    ACKNOWLEDGED,
    FAILED,
    FINAL,
    FinalRead,
    History,
    Reached,
    ReadLog,
    SendLog,
    history_of,
)
from controller.scenarios.records.transaction_history import ABORTED, COMMITTED, INDETERMINATE, ClientTransactions

PARTITIONS = (("t", 0), ("t", 1), ("in", 0))
IN = 2
CONSUMING, PLAIN = 2, 3
COMMITTED_READER, OTHER_READER = 0, 1
FIRST_OF_CONSUMING = 10


@dataclass(eq=False)
class Open:
    """A transaction: `state` is what the log knows of it, None while it is open."""

    client: int
    number: int
    state: int | None = None
    consumed_to: int | None = None
    touched: set[int] = field(default_factory=set)


@dataclass
class Entry:
    """A record of a send, or a marker (`producer` -1)."""

    producer: int = -1
    sequence: int = -1
    key: int = -1
    transaction: Open | None = None


@dataclass
class Model:
    rng: Random
    now_ms: float = 0.0
    logs: list[list[Entry]] = field(default_factory=lambda: [[] for _ in PARTITIONS])
    sends: list[SendLog] = field(
        default_factory=lambda: [SendLog(0, "a"), SendLog(1, "a"), SendLog(2, "b"), SendLog(3)]
    )
    reads: list[ReadLog] = field(default_factory=lambda: [ReadLog(COMMITTED_READER, committed=True), ReadLog(1)])
    positions: dict[tuple[int, int], int] = field(default_factory=dict)
    polls: int = 0
    open: dict[int, Open] = field(default_factory=dict)
    """By client: what it believes to have open. A fenced one is over already, and its client does not know."""
    valid: set[int] = field(default_factory=set)
    """Clients that are initialised and not fenced."""
    committed: int = 0
    """The group's offset."""
    final: ReadLog = field(default_factory=lambda: ReadLog(FINAL, committed=True))
    ends: list[int] = field(default_factory=list)

    # -- the log

    def stable(self, partition: int) -> int:
        for offset, entry in enumerate(self.logs[partition]):
            if entry.transaction is not None and entry.transaction.state is None:
                return offset
        return len(self.logs[partition])

    def end(self, transaction: Open, state: int) -> None:
        transaction.state = state
        for partition in sorted(transaction.touched):
            self.logs[partition].append(Entry(transaction=transaction))
        if state == COMMITTED and transaction.consumed_to is not None:
            self.committed = max(self.committed, transaction.consumed_to)

    def visible(self, partition: int, position: int, *, committed: bool) -> list[tuple[int, Entry]]:
        end = self.stable(partition) if committed else len(self.logs[partition])
        entries = [(offset, self.logs[partition][offset]) for offset in range(position, end)]
        return [
            (offset, entry)
            for offset, entry in entries
            if entry.producer >= 0
            and not (committed and entry.transaction is not None and entry.transaction.state == ABORTED)
        ]

    # -- the clients

    def tick(self) -> float:
        self.now_ms += 1.0
        return self.now_ms

    def transactions(self, client: int) -> ClientTransactions:
        found = self.sends[client].transactions
        assert found is not None
        return found

    def initialise(self, client: int) -> None:
        asked_ms = self.tick()
        for other in (0, 1) if client in (0, 1) else (client,):
            transaction = self.open.get(other)
            if transaction is not None and transaction.state is None:
                self.end(transaction, ABORTED)
            self.valid.discard(other)
        self.open.pop(client, None)
        self.valid.add(client)
        self.transactions(client).initialised(asked_ms, self.tick())
        if client == CONSUMING:
            self.consume_anew()

    def consume_anew(self) -> None:
        reader = FIRST_OF_CONSUMING + len(self.reads)
        self.reads.append(ReadLog(reader, committed=True, transactions=self.transactions(CONSUMING)))
        self.positions[len(self.reads) - 1, IN] = self.committed

    def send(self, client: int, partition: int, transaction: Open | None = None) -> None:
        log = self.sends[client]
        number = -1 if transaction is None else transaction.number
        sequence = log.sent(partition, partition, self.tick(), number)
        outcome = self.rng.choices((ACKNOWLEDGED, INDETERMINATE, FAILED), (8, 1, 1))[0]
        if transaction is not None:
            outcome = FAILED if transaction.state is not None else ACKNOWLEDGED  # fenced, or well
        if outcome != FAILED and (outcome == ACKNOWLEDGED or self.rng.random() < 0.5):
            offset = len(self.logs[partition])
            self.logs[partition].append(Entry(client, sequence, partition, transaction))
            if transaction is not None:
                transaction.touched.add(partition)
        if outcome == ACKNOWLEDGED:
            log.ended(sequence, outcome, self.tick(), offset=offset)
        elif outcome == FAILED:
            log.ended(sequence, outcome, self.tick(), error="REFUSED")

    def transact(self, client: int) -> None:
        """One step of a transactional client."""
        transactions = self.transactions(client)
        if not len(transactions.answered_at_ms) or (client not in self.open and client not in self.valid):
            return self.initialise(client)
        if client not in self.open:
            self.open[client] = Open(client, transactions.began(self.tick()))
            return None
        one = self.open[client]
        if self.rng.random() < 0.6:
            return self.consume(one) if client == CONSUMING else self.send(client, self.rng.randrange(2), one)
        del self.open[client]
        match self.rng.randrange(6):
            case 0:  # aborted
                self.finish(one, ABORTED, known=True)
            case 1:  # no answer comes to the commit
                transactions.committing(one.number, self.tick())
                self.finish(one, self.rng.choice((COMMITTED, ABORTED)), known=False)
            case 2:  # the client dies
                self.finish(one, ABORTED, known=False)
            case _:
                transactions.committing(one.number, self.tick())
                self.finish(one, COMMITTED, known=True)
        return None

    def finish(self, one: Open, state: int, *, known: bool) -> None:
        fenced = one.state is not None
        if not fenced:
            if one.consumed_to is not None:
                self.transactions(one.client).offset_sent(one.number, IN, one.consumed_to)
            self.end(one, state)
        if known and not fenced:
            self.transactions(one.client).ended(one.number, state, self.tick())
        if one.client == CONSUMING and (one.state == ABORTED or not known):
            self.consume_anew()

    def consume(self, one: Open) -> None:
        for _ in self.poll(len(self.reads) - 1, IN, one):
            self.send(CONSUMING, self.rng.randrange(2), one)

    def poll(self, reader: int, partition: int, one: Open | None = None) -> list[int]:
        """Some of the next records. Return their offsets."""
        log = self.reads[reader]
        position = self.positions.get((reader, partition), 0)
        found = self.visible(partition, position, committed=log.committed)[: self.rng.randrange(1, 4)]
        self.polls += 1
        at_ms = self.tick()
        for offset, entry in found:
            number = -1 if one is None else one.number
            log.read(
                partition, offset, entry.producer, entry.sequence, entry.key, at_ms, poll=self.polls, transaction=number
            )
            self.positions[reader, partition] = offset + 1
            if one is not None:
                one.consumed_to = offset + 1
        return [offset for offset, _ in found]

    def step(self) -> None:
        match self.rng.randrange(8):
            case 0 | 1:
                self.send(PLAIN, IN)
            case 2 | 3:
                self.poll(self.rng.choice((COMMITTED_READER, OTHER_READER)), self.rng.randrange(3))
            case 4 | 5:
                self.transact(self.rng.randrange(2))
            case 6:
                self.transact(CONSUMING)
            case _:
                if self.rng.random() < 0.2:
                    self.initialise(self.rng.randrange(3))

    def finished(self) -> Model:
        """Every open transaction ends by its timeout, and the final reader reads."""
        for one in self.open.values():
            if one.state is None:
                self.end(one, ABORTED)
        for partition, log in enumerate(self.logs):
            for offset, entry in self.visible(partition, 0, committed=True):
                self.final.read(partition, offset, entry.producer, entry.sequence, entry.key, self.now_ms)
            self.ends.append(len(log))
        return self

    def history(self) -> History:
        finals = [FinalRead(0, end, Reached.END) for end in self.ends]
        return history_of(
            PARTITIONS,
            self.sends,
            [*self.reads, self.final],
            finals,
            committed_offsets=(-1, -1, self.committed or -1),
        )


def correct(seed: int, steps: int = 80) -> Model:
    model = Model(Random(seed))
    for _ in range(steps):
        model.step()
    return model.finished()


# -- mutations: each plants one anomaly, or returns False where the history has no place for it

Row = tuple[ReadLog, int]


def rows(model: Model, *, committed: bool = True) -> list[Row]:
    return [(log, row) for log in model.reads if log.committed or not committed for row in range(len(log.offset))]


def final_rows(model: Model, *, transactional: bool | None = None) -> list[int]:
    return [
        row
        for row in range(len(model.final.offset))
        if transactional is None or (transaction_of(model, model.final, row) is not None) == transactional
    ]


def transaction_of(model: Model, log: ReadLog, row: int) -> Open | None:
    return model.logs[log.partition[row]][log.offset[row]].transaction


def drop(log: ReadLog, row: int) -> None:
    for column in (
        log.partition,
        log.offset,
        log.producer,
        log.sequence,
        log.key,
        log.high_watermark,
        log.poll,
        log.transaction,
        log.read_at_ms,
    ):
        column.pop(row)


def lose(model: Model) -> bool:
    """An acknowledged record without a transaction, or of a committed one, is gone in the end."""
    found = [
        row
        for row in final_rows(model)
        if (one := transaction_of(model, model.final, row)) is None or _known(model, one)
        if one is not None or _acknowledged(model, row)
    ]
    if found:
        drop(model.final, model.rng.choice(found))
    return bool(found)


def _known(model: Model, one: Open) -> bool:
    return model.transactions(one.client).outcome[one.number] == COMMITTED


def _acknowledged(model: Model, row: int) -> bool:
    final = model.final
    return model.sends[final.producer[row]].outcome[final.sequence[row]] == ACKNOWLEDGED


def replace_read(model: Model) -> bool:
    """A consumer sees another record at an offset than all others do."""
    found = [(log, row) for log, row in rows(model) if log.sequence[row] > 0]
    if found:
        log, row = model.rng.choice(found)
        log.sequence[row] -= 1
    return bool(found)


def write_twice(model: Model) -> bool:
    """A record is there again, further on."""
    found = [row for row in final_rows(model) if model.final.producer[row] != PLAIN]
    if found:
        final, row = model.final, model.rng.choice(found)
        end = model.ends[final.partition[row]]
        final.read(final.partition[row], end, final.producer[row], final.sequence[row], final.key[row], 0.0)
        model.ends[final.partition[row]] += 1
    return bool(found)


def poll_again(model: Model) -> bool:
    """A consumer gets a record a second time."""
    found = rows(model)
    if found:
        log, row = model.rng.choice(found)
        log.read(log.partition[row], log.offset[row], log.producer[row], log.sequence[row], log.key[row], 1e6)
    return bool(found)


def poll_past(model: Model) -> bool:
    """A consumer does not get a record between two that it gets."""
    found = [
        (log, row)
        for log, row in rows(model)
        if any(log.partition[other] == log.partition[row] for other in range(row))
        and any(log.partition[other] == log.partition[row] for other in range(row + 1, len(log.offset)))
    ]
    if found:
        drop(*model.rng.choice(found))
    return bool(found)


def swap_records(model: Model) -> bool:
    """Two acknowledged records of one producer lie in the wrong order."""
    final = model.final
    pairs = [
        (one, other)
        for one in final_rows(model)
        for other in range(one + 1, len(final.offset))
        if final.partition[one] == final.partition[other] and final.producer[one] == final.producer[other]
        if _acknowledged(model, one) and _acknowledged(model, other)
    ]
    if pairs:
        one, other = model.rng.choice(pairs)
        final.sequence[one], final.sequence[other] = final.sequence[other], final.sequence[one]
    return bool(pairs)


def show_aborted(model: Model) -> bool:
    """A reader of committed records sees one of an aborted transaction."""
    found = [
        (partition, offset, entry)
        for partition, log in enumerate(model.logs)
        for offset, entry in enumerate(log)
        if entry.producer >= 0 and entry.transaction is not None and _certainly_aborted(model, entry.transaction)
    ]
    if found:
        partition, offset, entry = model.rng.choice(found)
        model.reads[COMMITTED_READER].read(partition, offset, entry.producer, entry.sequence, entry.key, 1e6)
    return bool(found)


def _certainly_aborted(model: Model, one: Open) -> bool:
    log = model.transactions(one.client)
    return log.outcome[one.number] == ABORTED or math.isnan(log.committing_at_ms[one.number])


def read_early(model: Model) -> bool:
    """A reader of committed records sees one of a transaction that is still open."""
    found = [(log, row) for log, row in rows(model) if transaction_of(model, log, row) is not None]
    if found:
        log, row = model.rng.choice(found)
        one = transaction_of(model, log, row)
        assert one is not None
        log.read_at_ms[row] = model.transactions(one.client).committing_at_ms[one.number] - 0.5
    return bool(found)


def consume_each_other(model: Model) -> bool:
    """A consuming transaction wrote what another one consumed, of which it consumes a record itself."""
    log = model.transactions(CONSUMING)
    final = model.final
    pairs = [
        (one, other)
        for one in final_rows(model, transactional=True)
        for other in final_rows(model, transactional=True)
        if final.producer[one] == final.producer[other] == CONSUMING
        and (mine := transaction_of(model, final, one)) is not (theirs := transaction_of(model, final, other))
        and mine is not None
        and theirs is not None
    ]
    if pairs:
        one, other = model.rng.choice(pairs)
        for number, (consumed, by) in enumerate(((one, other), (other, one))):
            reader = ReadLog(90 + number, committed=True, transactions=log)
            consumer = transaction_of(model, final, by)
            assert consumer is not None
            reader.read(
                final.partition[consumed],
                final.offset[consumed],
                final.producer[consumed],
                final.sequence[consumed],
                final.key[consumed],
                1e6,
                transaction=consumer.number,
            )
            model.reads.append(reader)
    return bool(pairs)


def tear(model: Model) -> bool:
    """One record of a transaction is missing in the end, while others are there."""
    by_transaction: dict[int, list[int]] = {}
    for row in final_rows(model, transactional=True):
        by_transaction.setdefault(id(transaction_of(model, model.final, row)), []).append(row)
    found = [found for found in by_transaction.values() if len(found) > 1]
    if found:
        drop(model.final, model.rng.choice(model.rng.choice(found)))
    return bool(found)


def write_fenced(model: Model) -> bool:
    """A record that was sent after its producer was fenced is there."""
    found = []
    for row in final_rows(model, transactional=True):
        one = transaction_of(model, model.final, row)
        assert one is not None
        log = model.transactions(one.client)
        own = log.answered_at_ms[log.incarnation[one.number]]
        rivals = [model.transactions(other) for other in ((0, 1) if one.client < 2 else (one.client,))]
        later = [
            answered
            for rival in rivals
            for asked, answered in zip(rival.asked_at_ms, rival.answered_at_ms, strict=True)
            if asked > own
        ]
        if later:
            found.append((row, min(later)))
    if found:
        row, fenced_ms = model.rng.choice(found)
        model.sends[model.final.producer[row]].sent_at_ms[model.final.sequence[row]] = fenced_ms + 0.5
    return bool(found)


def move_offset(model: Model) -> bool:
    """The group's offset is not that of the last committed transaction."""
    if not model.committed or not len(model.transactions(CONSUMING).offset):
        return False
    model.committed -= 1
    return True


def process_again(model: Model) -> bool:
    """What one transaction consumed and committed another one consumes as well."""
    found = [(log, row) for log, row in rows(model) if log.transaction[row] >= 0 and _consumer_known(model, log, row)]
    others = {log.transaction[row] for log, row in found}
    if len(others) < 2:
        return False
    log, row = model.rng.choice(found)
    again = ReadLog(91, committed=True, transactions=model.transactions(CONSUMING))
    again.read(
        log.partition[row],
        log.offset[row],
        log.producer[row],
        log.sequence[row],
        log.key[row],
        1e6,
        transaction=model.rng.choice(sorted(others - {log.transaction[row]})),
    )
    model.reads.append(again)
    return True


def _consumer_known(model: Model, log: ReadLog, row: int) -> bool:
    return model.transactions(CONSUMING).outcome[log.transaction[row]] == COMMITTED


def process_never(model: Model) -> bool:
    """The group goes past a record that no transaction consumed."""
    found = [(log, row) for log, row in rows(model) if log.transaction[row] >= 0 and _consumer_known(model, log, row)]
    if found:
        log, row = model.rng.choice(found)
        partition, offset = log.partition[row], log.offset[row]
        for other in model.reads:
            for at in reversed(range(len(other.offset))):
                if (other.partition[at], other.offset[at]) == (partition, offset) and other.transaction[at] >= 0:
                    drop(other, at)
    return bool(found)


MUTATIONS: dict[Callable[[Model], bool], str] = {
    lose: "lost-write",
    replace_read: "inconsistent-offsets",
    write_twice: "duplicate",
    poll_again: "nonmonotonic-poll",
    poll_past: "poll-skip",
    swap_records: "nonmonotonic-send",
    show_aborted: "G1a",
    read_early: "G1b",
    consume_each_other: "G1c",
    tear: "transactions-atomic",
    write_fenced: "fenced-unwritten",
    move_offset: "offsets-atomic",
    process_again: "exactly-once",
    process_never: "exactly-once",
}


# -- near misses: like an anomaly, and permitted


def show_aborted_to_others(model: Model) -> bool:
    """A reader of all records gets an aborted one. (Not G1a.)"""
    found = [
        (partition, offset, entry)
        for partition, log in enumerate(model.logs)
        for offset, entry in enumerate(log)
        if entry.producer >= 0 and entry.transaction is not None and entry.transaction.state == ABORTED
    ]
    if found:
        partition, offset, entry = model.rng.choice(found)
        model.reads.append(ReadLog(92))
        model.reads[-1].read(partition, offset, entry.producer, entry.sequence, entry.key, 1e6)
    return bool(found)


def read_when_asked(model: Model) -> bool:
    """A reader of committed records gets one at the time at which its commit is asked for. (Not G1b.)"""
    if not read_early(model):
        return False
    for log, row in rows(model):
        one = transaction_of(model, log, row)
        if one is not None:
            asked_ms = model.transactions(one.client).committing_at_ms[one.number]
            log.read_at_ms[row] = max(log.read_at_ms[row], asked_ms)
    return True


def stop_early(model: Model) -> bool:
    """A consumer does not get the last records. (No poll-skip.)"""
    log = model.reads[COMMITTED_READER]
    for _ in range(min(3, len(log.offset))):
        drop(log, len(log.offset) - 1)
    return bool(len(log.offset))


def another_reads_again(model: Model) -> bool:
    """Another reader gets what one has read. (No nonmonotonic-poll.)"""
    source = model.reads[COMMITTED_READER]
    copy = ReadLog(93, committed=True)
    for row in range(len(source.offset)):
        copy.read(
            source.partition[row], source.offset[row], source.producer[row], source.sequence[row], source.key[row], 1e6
        )
    model.reads.append(copy)
    return bool(len(source.offset))


def lose_indeterminate(model: Model) -> bool:
    """A record whose send had no answer, and that no consumer read, is not there. (No lost-write.)"""
    read = {(log.partition[row], log.offset[row]) for log, row in rows(model, committed=False)}
    final = model.final
    found = [
        row
        for row in final_rows(model, transactional=False)
        if not _acknowledged(model, row) and (final.partition[row], final.offset[row]) not in read
    ]
    if found:
        row = model.rng.choice(found)
        drop(final, row)
    return bool(found)


def send_at_the_fence(model: Model) -> bool:
    """A record is sent in the moment in which its producer is fenced. (Not fenced-unwritten.)"""
    if not write_fenced(model):
        return False
    for log in model.sends:
        for sequence, at_ms in enumerate(log.sent_at_ms):
            log.sent_at_ms[sequence] = math.floor(at_ms)
    return True


def process_again_after_abort(model: Model) -> bool:
    """An aborted transaction has consumed what a committed one consumes as well. (Exactly once.)"""
    log = model.transactions(CONSUMING)
    aborted = [number for number in range(len(log)) if log.outcome[number] == ABORTED]
    found = [(reads, row) for reads, row in rows(model) if reads.transaction[row] >= 0]
    if not aborted or not found:
        return False
    source, row = model.rng.choice(found)
    again = ReadLog(94, committed=True, transactions=log)
    again.read(
        source.partition[row],
        source.offset[row],
        source.producer[row],
        source.sequence[row],
        source.key[row],
        1e6,
        transaction=model.rng.choice(aborted),
    )
    model.reads.append(again)
    return True


NEAR_MISSES: tuple[Callable[[Model], bool], ...] = (
    show_aborted_to_others,
    read_when_asked,
    stop_early,
    another_reads_again,
    lose_indeterminate,
    send_at_the_fence,
    process_again_after_abort,
)


def main() -> None:
    """Check many seeds: `python -m tests.scenarios.records.transaction_model --seeds 5000`."""
    import argparse
    from collections import Counter

    from controller.scenarios.records.checks import NO_LOSS, check_records
    from tests.scenarios.records.histories import evidence

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    planted, missed, alarms = Counter[str](), Counter[str](), 0
    changes: dict[Callable[[Model], bool], str] = {lambda _: True: "", **dict.fromkeys(NEAR_MISSES, ""), **MUTATIONS}
    for seed in range(arguments.seeds):
        for change, expected in changes.items():
            model = correct(seed, arguments.steps)
            if not change(model):
                continue
            found = {n for n, one in check_records(evidence(model.history()), None, NO_LOSS) if one.held is False}
            if not expected:
                alarms += bool(found)
            else:
                planted[change.__name__] += 1
                missed[change.__name__] += not found & {expected, f"int-{expected}"}
    print(f"{arguments.seeds} correct histories, with and without near misses: {alarms} false alarms")
    for name, count in planted.items():
        print(f"{name}: {count - missed[name]} of {count} reported")


if __name__ == "__main__":
    main()
