"""The compression of record batches: gzip, snappy, lz4 and zstd, with a bound on what comes out.

Pure. A producer's bytes are not trusted: `decompressing` never holds more than `limit` bytes of output, whatever the
input announces. It is a generator, so that its caller can move the rest of the work off the event loop: before each
piece of work it yields an estimate of the microseconds that the piece takes. The codecs release the GIL.
Formats: Kafka's CompressionType, KafkaLZ4BlockInputStream and snappy-java's SnappyInputStream.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator
from typing import TypeAlias

import cramjam
import numpy as np

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

Steps: TypeAlias = Generator[int, None, memoryview]

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_FIRST_PIECE, _PIECE = 64 * 1024, 1024 * 1024
_GZIP_BYTES_A_US = 200
_BYTES_A_US = 400
_GUESSED_RATIO = 8
"""How often the output of lz4 or zstd fits the first, small buffer: it mostly does."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEAD_BYTES = 16
_BIG_ENDIAN_INT = struct.Struct(">i")
_LZ4_BLOCK = struct.Struct("<I")
_LZ4_MAGIC = 0x184D2204
_LZ4_UNCOMPRESSED = 0x80000000
_LZ4_BLOCKS_A_STEP = 2_000
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


class BadCompression(Exception):
    """The bytes are not what their codec makes."""


class TooMuchOutput(BadCompression):
    """The output has more bytes than the limit."""


def decompressing(codec: int, payload: memoryview, limit: int) -> Steps:
    """Return what `payload` decompresses to. `codec` is 1 to 4, as in a batch's attributes.

    Raises:
        TooMuchOutput: it has more than `limit` bytes.
        BadCompression: the payload is damaged, or something follows its compressed stream.
    """
    match codec:
        case 1:
            return _gzip(payload, limit)
        case 2:
            return _snappy(payload, limit)
        case 3:
            return _lz4(payload, limit)
        case 4:
            return _zstd(payload, limit)
    raise ValueError(f"codec must be 1 to 4, got {codec}")


def _too_much(limit: int) -> TooMuchOutput:
    return TooMuchOutput(f"more than {limit} bytes when decompressed")


def _gzip(payload: memoryview, limit: int) -> Steps:
    inflating = zlib.decompressobj(_GZIP_WINDOW)
    out = bytearray()
    rest: bytes | memoryview = payload
    piece_bytes = _FIRST_PIECE
    while not inflating.eof:
        piece_bytes = min(piece_bytes, limit + 1 - len(out))
        yield piece_bytes // _GZIP_BYTES_A_US
        try:
            piece = inflating.decompress(rest, piece_bytes)
        except zlib.error as error:
            raise BadCompression(f"gzip: {error}") from None
        rest = inflating.unconsumed_tail
        out += piece
        if len(out) > limit:
            raise _too_much(limit)
        if not piece and not rest and not inflating.eof:
            raise BadCompression("gzip: the stream ends too early")
        piece_bytes = _PIECE
    if inflating.unused_data:
        raise BadCompression(f"gzip: {len(inflating.unused_data)} bytes after the stream")
    return memoryview(out)


def _snappy(payload: memoryview, limit: int) -> Steps:
    blocks = [payload]
    if payload[: len(_XERIAL)] == _XERIAL:
        if payload[len(_XERIAL) : _XERIAL_HEAD_BYTES] != _XERIAL_VERSIONS:
            raise BadCompression("snappy: a stream of another version than 1")
        blocks = []
        at = _XERIAL_HEAD_BYTES
        while at < len(payload):
            if at + 4 > len(payload):
                raise BadCompression("snappy: the stream ends within a block's length")
            (length,) = _BIG_ENDIAN_INT.unpack_from(payload, at)
            at += 4
            if length <= 0 or at + length > len(payload):
                raise BadCompression(f"snappy: a block of {length} bytes, {len(payload) - at} are left")
            blocks.append(payload[at : at + length])
            at += length
            if len(blocks) % _LZ4_BLOCKS_A_STEP == 0:
                yield 1_000
    total = 0
    out: list[memoryview] = []
    for block in blocks:
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            total += size
            if total > limit:
                raise _too_much(limit)
            yield 1 + size // _BYTES_A_US
            piece = np.empty(size, np.uint8).data
            if size != cramjam.snappy.decompress_raw_into(block, piece):
                raise BadCompression("snappy: a block has another size than it says")
        except cramjam.DecompressionError as error:
            raise BadCompression(f"snappy: {error}") from None
        out.append(piece)
    return out[0] if len(out) == 1 else memoryview(b"".join(out))


