"""`camerlengo bench controller`, small: one Apache ZooKeeper, real sockets; the figures' shape, never their size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.cli.main import main
from tests.benchmarks import controller as bench_controller
from tests.benchmarks.clusters import TreeSize
from tests.benchmarks.common import put_table
from tests.benchmarks.controller import (
    BrokerLossTime,
    ControllerBench,
    ControllerFigures,
    Cpu,
    ElectionTime,
    FailoverTime,
    Repeated,
    ShutdownTime,
    WrongOutcome,
    bench,
    elect_in_columns,
    page_tables,
    panels,
    phase_medians,
    text,
)
from tests.cli.ending import status_of

PHASES = ("election", "watches", "load context", "update metadata", "replica machine", "partition machine")


def test_each_thing_is_measured_on_a_small_cluster() -> None:
    with bench(TreeSize(13, 90, 2, 3, led_by=3)) as made:
        for one in (_failed_over(made), _failed_over(made)):
            assert set(PHASES) <= {name for name, _ in one.phases}
            assert sum(ms for _, ms in one.phases) <= one.total_ms <= one.told_ms
            assert one.cpu.controller_ms > 0
            assert one.cpu.zookeeper_ms > 0
            assert one.peak_mb > 0
        made.fail_over()
        gone = made.lose_broker(3)
        assert 0 < gone.led_ms <= gone.shrunk_ms <= gone.told_ms
        made.take_back()
        with pytest.raises(WrongOutcome, match="broker 2 is gone"):
            made.require_led_without(2)  # which leads since
        made.put_back()
        with pytest.raises(WrongOutcome, match="broker 3 is gone"):
            made.require_led_without(3)
        made.fail_over()
        shutdown = made.shut_down_broker(3)
        assert 0 < shutdown.succeeded_ms <= shutdown.told_ms


def _failed_over(made: ControllerBench) -> FailoverTime:
    done = made.fail_over()
    made.take_back()
    return done


def test_a_first_run_is_told_apart_and_every_part_has_its_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[TreeSize] = []

    @contextmanager
    def canned(size: TreeSize, *_: object, **__: object) -> Iterator[CannedBench]:
        sizes.append(size)
        yield CannedBench()

    monkeypatch.setattr(bench_controller, "bench", canned)
    monkeypatch.setattr(bench_controller, "MOST_PARTITIONS", 1_000)
    words = ["bench", "controller", "--json", "--sizes", "99,1000", "--partitions", "90", "--runs", "2"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert sizes == [
        TreeSize(2, 99, 1, 3),
        TreeSize(20, 1_000, 1, 3),
        TreeSize(2, 90, 2, 3),
        TreeSize(2, 90, 2, 3, led_by=3),
        TreeSize(2, 90, 2, 3, led_by=3),
    ]
    for one in found["failovers"]:
        assert one["first"]["total_ms"] == 1
        assert [run["total_ms"] for run in one["runs"]] == [2, 3]
    third, all_of_them, shutdown = found["others"]
    assert third["name"] == "broker gone that led 30 of 90"
    assert all_of_them["name"] == "broker gone that led all 90"
    assert [run["led_ms"] for run in third["runs"]] == [2, 3]
    assert [run["succeeded_ms"] for run in shutdown["runs"]] == [2, 3]
    assert len(found["elected"]) == 2


class CannedBench:
    """The n-th of its measurements took n ms."""

    def __init__(self) -> None:
        self._runs = 0

    def _next(self) -> int:
        self._runs += 1
        return self._runs

    def fail_over(self) -> FailoverTime:
        return failover(self._next(), 1)

    def lose_broker(self, _broker: int) -> BrokerLossTime:
        return BrokerLossTime(self._runs, self._runs, self._runs, Cpu(1, 1))

    def shut_down_broker(self, _broker: int) -> ShutdownTime:
        return ShutdownTime(self._runs, self._runs, Cpu(1, 1))

    def take_back(self) -> None: ...

    def put_back(self) -> None: ...


def test_an_election_in_columns_is_timed_run_by_run() -> None:
    assert len(elect_in_columns(2_000, 3)) == 3


def failover(total: float, load: float) -> FailoverTime:
    return FailoverTime(total, total + 1, (("election", 1.0), ("load context", load)), Cpu(total / 2, total / 4), 50.0)


FIGURES = ControllerFigures(
    (
        Repeated("failover", 10_000, failover(200, 90), (failover(100, 50), failover(120, 70), failover(110, 30))),
        Repeated("failover", 1_000_000, failover(9_000, 90), (failover(5_000, 4_000),)),
    ),
    (
        Repeated("broker gone", 10, BrokerLossTime(9, 9, 9, Cpu(1, 1)), (BrokerLossTime(5, 6, 7, Cpu(2, 3)),)),
        Repeated("shutdown", 10, ShutdownTime(9, 9, Cpu(1, 1)), (ShutdownTime(8, 9, Cpu(2, 3)),)),
    ),
    (ElectionTime(30.0, 20.0), ElectionTime(40.0, 20.0), ElectionTime(50.0, 20.0)),
)


def test_medians_leave_the_first_run_out() -> None:
    small = FIGURES.failovers[0]
    assert small.median(lambda run: run.total_ms) == 110
    assert small.spread(lambda run: run.total_ms) == "110 (100 to 120)"
    assert phase_medians(small) == {"election": 1.0, "load context": 50}


def test_the_page_has_a_column_a_size_and_a_row_a_phase(tmp_path: Path) -> None:
    failovers, others = page_tables(FIGURES, "On a machine.")
    assert failovers[0] == "| partitions | 10,000 | 1,000,000 |"
    assert "| failover, ms | 110 (100 to 120) | 5,000 (5,000 to 5,000) |" in failovers
    assert "| Kafka 2.8.2, ms | 1,400 | - |" in failovers
    assert "| phase: load context | 50.0 | 4,000.0 |" in failovers
    assert "| broker gone: last new leader | 5 (5 to 5) | 2 (2 to 2) | 3 (3 to 3) |" in others
    assert "| 1,000,000 partitions of RF 3 elected in columns | 40 (30 to 50) | 20 (20 to 20) | - |" in others
    assert others[-1] == "Medians (least to most) of 3 runs. On a machine."
    assert "110 (100 to 120)" in text(FIGURES)
    page = tmp_path / "page.md"
    page.write_text("<!-- table: one -->\n<!-- end -->\n", encoding="utf-8")
    put_table(page, "one", failovers)
    assert failovers[0] in page.read_text(encoding="utf-8")


def test_the_plot_shows_time_and_cost_by_partitions() -> None:
    time, cost = panels(FIGURES)
    assert [list(line.y) for line in time.lines] == [[0.11, 5.0], [1.4]]
    assert [list(line.y) for line in cost.lines] == [[5.5, 2.5], [2.75, 1.25]]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--only", "failover,everything"], "--only: everything: expected some of failover"),
        (["--sizes", "10,many"], "--sizes: expected an integer from 1"),
        (["--sizes", "0"], "--sizes: expected an integer from 1"),
        (["--runs", "0"], "--runs: expected an integer from 1"),
        (["--topic-size", "0"], "--topic-size: expected an integer from 1"),
    ],
)
def test_what_cant_be_measured_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["bench", "controller", *words]) == 2
    assert named in capsys.readouterr().err


def test_one_broker_can_lead_everything() -> None:
    size = TreeSize(topics=2, partitions=8, replication_factor=2, brokers=3, led_by=3)
    replicas = [size.replicas(topic, partition) for topic in range(2) for partition in range(4)]
    assert {leader for leader, _ in replicas} == {3}
    assert {follower for _, follower in replicas} == {1, 2}
