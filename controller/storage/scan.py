"""Batches read from a log file, a piece at a time: headers alone for a look-up, all bytes for a recovery.

No more than a piece is in memory, whatever a header says about a batch's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from controller.storage.batches import CRC_FROM, HEADER_BYTES, INT_MAX, BatchHeader, header_at
from controller.storage.disk import File
from controller.storage.errors import CorruptBatch

LOOK_BYTES = 4 * 1024
CHECK_BYTES = 1024 * 1024


def headers_between(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from `start`, which is where one begins, to `end`, where one ends.

    Raises CorruptBatch with the position in the file; CRCs are not looked at.
    """
    piece, piece_at = b"", start
    position = start
    while position < end:
        if position + HEADER_BYTES > piece_at + len(piece):
            piece, piece_at = file.read_at(position, min(LOOK_BYTES, end - position)), position
        try:
            header = header_at(piece, position - piece_at, end - position)
        except CorruptBatch as error:
            raise type(error)(position, error.reason) from None
        yield position, header
        position += header.size_bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a file stops being batches, and how."""

    position: int
    reason: str


def crc_holds(file: File, position: int, header: BatchHeader, piece_bytes: int = CHECK_BYTES) -> bool:
    crc = 0
    at, end = position + CRC_FROM, position + header.size_bytes
    while at < end:
        data = file.read_at(at, min(piece_bytes, end - at))
        if not data:
            return False
        crc = crc32c(data, crc)
        at += len(data)
    return crc == header.crc


def too_far(header: BatchHeader, base_offset: int) -> str:
    """No segment is given such a batch: the base offset, which no CRC covers, is another."""
    return f"base offset {header.base_offset}, too far from the segment's first, {base_offset}"


def check_batches(
    file: File, base_offset: int, accept: Callable[[int, BatchHeader], None], start: int = 0, end: int | None = None
) -> Damage | None:
    """Hands each sound batch from `start` to `accept`, with its position, up to the first that is not: one whose
    shape or CRC is wrong, or whose offsets do not go on upwards from `base_offset` or are too far from it for the
    segment's indexes. None when all are sound."""
    expected = base_offset
    try:
        for position, header in headers_between(file, start, file.size() if end is None else end):
            if header.base_offset < expected:
                return Damage(position, f"base offset {header.base_offset}, expected {expected} or more")
            if header.last_offset - base_offset > INT_MAX:
                return Damage(position, too_far(header, base_offset))
            if not crc_holds(file, position, header):
                return Damage(position, "CRC-32C of the batch is not the header's")
            accept(position, header)
            expected = header.next_offset
    except CorruptBatch as error:
        return Damage(error.position, error.reason)
    return None
