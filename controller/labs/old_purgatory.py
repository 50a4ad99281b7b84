"""The purgatory as Kafka had it before the timing wheel (0.8.2): here to be compared with, not to be used.

One delay queue of operations, a heap under a lock; watch lists, each under its own; and a reaper thread that takes what
is due from the queue. Nothing leaves the queue or the lists as it ends. After each operation that expires, or a fifth
of a second, the reaper counts: when the lists or the queue hold more than an interval, it walks all of them and leaves
out what has ended. With more than the interval pending it finds little and begins anew at once: so it collapses.
Source: Kafka's RequestPurgatory, 0.8.2.

Answers are given outside its locks: its faults of that kind (S57, S58) are not rebuilt here.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection
from typing import Generic

from controller.labs.thread_timer import monotonic_ms
from controller.timer.purgatory import (
    PENDING,
    PURGE_INTERVAL,
    AlreadyWatched,
    DelayedOperation,
    K,
    O,
    OperationState,
    log_failed_operation,
)

POLL_S = 0.2
CLOSING_LIMIT_S = 10.0


class _Watchers(Generic[O]):
    """The operations that watch one key."""

    __slots__ = ("lock", "operations")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.operations: list[O] = []

    def leave_out_ended(self) -> int:
        with self.lock:
            before = self.operations
            self.operations = [operation for operation in before if operation.state is PENDING]
        return len(before) - len(self.operations)


class OldPurgatory(Generic[K, O]):
    """The same questions as `ThreadedPurgatory`'s. It brings its own thread: `close` it."""

    def __init__(
        self,
        *,
        purge_interval: int = PURGE_INTERVAL,
        on_error: Callable[[DelayedOperation, Exception], None] = log_failed_operation,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._purge_interval = purge_interval
        self._on_error = on_error
        self._clock_ms = clock_ms
        self._guard = threading.Lock()
        self._lists: dict[K, _Watchers[O]] = {}
        self._queue_lock = threading.Lock()
        self._queue_changed = threading.Condition(self._queue_lock)
        self._queue: list[tuple[int, int, O]] = []  # by due time, then as they came
        self._watched_in_all = 0
        self._closed = False
        self._ended = 0
        self.purges = 0
        self._thread = threading.Thread(target=self._reap, name="old purgatory", daemon=True)
        self._thread.start()

    @property
    def watched(self) -> int:
        """Entries in the watch lists, counted now."""
        return sum(len(watchers.operations) for watchers in list(self._lists.values()))

    @property
    def queued(self) -> int:
        """Operations in the delay queue, ended ones included until they are purged."""
        return len(self._queue)

    def try_complete_else_watch(self, operation: O, keys: Collection[K]) -> bool:
        """As `ThreadedPurgatory.try_complete_else_watch`."""
        if operation.arbiter is not None or operation.has_ended():
            raise AlreadyWatched(operation)
        if operation.try_complete():
            return True
        operation.arbiter = self
        for key in keys:
            watchers = self._watchers_of(key)
            watchers.lock.acquire()  # as the new design has it: `with` takes twice as long
            try:
                watchers.operations.append(operation)
            finally:
                watchers.lock.release()
        if operation.try_complete() or operation.has_ended():
            return True
        with self._queue_changed:
            self._watched_in_all += 1
            entry = (self._clock_ms() + operation.timeout_ms, self._watched_in_all, operation)
            heapq.heappush(self._queue, entry)
            if self._queue[0] is entry:
                self._queue_changed.notify()
        return operation.has_ended()

    def check_and_complete(self, key: K) -> int:
        """As `ThreadedPurgatory.check_and_complete`."""
        watchers = self._lists.get(key)
        if watchers is None:
            return 0
        with watchers.lock:
            tried = watchers.operations[:]
        completed = sum(self._tried(operation) for operation in tried if operation.state is PENDING)
        watchers.leave_out_ended()
        return completed

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        self._guard.acquire()
        try:
            if operation.state is not PENDING:
                return False
            operation.state = end
        finally:
            self._guard.release()
        return True

    def report(self, operation: DelayedOperation, error: Exception) -> None:
        self._on_error(operation, error)

    def close(self, limit_s: float = CLOSING_LIMIT_S) -> None:
        """Nothing expires any more once this returns. TimeoutError: an answer is still being given."""
        with self._queue_changed:
            self._closed = True
            self._queue_changed.notify()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TimeoutError(f"an operation is still answering after {limit_s:g} s")

    def _watchers_of(self, key: K) -> _Watchers[O]:
        watchers = self._lists.get(key)
        if watchers is None:
            with self._guard:
                watchers = self._lists.setdefault(key, _Watchers())
        return watchers

    def _tried(self, operation: O) -> bool:
        try:
            return operation.try_complete()
        except Exception as error:  # noqa: BLE001 - whatever one raises, the others are tried
            self._on_error(operation, error)
            return False

    def _reap(self) -> None:
        while not self._closed:
            operation = self._poll_expired()
            if operation is not None:
                operation.expire()
            self._purge_what_is_over_the_interval()

    def _poll_expired(self) -> O | None:
        """The next operation that is due and pending; None after a while, and once it is closed."""
        until_ms = self._clock_ms() + int(POLL_S * 1_000)
        with self._queue_changed:
            while not self._closed:
                now_ms = self._clock_ms()
                if self._queue and self._queue[0][0] <= now_ms:
                    operation = heapq.heappop(self._queue)[2]
                    if not operation.has_ended():
                        return operation
                    continue
                if now_ms >= until_ms:
                    return None
                next_ms = min(until_ms, self._queue[0][0]) if self._queue else until_ms
                self._queue_changed.wait((next_ms - now_ms) / 1_000)
        return None

    def _purge_what_is_over_the_interval(self) -> None:
        if self.watched >= self._purge_interval:
            self.purges += 1
            for watchers in list(self._lists.values()):
                watchers.leave_out_ended()
        if self.queued >= self._purge_interval:
            with self._queue_lock:
                before = self._queue
                self._queue = [entry for entry in before if entry[2].state is PENDING]
                heapq.heapify(self._queue)
