"""JSON objects as Kafka keeps them in znodes: read field by field, written back with nothing lost.

A znode may hold fields that this version of the codec has never heard of. Dropping them on rewrite is how a topic
lost its id to an older controller (KAFKA-12835). So each value read carries what it was read from (`KeptFields`): a
field that has not changed is written with the very bytes it was read with, in its place, and so is a field that is not
known. Knows no particular znode and does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.operations import NOT_READABLE, NOT_WRITABLE

T = TypeVar("T")

INT32_MAX = 2**31 - 1
Id = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
"""Broker ids, partitions, epochs: what Kafka keeps in an Int and never writes negative."""
IdOrNone = Annotated[int, msgspec.Meta(ge=-1, le=INT32_MAX)]
"""An Id, or -1 for none."""
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
REPLICAS_MAX = 126
"""The most replicas of one partition that are read: columns are as wide as the longest replica set of all, so that one
znode that names a million brokers would cost as many columns of the whole cluster."""
Ids = Annotated[tuple[Id, ...], msgspec.Meta(max_length=REPLICAS_MAX)]
"""The replicas or the ISR of one partition."""

ID = msgspec.json.Decoder(Id)
ID_OR_NONE = msgspec.json.Decoder(IdOrNone)
INT = msgspec.json.Decoder(int)
STRING = msgspec.json.Decoder(str)
OPTIONAL_STRING = msgspec.json.Decoder(str | None)
_DIGITS = msgspec.json.Decoder(str | Long)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for bytes that are not the expected JSON (RecursionError: nested too deep)."""
_DIGITS_ALONE = re.compile(r"-?[0-9]{1,19}")

_UNKNOWN: Any = object()
OMITTED: Any = object()
"""As a field's value in `encode_object`: the field is not written."""


def id_in_digits(text: str | bytes) -> int | None:
    """A number that an Id can be, spelled in ASCII digits alone; None for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= INT32_MAX else None


class KeptField(NamedTuple):
    """One field as it was read: its bytes (None if the znode did not have it) and the value they stood for."""

    name: str
    raw: bytes | None
    value: Any


@dataclass(frozen=True, slots=True)
class KeptFields:
    """The source of a value: every field of the znode, known or not, in its order."""

    fields: tuple[KeptField, ...] = ()

    def unknown(self) -> dict[str, bytes]:
        """The fields that the codec does not know, by name, as raw JSON."""
        return {field.name: field.raw or b"" for field in self.fields if field.value is _UNKNOWN}


NOTHING_KEPT = KeptFields()


class FieldReader:
    """The fields of one znode's JSON object, to be taken one by one. Whatever is wrong with it is a DamagedZnode."""

    def __init__(self, path: str, expected: str, data: bytes | None) -> None:
        self._path = path
        self._expected = expected
        self._data = data
        self._taken: dict[str, Any] = {}
        if not data:
            raise self.damaged("it is empty")
        if data in (NOT_READABLE, NOT_WRITABLE):
            what = "read" if data == NOT_READABLE else "write"
            raise DamagedZnode(path, f"an access list that lets this broker {what} it (NoAuth)", data)
        try:
            data.decode("utf-8")  # what is kept unread must be well-formed too
            self._raw = _OBJECT.decode(data)
        except UNREADABLE as error:
            raise self.damaged(str(error)) from error

    def damaged(self, why: str) -> DamagedZnode:
        """The error for a fault that the caller found."""
        return DamagedZnode(self._path, f"{self._expected} ({why})", self._data)

    def has(self, name: str) -> bool:
        return name in self._raw

    def take(self, name: str, decoder: msgspec.json.Decoder[T]) -> T:
        """A field that must be there."""
        if name not in self._raw:
            raise self.damaged(f"field {name!r} is missing")
        try:
            value = decoder.decode(self._raw[name])
        except UNREADABLE as error:
            raise self.damaged(f"field {name!r}: {error}") from error
        self._taken[name] = value
        return value

    def take_or(self, name: str, decoder: msgspec.json.Decoder[T], default: T) -> T:
        """A field that older or newer writers leave out."""
        if name in self._raw:
            return self.take(name, decoder)
        self._taken[name] = default
        return default

    def take_number_in_digits(self, name: str, default: int) -> int:
        """A number that Kafka writes as a string, and other writers as a number."""
        text = self.take_or(name, _DIGITS, str(default))
        if isinstance(text, str) and not _DIGITS_ALONE.fullmatch(text):
            raise self.damaged(f"field {name!r}: {text!r} is no number")
        number = int(text)
        self._taken[name] = str(number)
        return number

    def kept(self) -> KeptFields:
        """All fields, for the value's `kept`; what was not taken by now is unknown."""
        present = [KeptField(name, bytes(raw), self._taken.get(name, _UNKNOWN)) for name, raw in self._raw.items()]
        absent = [KeptField(name, None, value) for name, value in self._taken.items() if name not in self._raw]
        return KeptFields((*present, *absent))


def encode_object(fields: Iterable[tuple[str, Any]], kept: KeptFields) -> bytes:
    """A JSON object of `fields` (in Kafka's order), laid out like the one that `kept` was read from.

    A field that was read and still has that value keeps its bytes; one that was absent stays so until it changes;
    the new ones come last.
    """
    values = {name: value for name, value in fields if value is not OMITTED}
    parts: list[bytes] = []
    for field in kept.fields:
        if field.value is _UNKNOWN:
            raw = field.raw
        elif field.name in values:
            value = values.pop(field.name)
            raw = field.raw if value == field.value else msgspec.json.encode(value)
        else:
            continue
        if raw is not None:
            parts.append(msgspec.json.encode(field.name) + b":" + raw)
    parts += [msgspec.json.encode(name) + b":" + msgspec.json.encode(value) for name, value in values.items()]
    return b"{" + b",".join(parts) + b"}"
