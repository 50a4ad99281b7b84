"""Many records at once: proves in NumPy's columns that a run of records is well formed.

Pure. `sound_run` answers only for records that it understands, which are those that clients make. `record_checks.py`
looks at the others one by one, and says what is wrong. Layout: Kafka's DefaultRecord.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes8: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

UNIFORM_RECORDS, MIXED_RECORDS = 16_384, 2_048
"""As many as a caller should ask for at once: about half a millisecond."""

_BEYOND = 1 << 48
"""A position past every record's end."""
UNIFORM_FROM = 16
"""Fewer records of one size are not worth a comparison."""


class Run(NamedTuple):
    """The first `records` of them, up to `end`. Their timestamp deltas, which of them have a key, and the place and
    number of the headers of those that have any."""

    records: int
    end: int
    deltas: Integers
    keyed: npt.NDArray[np.bool_]
    headers: list[tuple[int, int, int]]
    """(where the first begins, how many, where the record ends)."""


def sound_run(data: Bytes8, start: int, first: int, count: int, headers_max: int) -> Run:
    """Look at up to `count` records from `start`, of which the first is to have the offset delta `first`.

    Headers, of which a run has `headers_max` at most, are left to the caller: the records before and after them are
    sound if each record's headers end where the record does.
    """
    marks = _marks(data, start, count)
    begins, ends = marks[:-1], marks[1:]
    lengths, at = _numbers(data, begins)
    attributes = data.take(at, mode="clip")
    times, at = _numbers(data, at + 1, shift_max=42)
    offsets, at = _numbers(data, at)
    keys, at = _field(data, at)
    _, at = _field(data, at)
    headers, at = _numbers(data, at)
    good = (offsets == np.arange(2 * first, 2 * (first + len(begins)), 2)) & (lengths & 1 == 0) & (attributes == 0)
    found: list[tuple[int, int, int]] = []
    if headers.any():
        # Numbers are zigzag, so a header's count is twice itself and each has two bytes at least.
        good &= (headers & 1 == 0) & (at + headers <= ends) & (np.cumsum(headers) <= 2 * headers_max)
        good &= (headers > 0) | (at == ends)
    else:
        good &= at == ends
    sound = len(good) if good.all() else int(good.argmin())
    if headers.any():
        some = np.flatnonzero(headers[:sound])
        found = list(zip(at[some].tolist(), (headers[some] >> 1).tolist(), ends[some].tolist(), strict=True))
    deltas = (times[:sound] >> 1) ^ -(times[:sound] & 1)
    return Run(sound, int(marks[sound]), deltas, keys[:sound] & 1 == 0, found)


def _field(data: Bytes8, at: Integers) -> tuple[Integers, Integers]:
    """The zigzag lengths of fields, and where the fields end. One of negative length is null, and has no bytes."""
    lengths, at = _numbers(data, at)
    return lengths, at + np.where(lengths & 1, 0, lengths >> 1)


def _numbers(data: Bytes8, at: Integers, shift_max: int = 21) -> tuple[Integers, Integers]:
    """The varints at these places, as they are before zigzag, and where they end. _BEYOND: one of more bytes than
    those up to the one that is shifted by `shift_max`."""
    byte = data.take(at, mode="clip")
    raw = byte.astype(np.int64)
    at = at + 1
    more = byte > 127
    if not more.any():
        return raw, at
    raw &= 0x7F
    shift = 7
    while more.all() and shift <= shift_max and len(more):
        byte = data.take(at, mode="clip")
        raw |= (byte & 0x7F).astype(np.int64) << shift
        at += 1
        shift += 7
        more = byte > 127
    left = np.flatnonzero(more)
    while left.size and shift <= shift_max:
        byte = data.take(at[left], mode="clip")
        raw[left] |= (byte & 0x7F).astype(np.int64) << shift
        at[left] += 1
        shift += 7
        left = left[byte > 127]
    at[left] = _BEYOND
    return raw, at


def _marks(data: Bytes8, start: int, count: int) -> Integers:
    """Where up to `count` records begin by their lengths, and where the last of them ends."""
    view = data.data
    marks = [start]
    add = marks.append
    at = start
    try:
        for _ in range(count):
            byte = view[at]
            if byte < 0x80:
                at += (byte >> 1) + 1
            elif (second := view[at + 1]) < 0x80:
                at += ((byte & 0x7F | second << 7) >> 1) + 2
            else:
                third = view[at + 2]
                at += ((byte & 0x7F | (second & 0x7F) << 7 | third << 14) >> 1) + 3
            add(at)
    except IndexError:
        pass  # the bytes end within a length
    found = np.array(marks, np.int64)
    return found[: int(np.searchsorted(found, len(view), "right"))]


