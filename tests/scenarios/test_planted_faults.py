"""The built-in scenarios find what they are for: each of these faults, planted in the code, turns its scenario red.

In simulation, for a few seeds: a fault counts as found when any of them fails. That all pass without a planted fault is
shown in tests/simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.broker.isr_manager import IsrManager
from controller.broker.node import Node
from controller.clock import Coro
from controller.core import loading
from controller.core.controller import Controller
from controller.core.handlers import broker_changes
from controller.core.leadership import Term
from controller.scenarios.files import load_scenario
from controller.scenarios.language import Scenario
from controller.simulator.run import simulate
from controller.trace import ControllerResigned, FaultInjected, RequestAnswered, RequestSent
from controller.zookeeper.client import ZooKeeperClient

SEEDS = range(4)


def first_error(name: str, seeds: range = SEEDS, **settings: str) -> str:
    """Return the violations of the first seed that has any, or "" if there are none."""
    for seed in seeds:
        judgement = simulate(scenario_of(name, settings), seed).report.judgement
        found = [f"{each.name}: {each.detail}" for each in judgement.invariants if not each.held]
        if found:
            return "\n".join(found)
    return ""


def scenario_of(name: str, settings: dict[str, str]) -> Scenario:
    """Without records, unless a test is about them."""
    if "records" in load_scenario(name).parameters:
        settings = {"records": "false"} | settings
    return load_scenario(name, settings)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """S12: cut off, it leads on for as long as nobody tells it otherwise."""
    patch.setattr(ZooKeeperClient, "lease_until_ms", lambda self: float("inf"))


def bounce_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """S29: the same id is taken for the same life."""

    async def same_lives(term: Term) -> Any:
        found, zxid = await loading.read_brokers(term)
        return [term.context.broker(broker.id) or broker for broker in found], zxid

    patch.setattr(broker_changes, "read_brokers", same_lives)


def isr_frozen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IsrManager, "_check_partitions", lambda self, opened: None)


def slot_never_cleared(patch: pytest.MonkeyPatch) -> None:
    """S43: an answer of another leader epoch leaves the proposal pending for ever."""
    patch.setattr(IsrManager, "_watch", lambda self, key: self._short.setdefault(key, self._replicas.partition(*key)))


def silent_resignation(patch: pytest.MonkeyPatch) -> None:
    """It goes without a word: nobody can tell why the zombie stopped, or whether."""
    resign: Callable[[Controller, str], None] = Controller.resign
    patch.setattr(Controller, "resign", lambda self, reason: resign(self, ""))


def goes_without_moving(patch: pytest.MonkeyPatch) -> None:
    """A stop that is no controlled shutdown leaves its partitions without a leader."""

    async def at_once(*_: object) -> bool:
        return True

    patch.setattr("controller.broker.node.controlled_shutdown", at_once)


@pytest.mark.parametrize(
    ("scenario", "plant", "said"),
    [
        ("zookeeper-cut", no_lease, "late-resignations"),
        ("bounce", bounce_unnoticed, "at-least-1-bounces"),
        ("rolling-restart", isr_frozen, "full-isr"),
        ("rolling-restart", slot_never_cleared, "full-isr"),
        ("zombie-controller", silent_resignation, "old-terms-resigned"),
        ("rolling-restart", goes_without_moving, "left-leaderless"),
    ],
)
def test_a_planted_fault_is_found(
    scenario: str, plant: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert said in first_error(scenario)


def test_a_controller_cut_off_for_ever_is_survived_too() -> None:
    assert first_error("zookeeper-cut", heal="false") == ""


def unheard(seed: int) -> list[int]:
    """The brokers that had not answered a request of a term's last moments when it ended in a shutdown."""
    records = simulate(scenario_of("rolling-restart", {}), seed).report.records
    sent: dict[tuple[int, int], set[tuple[int, int]]] = {}
    left: list[int] = []
    for record in records:
        event = record.event
        if isinstance(event, FaultInjected):
            sent.clear()  # what was on its way to a broker that is gone is never answered
        elif isinstance(event, RequestSent):
            sent.setdefault((record.node, event.controller_epoch), set()).add((event.to_broker, event.sequence))
        elif isinstance(event, RequestAnswered):
            sent.get((record.node, event.controller_epoch), set()).discard((event.to_broker, event.sequence))
        elif isinstance(event, ControllerResigned) and "shutting down" in event.reason:
            left += [broker for broker, _ in sent.get((record.node, event.controller_epoch), ())]
    return left


def test_a_controller_that_goes_is_heard_to_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else clients have leaders that are gone until the next controller has begun."""
    assert not any(unheard(seed) for seed in SEEDS)

    async def at_once(self: Node) -> None:
        pass

    hears: Callable[[Node], Coro[None]] = at_once
    monkeypatch.setattr(Node, "_await_acknowledgements", hears)
    assert any(unheard(seed) for seed in SEEDS)
