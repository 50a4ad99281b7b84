"""The purgatory for a host with threads: any thread may watch, check, complete and cancel.

What every operation passes takes no lock of its own: it is made of steps that are one step each in CPython. An
operation is pending while it is in a dictionary, and of several that would end it the one that removes it from there
is the one that does. Its watch lists are `sharded_watchers`. Who may look at it is decided by two marks on the
operation, of which each thread sets one before it reads the other's; a lock is needed for a look after the first alone.

No method of an operation runs under a lock, and none is held while another is asked for, so no order of locks exists
that could be violated (S57, KAFKA-3994, KAFKA-6042). Not for signal handlers and finalizers, which may come while
their own thread holds one.

What is assumed: to enter an object that compares by identity in a dictionary and to delete it there, `list.append`,
assignment to a slice and `next` of a count are each one step, and what one thread does first the others see first. The
interpreter's lock gives both. A build without it gives the first by locks in the containers; the second was not tried
there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from typing import cast

from controller.timer.native import mypyc_attr
from controller.timer.operation import CANCELLED, EXPIRED, NOBODY, PENDING, DelayedOperation
from controller.timer.ports import Timer
from controller.timer.purgatory import PURGE_INTERVAL, PURGE_SHARE, AlreadyWatched, Purgatory
from controller.timer.report import log_failure
from controller.timer.sharded_watchers import SHARDS, ShardedWatchLists
from controller.timer.task import TimerTask
from controller.timer.watchers import K, O
from statemachines.operation import OperationState


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
        self._lists = lists
        self._pending: dict[DelayedOperation, None] = {}
        """All that are watched and pending, in the order in which they came."""
        self._numbers = itertools.count(1)
        """Of those that are watched. A purge takes a number too, as if it were one that has ended."""
        self._asked_again: set[DelayedOperation] = set()
        """Those of which there was news since their last look began."""
        self._guard = threading.Lock()

    @property
    def delayed(self) -> int:
        return len(self._pending)

    def try_complete_else_watch(self, operation: O, keys: Collection[K]) -> bool:
        state = operation.state
        if operation.judge is not NOBODY or state is not PENDING:
            raise AlreadyWatched(operation)
        if operation.try_complete():
            return True
        operation.trying = True  # nobody else knows of it yet; who learns of it finds this thread in the look below
        operation.judge = self
        pending = self._pending
        pending[operation] = None
        try:
            self._lists.watch(operation, keys)
            # Its condition may have come true before it stood in the lists, and then nobody will look again.
            self._look(operation)
            if operation in self._asked_again:
                self._try(operation)
            if operation in pending:
                self._timer.start(operation, operation.timeout_ms)
                if operation not in pending:  # perhaps it ended before it was in the timer, to lie there until its time
                    self._timer.cancel(operation)
        except Exception:
            self.settle(operation, CANCELLED)
            raise
        ended = next(self._numbers) - len(pending)
        if ended > self._purge_beyond:
            self._purge_if_worth_it(ended)
        return operation.state is not PENDING

    def cancel_all(self) -> list[O]:
        # A key may be out of the lists for a moment while another thread sweeps them.
        cancelled = super().cancel_all()
        rest = cast("list[O]", list(self._pending))
        return cancelled + [operation for operation in rest if self.settle(operation, CANCELLED)]

    def purge(self) -> int:
        self._purged_at(next(self._numbers) - len(self._pending))
        gone = sum(self._lists.sweep(key) for key in self._lists.watched_keys())
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
        if end is not EXPIRED:
            self._timer.cancel(operation)
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
                busy = operation.trying
                operation.trying = True
                self._guard.release()
                if busy:
                    return False
                if self._look(operation):
                    return True
        finally:
            if operation.state is not PENDING:  # nobody will look any more: whoever asks from now on comes by here too
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
            operation.trying = False
