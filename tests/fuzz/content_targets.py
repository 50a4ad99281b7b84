"""Record batches whose length, CRC and compression are right, and whose contents are not: counts, offset deltas,
lengths, headers, compressed garbage and bombs, appended to a log as a producer's.

What is appended must be read by kafka-python and aiokafka, with as many records as the log's end has moved by; and the
two ways in which records are checked, one by one and in columns, must agree.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from typing import Any

import cramjam
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from crc32c import crc32c
from kafka.record import MemoryRecords as KafkaRecords

from controller.machine.disk import MemoryDisk
from controller.storage import BadBatches, BatchHeader, LogSettings, PartitionLog, headers_of, log_validator
from controller.storage.batches import HEADER_BYTES, Record, encode_batch
from controller.storage.log_validator import Checked, checking, done
from tests.fuzz.crash import Crash
from tests.storage.batches import START_MS, Clock

LIMIT = 1 << 20
"""Of a batch, and of its records when they are decompressed."""
LOG_LIFE = 2_000
HONEST_COUNTS, HONEST_CODEC, BOMB = 1, 2, 0x80
"""Bits of an input's second byte: the header's counts agree, its codec is that of the records, zeros follow them."""


def lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def java_snappy(data: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01" + len(block).to_bytes(4, "big") + block


CODECS: Sequence[tuple[int, Callable[[bytes], bytes]]] = (
    (0, bytes),
    (1, lambda data: gzip.compress(data, 1, mtime=0)),
    (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    (2, java_snappy),
    (3, lz4),
    (4, lambda data: bytes(cramjam.zstd.compress(data, level=1))),
    (1, bytes),
    (2, bytes),
    (3, bytes),
    (4, bytes),
)
"""The last four are garbage by their codec."""


def sound_contents() -> list[bytes]:
    """The codec's place in CODECS, the bits, and an uncompressed batch."""
    headers = (("name", b"x"), ("none", None))
    batches = [
        encode_batch([Record(0, START_MS, None, b"value")]),
        encode_batch([Record(n, START_MS + n, b"key", b"value", headers) for n in range(3)]),
        encode_batch([Record(n, START_MS, None, bytes(100)) for n in range(80)]),
        encode_batch([Record(n, START_MS + n * 9, b"k" * (n % 7), bytes(n % 5)) for n in range(90)]),
    ]
    last = encode_batch(
        [Record(n, START_MS, None, b"v", headers[: n % 3]) for n in range(50)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    return [bytes((codec, 3)) + one for codec in range(6) for one in (*batches, last)]


def batch_of(data: bytes) -> bytes:
    """The batch that an input stands for."""
    codec, compress = CODECS[data[0] % len(CODECS)]
    bits = data[1]
    head, records = bytearray(data[2 : 2 + HEADER_BYTES]), data[2 + HEADER_BYTES :]
    if bits & BOMB:
        records += bytes(LIMIT + 1 - len(records) % 2)
    payload = compress(records)
    if bits & HONEST_COUNTS:
        (count,) = struct.unpack_from(">i", head, 57)
        struct.pack_into(">i", head, 23, max(count - 1, 0))
    if bits & HONEST_CODEC:
        head[22] = codec
    head[16] = 2
    struct.pack_into(">i", head, 8, len(head) + len(payload) - 12)
    struct.pack_into(">q", head, 0, 0)
    whole = head + payload
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return bytes(whole)


class ContentTarget:
    def __init__(self) -> None:
        self._fed = 0
        self._settings = LogSettings(max_message_bytes=LIMIT, decompressed_bytes_max=LIMIT)
        self._log = self._made()

    def _made(self) -> PartitionLog:
        disk = MemoryDisk()
        disk.make_directory("t-0")
        return PartitionLog(disk, "t-0", self._settings, Clock())

    def feed(self, data: bytes) -> str:
        if len(data) < 2 + HEADER_BYTES:
            return "too short"
        self._fed += 1
        if self._fed % LOG_LIFE == 0:
            self._log = self._made()
        log, batch = self._log, batch_of(data)
        checked = self._both_ways(batch)
        if checked is None:
            return "refused"
        end = log.log_end_offset
        try:
            appended = log.append_checked(checked, 0)
        except BadBatches:
            return "out of sequence"
        if appended.duplicate:
            return "taken"
        (header,) = checked.headers
        if log.log_end_offset != end + header.record_count:
            raise Crash(f"{header.record_count} records, and the end moved by {log.log_end_offset - end}")
        self._read_by_others(log.read(end, LIMIT).read(), end, header)
        return "taken"

    def _both_ways(self, batch: bytes) -> Checked | None:
        """None: refused. Crash unless both ways of looking at records agree."""
        found: list[Checked | None] = []
        alone = log_validator.ALONE
        try:
            for log_validator.ALONE in (0, 1 << 30):
                try:
                    found.append(done(checking(batch, self._settings, START_MS)))
                except BadBatches:
                    found.append(None)
        finally:
            log_validator.ALONE = alone
        columns, one_by_one = found
        if columns != one_by_one:
            raise Crash(f"in columns {columns and columns[1:]}, one by one {one_by_one and one_by_one[1:]}")
        return columns

    def _read_by_others(self, stored: bytes, first: int, header: BatchHeader) -> None:
        expected = list(range(first, first + header.record_count))
        (kept,) = headers_of(stored)
        for reader in (KafkaRecords, AioRecords):
            records: Any = reader(stored)
            read = [one for batch in iter(records.next_batch, None) for one in batch]
            if [one.offset for one in read] != expected:
                raise Crash(f"{reader.__module__} reads {len(read)} of {header.record_count} records")
            if max(one.timestamp for one in read) != kept.max_timestamp_ms and kept.max_timestamp_ms != -1:
                raise Crash(f"{reader.__module__} reads another largest timestamp than {kept.max_timestamp_ms}")
