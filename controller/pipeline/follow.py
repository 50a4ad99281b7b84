"""Logs that grow: what came is added to the table of events, and Structured Streaming counts it by the minute.

An offset says how far each file was read, by the file itself (its device and inode) and not by its name, so that a log
that is rotated goes on where it was. Only whole records are read: the last one, which may still get a stack trace, is
left until another follows it or its file was quiet for a while. What a record gets after that is not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from controller.pipeline.analysis import Analysis, analyse
from controller.pipeline.event_table import EVENTS, ddl
from controller.pipeline.log_parsing import LogFile
from controller.pipeline.reading import Chunk, NothingToRead, chunks_of, last_record
from controller.pipeline.store import add_events

QUIET_S = 10.0
EVERY_S = 5.0
LATE = "2 minutes"
_TAIL_BYTES = 1 << 20
_NOTED = "followed.json"

Offset = Mapping[str, Sequence[Any]]
"""By a file's identity: its run, path, the node of its folder, and how far it may be read. JSON can say it."""
Writer = Callable[[Sequence[Chunk], Path, str], None]
"""Adds chunks to a table of events, in files whose names begin so."""


def readable(paths: Sequence[Path], quiet_s: float, now_s: float) -> dict[str, list[Any]]:
    """Return how far the logs below `paths` can be read now, as an Offset. Gzipped logs are skipped: they are copies of
    files that were read while they grew."""
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
    """Return the events between two offsets. A file that became shorter is read from its beginning."""
    found = []
    for identity, (run, path, node, until) in sorted(end.items()):
        begun = start.get(identity, (run, path, node, 0))[3]
        begun = 0 if until < begun else begun
        if begun < until:
            found.append(Chunk(LogFile(run, path, node), begun, until, trace=False))
    return found


def take_in(paths: Sequence[Path], folder: Path, quiet_s: float, write: Writer) -> int:
    """Adds to the table what came since the last call, and gives how many chunks that were. How far each file was read
    is noted after that: a call that is interrupted is done again, under the same name."""
    noted = folder / _NOTED
    start: dict[str, Any] = {"batch": 0, "files": {}}
    if noted.exists():
        start = msgspec.json.decode(noted.read_bytes())
    end = readable(paths, quiet_s, time.time())
    chunks = new_chunks(start["files"], end)
    if chunks:
        write(chunks, folder, f"{start['batch']:06}-")
        partial = noted.with_suffix(".part")
        partial.write_bytes(msgspec.json.encode({"batch": start["batch"] + 1, "files": start["files"] | end}))
        partial.replace(noted)
    return len(chunks)


def counts_by_minute(events: DataFrame, late: str) -> DataFrame:
    """Count the events by minute, broker and kind.

    A minute is reported once, when the newest event is `late` ("2 minutes") past its end; events of that minute that
    arrive later are dropped.
    """
    timed = events.where(f.col("at").isNotNull()).withWatermark("at", late)
    counted = timed.groupBy("run", f.window("at", "1 minute").alias("minute"), "node", "event").agg(
        f.count("*").alias("events")
    )
    return counted.select("run", f.col("minute.start").alias("minute"), "node", "event", "events")


def minutes_as_they_pass(spark: SparkSession, folder: Path) -> DataFrame:
    """`counts_by_minute` of a table of events that grows, as a streaming frame."""
    stored = spark.readStream.schema(f"{ddl(EVENTS)}, day date").parquet(str(folder / "events"))
    return counts_by_minute(stored, LATE)


def follow(
    spark: SparkSession, paths: Sequence[Path], report: Path, min_in_sync: int, renewed: Callable[[Analysis], None]
) -> None:
    """Until interrupted: the table in `report`/events grows with the logs, `renewed` is given the analysis whenever it
    did, and a stream adds each minute's counts to `report`/minutes. Goes on where an earlier call stopped."""
    folder = report / "events"
    (folder / "events").mkdir(parents=True, exist_ok=True)

    def write(chunks: Sequence[Chunk], table: Path, batch: str) -> None:
        add_events(spark, chunks, table, batch)

    counting = (
        minutes_as_they_pass(spark, folder)
        .writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", str(report / "checkpoint"))
        .trigger(processingTime=f"{EVERY_S:g} seconds")
        .start(str(report / "minutes"))
    )
    try:
        while counting.isActive:
            if take_in(paths, folder, QUIET_S, write):
                renewed(analyse(spark, folder, min_in_sync))
            time.sleep(EVERY_S)
        raise counting.exception()
    finally:
        counting.stop()
