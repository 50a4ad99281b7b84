"""Leaders that are moved on purpose: by a client's request, by /admin/preferred_replica_election, by the clock.

    request   elected now; each partition answered with its leader, or with why it has not the one that was wanted
    znode     elected now, whatever comes of it the znode goes; a new controller takes it up from the beginning
    clock     every leader.imbalance.check.interval.seconds: what drifted too far is given back, if it can be

Nothing is moved by the clock while partitions are being reassigned, nor ever of topics that are being deleted.
"""

from __future__ import annotations

import numpy as np

from controller.core import requested_elections
from controller.core.events import (
    AutoPreferredElection,
    ElectionKind,
    ElectLeadersRequested,
    PreferredElectionAsked,
)
from controller.core.imbalance import to_rebalance
from controller.core.term import Term
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_preferred_election
from controller.zookeeper.operations import BadVersion, DamagedZnode, Delete, MultiFailed, NoNode, UnknownOutcome

FIRST_LOOK_MS = 5_000.0
"""How long after its failover a controller first looks at the balance (Kafka's)."""
LOOKS = 10
"""How often the znode is read again after a deletion that is not known to have happened, or found it rewritten."""


async def elect_leaders(term: Term, event: ElectLeadersRequested) -> None:
    if term.context.paused is not None and event.kind is ElectionKind.PREFERRED:
        event.refuse(ErrorCode.POLICY_VIOLATION, f"The controller is paused: {term.context.paused}")
        return
    event.respond(await requested_elections.elect(term, event.kind, event.partitions))


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
        outcomes = await requested_elections.elect(term, ElectionKind.PREFERRED, tuple(partitions))
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
        await requested_elections.elect_rows(term, ElectionKind.PREFERRED, rows)
    look_later(term, term.settings.leader_imbalance_check_interval_seconds * 1_000.0)


def due(term: Term) -> np.typing.NDArray[np.int64]:
    """The rows that an automatic election moves now."""
    context, table = term.context, term.context.partitions
    if table.adding or table.removing or context.paused is not None:
        return np.empty(0, dtype=np.int64)
    rows = context.not_deleting(table.all_rows())
    rows = to_rebalance(table, rows, term.settings.leader_imbalance_per_broker_percentage)
    return rows[requested_elections.electable(term, rows)]


def look_later(term: Term, delay_ms: float) -> None:
    """Once a term: each look asks for the next."""
    if term.settings.auto_leader_rebalance:
        term.timers.set("leader imbalance", term.clock, delay_ms, lambda: term.put(AutoPreferredElection(term.epoch)))
