"""`camerlengo bench peers`: the figures and the table, and a run of what is always installed."""

from __future__ import annotations

from typing import Any

from tests.benchmarks import peers
from tests.benchmarks.common import run_worker


def ran(ready_ms: float, cpu_ms: float | None, elects: bool) -> dict[str, Any]:
    can = {"writes and reads": True, "elects when a leader is killed": elects}
    return {"import_ms": 30.0, "ready_ms": ready_ms, "record_ms": ready_ms + 20, "cpu_ms": cpu_ms, "can": can}


def test_times_are_medians_and_an_ability_is_one_that_every_run_showed() -> None:
    found = {
        "camerlengo": peers.figures([ran(40, 200, True), ran(60, 300, True), ran(50, 250, True)]),
        "tansu": peers.figures([ran(12, None, True), ran(14, None, False)]),
    }
    head, *rows = peers.table(found)
    assert head[-2:] == ["writes and reads", "elects when a leader is killed"]
    assert rows == [
        [peers.NAMES["camerlengo"], "30", "50", "70", "250", "yes", "yes"],
        [peers.NAMES["tansu"], "30", "13", "33", "-", "yes", "no"],
    ]


def test_the_in_process_cluster_can_do_all_that_is_tried() -> None:
    ran = run_worker("tests.benchmarks.peers", "camerlengo", limit_s=60)
    assert all(ran["can"].values()), ran
