"""Failovers as a trace tells them, the verdict, and the files that a run leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from controller.report.files import columns, write_report
from controller.report.summary import Report, report_json, report_text
from controller.scenarios.failovers import Failover, find_failovers
from controller.scenarios.files import parse_scenario
from controller.scenarios.judge import judge
from controller.scenarios.runner import Outcome
from controller.trace import EphemeralSeen, FaultInjected, MetadataApplied, MetadataSeen, StoodStill, TraceEvent
from controller.trace_records import (
    EVENT_TYPES,
    OBSERVER,
    DamagedRecord,
    TraceRecord,
    decode_record,
    encode_record,
)
from tests.scenarios.evidence import SNAPSHOT, TOPICS, records

SCENARIO = parse_scenario('name = "s"\nsteps = []\n[expect]\nfailovers = {broker = 1, controller = 1}', "s")


def _outcome() -> Outcome:
    return Outcome(topics=list(TOPICS), snapshot=SNAPSHOT)


def test_a_killed_controller_gives_two_failovers_each_with_its_own_end() -> None:
    assert find_failovers(records()) == (
        Failover("broker", 1, 100.0, 2100.0, 2150.0, 1),
        Failover("controller", 1, 100.0, 2101.0, 2170.0, 1),
    )


def test_an_answer_from_before_the_sessions_end_is_no_recovery() -> None:
    early = (500.0, OBSERVER, MetadataSeen(1, 1, 2, (2, 3), ""))
    assert find_failovers(records(early)) == find_failovers(records())


def test_a_pause_that_costs_no_session_is_no_failover() -> None:
    assert len(find_failovers(records((3000.0, OBSERVER, FaultInjected("pause", "2"))))) == 2


def test_a_cut_that_costs_the_session_is_one() -> None:
    cut = (3000.0, OBSERVER, FaultInjected("cut", "3->zookeeper"))
    gone = (5000.0, OBSERVER, EphemeralSeen("/brokers/ids/3", 3, False, 0xC))
    assert find_failovers(records(cut, gone))[2] == Failover("broker", 3, 3000.0, 5000.0, None, 0)


def test_a_broker_that_is_back_at_once_has_recovered_when_it_has_metadata_again() -> None:
    """No client need ever see the cluster without it; a complete answer from before is the old cluster's."""
    restarted: list[tuple[float, int, TraceEvent]] = [
        (3000.0, OBSERVER, FaultInjected("restart", "3")),
        (3010.0, OBSERVER, EphemeralSeen("/brokers/ids/3", 3, False, 0xC)),
        (3020.0, OBSERVER, MetadataSeen(1, 1, 2, (2, 3), "")),
        (3030.0, 2, MetadataApplied(2, (2, 3), 1)),
        (3040.0, OBSERVER, MetadataSeen(1, 1, 2, (2, 3), "")),
        (3050.0, 3, MetadataApplied(2, (2, 3), 1)),
        (3060.0, OBSERVER, MetadataSeen(1, 0, 2, (2, 3), "")),
        (3070.0, OBSERVER, MetadataSeen(1, 1, 2, (2, 3), "")),
    ]
    assert find_failovers(records(*restarted))[2].recovered_at_ms == 3070.0


def test_a_server_of_zookeeper_that_is_killed_is_no_brokers_failover() -> None:
    assert len(find_failovers(records((3000.0, OBSERVER, FaultInjected("kill", "zookeeper 2"))))) == 2


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (_outcome(), "pass"),
        (Outcome(topics=list(TOPICS), snapshot=None), "unknown"),
        (Outcome(topics=list(TOPICS), snapshot=SNAPSHOT, failure="step 3: not within 10 ms"), "fail"),
        (Outcome(topics=list(TOPICS), snapshot=None, failure="broker 2 ended", could_not_run=True), "unknown"),
    ],
)
def test_the_verdict(outcome: Outcome, verdict: str) -> None:
    assert judge(SCENARIO, outcome, records()).verdict == verdict


def test_a_run_that_left_no_trace_proves_nothing() -> None:
    assert judge(parse_scenario('name = "s"\nsteps = []', "s"), _outcome(), []).verdict == "unknown"


def test_too_few_failovers_are_a_failure() -> None:
    expecting = parse_scenario('name = "s"\nsteps = []\n[expect]\nfailovers = {broker = 2}', "s")
    assert judge(expecting, _outcome(), records()).verdict == "fail"


