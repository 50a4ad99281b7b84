"""Invariants of the records of a run: checkers over a history.

Each receives the evidence and finds that its rule held, that it was violated (with the first records and the count of
all), or that the evidence is insufficient: the final read did not reach the end of a partition, or nothing was
acknowledged. In the last case the rule did not hold either, and the verdict is "unknown".

A rule that forbids an anomaly that Jepsen's Kafka workload or Adya's isolation levels name has that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.scenarios.invariants import Finding
from controller.scenarios.records import anomalies, delivery_audit, transaction_checks
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.group_checks import GROUP_CHECKS, unseen
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, FINAL, FOREIGN, History, Ints, Reached
from controller.scenarios.records.transaction_history import ABORTED, COMMITTED, NO_TRANSACTION
from controller.scenarios.records.workload import PartitionName, RecordWorkload


@dataclass(frozen=True, slots=True)
class RecordEvidence:
    """The input of the record checks. `led`: partitions with a live leader at the end of the run; None if unknown."""

    workload: RecordWorkload
    audit: DeliveryAudit
    led: frozenset[PartitionName] | None

    @property
    def history(self) -> History:
        return self.audit.history


RecordChecker = Callable[[RecordEvidence], Finding]

_OUTCOMES = {ACKNOWLEDGED: "acknowledged", FAILED: "failed"}


def sent_in_words(history: History, send: int) -> str:
    """A send as a person would name it."""
    sends = history.sends
    outcome = _OUTCOMES.get(int(sends.outcome[send]), "indeterminate")
    offset = f" at offset {sends.offset[send]}" if sends.offset[send] >= 0 else ""
    ended = f" {sends.ended_at_ms[send]:.1f} ms" if not np.isnan(sends.ended_at_ms[send]) else ""
    return (
        f"{history.partition_name(int(sends.partition[send]))}: producer {sends.producer[send]}, key {sends.key[send]},"
        f" record {sends.sequence[send]}, sent {sends.sent_at_ms[send]:.1f} ms, {outcome}{ended}{offset}"
        f"{_within(history, int(sends.transaction[send]))}"
    )


_ENDS = {COMMITTED: "committed", ABORTED: "aborted"}


def transaction_in_words(history: History, transaction: int) -> str:
    """A transaction as a person would name it: its row, id, producer and outcome."""
    transactions = history.transactions
    assert transactions is not None
    rows, lives = transactions.transactions, transactions.incarnations
    life = int(rows.incarnation[transaction])
    asked_ms = rows.committing_at_ms[transaction]
    commit = "its commit never asked for" if np.isnan(asked_ms) else f"its commit asked for {asked_ms:.1f} ms"
    return (
        f"transaction {transaction} of {transactions.transactional_ids[int(lives.transactional_id[life])]}"
        f" (producer {lives.producer[life]}, begun {rows.began_at_ms[transaction]:.1f} ms, {commit},"
        f" {_ENDS.get(int(rows.outcome[transaction]), 'indeterminate')})"
    )


def _within(history: History, transaction: int) -> str:
    return "" if transaction == NO_TRANSACTION else f", in {transaction_in_words(history, transaction)}"


def read_in_words(history: History, read: int) -> str:
    reads = history.reads
    reader = "the final read" if reads.reader[read] == FINAL else f"consumer {reads.reader[read]}"
    what = "a foreign record"
    if reads.producer[read] != FOREIGN:
        what = f"producer {reads.producer[read]}, key {reads.key[read]}, record {reads.sequence[read]}"
    return (
        f"{history.partition_name(int(reads.partition[read]))}, offset {reads.offset[read]}: {what},"
        f" read by {reader} at {reads.read_at_ms[read]:.1f} ms"
    )


_EXAMPLES = 3
"""Rows that a finding names."""


def _violated(count: int, what: str, examples: Sequence[str]) -> Finding:
    return Finding(False, f"{count} {what}, the first {'; then '.join(examples[:_EXAMPLES])}")


def _of_sends(evidence: RecordEvidence, wrong: Ints, what: str) -> Finding:
    return _violated(len(wrong), what, [sent_in_words(evidence.history, send) for send in wrong[:_EXAMPLES].tolist()])


def _of_reads(evidence: RecordEvidence, wrong: Ints, what: str) -> Finding:
    return _violated(len(wrong), what, [read_in_words(evidence.history, read) for read in wrong[:_EXAMPLES].tolist()])


def _unread(evidence: RecordEvidence) -> str | None:
    """Why the final read does not show all; None if it does."""
    history = evidence.history
    if not history.finals:
        return "there was no final read"
    if not len(evidence.audit.rows):
        return "there was no record in the end"
    short = np.flatnonzero(~evidence.audit.complete)
    if not len(short):
        return None
    first = int(short[0])
    return (
        f"{len(short)} of {len(history.partitions)} partitions were not read to their end, the first"
        f" {history.partition_name(first)}{_because(history.finals[first].detail)}"
    )


def _because(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _settled(evidence: RecordEvidence, held: str) -> Finding:
    """Return the finding of a rule without violations: held, or unknown if the final read was incomplete."""
    unread = _unread(evidence)
    return Finding(True, held) if unread is None else Finding(None, unread)


def lost_write(evidence: RecordEvidence) -> Finding:
    """(3) Every acknowledged record, in a transaction every one whose commit was acknowledged, is in its partition in
    the end."""
    lost = delivery_audit.lost(evidence.audit)
    if len(lost):
        return _of_sends(evidence, lost, "acknowledged records lost")
    acknowledged = int(np.count_nonzero(evidence.audit.must_be_there))
    if not acknowledged:
        return Finding(None, "no record was acknowledged")
    return _settled(evidence, f"all {acknowledged} acknowledged records are there")


def nonmonotonic_send(evidence: RecordEvidence) -> Finding:
    """(3) In a partition the acknowledged records of one producer lie in the order in which it sent them, within a
    transaction and from one to the next; so do the offsets that the acknowledgements named."""
    history = evidence.history
    overtaken = delivery_audit.overtaken(evidence.audit)
    sends = evidence.audit.sends_named(overtaken)
    wrong = overtaken[history.sends.outcome[sends] == ACKNOWLEDGED]
    if evidence.workload.keeps_order:
        if len(wrong):
            return _of_reads(evidence, wrong, "records after one that was sent later")
        backwards = anomalies.sent_backwards(evidence.audit)
        if len(backwards):
            return _of_sends(evidence, backwards, "records acknowledged at or before one that was sent earlier")
    promised = "" if evidence.workload.keeps_order else " (not promised by these producers)"
    return _settled(evidence, f"{len(wrong)} acknowledged records out of order{promised}")


def duplicate(evidence: RecordEvidence) -> Finding:
    """Under idempotence a record is in its partition once. Unless its producer goes on in a new epoch, as it does when
    it gives a record up: it may send again in that what the old one had written, and no broker can know it."""
    repeated = delivery_audit.repeated(evidence.audit)
    if len(repeated) and evidence.workload.idempotent:
        sends, reads = evidence.history.sends, evidence.history.reads
        gave_up = sends.producer[(sends.outcome != ACKNOWLEDGED) & (sends.transaction == NO_TRANSACTION)]
        anew = np.union1d(gave_up, np.array(evidence.history.renewed, np.int64))
        wrong = repeated[~np.isin(reads.producer[repeated], anew)]
        if len(wrong):
            return _of_reads(evidence, wrong, "records that are there already")
        return Finding(None, f"{len(repeated)} records more than once, of producers that went on in a new epoch")
    promised = "" if evidence.workload.idempotent else " (the producers are not idempotent)"
    return _settled(evidence, f"{len(repeated)} records more than once{promised}")


def records_as_sent(evidence: RecordEvidence) -> Finding:
    """Every record in the partitions was sent there, under that key."""
    wrong = delivery_audit.unexplained(evidence.audit)
    if len(wrong):
        return _of_reads(evidence, wrong, "records that no send explains")
    return _settled(evidence, "every record there was sent there")


def g1a(evidence: RecordEvidence) -> Finding:
    """No record was read whose send had failed, by readers of committed records none of an aborted transaction."""
    wrong = anomalies.aborted_reads(evidence.audit)
    if len(wrong):
        return _of_writers(evidence, wrong, "reads of failed or aborted records")
    return _settled(evidence, "no failed or aborted record was read")


def _of_writers(evidence: RecordEvidence, wrong: Ints, what: str) -> Finding:
    """As `_of_reads`, with the send of each read."""
    examples = wrong[:_EXAMPLES]
    history = evidence.history
    words = [
        f"{read_in_words(history, read)}, of {sent_in_words(history, send)}"
        for read, send in zip(examples.tolist(), evidence.audit.sends_named(examples).tolist(), strict=True)
    ]
    return _violated(len(wrong), what, words)


def inconsistent_offsets(evidence: RecordEvidence) -> Finding:
    """All readers see one record at an offset, and a record lies at the offset that its acknowledgement named. What
    not all have acknowledged may be written again elsewhere."""
    acknowledged = evidence.workload.keeps_records
    wrong = anomalies.inconsistent_offsets(evidence.audit, acknowledged=acknowledged)
    if len(wrong):
        return _of_reads(evidence, wrong, "offsets with more than one record")
    elsewhere = delivery_audit.misplaced(evidence.audit)
    if len(elsewhere) and acknowledged:
        return _of_sends(evidence, elsewhere, "records elsewhere than acknowledged")
    return _settled(evidence, "every offset has one record")


def reads_kept(evidence: RecordEvidence) -> Finding:
    """(3) No consumer read a record beyond the high watermark (of committed records: the last stable offset): each one
    was below that of the same response, and the final read returns one at its offset too."""
    beyond = delivery_audit.beyond_high_watermark(evidence.audit)
    if len(beyond):
        return _of_reads(evidence, beyond, "records read beyond the high watermark or last stable offset")
    gone = delivery_audit.vanished(evidence.audit)
    if len(gone):
        return _of_reads(evidence, gone, "records read that are gone")
    reads = int(np.count_nonzero(evidence.history.reads.reader != FINAL))
    if not reads and evidence.workload.consumers:
        return Finding(None, "the consumers read nothing")
    return _settled(evidence, f"all {reads} records that consumers read are there")


def _of_polls(rule: Callable[[DeliveryAudit], Ints], what: str, held: str, *, within: bool) -> RecordChecker:
    """A rule over pairs of successive reads: those of one poll or transaction (`within`), or all others."""

    def check(evidence: RecordEvidence) -> Finding:
        reads = evidence.history.reads
        wrong = rule(evidence.audit)
        if len(wrong):
            before = delivery_audit.before_in_reader(evidence.audit, wrong)
            one = (before >= 0) & (
                ((reads.poll[wrong] >= 0) & (reads.poll[wrong] == reads.poll[before]))
                | ((reads.transaction[wrong] >= 0) & (reads.transaction[wrong] == reads.transaction[before]))
            )
            wrong, before = wrong[one == within], before[one == within]
        if len(wrong):
            words = [
                read_in_words(evidence.history, read)
                + (f", after its offset {reads.offset[last]}" if last >= 0 else ", its first")
                for read, last in zip(wrong[:_EXAMPLES].tolist(), before[:_EXAMPLES].tolist(), strict=True)
            ]
            return _violated(len(wrong), what, words)
        return _settled(evidence, held)

    return check


_SKIPS = (delivery_audit.after_a_gap, "reads after offsets passed over", "no reader passed over an offset")
_BACKWARDS = (delivery_audit.backwards, "reads at or before an offset read before", "no reader went backwards")
_WITHIN = " within a poll or transaction"
poll_skip = _of_polls(*_SKIPS, within=False)
int_poll_skip = _of_polls(_SKIPS[0], _SKIPS[1] + _WITHIN, _SKIPS[2] + _WITHIN, within=True)
nonmonotonic_poll = _of_polls(*_BACKWARDS, within=False)
int_nonmonotonic_poll = _of_polls(_BACKWARDS[0], _BACKWARDS[1] + _WITHIN, _BACKWARDS[2] + _WITHIN, within=True)


def partitions_readable(evidence: RecordEvidence) -> Finding:
    """(8) When the faults are over every partition that is led can be read from its beginning to its end."""
    history, led = evidence.history, evidence.led
    for partition, final in enumerate(history.finals):
        if final.reached is Reached.NOTHING_MORE and led is not None and history.partitions[partition] in led:
            name = history.partition_name(partition)
            return Finding(False, f"{name} is led and could not be read to its end{_because(final.detail)}")
    unread = _unread(evidence) if history.finals else "there was no final read"
    return Finding(None, unread) if unread else Finding(True, "every partition was read to its end")


def clients_served(evidence: RecordEvidence) -> Finding:
    """No client had to give up: a producer whose sequence the cluster does not take, for one."""
    troubles = evidence.history.troubles
    if troubles:
        return Finding(False, f"{len(troubles)} clients gave up, the first: {troubles[0]}")
    return Finding(True, "no client gave up")


def unseen_by_group(evidence: RecordEvidence) -> Finding:
    """Every record below the group's committed offsets was read by one of its members."""
    group = evidence.history.group
    assert group is not None
    wrong = unseen(evidence.audit, group)
    if len(wrong):
        return _of_reads(evidence, wrong, "records that the group committed and no member read")
    return _settled(evidence, "the group's members read every record that they committed")


