"""`bench purgatory`: the load is the one that was asked for, each request is answered once, and the figures say so."""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.main import main
from controller.timer.purgatory import DelayedOperation, OperationState, Purgatory
from tests.benchmarks import purgatory as bench_purgatory
from tests.benchmarks import purgatory_runs as bench_purgatory_runs
from tests.benchmarks.common import NoSuchTable, markdown, put_table
from tests.benchmarks.purgatory import PUBLISHED_NEW, ending, memory_panels, page_table, panels, run_apart
from tests.benchmarks.purgatory_runs import (
    ALL_ANSWERED,
    MB,
    OUT_OF_MEMORY,
    CollectorTimes,
    Load,
    MemorySample,
    PurgatoryRun,
    WrongAnswers,
    collecting,
    key_sets,
    requests,
    run_real,
    run_virtual,
)
from tests.cli.ending import status_of

LOAD = Load(rate=20_000, percentile_50_ms=20, percentile_75_ms=60, number=4_000, timeout_ms=100)


def test_a_load_has_the_rate_and_the_percentiles_that_it_names() -> None:
    load = replace(LOAD, number=200_000)
    rows = list(requests(load, chunk=70_000))
    assert [len(one.arrival_ms) for one in rows] == [70_000, 70_000, 60_000]
    arrivals = np.concatenate([one.arrival_ms for one in rows])
    latencies = np.concatenate([one.latency_ms for one in rows])
    assert (np.diff(arrivals) >= 0).all()
    assert arrivals[-1] == pytest.approx(200_000 / 20_000 * 1_000, rel=0.02)
    assert np.percentile(latencies, 50) == pytest.approx(20, abs=1)
    assert np.percentile(latencies, 75) == pytest.approx(60, abs=2)
    gaps = np.bincount(arrivals)
    assert gaps.var() == pytest.approx(gaps.mean(), rel=0.05), "arrivals a millisecond are Poisson's"
    again = np.concatenate([one.arrival_ms for one in requests(load, chunk=70_000)])
    assert (again == arrivals).all()
    assert {len(set(keys)) for keys in key_sets(load)} == {3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 0}, "rate 0"),
        ({"number": 0}, "number 0"),
        ({"keys_of_each": 101}, "keys_of_each 101"),
        ({"percentile_75_ms": 20}, "percentiles 20/20"),
        ({"size": -1}, "size -1"),
        ({"news": -1}, "news -1"),
    ],
)
def test_a_load_that_cant_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LOAD, **change)


def expected_to_expire(load: Load) -> int:
    return sum(int((one.latency_ms >= load.timeout_ms).sum()) for one in requests(load))


def test_on_the_virtual_clock_exactly_those_expire_whose_condition_comes_too_late() -> None:
    done: list[int] = []
    one = run_virtual(LOAD, progress=done.append)
    assert (one.number, one.expired, done) == (4_000, expected_to_expire(LOAD), [4_000])
    assert one.purges > 0
    assert one.blocks_left is not None
    assert one.blocks_left < 500


def test_news_of_keys_are_told_as_often_as_was_asked_and_answer_nobody_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Hears(Purgatory[Any, Any]):
        def check_and_complete(self, key: str) -> int:
            told.append(key)
            return super().check_and_complete(key)

    monkeypatch.setattr(bench_purgatory_runs, "Purgatory", Hears)
    one = run_virtual(replace(LOAD, news=2))
    assert one.expired == expected_to_expire(LOAD)
    assert len(told) == 2 * (int(next(requests(LOAD)).arrival_ms[-1]) + 1 - int(next(requests(LOAD)).arrival_ms[0]))
    assert len(set(told)) == LOAD.keys


def test_the_generator_alone_completes_every_request_and_keeps_none() -> None:
    one = run_virtual(LOAD, design="load")
    assert (one.design, one.number, one.expired, one.purges) == ("load", 4_000, 0, 0)


def test_the_collector_is_as_it_was_after_a_run() -> None:
    before = gc.get_threshold()
    with collecting("broker"):
        assert gc.isenabled()
        assert gc.get_threshold() != before
    with collecting("off"):
        assert not gc.isenabled()
    assert (gc.isenabled(), gc.get_threshold()) == (True, before)


@pytest.mark.parametrize("design", ["new", "kafka-rule", "old", "load"])
def test_on_the_real_clock_every_request_is_answered(design: str) -> None:
    """A rate that any machine holds; few may expire that need not, if the machine stands still for a while."""
    one = run_real(design, Load(2_000, 5, 10, 600, timeout_ms=5_000))
    assert one.late_ms is not None, "not all were answered"
    assert (one.number, one.design, one.expired, one.end) == (600, design, 0, ALL_ANSWERED)
    last = one.samples[-1]
    assert last.outstanding == 0
    if design != "old":  # its reaper counts entries, of which a request has three
        assert last.retained in (range(1) if design == "load" else range(500, 601)), "no purge was due"


