"""The log cleaner's map from keys to the last offset of each, within a bound of memory.

Kafka's SkimpyOffsetMap keeps a 16-byte digest of each key in a table of fixed size, and takes equal digests for equal
keys. Here a key of less than 16 bytes stands for itself, and a longer one for its 16-byte BLAKE2b digest: the two can't
be the same, and no two keys are known, or can be made, that share a digest (of MD5, Kafka's, they can).
"""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16
BYTES_A_KEY = 256
"""What a key takes, while the table grows, at most: Kafka's takes 24 bytes of its table."""


class OffsetMap:
    """Holds at most `keys_max` keys. `latest_offset`: every record up to it is in the map; -1 if none is."""

    __slots__ = ("_offsets", "keys_max", "latest_offset")

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.keys_max

    def put(self, key: bytes, offset: int) -> None:
        """`offset` is not below one that was put before. The caller looks at `is_full` first."""
        self._offsets[_digest(key)] = offset

    def get(self, key: bytes) -> int:
        """The last offset that was put for the key; -1 if it is not in the map."""
        return self._offsets.get(_digest(key), -1)


def keys_within(buffer_bytes: int, load_factor: float) -> int:
    """How many keys log.cleaner.dedupe.buffer.size holds with log.cleaner.io.buffer.load.factor; 1 at least."""
    return max(int(buffer_bytes * load_factor) // BYTES_A_KEY, 1)


def _digest(key: bytes) -> bytes:
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
