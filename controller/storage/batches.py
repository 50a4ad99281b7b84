"""Record batches, version 2, as they are sent and stored: header, CRC-32C, offset assignment, and the records inside.

Pure: bytes in, values out. An append never decodes records: the 61 bytes before them say all that a broker needs. Base
offset and partition leader epoch stand before what the CRC covers, so a leader writes both without touching the rest.
`encode_batch` and `decode_records` serve tests, tools and look-ups by timestamp; the caller decompresses records.
Layout: Kafka's DefaultRecordBatch and DefaultRecord; integers are zigzag varints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from controller.storage.errors import CorruptBatch, UnsupportedMagic

Bytes: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_END = 12
"""Where base offset and length end; a batch's length counts from here."""
CRC_FROM = 21
"""What the CRC covers begins with the attributes."""
MAGIC = 2
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
OFFSET_MAX = LONG_MAX - INT_MAX
"""The largest base offset of a batch or a segment, whose last offset must be a number of 64 bits too."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_MAX_TIMESTAMP = struct.Struct(">q")

_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class BatchHeader(NamedTuple):
    """A named tuple, not a dataclass: one is made for each batch of every append."""

    base_offset: int
    length: int
    """Bytes after this field."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Wraps from 2^31 - 1 to 0; NO_SEQUENCE without a producer id's sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & INT_MAX

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC_BITS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on a log cleaner may drop the records without a value and the markers of this batch; None until one
        has seen it. It is kept where the base timestamp was, to which the records' times are relative (KIP-534)."""
        return self.base_timestamp_ms if self.attributes & _DELETE_HORIZON else None


def header_at(data: Bytes, position: int, available: int) -> BatchHeader:
    """The header at `position` of `data`, when the batch may take `available` bytes from there.

    Raises CorruptBatch if it can't be a batch's beginning; the CRC is not looked at.
    """
    if available < HEADER_BYTES:
        raise CorruptBatch(position, f"{available} bytes, fewer than a batch's header")
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        kind = UnsupportedMagic if header.magic in (0, 1) else CorruptBatch
        raise kind(position, f"magic {header.magic}: expected {MAGIC}")
    size = header.length + LENGTH_END
    if size < HEADER_BYTES:
        raise CorruptBatch(position, f"length {header.length}, less than the header alone")
    if size > available:
        raise CorruptBatch(position, f"length {header.length}, but {available} bytes are left")
    if header.last_offset_delta < 0 or header.record_count < 0 or header.base_offset < 0:
        raise CorruptBatch(position, "a negative base offset, offset delta or count of records")
    if header.base_offset > OFFSET_MAX:
        raise CorruptBatch(position, f"base offset {header.base_offset}, beyond what offsets can be")
    return header


def headers_of(data: Bytes) -> list[BatchHeader]:
    """The headers of batches that fill `data` exactly, each checked against its CRC. Raises CorruptBatch."""
    view = memoryview(data)
    headers: list[BatchHeader] = []
    position, end = 0, len(view)
    while position < end:
        header = header_at(view, position, end - position)
        after = position + header.length + LENGTH_END
        crc = crc32c(view[position + CRC_FROM : after])
        if crc != header.crc:
            raise CorruptBatch(position, f"CRC-32C is {crc:#010x}, the header says {header.crc:#010x}")
        headers.append(header)
        position = after
    return headers


def whole_bytes(data: Bytes) -> int:
    """How many bytes of `data`, from its beginning, are whole batches: an answer to a fetch may end within one.

    Only lengths are looked at. Raises CorruptBatch for a length that no batch can have.
    """
    position, end = 0, len(data)
    while position + LENGTH_END <= end:
        _, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
        if length + LENGTH_END < HEADER_BYTES:
            raise CorruptBatch(position, f"length {length}, less than the header alone")
        if position + length + LENGTH_END > end:
            break
        position += length + LENGTH_END
    return position


def place(data: bytearray, position: int, header: BatchHeader, base_offset: int, leader_epoch: int) -> BatchHeader:
    """Writes the leader's offset and epoch into the batch at `position`; its header as it is then."""
    _OFFSET.pack_into(data, position, base_offset)
    _EPOCH.pack_into(data, position + LENGTH_END, leader_epoch)
    return BatchHeader._make((base_offset, header.length, leader_epoch, *header[3:]))


