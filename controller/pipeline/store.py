"""The event table on disk: Parquet by day and broker, written by Spark's tasks and read by Spark.

A folder of its own: `events/day=.../node=.../`, `leftovers/`, `counts/`, `latencies/` and `records/` (of traced runs),
and `complete` once all of it is there. A task names its files after its place among the tasks and moves each into its
place whole, so that a task which is run again, after a worker died, leaves the same files and no line twice. The folder
has to be reachable under one path from all of Spark's machines, as what is read has to be.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from controller.pipeline.event_table import COUNTS, EVENTS, LEFTOVERS, ddl
from controller.pipeline.reading import LATENCIES, RECORDS, Chunk, parsed_blocks, parsed_trace

HELD_ROWS = 200_000
"""Events that a task keeps in memory before it writes them: some 100 MB."""
_COMPLETE = "complete"
_FOLDERS = ("events", "leftovers", "counts", "latencies", "records")

Batches = Iterator[pa.RecordBatch]


class IncompleteTable(Exception):
    """A folder that no table was written to, or not to its end."""


def write_events(spark: SparkSession, chunks: Sequence[Chunk], folder: Path) -> None:
    """All lines and rows of the chunks, a task a chunk. What was in the folder's own subfolders is replaced."""
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / _COMPLETE).unlink(missing_ok=True)
    add_events(spark, chunks, folder, "")


def add_events(spark: SparkSession, chunks: Sequence[Chunk], folder: Path, batch: str) -> None:
    """Adds to the table. `batch` names these chunks: written again under the same name, they replace themselves."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    tasks = spark.sparkContext.broadcast(tuple(chunks))
    work = spark.range(0, len(chunks), 1, len(chunks)).mapInArrow(_writing(tasks, folder, batch), "task long")
    done = work.count()
    if done != len(chunks):
        raise IncompleteTable(f"{folder}: {done} of {len(chunks)} parts were written")
    (folder / _COMPLETE).touch()


def _writing(tasks: Any, folder: Path, batch: str) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        for rows in batches:
            for number in rows.column("id").to_pylist():
                write_chunk(tasks.value[number], f"{batch}{number:06}", folder)
                yield pa.RecordBatch.from_pydict({"task": [number]})

    return write


def write_chunk(chunk: Chunk, name: str, folder: Path) -> None:
    """One task's work, in files of that name."""
    if chunk.trace:
        _write_trace(chunk, name, folder)
        return
    held: list[pa.RecordBatch] = []
    leftovers: list[pa.RecordBatch] = []
    counts: list[pa.RecordBatch] = []
    part = 0
    for parsed in parsed_blocks(chunk):
        held += parsed.events
        leftovers += parsed.leftovers
        counts.append(parsed.counts(chunk.file))
        if sum(map(len, held)) >= HELD_ROWS:
            _write_by_day(held, f"{name}-{part:04}", folder / "events")
            held, part = [], part + 1
    _write_by_day(held, f"{name}-{part:04}", folder / "events")
    _write(pa.Table.from_batches(leftovers, LEFTOVERS), folder / "leftovers", name)
    _write(pa.Table.from_batches(counts, COUNTS), folder / "counts", name)


def _write_trace(chunk: Chunk, name: str, folder: Path) -> None:
    parsed, workload = parsed_trace(chunk.file)
    _write_by_day(parsed.events, f"{name}-0000", folder / "events")
    _write(pa.Table.from_batches(parsed.leftovers, LEFTOVERS), folder / "leftovers", name)
    _write(pa.Table.from_batches([parsed.counts(chunk.file)], COUNTS), folder / "counts", name)
    if workload is not None:
        _write(workload.latencies, folder / "latencies", name)
        _write(workload.records, folder / "records", name)


def _write_by_day(held: Sequence[pa.RecordBatch], name: str, folder: Path) -> None:
    table = pa.Table.from_batches(held, EVENTS)
    days = pc.strftime(table.column("at"), format="%Y-%m-%d").combine_chunks().dictionary_encode()
    nodes = table.column("node").combine_chunks()
    for day_index, day in enumerate(days.dictionary.to_pylist()):
        of_day = pc.equal(days.indices, day_index)
        for node in pc.unique(nodes.filter(of_day)).to_pylist():
            rows = table.filter(pc.and_(of_day, pc.equal(nodes, node))).drop_columns(["node"])
            _write(rows.sort_by([("at", "ascending"), ("place", "ascending")]),
                   folder / f"day={day}" / f"node={node}", name)  # fmt: skip


def _write(table: pa.Table, folder: Path, name: str) -> None:
    if table.num_rows:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{name}.part"
        parquet.write_table(table, partial, compression="zstd")
        partial.replace(folder / f"{name}.parquet")


def read_events(spark: SparkSession, folder: Path) -> DataFrame:
    """EVENTS and `day`. Asking for a day or a node reads only its folders. Raises IncompleteTable."""
    return _frame(spark, folder, "events", f"{ddl(EVENTS)}, day date")


def read_leftovers(spark: SparkSession, folder: Path) -> DataFrame:
    return _frame(spark, folder, "leftovers", ddl(LEFTOVERS))


def read_counts(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the number of lines by file and kind."""
    rows = _frame(spark, folder, "counts", ddl(COUNTS))
    return rows.groupBy("run", "file", "kind").agg(f.sum("lines").alias("lines"))


def read_latencies(spark: SparkSession, folder: Path) -> DataFrame:
    """LATENCIES of all traced runs with records."""
    return _frame(spark, folder, "latencies", ddl(LATENCIES))


def read_records(spark: SparkSession, folder: Path) -> DataFrame:
    """RECORDS of all traced runs with records."""
    return _frame(spark, folder, "records", ddl(RECORDS))


def _frame(spark: SparkSession, folder: Path, name: str, schema: str) -> DataFrame:
    if not (folder / _COMPLETE).exists():
        raise IncompleteTable(f"{folder}: no table of events was written here to its end")
    return spark.read.schema(schema).parquet(str(folder / name))


def kept(table: DataFrame, folder: Path) -> DataFrame:
    """The same rows, as Parquet in `folder`; what was there is replaced."""
    table.write.mode("overwrite").parquet(str(folder))
    return table.sparkSession.read.schema(table.schema).parquet(str(folder))
