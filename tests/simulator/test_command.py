"""`camerlengo simulate`: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.cli import simulate as command
from controller.cli.main import main
from controller.cli.values import seeds
from controller.simulator.randomness import Streams
from controller.simulator.run import ScenarioWorld
from tests.cli.ending import status_of

BROKEN = """
name = "broken"
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "metadata"
deadline_ms = 500
"""

CANT_RUN = """
name = "cant-run"
[[steps]]
do = "create-topics"
"""


def test_one_seed_prints_its_steps_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "broker-kill", "--seed", "7", "--set", "records=false"]) == 0
    printed = capsys.readouterr().out
    assert "kill broker" in printed
    assert "verdict: pass" in printed
    assert "seed 7, trace " in printed


def test_the_report_is_the_same_bytes_for_the_same_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("one", "two"):
        arguments = ["simulate", "controller-kill", "--seed", "3", "--json", "--report", str(tmp_path / folder)]
        assert main(arguments) == 0
    for file in ("report.json", "report.html", "trace.parquet", "sends.parquet", "reads.parquet"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert (report["format"], report["host"], report["seed"], report["verdict"]) == (1, "simulated", 3, "pass")
    assert [failover["kind"] for failover in report["failovers"]] == ["broker", "controller"] * 2
    printed = capsys.readouterr().out
    assert json.loads(printed[: len(printed) // 2]) == report


def test_many_seeds_end_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "broker-kill", "--seeds", "3..5", "--set", "records=false"]) == 0
    captured = capsys.readouterr()
    assert "3 of 3 seeds passed" in captured.out
    assert "broker    6" in captured.out
    assert "3 of 3 seeds, 0 failed" in captured.err


def test_seeds_of_a_scenario_are_shared_by_several_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(BROKEN)
    words = ["simulate", str(file), "--seeds", "3..14", "--json", "--report"]
    alone = main([*words, str(tmp_path / "alone")]), capsys.readouterr().out
    shared = main([*words, str(tmp_path / "shared"), "--jobs", "2"]), capsys.readouterr().out
    assert alone == shared
    assert alone[0] == 1
    assert [report["seed"] for report in json.loads(shared[1])] == [*range(3, 15)]
    written = sorted(path.name for path in (tmp_path / "shared").iterdir())
    assert written == ["index.html", *sorted(f"seed-{n}" for n in range(3, 15))]
    index = (tmp_path / "shared" / "index.html").read_bytes()
    assert index == (tmp_path / "alone" / "index.html").read_bytes()
    assert b"seed-3/report.html" in index


def test_many_seeds_as_json_are_a_list_of_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "broker-kill", "--seeds", "8..9", "--json", "--set", "records=false"]) == 0
    assert [report["seed"] for report in json.loads(capsys.readouterr().out)] == [8, 9]


def test_seeds_that_fail_come_first_with_the_command_that_replays_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(BROKEN)
    assert main(["simulate", str(file), "--seeds", "1..2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"camerlengo simulate {file} --seed 1"
    assert "steps-completed" in lines[1]
    assert "there are no topics yet" in lines[1]
    assert lines[2] == f"camerlengo simulate {file} --seed 2"
    assert lines[-1] == "0 of 2 seeds passed"


def test_a_run_that_could_not_be_made_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "cant-run.toml"
    file.write_text(CANT_RUN)
    assert main(["simulate", str(file)]) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-scenario"],
        ["broker-kill", "--set", "no_such=1"],
        ["broker-kill", "--set", "topics"],
        ["broker-kill", "--seeds", "5"],
        ["broker-kill", "--seeds", "5..3"],
        ["broker-kill", "--seeds", "a..b"],
    ],
)
def test_what_can_not_be_meant_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["simulate", *words]) == 2
    assert "camerlengo simulate: " in capsys.readouterr().err


def test_ctrl_c_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ScenarioWorld, "run", interrupted)
    assert main(["simulate", "broker-kill"]) == 130


@pytest.mark.parametrize(("text", "found"), [("0..0", [0]), ("3..5", [3, 4, 5])])
def test_a_range_of_seeds_includes_both_ends(text: str, found: list[int]) -> None:
    assert list(seeds(text)) == found


@pytest.mark.parametrize(
    ("seeds", "text"),
    [([4], "4"), ([1, 2], "1, 2"), ([1, 2, 3, 5], "1..3, 5"), ([0, 7, 8, 9, 11, 12], "0, 7..9, 11, 12")],
)
def test_seeds_in_a_row_are_told_as_a_range(seeds: list[int], text: str) -> None:
    assert command.ranges(seeds) == text


def test_a_scenario_is_stopped_looked_into_and_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    words = ["simulate", "controller-kill", "--seed", "3", "--set", "records=false"]
    assert main([*words, "--until", "2500", "--show", "2", "--log", str(log)]) == 0
    printed = capsys.readouterr().out
    assert "broker 2 at 2500.0 ms" in printed
    assert "process   broker-2/1, running" in printed
    assert "stopped at 2500.0 ms; nothing is judged" in printed
    assert "verdict" not in printed
    lines = log.read_text().splitlines()
    assert lines[0].split() == ["outside", "broker", "1", "broker", "2", "broker", "3"]
    assert float(lines[-1].split()[0]) <= 2500.0


def test_the_end_of_a_scenario_is_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "broker-kill", "--seed", "3", "--set", "records=false", "--show", "1", "--twice"]) == 0
    printed = capsys.readouterr().out
    assert "process   broker-1/1, running" in printed
    assert "verdict: pass" in printed
    assert "NOT REPEATABLE" not in printed


def test_a_scenario_that_is_not_repeatable_is_told_with_its_first_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = iter((1, 2, 3, 4))
    monkeypatch.setattr(Streams, "__init__", lambda self, seed: setattr(self, "seed", next(seeds)))
    words = ["simulate", "broker-kill", "--set", "records=false", "--twice"]
    assert main([*words, "--seed", "3"]) == 1
    assert "NOT REPEATABLE: event " in capsys.readouterr().out
    assert main([*words, "--seeds", "3..3"]) == 1
    assert "not repeatable: event " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--show", "9"], "expected a broker from 1 to 3"),
        (["--until", "100", "--json"], "has no report"),
        (["--until", "100", "--twice"], "has no report"),
        (["--seeds", "1..2", "--show", "1"], "expected one seed"),
        (["--plan", "x.toml"], "expected `swarm` or a plan file"),
        (["--tiers"], "--tiers: expected `swarm`, not a scenario"),
        (["--slow-devices"], "--slow-devices: expected `swarm`, not a scenario"),
    ],
)
def test_options_that_a_scenario_does_not_have(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["simulate", "broker-kill", *words]) == 2
    assert said in capsys.readouterr().err
