"""How much of what clients invent a coordinator keeps: group ids, member ids, metadata. No clock, no I/O.

Kafka 2.8 bounds the size of one group alone (group.max.size): ids and metadata that clients make up are kept until
their sessions expire, or the next look for unused groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

MEMBER_BYTES = 2_048
"""What a member takes besides its ids, metadata and assignment: objects, a timer, a request that waits."""
PENDING_MAX = 10_000
"""Member ids of all groups that were given out and have not joined (KIP-394)."""
PENDING_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class GroupTally:
    """What all groups of a coordinator hold together."""

    groups: int = 0
    member_bytes: int = 0


def member_bytes(member_id: str, client_id: str, instance_id: str | None, metadata: Iterable[tuple[str, int]]) -> int:
    ids = 4 * len(member_id) + len(client_id) + len(instance_id or "")
    return MEMBER_BYTES + ids + sum(len(name) + size for name, size in metadata)


@dataclass(slots=True)
class PendingIds:
    """Member ids that were given out, of all groups, in order. Beyond the bounds the earliest are taken back by calling
    what they were added with. Ids that have joined meanwhile count until they are as old."""

    max_ids: int = PENDING_MAX
    max_bytes: int = PENDING_BYTES_MAX
    _ids: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    _bytes: int = 0

    def add(self, size_bytes: int, take_back: Callable[[], None]) -> None:
        self._ids.append((size_bytes, take_back))
        self._bytes += size_bytes
        while len(self._ids) > self.max_ids or (self._bytes > self.max_bytes and len(self._ids) > 1):
            size_bytes, earliest = self._ids.popleft()
            self._bytes -= size_bytes
            earliest()

    def __len__(self) -> int:
        return len(self._ids)
