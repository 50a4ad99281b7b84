"""Brokers that came back while no controller looked: gone and registered again since a state was written that has them
in its ISR.

A controller that sees such a bounce takes it for a failure and then a start-up (KAFKA-7235). One that begins its term
after it finds a broker that lives, and would leave it what it had; but a broker that lost its power may have lost the
end of its log with it, and if it leads on in the same epoch, what it writes there and what its followers have of that
epoch are no longer the same records. Registration and state are of one order, ZooKeeper's transactions, so that the
bounce shows all the same: the broker's epoch (its registration's czxid) is above the state's mzxid. Kafka does not
look; its answer for elections came with KIP-966, for ISRs with KIP-903.

What a noticed bounce leaves behind: who came back is out of the ISR where somebody stayed in it, and whoever leads
does so in a new epoch. Where nobody stayed (the whole cluster was down, say, or the others died) the ISR is as good as
it was: most that come back have lost nothing but a session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controller.core.context import Replicas
from controller.core.partition_table import NO_BROKER, Bools, Int32s, Rows
from controller.core.serving import serve_again
from controller.core.term import Term
from statemachines.leader_election_columns import is_member
from statemachines.partition import PartitionState

Zxids = npt.NDArray[np.int64]


def registered_since(brokers: Int32s, mzxids: Zxids, epochs: Mapping[int, int]) -> Bools:
    """bool like `brokers` (int32[n, w], -1 for none): those whose epoch, by broker id in `epochs`, is above `mzxids`
    (int64[n], of what was written with them)."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Back:
    """`leaderless`: the rows whose leader came back. No broker is sent their state before it has a new leader epoch: in
    the one that it has, a leader that lost its power would lead on. `replicas`: those that are left out until
    `let_in`."""

    leaderless: Rows
    replicas: Replicas

    def led(self, replicas: Replicas) -> Replicas:
        """Those of the replicas that are of other partitions."""
        led = ~np.isin(replicas.rows, self.leaderless)
        return Replicas(replicas.rows[led], replicas.slots[led])


def leave_out(term: Term, mzxids: Zxids) -> Back:
    """As a term begins, with what was just loaded; `mzxids` are of all partitions' states. Leaders that came back lead
    no more, and members of ISRs that came back are as good as failed until `let_in`."""
    context, table = term.context, term.context.partitions
    rows = table.all_rows()
    back = registered_since(table.isr, mzxids, {broker.id: broker.epoch for broker in context.brokers})
    back[context.doomed(rows)] = False
    if not back.any():
        return Back(rows[:0], Replicas(rows[:0], rows[:0]))
    leaderless = rows[(back & (table.isr == table.leader[:, None])).any(axis=1)]
    context.set_partition_states(leaderless, np.full(len(leaderless), PartitionState.Offline, dtype=np.uint8))
    stayed = context.eligible_in_isr(rows) & ~back
    out = np.where(back & stayed.any(axis=1, keepdims=True), table.isr, NO_BROKER).astype(np.int32)
    replicas = Replicas.where(rows, is_member(table.assignment, out))
    for broker, keys in _by_broker(term, replicas).items():
        context.failed.heard(broker, keys, ())
    brokers = sorted(set(table.isr[back].tolist()))
    term.note(
        "warning",
        f"brokers {brokers} came back unnoticed: {int(back.any(axis=1).sum())} partitions' states are older",
    )
    return Back(leaderless, replicas)


async def let_in(term: Term, back: Back) -> None:
    """They are followers like others that have to catch up, and can be elected where that is all there is."""
    replicas = back.replicas
    if not len(replicas):
        return
    for broker, keys in _by_broker(term, replicas).items():
        term.context.failed.heard(broker, (), keys)
    await serve_again(term, replicas)


def _by_broker(term: Term, replicas: Replicas) -> dict[int, list[tuple[str, int]]]:
    table = term.context.partitions
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    brokers = table.assignment[replicas.rows, replicas.slots].tolist()
    for row, broker in zip(replicas.rows.tolist(), brokers, strict=True):
        found[broker].append(table.topic_and_partition(row))
    return found
