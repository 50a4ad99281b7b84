"""`camerlengo lab latency` on real processes: the parts of every record add up."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from controller.cli.main import main
from controller.labs.latency.service_times import MEASURED


@pytest.mark.parametrize("brokers", [1, 3])
def test_the_parts_of_records_add_up(brokers: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "latency", "--seconds", "1", "--rate", "300", "--brokers", str(brokers), "--json"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["records"] >= 250
    assert figures["parts add up"] >= 0.999
    assert figures["not delivered"] == figures["stamps dropped"] == 0
    commit = figures["parts ms"]["commit"]["p50"]
    assert commit > 0 if brokers == 3 else commit == 0


def test_a_running_cluster_is_measured_without_its_replication(capsys: pytest.CaptureFixture[str]) -> None:
    from controller.hosts.local_cluster import LocalCluster

    with LocalCluster(2) as cluster:
        words = ["lab", "latency", "--seconds", "1", "--rate", "200", "--brokers", "1", "--json", "--bootstrap"]
        assert main([*words, cluster.bootstrap_servers.split(",")[1]]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["parts add up"] >= 0.999


def test_a_workload_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "latency", "--spec", "/no/such/file.json"]) == 3
    assert "/no/such/file.json" in capsys.readouterr().err


def test_an_experiment_runs_on_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    times.write_bytes(msgspec.json.encode(MEASURED["camerlengo"]))
    assert main(["lab", "latency", "--model", "E5", "--quick", "--times", str(times), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["E5"]["largest difference"] <= 0.05


@pytest.mark.parametrize(
    ("words", "named"), [(["--model", "E99"], "E99"), (["--model", "E5", "--times", "/no/file"], "/no/file")]
)
def test_what_the_model_cannot_run_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "latency", *words]) == 3
    assert named in capsys.readouterr().err
