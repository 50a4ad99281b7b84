"""What is found in a real cluster's logs, in traces of one scenario by both hosts, and in a log with violations planted
in it, all in one table: the cluster's figures are those of its znodes, the runs' those of their reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from controller.pipeline import session
from controller.pipeline.analysis import Analysis, Row, analyse
from controller.pipeline.metrics import last_states, partition_states
from controller.pipeline.reading import chunks_of
from controller.pipeline.report import headlines, report_html
from controller.pipeline.store import IncompleteTable, read_events, write_events
from controller.pipeline.violations import RULES
from controller.report.files import write_report
from controller.scenarios.files import load_scenario
from controller.simulator.run import simulate
from controller.zookeeper.cluster_state import ClusterPartition, cluster_state, load
from tests.pipeline.conftest import SCENARIO
from tests.pipeline.notebook import code_cells, kept, run_cells

pytestmark = pytest.mark.timeout(900)
"""What is analysed is a run of real processes too, and the first test that asks for it waits for all."""

DATA = Path(__file__).parents[1] / "data" / "kafka-2.8.2"
NOTEBOOK = Path(__file__).parents[2] / "docs" / "outage.ipynb"
HEAD = "[2026-11-21 09:00:0{second},000] INFO [Controller id={node} epoch={epoch}] "


def elected(second: int, node: int, epoch: int) -> str:
    return (
        f"[2026-11-21 09:00:0{second},000] INFO [Controller id={node}] {node} successfully elected as the controller. "
        f"Epoch incremented to {epoch} and epoch zk version is now {epoch} (kafka.controller.KafkaController)"
    )


def wrote(second: int, partition: int, leader: int, epoch: int, isr: str, version: int, node: int = 4) -> str:
    return (
        HEAD.format(second=second, node=node, epoch=7)
        + f"Changed partition planted-{partition} from OfflinePartition to OnlinePartition with state LeaderAndIsr("
        f"leader={leader}, leaderEpoch={epoch}, isr=List({isr}), zkVersion={version}) (state.change.logger)"
    )


def assigned(partition: int) -> str:
    return (
        HEAD.format(second=1, node=4, epoch=7)
        + f"Changed partition planted-{partition} state from NonExistentPartition to NewPartition with assigned "
        "replicas 1,2,3 (state.change.logger)"
    )


PLANTED = [
    elected(0, 4, 7),
    elected(1, 5, 7),
    elected(2, 6, 6),
    *(assigned(partition) for partition in range(7)),
    wrote(3, 0, 1, 0, "1, 2", 0),  # nothing wrong with this one
    wrote(4, 0, 1, 1, "1", 1),
    wrote(3, 1, 1, 5, "1, 2", 0),
    wrote(4, 1, 1, 4, "1, 2", 1),
    wrote(3, 2, 1, 5, "1, 2", 0),
    wrote(4, 2, 2, 5, "2", 1),
    wrote(3, 3, 3, 0, "1, 2", 0),
    wrote(3, 4, -1, 0, "", 0),
    wrote(3, 5, 1, 0, "1, 9", 0),
    wrote(3, 6, 2, 0, "2, 1", 0),
    "[2026-11-21 09:00:05,000] INFO [Controller id=4 epoch=7] Changed part",
    "and a line in no known form",
]
RULES_BROKEN = {
    ("a controller epoch that did not grow", None),
    ("two writers in a controller epoch", None),
    ("a leader epoch that went back", 1),
    ("two leaders in a leader epoch", 2),
    ("a leader outside its ISR", 3),
    ("an empty ISR", 4),
    ("an ISR outside the assignment", 5),
    ("a leader that is not the first in assignment order", 6),
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run in virtual time, like `real_run`'s."""
    folder = tmp_path_factory.mktemp("simulation") / "simulated"
    write_report(simulate(load_scenario(SCENARIO), 7).report, folder)
    return folder


