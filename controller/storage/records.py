"""The records inside a batch: a small writer and reader for tests, tools and look-ups by timestamp.

Pure. An append never comes here. A compressed batch's records are read from what the caller decompressed.
Layout: Kafka's DefaultRecord; integers are zigzag varints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from controller.quick import quick
from controller.storage.batches import CRC_FROM, HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, Bytes
from controller.storage.errors import CorruptBatch

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_APPEND_TIME = 0x08
_CRC_AT, _LAST_OFFSET_DELTA_AT, _RECORD_COUNT_AT = 17, 23, 57


@dataclass(frozen=True, slots=True)
class Record:
    """`offset` and `timestamp_ms` are absolute. A header's value may be None, its key not."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


quick(Record)


_ONE_BYTE = tuple(bytes((raw,)) for raw in range(0x80))


def zigzag(value: int) -> bytes:
    """A signed integer of up to 64 bits as Kafka's varint."""
    raw = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        return _ONE_BYTE[raw]
    out = bytearray()
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


class _Reader:
    """Reads from `data`; CorruptBatch where it ends too early."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.position = 0

    def fail(self, reason: str) -> CorruptBatch:
        return CorruptBatch(0, f"record byte {self.position}: {reason}")

    def varint(self) -> int:
        raw = shift = 0
        while True:
            if self.position >= len(self.data):
                raise self.fail("the records end within a number")
            byte = self.data[self.position]
            self.position += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
            if shift > 63:
                raise self.fail("a number of more than ten bytes")

    def take(self, length: int) -> bytes:
        if length < 0 or self.position + length > len(self.data):
            raise self.fail(f"{length} bytes wanted, {len(self.data) - self.position} left")
        self.position += length
        return bytes(self.data[self.position - length : self.position])

    def field(self) -> bytes | None:
        length = self.varint()
        return None if length == -1 else self.take(length)


def _encode_field(value: bytes | None) -> bytes:
    return zigzag(-1) if value is None else zigzag(len(value)) + value


def encode_record(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    body = b"\x00" + zigzag(record.timestamp_ms - base_timestamp_ms) + zigzag(record.offset - base_offset)
    body += _encode_field(record.key) + _encode_field(record.value) + zigzag(len(record.headers))
    for key, value in record.headers:
        body += _encode_field(key.encode()) + _encode_field(value)
    return zigzag(len(body)) + body


def encode_batch(
    records: Sequence[Record],
    *,
    leader_epoch: int = -1,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    payload: bytes | None = None,
) -> bytes:
    """One batch of one or more records with ascending offsets. `payload`: the records as compressed by the codec that
    `attributes` names. ValueError without a record."""
    if not records:
        raise ValueError("no records: expected one or more")
    first, last = records[0], records[-1]
    if payload is None:
        payload = b"".join(encode_record(record, first.offset, first.timestamp_ms) for record in records)
    batch = bytearray(HEADER_BYTES) + payload
    _HEADER.pack_into(
        batch,
        0,
        first.offset,
        len(batch) - LENGTH_END,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last.offset - first.offset,
        first.timestamp_ms,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    struct.pack_into(">I", batch, 17, crc32c(batch[CRC_FROM:]))
    return bytes(batch)


def resealed(batch: bytes, record_count: int) -> bytes:
    """The batch as one that claims so many records, with the CRC of that: for tests of what must be refused."""
    claiming = bytearray(batch)
    struct.pack_into(">i", claiming, _LAST_OFFSET_DELTA_AT, record_count - 1)
    struct.pack_into(">i", claiming, _RECORD_COUNT_AT, record_count)
    struct.pack_into(">I", claiming, _CRC_AT, crc32c(claiming[CRC_FROM:]))
    return bytes(claiming)


def record_times(header: BatchHeader, payload: Bytes) -> Iterator[tuple[int, int]]:
    """The (timestamp, offset) of each record of a batch, from its `payload` as for `decode_records`; what else is in a
    record is passed over, which makes this the way to look through many. Raises CorruptBatch."""
    size, position = len(payload), 0
    by_append = bool(header.attributes & _LOG_APPEND_TIME)
    for _ in range(header.record_count):
        length, position = _varint(payload, position)
        end = position + length
        if length < 1 or end > size:
            raise CorruptBatch(0, f"record byte {position}: a record of {length} bytes, {size - position} left")
        timestamp_delta, position = _varint(payload, position + 1)
        offset_delta, position = _varint(payload, position)
        if position > end:
            raise CorruptBatch(0, f"record byte {position}: beyond the record's end at {end}")
        position = end
        timestamp_ms = header.max_timestamp_ms if by_append else header.base_timestamp_ms + timestamp_delta
        yield timestamp_ms, header.base_offset + offset_delta


def _varint(data: Bytes, position: int) -> tuple[int, int]:
    """The number and where it ends. Most have one byte."""
    if position < len(data) and (byte := data[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    reader = _Reader(data)
    reader.position = position
    return reader.varint(), reader.position


def decode_records(header: BatchHeader, payload: Bytes) -> Iterator[Record]:
    """The records of a batch from its `payload`: what follows the header, decompressed. Raises CorruptBatch."""
    reader = _Reader(payload)
    for _ in range(header.record_count):
        length = reader.varint()
        end = reader.position + length
        if length < 0 or end > len(payload):
            raise reader.fail(f"a record of {length} bytes, {len(payload) - reader.position} left")
        reader.take(1)
        timestamp_ms = header.base_timestamp_ms + reader.varint()
        if header.attributes & _LOG_APPEND_TIME:
            timestamp_ms = header.max_timestamp_ms
        offset = header.base_offset + reader.varint()
        key, value = reader.field(), reader.field()
        record = Record(offset, timestamp_ms, key, value, tuple(_headers(reader)))
        if reader.position != end:
            raise reader.fail(f"the record ends at {reader.position}, its length says {end}")
        yield record
    if reader.position != len(payload):
        raise reader.fail(f"{len(payload) - reader.position} bytes after the last record")


def _headers(reader: _Reader) -> Iterator[tuple[str, bytes | None]]:
    count = reader.varint()
    if count < 0:
        raise reader.fail(f"{count} headers")
    for _ in range(count):
        key = reader.field()
        if key is None:
            raise reader.fail("a header without a key")
        try:
            name = key.decode()
        except UnicodeDecodeError as error:
            raise reader.fail(f"a header's key: {error}") from None
        yield name, reader.field()
