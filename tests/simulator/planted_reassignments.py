"""Faults in reassignment for the swarm to find: each a wrong variant of one step. See `planted.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from controller.core import reassignment, state_changes
from controller.core.handlers import reassignment as asked
from controller.core.leadership import Term
from controller.core.reassignment import Partition
from statemachines.leader_election_columns import elect_reassigned_columns
from statemachines.reassignment import Assignment

Patch = pytest.MonkeyPatch


async def nothing(*arguments: Any, **options: Any) -> None:
    pass


async def none(*arguments: Any, **options: Any) -> int:
    return 0


async def no_rows(*arguments: Any, **options: Any) -> list[int]:
    return []


def not_taken_up(patch: Patch) -> None:
    """A new controller does not look at what is on its way."""
    patch.setattr(asked, "take_up", none)


def in_sync_unseen(patch: Patch) -> None:
    """Nobody looks whether the target is in sync by now."""
    patch.setattr(asked, "isr_changed", nothing)


def leader_left_behind(patch: Patch) -> None:
    """The target is not told, and not led by one of its own."""
    patch.setattr(reassignment, "_lead_from_target", nothing)


def removed_left_running(patch: Patch) -> None:
    """What is removed stays in the ISR and on its broker."""
    patch.setattr(reassignment, "stop", nothing)


def unneeded_left_running(patch: Patch) -> None:
    """What an earlier target wanted is forgotten, and not stopped."""
    patch.setattr(reassignment, "_stop_unneeded", no_rows)


def arrival_not_persisted(patch: Patch) -> None:
    """The topic's znode goes on naming both sets."""
    persist = reassignment.persist

    async def only_departures(
        term: Term, wanted: Mapping[Partition, Assignment], withdrawn: Collection[Partition] = ()
    ) -> frozenset[Partition]:
        leaving = {key: one for key, one in wanted.items() if one.is_moving}
        return await persist(term, leaving, withdrawn) | (wanted.keys() - leaving.keys())

    patch.setattr(reassignment, "persist", only_departures)


def led_by_the_targets_last(patch: Patch) -> None:
    """The target's order is read from its end."""

    async def from_the_end(term: Term, rows: Any) -> state_changes.Decision:
        context, table = term.context, term.context.partitions
        live = context.eligible(rows)
        elected = elect_reassigned_columns(table.assignment[rows][:, ::-1], table.isr[rows], live[:, ::-1])
        return state_changes.Decision(elected, context.alive(rows), context.eligible_ids)

    patch.setattr(reassignment, "REASSIGNED", state_changes.ElectionRule("reassigned", from_the_end))


def no_new_epoch(patch: Patch) -> None:
    """Replicas change in the old leader epoch, in which no broker hears of anything."""
    patch.setattr(reassignment, "new_epoch", nothing)


def waiting_never_begun(patch: Patch) -> None:
    """What waited for its turn is not looked at when there is room."""
    patch.setattr(asked, "begin_what_waits", nothing)


REASSIGNMENT_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "reassignment-not-taken-up": not_taken_up,
    "reassignment-in-sync-unseen": in_sync_unseen,
    "reassignment-leader-left-behind": leader_left_behind,
    "reassignment-removed-left-running": removed_left_running,
    "reassignment-unneeded-left-running": unneeded_left_running,
    "reassignment-arrival-not-persisted": arrival_not_persisted,
    "reassignment-led-by-the-targets-last": led_by_the_targets_last,
    "reassignment-no-new-epoch": no_new_epoch,
    "reassignment-waiting-never-begun": waiting_never_begun,
}
