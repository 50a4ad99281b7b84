"""From field tables to readers and writers: one generated function a structure, version and direction.

Neighbouring fields of fixed size are read and written by one struct format, strings and arrays by the functions of
`primitives`. The reader checks every length against what is left, so that a frame costs time and memory in proportion
to its own size, whatever it says. (kafka-python's engine, made for a client that trusts its broker, checks neither
lengths nor varints nor nulls; that is why a server's side has its own.) The generated text holds names from the tables
and numbers, nothing from outside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

import msgspec

from controller.protocol import primitives
from controller.protocol.errors import MalformedFrame, TooManyEntries, UnencodableValue
from controller.protocol.framing import Output, Part, joined
from controller.protocol.schema import (
    NO_DEFAULT,
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
    default_of,
)

TAGGED_BYTES_KEPT = 32
"""The longest content of a tagged field that is remembered: a client chooses it."""
Reader = Callable[[bytes, int, int], tuple[Any, int]]
Writer = Callable[[Any, bytearray], None]
"""Of a structure with records it needs an `Output`."""


class Compiled(msgspec.Struct, frozen=True):
    """A structure in one version. `size` is the fewest bytes that it can have."""

    read: Reader
    write: Writer
    size: int


class Entries:
    """The number of array elements that a reader compiled with it may still read.

    A reader compiled with an `Entries` raises TooManyEntries as soon as `left` falls below 0, before it reads the
    elements. A frame then costs time and memory in proportion to the limit and not to its size. The object is part of
    the compiled reader: two threads need two of them. Lists of grouped rows (control requests) are not counted.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyEntries("it names more elements than one request may")

    def take_list(self, data: bytes, pos: int, end: int, compact: bool, item_size: int) -> None:
        """Counts a list of numbers or strings that begins at `pos`, before it is read."""
        count, _ = primitives.read_count(data, pos, end, compact, item_size)
        if count > 0:
            self.take(count)


class Layout:
    """A message in one version. `entries` limits what `read` reads; the caller sets `entries.left` before."""

    def __init__(self, message: Message, version: int, entries: Entries | None = None) -> None:
        if not message.first <= version <= message.last:
            raise UnencodableValue(
                f"{message.struct.value.__name__} has versions {message.first} to {message.last}, not {version}"
            )
        self._name = f"{message.struct.value.__name__} version {version}"
        self._value = message.struct.value
        self._compiled = compile_struct(message.struct, version, version >= message.flexible, entries)
        adaptation = message.adaptation
        self._adaptation = adaptation if adaptation is not None and version <= adaptation.until else None

    def read(self, data: bytes, pos: int, *, rest_allowed: bool = False) -> Any:
        """The value that fills `data` from `pos` to its end exactly (`rest_allowed`: or ends before), or
        MalformedFrame."""
        try:
            value, stop = self._compiled.read(data, pos, len(data))
        except MalformedFrame as error:
            raise type(error)(f"{self._name}: {error}") from None
        except (IndexError, struct.error):
            raise MalformedFrame(f"{self._name}: the frame of {len(data)} bytes ends too early") from None
        except UnicodeDecodeError as error:
            raise MalformedFrame(f"{self._name}: a string is not UTF-8: {error.reason}") from None
        if stop != len(data) and not rest_allowed:
            raise MalformedFrame(f"{self._name}: {len(data) - stop} bytes after its end")
        return value if self._adaptation is None else self._adaptation.read(value)

    def write(self, value: Any) -> bytes:
        """The value's bytes, or UnencodableValue when this version can't say it."""
        return joined(self.write_parts(value))

    def write_parts(self, value: Any, head: bytes = b"") -> list[Part]:
        """The same behind `head`, with the records apart: as they stand in the value, not copied and not read."""
        if type(value) is not self._value:
            raise UnencodableValue(f"{self._name}: got a {type(value).__name__}")
        out = Output(head)
        try:
            if self._adaptation is not None:
                value = self._adaptation.write(value)
            self._compiled.write(value, out)
        except (struct.error, ValueError, TypeError, AttributeError) as error:
            raise UnencodableValue(f"{self._name}: {error}") from error
        return out.parts()


