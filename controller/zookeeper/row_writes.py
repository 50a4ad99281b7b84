"""Many fenced writes of rows that may have moved: batches in flight, and what is done when one fails.

A batch is all or nothing. One that fails is read again once: rows that moved are handed back with what is there now,
the rest is written again in one request (splitting at each failing row would be quadratic in them). After an unknown
outcome a row counts as written only if it holds exactly what this write would have left. Decides nothing about
leadership: the `send` it is given adds the fence, and that fence's errors pass through.

`StateSets` and `SetResults` are the writes of very many state znodes and their results, as columns. When a broker fails
that led ten thousand partitions, as many states are written, and the partitions have no leader until then. A request's
bytes are built from these columns topic by topic (`jute.multi_set_states`), and only the versions are used of the
reply. Code that needs single operations and stats (the in-memory ZooKeeper, the check of a failed batch) accesses them
here as sequences.

Batches are split by bytes as well as by count. A server closes the connection of a client that sends more than its
jute.maxbuffer: the write has an unknown outcome, the same request is sent again, and finally the session expires. A
write that does not fit into one request is refused before it is sent (`RequestTooLarge`). Replies are not limited: a
server sends all that was requested, and this project's connection reads it.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from controller.clock import Future
from controller.zookeeper import paths
from controller.zookeeper.codecs import UNREADABLE
from controller.zookeeper.operations import (
    ACL,
    ANY_VERSION,
    BATCH,
    NOT_WRITABLE,
    OPEN_ACL,
    Check,
    Columns,
    Create,
    DamagedZnode,
    MultiFailed,
    NoAuth,
    ReadResult,
    RequestTooLarge,
    SetData,
    Stat,
    UnknownOutcome,
    Write,
    WriteResult,
    WriteResults,
    Znode,
    stand_in,
)
from controller.zookeeper.paths import is_one_of_many


class StatePaths(Sequence[str]):
    """`topics`: (name, partitions) in the order of the paths, partitions in theirs. A run of them is such a sequence
    too, found without a walk over all topics."""

    __slots__ = ("_ends", "topics")

    def __init__(self, topics: Sequence[tuple[str, list[int]]]) -> None:
        self.topics = topics
        self._ends = list(accumulate(len(partitions) for _, partitions in topics))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        for name, partitions in self.topics:
            yield from paths.partition_states(name, partitions)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._run(start, stop) if step == 1 else list(self)[place]
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(f"path {place} of {len(self)}")
        number = bisect_right(self._ends, at)
        name, partitions = self.topics[number]
        return paths.partition_state(name, partitions[at - self._ends[number]])  # counted from the topic's end

    def _run(self, start: int, stop: int) -> StatePaths:
        if (start, stop) == (0, len(self)):
            return self
        topics: list[tuple[str, list[int]]] = []
        number = bisect_right(self._ends, start)
        while start < stop:
            (name, partitions), end = self.topics[number], self._ends[number]
            first = end - len(partitions)
            topics.append((name, partitions[start - first : stop - first]))
            start, number = end, number + 1
        return StatePaths(topics)


Int32s = npt.NDArray[np.int32]


class StateSets(Sequence[SetData]):
    """Place by place: `paths`, `data`, and `versions` (int32[n]), at which each was read."""

    __slots__ = ("data", "paths", "versions")

    def __init__(self, paths: StatePaths, data: Sequence[bytes], versions: Int32s) -> None:
        if not len(paths) == len(data) == len(versions):
            raise ValueError(f"{len(paths)} paths, {len(data)} states and {len(versions)} versions")
        self.paths = paths
        self.data = data
        self.versions = versions

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[SetData]:
        return map(SetData, self.paths, self.data, self.versions.tolist())

    @overload
    def __getitem__(self, place: int) -> SetData: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[SetData]: ...

    def __getitem__(self, place: int | slice) -> SetData | Sequence[SetData]:
        if not isinstance(place, slice):
            return SetData(self.paths[place], self.data[place], int(self.versions[place]))
        paths = self.paths[place]
        if not isinstance(paths, StatePaths):
            return list(self)[place]
        return StateSets(paths, self.data[place], self.versions[place])


class FencedSets(Sequence[Write]):
    """One multi: the `fence`, and the `sets` behind it."""

    __slots__ = ("fence", "sets")

    def __init__(self, fence: Check, sets: StateSets) -> None:
        self.fence = fence
        self.sets = sets

    def __len__(self) -> int:
        return 1 + len(self.sets)

    def __iter__(self) -> Iterator[Write]:
        yield self.fence
        yield from self.sets

    @overload
    def __getitem__(self, place: int) -> Write: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Write]: ...

    def __getitem__(self, place: int | slice) -> Write | Sequence[Write]:
        if isinstance(place, slice):
            return list(self)[place]
        at = place + len(self) if place < 0 else place
        return self.fence if at == 0 else self.sets[at - 1]


class SetResults(Sequence[WriteResult]):
    """The results of sets, behind those of `checks` checks, which have none. `versions` (int32[n]) are the sets' alone,
    and so is what `stat_of` counts."""

    __slots__ = ("_checks", "_stat_of", "versions")

    def __init__(self, checks: int, versions: Int32s, stat_of: Callable[[int], Stat]) -> None:
        self._checks = checks
        self._stat_of = stat_of
        self.versions = versions

    def __len__(self) -> int:
        return self._checks + len(self.versions)

    @overload
    def __getitem__(self, place: int) -> WriteResult: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[WriteResult]: ...

    def __getitem__(self, place: int | slice) -> WriteResult | Sequence[WriteResult]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if (stop, step) == (len(self), 1) and start <= self._checks:
                return SetResults(self._checks - start, self.versions, self._stat_of)
            return [self[at] for at in range(start, stop, step)]
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(f"result {place} of {len(self)}")
        return None if at < self._checks else self._stat_of(at - self._checks)


REQUEST_BYTES_MAX = 0xFFFFF
"""The default of jute.maxbuffer. It counts the whole frame without its length field."""
REQUEST_HEAD_BYTES = 8
"""What precedes a request's body in the frame: its number and its kind."""
RESERVE_BYTES = 64 << 10
"""Room for what is not known here: the chroot before each path, an access list for each create, and the envelope in
which a server hands a transaction to the others."""
SENT_BYTES_MAX = REQUEST_BYTES_MAX - RESERVE_BYTES
BATCH_BYTES = 512 << 10
"""At most so many bytes of a batch whose rows are independent: far from the limit, and enough to gain from."""
ZNODE_BYTES_MAX = SENT_BYTES_MAX - (16 << 10)
"""The most that is written into one znode, alone in its request but for the fence and short operations."""

