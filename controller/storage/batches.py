"""Record batches, version 2, as they come over the wire and lie on disk: header, CRC-32C, offsets put in place.

Pure: bytes in, values out. Records are never decoded here; the 61 bytes before them say all that a broker needs.
A base offset and a partition leader epoch stand before what the CRC covers, so a leader writes both without touching
the rest. Layout: Kafka's DefaultRecordBatch.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

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
