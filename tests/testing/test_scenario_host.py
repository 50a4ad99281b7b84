"""Scenarios in process, with real clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.scenarios.faults import IN_PROCESS
from controller.scenarios.files import built_in, load_scenario
from controller.scenarios.runner import refusal
from controller.testing.runs import ChaosRuns, RunNotPossible

SCENARIO = """
name = "in-process"
[cluster]
brokers = 3
session_timeout_ms = 1000
settings = { "min.insync.replicas" = 2, "transaction.state.log.num.partitions" = 1 }
[workload.transactions]
topics = "ledger-"
writers = 1
rate_per_s = 20
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "brokers"
[[steps]]
do = "create-topics"
prefix = "ledger-"
partitions = 2
replication_factor = 3
[[steps]]
do = "wait"
until = "metadata"
[[steps]]
do = "produce"
[[steps]]
do = "hold-transaction"
client = 0
at = "sent"
[[steps]]
do = "kill"
node = "leader:__transaction_state:0"
as = "coordinator"
[[steps]]
do = "release-transaction"
client = 0
[[steps]]
do = "wait"
until = "leaders"
after = "failure-noticed"
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "full-isr"
[expect]
all_registered = true
recovery_ms = 30_000
"""


@pytest.mark.chaos(host="memory")
@pytest.mark.timeout(120)
def test_a_coordinator_is_killed_within_a_transaction_in_process(chaos: ChaosRuns, tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO)
    report = chaos.run(file)
    assert report.host == IN_PROCESS
    held = {one.name: one.detail for one in report.judgement.invariants}
    assert "acknowledged records are there" in held["lost-write"]
    assert [failover.kind for failover in report.judgement.failovers].count("broker") == 1


def test_every_built_in_scenario_runs_in_process_but_those_that_kill_servers_of_zookeeper() -> None:
    refused = [name for name in built_in() if refusal(load_scenario(name), IN_PROCESS) is not None]
    assert refused == ["zookeeper-kill"]


def test_what_has_no_implementation_in_process_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RunNotPossible, match="kill-zookeeper is supported only on the hosts real and simulated"):
        ChaosRuns(tmp_path, host="memory").run("zookeeper-kill")
    with pytest.raises(ValueError, match="host 'docker': expected 'memory' or 'process'"):
        ChaosRuns(tmp_path, host="docker")  # type: ignore[arg-type]
