"""Whole runs in virtual time: the scenarios pass, a seed is a run, and faults planted in the code are found."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest

import controller.simulator
from controller.broker.broker import Broker
from controller.broker.metadata import MetadataCache
from controller.core.controller import Controller
from controller.report.summary import report_json
from controller.scenarios.files import built_in, load_scenario
from controller.scenarios.language import Scenario
from controller.scenarios.records.figures import count_records
from controller.scenarios.records.history import History, same
from controller.simulator.run import SimulationResult, simulate
from controller.trace import ControllerElected, ControllerResigned, Noted, RequestRefused
from controller.trace_records import Recorder
from controller.zookeeper.client import StandingWatches
from tests.simulator.scenarios import FAULTS, scenario


def violation(result: SimulationResult) -> str:
    return "\n".join(f"{each.name}: {each.detail}" for each in result.report.judgement.invariants if not each.held)


def assert_passes(result: SimulationResult) -> None:
    assert result.report.verdict == "pass", f"seed {result.report.seed}: {violation(result)}"
    assert not result.could_not_run


def without_records(name: str) -> Scenario:
    """The brokers' control plane alone, where that is what a test is about: many times as fast."""
    parameters = load_scenario(name).parameters
    return load_scenario(name, {"records": "false"} if parameters.get("records") is True else {})


OF_CLIENTS = sorted(name for name, text in built_in().items() if "members" in text or "[workload.transactions]" in text)
"""Scenarios about groups and transactions, which are long: `python -m tests.simulator.transactions` runs many seeds."""


def runs_without_records(name: str) -> bool:
    return load_scenario(name).parameters.get("records") is True or "produce" not in built_in()[name]


@pytest.mark.parametrize("name", sorted(filter(runs_without_records, built_in())))
@pytest.mark.parametrize("seed", range(6))
def test_built_in_scenarios_pass(name: str, seed: int) -> None:
    assert_passes(simulate(without_records(name), seed))


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        (name, seed)
        for name in sorted(name for name in built_in() if "produce" in built_in()[name] and name != "exactly-once")
        for seed in range(20, 21 if name in OF_CLIENTS else 23)
    ],
)
def test_built_in_scenarios_keep_their_records(name: str, seed: int) -> None:
    result = simulate(load_scenario(name), seed)
    assert_passes(result)
    assert result.report.judgement.records is not None
    assert count_records(result.report.judgement.records).acknowledged > 50


def test_the_same_seed_gives_the_same_history_of_records() -> None:
    first, again, other = (history(simulate(load_scenario("acks-1-loss"), seed)) for seed in (4, 4, 5))
    assert same(first, again)
    assert not same(first, other)


def history(result: SimulationResult) -> History:
    assert result.report.judgement.records is not None
    return result.report.judgement.records.history


@pytest.mark.parametrize("name", sorted(FAULTS))
@pytest.mark.parametrize("seed", range(8))
def test_other_faults_are_survived(name: str, seed: int) -> None:
    assert_passes(simulate(scenario(name), seed))


def test_one_broker_on_its_own_is_a_cluster() -> None:
    settings = {"brokers": "3", "topics": "1", "partitions": "1", "replication_factor": "2", "min_insync": "1"}
    alone = load_scenario("broker-kill", settings)
    assert_passes(simulate(alone, 3))


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    first, again, other = (simulate(without_records("controller-kill"), seed) for seed in (4, 4, 5))
    assert first.trace_hash == again.trace_hash != other.trace_hash
    assert report_json(first.report) == report_json(again.report)


def test_the_paused_controller_is_a_zombie_that_is_told_so() -> None:
    """S01: what makes the scenario worth running does happen in it."""
    records = simulate(scenario("paused-controller"), 1).report.records
    terms = [record.event.controller_epoch for record in records if isinstance(record.event, ControllerElected)]
    resigned = [record.event.controller_epoch for record in records if isinstance(record.event, ControllerResigned)]
    assert terms == sorted(set(terms))
    assert len(terms) >= 2
    assert terms[0] in resigned


def a_session_wins_twice(seeds: int = 12) -> bool:
    for seed in range(seeds):
        records = simulate(scenario("cut-controller"), seed).report.records
        won = [record.event.session for record in records if isinstance(record.event, ControllerElected)]
        if len(set(won)) < len(won):
            return True
    return False


def test_a_leader_cut_off_for_longer_than_its_lease_stands_again_in_the_same_session() -> None:
    """S12, and what comes after it when the session lives on."""
    assert a_session_wins_twice()


# Planted faults: each must be found by some seed of the scenario that is about it.


def found(name: str, seeds: int = 25) -> str:
    """The first trouble that any seed finds; "" if none does."""
    return next((text for seed in range(seeds) if (text := violation(simulate(scenario(name), seed)))), "")


def test_a_lease_that_nobody_watches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """S12: cut off from ZooKeeper, it leads on for as long as nobody tells it otherwise."""
    monkeypatch.setattr(Controller, "void_reason", lambda self: None)
    monkeypatch.setattr(Controller, "lease_until_ms", lambda self: math.inf)
    assert not a_session_wins_twice()


def test_watches_that_are_not_set_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """S27: after a reconnection nobody is told of anything."""
    monkeypatch.setattr(StandingWatches, "connected", lambda self, same_session: None)
    assert "there is no controller" in found("killed-after-reconnection", seeds=5)


def test_a_broker_that_starts_in_the_middle_of_a_failover_does_not_tell_clients_that_there_are_no_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this seed a client asks it between the new controller's first request, of the brokers alone, and the next."""
    assert_passes(simulate(without_records("rolling-restart"), 95))
    monkeypatch.setattr(MetadataCache, "for_clients", property(lambda cache: cache.snapshot))
    assert "0 of 24 partitions led" in violation(simulate(without_records("rolling-restart"), 95))


def test_a_request_that_fails_in_its_handler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Broker, exchange: Any, request: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Broker, "_update_metadata", broken)
    result = simulate(load_scenario("broker-kill", {"recovery_ms": "100"}), 1)
    assert "no-defects" in violation(result)
    assert "planted" in violation(result)


def test_a_run_without_errors_is_not_accused_of_any() -> None:
    result = simulate(load_scenario("broker-kill"), 2)
    events = [record.event for record in result.report.records]
    assert not [event for event in events if isinstance(event, Noted) and event.level == "error"]
    assert not [event for event in events if isinstance(event, RequestRefused)]


# What the room may not use.


def test_nothing_in_the_simulator_knows_the_time_or_draws_from_a_global_stream() -> None:
    folder = Path(controller.simulator.__file__).parent
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
                assert not names & {"time", "datetime", "os", "threading", "asyncio", "uuid", "secrets"}, path.name
                assert "random" not in names or path.name == "randomness.py", path.name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                assert node.attr == "Random", f"{path.name}:{node.lineno}"


def test_the_recorder_is_in_order_of_time() -> None:
    records = simulate(scenario("cut-channel"), 5).report.records
    assert [record.at_ms for record in records] == sorted(record.at_ms for record in records)
    assert isinstance(Recorder().records, list)
