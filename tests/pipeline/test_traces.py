"""Traces and what lies beside them: what can't be read is told, and the rest is read all the same. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from controller.pipeline.campaign import Traces, run_all
from controller.pipeline.log_parsing import EVENT, Parsed
from controller.pipeline.reading import UNREADABLE, WHOLE_RUN, RunRecords, chunks_of, parsed_trace
from controller.pipeline.store import write_chunk
from controller.report.files import write_report
from controller.scenarios.files import load_scenario
from controller.simulator.run import simulate
from tests.pipeline.test_campaign_runs import campaign


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_report(simulate(load_scenario("broker-kill", {"partitions": "2"}), 3).report, folder)
    return folder


def read(folder: Path) -> tuple[Parsed, RunRecords | None]:
    (chunk,) = chunks_of([folder])
    return parsed_trace(chunk.file)


def copied(report: Path, to: Path, **bytes_kept: int) -> Path:
    """The run's files, of some only the first bytes; 0: not at all."""
    for file in report.glob("*.parquet"):
        data = file.read_bytes()[: bytes_kept.get(file.stem)]
        if data:
            (to / file.name).write_bytes(data)
    return to


def test_a_run_with_records_and_one_without(report: Path, tmp_path: Path) -> None:
    parsed, workload = read(report)
    assert workload is not None
    assert workload.records.num_rows == 1
    assert WHOLE_RUN in workload.latencies.column("when").to_pylist()
    bare, nothing = read(copied(report, tmp_path, sends=0, reads=0))
    assert (bare.kinds, nothing) == (parsed.kinds, None)


def test_a_torn_trace_is_left_over(report: Path, tmp_path: Path) -> None:
    parsed, workload = read(copied(report, tmp_path, trace=1_000))
    assert (parsed.kinds, parsed.events, workload) == ({UNREADABLE: 1}, (), None)
    (row,) = parsed.leftovers[0].to_pylist()
    assert row["file"] == str(tmp_path / "trace.parquet")


@pytest.mark.parametrize("torn", ["sends", "reads"])
def test_torn_records_are_left_over_and_the_trace_is_read(report: Path, tmp_path: Path, torn: str) -> None:
    parsed, workload = read(copied(report, tmp_path, **{torn: 500}))
    assert workload is None
    assert parsed.kinds[UNREADABLE] == 1
    assert parsed.kinds[EVENT] == sum(map(len, parsed.events)) > 50


def test_a_task_writes_what_the_records_say(report: Path, tmp_path: Path) -> None:
    (chunk,) = chunks_of([report])
    for _ in range(2):  # a task that is tried again
        write_chunk(chunk, "000000", tmp_path)
    assert parquet.read_table(tmp_path / "records" / "000000.parquet").num_rows == 1
    assert {path.name for path in tmp_path.iterdir()} == {"events", "counts", "latencies", "records"}


def test_a_campaigns_traces_have_their_records(tmp_path: Path) -> None:
    wanted = campaign(1, Traces.ALL, records=True)
    assert [*run_all(wanted, range(1), tmp_path, "a")]
    _, workload = read(tmp_path / "traces")
    assert workload is not None
    assert workload.records.column("acknowledged").to_pylist()[0] > 0