def g0(evidence: RecordEvidence) -> Finding:
    """Whether writes of transactions interleave: Kafka permits it, so this is counted only."""
    cycle = anomalies.write_cycle(evidence.audit)
    if not cycle:
        return _settled(evidence, "no cycle of writes")
    return _settled(evidence, f"{len(cycle)} transactions interleave their writes, which Kafka permits")


def g1b(evidence: RecordEvidence) -> Finding:
    """No reader of committed records read of a transaction that was still being written."""
    wrong = anomalies.intermediate_reads(evidence.audit)
    if len(wrong):
        return _of_writers(evidence, wrong, "reads of transactions before their commit was asked for")
    return _settled(evidence, "no transaction was read before it ended")


def g1c(evidence: RecordEvidence) -> Finding:
    """No transactions consumed each other's records, which only one of them could have seen committed. (Cycles with
    edges between writes are permitted, as G0 is.)"""
    cycle = anomalies.read_cycle(evidence.audit)
    if cycle:
        examples = [transaction_in_words(evidence.history, each) for each in cycle]
        return _violated(len(cycle), "transactions consumed each other's records in a cycle", examples)
    return _settled(evidence, "no transactions consumed each other's records")


def transactions_atomic(evidence: RecordEvidence) -> Finding:
    """Of each transaction all records are there in the end, over all partitions, or none is."""
    wrong = transaction_checks.torn(evidence.audit)
    if len(wrong):
        return _of_sends(evidence, wrong, "records missing of transactions of which others are there")
    if not evidence.audit.final_is_committed:
        return Finding(None, "the final reader does not read committed records alone")
    return _settled(evidence, "every transaction is there as a whole, or not at all")


