"""A broker that wants to go: what it leads is led elsewhere first, so that no client notices."""

from __future__ import annotations

import numpy as np

from controller.core import state_changes
from controller.core.context import NO_BROKER, NO_STATE, Bools, Replicas, Rows
from controller.core.events import ControlledShutdownRequested, ReassignmentIsrChange
from controller.core.handlers.reassignment import reassignment_isr_change
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from controller.core.shutdown_safety import held_back
from controller.core.state_changes import CONTROLLED_SHUTDOWN
from controller.protocol.control import NO_BROKER_EPOCH, ControlledShutdownResponse, RemainingPartition
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths


async def controlled_shutdown(term: Term, event: ControlledShutdownRequested) -> None:
    """Marks the broker as shutting down, elects for what it leads, stops what it follows, and answers with the
    partitions that it leads still: it may go once there are none, or ask again. Partitions of one replica are left
    alone, they go with it, and so are those of topics that are queued for deletion. What would be left under
    min.insync.replicas stays as it is and is answered too, unless the broker is forced to go."""
    context, table, broker = term.context, term.context.partitions, event.broker
    known = context.broker(broker)
    if known is None:
        event.refuse(ErrorCode.BROKER_NOT_AVAILABLE)
        return
    if event.broker_epoch != NO_BROKER_EPOCH and event.broker_epoch < known.epoch:
        event.refuse(ErrorCode.STALE_BROKER_EPOCH)
        return
    checked = term.settings.shutdown_check and not event.forced
    term.note("info", f"broker {broker} is shutting down{'' if checked else ', whatever it leaves in sync'}")
    context.mark_shutting_down(broker)
    await _look_at_unusable(term, broker)
    replicas = _replicas_to_act_on(term, broker)
    reason, held = "", replicas.rows[:0]
    if checked:
        found = await held_back(term, broker, replicas)
        reason, held = found.reason(term), found.rows
        replicas = _without(_replicas_to_act_on(term, broker), held)  # states may have been read anew
    if reason:
        term.note("warning", f"broker {broker} may not go yet: {reason}")
    leads = table.leader[replicas.rows] == broker
    batch = RequestBatch(term)
    await state_changes.bring_partitions_online(term, replicas.rows[leads], batch, CONTROLLED_SHUTDOWN)
    batch.send()
    follows = Replicas(replicas.rows[~leads], replicas.slots[~leads])
    batch = RequestBatch(term)
    batch.stop_replicas(follows)
    batch.send()
    batch = RequestBatch(term)
    await state_changes.take_replicas_offline(term, follows, batch)
    batch.send()
    event.respond(ControlledShutdownResponse(int(ErrorCode.NONE), _remaining(term, broker, held), reason))


async def _look_at_unusable(term: Term, broker: int) -> None:
    """Read the states in quarantine again: one may be repaired, and its event wait behind this one."""
    table, rows = term.context.partitions, term.context.replicas_on([broker]).rows
    without = [table.topic_and_partition(row) for row in rows[table.zk_version[rows] == NO_STATE].tolist()]
    for topic, partition in without:
        if paths.partition_state(topic, partition) in term.context.quarantine:
            await reassignment_isr_change(term, ReassignmentIsrChange(topic, partition))


def _without(replicas: Replicas, held: Rows) -> Replicas:
    chosen = ~np.isin(replicas.rows, held)
    return Replicas(replicas.rows[chosen], replicas.slots[chosen])


def _replicas_to_act_on(term: Term, broker: int) -> Replicas:
    table = term.context.partitions
    replicas = term.context.replicas_on([broker])
    chosen = _replicated(term, replicas.rows) & (table.zk_version[replicas.rows] != NO_STATE)
    chosen &= ~term.context.deleting(replicas.rows)
    return Replicas(replicas.rows[chosen], replicas.slots[chosen])


def _replicated(term: Term, rows: Rows) -> Bools:
    """Which have more than one replica."""
    replicated: Bools = np.count_nonzero(term.context.partitions.assignment[rows] != NO_BROKER, axis=1) > 1
    return replicated


def _remaining(term: Term, broker: int, held: Rows) -> tuple[RemainingPartition, ...]:
    table = term.context.partitions
    rows = term.context.not_deleting(np.flatnonzero((table.leader == broker) & (table.zk_version != NO_STATE)))
    rows = np.union1d(rows[_replicated(term, rows)], held)
    return tuple(RemainingPartition(*table.topic_and_partition(row)) for row in rows.tolist())
