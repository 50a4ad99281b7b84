"""Requested leader elections: of the preferred leader, and unclean election.

Both go through the partition state machine like any election. This module has the rules and each partition's outcome.
Source: KafkaController.processReplicaLeaderElection (2.8 to 3.9).
"""

from __future__ import annotations

import numpy as np

from controller.core import partition_moves
from controller.core.elections import Decision, ElectionRule
from controller.core.events import ElectionKind, ElectionOutcome, Outcomes, TopicPartition
from controller.core.imbalance import preferred_leaders
from controller.core.partition_table import NO_STATE, Bools, Rows
from controller.core.request_batch import RequestBatch
from controller.core.term import Term
from controller.protocol.errors import ErrorCode
from statemachines.leader_election_columns import elect_offline_columns, elect_preferred_columns, live_mask

_UNKNOWN = ElectionOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
_DELETED = ElectionOutcome(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
_NOT_NEEDED = ElectionOutcome(ErrorCode.ELECTION_NOT_NEEDED)


async def _decide_preferred(term: Term, rows: Rows) -> Decision:
    table, live = term.context.partitions, term.context.eligible(rows)
    elected = elect_preferred_columns(table.assignment[rows], table.isr[rows], live)
    return Decision(elected, live, term.context.eligible_ids)


async def _decide_unclean(term: Term, rows: Rows) -> Decision:
    """As for a leader that is gone, with an election from outside the ISR allowed whatever the configs say."""
    context, table = term.context, term.context.partitions
    live, isr = context.eligible(rows), table.isr[rows]
    isr_live = context.eligible_in_isr(rows)
    elected = elect_offline_columns(table.assignment[rows], isr, live, unclean=True, isr_live=isr_live)
    return Decision(elected, live, context.eligible_ids)


PREFERRED = ElectionRule("preferred", _decide_preferred)
UNCLEAN = ElectionRule("offline", _decide_unclean)
_ELECTIONS = {ElectionKind.PREFERRED: PREFERRED, ElectionKind.UNCLEAN: UNCLEAN}
_NOBODY = {
    ElectionKind.PREFERRED: (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the preferred leader is not live and in sync"),
    ElectionKind.UNCLEAN: (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is live"),
}


async def elect(term: Term, kind: ElectionKind, partitions: tuple[TopicPartition, ...]) -> Outcomes:
    """Elect leaders for the partitions that need one, notify brokers of them, and return each partition's outcome."""
    table = term.context.partitions
    outcomes: dict[TopicPartition, ElectionOutcome] = dict.fromkeys(partitions, _UNKNOWN)
    found = {row: one for one in outcomes if (row := table.row_of(*one)) is not None}
    rows = np.array(sorted(found), dtype=np.int64)
    deleted = term.context.queued_for_deletion(rows)
    wanted = needed(term, kind, rows) & ~deleted
    for row in rows[deleted].tolist():
        outcomes[found[row]] = _DELETED
    for row in rows[~wanted & ~deleted].tolist():
        outcomes[found[row]] = _NOT_NEEDED
    led = await elect_rows(term, kind, rows[wanted])
    for row in rows[wanted].tolist():
        outcomes[found[row]] = _outcome(term, kind, row, row in led)
    return outcomes


async def elect_rows(term: Term, kind: ElectionKind, rows: Rows) -> frozenset[int]:
    """Notify brokers of the partitions that got a leader, and return these."""
    batch = RequestBatch(term)
    led = await partition_moves.bring_online(term, rows, batch, _ELECTIONS[kind])
    batch.send()
    return frozenset(led.tolist())


def needed(term: Term, kind: ElectionKind, rows: Rows) -> Bools:
    """bool beside `rows`: whose leader is not the one that is wanted; or, for an unclean election, is not there."""
    table = term.context.partitions
    leader, known = table.leader[rows], table.zk_version[rows] != NO_STATE
    if kind is ElectionKind.PREFERRED:
        satisfied: Bools = known & (leader == preferred_leaders(table, rows))
    else:
        satisfied = known & live_mask(leader, term.context.broker_ids)
    return ~satisfied


def electable(term: Term, rows: Rows) -> Bools:
    """bool beside `rows`: whether the preferred leader could lead now."""
    table = term.context.partitions
    live = term.context.eligible(rows)
    return elect_preferred_columns(table.assignment[rows], table.isr[rows], live).elected


def _outcome(term: Term, kind: ElectionKind, row: int, led: bool) -> ElectionOutcome:
    table = term.context.partitions
    if led:
        return ElectionOutcome(ErrorCode.NONE, leader=int(table.leader[row]))
    error, why = _NOBODY[kind]
    isr, live = list(table.isr_of(row)), list(term.context.eligible_ids)
    return ElectionOutcome(error, f"{table.name_of(row)}: {why} (ISR {isr}, live brokers {live})")
