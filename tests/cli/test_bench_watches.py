"""`camerlengo bench watches`: the counts are those of each design's rule."""

from __future__ import annotations

import json

import pytest

from controller.cli.main import main
from tests.benchmarks.watches import CREATION, DEATH, MOST, PARTITIONS, REASSIGNMENT, WATCHES, old, present


def test_only_the_controllers_watches_grow_with_the_cluster() -> None:
    three, ten = present(3), present(10)
    assert ten[WATCHES] - ten[MOST] == 9, "each other broker watches /controller, and no more"
    assert ten[MOST] - three[MOST] == 7, "the controller watches each broker's registration"
    assert [ten[name] for name in (CREATION, REASSIGNMENT)] == [three[name] for name in (CREATION, REASSIGNMENT)]
    assert 1 <= ten[DEATH] == three[DEATH] <= 2
    assert 1 <= ten[CREATION] <= 3


def test_in_the_old_design_every_broker_hears_of_every_change() -> None:
    three, ten = old(3), old(10)
    assert three[WATCHES] == 3 * (3 + PARTITIONS)
    assert three[DEATH] == 2 + 2 * PARTITIONS * 2
    assert (three[CREATION], ten[CREATION]) == (3 + 3 * PARTITIONS, 10 + 3 * PARTITIONS)
    assert (three[REASSIGNMENT], ten[REASSIGNMENT]) == (6, 13)


def test_a_small_run_prints_both_designs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "watches", "--sizes", "1,3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [*found["designs"]] == ["present", "old"]
    assert [*found["designs"]["old"]] == ["1", "3"]
