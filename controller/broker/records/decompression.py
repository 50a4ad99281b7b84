"""A batch's records out of their compression, for look-ups by timestamp: as far as Python itself can. Pure.

gzip alone. Of the other codecs a batch counts as a whole (docs/storage.md), which costs a reader at most a batch too
much. What a producer sent is not trusted: records that grow beyond a limit are left compressed.
"""

from __future__ import annotations

import zlib

GZIP = 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
DECOMPRESSED_BYTES_MAX = 4 << 20
"""A batch of Kafka's default size that holds text rarely comes near it; looking through so many of the smallest records
takes a second or so."""


def decompress(codec: int, payload: bytes) -> bytes | None:
    """None: by no way that is known here, or damaged, or too large."""
    if codec != GZIP:
        return None
    inflating = zlib.decompressobj(_GZIP_WINDOW)
    try:
        records = inflating.decompress(payload, DECOMPRESSED_BYTES_MAX)
    except zlib.error:
        return None
    return records if inflating.eof else None
