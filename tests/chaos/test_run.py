"""A run on real processes, with the processes taken away: what its verdict comes to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.chaos import run
from controller.clock import VirtualClock
from controller.scenarios.files import load_scenario
from controller.scenarios.judge import FAIL
from controller.scenarios.runner import Outcome
from controller.trace import Noted
from controller.trace_records import TraceRecord


class NoHost:
    """Has seen one broker trip over itself."""

    name = "none"
    seed = 0

    def __init__(self, **_settings: object) -> None:
        self.clock = VirtualClock()

    def close(self) -> None:
        pass

    def records(self) -> Sequence[TraceRecord]:
        return [TraceRecord(1.0, 1, Noted("error", "KeyError: 'idle_for'"))]


def test_a_broker_that_trips_over_itself_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RealHost", NoHost)
    monkeypatch.setattr(run, "_blocking", lambda task: Outcome(failure=None, could_not_run=False))
    result = run.run_scenario(load_scenario("broker-kill"), progress=lambda at_ms, line: None)
    assert result.report.judgement.verdict == FAIL
    found = [one for one in result.report.judgement.invariants if one.name == "no-defects"]
    assert [one.held for one in found] == [False]
    assert "idle_for" in found[0].detail
