"""`camerlengo simulate swarm --report`: an index of all seeds, and the report of each that failed."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.simulator.safety_checker import Violation
from controller.simulator.swarm import PlanRun, PlanWorld
from tests.cli.ending import status_of


def test_a_swarms_index_lists_all_seeds_and_links_the_reports_of_those_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = PlanWorld.result

    def third_fails(world: PlanWorld, rest_ms: float | None) -> PlanRun:
        run = result(world, rest_ms)
        found = Violation("converged", 1_234.5, (2,), "<two> controllers") if world.plan.seed == 3 else None
        return dataclasses.replace(run, violation=found)

    monkeypatch.setattr(PlanWorld, "result", third_fails)
    assert main(["simulate", "swarm", "--seeds", "2..3", "--report", str(tmp_path)]) == 1
    assert "1 of 2 seeds held" in capsys.readouterr().out
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"href=\"(.*?)\"", index) == ["seed-3/report.html"]
    assert index.index("simulate swarm --seed 3") < index.index("simulate swarm --seed 2")
    assert "<b>converged</b> at 1234.5 ms, broker 2: &lt;two&gt; controllers" in index
    page = (tmp_path / "seed-3" / "report.html").read_text(encoding="utf-8")
    assert "&lt;two&gt; controllers" in page
    assert "Planned faults and operations" in page
    report = json.loads((tmp_path / "seed-3" / "report.json").read_text(encoding="utf-8"))
    assert (report["seed"], report["verdict"], report["host"]) == (3, "fail", "simulated")
    assert not (tmp_path / "seed-2").exists()


def test_one_plan_writes_its_report_and_a_stopped_one_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "swarm", "--seed", "2", "--report", str(tmp_path / "run")]
    assert main(words) == 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["report.html", "report.json", "trace.parquet"]
    assert "camerlengo simulate swarm --seed 2" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert status_of([*words, "--until", "100"]) == 2
    assert "has no report" in capsys.readouterr().err
