"""The adviser: the part it names, the settings it chooses against all combinations, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.labs.latency.adviser import Adviser, WorkloadToAdvise, acceptance, combinations
from controller.labs.latency.service_times import MEASURED
from tests.benchmarks.latency_fit import Fit, fit

KAFKA = MEASURED["kafka"]
SMALL = WorkloadToAdvise(producers=3, partitions=6, consumers=1, brokers=3, linger_ms=20.0)


def test_what_meets_the_target_is_left_alone() -> None:
    advice = Adviser(KAFKA, 0.99, 1e6, seconds=0.2).advise(SMALL, 100.0)
    assert (advice.changes, advice.tried) == ((), 1)


def test_linger_that_exceeds_the_budget_is_lowered() -> None:
    advice = Adviser(KAFKA, 0.99, 1e6, seconds=0.2).advise(SMALL, 8.0)
    assert advice.now.largest == "produce"
    assert [one.setting for one in advice.changes] == ["linger_ms"]
    assert advice.prediction.latency_ms <= 8.0 < advice.now.latency_ms
    assert advice.prediction.requests_s > advice.now.requests_s
    assert advice.workload.linger_ms < 20.0


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_the_choice_is_within_a_tenth_of_the_best(seed: int) -> None:
    found = acceptance(KAFKA, seed)
    assert found["by best"] <= 1.1
    assert found["tried"] < len(list(combinations(SMALL)))


def test_a_fit_finds_what_the_values_came_from() -> None:
    table = {(1.0, 0.1): [(5.0, 8.0), (6.0, 9.0)], (2.0, 0.1): [(10.0, 20.0), (12.0, 22.0)]}
    assert fit([(10.0, 24.0), (12.0, 26.0)], table) == Fit(2.0, 0.1, 4.0)


def test_the_command_names_part_change_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "workload.toml"
    spec.write_text("producers = 3\npartitions = 6\nconsumers = 1\nbrokers = 3\nlinger_ms = 20.0\n")
    words = ["lab", "advise", "--target", "p99=8ms", "--throughput", "1MB/s", "--spec", str(spec), "--quick"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "produce" in said
    assert "change linger.ms from 20 to" in said
    assert "costs:" in said
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target met"] is True


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("brokers = 2\n", "replication_factor is 3: expected at most brokers, 2"),
        ("lingers = 2\n", "lingers"),
        ("producers = 0\n", "producers"),
        ("producers = \n", "workload.toml"),
    ],
)
def test_a_workload_that_makes_no_sense_is_named(
    text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "workload.toml"
    spec.write_text(text)
    assert main(["lab", "advise", "--spec", str(spec)]) == 3
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("target", ["99=5ms", "p99=0ms", "p100=5ms", "p99=5"])
def test_a_target_that_makes_no_sense_is_named(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "advise", "--target", target])
    assert "such as p99=50ms" in capsys.readouterr().err