OVER_ITS_MEMORY = Load(1_000, 5, 10, 1_000_000, timeout_ms=3_600_000, size=MB)


@pytest.mark.parametrize("design", ["new", "old"])
def test_a_design_that_runs_out_of_memory_ends_with_a_row_that_says_so(design: str) -> None:
    """Requests of 1 MB each, in a process with 40 MB: watch lists hold those that have ended."""
    one = run_apart(design, OVER_ITS_MEMORY, limit_mb=40)
    last = one.samples[-1]
    assert (one.design, one.end, one.late_ms, one.held) == (design, OUT_OF_MEMORY, None, False)
    assert 30 < last.mb < 41, "MB: the limit"
    assert 20 < last.outstanding + last.retained < 80, "MB: the limit, and what the process had to spare"
    assert f"{last.outstanding} outstanding, {last.retained} completed but held" in ending(one)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY, "this process has no limit"


def test_a_process_that_dies_leaves_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    written = b'{"sample": [0.5, 12.5, 7, 8, 9, 10]}\n{"sample": [0.6'
    died = subprocess.CompletedProcess[bytes]([], -9, written)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: died)
    one = run_apart("old", LOAD)
    assert (one.end, one.elapsed_s, one.held) == ("process died: exit status -9", 0.5, False)
    assert one.samples == (MemorySample(0.5, 12.5, 7, 8, 9, 10),)


def test_wrong_answers_void_a_run_in_another_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = subprocess.CompletedProcess[bytes]([], 1, b'{"wrong": "2 answers to 1 requests"}\n')
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: wrong)
    with pytest.raises(WrongAnswers, match="2 answers"):
        run_apart("old", LOAD)


def test_collections_are_counted_and_timed_by_generation() -> None:
    times = CollectorTimes()
    gc.callbacks.append(times)
    try:
        gc.collect(0)
        gc.collect(2)
    finally:
        gc.callbacks.remove(times)
    assert times.collections[0] >= 1
    assert times.collections[2] >= 1
    assert times.ns[2] > 0


def test_answers_that_are_not_one_a_request_void_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgets(Purgatory[Any, Any]):
        def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
            return super().settle(operation, end) and end is OperationState.Completed

    monkeypatch.setattr(bench_purgatory_runs, "Purgatory", Forgets)
    with pytest.raises(WrongAnswers, match="answers to 4000 requests"):
        run_virtual(LOAD)


def test_a_rate_is_held_at_95_in_100_of_it_with_all_answered() -> None:
    one = PurgatoryRun("new", "real", "20/60 ms", 1_000, 100.0, 95.0, 0.01, 3, 0, 2.0)
    assert one.held
    assert not replace(one, achieved=94.9).held
    assert not replace(one, late_ms=None).held, "some were never answered"
    assert one.cpu_us == pytest.approx(10.0)


def test_a_design_is_asked_for_the_highest_rate_only_once_it_has_collapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, int]] = []

    def fake(design: str, load: Load, *, collector: str, limit_mb: int) -> PurgatoryRun:
        asked.append((design, load.name, load.rate))
        achieved = min(load.rate, 15_000 if design == "old" else 10**9)
        samples = (MemorySample(0.1, 1.0, 2, 3, 4, 5), MemorySample(0.2, 9.0, 2, 3, 4, 5))
        run = PurgatoryRun(design, "real", load.name, load.number, load.rate, achieved, 1.0, 0, 0, 1.0)
        return replace(run, elapsed_s=2.0, gc_ms=(1.0, 2.0, 3.0), samples=samples)

    monkeypatch.setattr(bench_purgatory, "run_apart", fake)
    loads = [[replace(LOAD, rate=rate)] for rate in (10_000, 20_000, 30_000, 35_000, 40_000)]
    runs = bench_purgatory._real_runs(["load", "new", "old"], loads, "broker", 200)
    assert asked[:4] == [(design, LOAD.name, rate) for rate in (10_000, 20_000) for design in ("new", "old")]
    assert [rate for design, _, rate in asked if design == "load"] == [40_000]
    runs = [one for one in runs if one.design != "load"]
    assert [rate for design, _, rate in asked if design == "new"] == [10_000, 20_000, 30_000, 35_000, 40_000]
    assert [rate for design, _, rate in asked if design == "old"] == [10_000, 20_000, 30_000, 40_000]
    arguments = argparse.Namespace(
        collector="broker", intervals=None, timeout_ms=1, keys=1, keys_of_each=1, size=1, seed=1, news=0
    )
    found = bench_purgatory.figures(runs, arguments)
    assert found["held"] == {"new, 20/60 ms": 40_000, "old, 20/60 ms": 10_000}
    text = bench_purgatory.table(found)
    assert "held by old, 20/60 ms: 10000 requests/s" in text
    rates, cpu = panels(runs)
    assert [(line.name, list(line.x), list(line.y)) for line in rates.lines] == [
        ("new", [10_000, 20_000, 30_000, 35_000, 40_000], [10_000, 20_000, 30_000, 35_000, 40_000]),
        ("old", [10_000, 20_000, 30_000, 40_000], [10_000, 15_000, 15_000, 15_000]),
    ]
    assert [line.name for line in cpu.lines] == ["new", "old"]
    assert [mark.x for mark in rates.marks] == [PUBLISHED_NEW, 40_000]
    over_time, collector = memory_panels(runs)
    assert over_time.title == "20/60 ms, 40,000 requests/s"
    assert [(line.name, list(line.x), list(line.y)) for line in over_time.lines] == [
        ("new", [0.1, 0.2], [1.0, 9.0]),
        ("old", [0.1, 0.2], [1.0, 9.0]),
    ]
    assert {value for line in collector.lines for value in line.y} == {3.0}


