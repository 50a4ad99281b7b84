"""Faults of ways, clocks, replies and disks as steps of scenarios: what plans have, and none on real processes."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest

from controller.cli.main import main
from controller.scenarios import faults
from controller.scenarios.faults import HealAll, InjectedFault, SimulatedFault, fault_error, kind_of
from controller.scenarios.files import ScenarioError, parse_scenario
from controller.scenarios.language import AnyStep
from controller.simulator import plan
from controller.simulator.faults import as_happening
from controller.simulator.run import SimulationResult, simulate
from controller.trace import FaultInjected, StepEnded, StepStarted

FAULTS: dict[str, type[InjectedFault]] = {
    str(kind.__struct_config__.tag): kind for kind in typing.get_args(SimulatedFault)
}
STEPS = {str(kind.__struct_config__.tag) for kind in typing.get_args(AnyStep)}
HAPPENINGS: dict[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in typing.get_args(plan.Fault)
}
PLANS_ALONE = {"ask-isr"}
"""A request whose answer the checker of plans alone judges (`stray-isrs-refused`)."""
FIELDS_OF_PLANS = {"at_ms", "after_calm_ms"}
"""When it begins, and ends; a scenario has no calm."""


def test_every_fault_of_a_plan_is_a_step_and_has_the_same_fields() -> None:
    assert FAULTS.keys() == HAPPENINGS.keys() - (STEPS - FAULTS.keys()) - PLANS_ALONE
    for name, kind in FAULTS.items():
        assert set(kind.__struct_fields__) - {"when"} == set(HAPPENINGS[name].__struct_fields__) - FIELDS_OF_PLANS, name


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
do = "mend"
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
        ('do = "lossy"\nsource = 1\ntarget = 2\nloss = 1.5', "loss: expected 0 to below 1"),
        ('do = "slow"\nsource = 1\ntarget = 2\nslower = 0', "slower: expected more than 0"),
        ('do = "cut-zookeeper"\nnode = 1\nway = "up"', "way: expected both, to or from"),
        ('do = "slow"\nsource = 1\nslower = 2.0', "missing required field `target`"),
        ('do = "slow"\nsource = 1\ntarget = 2\nslower = 2.0\nat_ms = 5', "unknown field"),
    ],
)
def test_a_fault_that_can_not_be_meant_is_refused_with_its_place(step: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=r"steps\[4\]|\$\.steps\[4\]") as refused:
        parse_scenario(HEAD.format(cluster="") + f"[[steps]]\n{step}\n", "x")
    assert said in str(refused.value)


def test_a_scenarios_fault_is_the_plans() -> None:
    fault = faults.Slow(source=1, target=2, slower=3.0, for_ms=4.0)
    assert as_happening(fault, 9.0) == plan.Slow(at_ms=9.0, source=1, target=2, slower=3.0, for_ms=4.0)
    assert fault_error(fault) is None
    assert (kind_of(fault), kind_of(HealAll())) == ("slow", "mend")


@pytest.mark.parametrize("step", ['do = "lossy"\nsource = 1\ntarget = 2\nloss = 0.1', 'do = "mend"'])
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
