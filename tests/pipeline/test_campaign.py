"""A campaign on Spark: the same results for any number of partitions, after an interruption, with a worker killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.pipeline.campaign import run_campaign
from controller.pipeline.campaign_runs import Campaign, Result, Traces, read_results, run_all
from tests.pipeline.test_campaign_runs import campaign
from tests.processes import eventually

WANTED = campaign(seeds=4, traces=Traces.FAILING)
LONGER = campaign(seeds=8)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Of LONGER, whose runs with fewer seeds are WANTED's."""
    return [*run_all(LONGER, range(len(LONGER)), tmp_path_factory.mktemp("alone"), "alone")]


def of(wanted: Campaign, longer: list[Result]) -> list[Result]:
    """Results of LONGER as they are numbered in `wanted`."""
    by_run = {(one.point, one.seed): one for one in longer}
    numbered = [(number, *wanted.run_of(number)) for number in range(len(wanted))]
    return [msgspec.structs.replace(by_run[point, seed], number=number) for number, point, seed in numbered]


def test_any_number_of_partitions_gives_the_same_table(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    expected = of(WANTED, alone)
    for partitions in (2, 8, 64):  # no more tasks than runs are made
        assert run_campaign(spark, WANTED, tmp_path / str(partitions), partitions) == expected


def test_a_campaign_goes_on_with_what_is_left(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    before = [result for result, _ in zip(run_all(WANTED, range(8), tmp_path, "0000-000000"), range(3), strict=False)]
    seen: list[int] = []
    results = run_campaign(spark, WANTED, tmp_path, 3, lambda known: seen.append(len(known)))
    assert results == of(WANTED, alone)
    assert results[: len(before)] == before
    assert seen[-1] == 8
    assert run_campaign(spark, WANTED, tmp_path, 3) == results


def test_ctrl_c_and_the_same_call_again(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    def interrupt(known: Sequence[Result]) -> None:
        if known:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_campaign(spark, LONGER, tmp_path, 4, interrupt)
    files = [*(tmp_path / "results").glob("0000-*.jsonl")]
    eventually(lambda: not spark.sparkContext.statusTracker().getActiveStageIds(), "the tasks have stopped")
    before = read_results(files)
    assert len(before) > 0
    assert run_campaign(spark, LONGER, tmp_path, 4) == alone
    again = read_results((tmp_path / "results").glob("0001-*.jsonl"))
    assert {one.number for one in before}.isdisjoint(one.number for one in again)


def test_a_killed_worker_costs_only_the_runs_it_was_in(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    killed: list[int] = []

    def kill_one(known: Sequence[Result]) -> None:
        if known and len(known) < len(LONGER) and not killed:
            killed.extend(workers_of(spark)[:1])
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    results = run_campaign(spark, LONGER, tmp_path, 4, kill_one)
    assert killed
    assert results == alone
    lines = sum(len(file.read_bytes().splitlines()) for file in (tmp_path / "results").glob("*.jsonl"))
    assert len(results) <= lines <= len(results) + 1  # the line that the kill may have torn


def workers_of(spark: Any) -> list[int]:
    """Spark's Python workers: what its daemon, a child of its JVM, has forked."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    ours = {spark.sparkContext._gateway.proc.pid}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    python = {pid for pid in ours if b"pyspark.daemon" in command(pid)}
    return sorted(pid for pid in python if parents[pid] in python)


def command(pid: int) -> bytes:
    """Nothing of a process that has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
