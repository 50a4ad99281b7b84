"""Leaders that are moved on purpose: by a client's request, by /admin/preferred_replica_election, by the clock.

    request   elected now; each partition answered with its leader, or with why it has not the one that was wanted
    znode     elected now, whatever comes of it the znode goes; a new controller takes it up from the beginning
    clock     every leader.imbalance.check.interval.seconds: what drifted too far is given back, if it can be

Nothing is moved by the clock while partitions are being reassigned, nor ever of topics that are being deleted.

Leader imbalance, and the partitions that an automatic preferred election moves.

A partition's preferred leader is its assignment's first replica. For each broker, the imbalance is the share of the
partitions that prefer it and that it does not lead. Above a given percentage their leadership is moved back to it.
Pure: columns in, columns out. Source: KafkaController.checkAndTriggerAutoLeaderRebalance (2.8 to 3.9).

Requested leader elections: of the preferred leader, and unclean election.

Both go through the partition state machine like any election. This module has the rules and each partition's outcome.
Source: KafkaController.processReplicaLeaderElection (2.8 to 3.9).
"""

from __future__ import annotations

import numpy as np

from controller.core import state_changes
from controller.core.context import NO_BROKER, NO_STATE, Bools, Int32s, PartitionTable, Rows
from controller.core.events import (
    AutoPreferredElection,
    ElectionKind,
    ElectionOutcome,
    ElectLeadersRequested,
    Outcomes,
    PreferredElectionAsked,
    TopicPartition,
)
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import Decision, ElectionRule
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_preferred_election
from controller.zookeeper.operations import BadVersion, DamagedZnode, Delete, MultiFailed, NoNode, UnknownOutcome
from statemachines.leader_election_columns import elect_offline_columns, elect_preferred_columns, live_mask

DENSE_IDS = 1 << 20
"""Up to this broker id brokers are counted in a table, beyond it after sorting."""


def preferred_leaders(table: PartitionTable, rows: Rows) -> Int32s:
    """int32[n]: the first of each assignment; -1 of an empty one."""
    if not table.width:
        return np.full(len(rows), NO_BROKER, dtype=np.int32)
    preferred: Int32s = table.assignment[rows, 0]
    return preferred


def to_rebalance(table: PartitionTable, rows: Rows, percentage: int) -> Rows:
    """Return those of `rows` that are off their preferred leader, if that leader's imbalance is above `percentage`.

    The comparison is in integers: an imbalance of exactly `percentage` percent is not above it.
    """
    off = table.are_off_preferred(rows)
    if not off.any():
        return rows[:0]
    places: Rows = preferred_leaders(table, rows).astype(np.int64) + 1  # of an empty assignment: 0
    if places.max() > DENSE_IDS:
        _, places = np.unique(places, return_inverse=True)
    wanted = np.bincount(places)
    missed = np.bincount(places[off], minlength=len(wanted))
    over = missed * 100 > wanted * percentage
    chosen: Rows = rows[off][over[places[off]]]
    return chosen


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
    led = await state_changes.bring_partitions_online(term, rows, batch, _ELECTIONS[kind])
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


FIRST_LOOK_MS = 5_000.0
"""How long after its failover a controller first looks at the balance (Kafka's)."""
LOOKS = 10
"""How often the znode is read again after a deletion that is not known to have happened, or found it rewritten."""


async def elect_leaders(term: Term, event: ElectLeadersRequested) -> None:
    if term.context.paused is not None and event.kind is ElectionKind.PREFERRED:
        event.refuse(ErrorCode.POLICY_VIOLATION, f"The controller is paused: {term.context.paused}")
        return
    event.respond(await elect(term, event.kind, event.partitions))


async def preferred_election_asked(term: Term, event: PreferredElectionAsked) -> None:
    await take_up(term)


async def take_up(term: Term) -> int:
    """Hold the elections that the znode requests, delete it, and return how many partitions it named.

    While the controller is paused the znode stays as it is.
    """
    asked = 0
    if term.context.paused is not None:
        return asked
    for _ in range(LOOKS):
        row = (await term.zookeeper.read([paths.PREFERRED_ELECTION])).rows[0]
        if row is None:
            return asked
        try:
            partitions = decode_preferred_election(row.path, row.data).partitions
        except DamagedZnode as damaged:
            term.note("error", f"no preferred election: {damaged}")
            return asked
        asked += len(partitions)
        outcomes = await elect(term, ElectionKind.PREFERRED, tuple(partitions))
        for (topic, partition), outcome in outcomes.items():
            if outcome.error not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                term.note("warning", f"{topic}-{partition}: {outcome.error.name}, {outcome.message}")
        try:
            await term.zookeeper.commit(term.leadership, [Delete(row.path, row.stat.version)])
        except UnknownOutcome:
            continue
        except MultiFailed as failed:
            if not isinstance(failed.error, BadVersion | NoNode):
                raise
        else:
            return asked
    term.note("error", f"{paths.PREFERRED_ELECTION} changed under {LOOKS} looks and is left as it is")
    return asked


async def automatic_preferred_election(term: Term, event: AutoPreferredElection) -> None:
    if event.controller_epoch != term.epoch:
        return
    rows = due(term)
    if len(rows):
        term.note("info", f"{len(rows)} partitions go back to their preferred leaders")
        await elect_rows(term, ElectionKind.PREFERRED, rows)
    look_later(term, term.settings.leader_imbalance_check_interval_seconds * 1_000.0)


def due(term: Term) -> np.typing.NDArray[np.int64]:
    """The rows that an automatic election moves now."""
    context, table = term.context, term.context.partitions
    if table.adding or table.removing or context.paused is not None:
        return np.empty(0, dtype=np.int64)
    rows = context.not_deleting(table.all_rows())
    rows = to_rebalance(table, rows, term.settings.leader_imbalance_per_broker_percentage)
    return rows[electable(term, rows)]


def look_later(term: Term, delay_ms: float) -> None:
    """Once a term: each look asks for the next."""
    if term.settings.auto_leader_rebalance:
        term.timers.set("leader imbalance", term.clock, delay_ms, lambda: term.put(AutoPreferredElection(term.epoch)))
