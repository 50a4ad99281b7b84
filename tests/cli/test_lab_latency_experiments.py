"""`camerlengo lab latency --experiment`: an experiment on real brokers runs to its end; bad names are refused."""

from __future__ import annotations

import json

import pytest

from controller.cli.main import main


def test_small_producers_are_collected_on_real_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "latency", "--experiment", "E12", "--quick", "--rate", "200", "--seconds", "0.5", "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["E12"]["rows"]
    assert all(row["records"] > 60 for row in rows.values())
    assert rows["40 producers"]["batches"] >= rows["40 producers, collected"]["batches"]


@pytest.mark.parametrize("names", ["E7", "E8,E99", ""])
def test_an_unknown_experiment_is_refused_before_brokers_start(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "latency", "--experiment", names]) == 3
    assert "expected E8, E9, E10, E11, E12, E13, or all" in capsys.readouterr().err
