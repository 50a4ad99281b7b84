"""A campaign on Spark: its runs fanned out over executors, a slice of them a task.

Each task appends results as its runs end (`campaign_runs`), so that a worker's death costs the runs that it was in: the
task is tried again and goes on where the lines end. An interrupted campaign goes on likewise, with any number of
partitions. The folder has to be reachable under one path from all machines.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from controller.pipeline.campaign_runs import Campaign, Result, read_results, run_all

ATTEMPTS = 4
POLL_S = 0.5
SLICES_A_CORE = 8
"""Runs differ in length: many slices keep all cores at work to the end."""

Progress = Callable[[Sequence[Result]], None]
Batches = Iterator[pa.RecordBatch]


class AnotherCampaign(Exception):
    """The folder holds the results of a campaign that is not this one."""


def retrying(master: str) -> str:
    """A local master that tries a task again, as every other one does."""
    return f"{master[:-1]},{ATTEMPTS}]" if master.startswith("local[") and "," not in master else master


def run_campaign(
    spark: SparkSession,
    campaign: Campaign,
    folder: Path,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """All results, those of an earlier, interrupted call included. `progress` is given what there is, now and then.
    KeyboardInterrupt passes through, once Spark was asked to stop the running tasks."""
    _claim(campaign, folder)
    known = folder / "results"
    done = {result.number for result in _all(known)}
    left = [number for number in range(len(campaign)) if number not in done]
    if left:
        wanted = partitions or spark.sparkContext.defaultParallelism * SLICES_A_CORE
        slices = min(wanted, len(left))
        attempt = len({file.name.split("-")[0] for file in known.glob("*.jsonl")}) if known.exists() else 0
        work = spark.sparkContext.broadcast((campaign, left, slices, f"{attempt:04}"))
        job = spark.range(0, slices, 1, slices).mapInArrow(_slice(work, folder), "runs long")
        _watched(spark, job.count, known, progress)
    results = _all(known)
    if progress is not None:
        progress(results)
    return results


def _slice(work: Any, folder: Path) -> Callable[[Batches], Batches]:
    def runs(batches: Batches) -> Batches:
        campaign, left, slices, attempt = work.value
        for batch in batches:
            for place in batch.column("id").to_pylist():
                # Every so-manieth run: neighbouring seeds of a slow setting are spread over all slices.
                finished = sum(1 for _ in run_all(campaign, left[place::slices], folder, f"{attempt}-{place:06}"))
                yield pa.RecordBatch.from_pydict({"runs": [finished]})

    return runs


def _watched(spark: SparkSession, job: Callable[[], Any], known: Path, progress: Progress | None) -> None:
    """Runs the job on a thread of its own, so that this one can look at what is there and be interrupted."""
    failures: list[BaseException] = []

    def carry_out() -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - raised again on the caller's thread
            failures.append(error)

    thread = threading.Thread(target=carry_out, name="campaign", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            if progress is not None:
                progress(_all(known))
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):  # the signal's handler may have killed the JVM
            spark.sparkContext.cancelAllJobs()
        raise
    if failures:
        raise failures[0]


def _all(known: Path) -> list[Result]:
    return read_results(sorted(known.glob("*.jsonl")))


def _claim(campaign: Campaign, folder: Path) -> None:
    """Results of another campaign are not mixed with these."""
    folder.mkdir(parents=True, exist_ok=True)
    points = [dict(point.settings) for point in campaign.points]
    content = msgspec.json.encode(
        {"name": campaign.name, "points": points, "first_seed": campaign.first_seed, "seeds": campaign.seeds}
    )
    marker = folder / "campaign.json"
    if marker.exists() and marker.read_bytes() != content:
        raise AnotherCampaign(f"{folder} holds another campaign: {marker.read_text()}")
    marker.write_bytes(content)