def stamp(data: bytearray, position: int, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Makes the batch one of LogAppendTime: every record's timestamp is `now_ms`. The CRC covers it, and is redone."""
    attributes = header.attributes | _LOG_APPEND_TIME
    struct.pack_into(">h", data, position + CRC_FROM, attributes)
    return set_max_timestamp(data, position, header._replace(attributes=attributes), now_ms)


def set_max_timestamp(data: bytearray, position: int, header: BatchHeader, max_timestamp_ms: int) -> BatchHeader:
    """Write the largest timestamp, and the CRC that it changes, into the batch at `position`; return its header."""
    _MAX_TIMESTAMP.pack_into(data, position + 35, max_timestamp_ms)
    with memoryview(data) as view:
        crc = crc32c(view[position + CRC_FROM : position + header.size_bytes])
    _CRC.pack_into(data, position + 17, crc)
    return header._replace(max_timestamp_ms=max_timestamp_ms, crc=crc)


_CRC_AT, _LAST_OFFSET_DELTA_AT, _RECORD_COUNT_AT = 17, 23, 57


class Record(msgspec.Struct, frozen=True, gc=False):
    """`offset` and `timestamp_ms` are absolute. A header's value may be None, its key not."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


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


class RecordSpan(NamedTuple):
    """Where a record lies in a batch's records: from `start` to `end`, its offset from `offset_at` on. `key` None: it
    has none. A tuple, since a log cleaner makes one for each record."""

    start: int
    timestamp_delta: int
    offset_at: int
    offset_delta: int
    key: bytes | None
    has_value: bool
    end: int


def record_spans(payload: bytes, count: int) -> list[RecordSpan]:
    """Where each of the `count` records of `payload` lies, as for `decode_records`. Raises CorruptBatch."""
    spans: list[RecordSpan] = []
    position, size = 0, len(payload)
    for _ in range(count):
        start = position
        length, position = _varint(payload, position)
        end = position + length
        if length < 1 or end > size:
            raise CorruptBatch(0, f"record byte {position}: a record of {length} bytes, {size - position} left")
        timestamp_delta, offset_at = _varint(payload, position + 1)
        offset_delta, position = _varint(payload, offset_at)
        key_bytes, position = _varint(payload, position)
        key = None if key_bytes < 0 else payload[position : position + key_bytes]
        value_bytes, position = _varint(payload, position + max(key_bytes, 0))
        if position + max(value_bytes, 0) > end:
            raise CorruptBatch(
                0, f"record byte {position}: a value of {value_bytes} bytes beyond the record's end {end}"
            )
        spans.append(RecordSpan(start, timestamp_delta, offset_at, offset_delta, key, value_bytes >= 0, end))
        position = end
    if position != size:
        raise CorruptBatch(0, f"record byte {position}: {size - position} bytes after the last record")
    return spans


class RecordColumns(NamedTuple):
    """The records of a batch, one entry of each list a record: lists are faster than an object a record. `starts` has
    the end of the last one besides. `without_value`: the places of those that have none."""

    starts: list[int]
    timestamp_deltas: list[int]
    offset_deltas: list[int]
    keys: list[bytes | None]
    without_value: list[int]


def record_columns(payload: bytes, count: int) -> RecordColumns:
    """What a log cleaner asks of each of the `count` records of `payload`, as for `decode_records`. Raises
    CorruptBatch.

    Numbers of one byte, and lengths of two, are decoded in place: a call takes longer than all the rest."""
    starts: list[int] = []
    times: list[int] = []
    offsets: list[int] = []
    keys: list[bytes | None] = []
    without_value: list[int] = []
    position, size = 0, len(payload)
    try:
        for number in range(count):
            starts.append(position)
            if (byte := payload[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            elif (second := payload[position + 1]) < 0x80:
                length, position = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1), position + 2
            else:
                length, position = _varint(payload, position)
            end = position + length
            if length < 1 or end > size:
                raise CorruptBatch(0, f"record byte {position}: a record of {length} bytes, {size - position} left")
            position += 1
            if (byte := payload[position]) < 0x80:
                times.append((byte >> 1) ^ -(byte & 1))
                position += 1
            else:
                delta, position = _varint(payload, position)
                times.append(delta)
            if (byte := payload[position]) < 0x80:
                offsets.append((byte >> 1) ^ -(byte & 1))
                position += 1
            elif (second := payload[position + 1]) < 0x80:
                offsets.append(((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1))
                position += 2
            else:
                delta, position = _varint(payload, position)
                offsets.append(delta)
            if (byte := payload[position]) < 0x80:
                key_bytes, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                key_bytes, position = _varint(payload, position)
            if key_bytes < 0:
                keys.append(None)
            else:
                keys.append(payload[position : position + key_bytes])
                position += key_bytes
            if (byte := payload[position]) < 0x80:
                value_bytes, position = (byte >> 1) ^ -(byte & 1), position + 1
            elif (second := payload[position + 1]) < 0x80:
                value_bytes, position = ((byte & 0x7F | second << 7) >> 1) ^ -(byte & 1), position + 2
            else:
                value_bytes, position = _varint(payload, position)
            if value_bytes < 0:
                without_value.append(number)
            elif position + value_bytes > end:
                raise CorruptBatch(
                    0, f"record byte {position}: a value of {value_bytes} bytes beyond the record's end {end}"
                )
            position = end
    except IndexError:
        raise CorruptBatch(0, f"record byte {size}: the records end within a number") from None
    if position != size:
        raise CorruptBatch(0, f"record byte {position}: {size - position} bytes after the last record")
    starts.append(position)
    return RecordColumns(starts, times, offsets, keys, without_value)


def with_timestamp_delta(payload: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """The record with another time, relative to its batch's."""
    after_length = span.offset_at - len(zigzag(span.timestamp_delta)) - 1
    body = payload[after_length : after_length + 1] + zigzag(timestamp_delta) + payload[span.offset_at : span.end]
    return zigzag(len(body)) + body


def rewritten(header: BatchHeader, payload: bytes, changes: Mapping[str, int]) -> tuple[bytes, BatchHeader]:
    """A stored batch with other records, as their codec left them in `payload`, and with these fields of its header
    (see BatchHeader) changed; base offset, last offset and producer stay."""
    length = HEADER_BYTES - LENGTH_END + len(payload)
    header = header._replace(length=length, crc=0, **changes)
    batch = bytearray(_HEADER.pack(*header)) + payload
    crc = crc32c(batch[CRC_FROM:])
    _CRC.pack_into(batch, _CRC_AT, crc)
    return bytes(batch), header._replace(crc=crc)


def emptied(header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """The batch without its records: what is left says up to which offset, and which sequence, its producer came."""
    kept = header.attributes & (_LOG_APPEND_TIME | _TRANSACTIONAL | _CONTROL)
    return rewritten(header, b"", {"attributes": kept, "base_timestamp_ms": NO_TIMESTAMP, "record_count": 0})


def with_delete_horizon(attributes: int) -> int:
    """A batch's attributes once its base timestamp is a delete horizon."""
    return attributes | _DELETE_HORIZON


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
