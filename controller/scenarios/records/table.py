"""A history as two Parquet tables, `sends.parquet` and `reads.parquet`, beside a run's trace; and back.

The columns are those of `Sends` and `Reads`. What is not a row (the partitions' names, the final read's ends, the
errors' words, the group, the transactions) is JSON in the schema's metadata, under `camerlengo`.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.scenarios.records.group_history import GroupHistory
from controller.scenarios.records.history import NO_POLL, FinalRead, History, Reached, Reads, Sends
from controller.scenarios.records.transaction_history import NO_TRANSACTION, from_lists, to_lists

SENDS, READS = "sends.parquet", "reads.parquet"
_METADATA = b"camerlengo"


def write_history(history: History, folder: Path) -> None:
    """Two files in `folder`, which is there. ImportError where pyarrow is missing."""
    import pyarrow.parquet as parquet

    about = {
        "partitions": [list(partition) for partition in history.partitions],
        "finals": [[each.start_offset, each.end_offset, each.reached.value, each.detail] for each in history.finals],
        "errors": list(history.errors),
        "troubles": list(history.troubles),
        "group": None if history.group is None else msgspec.to_builtins(history.group),
        "transactions": None if history.transactions is None else to_lists(history.transactions),
        "renewed": list(history.renewed),
    }
    for name, columns in ((SENDS, history.sends), (READS, history.reads)):
        parquet.write_table(_table(columns, about), folder / name)


def _table(columns: Sends | Reads, about: dict[str, Any]) -> Any:
    import pyarrow

    table = pyarrow.table({field.name: getattr(columns, field.name) for field in fields(columns)})
    return table.replace_schema_metadata({_METADATA: json.dumps(about).encode()})


def read_history(folder: Path) -> History:
    """Read the files of `write_history`. Raises OSError, or ValueError for files of another format."""
    import pyarrow.parquet as parquet

    sends, reads = (parquet.read_table(folder / name) for name in (SENDS, READS))
    metadata = (sends.schema.metadata or {}).get(_METADATA)
    if metadata is None:
        raise ValueError(f"{folder / SENDS}: not a history: its schema says nothing of one")
    about = json.loads(metadata)
    return History(
        tuple((topic, number) for topic, number in about["partitions"]),
        Sends(*(_column(sends, field.name) for field in fields(Sends))),
        Reads(*(_column(reads, field.name) for field in fields(Reads))),
        tuple(FinalRead(start, end, Reached(reached), detail) for start, end, reached, detail in about["finals"]),
        tuple(about["errors"]),
        tuple(about["troubles"]),
        msgspec.convert(about.get("group"), GroupHistory | None),
        None if about.get("transactions") is None else from_lists(about["transactions"]),
        tuple(about.get("renewed", ())),
    )


_ABSENT = {"transaction": NO_TRANSACTION, "poll": NO_POLL}
"""Columns that older files lack."""


def _column(table: Any, name: str) -> Any:
    if name in _ABSENT and name not in table.column_names:
        return np.full(len(table), _ABSENT[name], np.int64)
    return np.array(table[name].to_numpy())