_OPERATION_HEAD, _INT = 9, 4
_END = 9
_LONGEST_PARTITION = len("/partitions/2147483647/state")

T = TypeVar("T")


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def operation_bytes(operation: Write, default_acl: Sequence[ACL] = OPEN_ACL) -> int:
    """Exactly what the operation takes in a multi without a chroot."""
    size = _OPERATION_HEAD + _INT + text_bytes(operation.path) + _INT  # the last is a version, or a create's flags
    if isinstance(operation, SetData | Create):
        size += _INT + len(operation.data or b"")
    if isinstance(operation, Create):
        acl = default_acl if operation.acl is None else operation.acl
        size += _INT + sum(3 * _INT + text_bytes(one.scheme) + text_bytes(one.id) for one in acl)
    return size


def multi_bytes(operations: Sequence[Write], default_acl: Sequence[ACL] = OPEN_ACL) -> int:
    """The frame of a multi; of states in columns no less than it has."""
    if isinstance(operations, FencedSets):
        return multi_bytes(operations.sets) + operation_bytes(operations.fence)
    if isinstance(operations, StateSets):
        heads = sum(_state_head(name) * len(partitions) for name, partitions in operations.paths.topics)
        return REQUEST_HEAD_BYTES + _END + heads + sum(map(len, operations.data))
    return REQUEST_HEAD_BYTES + _END + sum(operation_bytes(operation, default_acl) for operation in operations)


