"""Faults put into the controller, each of which must turn a test red: what the tests above prove, they can disprove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.core import broker_bounces, state_changes
from controller.core.context import ControllerContext
from controller.core.event_loop import EventQueue
from controller.core.handlers import broker_changes, failover, isr_changes
from controller.core.request_batch import RequestBatch
from controller.zookeeper.client import StandingWatches, ZooKeeperClient
from controller.zookeeper.operations import ANY_VERSION, Check
from controller.zookeeper.paths import CONTROLLER_EPOCH
from statemachines.leader_election_columns import ElectedColumns, elect_offline_columns
from tests.core import (
    test_broker_bounces,
    test_broker_changes,
    test_controlled_shutdown,
    test_failover,
    test_isr_changes,
    test_loading,
    test_terms,
    test_topic_changes,
)
from tests.core.driving import Cluster


def dead_leader_scene() -> None:
    """ISR (3, 2, 1), assignment (1, 2, 3): 1 dies, and the order of either shows."""
    cluster = Cluster()
    cluster.register(1, 2, 3)
    cluster.topic("t", {0: (1, 2, 3)})
    cluster.state("t", 0, 1, (3, 1, 2))
    cluster.host(4)
    cluster.unregister(1)
    cluster.settle()
    assert cluster.states() == {"t-0": (2, 1, (3, 2), 1)}
    cluster.check()


def isr_reversed(*arguments: Any, **options: Any) -> ElectedColumns:
    elected = elect_offline_columns(*arguments, **options)
    isr = elected.isr.copy()
    for row in isr:
        present = row[row >= 0][::-1].copy()
        row[: len(present)] = present
    return replace(elected, isr=isr)


def leader_from_the_isr(assignment: Any, isr: Any, live: Any, *rest: Any, isr_live: Any, **options: Any) -> Any:
    return elect_offline_columns(isr, isr, isr_live, *rest, isr_live=isr_live, **options)


async def nothing(*arguments: Any, **options: Any) -> np.ndarray[Any, Any]:
    return np.empty(0, dtype=np.int64)


def fired_without_arming(self: StandingWatches, event: Any) -> None:
    standing = self._nodes.get(event.path) or self._children.get(event.path)
    if standing is not None:
        self._events.put(standing.event_of(event.path))


def leader_and_isr_to_the_leader_alone(self: RequestBatch, replicas: Any, *, is_new: bool = False) -> None:
    table = self._term.context.partitions
    led = table.assignment[replicas.rows, replicas.slots] == table.leader[replicas.rows]
    self._leader_and_isr.append((type(replicas)(replicas.rows[led], replicas.slots[led]), is_new))
    self.update_metadata(replicas.rows)


def bump_nothing(term: Any, rows: Any, leaving: Any, every_leader: bool) -> Any:
    states, writing = ORIGINAL_SHRUNK(term, rows, leaving, every_leader)
    return msgspec.structs.replace(states, leader_epoch=states.leader_epoch - 1), writing


def forget(self: Any, broker: int) -> None:
    pass


def nobody(brokers: Any, mzxids: Any, epochs: Any) -> Any:
    return np.zeros(brokers.shape, dtype=np.bool_)


def everybody(self: ControllerContext, rows: Any) -> Any:
    return self.partitions.isr[rows] >= 0


def watch_from_now(self: ZooKeeperClient, paths: Any, event_of: Any, since_zxid: int) -> Any:
    return ORIGINAL_WATCH_MANY(self, paths, event_of, 1 << 60)


ORIGINAL_SHRUNK = state_changes._shrunk
ORIGINAL_WATCH_MANY = ZooKeeperClient.watch_many
FENCE_OF_ANY_VERSION = Check(CONTROLLER_EPOCH, ANY_VERSION)
Plant = Callable[[pytest.MonkeyPatch], None]

FAULTS: dict[str, tuple[Plant, Callable[[], None]]] = {
    "the ISR is filtered in the wrong order": (
        lambda patch: patch.setattr(state_changes, "elect_offline_columns", isr_reversed),
        dead_leader_scene,
    ),
    "the leader is taken from the ISR's order": (
        lambda patch: patch.setattr(state_changes, "elect_offline_columns", leader_from_the_isr),
        dead_leader_scene,
    ),
    "a callback is dropped at resignation": (
        lambda patch: patch.setattr(EventQueue, "close_callbacks", lambda self: None),
        test_terms.test_s19_every_queued_callback_is_answered_once_at_resignation,
    ),
    "the fence is not checked": (
        lambda patch: patch.setattr(
            ZooKeeperClient,
            "_with_fence",
            lambda self, leadership, operations: (FENCE_OF_ANY_VERSION, *operations),
        ),
        test_terms.test_s03_a_fenced_write_ends_the_term_and_nothing_more_is_written,
    ),
    "a watch is not set again": (
        lambda patch: patch.setattr(StandingWatches, "fired", fired_without_arming),
        test_topic_changes.test_partitions_are_added,
    ),
    "what changed before the watch is not told": (
        lambda patch: patch.setattr(ZooKeeperClient, "watch_many", watch_from_now),
        test_loading.test_an_endpoint_that_changes_at_any_moment_of_the_loading_is_not_lost,
    ),
    "the lease is not looked at": (
        lambda patch: patch.setattr(ZooKeeperClient, "lease_until_ms", lambda self: float("inf")),
        test_terms.test_s12_a_leader_that_is_cut_off_stops_before_its_session_ends,
    ),
    "channels stay open after the term": (
        lambda patch: patch.setattr("tests.core.driving.RecordingChannels.close", lambda self: None),
        test_terms.test_a_term_resigned_inside_a_session_that_lives_on_is_followed_by_another,
    ),
    "dead replicas stay in their ISRs": (
        lambda patch: patch.setattr(state_changes, "shrink", nothing),
        test_failover.test_s38_a_dead_follower_leaves_the_isr_at_start_up_and_a_dead_leader_is_bumped_twice,
    ),
    "the epoch does not grow as an ISR shrinks": (
        lambda patch: patch.setattr(state_changes, "_shrunk", bump_nothing),
        test_failover.test_s38_a_dead_follower_leaves_the_isr_at_start_up_and_a_dead_leader_is_bumped_twice,
    ),
    "nobody is elected at the start": (
        lambda patch: patch.setattr(state_changes, "elect_offline_and_new", nothing),
        test_failover.test_a_failover_that_dies_at_any_await_is_completed_by_the_next_controller,
    ),
    "ISRs shrink before leaders are elected": (
        lambda patch: patch.setattr(broker_changes, "elect_for_lost_leaders", nothing),
        test_broker_changes.test_leader_changes_are_written_before_isrs_shrink,
    ),
    "only the leader is told": (
        lambda patch: patch.setattr(RequestBatch, "leader_and_isr", leader_and_isr_to_the_leader_alone),
        test_broker_changes.test_s31_the_change_of_an_isr_is_told_to_all_live_replicas,
    ),
    "old notifications stay": (
        lambda patch: patch.setattr(failover, "delete_children", nothing),
        test_failover.test_old_notifications_are_deleted_before_anything_is_read,
    ),
    "a notification is not deleted": (
        lambda patch: patch.setattr(isr_changes, "delete_children", nothing),
        test_isr_changes.test_s28_a_notification_tells_of_the_partitions_that_it_names_and_no_others,
    ),
    "the broker that goes may be elected": (
        lambda patch: patch.setattr("controller.core.context.ControllerContext.mark_shutting_down", forget),
        test_controlled_shutdown.test_two_that_go_at_once_are_not_handed_each_others_partitions,
    ),
    "a bounce from before the term is not looked for": (
        lambda patch: patch.setattr(broker_bounces, "registered_since", nobody),
        test_broker_bounces.test_a_leader_that_came_back_hands_over_to_who_stayed,
    ),
    "whoever came back is out of the ISR, though nobody stayed": (
        lambda patch: patch.setattr(ControllerContext, "eligible_in_isr", everybody),
        test_broker_bounces.test_where_the_others_died_who_came_back_leads_in_a_new_epoch,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_a_test_red(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, proof = FAULTS[fault]
    proof()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        proof()
