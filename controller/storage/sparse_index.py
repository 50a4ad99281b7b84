"""A segment's sparse index: Kafka's `.index` and `.timeindex`.

It holds a few ascending pairs of integers, from which a scan begins. It is kept in memory while its segment is written
or read, and written when the segment is flushed, rolled or closed. What is missing or damaged on disk is rebuilt from
the log, so no index file is trusted.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from controller.storage.disk import Disk, sync_file

OFFSET_ENTRY = struct.Struct(">ii")
"""The last offset of a batch, relative to the segment's base, and the batch's position."""
TIME_ENTRY = struct.Struct(">qi")
"""The largest timestamp so far, and the (relative) last offset of the batch that brought it."""


class UnsoundIndex(Exception):
    """The file is no index of this segment; it is to be built again."""


class SparseIndex:
    """Pairs (key, value), keys strictly ascending, values never descending. Look-ups are O(log n)."""

    __slots__ = ("_disk", "_entry", "_keys", "_path", "_saved", "_values")

    def __init__(self, disk: Disk, path: str, entry: struct.Struct) -> None:
        self._disk = disk
        self._path = path
        self._entry = entry
        self._keys = array("q")
        self._values = array("q")
        self._saved = -1
        """Entries that the file is known to hold; -1 when it must be written anew."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        return len(self._keys) * self._entry.size

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._keys, self._values, strict=True))

    def last(self) -> tuple[int, int] | None:
        return (self._keys[-1], self._values[-1]) if self._keys else None

    def append(self, key: int, value: int) -> None:
        assert not self._keys or (key > self._keys[-1] and value >= self._values[-1]), (self._path, key, value)
        self._keys.append(key)
        self._values.append(value)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The pair with the largest key that is not above `key`."""
        return self._pair(bisect_right(self._keys, key) - 1)

    def floor_value(self, value: int) -> tuple[int, int] | None:
        """The last pair whose value is not above `value`."""
        return self._pair(bisect_right(self._values, value) - 1)

    def _pair(self, place: int) -> tuple[int, int] | None:
        return (self._keys[place], self._values[place]) if place >= 0 else None

    def cut_keys(self, key: int) -> None:
        """Forgets pairs with this key and above."""
        self._keep(bisect_left(self._keys, key))

    def cut_values(self, value: int) -> None:
        """Forgets pairs with this value and above."""
        self._keep(bisect_left(self._values, value))

    def clear(self) -> None:
        self._keep(0)
        self._saved = -1

    def _keep(self, count: int) -> None:
        if count < len(self._keys):
            del self._keys[count:]
            del self._values[count:]
            self._saved = -1

    def load(self) -> None:
        """Reads the file. Raises UnsoundIndex if it is missing or is no index at all."""
        try:
            data = self._disk.read(self._path)
        except FileNotFoundError:
            raise UnsoundIndex(f"{self._path} is missing") from None
        if len(data) % self._entry.size:
            raise UnsoundIndex(f"{self._path} has {len(data)} bytes, no whole number of entries")
        keys, values = array("q"), array("q")
        for key, value in self._entry.iter_unpack(data):
            if key < 0 or value < 0 or (keys and (key <= keys[-1] or value < values[-1])):
                raise UnsoundIndex(
                    f"{self._path} entry {len(keys)}: ({key}, {value}) after ({keys[-1:]}, {values[-1:]})"
                )
            keys.append(key)
            values.append(value)
        self._keys, self._values, self._saved = keys, values, len(keys)

    def save(self) -> None:
        """Brings the file up to what is in memory."""
        count = len(self._keys)
        if self._saved == count:
            return
        known = max(self._saved, 0)
        pack = self._entry.pack
        data = b"".join(pack(key, value) for key, value in zip(self._keys[known:], self._values[known:], strict=True))
        if self._saved == -1:
            self._disk.replace(self._path, data, durable=False)
        else:
            file = self._disk.open(self._path)
            try:
                file.append(data)
            finally:
                file.close()
        self._saved = count

    def sync(self) -> None:
        """What `save` wrote is on the disk when it returns."""
        sync_file(self._disk, self._path)

    def unload(self) -> None:
        """Saves, and forgets what can be loaded again."""
        self.save()
        self._keys, self._values = array("q"), array("q")
        self._saved = -1
