"""Faults of ways, clocks, replies and disks as steps of scenarios: what plans have, and none on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.chaos.host import REAL_FAULTS
from controller.cli.main import main
from controller.scenarios.faults import (
    IN_PROCESS,
    REAL,
    SIMULATED,
    AskIsr,
    Fault,
    HostFailure,
    Kill,
    Operation,
    Pause,
    Slow,
    Step,
    kind_of,
    kinds,
    unsupported,
)
from controller.scenarios.files import ScenarioError, parse_scenario
from controller.simulator.faults import SIMULATED_FAULTS
from controller.simulator.run import SimulationResult, simulate
from controller.testing.scenario_host import IN_PROCESS_FAULTS
from controller.trace import FaultInjected, StepEnded, StepStarted


def test_each_host_implements_the_faults_that_are_declared_for_it() -> None:
    for host, implementations in (
        (REAL, REAL_FAULTS),
        (SIMULATED, SIMULATED_FAULTS),
        (IN_PROCESS, IN_PROCESS_FAULTS),
    ):
        declared = {kind for kind in kinds(Fault) if host in kind.hosts}
        assert set(implementations) == declared - {AskIsr}  # which the administrator asks


def test_every_fault_and_operation_says_what_it_does_and_what_ends_it() -> None:
    steps = {kind_of(kind) for kind in kinds(Fault, Operation)}
    assert len(steps) > 35
    enders = {kind_of(kind) for kind in kinds(Step)} - steps
    for kind in kinds(Fault):
        assert kind.__doc__, kind
        assert issubclass(kind, Fault)
        assert kind.ended_by in enders, kind


def test_a_host_without_an_implementation_says_so() -> None:
    slow = Slow(source=1, target=2, slower=3.0)
    assert unsupported(slow, SIMULATED) is None
    assert unsupported(slow, REAL) == "slow is supported only in simulation"
    assert unsupported(Kill(node=1), REAL) is None
    paused = unsupported(Pause(node=1, for_ms=5), REAL)
    assert paused == "pause: for_ms is supported only in simulation; end it with the step resume"
    with pytest.raises(HostFailure, match="slow is supported only in simulation"):
        REAL_FAULTS[slow]


HEAD = """
name = "faults"
[cluster]
brokers = 3
zookeeper_servers = 3
{cluster}
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "brokers"
[[steps]]
do = "create-topics"
partitions = 4
replication_factor = 3
[[steps]]
do = "wait"
until = "metadata"
"""
TAIL = """
[[steps]]
do = "let-run"
ms = 1500
[[steps]]
do = "heal-all"
[[steps]]
do = "wait"
until = "registered"
[[steps]]
do = "wait"
until = "metadata"
[[steps]]
do = "wait"
until = "full-isr"
[expect]
all_registered = true
recovery_ms = 20_000
"""
WITH_LOGS = 'settings = { "log.dirs" = "/logs", "replica.lag.time.max.ms" = 1000 }'


def run(*steps: str, cluster: str = "", seed: int = 3) -> SimulationResult:
    text = HEAD.format(cluster=cluster) + "".join(f"[[steps]]\n{step}\n" for step in steps) + TAIL
    return simulate(parse_scenario(text, "faults"), seed)


@pytest.mark.parametrize(
    "step",
    [
        'do = "drift"\nnode = "controller"\nrate = 1.5',
        'do = "step-wall"\nnode = "controller"\nby_ms = -3600000',
        'do = "cut-zookeeper"\nnode = "controller"\nway = "to"',
        'do = "cut-zookeeper"\nnode = "not-controller"\nway = "from"\nfor_ms = 700',
        'do = "slow-zookeeper"\nnode = "controller"\nslower = 100.0',
        'do = "reset-zookeeper"\nnode = "controller"',
        'do = "lose-reply"\nnode = "controller"\napplied = true',
        'do = "delete-controller"',
        'do = "depose"\nfor_ms = 800',
        'do = "elect-zookeeper"',
        'do = "pause-controller"\nfor_ms = 800',
        'do = "shut"\nsource = "controller"\ntarget = "not-controller"',
        'do = "slow"\nsource = "controller"\ntarget = "not-controller"\nslower = 30.0\nmore_ms = 100.0',
        'do = "lossy"\nsource = "controller"\ntarget = "not-controller"\nloss = 0.3',
        'do = "reset"\nsource = "controller"\ntarget = "not-controller"\nlate_ms = 300.0',
        'do = "isolate"\nnode = "leader:topic-0:0"\nfor_ms = 500',
        'do = "change-registration"\nnode = "not-controller"\nrack = "other"',
        'do = "hostile-client"\nnode = "controller"\nkind = "operations"\nfor_ms = 800',
        'do = "hostile-client"\nnode = "controller"\nkind = "frames"\nfor_ms = 800',
    ],
    ids=lambda step: step.splitlines()[0].partition('"')[2].strip('"'),
)
def test_a_scenario_has_it_and_is_over_it_in_the_end(step: str) -> None:
    result = run(step)
    assert result.report.verdict == "pass", [each for each in result.report.judgement.invariants if not each.held]
    kind = step.splitlines()[0].partition('"')[2].strip('"')
    assert any(isinstance(each.event, FaultInjected) and each.event.fault == kind for each in result.report.records)
    assert any(
        isinstance(each.event, StepStarted) and each.event.text.startswith(kind) for each in result.report.records
    )


@pytest.mark.parametrize(
    "step",
    [
        'do = "lose-power"\nnode = 2\nfor_ms = 300',
        'do = "break-disk"\nnode = 2\nfor_ms = 500',
        'do = "slow-disk"\nnode = 2\na_change_ms = 20.0',
    ],
)
def test_a_scenario_has_faults_of_disks_where_brokers_hold_logs(step: str) -> None:
    until_its_old_session_is_over = 'do = "let-run"\nms = 3000'
    result = run(step, until_its_old_session_is_over, cluster=WITH_LOGS)
    assert result.report.verdict == "pass", [each for each in result.report.judgement.invariants if not each.held]


@pytest.mark.parametrize("for_ms", [0, 500])
def test_one_of_a_brokers_log_directories_fails(for_ms: int) -> None:
    """It is noticed by whoever makes a log there, and no defect. For good: what is there is never in sync again."""
    result = run(
        f'do = "break-log-directory"\nnode = 2\ndirectory = "/logs/a"\nfor_ms = {for_ms}',
        'do = "create-topics"\nprefix = "more-"\npartitions = 4\nreplication_factor = 3',
        'do = "let-run"\nms = 3000',
        cluster=WITH_LOGS.replace("/logs", "/logs/a,/logs/b"),
    )
    texts = [str(each.event) for each in result.report.records if each.node == 2]
    assert any("/logs/a is offline" in text for text in texts)
    assert not any("/logs/b is offline" in text for text in texts)
    broken = [each.name for each in result.report.judgement.invariants if not each.held]
    assert broken == ([] if for_ms else ["steps-completed"])


def test_a_fault_that_makes_no_sense_is_said_to() -> None:
    result = run('do = "slow-disk"\nnode = 2\na_change_ms = 20.0')
    assert result.could_not_run
    assert "slow-disk" in str(result.report.judgement.invariants)


def test_a_way_that_is_shut_for_good_is_found() -> None:
    """Nothing mends it: the broker that hears nothing of the controller shows old metadata for ever."""
    steps = ['do = "shut"\nsource = "controller"\ntarget = "not-controller"', 'do = "kill"\nnode = 3\nas = "gone"']
    text = HEAD.format(cluster="") + "".join(f"[[steps]]\n{step}\n" for step in steps)
    text += '[[steps]]\ndo = "wait"\nuntil = "gone"\nnode = "gone"\n[[steps]]\ndo = "let-run"\nms = 3000\n'
    assert any(simulate(parse_scenario(text, "shut"), seed).report.verdict == "fail" for seed in range(4))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ('do = "lossy"\nsource = 1\ntarget = 2\nloss = 1.5', "Expected `float` < 1.0 - at `$.steps[4].loss`"),
        ('do = "slow"\nsource = 1\ntarget = 2\nslower = 0', "Expected `float` > 0.0 - at `$.steps[4].slower`"),
        ('do = "cut-zookeeper"\nnode = 1\nway = "up"', "Invalid enum value 'up' - at `$.steps[4].way`"),
        ('do = "slow"\nsource = 1\nslower = 2.0', "missing required field `target`"),
        ('do = "slow"\nsource = 1\ntarget = 2\nslower = 2.0\nmost_ms = 5', "unknown field"),
    ],
)
def test_a_fault_that_can_not_be_meant_is_refused_with_its_place(step: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=r"steps\[4\]|\$\.steps\[4\]") as refused:
        parse_scenario(HEAD.format(cluster="") + f"[[steps]]\n{step}\n", "x")
    assert said in str(refused.value)


def test_a_step_begins_at_its_time_or_when_the_one_before_has_ended() -> None:
    steps = ('do = "pause"\nnode = 1\nat_ms = 9000\nfor_ms = 100', 'do = "delete-controller"\nat_ms = 1')
    began = {each.event.step: each.at_ms for each in run(*steps).report.records if isinstance(each.event, StepStarted)}
    assert began["pause"] == began["delete-controller"] == 9_000.0


def test_a_scenario_has_operations_too() -> None:
    result = run(
        'do = "create-topic"\ntopic = "more"\npartitions = 2\nreplication_factor = 3',
        'do = "ask-isr"\ntopic = "topic-0"\npartition = 0\nhow = "ahead"',
    )
    assert result.report.verdict == "pass", [each for each in result.report.judgement.invariants if not each.held]
    refused = run('do = "delete-topic"\ntopic = "no-such-topic"')
    assert refused.could_not_run
    assert "delete-topic topic=no-such-topic: error" in str(refused.report.judgement.invariants)


@pytest.mark.parametrize("step", ['do = "lossy"\nsource = 1\ntarget = 2\nloss = 0.1', 'do = "heal-all"'])
def test_real_processes_refuse_it_by_name_before_anything_is_started(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "faults.toml"
    file.write_text(HEAD.format(cluster="") + f"[[steps]]\n{step}\n")
    assert main(["chaos", str(file)]) == 2
    kind = step.splitlines()[0].partition('"')[2].strip('"')
    assert f"steps[4]: {kind} is supported only in simulation" in capsys.readouterr().err


NOTICED = """
name = "noticed"
cluster = { brokers = 3, session_timeout_ms = 2000 }
steps = [
  { do = "start" },
  { do = "wait", until = "brokers" },
  { do = "create-topics", partitions = 3, replication_factor = 3 },
  { do = "wait", until = "metadata" },
  { do = "kill", node = "not-controller", as = "victim" },
  { do = "wait", until = "metadata" AFTER },
]
"""


@pytest.mark.parametrize(
    ("after", "least_ms", "most_ms"), [("", 0, 200), (', after = "failure-noticed"', 1_000, 4_000)]
)
def test_a_wait_can_be_put_off_until_the_failure_was_noticed(after: str, least_ms: float, most_ms: float) -> None:
    """Without it the wait after a kill is over at once: the client's view is still the one from before."""
    records = simulate(parse_scenario(NOTICED.replace("AFTER", after), "noticed"), 1).report.records
    began_ms = max(record.at_ms for record in records if isinstance(record.event, StepStarted))
    ended_ms = max(record.at_ms for record in records if isinstance(record.event, StepEnded))
    assert least_ms <= ended_ms - began_ms <= most_ms


def test_a_milestone_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScenarioError, match="after: no 'never'; there are failure-noticed"):
        parse_scenario(NOTICED.replace("AFTER", ', after = "never"'), "noticed")