@cache
def layout(message: Message, version: int, entries: Entries | None = None) -> Layout:
    return Layout(message, version, entries)


@cache
def compile_struct(table: Struct, version: int, flexible: bool, entries: Entries | None = None) -> Compiled:
    """Generates and compiles the reader and writer of one structure in one version."""
    present = [field for field in table.fields if field.is_in(version)]
    plain = [field for field in present if field.tag is None]
    tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
    if tagged and not flexible:
        raise ValueError(f"{table.value.__name__} has tagged fields in version {version}, which is not flexible")
    source = _Source(table, version, flexible, entries)
    source.absent(present)
    for fixed, run in groupby(plain, key=lambda field: isinstance(field.type, Fixed)):
        if fixed:
            source.fixed(list(run))
        else:
            for field in run:
                source.variable(field)
    if flexible and not table.bare:
        source.tags(tagged)
    return source.compiled(present)


class _Source:
    """The lines of one reader and one writer as they grow, and the names that they refer to."""

    def __init__(self, table: Struct, version: int, flexible: bool, entries: Entries | None) -> None:
        self._table = table
        self._entries = entries
        self._version = version
        self._flexible = flexible
        self._is_viewed = _has_records(table)
        """It may be read from a view: of what has records."""
        self._names: dict[str, Any] = {
            "Value": table.value,
            "MalformedFrame": MalformedFrame,
            "UnencodableValue": UnencodableValue,
            "Written": primitives.Written,
            "entries": entries,
            **{name: getattr(primitives, name) for name in _PRIMITIVES},
        }
        self._reader: list[str] = []
        self._writer: list[str] = []
        self._size = 0

    def absent(self, present: list[Field]) -> None:
        """A field that this version lacks and that must not be lost in silence has to hold its default."""
        names = {field.name for field in present}
        for field in self._table.fields:
            if field.must and field.name not in names:
                self._writer += [
                    f"if value.{field.name} != {default_of(self._table.value, field.name)!r}:",
                    f"    raise UnencodableValue('{field.name} is not in version {self._version}')",
                ]

    def fixed(self, run: list[Field]) -> None:
        """Neighbouring fields of fixed size: one struct format."""
        types = [field.type for field in run]
        codes = "".join(kind.code for kind in types if isinstance(kind, Fixed))
        name = f"fixed_{run[0].name}"
        self._names[name] = whole = struct.Struct(">" + codes)
        self._size += whole.size
        targets = "".join(f"_{field.name}, " for field in run)
        self._reader += [f"{targets}= {name}.unpack_from(data, pos)", f"pos += {whole.size}"]
        for field in run:
            if field.type == Fixed("16s", 16):  # struct would pad or cut
                self._writer += [
                    f"if len(value.{field.name}) != 16:",
                    f"    raise UnencodableValue('{field.name} has not 16 bytes')",
                ]
        self._writer.append(f"out += {name}.pack({', '.join(f'value.{field.name}' for field in run)})")

    def variable(self, field: Field) -> None:
        name, kind = field.name, field.type
        nullable = field.nullable <= self._version
        if isinstance(kind, Inline):
            self._inline(name, kind)
            return
        if isinstance(kind, Nested):
            self._nested(name, kind)
            return
        if not nullable:
            self._writer += [
                f"if value.{name} is None:",
                f"    raise UnencodableValue('{name} can not be null in version {self._version}')",
            ]
        if isinstance(kind, Text):
            self._text(name)
        elif isinstance(kind, Ints):
            self._ints(name, nullable)
        elif isinstance(kind, Longs | Texts | RecordBytes):
            self._plain(name, _PLAIN[type(kind)])
        elif isinstance(kind, Array):
            self._array(name, kind)
        elif isinstance(kind, Ungrouped):
            self._ungrouped(name, kind)
        else:
            raise TypeError(f"{name} is of fixed size")
        if not nullable:
            self._reader += [f"if _{name} is None:", f"    raise MalformedFrame('{name} is null')"]

    def _inline(self, name: str, kind: Inline) -> None:
        inner = self._inner(name, kind.of)
        self._size += inner.size
        self._reader += [f"_{name}, pos = read_{name}(data, pos, end)", f"_{name} = (_{name},)"]
        self._writer += [
            f"if len(value.{name}) != 1:",
            f"    raise UnencodableValue('{name} has not exactly one in version {self._version}')",
            f"write_{name}(value.{name}[0], out)",
        ]

    def _text(self, name: str) -> None:
        self._size += 1 if self._flexible else 2
        read = f"_{name}, pos = read_text(data, pos, end, {self._flexible})"
        write = f"write_text(out, value.{name}, {self._flexible})"
        if name == "error_message":  # it may quote what a client sent, which may be as long as a string can be
            write = f"write_text(out, shortened(value.{name}), {self._flexible})"
        if not self._flexible:
            self._reader.append(read)
            self._writer.append(write)
            return
        # Nearly every text: a length of one byte.
        self._reader += [
            "stop = pos + data[pos]",
            "if pos < stop <= end and stop - pos < 0x80:",
            f"    _{name} = bytes(data[pos + 1:stop]).decode()"
            if self._is_viewed
            else f"    _{name} = data[pos + 1:stop].decode()",
            "    pos = stop",
            "else:",
            f"    {read}",
        ]
        self._writer += [
            f"text = value.{name}",
            "if text is not None and len(text) < 0x20:",
            "    text = text.encode()",
            "    out.append(len(text) + 1)",
            "    out += text",
            "else:",
            f"    {write}",
        ]

    def _ints(self, name: str, nullable: bool) -> None:
        self._size += 1 if self._flexible else 4
        general = [*self._counted(4), f"_{name}, pos = read_ints(data, pos, end, {self._flexible})"]
        if self._flexible:  # The path of nearly every ISR and assignment: a length of one byte, and known by its bytes.
            self._reader += [
                "count = data[pos]",
                "if count == 1:",
                f"    _{name} = ()",
                "    pos += 1",
                f"elif 1 < count <= {primitives.SHORT}:",
                "    stop = pos + 4 * count - 3",
                f"    _{name} = SHORT_INTS.get(data[pos:stop]) or short_ints(data[pos:stop])",
                "    pos = stop",
                "else:",
                *_deeper(general),
            ]
        else:
            self._reader += general
        write = f"write_ints(out, value.{name}, {self._flexible})"
        if self._flexible and not nullable:
            self._writer += [
                f"items = value.{name}",
                "count = len(items)",
                f"if count < {len(primitives.COUNTED_ARRAYS)}:",
                "    out += COUNTED_ARRAYS[count](count + 1, *items)",
                "else:",
                f"    {write}",
            ]
        elif nullable:
            self._writer += [
                f"if value.{name} is None:",
                f"    write_count(out, -1, {self._flexible})",
                "else:",
                f"    {write}",
            ]
        else:
            self._writer.append(write)

    def _counted(self, item_size: int) -> list[str]:
        if self._entries is None:
            return []
        return [f"entries.take_list(data, pos, end, {self._flexible}, {item_size})"]

    def _plain(self, name: str, kind: str) -> None:
        self._size += 1 if self._flexible else 4
        read = f"_{name}, pos = read_{kind}(data, pos, end, {self._flexible})"
        write = f"write_{kind}(out, value.{name}, {self._flexible})"
        if kind != "records" or not self._flexible:
            if kind != "records":
                self._reader += self._counted(8 if kind == "longs" else 1 if self._flexible else 2)
            self._reader.append(read)
            self._writer.append(write)
            return
        # Nearly every partition of a fetch's answer: no records.
        self._reader += ["if data[pos] == 1:", f"    _{name} = NO_RECORDS", "    pos += 1", "else:", f"    {read}"]
        self._writer += [f"if value.{name} == b'':", "    out.append(1)", "else:", f"    {write}"]

    def _nested(self, name: str, kind: Nested) -> None:
        inner = self._inner(name, kind.of)
        self._size += inner.size
        self._reader.append(f"_{name}, pos = read_{name}(data, pos, end)")
        self._writer.append(f"write_{name}(value.{name}, out)")

    def _array(self, name: str, kind: Array) -> None:
        inner = self._inner(name, kind.of)
        self._size += 1 if self._flexible else 4
        reader = [
            *self._count(inner.size),
            "if count < 0:",
            f"    _{name} = None",
            "else:",
            *([] if self._entries is None else ["    entries.take(count)"]),
            "    items = []",
            "    for _ in range(count):",
            f"        item, pos = read_{name}(data, pos, end)",
            "        items.append(item)",
            f"    _{name} = tuple(items)",
        ]
        # Many are empty, as of a fetch of a session in which nothing has changed.
        if self._flexible:
            reader = ["if data[pos] == 1:", f"    _{name} = ()", "    pos += 1", "else:", *_deeper(reader)]
        self._reader += reader
        self._writer += [
            f"items = value.{name}",
            "if items is None:",
            "    out.append(0)" if self._flexible else "    write_count(out, -1, False)",
            *(["elif not items:", "    out.append(1)"] if self._flexible else []),
            "else:",
            *_deeper(self._write_count("items")),
            "    if type(items) is Written:",
            "        out += items.content",
            "    else:",
            "        for item in items:",
            f"            write_{name}(item, out)",
        ]

    def _write_count(self, name: str) -> list[str]:
        general = f"write_count(out, len({name}), {self._flexible})"
        if not self._flexible:
            return [general]
        return [f"if len({name}) < 0x7F:", f"    out.append(len({name}) + 1)", "else:", f"    {general}"]

    def _count(self, item_size: int) -> list[str]:
        """Reads an array's length. In a flexible version nearly every one is one byte."""
        general = f"count, pos = read_count(data, pos, end, {self._flexible}, {item_size})"
        if not self._flexible:
            return [general]
        return [
            "count = data[pos] - 1",
            f"if count < 0x7F and count * {item_size} < end - pos:",
            "    pos += 1",
            "else:",
            f"    {general}",
        ]

    def _ungrouped(self, name: str, kind: Ungrouped) -> None:
        inner = self._inner(name, kind.row)
        self._size += 1 if self._flexible else 4
        smallest = inner.size + (1 if self._flexible else 2)
        group = kind.group
        self._names[f"group_{name}"] = lambda key, rows: group(**{kind.key: key, kind.rows: rows})
        self._reader.append(
            f"_{name}, pos = read_group_rows(data, pos, end, {self._flexible}, {smallest}, read_{name}, group_{name})"
        )
        self._writer.append(
            f"write_group_rows(out, [(group.{kind.key}, group.{kind.rows}) for group in value.{name}], "
            f"{self._flexible}, write_{name})"
        )

    def tags(self, tagged: list[Field]) -> None:
        """The section of tagged fields that ends a structure: the known ones by the table, others are passed over."""
        self._size += 1
        if not tagged:
            self._reader += ["if data[pos]:", "    _, pos = read_tags(data, pos, end)", "else:", "    pos += 1"]
            self._writer.append("out.append(0)")
            return
        # Nearly always there are none.
        reader, writer = ["tags, pos = read_tags(data, pos, end)"], ["tags = []"]
        defaults = [f"_{field.name} = default_{field.name}" for field in tagged]
        unlike = [f"value.{field.name} is not default_{field.name}" for field in tagged]
        for field in tagged:
            default = default_of(self._table.value, field.name)
            if default is NO_DEFAULT:
                raise TypeError(f"tagged field {field.name} has no default")
            alone = compile_struct(Struct(_Alone, (Field("content", field.type),), bare=True), self._version, True)
            self._names[f"alone_{field.name}"] = _alone_of(field.name, alone.read)
            is_small = isinstance(field.type, Fixed | Nested)
            self._names[f"content_{field.name}"] = _content_of(alone.write, remember=is_small)
            self._names[f"default_{field.name}"] = default
            reader += [
                f"_{field.name} = default_{field.name}",
                f"content = tags.get({field.tag})",
                "if content is not None:",
                f"    _{field.name} = alone_{field.name}(content)",
            ]
            writer += [
                f"if value.{field.name} != default_{field.name}:",
                f"    tags.append(({field.tag}, content_{field.name}(value.{field.name})))",
            ]
        writer.append("write_tags(out, tags)")
        self._reader += ["if data[pos]:", *_deeper(reader), "else:", "    pos += 1", *_deeper(defaults)]
        self._writer += [f"if {' or '.join(unlike)}:", *_deeper(writer), "else:", "    out.append(0)"]

    def _inner(self, name: str, table: Struct) -> Compiled:
        inner = compile_struct(table, self._version, self._flexible, self._entries)
        self._names[f"read_{name}"] = inner.read
        self._names[f"write_{name}"] = inner.write
        return inner

    def compiled(self, present: list[Field]) -> Compiled:
        reader = ["def read(data, pos, end):", *self._reader, self._made(present)]
        writer = ["def write(value, out):", *self._writer, "return"]
        text = "\n    ".join(reader) + "\n\n" + "\n    ".join(writer) + "\n"
        name = f"<{self._table.value.__name__} version {self._version}>"
        exec(compile(text, name, "exec"), self._names)
        return Compiled(self._names["read"], self._names["write"], self._size)

    def _made(self, present: list[Field]) -> str:
        """What was read becomes a value."""
        kind = self._table.value
        names = {field.name for field in present}
        absent = {name: default_of(kind, name) for name in kind.__struct_fields__ if name not in names}
        if NO_DEFAULT in absent.values():
            return f"return Value({', '.join(f'{field.name}=_{field.name}' for field in present)}), pos"
        self._names |= {f"_{name}": default for name, default in absent.items()}
        return f"return Value({', '.join(f'_{name}' for name in kind.__struct_fields__)}), pos"


