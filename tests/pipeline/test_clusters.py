"""A campaign on executors of their own, on both of Spark's clusters: its results are those of a process alone, also
where an executor was killed in the middle.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller.pipeline.campaign import Result, read_results, run_all
from tests.pipeline.on_clusters import LOCAL_CLUSTER, STANDALONE, WANTED
from tests.processes import eventually, running_with

DEADLINE_S = 600.0
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return [*run_all(WANTED, range(len(WANTED)), tmp_path_factory.mktemp("alone"), "alone")]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Where the campaigns' results are, and the mark that every JVM of theirs bears."""
    place = tmp_path_factory.mktemp("clusters")
    return place, place / "mark"


@pytest.fixture(scope="module")
def told(places: tuple[Path, Path]) -> str:
    """What the campaigns printed."""
    command = [sys.executable, "-m", "tests.pipeline.on_clusters", *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def results(folder: Path) -> list[Result]:
    return read_results((folder / "results").glob("*.jsonl"))


def test_on_the_local_cluster_an_executor_killed_costs_only_the_runs_it_was_in(
    told: str, places: tuple[Path, Path], expected: list[Result]
) -> None:
    found = re.search(r"killed an executor after ([0-9]+) of 8 runs", told)
    assert found is not None
    assert 0 < int(found[1]) < len(expected)
    folder, _ = places
    assert results(folder / LOCAL_CLUSTER) == expected


def test_on_a_standalone_cluster_with_two_workers(told: str, places: tuple[Path, Path], expected: list[Result]) -> None:
    assert re.search(r"2 cores on spark://127\.0\.0\.1:[0-9]+", told)
    folder, _ = places
    assert results(folder / STANDALONE) == expected


def test_no_process_of_either_is_left(told: str, places: tuple[Path, Path]) -> None:
    _, mark = places
    eventually(lambda: running_with(f"-Dcamerlengo.mark={mark}") == [], "the clusters have ended")
