"""How a wire message is declared: one class, whose lines say what Kafka's message JSON says of a field.

    class FetchPartition(Structure):
        partition: Int32
        fetch_offset: Int64
        partition_max_bytes: Int32
        current_leader_epoch: Int32 = field(default=-1, since=9, before="fetch_offset")

    class FetchRequest(RequestValue, first=0, last=12, flexible=12): ...

A line has the field's name, its type on the wire, its default, and the versions that have it. Arrays are `tuple[Int32,
...]` or `tuple[FetchPartition, ...]`; `| None` makes a field nullable. Fields stand in the order in which a value is
constructed; `before` names the field that follows on the wire where that is another order. A message says its versions
in the line of its class, and from which one on it is flexible (compact lengths, a section of tagged fields after every
structure).

Each class has its table in `struct`, from which `compiler` generates readers and writers; nothing here reads a byte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeAlias, Union, dataclass_transform, get_args, get_origin

import msgspec

from controller.protocol.framing import Part

LATEST = 32767
NO_DEFAULT = msgspec.NODEFAULT


class Fixed(msgspec.Struct, frozen=True):
    """A field of one size: `code` is its letter in the struct module's language (big-endian), `size` its bytes."""

    code: str
    size: int


class Text(msgspec.Struct, frozen=True):
    """A string in UTF-8: int16 length, or compact (unsigned varint of length + 1)."""


class Ints(msgspec.Struct, frozen=True):
    """An array of int32, a tuple of int as a value."""


class Longs(msgspec.Struct, frozen=True):
    """An array of int64, a tuple of int as a value."""


class Texts(msgspec.Struct, frozen=True):
    """An array of strings, a tuple of str as a value."""


class RecordBytes(msgspec.Struct, frozen=True):
    """Records (`framing.Part`): int32 length, or compact."""


class Array(msgspec.Struct, frozen=True):
    """An array of structures, a tuple as a value."""

    of: Struct


class Inline(msgspec.Struct, frozen=True):
    """A structure written in place, without a length: a tuple of exactly one as a value. (What an early version had
    one of, and a later one an array.)"""

    of: Struct


class Nested(msgspec.Struct, frozen=True):
    """A structure written in place, as a value the structure itself."""

    of: Struct


class Ungrouped(msgspec.Struct, frozen=True):
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
FLOAT64 = Fixed("d", 8)
BOOL = Fixed("?", 1)
UUID = Fixed("16s", 16)
TEXT = Text()
INTS = Ints()
LONGS = Longs()
TEXTS = Texts()
RECORDS = RecordBytes()


Bool: TypeAlias = Annotated[bool, BOOL]
Int8: TypeAlias = Annotated[int, INT8]
Int16: TypeAlias = Annotated[int, INT16]
Int32: TypeAlias = Annotated[int, INT32]
Int64: TypeAlias = Annotated[int, INT64]
Float64: TypeAlias = Annotated[float, FLOAT64]
Uuid: TypeAlias = Annotated[bytes, UUID]
String: TypeAlias = Annotated[str, TEXT]
Records: TypeAlias = Annotated[Part, RECORDS]
"""What the lines of a structure name as types."""
_ARRAYS: Mapping[Type, Type] = {INT32: INTS, INT64: LONGS, TEXT: TEXTS}


class Field(msgspec.Struct, frozen=True):
    """A field of a table, in versions `since` to `until`; null is allowed from `nullable`; `tag`: written among the
    tagged fields and only when it isn't the default. `must`: a value other than the default can't be left out in a
    version that lacks the field, since the request would then ask for something else."""

    name: str
    type: Type
    since: int = 0
    until: int = LATEST
    nullable: int = LATEST + 1
    tag: int | None = None
    must: bool = False

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until


class Struct(msgspec.Struct, frozen=True):
    """A structure's fields in the order of the wire, and the value class it is read into. `bare`: no tagged fields
    after it, even in flexible versions (an array of a plain type that is read as an array of structures of one
    field)."""

    value: type[Any]
    fields: tuple[Field, ...]
    bare: bool = False


class Adaptation(msgspec.Struct, frozen=True):
    """Where versions up to `until` mean by other fields what the value says in its own: `read` completes a value as
    it was decoded, `write` prepares one to be encoded (and raises ValueError if the version can't say it)."""

    until: int
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


class Message(msgspec.Struct, frozen=True, eq=False):
    """A request or a response: its layout in versions `first` to `last`, flexible from `flexible`. The same only as
    itself, since what is looked up by a message at each frame can't wait for the hash of all its tables."""

    struct: Struct
    first: int
    last: int
    flexible: int
    adaptation: Adaptation | None = None


class _Line(msgspec.Struct, frozen=True):
    """What a field's line says besides its name and type."""

    default: Any = NO_DEFAULT
    since: int = 0
    until: int = LATEST
    nullable: int = 0
    tag: int | None = None
    must: bool = False
    before: str | None = None
    flat_until: int = -1
    inline_until: int = -1
    inline: tuple[str, ...] = ()


