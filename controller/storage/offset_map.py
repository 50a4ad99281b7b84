"""The log cleaner's map from keys to the last offset of each, within a bound of memory.

Kafka's SkimpyOffsetMap keeps a 16-byte digest of each key in a table of fixed size, and takes equal digests for equal
keys. Here a key of less than 16 bytes stands for itself, and a longer one for its 16-byte BLAKE2b digest: the two can't
be the same, and no two keys are known, or can be made, that share a digest (of MD5, Kafka's, they can).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice

import numpy as np
import numpy.typing as npt

from controller.storage.settings import LONG_MAX

DIGEST_BYTES = 16
BYTES_A_KEY = 256
"""What a key takes, while the table grows, at most: Kafka's takes 24 bytes of its table."""

NOTED_MAX = 100_000
"""Batches that are remembered."""
SORTED_AT_ONCE = 20_000
"""Offsets: about a millisecond."""


class OffsetMap:
    """Holds at most `keys_max` keys. `latest_offset`: every record up to it is in the map; -1 if none is."""

    __slots__ = ("_latest", "_offsets", "keys_max", "latest_offset", "without_value")

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self._offsets: dict[bytes, int] = {}
        self._latest: npt.NDArray[np.int64] | None = None
        self.latest_offset = -1
        self.without_value: set[int] | None = set()
        """Base offsets of batches with a record without a value; None if they are too many to be remembered."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.keys_max

    def put(self, key: bytes, offset: int) -> None:
        """`offset` is not below one that was put before. The caller looks at `is_full` first."""
        self._offsets[_digest(key)] = offset

    def put_all(self, keys: Sequence[bytes | None], offsets: Sequence[int], base_offset: int) -> bool:
        """`put` each key with base_offset plus its offset; one that is None is passed over. False, and some may have
        been put, if there is no place for so many."""
        table = self._offsets
        if len(table) + len(keys) > self.keys_max:
            return self._put_some(keys, offsets, base_offset)
        for key, offset in zip(keys, offsets, strict=True):
            if key is not None:
                table[key if len(key) < DIGEST_BYTES else _digest(key)] = base_offset + offset
        return True

    def _put_some(self, keys: Sequence[bytes | None], offsets: Sequence[int], base_offset: int) -> bool:
        for key, offset in zip(keys, offsets, strict=True):
            if key is None:
                continue
            if self.is_full:
                return False
            self.put(key, base_offset + offset)
        return True

    def note_without_value(self, base_offset: int) -> None:
        if self.without_value is not None:
            self.without_value.add(base_offset)
            if len(self.without_value) > NOTED_MAX:
                self.without_value = None

    def latest_offsets(self) -> Iterator[None]:
        """Prepare `latest_between`, in steps that are short. The keys must not change any more."""
        found, values = np.empty(len(self._offsets), dtype=np.int64), iter(self._offsets.values())
        for start in range(0, len(found), SORTED_AT_ONCE):
            some = found[start : start + SORTED_AT_ONCE]
            some[:] = np.fromiter(islice(values, len(some)), dtype=np.int64, count=len(some))
            yield
        found.sort()
        self._latest = found

    def latest_between(self, first: int, last: int) -> int | None:
        """How many offsets from `first` to `last` are the last of their keys; None before `latest_offsets`."""
        if self._latest is None:
            return None
        below, up_to = np.searchsorted(self._latest, (first, last + 1))
        return int(up_to - below)

    def get_all(self, keys: Sequence[bytes | None]) -> list[int]:
        """`get` of each; LONG_MAX for None, which no record of a compacted log should have."""
        get = self._offsets.get
        return [LONG_MAX if key is None else get(key if len(key) < DIGEST_BYTES else _digest(key), -1) for key in keys]

    def get(self, key: bytes) -> int:
        """The last offset that was put for the key; -1 if it is not in the map."""
        return self._offsets.get(_digest(key), -1)


def keys_within(buffer_bytes: int, load_factor: float) -> int:
    """How many keys log.cleaner.dedupe.buffer.size holds with log.cleaner.io.buffer.load.factor; 1 at least."""
    return max(int(buffer_bytes * load_factor) // BYTES_A_KEY, 1)


def _digest(key: bytes) -> bytes:
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
