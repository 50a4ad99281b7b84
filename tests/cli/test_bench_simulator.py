"""`camerlengo bench simulator` reports what it says, of worlds as small as one likes."""

from __future__ import annotations

import json

import pytest

from controller.cli.main import main


def _figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert main(["bench", "simulator", *arguments, "--json"]) == 0
    return {f"{row['what']}, {row['unit']}": row["figure"] for row in json.loads(capsys.readouterr().out)}


def test_the_estate_is_reported_with_its_time_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    figures = _figures(capsys, "estate", "--world", "10x200", "--lose", "2")
    name = "10 brokers, 200 partitions"
    assert set(figures) == {
        f"{name}: building it, CPU s",
        f"{name}: whole without 2, CPU s",
        f"{name}: the same by the wall, s",
        f"{name}: the same in virtual time, virtual s",
        f"{name}: most memory, GB",
    }
    assert all(figure > 0 for figure in figures.values())


def test_the_scheduler_and_a_cluster_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--events", "2000", "--partitions", "20", "--virtual-seconds", "5")
    figures = _figures(capsys, "scheduler", "cluster", *small)
    assert figures["bare scheduler, events/s"] > 0
    assert figures["5 brokers, 20 partitions: a kill every 30 s, virtual s/s"] > 0


def test_a_cluster_that_records_are_produced_to_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    figures = _figures(capsys, "records", "--partitions", "20", "--virtual-seconds", "5", "--produce", "5")
    (name,) = figures
    assert name == "5 brokers, 20 partitions, 5 produce requests/s: a kill every 30 s, virtual s/s"
    assert figures[name] > 0


@pytest.mark.parametrize("world", ["2x100", "10", "10x0", "x", "10xten"])
def test_a_world_that_there_cannot_be_is_refused(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "simulator", "estate", "--world", world])
    assert exit_.value.code == 2
    assert world in capsys.readouterr().err
