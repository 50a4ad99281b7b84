"""Logs that grow are followed: each line once, also over a rotation, with the stack traces that belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller.pipeline.follow import (
    LEFT_OVER,
    counts_by_minute,
    events_as_they_come,
    followed,
    keep_batch,
    new_chunks,
    readable,
)
from controller.pipeline.store import read_events

STATE_CHANGE = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "logs" / "broker-3" / "state-change.log"
LATER_S = 4e9
"""A time by which every file has been quiet."""


def events(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, str, str | None]]:
    found = []
    for chunk in new_chunks(start, end):
        for batch in followed(chunk):
            found += [(row["place"], row["event"], row["error"]) for row in batch.to_pylist()]
    return sorted(found, key=lambda one: one[0])


def test_a_growing_log_gives_each_event_once_and_whole(tmp_path: Path) -> None:
    path, data = tmp_path / "broker-3" / "state-change.log", STATE_CHANGE.read_bytes()[:200_000]
    path.parent.mkdir()
    known: dict[str, Any] = {}
    found: list[tuple[int, str, str | None]] = []
    for size in (*range(0, len(data), 7_919), len(data)):
        path.write_bytes(data[:size])
        now = readable([tmp_path], 10.0, path.stat().st_mtime)
        found += events(known, now)
        known = now
    last = readable([tmp_path], 10.0, LATER_S)
    found += events(known, last)
    assert found == events({}, last)
    assert len(found) > 300
    assert events(last, last) == []


def test_a_rotated_log_goes_on_where_it_was(tmp_path: Path) -> None:
    path, lines = tmp_path / "state-change.log", STATE_CHANGE.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:50]))
    before = readable([tmp_path], 10.0, LATER_S)
    assert len(events({}, before)) == 50
    with path.open("ab") as file:
        file.writelines(lines[50:60])
    path.rename(tmp_path / "state-change.log.2026-11-21-08")
    path.write_bytes(b"".join(lines[60:70]))
    assert len(events(before, readable([tmp_path], 10.0, LATER_S))) == 20


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    assert readable([tmp_path / "absent", tmp_path], 10.0, LATER_S) == {}


def test_a_line_that_is_none_is_an_event_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "controller.log").write_text("no line of any log\n")
    (chunk,) = new_chunks({}, readable([tmp_path], 10.0, LATER_S))
    (row,) = [row for batch in followed(chunk) for row in batch.to_pylist()]
    assert (row["event"], row["reason"], row["text"]) == (LEFT_OVER, "in no known form", "no line of any log")


def test_a_stream_keeps_events_once_and_counts_them_by_minute(spark: Any, tmp_path: Path) -> None:
    source, table = tmp_path / "logs", tmp_path / "table"
    source.mkdir()
    lines = STATE_CHANGE.read_bytes().splitlines(keepends=True)[:400]
    path = source / "state-change.log"
    path.write_bytes(b"".join(lines[:150]))
    stream = events_as_they_come(spark, [source], quiet_s=0.0)
    checkpoint = str(tmp_path / "checkpoint")

    def keep(batch: Any, number: int) -> None:
        keep_batch(batch, number, table)
        keep_batch(batch, number, table)  # as after a failure

    def once() -> None:
        writing = stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(keep)
        query = writing.start()
        query.processAllAvailable()
        query.stop()

    once()
    assert read_events(spark, table).count() == 150
    with path.open("ab") as file:
        file.writelines(lines[150:])
    once()
    kept = read_events(spark, table)
    assert kept.count() == kept.dropDuplicates(["file", "place"]).count() == 400
    minutes = counts_by_minute(stream, "1 minute").writeStream.format("memory").queryName("minutes")
    query = minutes.option("checkpointLocation", str(tmp_path / "other")).outputMode("append").start()
    query.processAllAvailable()
    query.stop()
    told = spark.table("minutes").where("event = 'ReplicaRoleApplied'").collect()
    # The last minutes are not told yet: the watermark has not passed them.
    assert {(str(row.minute)[:16], row.node) for row in told} >= {("2026-11-21 08:05", 3)}
