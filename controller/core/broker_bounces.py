"""Brokers that bounced between two terms: they registered again after a state was written that has them in its ISR.

A controller that sees a bounce handles it as a failure and then a start (KAFKA-7235). A controller whose term begins
after the bounce finds a live broker and would leave its leaderships and ISR memberships as they were. But a broker that
lost power may have lost the end of its log. If it continued to lead in the same epoch, its new records and those that
its followers have of that epoch would differ. Registrations and states are ordered by ZooKeeper's transactions, so the
bounce can be detected: the broker's epoch (its registration's czxid) is above the state's mzxid. Kafka does not check
this; its solution for elections came with KIP-966, for ISRs with KIP-903.

A detected bounce has the same result as one that a controller saw: the bounced replica leaves the ISR if another member
stayed in it, and the leader leads in a new epoch. If no member stayed (for example because the whole cluster was down,
or the others died), the ISR is kept: most bounced brokers have lost nothing but a session.

Restart of replicas after their broker's start or bounce.

The replicas are sent their partitions' states. Then the controller tries to elect a leader for all partitions that wait
for one, since a restarted replica may be electable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from controller.core import state_changes, topic_deletion
from controller.core.context import NO_BROKER, Bools, Int32s, Replicas, Rows
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from statemachines.leader_election_columns import is_member
from statemachines.partition import PartitionState


async def restart_replicas(term: Term, replicas: Replicas) -> None:
    """Bring the replicas online, except those whose brokers were asked to delete them, and elect missing leaders."""
    batch = RequestBatch(term)
    state_changes.bring_replicas_online(term, topic_deletion.not_deleted(term, replicas), batch)
    batch.send()
    batch = RequestBatch(term)
    await state_changes.elect_offline_and_new(term, batch)
    batch.send()


Zxids = npt.NDArray[np.int64]


def registered_since(brokers: Int32s, mzxids: Zxids, epochs: Mapping[int, int]) -> Bools:
    """Return which of `brokers` registered after the write that names them, as bool of their shape.

    Args:
        brokers: int32[n, w], -1 for none.
        mzxids: int64[n], of the znodes that name them.
        epochs: broker epochs by broker id.
    """
    since = np.zeros(brokers.shape, dtype=np.bool_)
    if not epochs:
        return since
    old = np.flatnonzero(mzxids < max(epochs.values()))
    if not len(old):
        return since
    known = np.array(sorted(epochs), dtype=np.int64)
    of_known = np.array([epochs[broker] for broker in sorted(epochs)], dtype=np.int64)
    named = brokers[old]
    place = np.minimum(np.searchsorted(known, named), len(known) - 1)
    epoch = np.where(known[place] == named, of_known[place], NO_BROKER)
    since[old] = epoch > mzxids[old][:, None]
    return since


class Bounced(msgspec.Struct, frozen=True, eq=False):
    """Bounced leaders and ISR members.

    `leaderless`: the rows whose leader bounced. Their state is sent to no broker before it has a new leader epoch: in
    the old epoch, a leader that lost power would continue to lead. `replicas`: the replicas that count as failed until
    `readmit_bounced`.
    """

    leaderless: Rows
    replicas: Replicas

    def led(self, replicas: Replicas) -> Replicas:
        """Return the replicas whose partitions are not `leaderless`."""
        led = ~np.isin(replicas.rows, self.leaderless)
        return Replicas(replicas.rows[led], replicas.slots[led])


def demote_bounced(term: Term, mzxids: Zxids) -> Bounced:
    """Demote bounced leaders and ISR members when a term begins; `mzxids` are those of all partitions' states.

    Their partitions have no leader, and bounced ISR members count as failed until `readmit_bounced`.
    """
    context, table = term.context, term.context.partitions
    rows = table.all_rows()
    bounced = registered_since(table.isr, mzxids, {broker.id: broker.epoch for broker in context.brokers})
    bounced[context.deleting(rows)] = False
    if not bounced.any():
        return Bounced(rows[:0], Replicas(rows[:0], rows[:0]))
    leaderless = rows[(bounced & (table.isr == table.leader[:, None])).any(axis=1)]
    context.move_all_partitions(leaderless, PartitionState.Offline)
    stayed = context.eligible_in_isr(rows) & ~bounced
    out = np.where(bounced & stayed.any(axis=1, keepdims=True), table.isr, NO_BROKER).astype(np.int32)
    replicas = Replicas.where(rows, is_member(table.assignment, out))
    for broker, keys in _by_broker(term, replicas).items():
        context.failed.heard(broker, keys, ())
    brokers = sorted(set(table.isr[bounced].tolist()))
    term.note(
        "warning",
        f"brokers {brokers} bounced before this term: {int(bounced.any(axis=1).sum())} partitions' states are older",
    )
    return Bounced(leaderless, replicas)


async def readmit_bounced(term: Term, bounced: Bounced) -> None:
    """Make demoted replicas ordinary followers that have to catch up; they are elected where there is no other."""
    replicas = bounced.replicas
    if not len(replicas):
        return
    for broker, keys in _by_broker(term, replicas).items():
        term.context.failed.heard(broker, (), keys)
    await restart_replicas(term, replicas)


def _by_broker(term: Term, replicas: Replicas) -> dict[int, list[tuple[str, int]]]:
    table = term.context.partitions
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    brokers = table.assignment[replicas.rows, replicas.slots].tolist()
    for row, broker in zip(replicas.rows.tolist(), brokers, strict=True):
        found[broker].append(table.topic_and_partition(row))
    return found
