"""Which records of a batch the log cleaner keeps, and the batch that is left.

Pure: bytes in, bytes out. A record is kept if no later one has its key, unless it has no value and its delete horizon
has passed; what is above the offset map's latest offset is kept as it is. Records of aborted transactions go; a marker
stays as long as there are batches of its transaction, and then until its own delete horizon. Offsets and sequences are
kept, so a batch whose last records go still ends where it did. Source: Kafka 2.8's Cleaner and
CleanedTransactionMetadata, with the delete horizons of Kafka 3.1 (KIP-534): the first cleaning that sees a tombstone
writes into its batch when it may go, as attribute 0x40 and base timestamp. A reader of Kafka 2.8 does not look at the
attribute and computes the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from controller.storage.batches import (
    HEADER_BYTES,
    LONG_MAX,
    NO_TIMESTAMP,
    BatchHeader,
    RecordColumns,
    RecordSpan,
    emptied,
    record_columns,
    record_spans,
    rewritten,
    with_delete_horizon,
    with_timestamp_delta,
)
from controller.storage.compression import BadCompression, compressed, decompressing
from controller.storage.errors import CorruptBatch
from controller.storage.offset_map import OffsetMap
from controller.storage.producer_states import ProducerStates
from controller.storage.transactions import MARKER_BYTES_MAX, AbortedRange, marker_of

Kept: TypeAlias = tuple[bytes | memoryview, BatchHeader]


class LastBatch(NamedTuple):
    """Of a producer that is known to the log: the last offset of its last batch with records, -1 if only markers are
    known, and its epoch."""

    last_offset: int
    epoch: int


def last_batches(producers: ProducerStates | None) -> Mapping[int, LastBatch]:
    """By producer id, as of now. Without these batches a producer could not go on with its sequence."""
    if producers is None:
        return {}
    return {
        producer_id: LastBatch(one.batches[-1].last_offset if one.batches else -1, one.epoch)
        for producer_id, one in producers.items()
    }


class CleanedTransactions:
    """Follows the transactions of a log from batch to batch. `aborted`: those that have records in what is read.
    `on_kept`: called with each aborted transaction whose marker stays."""

    def __init__(self, aborted: Sequence[AbortedRange]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, AbortedRange] = {}
        self._with_batches: set[int] = set()
        """Producers of whose open transaction, aborted or not, a batch was read."""
        self.on_kept: Callable[[AbortedRange], None] = lambda _entry: None

    def data(self, header: BatchHeader) -> bool:
        """A batch of records. Whether it is of an aborted transaction."""
        self._up_to(header.last_offset)
        if not header.is_transactional:
            return False
        self._with_batches.add(header.producer_id)
        return header.producer_id in self._aborted

    def marker(self, header: BatchHeader, payload: bytes) -> bool:
        """A control batch. Whether nothing is left of what it ends."""
        self._up_to(header.last_offset)
        if not header.record_count:
            return True
        marker = marker_of(header, payload) if header.size_bytes <= MARKER_BYTES_MAX else None
        if marker is None:
            return False
        entry = None if marker.commits else self._aborted.pop(header.producer_id, None)
        if header.producer_id not in self._with_batches:
            return True
        self._with_batches.discard(header.producer_id)
        if entry is not None:
            self.on_kept(entry)
        return False

    def _up_to(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            entry = self._coming.pop()
            self._aborted.setdefault(entry.producer_id, entry)


def records_of(header: BatchHeader, payload: memoryview, limit: int) -> bytes:
    """The batch's records, decompressed; at most `limit` bytes. Raises CorruptBatch."""
    if not header.codec:
        return bytes(payload)
    try:
        return bytes(_at_once(decompressing(header.codec, payload, limit)))
    except BadCompression as error:
        raise CorruptBatch(0, str(error)) from None


def _at_once(steps: Generator[int, None, memoryview]) -> memoryview:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            data: memoryview = end.value
            return data


def note_keys(
    header: BatchHeader,
    batch: memoryview,
    offsets: OffsetMap,
    transactions: CleanedTransactions,
    first_offset: int,
    limit: int,
) -> bool:
    """Put the batch's keys into the map. False if they are too many: some are in it, but its `latest_offset` is below
    the batch. Raises CorruptBatch."""
    if header.is_control:
        transactions.marker(header, bytes(batch[HEADER_BYTES:]))
    elif not transactions.data(header) and header.record_count:
        columns = record_columns(records_of(header, batch[HEADER_BYTES:], limit), header.record_count)
        keys, deltas = columns.keys, columns.offset_deltas
        if header.base_offset < first_offset:
            dirty = [place for place, delta in enumerate(deltas) if header.base_offset + delta >= first_offset]
            keys, deltas = [keys[place] for place in dirty], [deltas[place] for place in dirty]
        if not offsets.put_all(keys, deltas, header.base_offset):
            return False
        if columns.without_value:
            offsets.note_without_value(header.base_offset)
    if header.last_offset >= first_offset:
        offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
    return True


