"""Reads one task's lines or rows, block by block, so that memory does not grow with a file: bytes to parsed batches."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from controller.pipeline.event_table import EVENTS, LEFTOVERS
from controller.pipeline.log_parsing import EVENT, LogFile, Parsed, parse_lines
from controller.pipeline.log_texts import BEGINNING
from controller.pipeline.sources import Chunk
from controller.pipeline.workload import Workload, has_history, workload_of
from controller.scenarios.records.table import SENDS

BLOCK_BYTES = 4 * 1024 * 1024
LONGEST_RECORD_BYTES = 4 * BLOCK_BYTES
"""A longer stack trace is cut: its rest is still distinguished from events, but no longer attached to one."""
DAMAGED = "compressed data end here, damaged"
UNREADABLE = "a file that can't be read"

_HEAD_BYTES = 64
"""More than is looked at to tell that a record begins."""
_RECORD = re.compile(BEGINNING.encode(), re.MULTILINE)


def parsed_blocks(chunk: Chunk) -> Iterator[Parsed]:
    """Of a log; a trace is read whole, by `parsed_trace`."""
    with _opened(chunk) as opened:
        stream = _Stream(opened)
        for place, block in _blocks(chunk, stream):
            yield _parsed(chunk.file, place, block)
    if stream.damage:
        row = {"run": chunk.file.run, "file": chunk.file.path, "place": -1, "why": DAMAGED, "text": stream.damage}
        yield Parsed((), (pa.RecordBatch.from_pylist([row], schema=LEFTOVERS),), {DAMAGED: 1})


def _opened(chunk: Chunk) -> BinaryIO | gzip.GzipFile:
    return gzip.open(chunk.file.path) if chunk.zipped else Path(chunk.file.path).open("rb")


class _Stream:
    """A log's bytes, unzipped. Compressed data that are damaged end where the damage is; `damage` then says so."""

    def __init__(self, opened: BinaryIO | gzip.GzipFile) -> None:
        self.damage = ""
        self._opened = opened

    def read(self) -> bytes:
        try:
            return self._opened.read(BLOCK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = str(error)
            return b""

    def go_to(self, place: int) -> None:
        self._opened.seek(place)


def _parsed(file: LogFile, place: int, block: bytes) -> Parsed:
    lines = block.decode("utf-8", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    breaks = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
    starts = np.concatenate((np.zeros(1, dtype=np.int64), breaks + 1))[: len(lines)] + place
    return parse_lines(pa.array(lines, pa.string()), pa.array(starts, pa.int64()), file)


def _blocks(chunk: Chunk, stream: _Stream) -> Iterator[tuple[int, bytes]]:
    """(place, bytes) of whole records, some MB of them at a time: a record begins at a line with a time, and goes on
    to the next such line."""
    place = _first_record(chunk, stream)
    if place is None:
        return
    held = b""
    while new := stream.read():
        held += new
        beyond = chunk.end - place
        stop = _RECORD.search(held, beyond) if not chunk.zipped and beyond < len(held) else None
        if stop is not None:
            yield place, held[: stop.start()]
            return
        cut = last_record(held) if len(held) >= BLOCK_BYTES else 0
        if not cut and len(held) >= LONGEST_RECORD_BYTES:
            cut = held.rfind(b"\n") + 1 or len(held)
        if cut:
            yield place, held[:cut]
            place, held = place + cut, held[cut:]
    if held:
        yield place, held


def _first_record(chunk: Chunk, stream: _Stream) -> int | None:
    """Move the stream to the chunk's first record and return its offset, or None if no record begins in the chunk.

    A file's first chunk begins at 0, whatever its content. Bytes before the first record of another chunk belong to the
    chunk before it.
    """
    if chunk.start == 0:
        return 0
    before = chunk.start - 1  # that byte shows whether a line begins at `start`
    stream.go_to(before)
    held = b""
    while new := stream.read():
        held += new
        found = _RECORD.search(held, 1)
        if found is not None:
            if before + found.start() >= chunk.end:
                return None
            stream.go_to(before + found.start())
            return before + found.start()
        if before + len(held) > chunk.end + _HEAD_BYTES:
            return None
    return None


def last_record(held: bytes) -> int:
    """Return the offset of the last record, or 0 if there is at most one."""
    found = held.rfind(b"\n[")
    while found > 0 and _RECORD.match(held, found + 1) is None:
        found = held.rfind(b"\n[", 0, found)
    return found + 1 if found > 0 else 0


def parsed_trace(file: LogFile) -> tuple[Parsed, Workload | None]:
    """A trace as events, and what its run's records say, if any were sent. What can't be read is left over."""
    path = Path(file.path)
    try:
        table = parquet.read_table(path)
        parsed = _trace(file, table)
    except (OSError, ValueError, KeyError) as error:
        return _unreadable(file.run, path, error), None
    try:
        return parsed, workload_of(file.run, path, table) if has_history(path) else None
    except (OSError, ValueError, KeyError) as error:
        left = _unreadable(file.run, path.parent / SENDS, error)
        return Parsed(parsed.events, left.leftovers, {**parsed.kinds, **left.kinds}), None


def _unreadable(run: str, path: Path, error: Exception) -> Parsed:
    row = {"run": run, "file": str(path), "place": -1, "why": UNREADABLE, "text": str(error)}
    return Parsed((), (pa.RecordBatch.from_pylist([row], schema=LEFTOVERS),), {UNREADABLE: 1})


def _trace(file: LogFile, table: pa.Table) -> Parsed:
    """Its own columns as they are, its milliseconds as times from the first moment of 1970."""
    rows = table.num_rows
    at = pc.cast(pc.cast(pc.round(pc.multiply(table.column("at_ms"), 1000.0)), pa.int64()), pa.timestamp("us"))
    given = {
        "run": pa.repeat(pa.scalar(file.run), rows),
        "at": at,
        "origin": pa.repeat(pa.scalar("trace"), rows),
        "file": pa.repeat(pa.scalar(file.path), rows),
        "place": table.column("row"),
    }
    columns = []
    for column in EVENTS:
        known = given.get(column.name)
        if known is None:
            known = table.column(column.name) if column.name in table.column_names else pa.nulls(rows, column.type)
        columns.append(known.cast(column.type))
    events = pa.table(columns, schema=EVENTS).combine_chunks().to_batches()
    return Parsed(tuple(events), (), {EVENT: rows})
