"""Transactions as a log sees them: markers, which transactions are open, and which of its records were aborted.

A transaction's records lie in the log among others. It is open from its first record in this log up to its marker, a
control batch. A consumer that reads committed records alone gets what is below the last stable offset: below every open
transaction, and below every one whose marker is not replicated yet. Of what it gets it drops the records of aborted
transactions, which the answer lists; they are looked up in a segment's `.txnindex`. Rules and formats: Kafka 2.8's
ProducerStateManager, EndTransactionMarker, ControlRecordType, TransactionIndex and AbortedTxn.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

from controller.storage.batches import HEADER_BYTES, BatchHeader, Bytes, Record, decode_records, encode_batch
from controller.storage.disk import Disk, sync_file
from controller.storage.errors import CorruptBatch

TXN_INDEX_SUFFIX = ".txnindex"
TRANSACTIONAL, CONTROL = 0x10, 0x20
"""Attributes of a batch."""
MARKER_BYTES_MAX = 1_024
"""A control batch has some 80 bytes; one that is larger is of a kind that is not known here."""
NO_TRANSACTION = -1
_ABORT, _COMMIT = 0, 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ENTRY = struct.Struct(">hqqqq")
_ENTRY_VERSION = 0


class Origin(Enum):
    """Who appends to a leader's log."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """A coordinator of groups or transactions: its batches may be markers, and are not numbered in sequence."""


class Marker(NamedTuple):
    """How a transaction ended. `coordinator_epoch`: the leader epoch of the coordinator that says so."""

    commits: bool
    coordinator_epoch: int


def marker_of(header: BatchHeader, payload: Bytes) -> Marker | None:
    """The marker in a control batch; None for a control batch of another kind, or one that can't be read."""
    try:
        return marker_in(list(islice(decode_records(header, payload), 1)))
    except CorruptBatch:
        return None


def marker_in(records: Sequence[Record]) -> Marker | None:
    """The marker in a control batch's records."""
    record = records[0] if records else None
    if record is None or record.key is None or len(record.key) < _KEY.size:
        return None
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT) or record.value is None or len(record.value) < _VALUE.size:
        return None
    return Marker(kind == _COMMIT, _VALUE.unpack_from(record.value)[1])


def encode_marker(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> bytes:
    """A batch with one marker, as Kafka's MemoryRecords.withEndTransactionMarker."""
    kind = _COMMIT if marker.commits else _ABORT
    record = Record(0, now_ms, _KEY.pack(0, kind), _VALUE.pack(0, marker.coordinator_epoch))
    return encode_batch(
        [record],
        leader_epoch=0,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def markers_in(data: Bytes, headers: Sequence[BatchHeader]) -> list[Marker | None]:
    """For each of the batches of `data` its marker, None for those that are none."""
    if not any(header.is_control for header in headers):
        return [None] * len(headers)
    found: list[Marker | None] = []
    position = 0
    with memoryview(data) as view:
        for header in headers:
            end = position + header.size_bytes
            small = header.is_control and header.size_bytes <= MARKER_BYTES_MAX
            found.append(marker_of(header, bytes(view[position + HEADER_BYTES : end])) if small else None)
            position = end
    return found


class AbortedRange(NamedTuple):
    """`first_offset`: of its first record in this log; `last_offset`: of its marker. `last_stable_offset`: that of the
    log once the marker was there. No entry after this one is of a transaction that begins below it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers are in one segment, in the order of their markers.

    Kept in memory as the bytes of its file, which is read when it is first asked for, and written when the segment is
    sealed or the log closed: of a segment that was not, recovery makes it again.
    """

    __slots__ = ("_data", "_disk", "_path", "_saved")

    def __init__(self, disk: Disk, path: str, *, is_new: bool) -> None:
        self._disk = disk
        self._path = path
        self._data: bytearray | None = bytearray() if is_new else None
        self._saved = 0

    def _loaded(self) -> bytearray:
        if self._data is None:
            try:
                data = bytearray(self._disk.read(self._path))
            except FileNotFoundError:
                data = bytearray()
            self._saved = len(data)
            sound = len(data) - len(data) % _ENTRY.size
            del data[sound:]
            self._data = data
        return self._data

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no entry."""
        return self._data is not None and not self._data

    def __len__(self) -> int:
        return len(self._loaded()) // _ENTRY.size

    def entry(self, place: int) -> AbortedRange:
        return AbortedRange._make(_ENTRY.unpack_from(self._loaded(), place * _ENTRY.size)[1:])

    def entries(self) -> list[AbortedRange]:
        return [self.entry(place) for place in range(len(self))]

    def append(self, entry: AbortedRange) -> None:
        self._loaded().extend(_ENTRY.pack(_ENTRY_VERSION, *entry))

    def begin_anew(self) -> None:
        """It is made again from the segment's batches."""
        self._data, self._saved = bytearray(), -1

    def cut(self, offset: int) -> None:
        """Forget transactions whose marker is at `offset` or after."""
        keep = bisect_left(range(len(self)), offset, key=lambda place: self.entry(place).last_offset)
        data = self._loaded()
        if keep * _ENTRY.size < len(data):
            del data[keep * _ENTRY.size :]
            self._saved = -1
            self.save()

    def since(self, offset: int) -> Iterator[AbortedRange]:
        """Those whose marker is at `offset` or after."""
        first = bisect_left(range(len(self)), offset, key=lambda place: self.entry(place).last_offset)
        return (self.entry(place) for place in range(first, len(self)))

    def save(self) -> None:
        """Bring the file up to what is in memory. There is none for a segment without an aborted transaction."""
        data = self._data
        if data is None or self._saved == len(data):
            return
        if data:
            self._disk.replace(self._path, bytes(data), durable=False)
        else:
            self._disk.remove(self._path)
        self._saved = len(data)

    def sync(self) -> None:
        if self._data:
            sync_file(self._disk, self._path)

    def unload(self) -> None:
        self.save()
        self._data = None


def aborted_between(indexes: Iterable[TransactionIndex], offset: int, up_to: int) -> list[AbortedRange]:
    """The aborted transactions that have records from `offset` up to below `up_to`. `indexes`: of the segments from the
    one that holds `offset` on. Source: Kafka's Log.collectAbortedTransactions."""
    found = []
    for index in indexes:
        for entry in index.since(offset):
            if entry.first_offset < up_to:
                found.append(entry)
            if entry.last_stable_offset >= up_to:
                return found
    return found