def _has_records(table: Struct) -> bool:
    kinds = [field.type for field in table.fields]
    return RecordBytes() in kinds or any(
        _has_records(kind.of) for kind in kinds if isinstance(kind, Array | Inline | Nested)
    )


def _deeper(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


class _Alone(msgspec.Struct, frozen=True, gc=False):
    """The content of one tagged field, which is read and written by itself."""

    content: Any


def _alone_of(name: str, read: Reader) -> Callable[[bytes], Any]:
    """Reads what a tagged field holds, once for as long as it is remembered: it says the same in most requests of one
    sender. MalformedFrame."""

    def alone(content: bytes) -> Any:
        value, stop = read(content, 0, len(content))
        if stop != len(content):
            raise MalformedFrame(f"tagged field {name} is longer than what it holds")
        return value.content

    remembered = lru_cache(maxsize=256)(alone)
    return lambda content: remembered(content) if len(content) <= TAGGED_BYTES_KEPT else alone(content)


def _content_of(write: Writer, remember: bool) -> Callable[[Any], bytes]:
    """The bytes of a tagged field, made once for as long as it is remembered."""

    def content(value: Any) -> bytes:
        out = bytearray()
        write(_Alone(value), out)
        return bytes(out)

    return lru_cache(maxsize=256)(content) if remember else content


_PLAIN = {Longs: "longs", Texts: "texts", RecordBytes: "records"}
_PRIMITIVES = (
    "COUNTED_ARRAYS",
    "NO_RECORDS",
    "SHORT_INTS",
    "read_count",
    "read_group_rows",
    "read_ints",
    "read_longs",
    "read_records",
    "read_tags",
    "read_text",
    "read_texts",
    "short_ints",
    "shortened",
    "write_count",
    "write_group_rows",
    "write_ints",
    "write_longs",
    "write_records",
    "write_tags",
    "write_text",
    "write_texts",
)
