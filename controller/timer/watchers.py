"""Watch lists: which operations a key's news may complete. For one thread; no lock.

An operation stands in the list of each of its keys, and nobody looks for it there when it ends: what has ended is left
out when its list is next looked at, or by a purge.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, Protocol, TypeVar

from controller.timer.operation import PENDING, DelayedOperation

K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=DelayedOperation)  # noqa: E741 - an operation, beside a key


class Watchers(Protocol[K, O]):
    """What a purgatory asks of its watch lists."""

    def watch(self, operation: O, keys: Collection[K]) -> None:
        """Enters the operation under each key, as often as it is named."""

    def of(self, key: K) -> list[O]:
        """Those that watch the key now, in the order in which they came; some may have ended."""

    def sweep(self, key: K) -> int:
        """Leaves out what has ended; how many that were."""

    def take(self, key: K) -> list[O]:
        """Those that watch the key, who no longer do."""

    def watched_keys(self) -> list[K]:
        """Every key that somebody watches."""

    @property
    def watched(self) -> int:
        """How many entries there are, an operation counting once a key."""


class WatchLists(Generic[K, O]):
    """Lists by key; a key that nobody watches has none."""

    __slots__ = ("by_key", "watched")

    def __init__(self) -> None:
        self.by_key: dict[K, list[O]] = {}
        self.watched = 0

    def watch(self, operation: O, keys: Collection[K]) -> None:
        by_key = self.by_key
        for key in keys:
            try:
                by_key[key].append(operation)
            except KeyError:
                by_key[key] = [operation]
        self.watched += len(keys)

    def of(self, key: K) -> list[O]:
        return self.by_key.get(key, [])[:]

    def sweep(self, key: K) -> int:
        return self.sweep_out(key)[1]

    def sweep_out(self, key: K) -> tuple[list[O], int]:
        """As `sweep`, and the list as it was, which is the caller's now: with it the last reference to an operation may
        go, and whatever that sets off must not happen under the caller's lock."""
        before = self.by_key.get(key)
        if before is None:
            return [], 0
        left = [operation for operation in before if operation.state is PENDING]
        if left:
            self.by_key[key] = left
        else:
            del self.by_key[key]
        gone = len(before) - len(left)
        self.watched -= gone
        return before, gone

    def take(self, key: K) -> list[O]:
        taken = self.by_key.pop(key, [])
        self.watched -= len(taken)
        return taken

    def watched_keys(self) -> list[K]:
        return list(self.by_key)