def field(
    *,
    default: Any = NO_DEFAULT,
    since: int = 0,
    until: int = LATEST,
    nullable: int = 0,
    tag: int | None = None,
    must: bool = False,
    before: str | None = None,
    flat_until: int = -1,
    inline_until: int = -1,
    inline: tuple[str, ...] = (),
) -> Any:
    """Declare a field that is not in all versions, or not where it stands.

    Args:
        since, until: the versions that have it; in others it has its default.
        nullable: the first version in which it may be null, of a field that may (`| None`).
        tag: its number among the tagged fields.
        must: a value other than the default is refused in a version that lacks the field.
        before: the field that it precedes on the wire.
        flat_until: up to this version, the array of groups is one flat array (see `Ungrouped`). The key is the
            group's first string, its rows are its array.
        inline_until, inline: up to this version, these fields of exactly one element stand in the array's place.
    """
    return _Line(default, since, until, nullable, tag, must, before, flat_until, inline_until, inline)


def _wire_order(lines: Mapping[str, _Line]) -> list[str]:
    names = [name for name, line in lines.items() if line.before is None]
    for name, line in lines.items():
        if line.before is not None:
            names.insert(names.index(line.before), name)
    return names


def _fields(name: str, hint: Any, line: _Line) -> Iterator[Field]:
    """The field, once for each form that it has."""
    nullable = LATEST + 1
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
        nullable = max(line.nullable, line.since)
    rest = (nullable, line.tag, line.must)
    since = line.since
    of = get_args(hint)[0] if get_origin(hint) is tuple else None
    if not isinstance(of, StructureMeta):
        kind = _type(hint) if of is None else _ARRAYS[_type(of)]
        yield Field(name, kind, since, line.until, *rest)
        return
    struct = of.struct
    if line.flat_until >= 0:
        key = next(one.name for one in struct.fields if isinstance(one.type, Text))
        rows = next(one for one in struct.fields if isinstance(one.type, Array))
        assert isinstance(rows.type, Array)
        yield Field(name, Ungrouped(struct.value, key, rows.name, rows.type.of), since, line.flat_until, *rest)
        since = line.flat_until + 1
    if line.inline_until >= 0:
        inline = tuple(one for wanted in line.inline for one in struct.fields if one.name == wanted)
        yield Field(name, Inline(Struct(struct.value, inline)), since, line.inline_until, *rest)
        since = line.inline_until + 1
    if of.bare_until >= 0:
        yield Field(name, Array(Struct(struct.value, struct.fields, bare=True)), since, of.bare_until, *rest)
        since = of.bare_until + 1
    yield Field(name, Array(struct), since, line.until, *rest)


def _type(hint: Any) -> Type:
    """The wire type of a field that is no array."""
    if isinstance(hint, StructureMeta):
        return Nested(hint.struct)
    kind: Type = hint.__metadata__[0]
    return kind


class StructureMeta(msgspec.StructMeta):
    """Takes the lines of a class apart: defaults for msgspec, and a table for the compiler."""

    struct: Struct
    bare_until: int

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        bare_until: int = -1,
        first: int = 0,
        last: int | None = None,
        flexible: int = LATEST,
        adaptation: Adaptation | None = None,
        frozen: bool = True,
        gc: bool = False,
    ) -> StructureMeta:
        hints: dict[str, str] = namespace.get("__annotations__", {})
        hints = {one: hint for one, hint in hints.items() if not hint.startswith("ClassVar")}
        lines = {}
        for one in hints:
            given = namespace.get(one, NO_DEFAULT)
            lines[one] = line = given if isinstance(given, _Line) else _Line(given)
            if line.default is not NO_DEFAULT:
                namespace[one] = line.default
            else:
                namespace.pop(one, None)
        made: Any = super().__new__(mcls, name, bases, namespace, frozen=frozen, gc=gc)
        module = vars(sys.modules[made.__module__])
        fields = [form for one in _wire_order(lines) for form in _fields(one, eval(hints[one], module), lines[one])]
        made.struct = Struct(made, tuple(fields))
        made.bare_until = bare_until
        if last is not None:
            made.message = Message(made.struct, first, last, flexible, adaptation)
        return made  # type: ignore[no-any-return]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Structure(msgspec.Struct, metaclass=StructureMeta, frozen=True, gc=False):
    """Base of everything that has fields on the wire: an immutable value, equal by its fields.

    A class with `bare_until`, in arrays: up to that version its only field, without the tagged fields of a structure.
    """


class RequestValue(Structure):
    """Base of the bodies of requests."""

    message: ClassVar[Message]


class ResponseValue(Structure):
    """Base of the bodies of responses."""

    message: ClassVar[Message]


def default_of(value: type[msgspec.Struct], name: str) -> Any:
    """The default of a value class's field, NO_DEFAULT if it has none."""
    names, defaults = value.__struct_fields__, value.__struct_defaults__
    index = names.index(name) - (len(names) - len(defaults))
    return defaults[index] if index >= 0 else NO_DEFAULT
