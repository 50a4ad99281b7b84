"""The same campaign on executors of their own (Spark's local cluster): its results are those of a process alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.pipeline.campaign_runs import read_results, run_all
from tests.pipeline.test_campaign_runs import campaign

DEADLINE_S = 400.0
MASTER = "local-cluster[2,1,1024]"
WORDS = (
    "broker-kill",
    "--seeds",
    "10..11",
    "--set",
    "partitions=1,2",
    "--set",
    "records=false",
    "--partitions",
    "3",
    "--traces",
    "none",
)


@pytest.mark.timeout(900)
def test_executors_of_their_own_give_the_same_results(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controller.cli", "campaign", *WORDS, "--master", MASTER]
    done = subprocess.run(
        [*command, "--report", str(tmp_path / "out")], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = campaign(seeds=2)
    expected = [*run_all(wanted, range(len(wanted)), tmp_path / "alone", "alone")]
    assert read_results((tmp_path / "out" / "results").glob("*.jsonl")) == expected
    assert done.stdout.endswith("4 of 4 runs passed\n")
