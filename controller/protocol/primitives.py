"""Reading and writing what every layout is made of: varints, lengths, strings, plain arrays, records, tagged fields.

The generated code of `compiler` inlines the short paths and calls these for the rest. A reader takes the frame and a
position and returns the value and the position after it; it never reads past the frame's end and never trusts a
length before it has compared it with what is left. Anything wrong is `MalformedFrame`, or IndexError or struct.error
where the frame ends too early, which `compiler.Layout.read` turns into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from controller.protocol.errors import MalformedFrame, UnencodableValue
from controller.protocol.framing import Output, Part, size_bytes

# An unsigned varint of 32 bits has at most five bytes; a longer one is refused, as Kafka does. (A reader that goes on
# while the high bit is set takes time quadratic in the frame's length: a frame of 400 kB keeps it busy for seconds.)
VARINT_BYTES_MAX = 5

_INT32 = Struct(">i")
_INT16 = Struct(">h")
# The layouts of 0, 1, 2... int32 in a row: what an ISR or an assignment has.
SHORT_ARRAYS = tuple(Struct(f">{count}i") for count in range(64))

# The same, after their count as flexible versions have it.
COUNTED_ARRAYS = tuple(Struct(f">B{count}i").pack for count in range(64))


SHORT = 9
"""The count byte of the longest arrays that are known by their bytes: of 8 int32."""
SHORT_TAGS = 32
"""How many bytes may be left of a message for its tagged fields to be known by them."""
SHORT_INTS_KEPT = 16_384
SHORT_INTS: dict[bytes, tuple[int, ...]] = {}
"""Known arrays by their bytes, in flexible versions: a cluster has few ISRs and assignments, sent over and over."""


def short_ints(data: bytes) -> tuple[int, ...]:
    """What `data` is, count byte and all; known from now on. struct.error where it ends too early."""
    known: tuple[int, ...] = SHORT_ARRAYS[data[0] - 1].unpack_from(data, 1)
    if len(SHORT_INTS) >= SHORT_INTS_KEPT:
        SHORT_INTS.clear()
    SHORT_INTS[bytes(data)] = known
    return known


def ints(count: int) -> Struct:
    """The layout of `count` int32 in a row."""
    return SHORT_ARRAYS[count] if count < len(SHORT_ARRAYS) else Struct(f">{count}i")


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    value = data[pos]
    if value < 0x80:  # nearly all are
        return value, pos + 1
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise MalformedFrame(f"varint of more than {VARINT_BYTES_MAX} bytes before byte {pos}")


NO_RECORDS = memoryview(b"")

_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_count(data: bytes, pos: int, end: int, compact: bool, item_size: int) -> tuple[int, int]:
    """An array's length, -1 for null. Refused when that many items of at least `item_size` bytes can't be left."""
    if compact:
        count, pos = read_varint(data, pos)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(data, pos)
        pos += 4
        if count < -1:
            raise MalformedFrame(f"array length {count} before byte {pos}")
    if count * item_size > end - pos:
        raise MalformedFrame(f"array of {count} at byte {pos} can't be in the {end - pos} bytes that are left")
    return count, pos


def read_text(data: bytes, pos: int, end: int, compact: bool) -> tuple[str | None, int]:
    if compact:
        length, pos = read_varint(data, pos)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(data, pos)
        pos += 2
    if length < 0:
        if length < -1:
            raise MalformedFrame(f"string length {length} before byte {pos}")
        return None, pos
    stop = pos + length
    if stop > end:
        raise MalformedFrame(f"string of {length} bytes at byte {pos} can't be in the {end - pos} bytes that are left")
    return bytes(data[pos:stop]).decode(), stop


def read_ints(data: bytes, pos: int, end: int, compact: bool) -> tuple[tuple[int, ...] | None, int]:
    count, pos = read_count(data, pos, end, compact, 4)
    if count <= 0:
        return (() if count == 0 else None), pos
    return ints(count).unpack_from(data, pos), pos + 4 * count


def read_longs(data: bytes, pos: int, end: int, compact: bool) -> tuple[tuple[int, ...] | None, int]:
    count, pos = read_count(data, pos, end, compact, 8)
    if count <= 0:
        return (() if count == 0 else None), pos
    return Struct(f">{count}q").unpack_from(data, pos), pos + 8 * count


def read_texts(data: bytes, pos: int, end: int, compact: bool) -> tuple[tuple[str, ...] | None, int]:
    count, pos = read_count(data, pos, end, compact, 1 if compact else 2)
    if count < 0:
        return None, pos
    texts: list[str] = []
    for _ in range(count):
        text, pos = read_text(data, pos, end, compact)
        if text is None:
            raise MalformedFrame(f"null in an array of strings before byte {pos}")
        texts.append(text)
    return tuple(texts), pos


def read_records(data: bytes, pos: int, end: int, compact: bool) -> tuple[memoryview | None, int]:
    """A view: nothing is copied, and the frame lives as long as it does."""
    length, pos = read_count(data, pos, end, compact, 1)
    if length < 0:
        return None, pos
    return memoryview(data)[pos : pos + length], pos + length


def read_tags(data: bytes, pos: int, end: int) -> tuple[Mapping[int, bytes], int]:
    """A section of tagged fields: the bytes of each by its tag. A tag that comes twice is refused."""
    if end - pos > SHORT_TAGS:
        return _read_tags(data, pos, end)
    try:
        tags, size = _short_tags(bytes(data[pos:end]))
    except (MalformedFrame, IndexError):
        return _read_tags(data, pos, end)  # which says where
    return tags, pos + size


@lru_cache(maxsize=256)
def _short_tags(data: bytes) -> tuple[Mapping[int, bytes], int]:
    """What a message ends with is the same in all of a sender's."""
    return _read_tags(data, 0, len(data))


