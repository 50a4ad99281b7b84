"""The swarm: a seed is a plan and a run; faults planted in our own code are found, and shrunk to what they need."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.cli import simulate_plan
from controller.cli.main import main
from controller.scenarios.faults import (
    BreakLogDirectory,
    CreateTopic,
    ElectLeaders,
    Isolate,
    Kill,
    PauseController,
    Reassign,
    Reset,
    SetConfig,
    SlowDevice,
    kind_of,
)
from controller.scenarios.files import plan_error
from controller.scenarios.language import ClusterSpec, Outside, Plan
from controller.simulator import shrinking
from controller.simulator.columns import first_difference
from controller.simulator.plan_generator import FAULTS as KINDS
from controller.simulator.plan_generator import draw_plan
from controller.simulator.shrinking import Shrinker
from controller.simulator.swarm import PlanWorld, run_plan
from controller.trace import FaultInjected, Noted
from controller.trace_records import TraceRecord
from tests.cli.ending import status_of
from tests.simulator import planted


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_of_the_swarm_holds(seed: int) -> None:
    run = run_plan(draw_plan(seed))
    assert run.violation is None, str(run.violation)
    assert run.rest_ms is not None


@pytest.mark.parametrize("tiers", [False, True])
def test_devices_are_slow_in_every_seed_on_demand(tiers: bool) -> None:
    for seed in range(40):
        plan = draw_plan(seed, tiers=tiers, slow_devices=True)
        slow = {one.directory for one in plan.faults if isinstance(one, SlowDevice)}
        assert slow
        assert slow <= set(str(plan.cluster.settings["log.dirs"]).split(","))
        assert plan.records is not None
        assert "replica.lag.time.max.ms" in plan.cluster.settings
        assert plan_error(plan) is None
    assert run_plan(plan).violation is None


def test_a_deletion_goes_on_once_a_replica_is_given_back() -> None:
    """Its broker's device had no answer when its log was to be made; the deletion waited for good."""
    run = run_plan(draw_plan(95046, slow_devices=True))
    assert run.violation is None, str(run.violation)


MORE: tuple[str, ...] = (
    "break-log-directory",
    "change-producer",
    "pause-controller",
    "edit-controller",
    "edit-controller-epoch",
    "spoil-znode",
    "change-registration",
    "ask-isr",
    "hostile-client",
    "change-member",
    "slow-device",
)
OPERATIONS = ("create-topic", "delete-topic", "add-partitions", "reassign", "elect-leaders", "set-config")


def test_most_plans_draw_no_more_than_they_did() -> None:
    """What operators do besides has a stream of its own, so that most seeds mean what they meant."""
    drawn = [draw_plan(seed) for seed in range(60)]
    more = (ElectLeaders, SetConfig, PauseController, BreakLogDirectory)
    without = [one for one in drawn if not any(isinstance(each, more) for each in one.happenings)]
    assert 15 < len(without) < 50


def test_what_is_drawn_is_of_every_kind_and_size() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    assert plans[7] == draw_plan(7) != plans[8]
    assert {plan.cluster.brokers for plan in plans} == {3, 4, 5, 7}
    assert {plan.outside for plan in plans} == set(Outside)
    assert {kind_of(each) for plan in plans for each in plan.faults} == {*KINDS, *MORE}
    assert {kind_of(each) for plan in plans for each in plan.happenings} == {*KINDS, *MORE, *OPERATIONS}
    assert all(plan_error(plan) is None for plan in plans)
    assert any(len(plan.core) < plan.cluster.brokers for plan in plans)
    assert all(2 * len(plan.core) > plan.cluster.brokers for plan in plans)


_HASHES = """
from controller.simulator.plan_generator import draw_plan
from controller.simulator.swarm import run_plan
for seed in (5,):
    run = run_plan(draw_plan(seed))
    print(run.violation, len(run.records), run.trace_hash)
"""


