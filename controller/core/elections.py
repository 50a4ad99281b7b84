"""Leader elections for many partitions at once: the pure rules of `statemachines`, applied to the context.

Each rule also decides which replicas are notified of the outcome. Only one decision reads ZooKeeper: whether unclean
election is allowed. It is read at the time of the election, and only for partitions that otherwise get no leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.core.config_reads import by_topic
from controller.core.partition_table import Bools, Rows
from controller.core.term import Term
from controller.pending import Task
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import DamagedZnode, Znode
from statemachines.leader_election_columns import (
    ElectedColumns,
    elect_controlled_shutdown_columns,
    elect_offline_columns,
    elect_reassigned_columns,
    is_member,
)

UNCLEAN = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The outcome of an election.

    `receivers`: the replicas to notify, bool of the assignments' shape. `live`: the brokers considered eligible.
    """

    elected: ElectedColumns
    receivers: Bools
    live: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectionRule:
    why: str
    decide: Callable[[Term, Rows], Task[Decision]]


async def _decide_offline(term: Term, rows: Rows) -> Decision:
    context, table = term.context, term.context.partitions
    live = context.eligible(rows)
    isr = table.isr[rows]
    isr_live = context.eligible_in_isr(rows)
    in_isr = is_member(table.assignment[rows], isr)
    hopeless = ~(live & in_isr).any(axis=1) & live.any(axis=1)
    unclean = np.zeros(len(rows), dtype=np.bool_)
    if hopeless.any():
        unclean[hopeless] = await unclean_allowed(term, rows[hopeless])
    elected = elect_offline_columns(table.assignment[rows], isr, live, unclean, isr_live=isr_live)
    return Decision(elected, live, context.eligible_ids)


async def _decide_controlled_shutdown(term: Term, rows: Rows) -> Decision:
    context, table = term.context, term.context.partitions
    alive = context.alive(rows)
    elected = elect_controlled_shutdown_columns(table.assignment[rows], table.isr[rows], alive, context.shutting_down)
    # The broker that shuts down is notified too, or it would continue to lead (KAFKA-7482).
    return Decision(elected, alive, context.eligible_ids)


async def _decide_reassigned(term: Term, rows: Rows) -> Decision:
    """Elect from the target once it alone is the assignment, and notify all of it, also brokers that shut down."""
    context, table = term.context, term.context.partitions
    elected = elect_reassigned_columns(table.assignment[rows], table.isr[rows], context.eligible(rows))
    return Decision(elected, context.alive(rows), context.eligible_ids)


OFFLINE = ElectionRule("offline", _decide_offline)
CONTROLLED_SHUTDOWN = ElectionRule("controlled shutdown", _decide_controlled_shutdown)
REASSIGNED = ElectionRule("reassigned", _decide_reassigned)


async def unclean_allowed(term: Term, rows: Rows) -> Bools:
    """bool beside `rows`. A topic's own config decides, then the dynamic config of this broker, then the cluster's,
    then the setting, as a 2.8 controller reads it."""
    allowed, places = await by_topic(term, rows, _unclean_in, term.settings.unclean_leader_election)
    result: Bools = np.array(allowed, dtype=np.bool_)[places]
    return result


def _unclean_in(term: Term, row: Znode | None) -> bool | None:
    """Return the value in one config, None if it has none. An unreadable value does not allow unclean election."""
    if row is None:
        return None
    try:
        said = decode_config(row.path, row.data).config.get(UNCLEAN)
    except DamagedZnode as damaged:
        term.note("error", f"no unclean election by this config: {damaged}")
        return False
    return None if said is None else said.strip().lower() == "true"
