"""What a leader asks of the batches that a producer sends, beyond that they are whole.

Pure. Kafka's LogValidator, as far as headers tell; `record_checks.py` looks at the records.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

from controller.storage.batches import BatchHeader, Bytes, headers_of
from controller.storage.errors import (
    BadBatches,
    BatchesTooLarge,
    BatchTooLarge,
    InvalidBatch,
    InvalidTimestamp,
    UnsupportedCompression,
)
from controller.storage.record_checks import checking_records
from controller.storage.settings import LogSettings


class Checked(NamedTuple):
    """Batches that may be appended: their headers, and the largest timestamp of each one's records."""

    batches: Bytes
    headers: Sequence[BatchHeader]
    latest_ms: Sequence[int]


T = TypeVar("T")


def done(work: Generator[int, None, T]) -> T:
    """Do all of the work here and now; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as over:
            result: T = over.value
            return result


def checking(batches: Bytes, settings: LogSettings, now_ms: int) -> Generator[int, None, Checked]:
    """Check batches that a client sent, with all their records.

    A generator: before each piece of work it yields an estimate of the microseconds that the piece takes. Another
    thread may drive it, as long as `batches` stays as it is.

    Raises:
        BadBatches: CorruptBatch, InvalidBatch, UnsupportedCompression, InvalidTimestamp, BatchTooLarge or
            BatchesTooLarge, for the first batch that is not as it must be.
    """
    headers = headers_of(batches)
    _check_headers(headers, len(batches), settings)
    latest: list[int] = []
    position = 0
    view = memoryview(batches)
    for header in headers:
        batch = view[position : position + header.size_bytes]
        latest.append((yield from checking_records(header, batch, position, settings, now_ms)))
        position += header.size_bytes
    return Checked(batches, headers, latest)


def _check_headers(headers: Sequence[BatchHeader], size_bytes: int, settings: LogSettings) -> None:
    if not headers:
        raise BadBatches(0, "no batch")
    position = 0
    for header in headers:
        _check(position, header, settings)
        position += header.size_bytes
    if size_bytes > settings.segment_bytes:
        raise BatchesTooLarge(0, f"{size_bytes} bytes, a segment has {settings.segment_bytes} at most")


def _check(position: int, header: BatchHeader, settings: LogSettings) -> None:
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidBatch(
            position, f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.is_control or header.is_transactional:
        raise InvalidBatch(position, "a control or transactional batch: there are no transactions here")
    if header.codec > 4:
        raise UnsupportedCompression(position, f"compression codec {header.codec}: expected 0 to 4")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidBatch(
            position,
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )
    if header.size_bytes > settings.max_message_bytes:
        raise BatchTooLarge(position, f"{header.size_bytes} bytes, max.message.bytes is {settings.max_message_bytes}")
    if header.is_log_append_time:
        raise InvalidTimestamp(position, "timestamp type LogAppendTime, which is a broker's to set")