# Records of one size


class _Shape(NamedTuple):
    """Where the fields of a record begin, from its own beginning, where each number ends with its bytes. The last byte
    is the count of headers, which is 0."""

    time: int
    offset: int
    key: int
    key_end: int
    value: int
    value_end: int
    total: int
    has_key: bool


def uniform_run(data: Bytes8, view: memoryview, start: int, first: int, count: int) -> Run | None:
    """As `sound_run`, for records that all have the shape of the one at `start`, and no headers. This is much faster.
    None if there is no such run of some length. `view` has the bytes of `data`."""
    shape = _shape(view, start)
    if shape is None:
        return None
    total, width = shape.total, shape.key - shape.offset
    expected = _OFFSETS[width - 1]
    most = min(count, (len(view) - start) // total, expected.shape[1] - first)
    if most < UNIFORM_FROM or view[start + total] != view[start]:
        return None
    rows = data[start : start + most * total].reshape(most, total)
    head = np.ascontiguousarray(rows[:, : shape.key_end].T)  # a row for each byte: comparisons are fast then
    one = head[:, :1]
    time = head[shape.time : shape.offset]
    differs = head ^ one
    differs[shape.time : shape.offset] &= 0x80
    np.bitwise_xor(
        head[shape.offset : shape.key],
        expected[:, first : first + most],
        out=differs[shape.offset : shape.key],
    )
    sound = min(_sound_columns(differs), _sound_columns(rows[:, -1:].T))
    if shape.value >= shape.key_end:
        lengths = rows[:, shape.value : shape.value_end].T
        sound = min(sound, _sound_columns(lengths ^ lengths[:, :1]))
    if sound < UNIFORM_FROM:
        return None
    raw = time[0, :sound].astype(np.int64)
    if len(time) > 1:
        raw &= 0x7F
    for byte in range(1, len(time)):
        raw |= (time[byte, :sound].astype(np.int64) & 0x7F) << 7 * byte
    return Run(sound, start + sound * total, (raw >> 1) ^ -(raw & 1), np.array([shape.has_key]), [])


def _sound_columns(differs: Bytes8) -> int:
    """The columns before the first in which something is not 0."""
    return int(differs.any(axis=0).argmax()) if differs.any() else differs.shape[1]


def _shape(view: memoryview, start: int) -> _Shape | None:
    try:
        length, at = _number(view, start)
        end = at + length
        time = at + 1  # past the attributes
        _, offset = _number(view, time)
        _, key = _number(view, offset)
        key_length, key_end = _number(view, key)
        value = key_end + max(key_length, 0)
        value_length, value_end = _number(view, value)
        if length < 0 or view[at] or value_end + max(value_length, 0) != end - 1 or view[end - 1]:
            return None
    except IndexError:
        return None
    head_end = value_end if value == key_end else key_end
    return _Shape(
        time - start, offset - start, key - start, head_end - start, value - start, value_end - start, end - start,
        key_length >= 0,
    )  # fmt: skip


def _number(view: memoryview, at: int) -> tuple[int, int]:
    """The number of up to three bytes at `at`, and where it ends. IndexError: it has more, or the bytes end."""
    raw = view[at]
    if raw > 0x7F:
        raw = raw & 0x7F | view[at + 1] << 7
        at += 1
        if raw > 0x3FFF:
            raw = raw & 0x3FFF | view[at + 1] << 14
            at += 1
            if raw > 0x1FFFFF:
                raise IndexError(at)
    return (raw >> 1) ^ -(raw & 1), at + 1


def _offsets(width: int, below: int) -> Bytes8:
    """The bytes of the offset deltas from 0 to `below`, as they are when written in `width` bytes: a row for each byte,
    a column for each delta."""
    raw = np.arange(0, 2 * below, 2) >> np.arange(0, 7 * width, 7)[:, None]
    return (raw & 0x7F | np.where(np.arange(width) < width - 1, 0x80, 0)[:, None]).astype(np.uint8)


_OFFSETS = (_offsets(1, 1 << 6), _offsets(2, 1 << 13), _offsets(3, 1 << 17))