def _read_tags(data: bytes, pos: int, end: int) -> tuple[dict[int, bytes], int]:
    count, pos = read_varint(data, pos)
    tags: dict[int, bytes] = {}
    if count * 2 > end - pos:
        raise MalformedFrame(f"{count} tagged fields at byte {pos} can't be in the {end - pos} bytes that are left")
    for _ in range(count):
        tag, pos = read_varint(data, pos)
        size, pos = read_varint(data, pos)
        if size > end - pos or tag in tags:
            raise MalformedFrame(f"tagged field {tag} of {size} bytes at byte {pos}")
        tags[tag] = bytes(data[pos : pos + size])
        pos += size
    return tags, pos


def read_group_rows(
    data: bytes,
    pos: int,
    end: int,
    compact: bool,
    row_size: int,
    read_row: Callable[[bytes, int, int], tuple[Any, int]],
    group: Callable[[str, tuple[Any, ...]], Any],
) -> tuple[tuple[Any, ...], int]:
    """A flat array of rows that begin with their group's name: one group for neighbours of the same name."""
    count, pos = read_count(data, pos, end, compact, row_size)
    if count < 0:
        raise MalformedFrame(f"null array before byte {pos}")
    groups: list[Any] = []
    current: str | None = None
    rows: list[Any] = []
    for _ in range(count):
        name, pos = read_text(data, pos, end, compact)
        if name is None:
            raise MalformedFrame(f"null name before byte {pos}")
        row, pos = read_row(data, pos, end)
        if name != current:
            if current is not None:
                groups.append(group(current, tuple(rows)))
            current, rows = name, []
        rows.append(row)
    if current is not None:
        groups.append(group(current, tuple(rows)))
    return tuple(groups), pos


def write_count(out: bytearray, count: int, compact: bool) -> None:
    """An array's length, or -1 for null."""
    out += varint(count + 1) if compact else _INT32.pack(count)


MESSAGE_LENGTH_MAX = 1_000


def shortened(message: str | None) -> str | None:
    """An error message, cut where it is too long to be read."""
    if message is None or len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return message[: MESSAGE_LENGTH_MAX - 3] + "..."


def write_text(out: bytearray, text: str | None, compact: bool) -> None:
    if text is None:
        out += b"\x00" if compact else b"\xff\xff"
        return
    encoded = text.encode()
    if len(encoded) > 0x7FFF:
        raise UnencodableValue(f"a string of {len(encoded)} bytes: the protocol's longest has 32767")
    out += varint(len(encoded) + 1) if compact else _INT16.pack(len(encoded))
    out += encoded


def write_ints(out: bytearray, values: Sequence[int], compact: bool) -> None:
    count = len(values)
    if compact and count < len(COUNTED_ARRAYS):
        out += COUNTED_ARRAYS[count](count + 1, *values)
        return
    write_count(out, len(values), compact)
    out += ints(len(values)).pack(*values)


def write_longs(out: bytearray, values: Sequence[int], compact: bool) -> None:
    write_count(out, len(values), compact)
    out += Struct(f">{len(values)}q").pack(*values)


def write_texts(out: bytearray, texts: Sequence[str] | None, compact: bool) -> None:
    if texts is None:
        write_count(out, -1, compact)
        return
    write_count(out, len(texts), compact)
    for text in texts:
        if text is None:
            raise UnencodableValue("null in an array of strings")
        write_text(out, text, compact)


def write_records(out: Output, records: Part | None, compact: bool) -> None:
    if records is None:
        write_count(out, -1, compact)
        return
    size = size_bytes(records)
    write_count(out, size, compact)
    if size:
        out.splice(records)


def write_tags(out: bytearray, tags: Sequence[tuple[int, bytes]]) -> None:
    """A section of tagged fields, in the order of their tags."""
    out += varint(len(tags))
    for tag, content in tags:
        out += varint(tag)
        out += varint(len(content))
        out += content


def write_group_rows(
    out: bytearray,
    groups: Sequence[tuple[str, Sequence[Any]]],
    compact: bool,
    write_row: Callable[[Any, bytearray], None],
) -> None:
    write_count(out, sum(len(rows) for _, rows in groups), compact)
    previous: str | None = None
    for name, rows in groups:
        if not rows or name == previous:
            raise UnencodableValue(f"in this version a group has rows, and its neighbour another name: {name!r}")
        previous = name
        for row in rows:
            write_text(out, name, compact)
            write_row(row, out)


class Written:
    """Items of an array that were written before, in the place of the items: what goes out again and again in the same
    version is encoded once.

    `items` are the bytes of each, as the array's own writer makes them in the version of the message around it."""

    __slots__ = ("content", "count")

    def __init__(self, items: Sequence[bytes]) -> None:
        self.count = len(items)
        self.content = b"".join(items)

    def __len__(self) -> int:
        return self.count


def written(items: Sequence[bytes]) -> Any:
    """In the place of the tuple that a value is declared to have."""
    return Written(items)
