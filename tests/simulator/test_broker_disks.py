"""Simulated brokers that hold records: the scenarios pass as without logs, a seed is a run, and a disk outlives its
broker's lives but for what was not synced."""

from __future__ import annotations

import msgspec
import pytest

from controller.scenarios.files import load_scenario
from controller.scenarios.language import Scenario
from controller.simulator.run import simulate


def with_logs(name: str) -> Scenario:
    scenario = load_scenario(name)
    settings = {**scenario.cluster.settings, "log.dirs": "/logs"}
    return msgspec.structs.replace(scenario, cluster=msgspec.structs.replace(scenario.cluster, settings=settings))


@pytest.mark.parametrize("name", ["broker-kill", "rolling-restart", "zookeeper-cut"])
@pytest.mark.parametrize("seed", range(2))
def test_brokers_with_logs_pass_and_a_seed_is_a_run(name: str, seed: int) -> None:
    first, again = (simulate(with_logs(name), seed) for _ in range(2))
    assert first.report.verdict == "pass", [each.detail for each in first.report.judgement.invariants if not each.held]
    assert first.trace_hash == again.trace_hash
