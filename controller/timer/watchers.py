"""Watch lists: which operations a key's news may complete. For one thread; no lock.

An operation stands in the list of each of its keys, and nobody looks for it there when it ends: what has ended is left
out when its list is next looked at, or by a purge.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Generic, TypeVar

from controller.timer.native import mypyc_attr
from controller.timer.operation import PENDING, DelayedOperation

K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=DelayedOperation)  # noqa: E741 - an operation, beside a key


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchLists(Generic[K, O]):
    """Lists by key; a key that nobody watches has none. Who hands in appends to `by_key` itself, once a key."""

    __slots__ = ("by_key",)

    def __init__(self) -> None:
        self.by_key: dict[K, list[O]] = {}

    def of(self, key: K) -> list[O]:
        """Those that watch the key now, in the order in which they came; some may have ended."""
        return self.by_key.get(key, [])[:]

    def sweep(self, key: K) -> int:
        """Leaves out what has ended; how many that were."""
        before = self.by_key.get(key)
        if before is None:
            return 0
        left = [operation for operation in before if operation.state is PENDING]
        if left:
            self.by_key[key] = left
        else:
            del self.by_key[key]
        return len(before) - len(left)

    def enter_anew(self, pending: Mapping[Any, Collection[K]]) -> int:
        """Leaves out of every list what is not `pending`; how many entries that were. `pending`: all operations that
        are, in the order in which they came, and their keys.

        It makes the lists anew instead of looking through them: an operation is looked at once, not once in each of
        its lists, and those that have ended are not looked at at all.
        """
        before = self.watched()
        by_key: dict[K, list[O]] = {}
        for operation, keys in pending.items():
            for key in keys:
                try:
                    by_key[key].append(operation)
                except KeyError:
                    by_key[key] = [operation]
        self.by_key = by_key
        return before - self.watched()

    def take(self, key: K) -> list[O]:
        """Those that watch the key, who no longer do."""
        return self.by_key.pop(key, [])

    def watched_keys(self) -> list[K]:
        """Every key that somebody watches."""
        return list(self.by_key)

    def watched(self) -> int:
        """How many entries there are, an operation counting once a key; counted now."""
        return sum(map(len, list(self.by_key.values())))
