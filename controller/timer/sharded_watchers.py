"""Watch lists by key for a purgatory with threads, in which entering an operation takes no lock. Here each is entered
at once; `threaded_watchers` has newcomers before that.

To append to a list is one step, in CPython: under the interpreter's lock, or the list's own where there is none. So is
assigning to a slice, by which a sweep leaves out what has ended: what is appended meanwhile stands behind the slice and
stays. All that puts a list into the dictionary or takes one out is done under a lock, one a shard of the keys, and so
is every look at who watches.

There is one gap: a thread may have found a list that is removed from the dictionary before its operation is in it. Each
removal sets a new mark. A thread that enters an operation compares the marks from before and after, and on a difference
enters it again under the lock if needed. A thread that removes a list first sets the mark and then checks for a late
entry. So either the first sees the other's mark, or the second sees the first's entry.

A key's own hash and comparison may run under its shard's lock and must be plain: no lock, no purgatory.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from controller.timer.native import mypyc_attr
from controller.timer.operation import PENDING
from controller.timer.watchers import K, O, WatchLists

SHARDS = 32
"""Enough that two threads with different keys seldom meet while one of them holds the interpreter. Kafka has 512."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ShardedWatchLists(WatchLists[K, O]):
    """Locks dealt over shards by the keys' hashes. ValueError: no shard."""

    __slots__ = ("_locks", "mark")

    def __init__(self, shards: int = SHARDS) -> None:
        super().__init__()
        if shards < 1:
            raise ValueError(f"shards {shards}: expected 1 or more")
        self._locks = [threading.Lock() for _ in range(shards)]
        self.mark = object()
        """Of the last removal of a list: another object each time, which no count is, of two threads at once."""

    def watch(self, operation: O, keys: Collection[K]) -> None:
        """Enters the operation under each key, as often as it is named."""
        mark, by_key = self.mark, self.by_key
        for key in keys:
            try:
                by_key[key].append(operation)
            except KeyError:
                self._enter(key, operation)
        if self.mark is not mark:
            self._make_sure(operation, keys)

    def of(self, key: K) -> list[O]:
        """Under the lock, lest a list be missed that is about to be put back."""
        with self._lock_of(key):
            return self.by_key.get(key, [])[:]

    def sweep(self, key: K) -> int:
        with self._lock_of(key):
            watching = self.by_key.get(key)
            if watching is None:
                return 0
            before = watching[:]
            left = [operation for operation in before if operation.state is PENDING]
            gone = len(before) - len(left)
            if gone:
                watching[: len(before)] = left
            if not watching:
                self._remove(key, watching)
        # The last references to what has ended go here, where no lock is held: whatever that sets off, it must not.
        before.clear()
        return gone

    def take(self, key: K) -> list[O]:
        with self._lock_of(key):
            watching = self.by_key.pop(key, None)
            if watching is None:
                return []
            self.mark = object()
            return watching[:]  # what comes into the old list from now on is entered once more

    def _lock_of(self, key: K) -> threading.Lock:
        return self._locks[hash(key) % len(self._locks)]

    def _enter(self, key: K, operation: O) -> None:
        with self._lock_of(key):
            self.by_key.setdefault(key, []).append(operation)

    def _make_sure(self, operation: O, keys: Collection[K]) -> None:
        for key in keys:
            with self._lock_of(key):
                watching = self.by_key.setdefault(key, [])
                if operation not in watching:
                    watching.append(operation)

    def _remove(self, key: K, watching: list[O]) -> None:
        """Under the lock."""
        del self.by_key[key]
        self.mark = object()
        if watching:
            self.by_key[key] = watching