def test_the_command_prints_figures_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "purgatory", "--rates", "1000", "--number", "300", "--percentiles", "5/10", "--timeout-ms", "50"]
    page = tmp_path / "page.md"
    names = ("purgatory", "purgatory-memory", "purgatory-intervals")
    tables = "".join(f"<!-- table: {name} -->\nold\n<!-- end -->\n" for name in names)
    page.write_text(f"# Figures\n{tables}after\n", encoding="utf-8")
    assert main([*words, "--json", "--plots", str(tmp_path), "--page", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["design"], one["clock"]) for one in found["runs"]] == [
        ("new", "virtual"),
        ("new", "real"),
        ("old", "real"),
    ]
    assert found["runs"][2]["samples"][-1]["outstanding"] == 0
    for name in ("purgatory", "purgatory-memory"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    written = page.read_text(encoding="utf-8")
    assert written.startswith("# Figures\n<!-- table: purgatory -->\n| 50th/75th percentile | 5/10 ms |\n")
    assert "| 5/10 ms, 1,000 | old | all answered, " in written
    assert written.endswith("<!-- table: purgatory-intervals -->\nold\n<!-- end -->\nafter\n")
    assert written.count("old\n<!--") == 1
    sweep = ["--intervals", "10", "--designs", "kafka-rule"]
    assert main([*words, *sweep, "--plots", str(tmp_path), "--page", str(page)]) == 0
    assert (tmp_path / "purgatory-intervals.png").read_bytes().startswith(b"\x89PNG")
    assert page.read_text(encoding="utf-8").startswith(written[: written.index("<!-- table: purgatory-intervals")])
    assert "| load, requests/s | purge interval | kafka-rule |" in page.read_text(encoding="utf-8")
    capsys.readouterr()
    page.write_text("# Figures\n", encoding="utf-8")
    assert status_of([*words, "--clock", "virtual", "--page", str(page)]) == 2
    assert "no table purgatory" in capsys.readouterr().err


def test_the_table_says_what_is_held_what_was_asked_and_what_was_published() -> None:
    at_105 = PurgatoryRun("new", "real", "20/60 ms", 1_000, 105_210.0, 104_980.0, 0.005, 3, 0, 2.0)
    not_held = replace(at_105, load="200/400 ms", achieved=50_400.0, late_ms=None)
    virtual = PurgatoryRun("new", "virtual", "20/60 ms", 1_000, 1.0, 400_000.4, 0.1, 1, 1, None, 3, 410_000.0)
    assert page_table([virtual, at_105, not_held], "So.") == [
        "| 50th/75th percentile | 20/60 ms | 200/400 ms |",
        "| --- | --- | --- |",
        "| new design holds | 105,000 requests/s | not 105,000 |",
        "| new design, the most asked | 105,000 of 105,000, the last answer 2 ms late; 5.0 µs CPU a request"
        " | 50,400 of 105,000, never all answered; 5.0 µs CPU a request |",
        "| new design, virtual clock | 400,000 requests a CPU second, 410,000 in the fastest 50,000 | - |",
        "| published: the new holds | 105,000; the old 40,000 | 105,000; the old 25,000 |",
        "",
        "So.",
    ]


def test_a_table_that_cant_be_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: other -->\n", encoding="utf-8")
    for name in ("other", "purgatory"):
        with pytest.raises(NoSuchTable, match=f"no table {name}"):
            put_table(page, name, [])
    with pytest.raises(ValueError, match="expected 2 cells"):
        markdown(["a", "b"], [["1"]])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rates", "10,x"], "--rates: expected an integer from 1"),
        (["--rates", "0"], "--rates: expected an integer from 1"),
        (["--designs", "new,newer"], "--designs: newer: expected some of new, kafka-rule, old, load"),
        (["--percentiles", "60/20"], "percentiles 60/20"),
        (["--number", "0"], "--number: expected an integer from 1"),
    ],
)
def test_what_cant_be_measured_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["bench", "purgatory", *words]) == 2
    assert message in capsys.readouterr().err
