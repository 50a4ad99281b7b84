"""What a leader asks of the batches that a producer sends, beyond that they are whole.

Pure. Kafka's LogValidator, as far as headers tell: records are not decoded, so that a batch whose records are fewer
than its header says is found by its readers and not here.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.storage.batches import NO_TIMESTAMP, BatchHeader
from controller.storage.errors import BadBatches, BatchesTooLarge, BatchTooLarge, InvalidBatch, InvalidTimestamp
from controller.storage.settings import LogSettings


def check_from_client(headers: Sequence[BatchHeader], size_bytes: int, settings: LogSettings, now_ms: int) -> None:
    """Raises the BadBatches that says what is wrong with the first batch that is not as it must be."""
    if not headers:
        raise BadBatches(0, "no batch")
    position = 0
    for header in headers:
        _check(position, header, settings, now_ms)
        position += header.size_bytes
    if size_bytes > settings.segment_bytes:
        raise BatchesTooLarge(0, f"{size_bytes} bytes, a segment has {settings.segment_bytes} at most")


def _check(position: int, header: BatchHeader, settings: LogSettings, now_ms: int) -> None:
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidBatch(
            position, f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.is_control or header.is_transactional:
        raise InvalidBatch(position, "a control or transactional batch: there are no transactions here")
    if header.codec > 4:
        raise InvalidBatch(position, f"compression codec {header.codec}: expected 0 to 4")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidBatch(
            position,
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )
    if header.size_bytes > settings.max_message_bytes:
        raise BatchTooLarge(position, f"{header.size_bytes} bytes, max.message.bytes is {settings.max_message_bytes}")
    if not settings.log_append_time and header.max_timestamp_ms != NO_TIMESTAMP:
        difference_ms = abs(header.max_timestamp_ms - now_ms)
        if difference_ms > settings.timestamp_difference_max_ms:
            raise InvalidTimestamp(position, f"timestamp {header.max_timestamp_ms} is {difference_ms} ms from now")