class BatchFilter(msgspec.Struct, frozen=True):
    """The rules of one cleaning. `limit`: bytes of a batch's records when decompressed. `first_dirty`: the map has all
    records from here on, up to its latest offset."""

    offsets: OffsetMap
    transactions: CleanedTransactions
    now_ms: int
    delete_retention_ms: int
    limit: int
    first_dirty: int = LONG_MAX

    def filtered(
        self, header: BatchHeader, batch: memoryview, last: LastBatch | None, keep_end: bool = False
    ) -> Kept | None:
        """What is left of the batch; None if nothing is.

        `last`: the last batch of its producer, if that is known to the log. `keep_end`: it is the last batch of its
        segment, whose end must stay known. Raises CorruptBatch.
        """
        if header.is_control:
            return self._control(header, batch, last, keep_end)
        stays = keep_end or (last is not None and last.last_offset == header.last_offset)
        if self.transactions.data(header):
            return emptied(header) if stays else None
        whole = self._without_decoding(header)
        if whole is not None:
            return (batch, header) if whole else emptied(header) if stays else None
        payload = records_of(header, batch[HEADER_BYTES:], self.limit)
        columns = record_columns(payload, header.record_count)
        kept = self._kept(header, columns)
        if not kept:
            return emptied(header) if stays else None
        starts = header.delete_horizon_ms is None and self._begins_horizon(header, columns, kept)
        if len(kept) == header.record_count and not starts:
            return batch, header
        if starts:
            spans = record_spans(payload, header.record_count)
            return self._with_horizon(header, payload, [spans[place] for place in kept])
        ends = columns.starts
        changes = {"record_count": len(kept)}
        if not header.is_log_append_time:
            latest = max(columns.timestamp_deltas[place] for place in kept)
            changes["max_timestamp_ms"] = max(NO_TIMESTAMP, header.base_timestamp_ms + latest)
        records = b"".join([payload[ends[place] : ends[place + 1]] for place in kept])
        return rewritten(header, compressed(header.codec, records), changes)

    def _without_decoding(self, header: BatchHeader) -> bool | None:
        """Whether all of the batch's records are kept, True, or none, False, as far as the map alone says so. It has
        seen every record of the batch, and knows which offsets are the last of their keys."""
        offsets = self.offsets
        if not self.first_dirty <= header.base_offset or header.last_offset > offsets.latest_offset:
            return None
        latest = offsets.latest_between(header.base_offset, header.last_offset)
        if latest == 0:
            return False
        if latest != header.record_count or offsets.without_value is None:
            return None
        return None if header.base_offset in offsets.without_value else True

    def _kept(self, header: BatchHeader, columns: RecordColumns) -> list[int]:
        """The places of the records that stay."""
        base, above = header.base_offset, self.offsets.latest_offset - header.base_offset
        latest = self.offsets.get_all(columns.keys)
        kept = [
            place for place, delta in enumerate(columns.offset_deltas) if delta > above or base + delta >= latest[place]
        ]
        if not columns.without_value or not self._is_over(header):
            return kept
        over = frozenset(columns.without_value)
        return [place for place in kept if place not in over or columns.offset_deltas[place] > above]

    def _begins_horizon(self, header: BatchHeader, columns: RecordColumns, kept: Sequence[int]) -> bool:
        if not columns.without_value:
            return False
        staying, latest = frozenset(kept), self.offsets.latest_offset - header.base_offset
        return any(place in staying and columns.offset_deltas[place] <= latest for place in columns.without_value)

    def _is_over(self, header: BatchHeader) -> bool:
        horizon_ms = header.delete_horizon_ms
        return horizon_ms is not None and horizon_ms <= self.now_ms

    def _control(self, header: BatchHeader, batch: memoryview, last: LastBatch | None, keep_end: bool) -> Kept | None:
        payload = bytes(batch[HEADER_BYTES:])
        is_spent = self.transactions.marker(header, payload)
        only_known = last is not None and last.last_offset < 0 and last.epoch == header.producer_epoch
        if is_spent and (self._is_over(header) or not header.record_count):
            return emptied(header) if keep_end or only_known else None
        if not is_spent or header.delete_horizon_ms is not None:
            return batch, header
        return self._with_horizon(header, payload, record_spans(payload, header.record_count))

    def _with_horizon(
        self, header: BatchHeader, payload: bytes, kept: Sequence[RecordSpan]
    ) -> tuple[bytes, BatchHeader]:
        """The batch with these records alone, which may go once its base timestamp, the horizon, is over."""
        times = [header.base_timestamp_ms + span.timestamp_delta for span in kept]
        horizon_ms = self.now_ms + self.delete_retention_ms
        changes = {
            "record_count": len(kept),
            "base_timestamp_ms": horizon_ms,
            "attributes": with_delete_horizon(header.attributes),
        }
        if not header.is_log_append_time:
            changes["max_timestamp_ms"] = max(NO_TIMESTAMP, *times)
        records = b"".join(
            with_timestamp_delta(payload, span, time_ms - horizon_ms) for span, time_ms in zip(kept, times, strict=True)
        )
        return rewritten(header, compressed(header.codec, records), changes)
