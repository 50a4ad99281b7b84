"""Planted faults in what operators ask for and in what befalls them meanwhile: reassignments, elections by request, the
pause, log directories, deletions, controlled shutdowns, the clock's look at the balance. Each is a wrong variant of one
production method, as in `tests.simulator.planted`, which collects them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controller.broker.zookeeper_services import DirectoryNotices
from controller.core import controller, reassignment, state_changes, topic_deletion
from controller.core.context import FailedReplicas
from controller.core.events import ElectionKind, ElectLeadersRequested, PauseChanged
from controller.core.handlers import controlled_shutdown, elections, log_directories, pause
from controller.core.handlers import elections as asked_elections
from controller.core.handlers import reassignment as asked
from controller.core.handlers.elections import to_rebalance
from controller.core.leadership import Term
from controller.core.reassignment import Partition, Removed
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import Decision, ElectionRule, bring_partitions_online
from controller.zookeeper.broker_writes import BrokerWrites, TopicWrites
from statemachines.leader_election_columns import elect_controlled_shutdown_columns, elect_offline_columns
from statemachines.reassignment import Assignment

Patch = pytest.MonkeyPatch


async def nothing(*arguments: Any, **options: Any) -> None:
    pass


def no_rows(term: Term) -> Any:
    return np.empty(0, dtype=np.int64)


# -- reassignment


def isr_not_waited_for(patch: Patch) -> None:
    """A reassignment completes though the target is not in sync yet."""
    patch.setattr(reassignment, "is_in_sync", lambda isr, assignment: True)


def adding_left(patch: Patch) -> None:
    """Once it has arrived the topic's znode still names who was added."""
    persist = reassignment.persist

    async def still_adding(
        term: Term, wanted: Mapping[Partition, Assignment], withdrawn: Collection[Partition] = ()
    ) -> frozenset[Partition]:
        kept = {
            key: one if one.is_moving else replace(one, adding=tuple(sorted(one.replicas)[-1:]))
            for key, one in wanted.items()
        }
        return await persist(term, kept, withdrawn)

    patch.setattr(reassignment, "persist", still_adding)


def override_mixes(patch: Patch) -> None:
    """Another target while it is on its way is taken beside the first."""
    toward = Assignment.toward

    def mixed(self: Assignment, target: Any) -> Assignment:
        also = self.adding if tuple(target) != self.origin else ()
        return toward(self, tuple(dict.fromkeys((*target, *also))))

    patch.setattr(Assignment, "toward", mixed)


def cancel_leaves_target(patch: Patch) -> None:
    """A cancellation takes who was added out of the znode alone: they stay in the ISR, and their brokers go on."""
    stop = reassignment._stop_unneeded

    async def but_for_cancellations(term: Term, kept: Mapping[int, Assignment]) -> list[int]:
        return await stop(term, {row: one for row, one in kept.items() if one.is_moving})

    patch.setattr(reassignment, "_stop_unneeded", but_for_cancellations)


def removed_not_deleted(patch: Patch) -> None:
    """Who is removed leaves the ISR, and is never told to stop."""
    stop = reassignment.stop

    async def untold(term: Term, removed: Removed, *, every_leader: bool = False) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RequestBatch, "stop_on", lambda self, rows, brokers, delete=False: None)
            await stop(term, removed, every_leader=every_leader)

    patch.setattr(reassignment, "stop", untold)


def znode_entry_kept(patch: Patch) -> None:
    """What was asked for by the znode stays there when it has arrived, or was overridden (KAFKA-9089)."""
    patch.setattr(reassignment, "_fulfil", nothing)
    patch.setattr(reassignment, "_removal", nothing)


def target_dead_forgotten(patch: Patch) -> None:
    """S49: a target whose broker comes back is not gone on with."""
    patch.setattr(asked, "restart_for", nothing)


# -- elections by request


def unclean_in_any_order(patch: Patch) -> None:
    """By request the assignment's last is elected, not its first."""

    async def decide(term: Term, rows: Any) -> Decision:
        context, table = term.context, term.context.partitions
        live = context.eligible(rows)
        isr_live = context.eligible_in_isr(rows)
        turned = table.assignment[rows][:, ::-1]
        elected = elect_offline_columns(turned, table.isr[rows], live[:, ::-1], unclean=True, isr_live=isr_live)
        return Decision(elected, live, context.eligible_ids)

    unclean_by(patch, decide)


