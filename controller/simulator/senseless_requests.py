"""Requests that are well-formed and make little sense, of every API that a client may ask, drawn from the schemas.

Each field is drawn from what is likely to hurt: names that are no topic's, empty and huge strings, negative and extreme
numbers, elements twice. What a client could only say as another broker (a follower's fetches) is left out: forged
orders are no part of this. Used by the hostile clients of plans and by the fuzz campaigns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from controller.protocol import SUPPORTED, ApiKey
from controller.protocol.codec import MESSAGES, RequestHeader, encode_request
from controller.protocol.errors import UnencodableValue
from controller.protocol.schema import (
    NO_DEFAULT,
    Array,
    Field,
    Fixed,
    Inline,
    Ints,
    Longs,
    Nested,
    RecordBytes,
    Struct,
    Text,
    Texts,
    Ungrouped,
    default_of,
)
from controller.storage.batches import Record, encode_batch

OF_BROKERS = frozenset(
    [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA]
    + [ApiKey.ALTER_ISR, ApiKey.CONTROLLED_SHUTDOWN, ApiKey.ALLOCATE_PRODUCER_IDS]
)
OF_CONTROLLERS = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)
OF_CLIENTS = tuple(key for key in SUPPORTED if key not in OF_BROKERS)

T = TypeVar("T")
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
NAMES = ("t0", "t1", "t2", "t3", "new0", "new1", "new2", "1", "2", "compression.type", "cleanup.policy")
BAD_NAMES = (
    "",
    ".",
    "..",
    "\0",
    "t\n",
    "a/b",
    "../t0",
    "a" * 249,
    "a" * 250,
    "a" * 32_767,
    "é",
    "😀",
    "__consumer_offsets",
)
BATCH = encode_batch([Record(offset, 1_700_000_000_000 + offset, b"key", b"value") for offset in range(3)])
RECORDS = (b"", b"x", BATCH, BATCH[:-1], BATCH + BATCH, bytes(61), BATCH[:17] + bytes(4) + BATCH[21:])
SMALL = (-2, -1, 0, 1, 2, 3)
NUMBERS: Mapping[str, Sequence[int]] = {
    "replica_id": (-2, -1, -1, 99),
    "timeout_ms": (-1, 0, 1, 100, 1_000),
    "max_wait_ms": (-1, 0, 1, 100, 500),
    "transaction_timeout_ms": (-1, 0, 1_000, INT_MAX),
    "num_partitions": (-2, -1, 0, 1, 2, 3, 10_001, 100_000, INT_MAX),
    "count": (-1, 0, 1, 4, 5, 10_001, INT_MAX),
    "replication_factor": (-1, 0, 1, 2, 3, 4, 32_767),
    "acks": (-1, 0, 1, 2, -32_768),
    "timestamp": (-3, -2, -1, 0, 1_700_000_000_001, LONG_MAX, -LONG_MAX),
    "session_id": (0, 0, 1, INT_MAX),
    "session_epoch": (-1, 0, 1, INT_MAX),
    "resource_type": (0, 2, 4, 8, 127, -1),
}
"""By field; of any other every number of its size is likely at its ends."""
MANY_BYTES = 1 << 20
"""The most that a request comes to which has an element some hundred times. A server bounds the bytes of all requests
in flight (queued.max.request.bytes), which do not pass through it here."""


class ValueGenerator:
    """Draws values with `rng`. Sizes of arrays are small, rarely some hundreds. `names`: legal names to draw from; the
    others are `BAD_NAMES`."""

    def __init__(self, rng: Random, names: Sequence[str] = NAMES) -> None:
        self._rng = rng
        self._names = names
        self._drawn: dict[tuple[int, int], list[tuple[str, Field, int]]] = {}
        self._has_many = False
        self._sizes: dict[int, int] = {}

    def request(self, key: ApiKey) -> bytes:
        """A frame, without its size."""
        spoken = SUPPORTED[key]
        while True:
            version = self._rng.randint(spoken.first, spoken.last)
            header = RequestHeader(key, version, self._rng.randrange(1 << 31), self._one_of(("fuzz", "", None)))
            self._has_many = False
            self._sizes.clear()
            message = self._struct(MESSAGES[key].request.struct, version)
            if self._has_many and self._bytes_in(message) > MANY_BYTES:
                continue
            try:
                return encode_request(header, message)
            except UnencodableValue:
                continue  # this version can't say it

    def _struct(self, table: Struct, version: int) -> Any:
        drawn = self._drawn.get((id(table), version))
        if drawn is None:
            drawn = self._drawn[id(table), version] = [*_drawn(table, version)]
        return table.value(**{name: self._value(field, drawn_in) for name, field, drawn_in in drawn})

    def _value(self, field: Field, version: int) -> Any:
        rng, kind = self._rng, field.type
        if field.nullable <= version and rng.random() < 0.15:
            return None
        if isinstance(kind, Fixed):
            return self._number(field.name, kind)
        if isinstance(kind, Text):
            return self._text()
        if isinstance(kind, Ints):
            return tuple(self._one_of((*SMALL, 99, INT_MAX)) for _ in range(self._count()))
        if isinstance(kind, Longs):
            return tuple(self._one_of((*SMALL, LONG_MAX)) for _ in range(self._count()))
        if isinstance(kind, Texts):
            return tuple(self._text() for _ in range(self._count()))
        if isinstance(kind, RecordBytes):
            return self._one_of(RECORDS)
        if isinstance(kind, Array):
            return self._items(kind.of, version)
        if isinstance(kind, Inline):
            return (self._struct(kind.of, version),)
        if isinstance(kind, Ungrouped):
            rows = self._items(kind.row, version)
            return (kind.group(**{kind.key: self._text(), kind.rows: rows}),) if rows else ()
        assert isinstance(kind, Nested)
        return self._struct(kind.of, version)

    def _items(self, table: Struct, version: int) -> tuple[Any, ...]:
        items = [self._struct(table, version) for _ in range(self._count())]
        if items and self._rng.random() < 0.2:
            items.append(self._one_of(items))
        if items and self._rng.random() < 0.01:
            items *= max(1, min(200 // len(items), MANY_BYTES // sum(map(self._bytes_in, items))))
            self._has_many = True
        return tuple(items)

    def _bytes_in(self, value: Any) -> int:
        """About the bytes that it is encoded in. Elements that are there some hundred times are looked at once."""
        if isinstance(value, str | bytes):
            return 2 + len(value)
        if isinstance(value, int) or value is None:
            return 8
        size = self._sizes.get(id(value))
        if size is None:
            parts = value if isinstance(value, tuple) else [getattr(value, name) for name in value.__struct_fields__]
            size = self._sizes[id(value)] = 1 + sum(map(self._bytes_in, parts))
        return size

    def _one_of(self, values: Sequence[T]) -> T:
        """As `random.choice`, in a third of its time."""
        return values[int(self._rng.random() * len(values))]

    def _count(self) -> int:
        return self._one_of((0, 1, 1, 1, 1, 2, 3))

    def _text(self) -> str:
        return self._one_of(self._names if self._rng.random() < 0.7 else BAD_NAMES)

    def _number(self, name: str, kind: Fixed) -> Any:
        rng = self._rng
        if kind.code == "?":
            return rng.random() < 0.5
        if kind.code == "16s":
            return self._one_of((bytes(16), bytes(range(16)), rng.randbytes(16)))
        known = NUMBERS.get(name)
        if known is not None:
            return self._one_of(known)
        most = (1 << (8 * kind.size - 1)) - 1
        return (
            self._one_of(SMALL) if rng.random() < 0.75 else self._one_of((most, -most - 1, 99 if kind.size > 1 else 9))
        )


def _drawn(table: Struct, version: int) -> Iterator[tuple[str, Field, int]]:
    """What a structure is made of: each value's name, its field, and the version that it is drawn for."""
    by_name = {field.name: field for field in reversed(table.fields)}
    present = {field.name: field for field in table.fields if field.is_in(version)}
    for name in table.value.__struct_fields__:
        if name in present:
            yield name, present[name], version
        elif default_of(table.value, name) is NO_DEFAULT:  # the version lacks it, the value needs it
            yield name, by_name[name], by_name[name].since
