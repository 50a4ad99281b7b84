"""Faults planted in how brokers keep records, each found by what producers and consumers saw, and by nothing else.

In simulation, one seed each; the same runs pass without the fault.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.broker.partition import LeaderState
from controller.broker.records.writes import Replication
from controller.protocol.errors import ErrorCode
from controller.scenarios.files import load_scenario, parse_scenario
from controller.scenarios.language import Scenario
from controller.simulator.run import simulate
from controller.storage.producer_states import ProducerStates

SEED = 3

# Longer than a request may wait: what it was for is written, and is sent again.
LONG_CUT = """
name = "long-cut"
[cluster]
brokers = 3
settings = { "replica.lag.time.max.ms" = 60000 }
[workload.records]
rate_per_s = 30
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "brokers"
[[steps]]
do = "wait"
until = "registered"
[[steps]]
do = "create-topics"
partitions = 3
replication_factor = 3
[[steps]]
do = "wait"
until = "full-isr"
[[steps]]
do = "produce"
[[steps]]
do = "let-run"
ms = 500
[[steps]]
do = "cut"
source = 2
target = 1
[[steps]]
do = "let-run"
ms = 6500
[[steps]]
do = "heal"
source = 2
target = 1
[[steps]]
do = "let-run"
ms = 500
"""


def loss(acks: str, lost: str) -> Scenario:
    return load_scenario("acks-1-loss", {"acks": acks, "lost": lost})


def long_cut() -> Scenario:
    return parse_scenario(LONG_CUT, "long-cut")


def acknowledged_before_replicated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "outcome", lambda self, min_insync: ErrorCode.NONE)


def high_watermark_too_far(patch: pytest.MonkeyPatch) -> None:
    """Consumers see what the leader alone has."""
    patch.setattr(LeaderState, "high_watermark", lambda self, log_end, *rest: log_end)


def duplicates_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "duplicate_of", lambda self, header: None)
    patch.setattr(ProducerStates, "check", lambda self, header, position=0: None)
    patch.setattr(ProducerStates, "check_all", lambda self, headers: None)


def not_held(scenario: Scenario) -> dict[str, bool | None]:
    judgement = simulate(scenario, SEED).report.judgement
    return {each.name: each.held for each in judgement.invariants if not each.held}


@pytest.mark.parametrize(
    ("scenario", "plant", "found"),
    [
        (loss("all", "none"), acknowledged_before_replicated, "lost-write"),
        (loss("1", "any"), high_watermark_too_far, "reads-kept"),
        (long_cut(), duplicates_accepted, "duplicate"),
    ],
)
def test_a_planted_fault_is_found(
    scenario: Scenario, plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not_held(scenario) == {}
    plant(monkeypatch)
    assert not_held(scenario)[found] is False


def test_loss_that_was_expected_and_is_not_there_fails() -> None:
    assert not_held(loss("all", "some")) == {"lost-write": False}
