"""A trace as one Parquet table: a row an event, a column a field, whatever the event.

Columns `row`, `at_ms`, `node`, `event` are always set; the others are null where an event has no such field.
The columns follow from the event types, so a new event or field needs nothing here; `docs/reports.md` lists them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.trace_records import EVENT_TYPES, TraceRecord

if TYPE_CHECKING:
    import pyarrow as pa


_OWN = ("row", "at_ms", "node", "event")


def columns() -> dict[str, Any]:
    """Every event field's name and Python type, in the order of the event types. A name means one type only."""
    fields: dict[str, Any] = {}
    for kind in EVENT_TYPES.values():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            known = fields.setdefault(field.name, hints[field.name])
            if known != hints[field.name]:
                raise TypeError(f"{kind.__name__}.{field.name}: {hints[field.name]}, elsewhere {known}")
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
        arrays[name] = pa.array([_plain(getattr(record.event, name, None)) for record in records], arrow_type)
    return pa.table(arrays)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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
