"""The input of a command: traces, and directories of brokers' logs. Finds the files and splits them into tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet

from controller.pipeline.log_parsing import LogFile

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
