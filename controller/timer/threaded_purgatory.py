"""The purgatory for a host with threads: any thread may watch, check, complete and cancel.

The common path of every operation takes no lock: it is made of steps that are one step each in CPython. An operation is
pending while it is in a dictionary; of several threads that would end it, the one that removes it from there does. A
new operation joins a cohort (`threaded_cohort`), and is entered in watch lists when a key is next checked
(`threaded_watchers`). A mark, which each check of a key changes first, shows whether an operation must be checked again
once it can be found in the lists. Two marks on the operation decide which thread may check it; each thread sets one
before it reads the other's. Only such checks take a lock.

No method of an operation runs under a lock, and but for the door of the watch lists, under which are those of the
lists, none is held while another is asked for: so no order of locks can be violated (S57, KAFKA-3994, KAFKA-6042). Not
for signal handlers and finalizers, which may come while their own thread holds one.

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
from controller.timer.operation import CANCELLED, EXPIRED, PENDING, UNWATCHED, DelayedOperation, OperationState
from controller.timer.ports import Timer
from controller.timer.purgatory import PURGE_INTERVAL, PURGE_SHARE, AlreadyWatched, Purgatory
from controller.timer.report import log_failure
from controller.timer.sharded_watchers import SHARDS
from controller.timer.task import IN_COHORT, TimerTask
from controller.timer.threaded import ThreadTimer
from controller.timer.threaded_cohort import ThreadedCohort
from controller.timer.threaded_watchers import ThreadedWatchLists
from controller.timer.watchers import K, O
from controller.timer.wheel import NEVER_MS


def _no_clock() -> int:
    return NEVER_MS


@mypyc_attr(allow_interpreted_subclasses=True)
class ThreadedPurgatory(Purgatory[K, O]):
    """As `Purgatory`, from any thread. An operation belongs to the thread that made it until it is handed in.

    Its `try_complete` runs on one thread at a time. A thread that finds another one in it requests a further check from
    that one and goes on, so no thread waits and no change is missed (S58, KAFKA-6653).
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
        lists: ThreadedWatchLists[K, O] = ThreadedWatchLists(shards)
        super().__init__(
            timer, purge_interval=purge_interval, purge_share=purge_share, on_error=on_error, watchers=lists
        )
        self._lists = lists
        self._thread_timer = timer if isinstance(timer, ThreadTimer) else None
        """A timer that knows cohorts with threads."""
        self._clock_ns = timer.clock_ns if isinstance(timer, ThreadTimer) else _no_clock
        self._alone: tuple[int, int] | None = None
        """When the last that was started by itself was handed in, and with what timeout."""
        self._pending: dict[DelayedOperation, None] = {}
        """All that are watched and pending, in the order in which they came."""
        self._numbers = itertools.count(1)
        """Of those that are watched. A purge takes a number too, as if it were one that has ended."""
        self._news = object()
        """Of which there were last: another object each time, which no count is, of two threads at once."""
        self._asked_again: set[DelayedOperation] = set()
        """Those of which there was news since their last look began."""
        self._guard = threading.Lock()

    @property
    def delayed(self) -> int:
        return len(self._pending)

    def try_complete_else_watch(self, operation: O, keys: Collection[K]) -> bool:
        if operation.judge is not UNWATCHED or operation.state is not PENDING:
            raise AlreadyWatched(operation)
        news = self._news
        if operation.try_complete():
            return True
        operation.trying = False
        operation.judge = self
        operation.watches = keys = tuple(keys)  # the caller's may change
        pending = self._pending
        pending[operation] = None
        try:
            hash(keys)  # an unhashable key is refused now, not during a check of another key
            cohort = self._lists.last
            if (
                operation.timeout_ms == cohort.timeout_ms
                and self._clock_ns() < cohort.until_ns
                and operation._next is None  # who is in a timer already is refused there
            ):
                operation._due_ms = cohort._due_ms
                operation._next = operation._previous = IN_COHORT
                cohort.members.append(operation)
                if cohort.over:
                    self._open(operation, cohort.opened_ms)
            else:
                self._start_or_open(operation)
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
        lists = self._lists
        gone, dropped = lists.sweep_cohorts()
        if self._thread_timer is not None:
            for cohort in dropped:
                self._thread_timer.drop_cohort(cohort)
        gone += sum([lists.sweep(key) for key in list(lists.by_key)])
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
        if operation._next is not IN_COHORT and end is not EXPIRED:
            self._timer.cancel(operation)
        return True

    def _start_or_open(self, operation: O) -> None:
        """By itself, unless the one right before it was for the same time, or the last cohort was for the same timeout:
        then a cohort begins."""
        timer, timeout_ms = self._thread_timer, operation.timeout_ms
        if timer is not None and operation._next is None:
            came = timer.clock_ms(), timeout_ms
            if timeout_ms == self._lists.last.timeout_ms or came == self._alone:
                operation._due_ms = min(came[0] + timeout_ms, NEVER_MS)
                operation._next = operation._previous = IN_COHORT
                self._open(operation, came[0])
                return
            self._alone = came
        self._lists.stand(operation)
        self._timer.start(operation, timeout_ms)
        if operation not in self._pending:  # perhaps it ended before it was in the timer, to lie there until its time
            self._timer.cancel(operation)

    def _open(self, operation: O, opened_ms: int) -> None:
        """A cohort for those that were handed in then, this one first."""
        timer, lists = self._thread_timer, self._lists
        assert timer is not None
        cohort = ThreadedCohort(lists, timer, opened_ms, operation.timeout_ms)
        cohort.members.append(operation)
        lists.fresh[cohort] = None
        timer.start_cohort(cohort)
        lists.last = cohort
        if cohort.out:  # all in it had ended, and a purge has dropped it, before it was in the timer
            timer.drop_cohort(cohort)

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
            operation.trying = False
