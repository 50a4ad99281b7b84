"""Planted faults in elections that no failure asked for: each a wrong variant of one production method, as in
`tests.simulator.planted`, which collects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.core import leadership, state_changes
from controller.core.context import ControllerContext
from controller.core.events import ElectionKind
from controller.core.handlers import elections
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import Decision, ElectionRule, set_states
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient
from statemachines.leader_election_columns import elect_preferred_columns

Patch = pytest.MonkeyPatch


def preferred_by(patch: Patch, decide: Callable[[Term, Any], Decision], election: ElectionRule | None = None) -> None:
    """Preferred elections decide so, and everybody off the preferred leader is given back, however few."""

    async def decided(term: Term, rows: Any) -> Decision:
        return decide(term, rows)

    wrong = ElectionRule("preferred", decided) if election is None else election
    patch.setitem(elections._ELECTIONS, ElectionKind.PREFERRED, wrong)
    patch.setattr(elections, "due", all_off_preferred)


def all_off_preferred(term: Term) -> Any:
    rows = term.context.not_deleting(term.context.partitions.all_rows())
    return rows[term.context.partitions.are_off_preferred(rows)]


def preferred_from_outside_the_isr(patch: Patch) -> None:
    """The assignment's first, in sync or not: records are lost."""

    def decide(term: Term, rows: Any) -> Decision:
        table, live = term.context.partitions, term.context.eligible(rows)
        everybody = table.assignment[rows]
        elected = elect_preferred_columns(everybody, everybody, live)
        return Decision(replace(elected, isr=table.isr[rows]), live, term.context.eligible_ids)

    preferred_by(patch, decide)


def preferred_though_it_is_dead(patch: Patch) -> None:
    def decide(term: Term, rows: Any) -> Decision:
        table = term.context.partitions
        elected = elect_preferred_columns(table.assignment[rows], table.isr[rows], table.assignment[rows] >= 0)
        return Decision(elected, term.context.eligible(rows), term.context.eligible_ids)

    preferred_by(patch, decide)


def preferred_turns_the_isr_round(patch: Patch) -> None:
    def decide(term: Term, rows: Any) -> Decision:
        table, live = term.context.partitions, term.context.eligible(rows)
        elected = elect_preferred_columns(table.assignment[rows], table.isr[rows], live)
        turned = np.array([[*reversed([b for b in isr if b >= 0]), *[b for b in isr if b < 0]] for isr in elected.isr])
        return Decision(replace(elected, isr=turned.astype(np.int32)), live, term.context.eligible_ids)

    preferred_by(patch, decide)


def preferred_keeps_the_epoch(patch: Patch) -> None:
    """The leader epoch does not grow: brokers take the new leader for the old one."""

    async def written(term: Term, states: Any) -> Any:
        if states.why == "preferred":
            states = msgspec.structs.replace(states, leader_epoch=states.leader_epoch - 1)
        return await set_states(term, states)

    patch.setattr(state_changes, "set_states", written)


def preferred_is_not_told(patch: Patch) -> None:
    """It is written, and no broker hears of it."""

    class Silent(RequestBatch):
        def send(self) -> None:
            pass

    patch.setattr(elections, "RequestBatch", Silent)


def preferred_takes_others_first(patch: Patch) -> None:
    """The next replica in line instead of the first."""

    def decide(term: Term, rows: Any) -> Decision:
        table = term.context.partitions
        turned = np.roll(table.assignment[rows], -1, axis=1)
        elected = elect_preferred_columns(turned, table.isr[rows], turned >= 0)
        return Decision(elected, term.context.eligible(rows), term.context.eligible_ids)

    preferred_by(patch, decide)


def elections_watch_nothing(patch: Patch) -> None:
    """/admin/preferred_replica_election is looked at when a term begins, and never again."""
    watch_node = ZooKeeperClient.watch_node

    def watched(self: ZooKeeperClient, path: str, event: Any) -> Any:
        return watch_node(self, path if path != paths.PREFERRED_ELECTION else paths.CONTROLLER_PAUSE, event)

    patch.setattr(ZooKeeperClient, "watch_node", watched)


def deleting_topics_go_back_too(patch: Patch) -> None:
    """Leaders are elected for topics that are being deleted."""

    def decide(term: Term, rows: Any) -> Decision:
        table, live = term.context.partitions, term.context.eligible(rows)
        return Decision(
            elect_preferred_columns(table.assignment[rows], table.isr[rows], live), live, term.context.eligible_ids
        )

    preferred_by(patch, decide)
    patch.setattr(ControllerContext, "not_deleting", lambda self, rows: rows)


def terms_of_one_session_count_once(patch: Patch) -> None:
    """Nothing but the end of a session is counted for an epoch that is created or corrected."""
    patch.setattr(leadership, "_recreations", lambda term, deletions: 0)


ELECTION_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "preferred-from-outside-the-isr": preferred_from_outside_the_isr,
    "preferred-though-it-is-dead": preferred_though_it_is_dead,
    "preferred-turns-the-isr-round": preferred_turns_the_isr_round,
    "preferred-keeps-the-epoch": preferred_keeps_the_epoch,
    "preferred-is-not-told": preferred_is_not_told,
    "preferred-takes-others-first": preferred_takes_others_first,
    "elections-watch-nothing": elections_watch_nothing,
    "deleting-topics-go-back-too": deleting_topics_go_back_too,
    "terms-of-one-session-count-once": terms_of_one_session_count_once,
}

__all__: Sequence[str] = ("ELECTION_FAULTS",)