@pytest.fixture(scope="module")
def folder(real_run: Path, spark: Any, simulated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of events of all four."""
    source, table = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("table")
    planted = source / "planted"
    planted.mkdir()
    (planted / "state-change.log").write_text("".join(line + "\n" for line in PLANTED))
    write_events(spark, chunks_of([DATA / "logs", planted, simulated, real_run]), table)
    return table


@pytest.fixture(scope="module")
def found(spark: Any, folder: Path) -> Analysis:
    return analyse(spark, folder, min_in_sync=2)


def of(found: Analysis, table: str, run: str) -> list[Row]:
    return [row for row in found.rows[table] if row["run"] == run]


def at(clock: str, ms: int = 0) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{clock}").replace(microsecond=ms * 1000)


def test_the_real_clusters_controllers(found: Analysis) -> None:
    first, second = of(found, "terms", "logs")
    assert (first["node"], first["controller_epoch"], first["end"]) == (1, 1, "went silent; replaced by a successor")
    assert at("08:05:17") < first["last_sign_at"] < at("08:05:18")
    assert (second["node"], second["controller_epoch"], second["elected_at"]) == (3, 2, at("08:05:35", 516))
    assert (second["end"], second["ended_at"]) == ("resigned", at("08:10:31", 573))


def test_the_phases_of_its_failover(found: Analysis) -> None:
    phases = [row for row in of(found, "phases", "logs") if row["controller_epoch"] == 2]
    assert [row["phase"] for row in phases][:5] == [
        "after the election",
        "register handlers",
        "delete log dir notifications",
        "delete ISR notifications",
        "load context",
    ]
    assert phases[-1]["phase"] == "all"
    assert phases[-1]["duration_ms"] == pytest.approx(231.0)
    assert sum(row["duration_ms"] for row in phases[:-1]) == pytest.approx(231.0)


def test_what_the_kill_cost(found: Analysis) -> None:
    loss = of(found, "losses", "logs")[0]
    assert (loss["marker"], loss["brokers"], loss["elected"]) == ("failover", [1], 4)
    assert (loss["first_ms"], loss["median_ms"], loss["last_ms"]) == (228.0, 228.5, 229.0)
    *leaderless, alone = [row for row in of(found, "bad_times", "logs") if row["what"] == "no leader"]
    # At the end a topic of one replica goes with its broker.
    assert (alone["topic"], alone["began_at"] > at("08:10:14"), alone["ended_at"]) == ("jt", True, None)
    assert {(row["topic"], row["partition"]) for row in leaderless} == {
        ("proof", 0),
        ("proof", 3),
        ("__consumer_offsets", 2),
        ("__consumer_offsets", 5),
    }
    assert all(40 < row["duration_ms"] < 50 for row in leaderless)


def test_nothing_is_wrong_with_the_real_cluster_and_every_line_is_told_for(found: Analysis) -> None:
    assert of(found, "violations", "logs") == []
    assert {row["kind"]: row["lines"] for row in of(found, "lines", "logs")} == {"event": 1537, "stack trace": 1940}
    assert of(found, "leftovers", "logs") == []
    assert {row["unclean"] for row in of(found, "elections", "logs")} == {False}


@pytest.mark.parametrize(
    ("clock", "tree", "left_to_leaders"),
    [("08:05:36", "znodes.txt", False), ("08:08:50", "znodes-after-admin.txt", True)],
)
def test_leaders_and_epochs_are_those_of_the_znodes(
    spark: Any, folder: Path, clock: str, tree: str, left_to_leaders: bool
) -> None:
    """Kafka's controller does not log ISR changes that leaders ask for: later on, only those may differ."""
    events = read_events(spark, folder).where(f"run = 'logs' and at <= '2026-11-21 {clock}'")
    known = {(row.topic, row.partition): row for row in last_states(partition_states(events)).collect()}
    table = cluster_state(load(DATA / tree)).partitions
    for partition in map(table.partition, range(len(table))):
        row = known[partition.topic, partition.partition]
        assert (row.leader, row.leader_epoch) == (partition.leader, partition.leader_epoch), partition
        if not left_to_leaders:
            assert _rest(partition) == (tuple(row.isr), row.zk_version, row.controller_epoch)


def _rest(partition: ClusterPartition) -> tuple[tuple[int, ...], int, int]:
    return partition.isr, partition.zk_version, partition.controller_epoch


def test_each_planted_violation_is_caught_by_its_name(found: Analysis) -> None:
    broken = of(found, "violations", "planted")
    assert {(row["rule"], row["partition"]) for row in broken} == RULES_BROKEN
    assert {rule for rule, _ in RULES_BROKEN} == set(RULES)
    assert {row["why"]: row["text"] for row in of(found, "leftovers", "planted")} == {
        "torn": PLANTED[-2],
        "in no known form": PLANTED[-1],
    }


@pytest.fixture(scope="module", params=["simulated", "real"])
def report(request: pytest.FixtureRequest, simulated: Path, real_run: Path) -> tuple[str, dict[str, Any]]:
    """A run's name and its report.json."""
    place = {"simulated": simulated, "real": real_run}[request.param]
    told: dict[str, Any] = json.loads((place / "report.json").read_text())
    assert (place.name, told["scenario"], told["host"]) == (request.param, SCENARIO, request.param)
    return request.param, told


def test_a_runs_failovers_are_those_of_its_report(found: Analysis, report: tuple[str, dict[str, Any]]) -> None:
    run, told = report
    assert [one["kind"] for one in told["failovers"]] == ["broker", "controller"] * 2
    rows = sorted(of(found, "failovers", run), key=lambda row: (row["fault_at_ms"], row["kind"]))
    for row, one in zip(rows, told["failovers"], strict=True):
        times = ("fault_at_ms", "detected_at_ms", "recovered_at_ms")
        # The table's times are microseconds.
        assert [row[name] for name in times] == pytest.approx([one[name] for name in times], abs=2e-3)
        assert all(row[name] == one[name] for name in ("kind", "node", "partitions"))


def test_a_runs_records_are_those_of_its_report(found: Analysis, report: tuple[str, dict[str, Any]]) -> None:
    run, told = report
    assert told["records"]["acknowledged"] > 0
    assert of(found, "records", run) == [{"run": run, **told["records"]}]


def test_a_runs_latencies_are_those_of_its_report(found: Analysis, report: tuple[str, dict[str, Any]]) -> None:
    run, told = report
    rows = {(row["fault_at_ms"] and round(row["fault_at_ms"], 3), row["what"], row["when"]): row
            for row in of(found, "latencies", run)}  # fmt: skip
    assert len(told["latency"]) > 0
    for fault in told["latency"]:
        for what, when in product(("produce", "fetch"), ("before", "during", "after")):
            row = rows.pop((fault["at_ms"], what, when), None)
            assert (None if row is None else figures(row)) == fault[what][when]
            assert row is None or (row["fault"], row["target"]) == (fault["fault"], fault["target"])
    # The rest is no fault's, but the whole run's.
    assert {*rows} == {(None, "produce", "whole run"), (None, "fetch", "whole run")}
    assert rows[None, "produce", "whole run"]["records"] == told["records"]["acknowledged"]


def figures(row: Row) -> dict[str, Any]:
    times = {name: round(row[name], 3) for name in ("p50_ms", "p95_ms", "p99_ms", "worst_ms")}
    return {"count": row["records"], **times}


def test_a_run_breaks_no_rule_and_its_terms_follow_one_another(
    found: Analysis, report: tuple[str, dict[str, Any]]
) -> None:
    run, _ = report
    assert of(found, "violations", run) == []
    terms = of(found, "terms", run)
    assert [row["controller_epoch"] for row in terms] == [*range(1, len(terms) + 1)]
    assert terms[0]["end"] == "ended by a fault"


def test_both_hosts_runs_have_reports_of_one_form(found: Analysis) -> None:
    told = [{name for name in found.rows if of(found, name, run)} for run in ("simulated", "real")]
    assert told[0] == told[1] >= {"terms", "phases", "failovers", "losses", "bad_times", "records", "latencies"}


def test_the_page_tells_it_and_loads_nothing(found: Analysis) -> None:
    page = report_html(found, "four runs")
    assert not re.search(r"https?:|<link|<img|<script |@import|src=|href=", page)
    for rule in RULES:
        assert rule in page
    assert page.count("<div class='tl-zoom'>") == 4
    assert any("failover at 2026-11-21 08:05:35.516: broker 1 lost" in line for line in headlines(found))


def test_the_notebook_prints_what_it_has_kept(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def shared(*_: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)
    expected = [kept(cell) for cell in code_cells(json.loads(NOTEBOOK.read_text(encoding="utf-8")))]
    assert [(one.text, len(one.pictures)) for one in run_cells(NOTEBOOK)] == expected
    assert sum(pictures for _, pictures in expected) == 3
    assert expected[-1][0].startswith("0 violations\n14 partitions are in ZooKeeper as the logs say\n")


def test_a_folder_without_a_whole_table_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(IncompleteTable, match=str(tmp_path)):
        read_events(spark, tmp_path)
