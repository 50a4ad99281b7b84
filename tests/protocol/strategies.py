"""Hypothesis strategies for the values of any message in any version, made from its field table."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from controller.protocol import ErrorCode
from controller.protocol.client import MetadataRequest
from controller.protocol.control import StopReplicaRequest
from controller.protocol.schema import (
    Array,
    Field,
    Fixed,
    Inline,
    Ints,
    Longs,
    Message,
    Nested,
    RecordBytes,
    Struct,
    Text,
    Texts,
    Ungrouped,
)

_RANGES = {"b": 8, "h": 16, "i": 32, "q": 64}
# No surrogates: they have no UTF-8. Few characters, so that names repeat.
_TEXT = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(("", "pay", "orders", "x" * 200))


OURS = frozenset({"replica_state", "new_isr_epochs", "manner", "reason", "partitions_follow", "complete_but"})
"""Tagged fields that this project has and no Kafka of these versions: others' codecs do not know them, and they have a
test of their own."""


@cache
def values(message: Message, version: int) -> st.SearchStrategy[Any]:
    """Values that the message can hold in this version, with fields that it lacks at their defaults."""
    strategy = _struct(message.struct, version)
    if message.struct.value is StopReplicaRequest and version <= 2:
        return strategy.map(_one_flag)
    if message.struct.value is MetadataRequest and version == 0:
        return strategy.map(lambda value: value if value.topics else replace(value, topics=None))
    return strategy


def _one_flag(request: StopReplicaRequest) -> StopReplicaRequest:
    return replace(
        request,
        topic_states=tuple(
            replace(
                topic,
                partition_states=tuple(
                    replace(state, delete_partition=request.delete_partitions) for state in topic.partition_states
                ),
            )
            for topic in request.topic_states
        ),
    )


def _struct(table: Struct, version: int) -> st.SearchStrategy[Any]:
    present = [field for field in table.fields if field.is_in(version) and field.name not in OURS]
    return st.builds(table.value, **{field.name: _field(field, version) for field in present})


def _field(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return st.sampled_from([int(code) for code in ErrorCode])
    if field.name == "log_append_time_ms":  # -1, or what kio can say: whole seconds that there are
        return st.just(-1) | st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1_000)
    if field.name in ("retention_time_ms", "session_lifetime_ms"):  # what kio can say: a time span of Python
        return st.integers(-1, 10**15)
    strategy = _type(field, version)
    return st.none() | strategy if field.nullable <= version else strategy


def _type(field: Field, version: int) -> st.SearchStrategy[Any]:
    match field.type:
        case Fixed(code="?"):
            return st.booleans()
        case Fixed(code="d"):
            return st.floats(allow_nan=False)
        case Fixed(code="16s"):
            return st.binary(min_size=16, max_size=16) | st.just(bytes(16))
        case Fixed(code=code):
            bits = _RANGES[code]
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        case Text():
            return _TEXT
        case Ints():
            return st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(tuple)
        case Longs():
            return st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(tuple)
        case Texts():
            return st.lists(_TEXT, max_size=3).map(tuple)
        case RecordBytes():
            return st.binary(max_size=200)
        case Nested(of=of):
            return _struct(of, version)
        case Array(of=of):
            return st.lists(_struct(of, version), max_size=3).map(tuple)
        case Inline(of=of):
            return _struct(of, version).map(lambda value: (value,))
        case Ungrouped(group=group, key=key, rows=rows, row=row):
            return st.lists(
                st.tuples(_TEXT, st.lists(_struct(row, version), min_size=1, max_size=3).map(tuple)),
                max_size=3,
                unique_by=lambda pair: pair[0],
            ).map(lambda pairs: tuple(group(**{key: name, rows: states}) for name, states in pairs))