def fenced_unwritten(evidence: RecordEvidence) -> Finding:
    """A producer writes nothing after another one with its transactional id had its producer id."""
    wrong = transaction_checks.fenced(evidence.audit)
    if len(wrong):
        return _of_writers(evidence, wrong, "records that their producers sent after they were fenced")
    return _settled(evidence, "no fenced producer wrote anything")


def markers_replicated(evidence: RecordEvidence) -> Finding:
    """A reader of committed records got none before the marker of its transaction was below the high watermark: until
    then a next leader may not have it, and the last stable offset would go back."""
    transactions = evidence.history.transactions
    assert transactions is not None
    wrong = [
        f"{evidence.history.partition_name(partition)}, offset {offset}, by consumer {reader}"
        for reader, partition, offset in transactions.unreplicated
    ]
    if wrong:
        return _violated(len(wrong), "committed records read before their marker was replicated", wrong)
    return _settled(evidence, "no record was read before its marker was replicated")


def timeouts_abort(evidence: RecordEvidence, slack_ms: float) -> Finding:
    """No transaction was committed that was open for longer than its time and `slack_ms`."""
    if evidence.history.transactions is None or evidence.workload.transactions is None:
        return Finding(None, "there were no transactions")
    limit_ms = evidence.workload.transactions.timeout_ms + slack_ms
    late = transaction_checks.overdue(evidence.audit, limit_ms)
    if len(late):
        words = [transaction_in_words(evidence.history, each) for each in late[:_EXAMPLES].tolist()]
        return _violated(len(late), f"transactions committed that were open for longer than {limit_ms:g} ms", words)
    return Finding(True, f"no transaction was committed that was open for longer than {limit_ms:g} ms")


