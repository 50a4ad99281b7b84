"""Batches to append, and a clock to append them by."""

from __future__ import annotations

import struct

from crc32c import crc32c

from controller.storage import PartitionLog
from controller.storage.batches import Record, encode_batch
from controller.storage.lookups import Decompress, TimestampOffset

START_MS = 1_700_000_000_000


class Clock:
    """Wall time that a test sets."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def batch(
    count: int = 1,
    *,
    base_offset: int = 0,
    value: bytes = b"value",
    timestamp_ms: int = START_MS,
    step_ms: int = 0,
    leader_epoch: int = -1,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
) -> bytes:
    """`producer`: id, epoch, base sequence. `step_ms` from one record's timestamp to the next's."""
    records = [Record(base_offset + n, timestamp_ms + n * step_ms, b"%d" % n, value) for n in range(count)]
    return encode_batch(
        records,
        leader_epoch=leader_epoch,
        attributes=attributes,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def remade(
    data: bytes,
    *,
    payload: bytes | None = None,
    attributes: int | None = None,
    count: int | None = None,
    last_delta: int | None = None,
    base_ms: int | None = None,
    max_ms: int | None = None,
) -> bytes:
    """The batch with other contents, whatever they are, and with the length and the CRC that it has then."""
    whole = bytearray(data if payload is None else data[:61] + payload)
    for at, code, value in (
        (21, ">h", attributes),
        (23, ">i", last_delta),
        (27, ">q", base_ms),
        (35, ">q", max_ms),
        (57, ">i", count),
        (8, ">i", len(whole) - 12),
    ):
        if value is not None:
            struct.pack_into(code, whole, at, value)
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return bytes(whole)


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, decompress: Decompress | None = None
) -> TimestampOffset | None:
    """The first record of this time or later; None if there is none."""
    batch = log.batch_for_timestamp(timestamp_ms)
    while batch is not None:
        found = batch.find(decompress)
        if found is not None:
            return found
        batch = log.batch_for_timestamp(timestamp_ms, batch.header.last_offset + 1)
    return None
