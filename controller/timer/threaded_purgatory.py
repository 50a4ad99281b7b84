"""The purgatory for a host with threads: any thread may watch, check, complete and cancel.

Two kinds of lock, each held for a few steps that call nobody: one a shard of the watch lists, and one that guards the
counts and the operations' states. No operation's method runs under either, and neither is held while the other or
the timer's is asked for, so no order of locks exists that could be violated (S57, KAFKA-3994, KAFKA-6042). Not for
signal handlers and finalizers, which may come while their own thread holds one.

What every operation passes takes its locks by `acquire` and `release`: in CPython `with` takes twice as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final, Generic

from controller.timer.native import mypyc_attr
from controller.timer.operation import CANCELLED, EXPIRED, NOBODY, PENDING, DelayedOperation
from controller.timer.ports import Timer
from controller.timer.purgatory import PURGE_INTERVAL, PURGE_SHARE, AlreadyWatched, Purgatory
from controller.timer.report import log_failure
from controller.timer.task import TimerTask
from controller.timer.watchers import K, O, WatchLists
from statemachines.operation import OperationState

SHARDS = 32
"""Enough that two threads with different keys seldom meet while one of them holds the interpreter. Kafka has 512, and
each purge goes through all."""

# An operation's `turn`.
IDLE: Final = 0
TRYING: Final = 1
ASKED_AGAIN: Final = 2


class _Shard(Generic[K, O]):
    __slots__ = ("lists", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lists: WatchLists[K, O] = WatchLists()


@mypyc_attr(allow_interpreted_subclasses=True)
class ShardedWatchLists(Generic[K, O]):
    """Watch lists dealt over shards by their keys' hashes. A key's own hash and comparison run under its shard's lock
    and must be plain: no lock, no purgatory."""

    __slots__ = ("_shards",)

    def __init__(self, shards: int = SHARDS) -> None:
        if shards < 1:
            raise ValueError(f"shards {shards}: expected 1 or more")
        self._shards: list[_Shard[K, O]] = [_Shard() for _ in range(shards)]

    def watch(self, operation: O, keys: Collection[K]) -> None:
        # The lines of `_shard` and of `WatchLists.watch` again: two calls a key would double what this takes.
        shards = self._shards
        for key in keys:
            shard = shards[hash(key) % len(shards)]
            lock, lists = shard.lock, shard.lists
            lock.acquire()
            try:
                lists.watched += 1
                if key in lists.by_key:
                    lists.by_key[key].append(operation)
                else:
                    lists.by_key[key] = [operation]
            finally:
                lock.release()

    def of(self, key: K) -> list[O]:
        shard = self._shard(key)
        with shard.lock:
            return shard.lists.of(key)

    def sweep(self, key: K) -> int:
        shard = self._shard(key)
        with shard.lock:
            before, gone = shard.lists.sweep_out(key)
        before.clear()  # the last references to what has ended go here, where no lock is held
        return gone

    def take(self, key: K) -> list[O]:
        shard = self._shard(key)
        with shard.lock:
            return shard.lists.take(key)

    def watched_keys(self) -> list[K]:
        found: list[K] = []
        for shard in self._shards:
            with shard.lock:
                found += shard.lists.watched_keys()
        return found

    @property
    def watched(self) -> int:
        return sum(shard.lists.watched for shard in self._shards)

    def _shard(self, key: K) -> _Shard[K, O]:
        return self._shards[hash(key) % len(self._shards)]


@mypyc_attr(allow_interpreted_subclasses=True)
class ThreadedPurgatory(Purgatory[K, O]):
    """As `Purgatory`, from any thread. An operation belongs to the thread that made it until it is handed in.

    Its `try_complete` runs on one thread at a time. Who finds another thread in it asks that one to look again and
    goes on, so nobody waits and no change is missed (S58, KAFKA-6653).
    """

    def __init__(
        self,
        timer: Timer,
        *,
        purge_interval: int = PURGE_INTERVAL,
        purge_share: float = PURGE_SHARE,
        on_error: Callable[[TimerTask, Exception], None] = log_failure,
        shards: int = SHARDS,
    ) -> None:
        lists: ShardedWatchLists[K, O] = ShardedWatchLists(shards)
        super().__init__(
            timer, purge_interval=purge_interval, purge_share=purge_share, on_error=on_error, watchers=lists
        )
        self._guard = threading.Lock()

    def try_complete_else_watch(self, operation: O, keys: Collection[K]) -> bool:
        if operation.judge is not NOBODY or operation.state is not PENDING:
            raise AlreadyWatched(operation)
        if operation.try_complete():
            return True
        operation.turn = TRYING  # nobody else knows of it yet; who learns of it finds this thread in the look below
        operation.judge = self
        self._guard.acquire()
        try:
            self.delayed += 1
            self._estimate += 1
        finally:
            self._guard.release()
        try:
            self._watchers.watch(operation, keys)
            # Its condition may have come true before it stood in the lists, and then nobody will look again.
            self._look(operation)
            if not operation.has_ended():
                self._timer.start(operation, operation.timeout_ms)
                if operation.has_ended():  # perhaps before it was in the timer, where it would lie until its time
                    self._timer.cancel(operation)
        except Exception:
            self.settle(operation, CANCELLED)
            raise
        if self._estimate - self.delayed > self._purge_interval:
            self._purge_if_worth_it()
        return operation.has_ended()

    def purge(self) -> int:
        with self._guard:
            self._estimate = self.delayed
        gone = sum(self._watchers.sweep(key) for key in self._watchers.watched_keys())
        with self._guard:
            self.purges += 1
            self.purged += gone
        return gone

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        self._guard.acquire()
        try:
            if operation.state is not PENDING:
                return False
            operation.state = end
            self.delayed -= 1
        finally:
            self._guard.release()
        if end is not EXPIRED:
            self._timer.cancel(operation)
        return True

    def _try(self, operation: O) -> bool:
        with self._guard:
            if operation.turn:
                operation.turn = ASKED_AGAIN
                return False
            operation.turn = TRYING
        return self._look(operation)

    def _look(self, operation: O) -> bool:
        """On the thread whose turn it is, until nobody has asked for another look meanwhile."""
        while True:
            try:
                completed = operation.try_complete()
            except Exception as error:  # noqa: BLE001 - another thread may have left its look to this one, which goes on
                self._on_error(operation, error)
                completed = False
            except BaseException:
                operation.turn = IDLE
                raise
            self._guard.acquire()
            try:
                if completed or operation.turn == TRYING:
                    operation.turn = IDLE
                    return completed
                operation.turn = TRYING
            finally:
                self._guard.release()