def unclean_though_the_isr_lives(patch: Patch) -> None:
    """By request anybody is elected, whoever is in sync."""

    async def decide(term: Term, rows: Any) -> Decision:
        context, table = term.context, term.context.partitions
        live = context.eligible(rows)
        nobody = np.full_like(table.isr[rows], -1)
        elected = elect_offline_columns(
            table.assignment[rows], nobody, live, unclean=True, isr_live=np.zeros(nobody.shape, dtype=np.bool_)
        )
        return Decision(elected, live, context.eligible_ids)

    unclean_by(patch, decide)
    patch.setattr(elections, "needed", lambda term, kind, rows: np.ones(len(rows), dtype=np.bool_))


def unclean_by(patch: Patch, decide: Callable[[Term, Any], Any]) -> None:
    kind = ElectionKind.UNCLEAN
    patch.setitem(elections._ELECTIONS, kind, ElectionRule("offline", decide))


def election_answered_twice(patch: Patch) -> None:
    elect = asked_elections.elect_leaders

    async def twice(term: Term, event: Any) -> None:
        await elect(term, event)
        event.refuse()

    patch.setitem(controller.HANDLERS, ElectLeadersRequested, twice)


def preferred_znode_stays(patch: Patch) -> None:
    """What /admin/preferred_replica_election asks for is carried out, and asked for still."""

    async def without_deletion(term: Term) -> int:
        return 0

    patch.setattr(asked_elections, "take_up", without_deletion)


# -- the pause


def pause_not_looked_at(patch: Patch) -> None:
    """A new controller does not look whether it is paused."""
    patch.setattr(pause, "look", nothing)


def reassigns_though_paused(patch: Patch) -> None:
    admit = asked._admit

    def unpaused(term: Term, wanted: Any) -> Any:
        before, term.context.paused = term.context.paused, None
        found = admit(term, wanted)
        term.context.paused = before
        return found

    patch.setattr(asked, "_admit", unpaused)


def gives_back_though_paused(patch: Patch) -> None:
    due = asked_elections.due

    def unpaused(term: Term) -> Any:
        before, term.context.paused = term.context.paused, None
        found = due(term)
        term.context.paused = before
        return found

    patch.setattr(asked_elections, "due", unpaused)


def elects_nobody_while_paused(patch: Patch) -> None:
    """A pause keeps it from electing for failures, too."""

    async def unless_paused(
        term: Term, rows: Any, batch: RequestBatch, election: ElectionRule = state_changes.OFFLINE
    ) -> Any:
        if term.context.paused is not None:
            return rows[:0]
        return await bring_partitions_online(term, rows, batch, election)

    patch.setattr(state_changes, "bring_partitions_online", unless_paused)


def pause_end_unheard(patch: Patch) -> None:
    """What waited for the end of a pause is not looked at then."""

    async def looked(term: Term, event: PauseChanged) -> None:
        await pause.look(term)

    patch.setitem(controller.HANDLERS, PauseChanged, looked)


# -- log directories


def directory_not_told(patch: Patch) -> None:
    """A broker whose log directory failed leaves no notice."""
    patch.setattr(DirectoryNotices, "failed", lambda self: None)


def directory_notice_unread(patch: Patch) -> None:
    """The notice is deleted, and nobody asked."""
    patch.setattr(log_directories, "ask", lambda term, brokers: None)


def leader_kept_on_its_failed_directory(patch: Patch) -> None:
    """A broker's word that it can't serve replicas changes nothing."""
    patch.setattr(log_directories, "on_replicas_lost", nothing)


def failed_replicas_elected(patch: Patch) -> None:
    """Who can't serve a replica may be elected still."""
    patch.setattr(FailedReplicas, "usable", lambda self, table, rows, brokers, mask: mask)


def failed_for_good(patch: Patch) -> None:
    """A replica that failed is never taken for sound again, though its broker says so, or was started anew."""
    patch.setattr(FailedReplicas, "forget", lambda self, brokers: None)
    heard = FailedReplicas.heard
    patch.setattr(FailedReplicas, "heard", lambda self, broker, failed, sound: heard(self, broker, failed, ()))


