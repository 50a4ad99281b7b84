"""Faults put into requested elections, the pause and the broker's wait for leaders: each must turn a test red."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from controller.broker.controller_requests import DelayedElectLeader
from controller.core.handlers import elections, pause
from controller.core.leadership import TermTimers
from controller.protocol.codec import ApiKey
from statemachines.leader_election_columns import elect_offline_columns
from tests.broker import test_elections as broker_elections
from tests.broker.harness import BrokerUnderTest, metadata
from tests.core import test_elections, test_measures, test_pause
from tests.simulator.planted_elections import ELECTION_FAULTS

Patch = pytest.MonkeyPatch
Proof = Callable[[], None]


def whoever_lives(assignment: Any, isr: Any, live: Any, **options: Any) -> Any:
    return elect_offline_columns(assignment, np.full_like(isr, -1), live, unclean=True)


async def not_looked(*arguments: Any, **options: Any) -> int:
    return 0


def told_broker() -> BrokerUnderTest:
    found = BrokerUnderTest(controller=True)
    found.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1), ("u", 0, 2)))
    return found


def forget_who_was_seen(self: DelayedElectLeader) -> None:
    """Only what the metadata shows now counts."""
    topics = self._metadata.snapshot.topics
    led = all(topics.get(one[0], {})[one[1]].leader == leader for one, leader in self._waiting.items())
    if led:
        self._waiting.clear()


FAULTS: Mapping[str, tuple[Callable[[Patch], Any], Proof]] = {
    "the preferred leader need not be in sync": (
        ELECTION_FAULTS["preferred-from-outside-the-isr"],
        test_elections.test_a_preferred_election_by_request_says_of_each_partition_what_came_of_it,
    ),
    "the preferred leader need not live": (
        ELECTION_FAULTS["preferred-though-it-is-dead"],
        test_elections.test_a_broker_that_shuts_down_is_not_preferred,
    ),
    "the leader epoch stays": (
        ELECTION_FAULTS["preferred-keeps-the-epoch"],
        test_elections.test_a_preferred_election_by_request_says_of_each_partition_what_came_of_it,
    ),
    "nobody is told": (
        ELECTION_FAULTS["preferred-is-not-told"],
        test_elections.test_a_preferred_election_by_request_says_of_each_partition_what_came_of_it,
    ),
    "the ISR is turned round": (
        ELECTION_FAULTS["preferred-turns-the-isr-round"],
        test_elections.test_the_znode_is_carried_out_and_goes,
    ),
    "the znode is not watched": (
        ELECTION_FAULTS["elections-watch-nothing"],
        test_elections.test_the_znode_is_carried_out_and_goes,
    ),
    "a new controller does not look at the znode": (
        lambda patch: patch.setattr(elections, "take_up", not_looked),
        test_elections.test_what_nobody_carried_out_the_next_controller_does,
    ),
    "an unclean election takes whoever lives": (
        lambda patch: patch.setattr(elections, "elect_offline_columns", whoever_lives),
        test_elections.test_an_unclean_election_takes_the_isr_first,
    ),
    "each look starts another clock": (
        lambda patch: patch.setattr(
            TermTimers,
            "set",
            lambda self, name, clock, delay_ms, callback: clock.call_later(delay_ms, callback),
        ),
        test_elections.test_switched_off_it_never_looks_and_a_term_that_is_over_has_no_timer,
    ),
    "nothing is ever due": (
        lambda patch: patch.setattr(elections, "to_rebalance", lambda table, rows, percentage: rows[:0]),
        test_elections.test_leaders_go_back_five_seconds_after_the_failover_and_at_each_interval,
    ),
    "the pause is not looked at as a term begins": (
        lambda patch: patch.setattr(pause, "look", not_looked),
        test_pause.test_nothing_goes_back_by_itself,
    ),
    "a pause holds failures up": (
        lambda patch: patch.setattr("controller.core.handlers.failover.state_changes.elect_offline_and_new", no_rows),
        test_pause.test_failures_are_elected_for,
    ),
    "what is being deleted is an imbalance": (
        lambda patch: patch.setattr(
            "controller.core.context.PartitionTable.are_off_preferred",
            lambda self, rows: rows < (0 if len(rows) > 1 else -1),
        ),
        test_measures.test_s56d_gauges_follow_a_cluster_through_its_troubles,
    ),
    "a leader that was seen must be seen again": (
        lambda patch: patch.setattr(DelayedElectLeader, "_look", forget_who_was_seen),
        lambda: broker_elections.test_the_answer_waits_until_every_leader_is_seen(told_broker(), 2),
    ),
    "an answer waits for nobody": (
        lambda patch: patch.setattr(DelayedElectLeader, "try_complete", lambda self: self.force_complete()),
        lambda: broker_elections.test_the_answer_waits_until_every_leader_is_seen(told_broker(), 2),
    ),
}


async def no_rows(*arguments: Any, **options: Any) -> Any:
    return np.empty(0, dtype=np.int64)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_a_test_red(fault: str, monkeypatch: Patch) -> None:
    plant, proof = FAULTS[fault]
    proof()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        proof()
