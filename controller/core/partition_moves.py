"""Partition state transitions, many at once, with their writes to ZooKeeper and their requests to brokers.

The compiled table decides which transitions are allowed, `elections` elects the leaders, `state_writes` writes the
states, and the request batch notifies the brokers. A row whose transition is not allowed, or for which no leader can
be elected, stays as it is and is named in the log.
"""

from __future__ import annotations

import numpy as np

from controller.core.context import Replicas
from controller.core.elections import OFFLINE, ElectionRule
from controller.core.events import ReassignmentIsrChange
from controller.core.partition_table import NO_STATE, Bools, Rows
from controller.core.request_batch import RequestBatch
from controller.core.state_writes import NewStates, create_states, names_of, read_states, set_states
from controller.core.term import Term
from controller.trace import PartitionMoved
from statemachines.leader_election_columns import initial_leader_columns
from statemachines.partition import PartitionState

_NAMES = {int(state): state.name for state in PartitionState}
ELECTION_ROUNDS = 5
"""How often a partition's election is decided anew because its state had moved. Only leaders of an older inter-broker
protocol write states beside the controller, and no faster than once in some seconds each."""


def move(term: Term, rows: Rows, target: PartitionState) -> None:
    """Moves partitions where that asks nothing of ZooKeeper or the brokers."""
    context, table = term.context, term.context.partitions
    sources = table.partition_state[rows] if term.trace.enabled else None
    refused = context.move_partitions(rows, target)
    for error in context.partition_refusals(refused, target):
        term.note("error", str(error))
    if sources is None:
        return
    moved = ~np.isin(rows, refused)
    epoch, emit, now = term.epoch, term.trace.emit, target.name
    keys = table.topics_and_partitions(rows[moved])
    for (topic, partition), source in zip(keys, sources[moved].tolist(), strict=True):
        emit(PartitionMoved(epoch, topic, partition, -1, _NAMES[source], now))


async def bring_online(term: Term, rows: Rows, batch: RequestBatch, election: ElectionRule = OFFLINE) -> Rows:
    """Write the first state of new partitions, and elect a leader by `election` for the others.

    Partitions that have a leader now are Online, and their replicas are notified. Returns the rows that got a leader.
    """
    states = term.context.partitions.partition_state[rows]
    begun = await _initialise(term, rows[states == PartitionState.New], batch)
    led = await _elect(term, rows[states != PartitionState.New], batch, election)
    return np.concatenate((begun, led))


async def elect_offline_and_new(term: Term, batch: RequestBatch) -> Rows:
    """All that wait for a leader: a broker came, or unclean election was allowed."""
    return await bring_online(term, term.context.rows_to_elect(PartitionState.Offline, PartitionState.New), batch)


async def _initialise(term: Term, rows: Rows, batch: RequestBatch) -> Rows:
    """Creates the state of new partitions that have a live replica; the others stay New until one comes."""
    context, table = term.context, term.context.partitions
    live = context.eligible(rows)
    first = initial_leader_columns(table.assignment[rows], live)
    if not first.elected.all():
        waiting = rows[~first.elected]
        term.note("warning", f"no live replica, so no leader yet: {names_of(term, waiting)}")
    rows, live = rows[first.elected], live[first.elected]
    if not len(rows):
        return rows
    states = NewStates(
        rows=rows,
        leader=first.leader[first.elected],
        leader_epoch=np.zeros(len(rows), dtype=np.int32),
        isr=first.isr[first.elected],
        unclean=np.zeros(len(rows), dtype=np.bool_),
        why="initial",
        live=context.eligible_ids,
    )
    found = await create_states(term, states)
    led = (table.zk_version[rows] != NO_STATE) & _led_by_eligible(term, rows)
    batch.leader_and_isr(Replicas.where(rows[led], live[led]), is_new=True)
    move(term, rows[led], PartitionState.Online)
    orphaned = found[(table.zk_version[found] != NO_STATE) & ~_led_by_eligible(term, found)]
    move(term, orphaned, PartitionState.Offline)
    return np.concatenate((rows[led], await _elect(term, orphaned, batch, OFFLINE)))


def _led_by_eligible(term: Term, rows: Rows) -> Bools:
    return term.context.led(rows)


async def _elect(term: Term, rows: Rows, batch: RequestBatch, election: ElectionRule) -> Rows:
    """Decides, writes, and decides again for what had moved meanwhile, from what is there now."""
    table = term.context.partitions
    led: list[Rows] = []
    unled = rows[table.zk_version[rows] == NO_STATE]
    left = rows[table.zk_version[rows] != NO_STATE]
    for _ in range(ELECTION_ROUNDS):
        if not len(left):
            break
        decision = await election.decide(term, left)
        elected = decision.elected
        unelected = left[~elected.elected]
        changed = await _changed_by_leaders(term, unelected)
        unled = np.concatenate((unled, unelected[~np.isin(unelected, changed)]))
        chosen, receivers = left[elected.elected], decision.receivers[elected.elected]
        if not len(chosen):
            left = changed
            continue
        states = NewStates(
            rows=chosen,
            leader=elected.leader[elected.elected],
            leader_epoch=table.leader_epoch[chosen] + 1,
            isr=elected.isr[elected.elected],
            unclean=elected.unclean[elected.elected],
            why=election.why,
            live=decision.live,
        )
        left = await set_states(term, states)
        done = ~np.isin(chosen, left)
        batch.leader_and_isr(Replicas.where(chosen[done], receivers[done]))
        move(term, chosen[done], PartitionState.Online)
        led.append(chosen[done])
        known = table.zk_version[left] != NO_STATE  # what moved may be a state that is gone, or can't be used
        unled, left = np.concatenate((unled, left[~known])), np.concatenate((left[known], changed))
        _look_at_targets(term, chosen[done & states.unclean])
    unled = np.concatenate((unled, left))
    if len(unled):
        term.note("warning", f"no leader elected ({election.why}): {names_of(term, unled)}")
    return np.concatenate(led) if led else rows[:0]


async def _changed_by_leaders(term: Term, rows: Rows) -> Rows:
    """Read the states of partitions for which no leader can be elected, and return those that have changed since.

    Below inter-broker protocol 2.7 leaders write ISRs themselves. A leader that died before it notified the controller
    may have added the replica that can be elected. The states of all other partitions are read, and so compared, when
    their new states are written.
    """
    if not len(rows) or term.settings.versions.alter_isr is not None:
        return rows[:0]
    versions = term.context.partitions.zk_version
    known = versions[rows].copy()
    await read_states(term, rows)
    changed: Rows = rows[(versions[rows] != known) & (versions[rows] != NO_STATE)]
    return changed


def _look_at_targets(term: Term, rows: Rows) -> None:
    """Check the reassignments of partitions that had an unclean election.

    An unclean election makes a replica in-sync that was not, possibly the last one that a reassignment waits for. In
    any other case the leader reports the new ISR member.
    """
    moving = frozenset(term.context.partitions.moving_rows()) if len(rows) else frozenset()
    for row in rows.tolist():
        if row in moving:
            term.put(ReassignmentIsrChange(*term.context.partitions.topic_and_partition(row)))
