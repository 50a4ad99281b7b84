"""A campaign's runs, without Spark: what is finished is known from whole lines, and what they say is counted right."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from controller.pipeline.campaign import (
    AnotherCampaign,
    Campaign,
    Result,
    SettingPoint,
    Traces,
    _claim,
    _student,
    groups,
    mean,
    moved,
    read_results,
    retrying,
    run,
    run_all,
    summary_text,
    wilson,
    write_campaign_index,
)
from controller.scenarios.files import load_scenario
from tests.cli.ending import status_of


def campaign(
    seeds: int, traces: Traces = Traces.NONE, partitions: tuple[str, str] = ("1", "2"), records: bool = False
) -> Campaign:
    points = tuple(
        SettingPoint(
            (("partitions", count),),
            load_scenario("broker-kill", {"partitions": count, "records": str(records).lower()}),
        )
        for count in partitions
    )
    return Campaign("broker-kill", points, 10, seeds, traces)


def result(number: int, point: int, verdict: str = "pass", recovery_ms: float = 10.0) -> Result:
    return Result(
        number=number,
        point=point,
        seed=number,
        verdict=verdict,
        error="" if verdict == "pass" else "it broke",
        trace_hash="",
        duration_ms=1.0,
        broker_recoveries_ms=(recovery_ms,),
        controller_recoveries_ms=(),
    )


def test_a_campaign_goes_on_where_whole_lines_end(tmp_path: Path) -> None:
    wanted = campaign(2)
    whole = [*run_all(wanted, range(4), tmp_path / "whole", "0000-000000")]
    assert [(one.point, one.seed) for one in whole] == [(0, 10), (0, 11), (1, 10), (1, 11)]
    lines = tmp_path / "whole" / "results" / "0000-000000.jsonl"
    torn = tmp_path / "torn" / "results" / lines.name
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"".join(lines.read_bytes().splitlines(keepends=True)[:2]) + b'{"number":2,"poi')
    again = [one.number for one in run_all(wanted, range(4), tmp_path / "torn", "0000-000000")]
    assert again == [2, 3]
    assert read_results([torn]) == whole


def test_traces_are_kept_as_asked(tmp_path: Path) -> None:
    assert [*run_all(campaign(1, Traces.ALL), range(2), tmp_path, "a")]
    assert [*run_all(campaign(1, Traces.FAILING), range(2), tmp_path / "none", "a")]
    table = parquet.read_table(tmp_path / "traces" / "point-1" / "seed-10" / "trace.parquet")
    assert table.num_rows > 50
    assert not (tmp_path / "none" / "traces").exists()


def test_the_index_links_the_reports_that_were_written(tmp_path: Path) -> None:
    wanted = campaign(1, Traces.ALL)
    results = [*run_all(wanted, [1], tmp_path, "a"), result(0, 0, "fail")]
    write_campaign_index(wanted, results, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    links = re.findall(r"href=\"(.*?)\"", page)
    assert links == ["traces/point-1/seed-10/report.html"]
    assert "camerlengo simulate broker-kill --set partitions=2 --seed 10" in (tmp_path / links[0]).read_text("utf-8")
    assert page.index("it broke") < page.index("partitions=2 --seed 10")


def test_the_swarm_has_no_scenario() -> None:
    wanted = Campaign("swarm", (SettingPoint((), None),), 3, 1, Traces.NONE)
    found, report = run(wanted, 0)
    assert (found.seed, found.verdict) == (3, "pass")
    assert len(report.records) > 50
    assert wanted.replay(0, 3) == "camerlengo simulate swarm --seed 3"


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (2000, 2000, 0.99808, 1.0)]
)
def test_wilsons_interval(hits: int, of: int, low: float, high: float) -> None:
    found = wilson(hits, of)
    assert found.low == pytest.approx(low, abs=5e-4)
    assert found.high == pytest.approx(high, abs=5e-4)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (4, 2.7764), (5, 2.5706), (10, 2.2281), (100, 1.9840)])
def test_students_t(freedom: int, value: float) -> None:
    assert _student(freedom) == pytest.approx(value, rel=3e-3)


def test_a_mean_and_its_interval() -> None:
    found = mean([1.0, 2.0, 3.0])
    assert [found.low, found.value, found.high] == pytest.approx([-0.4841, 2.0, 4.4841], abs=1e-3)
    with pytest.raises(ValueError, match="no values"):
        mean([])
    with pytest.raises(ValueError, match="0 of 0 is no share"):
        wilson(0, 0)


def test_which_parameter_moved_what() -> None:
    results = [result(number, number // 40, recovery_ms=10.0 + 5 * (number // 40) + number % 2) for number in range(80)]
    wanted = campaign(40)
    assert [*moved(groups(wanted, results))] == [
        "partitions moved broker recovery ms: 10.5 [10.34, 10.66] at 1, 15.5 [15.34, 15.66] at 2"
    ]
    broken = [result(number, number // 40, "pass" if number % 40 < 30 else "fail") for number in range(40)]
    first, *_ = moved(groups(wanted, [*broken, *results[40:]]))
    assert first.startswith("partitions moved failing %: 0 [0, 8.76")
    same = [result(number, number // 40, recovery_ms=10.0 + number % 2) for number in range(80)]
    assert [*moved(groups(wanted, same))] == []


def test_failing_seeds_come_first_with_their_replay() -> None:
    text = summary_text(campaign(2), [result(0, 0), result(1, 0), result(2, 1), result(3, 1, "fail")])
    assert text.splitlines()[:2] == [
        "camerlengo simulate broker-kill --set partitions=2 --seed 3",
        "    fail: it broke",
    ]
    assert text.endswith("3 of 4 runs passed")


def test_another_campaigns_folder_is_refused(tmp_path: Path) -> None:
    _claim(campaign(2), tmp_path)
    _claim(campaign(2), tmp_path)
    with pytest.raises(AnotherCampaign, match="another campaign"):
        _claim(campaign(3), tmp_path)


def test_a_local_master_tries_again() -> None:
    assert [retrying(master) for master in ("local[2]", "local[*]", "local[2,9]", "spark://a:1")] == [
        "local[2,4]",
        "local[*,4]",
        "local[2,9]",
        "spark://a:1",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere", "--seeds", "1..2"], "expected a file, or one of"),
        (["broker-kill", "--seeds", "2..1"], "expected A..B with 0 <= A <= B"),
        (["broker-kill", "--seeds", "1..2", "--set", "partitions=1,,2"], "expected KEY=VALUE"),
        (["broker-kill", "--seeds", "1..2", "--set", "cats=1"], "cats"),
        (["broker-kill", "--seeds", "1..2", "--set", "topics=1", "--set", "topics=2"], "set twice"),
        (["swarm", "--seeds", "1..2", "--set", "topics=1"], "expected a scenario"),
    ],
)
def test_words_that_make_no_sense(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["campaign", *words, "--report", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