def _lz4(payload: memoryview, limit: int) -> Steps:
    yield from _lz4_shape(payload)
    return (yield from _into_buffer("lz4", cramjam.lz4.decompress_into, payload, limit))


def _lz4_shape(payload: memoryview) -> Generator[int, None, None]:
    """One frame of independent blocks that fills the payload: Kafka's clients read no other."""
    size = len(payload)
    if size < 7 or _LZ4_BLOCK.unpack_from(payload)[0] != _LZ4_MAGIC:
        raise BadCompression("lz4: no frame")
    flags = payload[4]
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        raise BadCompression(f"lz4: frame flags {flags:#04x}, expected version 1 with independent blocks")
    at = 7 + (8 if flags & 0x08 else 0)
    checksum_bytes = 4 if flags & 0x10 else 0
    count = 0
    while True:
        if at + 4 > size:
            raise BadCompression("lz4: the frame ends too early")
        (length,) = _LZ4_BLOCK.unpack_from(payload, at)
        at += 4
        if length == 0:
            break
        at += (length & ~_LZ4_UNCOMPRESSED) + checksum_bytes
        count += 1
        if count % _LZ4_BLOCKS_A_STEP == 0:
            yield 1_000
    at += 4 if flags & 0x04 else 0
    if at != size:
        raise BadCompression(f"lz4: the frame has {at} bytes, the payload {size}")


def _zstd(payload: memoryview, limit: int) -> Steps:
    if len(payload) >= 4 and _LZ4_BLOCK.unpack_from(payload)[0] in _ZSTD_SKIPPABLE:
        raise BadCompression("zstd: the payload begins with a frame that holds no data")
    return (yield from _into_buffer("zstd", cramjam.zstd.decompress_into, payload, limit))


def _into_buffer(name: str, into: Callable[[memoryview, memoryview], int], payload: memoryview, limit: int) -> Steps:
    """In two attempts: into a small buffer, and then into one of `limit` bytes, whose pages are only taken as they are
    written."""
    guessed = max(_FIRST_PIECE, len(payload) * _GUESSED_RATIO)
    for size in (min(guessed, limit), limit):
        yield size // _BYTES_A_US
        out = np.empty(size, np.uint8).data
        try:
            return out[: into(payload, out)]
        except cramjam.DecompressionError as error:
            if _FULL not in str(error):
                raise BadCompression(f"{name}: {error}") from None
    raise _too_much(limit)


_FULL = "failed to write whole buffer"


def compressed(codec: int, data: bytes) -> bytes:
    """What Kafka's clients decompress to `data`; `codec` as in a batch's attributes, 0 for none."""
    match codec:
        case 0:
            return data
        case 1:
            deflating = zlib.compressobj(wbits=_GZIP_WINDOW)
            return deflating.compress(data) + deflating.flush()
        case 2:
            return b"".join(_snappy_blocks(data))
        case 3:
            return b"".join(_lz4_blocks(data))
        case 4:
            return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"codec must be 0 to 4, got {codec}")


_SNAPPY_BLOCK_BYTES = 32 * 1024
"""As snappy-java's streams."""


def _snappy_blocks(data: bytes) -> Generator[bytes, None, None]:
    yield _XERIAL + _XERIAL_VERSIONS
    for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK_BYTES]))
        yield _BIG_ENDIAN_INT.pack(len(block)) + block


_LZ4_HEAD = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Version 1, independent blocks of at most 64 KiB, no checksums but the head's own."""
_LZ4_BLOCK_BYTES = 64 * 1024


def _lz4_blocks(data: bytes) -> Generator[bytes, None, None]:
    """A frame as KafkaLZ4BlockOutputStream writes it; the codec's own frames have blocks that depend on one another."""
    yield _LZ4_HEAD
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            yield _LZ4_BLOCK.pack(len(block)) + block
        else:
            yield _LZ4_BLOCK.pack(len(plain) | _LZ4_UNCOMPRESSED) + plain
    yield _LZ4_BLOCK.pack(0)
