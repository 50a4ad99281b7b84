"""`camerlengo bench loading`, small: Apache ZooKeeper, fresh processes, figures that mean what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.cli.main import main
from tests.benchmarks.clusters import TreeSize
from tests.benchmarks.loading import figures, table
from tests.cli.ending import status_of


def answer(total: float, states: int = 10) -> dict[str, Any]:
    return {"ms": {"states": total - 1, "total": total, "cpu": total / 2}, "states": states}


def test_a_small_cluster_is_loaded_and_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "loading", "--json", "--partitions", "130", "--topics", "12", "--runs", "2"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["partitions"], found["topics"], found["runs"]) == (130, 12, 2)
    assert set(found["load_ms"]) == {"brokers", "topic list", "assignments and watches", "states", "total", "cpu"}
    for spread in found["load_ms"].values():
        assert 0 <= spread["min"] <= spread["median"] <= spread["max"]
    assert found["kazoo_get_async_ms"]["states"]["median"] > 0
    assert found["ratio"] > 0


def test_figures_are_medians_and_their_ratio() -> None:
    size = TreeSize(1, 10, 1, 1)
    found = figures(size, [answer(3), answer(1), answer(8)], [answer(61)])
    assert found["load_ms"]["total"] == {"median": 3, "min": 1, "max": 8}
    assert found["ratio"] == 20
    assert "20.0 times" in table(found)
    alone = figures(size, [answer(3)], [])
    assert alone["ratio"] is None
    assert "kazoo" not in table(alone)


def test_a_run_that_did_not_read_everything_gives_no_figures() -> None:
    with pytest.raises(RuntimeError, match="9 of 10"):
        figures(TreeSize(1, 10, 1, 1), [answer(3), answer(3, states=9)], [])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--partitions", "0"], "--partitions: expected an integer from 1"),
        (["--runs", "0"], "--runs: expected an integer from 1"),
        (["--peer-runs", "-1"], "--peer-runs: expected an integer from 0"),
        (["--topics", "9", "--partitions", "5"], "--topics 9"),
        (["--replication-factor", "4"], "--replication-factor 4"),
    ],
)
def test_a_size_that_cant_be_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["bench", "loading", *words]) == 2
    assert named in capsys.readouterr().err


def test_partitions_are_dealt_out_evenly() -> None:
    size = TreeSize(topics=3, partitions=8, replication_factor=1, brokers=1)
    assert [size.partitions_of(topic) for topic in range(3)] == [3, 3, 2]
    assert len(set(size.names())) == 8
