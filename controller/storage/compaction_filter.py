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
    NO_TIMESTAMP,
    BatchHeader,
    RecordSpan,
    emptied,
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
        base_offset = header.base_offset
        for span in record_spans(records_of(header, batch[HEADER_BYTES:], limit), header.record_count):
            offset = base_offset + span.offset_delta
            if span.key is None or offset < first_offset:
                continue
            if offsets.is_full:
                return False
            offsets.put(span.key, offset)
    if header.last_offset >= first_offset:
        offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
    return True


class BatchFilter(msgspec.Struct, frozen=True):
    """The rules of one cleaning. `limit`: bytes of a batch's records when decompressed."""

    offsets: OffsetMap
    transactions: CleanedTransactions
    now_ms: int
    delete_retention_ms: int
    limit: int

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
        payload = records_of(header, batch[HEADER_BYTES:], self.limit)
        spans = record_spans(payload, header.record_count)
        kept = [span for span in spans if self._keeps(header, span)]
        if not kept:
            return emptied(header) if stays else None
        starts = header.delete_horizon_ms is None and any(self._begins_horizon(header, span) for span in kept)
        if len(kept) == len(spans) and not starts:
            return batch, header
        return self._rewritten(header, payload, kept, starts)

    def _keeps(self, header: BatchHeader, span: RecordSpan) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset > self.offsets.latest_offset:
            return True
        if span.key is None or offset < self.offsets.get(span.key):
            return False
        return span.has_value or not self._is_over(header)

    def _begins_horizon(self, header: BatchHeader, span: RecordSpan) -> bool:
        return not span.has_value and header.base_offset + span.offset_delta <= self.offsets.latest_offset

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
        return self._rewritten(header, payload, record_spans(payload, header.record_count), starts_horizon=True)

    def _rewritten(
        self, header: BatchHeader, payload: bytes, kept: Sequence[RecordSpan], starts_horizon: bool
    ) -> tuple[bytes, BatchHeader]:
        times = [header.base_timestamp_ms + span.timestamp_delta for span in kept]
        changes = {"record_count": len(kept)}
        if not header.is_log_append_time:
            changes["max_timestamp_ms"] = max(NO_TIMESTAMP, *times)
        if starts_horizon:
            horizon_ms = self.now_ms + self.delete_retention_ms
            changes |= {"base_timestamp_ms": horizon_ms, "attributes": with_delete_horizon(header.attributes)}
            records = b"".join(
                with_timestamp_delta(payload, span, time_ms - horizon_ms)
                for span, time_ms in zip(kept, times, strict=True)
            )
        else:
            records = b"".join(payload[span.start : span.end] for span in kept)
        return rewritten(header, compressed(header.codec, records), changes)