def _report() -> Report:
    trace = records()
    return Report(SCENARIO, "simulated", 7, judge(SCENARIO, _outcome(), trace), trace)


def test_the_report_has_what_its_format_promises(tmp_path: Path) -> None:
    write_report(_report(), tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["format"] == 1
    assert (written["scenario"], written["host"], written["seed"], written["verdict"]) == ("s", "simulated", 7, "pass")
    assert {"name", "held", "detail"} == written["invariants"][0].keys()
    assert written["failovers"][0] == {
        "kind": "broker", "node": 1, "fault_at_ms": 100.0, "detected_at_ms": 2100.0, "recovered_at_ms": 2150.0,
        "partitions": 1,
    }  # fmt: skip
    assert report_json(_report()) == report_json(_report())


STOOD = "this machine was stalled for more than 667 ms, a third of the session timeout"


@pytest.mark.parametrize(
    ("stood", "said"),
    [
        ([], ""),
        ([600.0], ""),
        ([700.0], f"{STOOD}, once: the longest for 700 ms from 9300 ms on"),
        ([400.0, 3_000.0, 900.0], f"{STOOD}, 2 times: the longest for 3000 ms from 17000 ms on"),
    ],
)
def test_a_machine_that_stood_still_for_longer_than_sessions_bear_is_named(
    stood: list[float], said: str, tmp_path: Path
) -> None:
    assert SCENARIO.cluster.session_timeout_ms == 2_000
    trace = records(*((10_000.0 * (n + 1), OBSERVER, StoodStill(ms)) for n, ms in enumerate(stood)))
    judgement = judge(SCENARIO, _outcome(), trace)
    assert judgement.verdict == "pass", "of that alone nothing is violated"
    report = Report(SCENARIO, "real", None, judgement, trace)
    told = [line for line in report_text(report).splitlines() if line.startswith("this machine")]
    assert len(told) == bool(said)
    assert all(line.startswith(said) for line in told)
    write_report(report, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())["standstills"]
    assert [one["to_ms"] - one["from_ms"] for one in written] == stood
    assert (said in (tmp_path / "report.html").read_text()) if said else ("was stalled for" not in report_text(report))


def test_the_page_is_self_contained_and_names_what_happened(tmp_path: Path) -> None:
    write_report(_report(), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=|@import|url\((?!#)", page)
    assert "kill broker 1" in page
    assert "verdict" in page


def test_the_trace_table_has_a_row_an_event_and_a_column_a_field(tmp_path: Path) -> None:
    write_report(_report(), tmp_path)
    table = parquet.read_table(tmp_path / "trace.parquet")
    assert table.num_rows == len(records())
    assert table.column_names == ["row", "at_ms", "node", "event", *columns()]
    rows = table.to_pylist()
    elected = [row for row in rows if row["event"] == "PartitionStateWritten"]
    assert elected[1]["isr"] == [2, 3]
    assert elected[1]["session"] is None


def test_the_text_ends_with_the_verdict() -> None:
    assert report_text(_report()).endswith("verdict: pass")


def test_every_event_survives_its_line() -> None:
    for record in records():
        assert decode_record(encode_record(record)) == record
    assert len({type(record.event) for record in records()}) >= 10


@pytest.mark.parametrize("line", [b"", b"{", b'{"at_ms":1,"node":1}', b'{"at_ms":1,"node":1,"event":"Party"}',
                                  b'{"at_ms":1,"node":1,"event":"SessionEnded","session":"x"}', b"[]"])  # fmt: skip
def test_a_torn_line_is_named(line: bytes) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(line)


def test_no_event_has_a_field_of_the_records_own() -> None:
    for kind in EVENT_TYPES.values():
        assert not {"row", "at_ms", "node", "event"} & set(kind.__struct_fields__)


def test_a_record_keeps_its_time_to_the_microsecond() -> None:
    assert decode_record(encode_record(TraceRecord(1.23456, 2, FaultInjected("kill", "2")))).at_ms == 1.235


def test_the_documented_columns_are_those_that_there_are() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    for name, kind in EVENT_TYPES.items():
        fields = ", ".join(f"`{field}`" for field in kind.__struct_fields__)
        assert f"| `{name}` | {fields} |" in documented