def offsets_atomic(evidence: RecordEvidence) -> Finding:
    """The group's offsets in the end are those of the last transactions whose records are there."""
    transactions = evidence.history.transactions
    assert transactions is not None
    wrong = [
        f"{evidence.history.partition_name(partition)}: {found} is committed, {last} by the last transaction there"
        for partition, found, last in transaction_checks.torn_offsets(evidence.audit)
    ]
    if wrong:
        return _violated(len(wrong), "partitions whose committed offset no transaction explains", wrong)
    if len(transactions.offsets) and transactions.committed_offsets is None:
        return Finding(None, "the group's offsets were not fetched in the end")
    return _settled(evidence, "every committed offset is that of a transaction that is there")


def exactly_once(evidence: RecordEvidence) -> Finding:
    """Each record of a partition that transactions consume, up to their committed offsets, was consumed by one
    committed transaction."""
    twice = transaction_checks.consumed_twice(evidence.audit)
    if len(twice):
        history = evidence.history
        words = [
            read_in_words(history, read) + _within(history, int(history.reads.transaction[read]))
            for read in twice[:_EXAMPLES].tolist()
        ]
        return _violated(len(twice), "records consumed again by another committed transaction", words)
    never = transaction_checks.never_consumed(evidence.audit)
    if len(never):
        return _of_reads(evidence, never, "records below the committed offset that no transaction consumed")
    return _settled(evidence, "every consumed record was consumed once")


