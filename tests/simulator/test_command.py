"""`camerlengo simulate`: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.cli import simulate as command
from controller.cli.main import main

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
    assert main(["simulate", "broker-kill", "--seed", "7"]) == 0
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
    assert "3 of 3 seeds, 0 did not pass" in captured.err


def test_many_seeds_as_json_are_a_list_of_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "broker-kill", "--seeds", "8..9", "--json", "--set", "topics=1"]) == 0
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
    assert main(["simulate", *words]) == 2
    assert capsys.readouterr().err.startswith("camerlengo simulate: ")


def test_ctrl_c_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "simulate", interrupted)
    assert main(["simulate", "broker-kill"]) == 130


@pytest.mark.parametrize(("text", "seeds"), [("0..0", [0]), ("3..5", [3, 4, 5]), ("-1..1", [-1, 0, 1])])
def test_a_range_of_seeds_includes_both_ends(text: str, seeds: list[int]) -> None:
    assert list(command.parse_seeds(text)) == seeds


@pytest.mark.parametrize(
    ("seeds", "text"),
    [([4], "4"), ([1, 2], "1, 2"), ([1, 2, 3, 5], "1..3, 5"), ([0, 7, 8, 9, 11, 12], "0, 7..9, 11, 12")],
)
def test_seeds_in_a_row_are_told_as_a_range(seeds: list[int], text: str) -> None:
    assert command.ranges(seeds) == text
