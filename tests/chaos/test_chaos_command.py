"""`camerlengo chaos` on real processes: the built-in scenarios hold, bad calls are told, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import eventually, running_with

RUN_S = 400
# A machine that has other things to do may give a broker nothing for some seconds: the sessions outlast that, and how
# soon a failover is over is for `camerlengo bench` to say.
ROOM = ["--set", "session_timeout_ms=10000", "--set", "recovery_ms=60000"]
OUTLASTED = ["--set", "session_timeout_ms=30000", "--set", "recovery_ms=60000"]
CHAOS = [sys.executable, "-m", "controller.cli", "chaos"]


def chaos(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHAOS, *words], capture_output=True, text=True, timeout=RUN_S, check=False)


@pytest.mark.parametrize(
    ("scenario", "room", "runs", "kinds"),
    [
        ("broker-kill --set rate=200", ROOM, 2, ["broker", "broker"]),
        ("rolling-restart --set records=false", OUTLASTED, 1, ["broker", "broker", "broker", "controller"]),
        ("zombie-controller --set records=false", ROOM, 1, ["broker", "controller"]),
        ("zookeeper-cut --set records=false --zookeeper=java", ROOM, 1, ["broker", "controller"]),
        ("bounce", OUTLASTED, 1, ["broker"]),
    ],
)
@pytest.mark.timeout(RUN_S + 60)
def test_a_fault_is_survived_and_nothing_is_left(
    scenario: str, room: list[str], runs: int, kinds: list[str], tmp_path: Path
) -> None:
    reports, folder = tmp_path / "report", tmp_path / "run"
    result = chaos(*scenario.split(), *room, "--runs", str(runs), "--report", str(reports), "--keep", str(folder))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("\nverdict: pass") == runs
    for place in [reports] if runs == 1 else [reports / f"run-{number}" for number in range(1, runs + 1)]:
        check_report(place, kinds)
    assert running_with(str(folder)) == []


def check_report(place: Path, kinds: list[str]) -> None:
    report = json.loads((place / "report.json").read_text())
    assert (report["format"], report["host"], report["seed"], report["verdict"]) == (1, "real", None, "pass")
    assert [failover["kind"] for failover in report["failovers"]] == kinds
    for failover in report["failovers"]:
        assert failover["fault_at_ms"] < failover["detected_at_ms"] < failover["recovered_at_ms"]
        assert failover["partitions"] > 0
    assert all(invariant["held"] for invariant in report["invariants"])
    assert (place / "report.html").stat().st_size > 0
    assert (place / "trace.parquet").stat().st_size > 0


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_however_the_command_ends_no_process_is_left(ending: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen([*CHAOS, "broker-kill", "--keep", str(folder)], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        lines = iter(command.stdout.readline, "")
        assert any("create" in line for line in lines)  # ZooKeeper and the brokers are up
        assert len(running_with(str(folder))) >= 4
        command.send_signal(ending)
        command.communicate(timeout=RUN_S)
    eventually(lambda: running_with(str(folder)) == [], "every process of the run has ended")
    if ending is signal.SIGINT:
        assert command.returncode == 130


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["no-such-scenario"], 2, "no-such-scenario"),
        (["broker-kill", "--set", "brokers"], 2, "KEY=VALUE"),
        (["broker-kill", "--set", "brokers=some"], 2, "brokers=some"),
        (["broker-kill", "--set", "colour=red"], 2, "colour"),
        (["broker-kill", "--runs", "0"], 2, "argument --runs"),
        (["broker-kill", "--zookeeper-jars", "/nowhere"], 3, "/nowhere"),
        (["zookeeper-kill", "--zookeeper=python"], 2, "3 servers need --zookeeper=java"),
    ],
)
def test_a_call_that_can_not_be_carried_out_says_why(words: list[str], status: int, said: str) -> None:
    result = chaos(*words)
    assert result.returncode == status, result.stdout + result.stderr
    assert said in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_a_step_that_fails_fails_the_run(tmp_path: Path) -> None:
    scenario = tmp_path / "vain.toml"
    scenario.write_text(
        'name = "vain"\n[cluster]\nbrokers = 1\n[[steps]]\ndo = "start"\n[[steps]]\ndo = "wait"\nuntil = "registered"\n'
        '[[steps]]\ndo = "wait"\nuntil = "gone"\nnode = 1\ndeadline_ms = 100\n'
    )
    result = chaos(str(scenario))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "broker 1 is still registered" in result.stdout


def test_a_broker_that_can_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    scenario = tmp_path / "bad.toml"
    scenario.write_text(
        'name = "bad"\n[cluster]\nbrokers = 1\nsettings = { "num.partitions" = "none" }\n'
        '[[steps]]\ndo = "start"\n[[steps]]\ndo = "wait"\nuntil = "registered"\n'
    )
    result = chaos(str(scenario))
    assert result.returncode == 3, result.stdout + result.stderr
    assert "num.partitions" in result.stdout


def test_loss_with_acks_of_1_is_found(tmp_path: Path) -> None:
    result = chaos("acks-1-loss", "--set", "rate=200", *ROOM, "--report", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["records"]["lost"] > 0
    assert [each["fault"] for each in report["latency"]] == ["cut", "cut", "kill", "heal", "heal"]
    assert (tmp_path / "sends.parquet").stat().st_size > 0
