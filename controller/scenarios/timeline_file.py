"""Draws the timeline of a `trace.parquet`: `python -m controller.scenarios.timeline_file TRACE PICTURE.svg`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from controller.scenarios.timeline import timeline_of
from controller.scenarios.timeline_svg import picture_svg
from controller.trace_records import EVENT_TYPES, TraceRecord


def read_parquet(path: Path) -> list[TraceRecord]:
    """The records that `trace_table.write_parquet` wrote, in their order. OSError as it comes; KeyError for an event
    of a later version."""
    import pyarrow.parquet as parquet

    records = []
    for row in parquet.read_table(path).to_pylist():
        kind = EVENT_TYPES[row["event"]]
        fields = {field.name: row[field.name] for field in dataclasses.fields(kind)}
        records.append(TraceRecord(row["at_ms"], row["node"], msgspec.convert(fields, kind)))
    return records


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    trace, picture = map(Path, arguments)
    picture.write_text(picture_svg(timeline_of(read_parquet(trace))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
