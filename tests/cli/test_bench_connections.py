"""`camerlengo bench connections`: what it refuses, and when its bounds count as held."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.common import CouldNotRun
from tests.benchmarks.connections import _require_descriptors, goals, table


def found(**other: Any) -> dict[str, Any]:
    client = {"requests": 100, "failures": 0, "p50_ms": 1.0, "p99_ms": 2.0, "worst_ms": 3.0}
    phase = {"queued_s": 0.1, "probe": {"producer": client, "metadata": client}}
    figures: dict[str, Any] = {
        "connections": 10,
        "fetches": 20,
        "connection_bytes": 4_000,
        "connection_us": 1.0,
        "fetch_bytes": 2_000,
        "fetch_us": 1.0,
        "idle_cpu_percent": 0.0,
        "answered": 20,
        "wrong": 0,
        "answered_s": 2.0,
        "answer_us": 1.0,
        "phases": dict.fromkeys(("before", "connect", "park", "answer"), phase),
    }
    return figures | other


def test_bounds_hold_up_to_their_value() -> None:
    assert all(goals(found()).values())
    assert "| no |" not in "\n".join(table(found()))


@pytest.mark.parametrize(
    ("figure", "value"),
    [("connection_bytes", 4_001), ("fetch_bytes", 2_001), ("answered", 19), ("wrong", 1), ("answered_s", 2.01)],
)
def test_a_figure_beyond_its_bound_is_not_held(figure: str, value: float) -> None:
    broken = found(**{figure: value})
    assert list(goals(broken).values()).count(False) == 1
    assert "\n".join(table(broken)).count("| no |") == 1


def test_more_connections_than_descriptors_are_refused_with_the_number_that_is_possible() -> None:
    _require_descriptors(20_000, 15_704)
    with pytest.raises(CouldNotRun, match="50000 connections: expected at most 15704 with a hard limit of 20000"):
        _require_descriptors(20_000, 50_000)
