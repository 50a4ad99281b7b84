"""Read traces and brokers' logs: find the files, split them into tasks, and read a task's lines or rows block by block,
so that memory does not grow with a file.

A traced run's history (`sends.parquet`, `reads.parquet`) lies beside its trace, and one task reads both. Its counts and
latencies follow the scenarios' rules (`controller.scenarios.records.figures`), so they are those of its report.json.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from controller.pipeline.event_table import EVENTS, LEFTOVERS
from controller.pipeline.log_parsing import BEGINNING, EVENT, LogFile, Parsed, parse_lines
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.figures import (
    AroundFault,
    InjectedFault,
    Latency,
    Timed,
    around_faults,
    count_records,
    fetch_times,
    latency,
    produce_times,
)
from controller.scenarios.records.table import SENDS, read_history

CHUNK_BYTES = 32 * 1024 * 1024
TRACE = "trace.parquet"
_LOG = re.compile(r"(?:.*[-_.])?(?:controller|state-change)(?:[-_.][\w.-]*)?\.log(?:[.-][\w.-]*)?")
_NODE = re.compile(r"([0-9]+)$")


class NothingToRead(Exception):
    """A path that is not there, or below which is neither a trace nor a log; the message names it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One task: the part of a log whose lines begin in [start, end), or a whole trace (`trace`) or gzipped log."""

    file: LogFile
    start: int
    end: int
    trace: bool

    @property
    def zipped(self) -> bool:
        return self.file.path.endswith(".gz")


def chunks_of(paths: Sequence[Path], chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """All tasks of these paths, each file once. A trace is a run of its own; the logs below one path are one run, and
    a broker's are found by the number at the end of the name of the folder that they lie in, where lines don't say."""
    found: dict[str, Chunk] = {}
    several = len(paths) > 1
    for path in paths:
        if not path.exists():
            raise NothingToRead(f"{path}: no such file or folder")
        before = len(found)
        for file in _files(path):
            where = str(file.resolve())
            if where not in found:
                found.update((f"{where} {chunk.start}", chunk) for chunk in _of_file(path, file, several, chunk_bytes))
        if len(found) == before:
            raise NothingToRead(f"{path}: neither {TRACE} nor a controller.log or state-change.log there")
    return list(found.values())


def unreadable_traces(chunks: Sequence[Chunk]) -> list[str]:
    """Say of each trace why it can't be read, if there is nothing else to read; the empty list otherwise. A trace is
    read whole for that, up to the first that can be."""
    if not all(chunk.trace for chunk in chunks):
        return []
    problems = []
    for chunk in chunks:
        try:
            parquet.read_table(Path(chunk.file.path))
        except (OSError, ValueError) as error:
            problems.append(f"{chunk.file.path}: {str(error).partition(chr(10))[0]}")
        else:
            return []
    return problems


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and (file.name == TRACE or _LOG.fullmatch(file.name)):
            yield file


def _of_file(path: Path, file: Path, several: bool, chunk_bytes: int) -> Iterator[Chunk]:
    size, trace = file.stat().st_size, file.suffix == ".parquet"
    node = _NODE.search(file.parent.name)
    run = _run_of(path, file, several) if trace else path.resolve().name if several else ""
    source = LogFile(run, str(file.resolve()), int(node[1]) if node else -1)
    if trace or file.suffix == ".gz":
        yield Chunk(source, 0, size, trace)
        return
    for start in range(0, max(size, 1), chunk_bytes):
        yield Chunk(source, start, min(size, start + chunk_bytes), trace=False)


def _run_of(path: Path, file: Path, several: bool) -> str:
    """Return the name of a trace's run: its directory, with as much of its path as distinguishes it from others."""
    below = file.parent.relative_to(path) if path.is_dir() else Path()
    own = [path.resolve().name] if several and path.is_dir() else [file.parent.resolve().name] if several else []
    return "/".join([*own, *below.parts])


PRODUCE, FETCH = "produce", "fetch"
WHOLE_RUN, BEFORE, DURING, AFTER = "whole run", "before", "during", "after"

LATENCIES = pa.schema(
    [("run", pa.string()), ("fault", pa.string()), ("target", pa.string())]
    + [(name, pa.float64()) for name in ("fault_at_ms", "recovered_at_ms")]
    + [("what", pa.string()), ("when", pa.string()), ("records", pa.int64())]
    + [(name, pa.float64()) for name in ("p50_ms", "p95_ms", "p99_ms", "worst_ms")]
)
"""A row for each run, fault, `what` (PRODUCE, FETCH) and `when`, where any record was. The fault is null for WHOLE_RUN;
docs/reports.md says what the others are. Times are ms on the trace's axis, percentiles ms."""

RECORDS = pa.schema(
    [("run", pa.string())]
    + [(name, pa.int64()) for name in ("sent", "acknowledged", "failed", "indeterminate", "read")]
    + [(name, pa.int64()) for name in ("lost", "duplicated", "reordered")]
)
"""A row a run with records: `records` of report.json."""


@dataclass(frozen=True, slots=True, eq=False)
class RunRecords:
    """Tables of LATENCIES and RECORDS of one run."""

    latencies: pa.Table
    records: pa.Table


def has_history(trace: Path) -> bool:
    return (trace.parent / SENDS).exists()


def workload_of(run: str, trace: Path, table: pa.Table) -> RunRecords:
    """`table` is the trace's, as in the file. OSError, ValueError or KeyError where the history can't be read."""
    audit = DeliveryAudit(read_history(trace.parent))
    faults = [*_faults(table)]
    rows = [*_whole_run(audit), *(row for each in around_faults(audit, faults) for row in _around(each))]
    return RunRecords(
        pa.Table.from_pylist([{"run": run, **row} for row in rows], schema=LATENCIES),
        pa.Table.from_pylist([{"run": run, **asdict(count_records(audit))}], schema=RECORDS),
    )


def _faults(table: pa.Table) -> Iterator[InjectedFault]:
    faults = table.filter(pc.equal(table.column("event"), "FaultInjected"))
    for row in faults.select(["at_ms", "fault", "target"]).to_pylist():
        yield InjectedFault(row["at_ms"], row["fault"], row["target"])


def _whole_run(audit: DeliveryAudit) -> Iterator[dict[str, Any]]:
    both: tuple[tuple[str, Timed], ...] = ((PRODUCE, produce_times(audit.history)), (FETCH, fetch_times(audit)))
    for what, times in both:
        yield from _row({}, what, WHOLE_RUN, latency(times.took_ms))


def _around(each: AroundFault) -> Iterator[dict[str, Any]]:
    fault = {
        "fault": each.fault.fault,
        "target": each.fault.target,
        "fault_at_ms": each.fault.at_ms,
        "recovered_at_ms": each.recovered_at_ms,
    }
    for what, windows in ((PRODUCE, each.produce), (FETCH, each.fetch)):
        for when, found in ((BEFORE, windows.before), (DURING, windows.during), (AFTER, windows.after)):
            yield from _row(fault, what, when, found)


def _row(fault: dict[str, Any], what: str, when: str, found: Latency | None) -> Iterator[dict[str, Any]]:
    if found is not None:
        figures = asdict(found)
        yield {**fault, "what": what, "when": when, "records": figures.pop("count"), **figures}


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


def parsed_trace(file: LogFile) -> tuple[Parsed, RunRecords | None]:
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