def _of_group(check: Callable[[History], Finding]) -> RecordChecker:
    return lambda evidence: check(evidence.history)


GROUP_RECORD_CHECKS: dict[str, RecordChecker] = {
    **{name: _of_group(check) for name, check in GROUP_CHECKS.items()},
    "unseen": unseen_by_group,
}
"""Checkers of a history that has a group."""

TRANSACTION_RECORD_CHECKS: dict[str, RecordChecker] = {
    "G0": g0,
    "G1b": g1b,
    "G1c": g1c,
    "transactions-atomic": transactions_atomic,
    "fenced-unwritten": fenced_unwritten,
    "markers-replicated": markers_replicated,
    "offsets-atomic": offsets_atomic,
    "exactly-once": exactly_once,
}
"""Checkers of a history that has transactions."""

RECORD_CHECKS: dict[str, RecordChecker] = {
    "lost-write": lost_write,
    "inconsistent-offsets": inconsistent_offsets,
    "duplicate": duplicate,
    "nonmonotonic-send": nonmonotonic_send,
    "nonmonotonic-poll": nonmonotonic_poll,
    "int-nonmonotonic-poll": int_nonmonotonic_poll,
    "poll-skip": poll_skip,
    "int-poll-skip": int_poll_skip,
    "G1a": g1a,
    "records-as-sent": records_as_sent,
    "reads-kept": reads_kept,
    "partitions-readable": partitions_readable,
    "clients-served": clients_served,
}

NO_LOSS, SOME_LOSS, ANY_LOSS = "none", "some", "any"
"""What a scenario expects of acknowledged records: that none is lost, that some are, or it does not say."""


def loss_as_expected(evidence: RecordEvidence, expected: str) -> Finding:
    """`lost_write`, but for a scenario that expects loss, or bears it."""
    found = lost_write(evidence)
    if expected == NO_LOSS or found.held is None:
        return found
    if expected == ANY_LOSS:
        return Finding(True, found.detail)
    return Finding(not found.held, f"{found.detail}; loss was expected")


def all_served(evidence: RecordEvidence, at_most: int) -> Finding:
    """No more than that many records ended otherwise than acknowledged."""
    sends = evidence.history.sends
    others = np.flatnonzero(sends.outcome != ACKNOWLEDGED)
    if len(others) > at_most:
        error = evidence.history.errors[int(sends.error[others[0]])]
        return _of_sends(evidence, others, f"records not acknowledged (at most {at_most} expected; {error})")
    if len(others) == len(sends):
        return Finding(None, "no record was acknowledged")
    return Finding(True, f"{len(others)} of {len(sends)} records were not acknowledged")


def check_records(evidence: RecordEvidence, names: Sequence[str] | None, loss: str) -> list[tuple[str, Finding]]:
    """The findings of those checkers (all, if None), by name. Those of a group, or of transactions, only where
    there are some."""
    found = [
        (name, loss_as_expected(evidence, loss) if check is lost_write else check(evidence))
        for name, check in RECORD_CHECKS.items()
        if names is None or name in names
    ]
    if evidence.history.group is not None:
        found += [
            (name, check(evidence)) for name, check in GROUP_RECORD_CHECKS.items() if names is None or name in names
        ]
    if evidence.history.transactions is not None:
        found += [
            (name, check(evidence))
            for name, check in TRANSACTION_RECORD_CHECKS.items()
            if names is None or name in names
        ]
    return found
