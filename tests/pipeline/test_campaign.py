"""A campaign on Spark: the same results for any number of partitions, after an interruption, with a worker killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.pipeline.campaign import run_campaign
from controller.pipeline.campaign_runs import Campaign, Result, Traces, run_all
from tests.pipeline.test_campaign_runs import campaign

WANTED = campaign(seeds=4, traces=Traces.FAILING)


def alone(folder: Path, wanted: Campaign = WANTED) -> list[Result]:
    return [*run_all(wanted, range(len(wanted)), folder, "alone")]


def test_any_number_of_partitions_gives_the_same_table(spark: Any, tmp_path: Path) -> None:
    expected = alone(tmp_path / "alone")
    for partitions in (2, 8, 64):  # no more tasks than runs are made
        assert run_campaign(spark, WANTED, tmp_path / str(partitions), partitions) == expected


def test_a_campaign_goes_on_with_what_is_left(spark: Any, tmp_path: Path) -> None:
    before = [result for result, _ in zip(run_all(WANTED, range(8), tmp_path, "0000-000000"), range(3), strict=False)]
    seen: list[int] = []
    results = run_campaign(spark, WANTED, tmp_path, 3, lambda known: seen.append(len(known)))
    assert results == alone(tmp_path / "alone")
    assert results[: len(before)] == before
    assert seen[-1] == 8
    assert run_campaign(spark, WANTED, tmp_path, 3) == results


def test_a_killed_worker_costs_only_the_runs_it_was_in(spark: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(known: Sequence[Result]) -> None:
        if known and len(known) < len(wanted) and not killed:
            killed.extend(workers_of(spark)[:1])
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    wanted = campaign(seeds=8)
    results = run_campaign(spark, wanted, tmp_path, 4, kill_one)
    assert killed
    assert results == alone(tmp_path / "alone", wanted)
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
