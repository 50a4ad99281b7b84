"""Scenario files: what they may say, how parameters are set, and what is said of bad ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.scenarios.faults import Cut, HealAll, Kill, Start, Step
from controller.scenarios.files import ScenarioError, built_in, load_scenario, parse_scenario
from controller.scenarios.language import CreateTopics, Wait
from controller.scenarios.records.section import expected_loss, workload_of

SMALL = """
name = "small"
[parameters]
brokers = 2
prefix = "orders"
fast = true
[cluster]
brokers = "${brokers}"
session_timeout_ms = 3000
settings = { "num.partitions" = 3 }
[[steps]]
do = "start"
[[steps]]
do = "create-topics"
prefix = "${prefix}-"
partitions = 2
replication_factor = "${brokers}"
[[steps]]
do = "cut"
source = 1
target = "zookeeper"
[[steps]]
do = "kill"
node = "controller"
as = "victim"
[[steps]]
do = "wait"
until = "gone"
node = "victim"
"""


def test_a_scenario_is_read_as_it_was_written() -> None:
    scenario = parse_scenario(SMALL, "small.toml")
    assert scenario.cluster.brokers == 2
    assert scenario.cluster.settings == {"num.partitions": 3}
    assert scenario.steps == (
        Start(),
        CreateTopics(prefix="orders-", partitions=2, replication_factor=2),
        Cut(source=1, target="zookeeper"),
        Kill(node="controller", name="victim"),
        Wait(until="gone", node="victim"),
    )


def test_parameters_are_set_by_name_and_keep_their_type() -> None:
    scenario = parse_scenario(SMALL, "small.toml", {"brokers": "4", "fast": "false", "prefix": "x"})
    assert scenario.cluster.brokers == 4
    assert scenario.parameters == {"brokers": 4, "prefix": "x", "fast": False}


@pytest.mark.parametrize("name", sorted(built_in()))
def test_every_built_in_scenario_is_sound_and_has_its_files_name(name: str) -> None:
    assert load_scenario(name).name == name


def test_a_users_scenario_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    assert load_scenario(str(path), {"brokers": "3"}).cluster.brokers == 3


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("name = ", {}, "not TOML"),
        ('name = "x"', {}, "steps"),
        ('name = "x"\nsteps = []\nsurprise = 1', {}, "surprise"),
        ('name = "x"\n[[steps]]\ndo = "explode"', {}, "explode"),
        ('name = "x"\n[[steps]]\ndo = "kill"', {}, "node"),
        ('name = "x"\n[[steps]]\ndo = "kill"\nnode = 1\nnodes = 2', {}, "nodes"),
        ('name = "x"\n[[steps]]\ndo = "wait"\nuntil = "doomsday"', {}, "doomsday"),
        ('name = "x"\n[[steps]]\ndo = "wait"\nuntil = "gone"', {}, "needs a node"),
        ('name = "x"\n[[steps]]\ndo = "restart"\nnode = 1\nhow = "softly"', {}, "softly"),
        ('name = "x"\n[[steps]]\ndo = "create-topics"\nreplication_factor = 4', {}, "replication_factor"),
        ('name = "x"\n[[steps]]\ndo = "create-topics"\npartitions = 0', {}, "1 or more"),
        ('name = "x"\nsteps = []\n[cluster]\nbrokers = 0', {}, "cluster.brokers"),
        ('name = "x"\nsteps = []\n[cluster]\nzookeeper_servers = 2', {}, "1 or 3"),
        ('name = "x"\nsteps = []\n[expect]\ninvariants = ["world-peace"]', {}, "world-peace"),
        ('name = "x"\nsteps = []\n[expect]\nfailovers = { earth = 1 }', {}, "earth"),
        ('name = "x"\nsteps = []\n[expect.at_most]\nmiracles = 0', {}, "miracles"),
        ('name = "x"\nsteps = []\n[expect.at_least]\nmiracles = 1', {}, "miracles"),
        ('name = "x"\n[[steps]]\ndo = "kill-zookeeper"', {}, "server"),
        ('name = "${who}"\nsteps = []', {}, "who"),
        (SMALL, {"brokers": "many"}, "brokers=many: expected int"),
        (SMALL, {"fast": "maybe"}, "expected bool"),
        (SMALL, {"racks": "3"}, "no parameter racks"),
    ],
)
def test_a_bad_scenario_is_refused_and_the_place_named(text: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        parse_scenario(text, "bad.toml", settings)
    assert "bad.toml" in str(refused.value) or "--set" in str(refused.value)


def test_a_name_that_is_neither_built_in_nor_a_file_is_refused() -> None:
    with pytest.raises(ScenarioError, match="broker-kill"):
        load_scenario("no-such-thing")


RECORDS = """
name = "records"
[parameters]
acks = "all"
[workload.records]
acks = "${acks}"
{more}
[[steps]]
do = "produce"
[[steps]]
do = "quiesce"
[expect]
{expect}
"""


def records(more: str = "", expect: str = "") -> str:
    return RECORDS.replace("{more}", more).replace("{expect}", expect)


def test_records_are_asked_for_with_parameters_too() -> None:
    section = parse_scenario(records("rate_per_s = 5\nidempotent = false"), "s", {"acks": "1"}).workload
    workload = workload_of(section, "real")
    assert workload is not None
    assert (workload.acks, workload.rate_per_s, workload.idempotent) == (1, 5.0, False)


def test_loss_is_expected_of_no_one_who_waits_for_all() -> None:
    workload = workload_of(parse_scenario(records(), "s").workload, "simulated")
    assert workload is not None
    assert expected_loss(None, workload) == "none"
    assert expected_loss("some", workload) == "some"
    assert expected_loss(None, replace(workload, acks=1)) == "any"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (records("rate_per_s = -1"), "rate_per_s: expected 0 to"),
        (records("simulated_rate_per_s = -1"), "simulated_rate_per_s"),
        (records("producers = 0"), "producers: expected 1"),
        (records("record_bytes = 3"), "record_bytes: expected 28"),
        (records("in_flight = 6"), "in_flight: expected 1 to 5"),
        (records().replace('acks = "all"', 'acks = "most"'), "acks: expected all"),
        (records().replace('acks = "all"', "acks = 1"), "idempotent: expected false"),
        (records(expect='lost = "much"'), "expect.lost: expected none"),
        (records(expect='invariants = ["duplicate", "luck"]'), "luck"),
        (records().replace('do = "quiesce"', 'do = "produce"'), "produce once"),
        (records().replace('do = "produce"', 'do = "quiesce"'), "produce once"),
        (records().replace("produce", "start").replace("quiesce", "start"), "no step produces"),
        ('name = "x"\n[[steps]]\ndo = "produce"', "needs \\[workload.records\\]"),
    ],
)
def test_records_that_cant_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse_scenario(text, "bad.toml")


@pytest.mark.parametrize(
    ("former", "now"), [('do = "mend"', HealAll()), ('do = "kill"\nnode = "nobody"', Kill(node="nobody"))]
)
def test_words_of_older_files_are_read_as_todays(former: str, now: Step) -> None:
    assert parse_scenario(SMALL + f"\n[[steps]]\n{former}\n", "x").steps[-1] == now


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ('do = "wait"\nuntil = "partition-state"', "needs a topic"),
        ('do = "wait"\nuntil = "leaders"\ntopic = "t"', "takes no topic"),
        ('do = "create-topics"\nassignment = [[1, 1]]', "expected different brokers of 1 to 2, found \\[1, 1\\]"),
        ('do = "create-topics"\nassignment = [[1], []]', "found \\[\\]"),
        ('do = "create-topics"\nassignment = [[3]]', "found \\[3\\]"),
    ],
)
def test_a_partition_that_can_not_be_is_refused(step: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse_scenario(SMALL + f"\n[[steps]]\n{step}\n", "x")
