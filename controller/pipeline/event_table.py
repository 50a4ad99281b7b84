"""The one table of events: its columns, whether an event comes from a trace or from a line of a real broker's log.

A row an event. Always set: `run` (which cluster or run: events of different runs are never compared), `at` (UTC; a
trace has no calendar, its zero is the first moment of 1970), `day`, `node` (-1: none, or unknown), `event`,
`origin` ("trace" or "log"), `file` and `place` (the row of a trace; the byte in a log at which the line begins, after
decompression). The other columns are the events' fields and null where an event has none of that name.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from controller.report.files import columns as trace_columns

OWN = {
    "run": pa.string(),
    "at": pa.timestamp("us"),
    "node": pa.int32(),
    "event": pa.string(),
    "origin": pa.string(),
    "file": pa.string(),
    "place": pa.int64(),
}
"""`day` is made from `at` where the table is written: it names folders."""

_OF_LOGS: dict[str, pa.DataType] = {
    **dict.fromkeys(("controller", "known_epoch", "deleted", "leaders", "followers", "log_offset"), pa.int64()),
    **dict.fromkeys(("adding", "removing", "to_brokers"), pa.list_(pa.int64())),
    **dict.fromkeys(("added_topics", "deleted_topics", "error", "who"), pa.string()),
}
_ARROW: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}

FIELDS: dict[str, pa.DataType] = {
    **{name: _ARROW.get(hint, pa.list_(pa.int64())) for name, hint in trace_columns().items()},
    **_OF_LOGS,
}
"""Every field of every event, by name."""

EVENTS = pa.schema([*OWN.items(), *FIELDS.items()])

LEFTOVERS = pa.schema(
    [("run", pa.string()), ("file", pa.string()), ("place", pa.int64()), ("why", pa.string()), ("text", pa.string())]
)
"""Lines that are no event: `why` says what is wrong with each."""

COUNTS = pa.schema([("run", pa.string()), ("file", pa.string()), ("kind", pa.string()), ("lines", pa.int64())])
"""How many lines of a file were what: an event, part of a stack trace, empty, or left over (by why)."""

_SPARK_NAMES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.timestamp("us"): "timestamp",
    pa.list_(pa.int64()): "array<bigint>",
}


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark spells it."""
    return ", ".join(f"`{field.name}` {_SPARK_NAMES[field.type]}" for field in schema)
