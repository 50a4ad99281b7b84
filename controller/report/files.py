"""The files that a run leaves: `report.json`, `report.html`, `trace.parquet`, and the history of its records if any.

The trace is one Parquet table: a row an event, a column a field, whatever the event. Columns `row`, `at_ms`, `node`,
`event` are always set; the others are null where an event has no such field. The columns follow from the event types,
so a new event or field needs nothing here; `docs/reports.md` lists them.

    python -m controller.report.files TRACE PICTURE.svg

draws the timeline of a `trace.parquet`.
"""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from controller.report.html import report_html
from controller.report.layout import picture_svg
from controller.report.summary import Report, report_json
from controller.report.timeline import timeline_of
from controller.scenarios.records.table import write_history
from controller.trace_records import EVENT_TYPES, TraceRecord

if TYPE_CHECKING:
    import pyarrow as pa


PAGE = "report.html"


def write_report(report: Report, folder: Path, replay: str = "") -> None:
    """Write them into `folder`, which is made if it is not there. `replay`: the command that repeats the run, if there
    is one. The trace is last and is complete or absent: where it is, the other files are too.

    Raises:
        OSError: as it comes.
        ImportError: pyarrow is missing; it names the extra to install.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report_json(report), encoding="utf-8")
    (folder / PAGE).write_text(report_html(report, replay), encoding="utf-8")
    if report.judgement.records is not None:
        write_history(report.judgement.records.history, folder)
    partial = folder / f".trace-{os.getpid()}.part"
    write_parquet(report.records, partial)
    partial.replace(folder / "trace.parquet")


_OWN = ("row", "at_ms", "node", "event")


def columns() -> dict[str, Any]:
    """Every event field's name and Python type, in the order of the event types. A name means one type only."""
    fields: dict[str, Any] = {}
    for kind in EVENT_TYPES.values():
        hints = typing.get_type_hints(kind)
        for name in kind.__struct_fields__:
            known = fields.setdefault(name, hints[name])
            if known != hints[name]:
                raise TypeError(f"{kind.__name__}.{name}: {hints[name]}, elsewhere {known}")
    if taken := fields.keys() & set(_OWN):
        raise TypeError(f"event fields named like the table's own columns: {sorted(taken)}")
    return fields


def to_table(records: Sequence[TraceRecord]) -> pa.Table:
    """The records as an Arrow table, in their order."""
    pa = _pyarrow()
    types = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    fields = columns()
    arrays = {
        "row": pa.array(range(len(records)), pa.int64()),
        "at_ms": pa.array([record.at_ms for record in records], pa.float64()),
        "node": pa.array([record.node for record in records], pa.int32()),
        "event": pa.array([type(record.event).__name__ for record in records], pa.string()),
    }
    for name, hint in fields.items():
        arrow_type = types.get(hint) or pa.list_(pa.int64())
        arrays[name] = pa.array([getattr(record.event, name, None) for record in records], arrow_type)
    return pa.table(arrays)


def write_parquet(records: Sequence[TraceRecord], path: Path) -> None:
    _pyarrow()
    import pyarrow.parquet as parquet

    parquet.write_table(to_table(records), path)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("trace.parquet needs pyarrow: pip install 'camerlengo[chaos]'") from error
    return pyarrow


def read_parquet(path: Path) -> list[TraceRecord]:
    """The records that `write_parquet` wrote, in their order. OSError as it comes; KeyError for an event
    of a later version."""
    import pyarrow.parquet as parquet

    records = []
    for row in parquet.read_table(path).to_pylist():
        kind = EVENT_TYPES[row["event"]]
        fields = {name: row[name] for name in kind.__struct_fields__}
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
