"""Invariants of the records of a run: checkers over a history.

Each receives the evidence and finds that its rule held, that it was violated (with the first record and the count of
all), or that the evidence is insufficient: the final read did not reach the end of a partition, or nothing was
acknowledged. In the last case the rule did not hold either, and the verdict is "unknown".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.scenarios.invariants import Finding
from controller.scenarios.records import delivery_audit
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.group_checks import GROUP_CHECKS, unseen
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, FINAL, FOREIGN, History, Ints, Reached
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
    )


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


def _of_sends(evidence: RecordEvidence, wrong: Ints, what: str) -> Finding:
    return Finding(False, f"{len(wrong)} {what}, the first {sent_in_words(evidence.history, int(wrong[0]))}")


def _of_reads(evidence: RecordEvidence, wrong: Ints, what: str) -> Finding:
    return Finding(False, f"{len(wrong)} {what}, the first {read_in_words(evidence.history, int(wrong[0]))}")


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


def records_kept(evidence: RecordEvidence) -> Finding:
    """(3) Every acknowledged record is in its partition in the end."""
    lost = delivery_audit.lost(evidence.audit)
    if len(lost):
        return _of_sends(evidence, lost, "acknowledged records lost")
    acknowledged = int(np.count_nonzero(evidence.history.sends.outcome == ACKNOWLEDGED))
    if not acknowledged:
        return Finding(None, "no record was acknowledged")
    return _settled(evidence, f"all {acknowledged} acknowledged records are there")


def records_in_order(evidence: RecordEvidence) -> Finding:
    """(3) In a partition the acknowledged records of one producer lie in the order in which it sent them."""
    history = evidence.history
    overtaken = delivery_audit.overtaken(evidence.audit)
    sends = evidence.audit.sends_named(overtaken)
    wrong = overtaken[history.sends.outcome[sends] == ACKNOWLEDGED]
    if len(wrong) and evidence.workload.keeps_order:
        return _of_reads(evidence, wrong, "records after one that was sent later")
    promised = "" if evidence.workload.keeps_order else " (not promised by these producers)"
    return _settled(evidence, f"{len(wrong)} acknowledged records out of order{promised}")


def records_once(evidence: RecordEvidence) -> Finding:
    """Under idempotence a record is in its partition once. Unless its producer gave a record up: it then goes on in a
    new epoch, and may send again in that what the old one had written."""
    repeated = delivery_audit.repeated(evidence.audit)
    if len(repeated) and evidence.workload.idempotent:
        sends, reads = evidence.history.sends, evidence.history.reads
        gave_up = np.unique(sends.producer[sends.outcome != ACKNOWLEDGED])
        wrong = repeated[~np.isin(reads.producer[repeated], gave_up)]
        if len(wrong):
            return _of_reads(evidence, wrong, "records that are there already")
        return Finding(None, f"{len(repeated)} records more than once, of producers that had given others up")
    promised = "" if evidence.workload.idempotent else " (the producers are not idempotent)"
    return _settled(evidence, f"{len(repeated)} records more than once{promised}")


def records_as_sent(evidence: RecordEvidence) -> Finding:
    """Every record in the partitions was sent there, under that key, and was not reported as failed."""
    wrong = delivery_audit.unexplained(evidence.audit)
    if len(wrong):
        return _of_reads(evidence, wrong, "records that no send explains, or whose send had failed")
    return _settled(evidence, "every record there was sent there")


def records_where_acknowledged(evidence: RecordEvidence) -> Finding:
    """A record lies at the offset that its acknowledgement named."""
    wrong = delivery_audit.misplaced(evidence.audit)
    if len(wrong):
        return _of_sends(evidence, wrong, "records elsewhere than acknowledged")
    return _settled(evidence, "every record is at the offset that was acknowledged")


def reads_kept(evidence: RecordEvidence) -> Finding:
    """(3) No consumer read a record beyond the high watermark: each record was below the high watermark of the same
    response, and the final read returns it too."""
    beyond = delivery_audit.beyond_high_watermark(evidence.audit)
    if len(beyond):
        return _of_reads(evidence, beyond, "records read beyond the high watermark")
    gone = delivery_audit.vanished(evidence.audit)
    if len(gone):
        return _of_reads(evidence, gone, "records read that are gone")
    reads = int(np.count_nonzero(evidence.history.reads.reader != FINAL))
    if not reads and evidence.workload.consumers:
        return Finding(None, "the consumers read nothing")
    return _settled(evidence, f"all {reads} records that consumers read are there")


def reads_without_gaps(evidence: RecordEvidence) -> Finding:
    """No reader is led past an offset."""
    wrong = delivery_audit.after_a_gap(evidence.audit)
    if len(wrong):
        return _of_reads(evidence, wrong, "reads after offsets passed over")
    return _settled(evidence, "no reader passed over an offset")


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


def records_seen(evidence: RecordEvidence) -> Finding:
    """Every record below the group's committed offsets was read by one of its members (Jepsen's "unseen")."""
    group = evidence.history.group
    assert group is not None
    wrong = unseen(evidence.audit, group)
    if len(wrong):
        return _of_reads(evidence, wrong, "records that the group committed and no member read")
    return _settled(evidence, "the group's members read every record that they committed")


def _of_group(check: Callable[[History], Finding]) -> RecordChecker:
    return lambda evidence: check(evidence.history)


GROUP_RECORD_CHECKS: dict[str, RecordChecker] = {
    **{name: _of_group(check) for name, check in GROUP_CHECKS.items()},
    "records-seen": records_seen,
}
"""Checkers of a history that has a group."""

RECORD_CHECKS: dict[str, RecordChecker] = {
    "records-kept": records_kept,
    "records-in-order": records_in_order,
    "records-once": records_once,
    "records-as-sent": records_as_sent,
    "records-where-acknowledged": records_where_acknowledged,
    "reads-kept": reads_kept,
    "reads-without-gaps": reads_without_gaps,
    "partitions-readable": partitions_readable,
    "clients-served": clients_served,
}

NO_LOSS, SOME_LOSS, ANY_LOSS = "none", "some", "any"
"""What a scenario expects of acknowledged records: that none is lost, that some are, or it does not say."""


def loss_as_expected(evidence: RecordEvidence, expected: str) -> Finding:
    """`records_kept`, but for a scenario that expects loss, or bears it."""
    found = records_kept(evidence)
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
    """The findings of those checkers (all, if None), by name. Those of a group only where there is one."""
    found = [
        (name, loss_as_expected(evidence, loss) if check is records_kept else check(evidence))
        for name, check in RECORD_CHECKS.items()
        if names is None or name in names
    ]
    if evidence.history.group is not None:
        found += [
            (name, check(evidence)) for name, check in GROUP_RECORD_CHECKS.items() if names is None or name in names
        ]
    return found
