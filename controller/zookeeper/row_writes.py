"""Many fenced writes of rows that may have moved: batches in flight, and what is done when one fails.

A batch is all or nothing. One that fails is read again once: rows that moved are handed back with what is there now,
the rest is written again in one request (splitting at each failing row would be quadratic in them). After an unknown
outcome a row counts as written only if it holds exactly what this write would have left. Decides nothing about
leadership: the `send` it is given adds the fence, and that fence's errors pass through.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from controller.pending import Pending
from controller.zookeeper.connection import BATCH
from controller.zookeeper.errors import DamagedZnode, MultiFailed, NoAuth, UnknownOutcome
from controller.zookeeper.operations import (
    ANY_VERSION,
    NOT_WRITABLE,
    Columns,
    Create,
    ReadResult,
    SetData,
    Stat,
    WriteResults,
    Znode,
    stand_in,
)
from controller.zookeeper.paths import is_one_of_many
from controller.zookeeper.request_size import spans
from controller.zookeeper.state_sets import SetResults, StateSets
from controller.zookeeper.znode_json import UNREADABLE

Int32s = npt.NDArray[np.int32]
T = TypeVar("T")

_CLOSING_BRACE, _END_OF_NULL = ord("}"), ord("l")


class FallbackRows:
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


ROWS_A_BATCH = BATCH - 1
"""One operation of each request is the fence."""
STATES_A_BATCH = 999
"""Of partition states, which are small: with Kafka's longest paths some 500 kB, below jute.maxbuffer. Each request
costs both sides together some 2 ms of processor time besides its rows, most of it to write through to the disk."""
BATCHES_IN_FLIGHT = 8
"""The server writes through once for all that has come meanwhile, so that more ahead is less work."""
UNKNOWN_OUTCOMES = 10
"""After so many for one batch its UnknownOutcome is raised: a request that breaks each connection it is sent on would
otherwise be sent for ever."""

W = TypeVar("W", bound=Create | SetData)


@dataclass(frozen=True, slots=True)
class RowsWritten:
    """`versions`: int32, aligned with the rows asked for: the znode's version now, -1 where it was not written.
    `moved`: (index, what is there now, None for nothing) for each row that was not written, by index."""

    versions: npt.NDArray[np.int32]
    moved: tuple[tuple[int, Znode | None], ...]


class RowOutcome(enum.Enum):
    AGAIN = "write it again"
    MOVED = "hand it back"


Judge = Callable[[W, "Znode | None", bool], "int | RowOutcome"]
"""(row, what a second look found, whether an earlier outcome is unknown) -> the version it has, or what to do."""


def judge_set(row: SetData, found: Znode | None, uncertain: bool) -> int | RowOutcome:
    """Unchanged: again. Exactly one version on, with these bytes, and this write may have been applied: written."""
    if found is None:
        return RowOutcome.MOVED
    if found.stat.version == row.version:
        return RowOutcome.AGAIN
    if uncertain and found.stat.version == row.version + 1 and found.data == row.data:
        return found.stat.version
    return RowOutcome.MOVED


def judge_create(parents: frozenset[str]) -> Judge[Create]:
    """A znode that others among the rows need as their parent counts as written when it is there already."""

    def judge(row: Create, found: Znode | None, uncertain: bool) -> int | RowOutcome:
        if found is None:
            return RowOutcome.AGAIN
        ours = uncertain and found.stat.version == 0 and found.data == row.data
        return found.stat.version if ours or row.path in parents else RowOutcome.MOVED

    return judge


def parents_among(rows: Sequence[Create]) -> frozenset[str]:
    above = {row.path.rpartition("/")[0] for row in rows}
    return frozenset(row.path for row in rows if row.path in above)


def refuse_unversioned(rows: Sequence[SetData]) -> None:
    """Raise ValueError for a row without a version: a concurrent change could not be detected."""
    if isinstance(rows, StateSets) and not (rows.versions == ANY_VERSION).any():
        return
    for row in rows:
        if row.version == ANY_VERSION:
            raise ValueError(f"{row.path}: rows are written at the version they were read at")


def refuse_sequential(rows: Sequence[Create]) -> None:
    """Raise ValueError for a sequential row: after an unknown outcome its node could not be identified."""
    for row in rows:
        if row.sequential:
            raise ValueError(f"{row.path}: rows have their own names, a sequence has none to look for")


class RowWriter(Generic[W]):
    """One use: `write` the rows it was made for."""

    def __init__(
        self,
        rows: Sequence[W],
        judge: Judge[W],
        send: Callable[[Sequence[W]], Pending[WriteResults]],
        sync: Callable[[str], Pending[None]],
        read: Callable[[Sequence[str]], Pending[ReadResult]],
    ) -> None:
        self._rows = rows
        self._judge = judge
        self._send = send
        self._sync = sync
        self._read = read
        self._versions = np.full(len(rows), -1, dtype=np.int32)
        self._moved: list[tuple[int, Znode | None]] = []

    async def write(self) -> RowsWritten:
        """Raises what the fence raises; RequestTooLarge for a row that is too large alone; MultiFailed, with the index
        among the rows, for what a second look does not explain; UnknownOutcome after `UNKNOWN_OUTCOMES` of one batch.
        """
        in_flight: deque[tuple[Sequence[int], Pending[WriteResults]]] = deque()
        a_batch = STATES_A_BATCH if isinstance(self._rows, StateSets) else ROWS_A_BATCH
        for start, end in spans(self._rows, a_batch):
            if len(in_flight) == BATCHES_IN_FLIGHT:
                await self._settle(*in_flight.popleft())
            in_flight.append((range(start, end), self._send(self._rows[start:end])))
        while in_flight:
            await self._settle(*in_flight.popleft())
        return RowsWritten(self._versions, tuple(sorted(self._moved, key=lambda moved: moved[0])))

    def _send_rows(self, indices: Sequence[int]) -> Pending[WriteResults]:
        return self._send([self._rows[index] for index in indices])

    async def _settle(self, indices: Sequence[int], sent: Pending[WriteResults]) -> None:
        """Sees one batch through. Batches before it are settled, so that a parent they hold is there or handed back."""
        unknown_outcomes, fruitless = 0, False
        while True:
            failure: MultiFailed | UnknownOutcome
            try:
                results = await sent
            except UnknownOutcome as error:
                unknown_outcomes += 1
                if unknown_outcomes == UNKNOWN_OUTCOMES:
                    raise
                failure = error
            except MultiFailed as error:
                failure = error
            else:
                self._record(indices, results)
                return
            if unknown_outcomes:
                # A server that lags may not show yet what was applied.
                await self._sync(self._rows[indices[0]].path)
            refused = self._refused(indices, failure)
            indices = [index for index in indices if index != refused]
            left = await self._look_again(indices, uncertain=unknown_outcomes > 0)
            if isinstance(failure, MultiFailed) and refused is None and len(left) == len(indices):
                # A batch sent before its parents' batch was repaired fails once through no fault of its own; not twice.
                if fruitless:
                    raise MultiFailed(indices[failure.index], failure.error)
                fruitless = True
            if not left:
                return
            indices, sent = left, self._send_rows(left)

    def _refused(self, indices: Sequence[int], failure: MultiFailed | UnknownOutcome) -> int | None:
        """The row, one of many, that this client may not set: handed back with a stand-in, so that the others are
        written without it."""
        if not isinstance(failure, MultiFailed) or not isinstance(failure.error, NoAuth):
            return None
        index = indices[failure.index]
        row = self._rows[index]
        if not isinstance(row, SetData) or not is_one_of_many(failure.error.path):
            return None
        self._moved.append((index, stand_in(row.path, NOT_WRITABLE)))
        return index

    def _record(self, indices: Sequence[int], results: WriteResults) -> None:
        if isinstance(results, SetResults):
            self._versions[np.array(indices)] = results.versions
        else:
            self._versions[np.array(indices)] = [one.version if isinstance(one, Stat) else 0 for one in results]

    async def _look_again(self, indices: Sequence[int], uncertain: bool) -> list[int]:
        """Reads the rows; those still to be written. The rest is recorded as written or moved."""
        reading = await self._read([self._rows[index].path for index in indices])
        left = []
        for index, found in zip(indices, reading.rows, strict=True):
            verdict = self._judge(self._rows[index], found, uncertain)
            if verdict is RowOutcome.AGAIN:
                left.append(index)
            elif verdict is RowOutcome.MOVED:
                self._moved.append((index, found))
            else:
                assert isinstance(verdict, int)
                self._versions[index] = verdict
        return left
