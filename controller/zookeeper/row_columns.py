"""Rows of znodes as columns: a batch decoded at once, or taken apart where a row of it is odd.

The ground that the codecs for whole clusters stand on; knows no particular znode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.operations import Columns
from controller.zookeeper.znode_json import UNREADABLE

Int32s = npt.NDArray[np.int32]
T = TypeVar("T")

_CLOSING_BRACE, _END_OF_NULL = ord("}"), ord("l")


class OddRows:
    """The typed rows of some batches (None: no node, or damaged), with what was odd about any."""

    def __init__(
        self, batches: Sequence[Columns], whole: msgspec.json.Decoder[Any], one: msgspec.json.Decoder[Any], lenient: Any
    ) -> None:
        self.rows: list[Any] = []
        self.damaged: list[tuple[int, bytes]] = []
        self.extra: dict[int, bytes] = {}
        for columns in batches:
            decoded = _decode_whole(columns, whole)
            if decoded is None:
                self._take_apart(columns, one, lenient)
            else:
                self.rows += decoded

    def _take_apart(self, columns: Columns, one: msgspec.json.Decoder[Any], lenient: Any) -> None:
        for element, version in zip(_elements(columns), columns.versions.tolist(), strict=True):
            row = None
            if element == b"null":
                if version >= 0:
                    self.damaged.append((len(self.rows), b""))
            else:
                try:
                    row = one.decode(element)
                except UNREADABLE:
                    row = self._odd_one(element, lenient)
            self.rows.append(row)

    def _odd_one(self, element: bytes, lenient: Any) -> Any:
        try:
            row = lenient(element)
        except DamagedZnode:
            self.damaged.append((len(self.rows), element))
            return None
        self.extra[len(self.rows)] = element
        return row

    def present(self) -> npt.NDArray[np.bool_]:
        return np.fromiter((row is not None for row in self.rows), dtype=np.bool_, count=len(self.rows))

    def filled(self, absent: Any) -> list[Any]:
        return [absent if row is None else row for row in self.rows]


def _decode_whole(columns: Columns, decoder: msgspec.json.Decoder[list[T]]) -> list[T] | None:
    """None unless every element is what is expected, and one row's. Broken rows can join into whole ones: a row
    that does not end where its object does gives that away."""
    ends = columns.ends
    last = np.frombuffer(columns.json, dtype=np.uint8)[ends - 1]
    if not np.all((last == _CLOSING_BRACE) | ((last == _END_OF_NULL) & (columns.versions < 0))):
        return None
    try:
        decoded = decoder.decode(columns.json)
    except UNREADABLE:
        return None
    return decoded if len(decoded) == len(ends) else None


def _elements(columns: Columns) -> Iterator[bytes]:
    start = 1
    for end in columns.ends.tolist():
        yield columns.json[start:end]
        start = end + 1


def column(rows: Sequence[Any], name: str) -> Int32s:
    return np.fromiter(map(attrgetter(name), rows), dtype=np.int32, count=len(rows))


def joined(batches: Sequence[Columns]) -> Int32s:
    return np.concatenate([columns.versions for columns in batches]) if batches else np.empty(0, dtype=np.int32)


def padded(lists: Sequence[tuple[int, ...]], width: int) -> Int32s:
    """[n, at least `width`], each row's numbers first and -1 after them."""
    count = len(lists)
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=count)
    longest = int(lengths.max(initial=0))
    flat = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(lengths.sum()))
    padded = np.full((count, max(width, longest)), -1, dtype=np.int32)
    if longest and lengths.min() == longest:
        padded[:, :longest] = flat.reshape(count, longest)
    else:
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = flat
    return padded


def unpadded(padded: Int32s) -> list[tuple[int, ...]]:
    """Each row's numbers, in their order, without the -1 (wherever it stands)."""
    count, width = padded.shape
    members = padded >= 0
    if members.all():
        return list(zip(*padded.T.tolist(), strict=True)) if width else [()] * count
    lengths = members.sum(axis=1)
    flat = padded[members].tolist()
    ends = np.cumsum(lengths).tolist()
    return [tuple(flat[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
