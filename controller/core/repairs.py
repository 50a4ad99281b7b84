"""Partitions whose state znodes were repaired: the controller serves them again in the same term.

A failover does the same for all partitions at once: replicas on dead brokers leave the ISR, live ones are sent the
state, and a leader is elected where none is live.
"""

from __future__ import annotations

from controller.core import partition_moves, reassignment, replica_moves, topic_deletion
from controller.core.context import Replicas
from controller.core.partition_table import NO_BROKER, NO_STATE, Rows
from controller.core.request_batch import RequestBatch
from controller.core.term import Term
from statemachines.partition import PartitionState


async def serve_repaired(term: Term, rows: Rows) -> None:
    """`rows` without a state are passed over, and so are topics that are being deleted. Voids row numbers: a topic may
    have waited for a reassignment that ends here."""
    context, table = term.context, term.context.partitions
    rows = context.not_deleting(rows[table.zk_version[rows] != NO_STATE])
    if not len(rows):
        return
    led = context.led(rows)
    partition_moves.move(term, rows[led], PartitionState.Online)
    partition_moves.move(term, rows[~led], PartitionState.Offline)
    batch = RequestBatch(term)
    await partition_moves.bring_online(term, rows[~led], batch)
    batch.send()
    live, real = context.eligible(rows), table.assignment[rows] != NO_BROKER
    batch = RequestBatch(term)
    await replica_moves.take_offline(term, Replicas.where(rows, ~live & real), batch)
    batch.send()
    # A new epoch, because a broker ignores a state, and its znode version, with an epoch that it already has.
    await reassignment.new_epoch(term, rows[context.led(rows)])
    batch = RequestBatch(term)
    replica_moves.bring_online(term, topic_deletion.not_deleted(term, Replicas.where(rows, live)), batch)
    batch.send()
    moving = frozenset(table.moving_rows())
    await reassignment.go_on(term, [row for row in rows.tolist() if row in moving])