def _state_head(topic: str) -> int:
    """Return the size of a state's write besides the data, or a few bytes more."""
    return _OPERATION_HEAD + 3 * _INT + len("/brokers/topics/") + text_bytes(topic) + _LONGEST_PARTITION


def _row_sizes(rows: Sequence[Write]) -> list[int]:
    if not isinstance(rows, StateSets):
        return [operation_bytes(row) for row in rows]
    heads = (head for name, numbers in rows.paths.topics for head in [_state_head(name)] * len(numbers))
    return [head + len(data) for head, data in zip(heads, rows.data, strict=True)]


def paths_bytes(paths: Sequence[str]) -> int:
    """The frame of a multi-read of these paths, or of watches on them, or somewhat more."""
    each = _OPERATION_HEAD + _INT + 1
    return REQUEST_HEAD_BYTES + _END + each * len(paths) + text_bytes("".join(paths))


def require_sendable(operations: Sequence[Write]) -> None:
    """RequestTooLarge for a multi that a server may refuse, and nothing was sent."""
    size = multi_bytes(operations)
    if size > SENT_BYTES_MAX:
        first = operations[0].path[:100] if len(operations) else "/"
        raise RequestTooLarge(
            f"a request of {len(operations)} operations has {size} bytes, expected {SENT_BYTES_MAX} at most"
            f" ({first} among them); nothing was sent"
        )


def spans(rows: Sequence[Write], most: int, most_bytes: int = BATCH_BYTES) -> Iterator[tuple[int, int]]:
    """[start, end) of each batch: at most `most` rows and, unless it is one row, at most `most_bytes` bytes."""
    if isinstance(rows, StateSets) and len(rows):
        widest = max(_state_head(name) for name, _ in rows.paths.topics) + max(map(len, rows.data))
        if widest * most <= most_bytes:  # as nearly all are
            yield from ((start, min(start + most, len(rows))) for start in range(0, len(rows), most))
            return
    sizes = _row_sizes(rows)
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == most or total + size > most_bytes):
            yield start, place
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def path_batches(paths: Sequence[str], most: int, most_bytes: int = BATCH_BYTES) -> Iterator[Sequence[str]]:
    """As `spans`, of paths to read or to watch."""
    for start in range(0, len(paths), most):
        yield from _halved(paths[start : start + most], most_bytes)


def _halved(paths: Sequence[str], most_bytes: int) -> Iterator[Sequence[str]]:
    if isinstance(paths, StatePaths) or len(paths) < 2 or paths_bytes(paths) <= most_bytes:
        yield paths  # topic names have 249 characters at most: the longest batch of states is below the limit
        return
    middle = len(paths) // 2
    yield from _halved(paths[:middle], most_bytes)
    yield from _halved(paths[middle:], most_bytes)


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


class RowsWritten(msgspec.Struct, frozen=True):
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
        send: Callable[[Sequence[W]], Future[WriteResults]],
        sync: Callable[[str], Future[None]],
        read: Callable[[Sequence[str]], Future[ReadResult]],
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
        in_flight: deque[tuple[Sequence[int], Future[WriteResults]]] = deque()
        a_batch = STATES_A_BATCH if isinstance(self._rows, StateSets) else ROWS_A_BATCH
        for start, end in spans(self._rows, a_batch):
            if len(in_flight) == BATCHES_IN_FLIGHT:
                await self._settle(*in_flight.popleft())
            in_flight.append((range(start, end), self._send(self._rows[start:end])))
        while in_flight:
            await self._settle(*in_flight.popleft())
        return RowsWritten(self._versions, tuple(sorted(self._moved, key=lambda moved: moved[0])))

    async def _settle(self, indices: Sequence[int], sent: Future[WriteResults]) -> None:
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
            indices, sent = left, self._send([self._rows[index] for index in left])

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
