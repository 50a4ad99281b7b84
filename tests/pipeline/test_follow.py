"""Logs that grow are followed: each line once, also over a rotation, with the stack traces that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from controller.pipeline.follow import new_chunks, readable, take_in
from controller.pipeline.reading import Chunk, parsed_blocks
from controller.pipeline.store import write_chunk

STATE_CHANGE = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "logs" / "broker-3" / "state-change.log"
LATER_S = 4e9
"""A time by which every file has been quiet."""


def events(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, str, str | None]]:
    found = []
    for chunk in new_chunks(start, end):
        for batch in (batch for parsed in parsed_blocks(chunk) for batch in parsed.events):
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


def write(chunks: Sequence[Chunk], folder: Path, batch: str) -> None:
    for number, chunk in enumerate(chunks):
        write_chunk(chunk, f"{batch}{number:06}", folder)


class Interrupted(Exception):
    pass


def test_what_was_taken_in_is_noted_after_it_was_written(tmp_path: Path) -> None:
    def interrupted(chunks: Sequence[Chunk], folder: Path, batch: str) -> None:
        write(chunks, folder, batch)
        raise Interrupted

    source, table = tmp_path / "logs", tmp_path / "table"
    source.mkdir()
    lines = STATE_CHANGE.read_bytes().splitlines(keepends=True)[:400]
    path = source / "state-change.log"
    path.write_bytes(b"".join(lines[:150]))
    with pytest.raises(Interrupted):
        take_in([source], table, 0.0, interrupted)
    assert [take_in([source], table, 0.0, write) for _ in range(2)] == [1, 0]
    with path.open("ab") as file:
        file.writelines(lines[150:])
    assert take_in([source], table, 0.0, write) == 1
    places = parquet.read_table(table / "events").column("place").to_pylist()
    assert len(places) == len(set(places)) == len(events({}, readable([source], 0.0, LATER_S)))
