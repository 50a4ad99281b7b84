"""Brokers of before and after AlterPartition side by side: whoever leads asks in what the controller of the moment
knows, and ISRs shrink and grow whichever of them is the older."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from controller.broker.broker import Broker
from controller.broker.isr_manager import IsrManager
from controller.broker.settings import BrokerSettings
from controller.protocol.client import ApiVersion
from controller.protocol.codec import SUPPORTED, ApiKey, Request, VersionRange
from controller.simulator import Simulation

OLD = VersionRange(0, 0)
NEWEST = SUPPORTED[ApiKey.ALTER_ISR].last
BROKERS = CONTROLLER, LEADER, FOLLOWER = (1, 2, 3)
SEED = 5
DEAD_MS = 3_000.0


class Versions:
    """`heard`: who was asked by AlterIsr, and in which version. The brokers `old` know version 0 alone, in every life
    that begins while they are in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, old: Collection[int]) -> None:
        self.old = old
        self.heard: list[tuple[int, int]] = []
        offered, handle, begin = Broker._offered, Broker._first_slice, IsrManager.__init__

        def known(broker: int) -> VersionRange:
            return OLD if broker in self.old else SUPPORTED[ApiKey.ALTER_ISR]

        def offers(broker: Broker) -> tuple[ApiVersion, ...]:
            spoken = known(broker._settings.broker_id)
            return tuple(
                ApiVersion(one.api_key, spoken.first, spoken.last) if one.api_key == ApiKey.ALTER_ISR else one
                for one in offered(broker)
            )

        def hear(broker: Broker, request: Request, *rest: Any, **named: Any) -> Any:
            if request.header.api_key is ApiKey.ALTER_ISR:
                self.heard.append((broker._settings.broker_id, request.header.api_version))
            return handle(broker, request, *rest, **named)

        def begun(changes: IsrManager, settings: BrokerSettings, *rest: Any) -> None:
            begin(changes, settings, *rest)
            changes._known = known(settings.broker_id)

        monkeypatch.setattr(Broker, "_offered", offers)
        monkeypatch.setattr(Broker, "_first_slice", hear)
        monkeypatch.setattr(IsrManager, "__init__", begun)


def at_rest() -> Simulation:
    """Broker 2 leads the one partition, broker 1 the cluster."""
    world = Simulation(len(BROKERS), seed=SEED)
    world.run_until(lambda: len(world.registered) == len(BROKERS))
    assert world.answer(world.create_topic("t", 1, len(BROKERS))) == "done"
    world.run_until_rest()
    assert (world.controller, world.partitions()["t", 0].leader) == (CONTROLLER, LEADER), "another seed is needed"
    return world


def bounce(world: Simulation, broker: int) -> None:
    """It dies, and is in the ISR again."""

    def in_isr() -> bool:
        return broker in world.partitions()["t", 0].isr

    world.kill(broker, for_ms=DEAD_MS)
    world.run_until(lambda: not in_isr())
    world.run_until(in_isr)
    world.run_until_rest()


@pytest.mark.parametrize(
    ("old", "spoken"),
    [((), NEWEST), ((CONTROLLER,), 0), ((LEADER,), 0), ((CONTROLLER, LEADER), 0)],
    ids=["both new", "an old controller", "an old leader", "both old"],
)
def test_a_leader_asks_in_what_both_know(old: Collection[int], spoken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(monkeypatch, old)
    world = at_rest()
    bounce(world, FOLLOWER)
    assert set(versions.heard) == {(CONTROLLER, spoken)}


def test_the_next_controller_is_asked_in_what_that_one_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older one dies, and is in sync again by the word of its successor, which is newer."""
    versions = Versions(monkeypatch, (CONTROLLER,))
    world = at_rest()
    bounce(world, FOLLOWER)
    versions.heard.clear()
    bounce(world, CONTROLLER)
    assert world.controller != CONTROLLER
    assert set(versions.heard) == {(world.controller, NEWEST)}


def test_an_old_controller_asked_in_a_newer_version_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(monkeypatch, (CONTROLLER,))
    monkeypatch.setattr("controller.broker.isr_manager.version_to_ask", lambda *_: NEWEST)
    bounce(at_rest(), FOLLOWER)
    assert set(versions.heard) != {(CONTROLLER, 0)}


@pytest.mark.parametrize(
    ("protocol", "logs"), [("2.4", {}), ("2.6", {"log.dirs": "/logs", "replica.lag.time.max.ms": "3000"})]
)
def test_below_2_7_leaders_change_isrs_in_zookeeper(protocol: str, logs: dict[str, str]) -> None:
    """Each broker dies, and is in every ISR again; the controller hears of it by a notification."""
    settings = {"inter.broker.protocol.version": protocol, **logs}
    world = Simulation(len(BROKERS), seed=SEED, settings=settings)
    world.run_until(lambda: len(world.registered) == len(BROKERS))
    assert world.answer(world.create_topic("t", 3, len(BROKERS))) == "done"
    for broker in BROKERS:
        world.kill(broker, for_ms=DEAD_MS)
        world.run_until(lambda broker=broker: all(broker not in one.isr for one in world.partitions().values()))  # type: ignore[misc]
        world.run_until(lambda: all(len(one.isr) == len(BROKERS) for one in world.partitions().values()))
        world.run_until_rest()
