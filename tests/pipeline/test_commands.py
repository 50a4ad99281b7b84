"""The commands on Spark where they need none: damaged traces, and progress that is not for a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.campaign import _Progress
from controller.cli.terminal import ProgressBar
from controller.pipeline.campaign import Result
from controller.pipeline.reading import chunks_of, unreadable_traces
from tests.cli.ending import status_of


def test_traces_that_are_all_damaged_are_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nowhere")  # a session that is started fails otherwise
    (tmp_path / "run").mkdir()
    trace = tmp_path / "run" / "trace.parquet"
    trace.write_bytes(b"PAR1 and no more")
    assert status_of(["analyze", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"no trace can be read:\n  {trace}: " in said.err


def test_a_damaged_trace_beside_something_else_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "trace.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "controller.log").write_text("[2026-11-21 08:05:36,000] INFO x (kafka.controller.KafkaController)\n")
    assert unreadable_traces(chunks_of([tmp_path])) == []


def test_progress_is_lines_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        Result(
            number=number,
            point=0,
            seed=number,
            verdict="pass",
            error="",
            trace_hash="",
            duration_ms=0.0,
            broker_recoveries_ms=(),
            controller_recoveries_ms=(),
        )
        for number in range(20)
    ]
    with ProgressBar(20, 2) as bar:
        progress = _Progress(bar, 20)
        for done in range(21):
            progress(results[:done])
    said = capsys.readouterr().err
    assert "\r" not in said
    assert [line.partition(",")[0] for line in said.splitlines()] == [f"{done} of 20" for done in range(2, 21, 2)]
