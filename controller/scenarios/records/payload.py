"""The payload of a workload's records: the producer, its sequence number, the key and the time of sending.

So a record that is read identifies the operation that it came from, whatever its offset.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_LAYOUT = struct.Struct(">4sIIQd")
_MARK = b"cmlr"

LEAST_BYTES = _LAYOUT.size


class Payload(NamedTuple):
    """`sent_at_ms` on the clock of the scenario. A named tuple: one is made for each record read."""

    producer: int
    key: int
    sequence: int
    sent_at_ms: float


class ForeignRecord(ValueError):
    """A value that no producer of the workload wrote; the message shows it."""


def encode_payload(payload: Payload, size_bytes: int) -> bytes:
    """The value, filled up to `size_bytes`, which are at least LEAST_BYTES."""
    return _LAYOUT.pack(_MARK, payload.producer, payload.key, payload.sequence, payload.sent_at_ms).ljust(
        size_bytes, b"."
    )


def decode_payload(value: bytes | None) -> Payload:
    """Raises ForeignRecord."""
    if value is None or len(value) < LEAST_BYTES or not value.startswith(_MARK):
        raise ForeignRecord(f"not a value of the workload: {value[:80] if value is not None else None!r}")
    _, producer, key, sequence, sent_at_ms = _LAYOUT.unpack_from(value)
    return Payload(producer, key, sequence, sent_at_ms)


def key_bytes(key: int) -> bytes:
    return b"%d" % key