# -- deletion


def deleted_though_it_moves(patch: Patch) -> None:
    """A topic's deletion does not wait for its reassignments."""
    patch.setattr(topic_deletion, "_moving", lambda term, rows: ())


def deletion_waits_for_good(patch: Patch) -> None:
    """A deletion that waited for a reassignment does not begin when that has ended."""
    resume = topic_deletion.resume_for

    async def forgotten(term: Term, topics: Any) -> None:
        if not isinstance(topics, set):
            await resume(term, topics)

    patch.setattr(topic_deletion, "resume_for", forgotten)


# -- controlled shutdown, and the clock


def shutdown_leaves_leaders(patch: Patch) -> None:
    """A broker is told that everything was moved, and leads still."""

    async def nobody(term: Term, rows: Any, batch: RequestBatch, election: ElectionRule = state_changes.OFFLINE) -> Any:
        return (
            rows[:0]
            if election.why == "controlled shutdown"
            else await bring_partitions_online(term, rows, batch, election)
        )

    patch.setattr(state_changes, "bring_partitions_online", nobody)
    patch.setattr(controlled_shutdown, "_remaining", lambda *arguments: ())


def shutdown_elects_from_outside_the_isr(patch: Patch) -> None:
    async def decide(term: Term, rows: Any) -> Decision:
        context, table = term.context, term.context.partitions
        alive, everybody = context.alive(rows), table.assignment[rows]
        elected = elect_controlled_shutdown_columns(everybody, everybody, alive, context.shutting_down)
        return Decision(elected, alive, context.eligible_ids)

    patch.setattr(controlled_shutdown, "CONTROLLED_SHUTDOWN", ElectionRule("controlled shutdown", decide))


def topics_written_past_the_fence(patch: Patch) -> None:
    """As Kafka's controller writes them: also once another one is elected."""
    patch.setattr(TopicWrites, "_multi", BrokerWrites._multi)


def rebalanced_while_partitions_move(patch: Patch) -> None:
    """The clock gives leaders back whatever is on its way."""

    def due(term: Term) -> Any:
        context, table = term.context, term.context.partitions
        if context.paused is not None:
            return no_rows(term)
        rows = context.not_deleting(table.all_rows())
        rows = to_rebalance(table, rows, term.settings.leader_imbalance_per_broker_percentage)
        return rows[elections.electable(term, rows)]

    patch.setattr(asked_elections, "due", due)


OPERATION_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "reassignment-isr-not-waited-for": isr_not_waited_for,
    "reassignment-adding-left": adding_left,
    "reassignment-override-mixes": override_mixes,
    "reassignment-cancel-leaves-the-target": cancel_leaves_target,
    "reassignment-removed-not-told": removed_not_deleted,
    "reassignment-znode-entry-kept": znode_entry_kept,
    "reassignment-dead-target-forgotten": target_dead_forgotten,
    "unclean-in-any-order": unclean_in_any_order,
    "unclean-though-the-isr-lives": unclean_though_the_isr_lives,
    "election-answered-twice": election_answered_twice,
    "preferred-znode-stays": preferred_znode_stays,
    "pause-not-looked-at": pause_not_looked_at,
    "reassigns-though-paused": reassigns_though_paused,
    "gives-back-though-paused": gives_back_though_paused,
    "elects-nobody-while-paused": elects_nobody_while_paused,
    "pause-end-unheard": pause_end_unheard,
    "directory-not-told": directory_not_told,
    "directory-notice-unread": directory_notice_unread,
    "leader-kept-on-its-failed-directory": leader_kept_on_its_failed_directory,
    "failed-replicas-elected": failed_replicas_elected,
    "failed-for-good": failed_for_good,
    "deleted-though-it-moves": deleted_though_it_moves,
    "deletion-waits-for-good": deletion_waits_for_good,
    "shutdown-leaves-leaders": shutdown_leaves_leaders,
    "shutdown-elects-from-outside-the-isr": shutdown_elects_from_outside_the_isr,
    "rebalanced-while-partitions-move": rebalanced_while_partitions_move,
    "topics-written-past-the-fence": topics_written_past_the_fence,
}