def test_a_seed_means_the_same_run_in_every_process() -> None:
    outputs = []
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        finished = subprocess.run(
            [sys.executable, "-c", _HASHES], env=environment, capture_output=True, text=True, timeout=170, check=False
        )
        assert finished.returncode == 0, finished.stderr
        outputs.append(finished.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("None ") == 1


def test_two_runs_that_differ_are_told_apart_at_their_first_event() -> None:
    records = [TraceRecord(float(at), 1, Noted("info", str(at))) for at in range(4)]
    other = [*records[:2], TraceRecord(2.0, 1, Noted("info", "else")), *records[3:]]
    assert first_difference(records, list(records)) is None
    assert "event 2" in (first_difference(records, other) or "")
    assert "nothing more" in (first_difference(records, records[:3]) or "")


FOUND_SOON = {
    "owner-not-checked": 0,
    "epoch-from-zookeeper": 10,
    "last-member-removed": 0,
    "shrinking-keeps-the-epoch": 0,
    "pause-end-unheard": 16,
    "bounce-before-the-term-unnoticed": 24,
    "a-later-leader-is-fenced": 37,
    "isr-change-at-any-version": 37,
    "zookeeper-checks-not-made": 5,
    "zookeeper-session-outlives-its-timeout": 0,
    "zookeeper-watches-lost-on-reconnect": 0,
}
"""By the seed that found it when last looked for."""


def soon(fault: str) -> range:
    return range(FOUND_SOON[fault], FOUND_SOON[fault] + 20)


@pytest.mark.parametrize("fault", FOUND_SOON)
def test_a_planted_fault_is_found(fault: str) -> None:
    """A few of those that few seeds find; the whole table is in docs/swarm-faults.md."""
    found = planted.search(fault, soon(fault))
    assert found.violation is not None, f"not in {found.seeds} seeds"


def test_a_run_stops_where_something_breaks_and_says_whose_doing_it_was() -> None:
    found = planted.search("owner-not-checked", soon("owner-not-checked"))
    assert found.violation is not None
    assert found.violation.invariant == "one-writer-an-epoch"
    assert found.violation.nodes
    assert str(found.violation.nodes[0]) in str(found.violation)


def test_shrinking_keeps_what_breaks_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted.search("owner-not-checked", soon("owner-not-checked"))
    assert found.plan is not None
    assert found.violation is not None
    planted.FAULTS["owner-not-checked"](monkeypatch)
    least = Shrinker(found.violation, runs=60).shrink(found.plan)
    again = run_plan(least).violation
    assert again is not None
    assert again.invariant == "one-writer-an-epoch"
    assert least.cluster.brokers <= 3
    assert len(least.faults) <= 5


def test_every_plan_can_be_made_smaller() -> None:
    """Each kind of happening is known to each way of it, those on whoever leads a partition, too."""
    ways = (partial(shrinking._without_pieces, size=4), shrinking._without_a_broker, shrinking._simpler)
    for seed in range(100):
        for plan in (draw_plan(seed), draw_plan(seed, tiers=True), draw_plan(seed, slow_devices=True)):
            smaller = [each for way in (*ways, shrinking._sooner) for each in islice(way(plan), 10)]
            assert any(plan_error(each) is None for each in smaller), seed


def test_without_a_broker_the_replicas_of_a_reassignment_move_up() -> None:
    plan = small(
        *(Reassign(at_ms=2_000.0, topic="t", partition=0, replicas=replicas) for replicas in ([3, 1], [2], []))
    )
    found = [
        [one.replicas for one in smaller.happenings if isinstance(one, Reassign)]
        for smaller in shrinking._without_a_broker(plan)
    ]
    assert found == [[[1], [2], []], [[2, 1], []], [[2], [1], []]]


def small(*happenings: object, **changes: object) -> Plan:
    return Plan(
        name="small",
        seed=1,
        cluster=ClusterSpec(brokers=3),
        core=(1, 2, 3),
        calm_ms=6_000.0,
        happenings=(
            CreateTopic(at_ms=1_000.0, topic="t", partitions=3, replication_factor=3),
            *happenings,  # type: ignore[arg-type]
        ),
        **changes,  # type: ignore[arg-type]
    )


def test_a_run_can_be_stopped_and_looked_into() -> None:
    world = PlanWorld(small(Kill(at_ms=2_000.0, node=2)))
    assert world.finish(until_ms=3_000.0) is None
    assert world.now_ms == 3_000.0
    assert not world.host.processes[2].alive
    assert world.host.processes[1].alive
    assert world.result(None).violation is None


@pytest.mark.parametrize("outside", list(Outside))
def test_the_core_rests_without_those_outside(outside: Outside) -> None:
    run = run_plan(replace(small(Isolate(at_ms=1_500.0, node=3, for_ms=500.0)), core=(1, 3), outside=outside))
    assert run.violation is None, str(run.violation)
    assert run.rest_ms is not None


def test_a_fault_that_makes_no_sense_does_nothing() -> None:
    run = run_plan(small(Kill(at_ms=3_000.0, node=2, for_ms=1_000.0), Kill(at_ms=3_500.0, node=2, for_ms=100.0)))
    killed = [
        record for record in run.records if isinstance(record.event, FaultInjected) and record.event.fault == "kill"
    ]
    assert run.violation is None, str(run.violation)
    assert len(killed) == 1


def test_a_broken_off_connection_delivers_late_and_nothing_comes_of_it() -> None:
    """S29, S33: what a former connection still carries, or a former life was sent."""
    late = [Reset(at_ms=1_000.0 + 40.0 * n, source=1, target=2 + n % 2, late_ms=700.0) for n in range(20)]
    run = run_plan(small(*late, Kill(at_ms=1_300.0, node=2, for_ms=50.0)))
    assert run.violation is None, str(run.violation)


def test_what_was_acknowledged_and_is_not_there_is_found() -> None:
    world = PlanWorld(small())
    world.run_to(5_000.0)
    (asked,) = world.administrator.asked
    assert asked.acknowledged
    never_made = CreateTopic(at_ms=600.0, topic="never-made", partitions=1, replication_factor=1)
    world.administrator.asked.append(dataclasses.replace(asked, operation=never_made))
    assert world.finish() is None
    violation = world.result(None).violation
    assert violation is not None
    assert violation.invariant == "acknowledged-operations"


# -- the command


def test_the_command_replays_one_seed_and_shows_the_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, log = tmp_path / "plan.toml", tmp_path / "log.txt"
    words = [
        "simulate",
        "swarm",
        "--seed",
        "5",
        "--until",
        "8000",
        "--show",
        "1",
        "--plan",
        str(plan),
        "--log",
        str(log),
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "broker 1 at 8000.0 ms" in printed
    assert "session   0x" in printed
    header = log.read_text().splitlines()[0].split()
    assert header[:5] == ["outside", "broker", "1", "broker", "2"]
    assert main(["simulate", str(plan), "--json", "--twice"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["seed"], report["verdict"], report["difference"]) == (5, "pass", None)
    assert report["trace"] == run_plan(draw_plan(5)).trace_hash


def test_what_breaks_is_told_with_how_to_replay_it_and_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planted.search("owner-not-checked", soon("owner-not-checked"))
    assert found.plan is not None
    seed = found.plan.seed
    planted.FAULTS["owner-not-checked"](monkeypatch)
    assert main(["simulate", "swarm", "--seeds", f"{seed}..{seed}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"camerlengo simulate swarm --seed {seed}"
    assert "one-writer-an-epoch" in lines[1]
    monkeypatch.setattr("controller.simulator.shrinking.RUNS", 10)
    least = tmp_path / "least.toml"
    assert main(["simulate", "swarm", "--seed", str(seed), "--shrink", str(least)]) == 1
    assert "VIOLATED one-writer-an-epoch" in capsys.readouterr().out
    assert main(["simulate", str(least)]) == 1


def test_an_error_in_one_seed_is_its_violation_and_the_others_are_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(plan: Plan) -> None:
        raise RuntimeError(f"planted in {plan.seed}")

    monkeypatch.setattr(simulate_plan, "run_plan", failing)
    assert main(["simulate", "swarm", "--seeds", "6..7", "--report", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "no-defects: RuntimeError: planted in 6" in said
    assert "simulate swarm --seed 7" in said


def test_several_processes_tell_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for jobs in ("1", "2"):
        assert main(["simulate", "swarm", "--seeds", "6..9", "--jobs", jobs, "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert [report.pop("cpu_s_median") > 0 for report in reports] == [True, True]
    assert reports[0] == reports[1]
    assert reports[0]["seeds"] == 4


@pytest.mark.parametrize(
    "words",
    [
        ["swarm", "--set", "a=b"],
        ["swarm", "--seeds", "3"],
        ["swarm", "--show", "99"],
        ["swarm", "--jobs", "0"],
    ],
)
def test_what_can_not_be_meant_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["simulate", *words]) == 2
    assert "camerlengo simulate: " in capsys.readouterr().err
