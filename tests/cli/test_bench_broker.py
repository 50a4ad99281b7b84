"""`camerlengo bench broker`, small: a real cluster, real clients, and figures that say what they mean."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.cli.main import main
from tests.benchmarks.broker import (
    COMPARED,
    SETUPS,
    BrokerBench,
    Work,
    _Client,
    cpu_s,
    figures,
    in_turns,
    percentile,
    ratios,
    table,
)


def test_a_run_has_a_row_for_each_setup(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sizes", "50", "--megabytes", "0.02", "--runs", "1", "--rate", "200", "--seconds", "0.1"]
    assert main(["bench", "broker", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    setups = [(setup.replication_factor, setup.acks) for setup in SETUPS]
    for rows in (found["throughput"], found["latency"]):
        assert [(row["replication_factor"], row["acks"]) for row in rows] == setups
    for row in found["throughput"]:
        assert row["records"] == 400
        assert all(row[side]["records_per_s"]["min"] > 0 for side in ("produce", "consume"))
    for row in found["latency"]:
        assert row["records"] == 20
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"] <= row["latency_ms"]["max"]
    lines = table(found).splitlines()
    assert len(lines) == 2 + len(SETUPS) + 2 + len(SETUPS)
    assert lines[2].startswith("RF 1 acks=1")


def test_two_trees_are_compared_pair_by_pair_in_turns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: never stop a client."""
    clients: list[Any] = []
    states: list[str] = []
    made, turn = _Client.__init__, _Client.turn

    def make(client: Any, *given: Any) -> None:
        made(client, *given)
        clients.append(client)

    def checked_turn(client: Any) -> bool:
        others = [other._process for other in clients if other is not client and other._process.poll() is None]
        states.extend(Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0] for one in others)
        return turn(client)

    monkeypatch.setattr(_Client, "__init__", make)
    monkeypatch.setattr(_Client, "turn", checked_turn)
    words = ["--sizes", "50", "--megabytes", "0.02", "--runs", "2", "--against", "."]
    assert main(["bench", "broker", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ratios"]
    assert [row["setup"] for row in rows] == [str(setup) for setup in SETUPS]
    assert all(0 < row[name]["min"] <= row[name]["max"] for row in rows for name in COMPARED)
    assert set(states) == {"T"}, "while one client works the other is stopped"


def test_a_client_that_fails_ends_a_comparison() -> None:
    bench: Any = SimpleNamespace(topic=lambda _setup: nullcontext("t"), words=lambda *_: ["unknown", "{}"])
    with pytest.raises(subprocess.CalledProcessError):
        in_turns([bench], SETUPS[0], 100, 1)


def test_brokers_that_do_not_come_to_rest_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.broker.READY_LIMIT_S", 0.02)
    busy: Any = SimpleNamespace(cpu_s=time.perf_counter)
    with pytest.raises(RuntimeError, match="not idle"):
        BrokerBench.settled_s(busy)


def test_the_ratios_of_two_trees_are_of_producing_and_consuming_together() -> None:
    one = Work(3.0, 15, 1.0, 0.0), Work(1.0, 5, 1.0, 0.0)
    twice = Work(6.0, 30, 3.0, 0.0), Work(2.0, 10, 1.0, 0.0)
    assert ratios([[twice, one], [one, one]]) == {
        "CPU a record": {"median": 1.5, "min": 1.0, "max": 2.0},
        "CPU a request": {"median": 1.0, "min": 1.0, "max": 1.0},
        "time": {"median": 1.5, "min": 1.0, "max": 2.0},
    }


def test_figures_are_medians_with_their_extremes() -> None:
    runs = [Work(seconds, requests=10, cpu_s=seconds / 10, client_cpu_s=seconds / 5) for seconds in (1.0, 2.0, 4.0)]
    assert figures(runs, 1_000) == {
        "records_per_s": {"median": 500, "min": 250, "max": 1_000},
        "cpu_us_a_record": 200.0,
        "client_cpu_us_a_record": 400.0,
        "cpu_us_a_request": 20_000.0,
        "records_a_request": 100.0,
    }


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 50, 1.0), (1, 99.9, 1.0), (2, 50, 1.0), (100, 50, 50.0), (100, 99, 99.0), (100, 99.9, 100.0)],
)
def test_a_percentile_is_a_value_that_was_measured(count: int, percent: float, expected: float) -> None:
    assert percentile([float(number) for number in range(count, 0, -1)], percent) == expected


def test_a_process_time_grows_with_what_it_does() -> None:
    before_s = cpu_s(os.getpid())
    while cpu_s(os.getpid()) < before_s + 0.02:
        sum(range(10_000))


@pytest.mark.parametrize(
    "words", [["--runs", "0"], ["--sizes", "x"], ["--sizes", "0"], ["--rate", "-1"], ["--against", "docs"]]
)
def test_bad_words_are_refused(words: list[str]) -> None:
    try:
        status = main(["bench", "broker", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
