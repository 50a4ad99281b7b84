"""The index of many runs: failures first, each with its verdict, what it violated, its replay and its report."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from controller.report.html import MOST_PASSED, IndexedRun, first_violation, index_html, write_index


def run(seed: int, verdict: str = "pass", settings: str = "", detail: str = "") -> IndexedRun:
    violated = "" if verdict == "pass" else "converged"
    report = "" if verdict == "pass" else f"seed-{seed}/report.html"
    return IndexedRun(seed, settings, verdict, violated, detail, f"camerlengo simulate swarm --seed {seed}", report)


def rows(page: str) -> list[str]:
    return [unescape(re.sub(r"<[^>]+>", " ", row)) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]


def test_failed_runs_come_first_with_their_replay_and_their_report() -> None:
    page = index_html("swarm", [run(0), run(1, "unknown"), run(2, "fail", detail="2 <controllers>"), run(3)])
    head, *listed = rows(page)
    assert head.split() == ["verdict", "seed", "report", "violated", "replay"]
    assert [re.findall(r"\w+", row)[:2] for row in listed] == [
        ["fail", "2"], ["unknown", "1"], ["pass", "0"], ["pass", "3"]
    ]  # fmt: skip
    assert "converged" in listed[0]
    assert "2 <controllers>" in listed[0]
    assert "camerlengo simulate swarm --seed 2" in listed[0]
    assert re.findall(r"href=\"(.*?)\"", page) == ["seed-2/report.html", "seed-1/report.html"]
    assert "2 of 4 runs passed, 2 failed" in page


def test_settings_and_figures_are_shown_if_there_are_any() -> None:
    page = index_html(
        "broker-kill", [run(1, settings="partitions=2")], [("failover", "p50"), ("broker", "41.5")], ["In ms."]
    )
    assert "partitions=2" in page
    assert "41.5" in page
    assert "In ms." in page
    assert "settings" not in "".join(rows(index_html("broker-kill", [run(1)])))


def test_the_index_loads_nothing_and_follows_the_scheme_of_the_screen() -> None:
    page = index_html("swarm", [run(0), run(1, "fail")])
    assert not re.search(r"<script|<link|<img|@import|url\((?!#)", page)
    assert "@media(prefers-color-scheme:dark)" in page
    assert page.count("<table>") == len(re.findall(r"<div class=\"scroll\"[^>]*><table>", page)) == 1


def test_a_long_list_of_passed_runs_is_cut_and_counted(tmp_path: Path) -> None:
    write_index(tmp_path / "new", "swarm", [run(seed) for seed in range(MOST_PASSED + 5)] + [run(5_000, "fail")])
    page = (tmp_path / "new" / "index.html").read_text(encoding="utf-8")
    assert "5 more runs are not listed" in page
    assert "seed-5000/report.html" in page


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("converged: no controller", ("converged", "no controller")),
        ("one-writer at 12.5 ms, broker 3: two: of them", ("one-writer", "at 12.5 ms, broker 3: two: of them")),
        ("not repeatable: event 3", ("", "not repeatable: event 3")),
        ("", ("", "")),
    ],
)
def test_the_first_violation_is_split_from_its_detail(text: str, split: tuple[str, str]) -> None:
    assert first_violation(text) == split
