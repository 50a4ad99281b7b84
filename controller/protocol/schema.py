"""What a message's layout is made of: the vocabulary in which the field tables are written.

A table lists a structure's fields in the order of the wire, each with the versions that have it. Whether a version is
flexible (compact lengths, a section of tagged fields after every structure) is said once for the whole message. Field
defaults are those of the value classes. `compiler` turns tables into readers and writers; nothing here reads a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeAlias

LATEST = 32767


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of one size: `code` is its letter in the struct module's language (big-endian), `size` its bytes."""

    code: str
    size: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string in UTF-8: int16 length, or compact (unsigned varint of length + 1)."""


@dataclass(frozen=True, slots=True)
class Ints:
    """An array of int32, a tuple of int as a value."""


@dataclass(frozen=True, slots=True)
class Longs:
    """An array of int64, a tuple of int as a value."""


@dataclass(frozen=True, slots=True)
class Texts:
    """An array of strings, a tuple of str as a value."""


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """Records (`controller.protocol.records`): int32 length, or compact."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of structures, a tuple as a value."""

    of: Struct


@dataclass(frozen=True, slots=True)
class Inline:
    """A structure written in place, without a length: a tuple of exactly one as a value. (What an early version had
    one of, and a later one an array.)"""

    of: Struct


@dataclass(frozen=True, slots=True)
class Nested:
    """A structure written in place, as a value the structure itself."""

    of: Struct


@dataclass(frozen=True, slots=True)
class Ungrouped:
    """A flat array whose every row begins with the name of its group, where later versions write an array of groups.

    As a value it is what the later versions have, a tuple of `group` with the name in the field `key` and its rows
    in the field `rows`. Neighbours of the same name make one group, so that the rows keep their order both ways. A
    group without rows can't be said on the wire, nor can two neighbours of the same name.
    """

    group: type[Any]
    key: str
    rows: str
    row: Struct


Type: TypeAlias = Fixed | Text | Ints | Longs | Texts | RecordBytes | Array | Inline | Nested | Ungrouped

INT8 = Fixed("b", 1)
INT16 = Fixed("h", 2)
INT32 = Fixed("i", 4)
INT64 = Fixed("q", 8)
BOOL = Fixed("?", 1)
UUID = Fixed("16s", 16)
TEXT = Text()
INTS = Ints()
LONGS = Longs()
TEXTS = Texts()
RECORDS = RecordBytes()


@dataclass(frozen=True, slots=True)
class Field:
    """A field in versions `since` to `until`; null is allowed from `nullable`; `tag`: written among the tagged fields
    and only when it isn't the default. `must`: a value other than the default can't be left out in a version that
    lacks the field, since the request would then ask for something else."""

    name: str
    type: Type
    since: int = 0
    until: int = LATEST
    nullable: int = LATEST + 1
    tag: int | None = None
    must: bool = False

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure and the value class it is read into. `bare`: no tagged fields after it, even in flexible versions
    (an array of a plain type that is read as an array of structures of one field)."""

    value: type[Any]
    fields: tuple[Field, ...]
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Where versions up to `until` mean by other fields what the value says in its own: `read` completes a value as
    it was decoded, `write` prepares one to be encoded (and raises ValueError if the version can't say it)."""

    until: int
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A request or a response: its layout in versions `first` to `last`, flexible from `flexible`. The same only as
    itself, since what is looked up by a message at each frame can't wait for the hash of all its tables."""

    struct: Struct
    first: int
    last: int
    flexible: int
    adaptation: Adaptation | None = field(default=None)


def default_of(value: type[Any], name: str) -> Any:
    """The default of a value class's field, MISSING if it has none."""
    for declared in fields(value):
        if declared.name == name:
            return declared.default
    raise KeyError(f"{value.__name__} has no field {name}")


NO_DEFAULT = MISSING
