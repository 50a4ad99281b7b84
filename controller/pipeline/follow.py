"""Logs that grow, as a stream of events: a source for Spark's Structured Streaming, and what is done with each batch.

An offset says how far each file was read, by the file itself (its device and inode) and not by its name, so that a log
that is rotated goes on where it was. Only whole records are read: the last one, which may still get a stack trace, is
left until another follows it or its file was quiet for a while. What a record gets after that is not read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from controller.pipeline.analysis import Analysis, analyse
from controller.pipeline.event_table import EVENTS, ddl
from controller.pipeline.log_parsing import LogFile
from controller.pipeline.reading import last_record, parsed_blocks
from controller.pipeline.sources import Chunk, NothingToRead, chunks_of

SOURCE = "camerlengo-logs"
LEFT_OVER = "LineLeftOver"
"""The event of a line that is none: `reason` and `text`, and no time."""
QUIET_S = 10.0
EVERY_S = 5
LATE = "2 minutes"
_TAIL_BYTES = 1 << 20

Offset = Mapping[str, Sequence[Any]]
"""By a file's identity: its run, path, the node of its folder, and how far it may be read. JSON can say it."""


def readable(paths: Sequence[Path], quiet_s: float, now_s: float) -> dict[str, list[Any]]:
    """What of the logs below `paths` can be read now, as an Offset. Gzipped ones are left out: they are copies of what
    was read while it grew."""
    found: dict[str, list[Any]] = {}
    for path in paths:
        try:
            files = {chunk.file for chunk in chunks_of([path]) if not chunk.zipped and not chunk.trace}
        except NothingToRead:
            continue  # not yet
        for file in files:
            state = Path(file.path).stat()
            run = path.resolve().name if len(paths) > 1 else ""
            end = state.st_size if now_s - state.st_mtime >= quiet_s else _before_last_record(file.path, state.st_size)
            found[f"{state.st_dev}:{state.st_ino}"] = [run, file.path, file.node, end]
    return found


def _before_last_record(path: str, size: int) -> int:
    with Path(path).open("rb") as stream:
        start = max(0, size - _TAIL_BYTES)
        stream.seek(start)
        held = stream.read(size - start)
    last = last_record(held)
    # One record alone waits for the next; one that is longer than what was looked at does not.
    return start + last if last or start == 0 else size


def new_chunks(start: Offset, end: Offset) -> list[Chunk]:
    """What came between two offsets. A file that is shorter than it was begins anew."""
    found = []
    for identity, (run, path, node, until) in sorted(end.items()):
        begun = start.get(identity, (run, path, node, 0))[3]
        begun = 0 if until < begun else begun
        if begun < until:
            found.append(Chunk(LogFile(run, path, node), begun, until, trace=False))
    return found


class GrowingLogs(DataSource):  # type: ignore[misc]
    """Options: `paths`, separated by newlines, and `quiet_s`."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return ddl(EVENTS)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader([Path(path) for path in self.options["paths"].split("\n")], float(self.options["quiet_s"]))


class _Part(InputPartition):  # type: ignore[misc]
    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk


class _Reader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, paths: Sequence[Path], quiet_s: float) -> None:
        self._paths = paths
        self._quiet_s = quiet_s

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self) -> dict[str, Any]:
        return readable(self._paths, self._quiet_s, time.time())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Part(chunk) for chunk in new_chunks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from followed(partition.chunk)


def followed(chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """The events of a chunk, its left over lines among them."""
    for parsed in parsed_blocks(chunk):
        yield from parsed.events
        for batch in parsed.leftovers:
            rows = [
                {"run": row["run"], "file": row["file"], "place": row["place"], "node": chunk.file.node,
                 "event": LEFT_OVER, "origin": "log", "reason": row["why"], "text": row["text"]}
                for row in batch.to_pylist()
            ]  # fmt: skip
            yield pa.RecordBatch.from_pylist(rows, schema=EVENTS)


def events_as_they_come(spark: SparkSession, paths: Sequence[Path], quiet_s: float = QUIET_S) -> DataFrame:
    """A streaming frame of EVENTS."""
    spark.dataSource.register(GrowingLogs)
    named = "\n".join(str(path.resolve()) for path in paths)
    return spark.readStream.format(SOURCE).option("paths", named).option("quiet_s", str(quiet_s)).load()


def counts_by_minute(events: DataFrame, late: str) -> DataFrame:
    """How many events of each kind each broker had in each minute. A minute is told once, when the newest event is
    `late` ("2 minutes") past its end; what comes for it after that is left out."""
    timed = events.where(f.col("at").isNotNull()).withWatermark("at", late)
    counted = timed.groupBy("run", f.window("at", "1 minute").alias("minute"), "node", "event").agg(
        f.count("*").alias("events")
    )
    return counted.select("run", f.col("minute.start").alias("minute"), "node", "event", "events")


def keep_batch(batch: DataFrame, number: int, folder: Path) -> None:
    """Adds a batch's events to the table in `folder`, once, however often the batch is tried."""
    for name in ("events", "leftovers", "counts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    target = folder / "events" / f"batch={number:08}"
    shutil.rmtree(target, ignore_errors=True)
    day = f.coalesce(f.to_date("at"), f.lit("1970-01-01").cast("date"))
    batch.withColumn("day", day).write.partitionBy("day", "node").parquet(str(target))
    (folder / "complete").touch()


def follow(
    spark: SparkSession, paths: Sequence[Path], report: Path, min_in_sync: int, renewed: Callable[[Analysis], None]
) -> None:
    """Until interrupted: the table of events in `report`/events grows with the logs, `renewed` is given the analysis
    after each batch, and `report`/minutes gets the counts by minute. Goes on where an earlier call stopped."""

    def keep(batch: DataFrame, number: int) -> None:
        keep_batch(batch, number, report / "events")
        renewed(analyse(spark, report / "events", min_in_sync))

    def started(frame: DataFrame, name: str) -> Any:
        kept = str(report / "checkpoints" / name)
        return frame.writeStream.option("checkpointLocation", kept).trigger(processingTime=f"{EVERY_S} seconds")

    events = events_as_they_come(spark, paths)
    minutes = counts_by_minute(events_as_they_come(spark, paths), LATE)
    queries = [
        started(events, "events").foreachBatch(keep).start(),
        started(minutes, "minutes").format("parquet").outputMode("append").start(str(report / "minutes")),
    ]
    try:
        spark.streams.awaitAnyTermination()
    finally:
        for query in queries:
            query.stop()
