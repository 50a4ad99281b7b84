"""The purgatory for a host with threads: any thread may watch, check, complete and cancel.

The common path of every operation takes no lock of its own: it is made of steps that are one step each in CPython. An
operation is pending while it is in a dictionary; of several threads that would end it, the one that removes it from
there does. A mark, which each check of a key changes first, shows whether an operation must be checked again once it
can be found in the lists. A check of an operation takes a lock to find out whether another thread is in one.

No method of an operation runs under a lock, and none is held while another is acquired: so no order of locks can be
violated (S57, KAFKA-3994, KAFKA-6042). Not for signal handlers and finalizers, which may come while their own thread
holds one.

What is assumed: to enter an object that compares by identity in a dictionary and to delete it there, `list.append`,
assignment to a slice and `next` of a count are each one step, and what one thread does first the others see first. The
interpreter's lock gives both. A build without it gives the first by locks in the containers; the second was not tried
there.

Its watch lists: all that puts a list into the dictionary or takes one out is done under a lock, one a shard of the
keys, and so is every look at the watching operations. A sweep assigns to a slice, so what is appended meanwhile stands
behind the slice and stays. There is one gap: a thread may have found a list that is removed from the dictionary before
its operation is in it. Each removal sets a new mark. A thread that enters an operation compares the marks from before
and after, and on a difference enters it again under the lock if needed. A thread that removes a list first sets the
mark and then checks for a late entry. So either the first sees the other's mark, or the second sees the first's entry.
A key's own hash and comparison may run under its shard's lock and must be plain: no lock, no purgatory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from typing import cast

from controller.timer.purgatory import (
    CANCELLED,
    EXPIRED,
    PENDING,
    PURGE_INTERVAL,
    PURGE_SHARE,
    AlreadyWatched,
    CallsLater,
    DelayedOperation,
    K,
    O,
    OperationState,
    Purgatory,
    WatchLists,
    log_failed_operation,
)
from controller.timer.wheel import mypyc_attr

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


@mypyc_attr(allow_interpreted_subclasses=True)
class ThreadedPurgatory(Purgatory[K, O]):
    """As `Purgatory`, from any thread. An operation belongs to the thread that made it until it is handed in.

    Its `try_complete` runs on one thread at a time. A thread that finds another one in it requests a further check from
    that one and goes on, so no thread waits and no change is missed (S58, KAFKA-6653).
    """

    def __init__(
        self,
        timer: CallsLater,
        *,
        purge_interval: int = PURGE_INTERVAL,
        purge_share: float = PURGE_SHARE,
        on_error: Callable[[DelayedOperation, Exception], None] = log_failed_operation,
        shards: int = SHARDS,
    ) -> None:
        lists: ShardedWatchLists[K, O] = ShardedWatchLists(shards)
        super().__init__(
            timer, purge_interval=purge_interval, purge_share=purge_share, on_error=on_error, watchers=lists
        )
        self._lists = lists
        self._pending: dict[DelayedOperation, None] = {}
        """All that are watched and pending, in the order in which they came."""
        self._numbers = itertools.count(1)
        """Of those that are watched. A purge takes a number too, as if it were one that has ended."""
        self._news = object()
        """Of which there were last: another object each time, which no count is, of two threads at once."""
        self._asked_again: set[DelayedOperation] = set()
        """Those of which there was news since their last look began."""
        self._trying: set[DelayedOperation] = set()
        """Those whose `try_complete` a thread is in."""
        self._guard = threading.Lock()

    @property
    def delayed(self) -> int:
        return len(self._pending)

    def try_complete_else_watch(self, operation: O, keys: Collection[K]) -> bool:
        if operation.arbiter is not None or operation.state is not PENDING:
            raise AlreadyWatched(operation)
        news = self._news
        if operation.try_complete():
            return True
        operation.arbiter = self
        operation.watches = keys = tuple(keys)  # the caller's may change
        pending = self._pending
        pending[operation] = None
        try:
            hash(keys)  # an unhashable key is refused now, not during a check of another key
            self._lists.watch(operation, keys)
            timeout_ms = operation.timeout_ms
            timer = operation.timer = self._timer.call_later(timeout_ms if timeout_ms > 0 else 0, operation.expire)
            if operation not in pending:  # it may have ended before that was known
                operation.timer = None
                timer.cancel()
            # Its condition may have come true before it was in the lists; a check from that time does not find it.
            if self._news is not news:
                self._try(operation)
        except Exception:
            self.settle(operation, CANCELLED)
            raise
        ended = next(self._numbers) - len(pending)
        if ended > self._purge_beyond:
            self._purge_if_worth_it(ended)
        return operation.state is not PENDING

    def check_and_complete(self, key: K) -> int:
        self._news = object()
        return self._complete_those(key, self._lists.of(key))

    def cancel_all(self) -> list[O]:
        # A key may be out of the lists for a moment while another thread sweeps them.
        cancelled = super().cancel_all()
        rest = cast("list[O]", list(self._pending))
        return cancelled + [operation for operation in rest if self.settle(operation, CANCELLED)]

    def purge(self) -> int:
        self._purged_at(next(self._numbers) - len(self._pending))
        gone = sum([self._lists.sweep(key) for key in self._lists.watched_keys()])
        with self._guard:
            self.purges += 1
            self.purged += gone
        return gone

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        try:
            del self._pending[operation]
        except KeyError:
            return False
        operation.state = end
        timer, operation.timer = operation.timer, None
        if timer is not None and end is not EXPIRED:
            timer.cancel()
        return True

    def _try(self, operation: O) -> bool:
        """A look, unless another thread is in one, which then looks again. As each says what it does (that it asks
        here, that its look is over there) before it sees what the other has said, one of the two knows that another
        look is due."""
        asked = self._asked_again
        asked.add(operation)
        try:
            while operation in asked and operation.state is PENDING:
                self._guard.acquire()
                busy = operation in self._trying
                self._trying.add(operation)
                self._guard.release()
                if busy:
                    return False
                if self._look(operation):
                    return True
        finally:
            if operation.state is not PENDING:  # no check follows; a later request for one also reaches this line
                asked.discard(operation)
        return False

    def _look(self, operation: O) -> bool:
        """On the thread whose turn it is."""
        self._asked_again.discard(operation)
        try:
            return operation.try_complete()
        except Exception as error:  # noqa: BLE001 - another thread may have left its look to this one, which goes on
            self._on_error(operation, error)
            return False
        finally:
            self._trying.discard(operation)
