"""Plans as files: what is written is read back equal, and what can't be a plan is refused with where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

import controller.simulator
from controller.scenarios.faults import Fault, Operation, kinds
from controller.scenarios.files import ScenarioError, is_plan, load_plan, parse_plan, plan_text
from controller.simulator.plan_generator import draw_plan
from controller.simulator.swarm import run_plan
from controller.trace import FaultInjected

SOUND = """
plan = 1
name = "small"
seed = 7
core = [1, 2]
calm_ms = 3000

[cluster]
brokers = 3

[[happenings]]
do = "kill"
at_ms = 1000
node = 3
"""


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_that_is_written_is_read_back_equal(seed: int, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(plan_text(draw_plan(seed)))
    assert is_plan(file)
    assert load_plan(file) == draw_plan(seed)


def test_a_plan_may_say_little() -> None:
    plan = parse_plan(SOUND, "small.toml")
    assert (plan.seed, plan.core, len(plan.faults)) == (7, (1, 2), 1)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("plan = 1", "plan = 2", "expected format 1"),
        ("brokers = 3", "brokers = 0", "expected 1 or more brokers"),
        ("core = [1, 2]", "core = []", "core: expected some of"),
        ("core = [1, 2]", "core = [4]", "core: expected some of"),
        ("at_ms = 1000", "at_ms = 3001", r"happenings\[0\] \(kill\): at_ms: expected 0 to calm_ms"),
        ("node = 3", "node = 4", r"node: expected 1 to 3, found 4"),
        ('do = "kill"', 'do = "murder"', "murder"),
        ("node = 3", "", "node"),
        ("at_ms = 1000", "", r"happenings\[0\]: at_ms: expected a time"),
        ("seed = 7", "seed =", "not TOML"),
        (
            'do = "kill"\nat_ms = 1000\nnode = 3',
            'do = "kill-zookeeper"\nat_ms = 1\nserver = 2',
            "server: expected 1 to 1",
        ),
        (
            'do = "kill"\nat_ms = 1000\nnode = 3',
            'do = "create-topic"\nat_ms = 1\ntopic = "t"\npartitions = 1\nreplication_factor = 4',
            "replication_factor: expected 1 to 3",
        ),
        (
            'do = "kill"\nat_ms = 1000\nnode = 3',
            'do = "add-partitions"\nat_ms = 1\ntopic = "t"\npartitions = 0',
            r"Expected `int` >= 1 - at `\$\.happenings\[0\]\.partitions`",
        ),
        (
            'do = "kill"\nat_ms = 1000\nnode = 3',
            'do = "delete-topic"\nat_ms = 1\ntopic = ""',
            r"length >= 1 - at `\$\.happenings\[0\]\.topic`",
        ),
    ],
)
def test_what_can_be_no_plan_is_refused(was: str, now: str, why: str) -> None:
    assert was in SOUND
    with pytest.raises(ScenarioError, match=why):
        parse_plan(SOUND.replace(was, now), "small.toml")


def test_other_files_are_no_plans(tmp_path: Path) -> None:
    scenario, binary = tmp_path / "scenario.toml", tmp_path / "binary"
    scenario.write_text('name = "x"')
    binary.write_bytes(b"\xff\xfe")
    assert not any(is_plan(file) for file in (scenario, binary, tmp_path / "missing"))


def test_the_simulators_face_has_every_happening() -> None:
    names = {kind.__name__ for kind in kinds(Fault, Operation)}
    assert len(names) > 35
    assert names - {*dir(controller.simulator)} == set()


def test_a_plan_may_name_brokers_as_a_scenario_does() -> None:
    named = parse_plan(SOUND.replace("node = 3", 'node = "controller"\nas = "first"'), "named.toml")
    assert parse_plan(plan_text(named), "written") == named
    struck = [each.event for each in run_plan(named).records if isinstance(each.event, FaultInjected)]
    (killed,) = [each.target for each in struck if each.fault == "kill"][:1]
    assert killed in ("1", "2", "3")
