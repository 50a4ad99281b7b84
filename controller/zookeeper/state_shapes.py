"""Partition states read by their shape: a row that differs from a decoded one in its digits alone is not decoded again.

The states of a cluster are written by one program, and most of them spell the same sentence with other numbers. One
row of a shape is decoded as JSON by the strict codec, which shows where each field's digits stand; all rows of that
shape are then compared with it, byte by byte, and their numbers taken out as columns. A row of which this cannot be
said for certain is left to the codec: what is here never accepts a row that the codec would not, nor reads it otherwise
(a property test holds the two against each other). Pure: bytes in, columns out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.zookeeper.znode_json import UNREADABLE

Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

SHAPES_TRIED = 24
"""By batch. A rare shape is cheaper to decode than to compare everything with."""
FEWEST_ROWS = 8
"""Of one length, for which comparing pays."""
_FIELDS = (b'"controller_epoch":', b'"leader":', b'"version":', b'"leader_epoch":', b'"isr":[')
_NUMBER = re.compile(rb"[0-9]+")
_MOST_DIGITS = 9
"""Any such number is an int32."""
_ZERO, _MINUS = ord("0"), ord("-")


@dataclass(frozen=True, slots=True, eq=False)
class ShapedStates:
    """n states; those that were `read` [n] have their numbers in `leader`, `leader_epoch`, `controller_epoch` [n] and
    `isr` [n, width], padded with -1 at the end."""

    read: Bools
    leader: Int32s
    leader_epoch: Int32s
    controller_epoch: Int32s
    isr: Int32s


@dataclass(frozen=True, slots=True)
class _Shape:
    """The positions [start, end) of a row's numbers, by field; `negative` if the leader is written as -1."""

    controller_epoch: tuple[int, int]
    leader: tuple[int, int]
    version: tuple[int, int]
    leader_epoch: tuple[int, int]
    isr: tuple[tuple[int, int], ...]
    negative: bool

    def numbers(self) -> tuple[tuple[int, int], ...]:
        return (self.controller_epoch, self.leader, self.version, self.leader_epoch, *self.isr)


def read_by_shape(
    json: bytes, ends: npt.NDArray[np.int64], width: int, decode: Callable[[bytes], Any]
) -> ShapedStates | None:
    """The rows of one batch, as `Columns` has them, as far as they have a shape in common; None if none has. `decode`
    is the strict codec, which raises one of `UNREADABLE`."""
    text = np.frombuffer(json, dtype=np.uint8)
    starts = np.concatenate((np.ones(1, dtype=np.int64), ends[:-1] + 1))
    lengths = ends - starts
    read = np.zeros(len(ends), dtype=np.bool_)
    parts: list[tuple[npt.NDArray[np.intp], Bytes, _Shape]] = []
    tried = 0
    for length in _common_lengths(lengths):
        rows = np.flatnonzero(lengths == length)
        block = _block(text, starts, rows, int(length))
        while len(rows) >= FEWEST_ROWS and tried < SHAPES_TRIED:
            tried += 1
            first = block[0].tobytes()
            shape = shape_of(first, decode)
            fits = np.zeros(len(rows), dtype=np.bool_) if shape is None else _fits(block, first, shape)
            if shape is not None and fits.all():
                read[rows] = True
                parts.append((rows, block, shape))
                break
            if shape is not None:
                read[rows[fits]] = True
                parts.append((rows[fits], block[fits], shape))
            fits[0] = True  # read, or left to the codec
            rows, block = rows[~fits], block[~fits]
    if not parts:
        return None
    return _columns(read, parts, max(width, *(len(shape.isr) for _, _, shape in parts)))


def _common_lengths(lengths: npt.NDArray[np.int64]) -> Iterator[int]:
    """The most frequent first."""
    if len(lengths) and (lengths == lengths[0]).all():
        yield int(lengths[0])
        return
    values, counts = np.unique(lengths, return_counts=True)
    yield from values[np.argsort(-counts, kind="stable")].tolist()


def _block(text: Bytes, starts: npt.NDArray[np.int64], rows: npt.NDArray[np.intp], length: int) -> Bytes:
    """[rows, length], a row's bytes each."""
    if len(rows) == len(starts):  # all of them: evenly spaced, each with the comma after it
        return text[1:].reshape(len(rows), length + 1)[:, :length]
    block: Bytes = text[starts[rows][:, None] + np.arange(length)]
    return block


def shape_of(row: bytes, decode: Callable[[bytes], Any]) -> _Shape | None:
    """None for a row that the codec refuses, or whose digits are not its fields' numbers and nothing else."""
    try:
        decode(row)
    except UNREADABLE:
        return None
    numbers = [match.span() for match in _NUMBER.finditer(row)]
    places = [row.find(field) + len(field) for field in _FIELDS]
    # What the codec accepted has every field. A fraction or an exponent adds a number beyond the number of fields, a
    # repeated field adds quotes, and a name with an escape in it is not found.
    by_start = {start: (start, end) for start, end in numbers}
    negative = row[places[1]] == _MINUS
    places[1] += negative
    isr_end = row.find(b"]", places[4])
    isr = tuple(span for span in numbers if places[4] <= span[0] < isr_end)
    found = [by_start.pop(place, None) for place in places[:4]]
    if len(numbers) != len(isr) + 4 or row.count(b"-") != negative or row.count(b'"') != 2 * len(_FIELDS):
        return None
    controller_epoch, leader, version, leader_epoch = found
    if controller_epoch is None or leader is None or version is None or leader_epoch is None:
        return None
    if any(end - start > _MOST_DIGITS for start, end in numbers) or isr_end < 0:
        return None
    return _Shape(controller_epoch, leader, version, leader_epoch, isr, negative)


def _fits(block: Bytes, first: bytes, shape: _Shape) -> Bools:
    """Which rows have the first one's bytes wherever that has no digit, and a number where it has one."""
    digit = np.zeros(len(first), dtype=np.bool_)
    for start, end in shape.numbers():
        digit[start:end] = True
    sample = np.frombuffer(first, dtype=np.uint8)
    fits: Bools = (block[:, ~digit] == sample[~digit]).all(axis=1)
    fits &= (block[:, digit] - _ZERO <= 9).all(axis=1)  # bytes below "0" wrap to large ones
    for start, end in shape.numbers():
        if end - start > 1:
            fits &= block[:, start] != _ZERO
    for (start, _), value in ((shape.version, 1), (shape.leader, 1))[: 1 + shape.negative]:
        fits &= block[:, start] == _ZERO + value
    return fits


def _columns(read: Bools, parts: list[tuple[npt.NDArray[np.intp], Bytes, _Shape]], width: int) -> ShapedStates:
    leader = np.full(len(read), -1, dtype=np.int32)
    leader_epoch, controller_epoch = np.zeros(len(read), dtype=np.int32), np.zeros(len(read), dtype=np.int32)
    isr = np.full((len(read), width), -1, dtype=np.int32)
    for rows, block, shape in parts:
        if not shape.negative:
            leader[rows] = _numbers(block, shape.leader)
        leader_epoch[rows] = _numbers(block, shape.leader_epoch)
        controller_epoch[rows] = _numbers(block, shape.controller_epoch)
        for place, span in enumerate(shape.isr):
            isr[rows, place] = _numbers(block, span)
    return ShapedStates(read, leader, leader_epoch, controller_epoch, isr)


def _numbers(block: Bytes, span: tuple[int, int]) -> Int32s:
    start, end = span
    value = (block[:, start] - _ZERO).astype(np.int32)
    for place in range(start + 1, end):
        value = value * 10 + (block[:, place] - _ZERO)
    return value
