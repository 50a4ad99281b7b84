"""A batch's records out of their compression, for look-ups by timestamp. Pure.

A leader has checked what producers sent, but the log may hold batches from one that did not: what is damaged, or grows
beyond a limit, is left compressed, and the batch counts as a whole (docs/storage.md).
"""

from __future__ import annotations

from controller.storage.compression import GZIP, ZSTD, BadCompression, decompressing
from controller.storage.log_validator import done

DECOMPRESSED_BYTES_MAX = 4 << 20
"""A batch of Kafka's default size that holds text rarely comes near it; looking through so many of the smallest records
takes a second or so."""


def decompress(codec: int, payload: bytes) -> bytes | None:
    """None: by no codec that is known, or damaged, or too large."""
    if not GZIP <= codec <= ZSTD:
        return None
    try:
        return bytes(done(decompressing(codec, memoryview(payload), DECOMPRESSED_BYTES_MAX)))
    except BadCompression:
        return None
