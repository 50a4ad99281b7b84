"""The page of an analysis: one axis for all plots, times for people, tables that scroll, both colour schemes."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

from controller.pipeline.analysis import Analysis, Row
from controller.pipeline.report import _SECTIONS, report_html

LOGGED = datetime(2026, 11, 21, 8, 3, 4, 806_000)  # noqa: DTZ001 - Spark's times have no time zone
TRACED = datetime(1970, 1, 1)  # noqa: DTZ001


def analysis(start: datetime, brokers: int = 3) -> Analysis:
    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=seconds)

    term = {"run": "r", "node": 1, "controller_epoch": 1, "elected_at": at(0), "end": "resigned", "ended_at": at(100),
            "succeeded_at": None, "last_sign_at": at(99)}  # fmt: skip
    loss = {"run": "r", "marker": "failover", "brokers": [2], "noticed_at": at(120.5), "elected": 4, "last_ms": None}
    bad = {"run": "r", "what": "no leader", "topic": "<t>", "partition": 0, "began_at": at(110), "ended_at": None}
    leaders = [{"run": "r", "broker": one, "at": at(10 + one), "leaders": 4} for one in range(1, brokers + 1)]
    rows: dict[str, tuple[Row, ...]] = {name: () for name, *_ in _SECTIONS}
    rows |= {
        "violations": (),
        "lines": (),
        "terms": (term,),
        "losses": (loss,),
        "bad_times": (bad,),
        "leaders": (*leaders,),
    }
    return Analysis(rows, {name: len(found) for name, found in rows.items()})


def words(page: str) -> list[str]:
    return re.findall(r"<text[^>]*>(.*?)</text>", page)


def test_all_plots_of_a_run_share_one_axis_over_the_whole_run() -> None:
    page = report_html(analysis(LOGGED), "logs")
    scales = [json.loads(found) for found in re.findall(r"data-scale='(.*?)'", page)]
    assert len(scales) == page.count("tl-plot") > 1
    start_ms = 1_795_248_184_806.0
    assert {(scale[0][0], scale[-1][0]) for scale in scales} == {(start_ms, start_ms + 120_500)}


def test_ticks_of_logs_are_clock_times_and_those_of_traces_seconds() -> None:
    first, _, _ = report_html(analysis(LOGGED), "logs").partition("data-zoom='4'")
    assert {"08:03:15", "08:04:30"} <= {*words(first)}
    assert not re.search(r"\d\d:\d\d:\d\d\.\d", "".join(words(first)))
    page = report_html(analysis(TRACED), "traces")
    first, _, _ = page.partition("data-zoom='4'")
    assert "20 s" in words(first)
    assert "1970" not in page
    assert "<td>120.500 s</td>" in page


def test_each_line_is_named() -> None:
    first, _, _ = report_html(analysis(LOGGED), "logs").partition("data-zoom='4'")
    assert [word for word in words(first) if re.fullmatch(r"broker \d", word)] == ["broker 1", "broker 2", "broker 3"]
    many, _, _ = report_html(analysis(LOGGED, brokers=40), "logs").partition("data-zoom='4'")
    assert "and 28 more" in words(many)
    assert len(re.findall("data-kind='leaders'", many)) == 40


def test_the_page_scrolls_its_tables_and_has_both_schemes() -> None:
    page = report_html(analysis(LOGGED), "logs")
    assert "@media(prefers-color-scheme:dark)" in page
    assert page.count("<table>") == len(re.findall(r"<div class=\"scroll\"[^>]*><table>", page)) == 3
    assert "&lt;t&gt;" in page
    assert "<t>" not in page


def test_an_analysis_of_nothing_is_a_page() -> None:
    empty: dict[str, Any] = {name: () for name, *_ in _SECTIONS} | {"violations": (), "lines": (), "leaders": ()}
    page = report_html(Analysis(empty, dict.fromkeys(empty, 0)), "nothing")
    assert "no violations" in page
    assert "<table>" not in page
