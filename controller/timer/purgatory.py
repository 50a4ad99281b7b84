"""The purgatory: where requests wait that can't be answered yet, each until its condition holds or its time is over.

    operation  -- watches -->  keys           news of a key: `check_and_complete(key)` tries who watches it
    operation  -- is in ---->  the timer      which ends it when its time is over

Whichever comes first ends the operation and answers; the other finds it ended. An operation that has ended leaves the
timer at once, in constant time. It stays in the watch lists, where finding it would cost a search, until a purge, or
until its cohort lets it go as its time comes. E estimates how many operations are in them. It grows by one with each
that is watched, shrinks by those let go, and is set to the number of those that are pending just before a purge, so
that what is watched meanwhile adds to it: it errs upwards, never downwards. A purge begins when E exceeds the pending
by more than an interval (source: Kafka's DelayedOperationPurgatory, 0.9 to 3.9), and by more than a share of them, for
it looks at all that are pending, too: so its cost an operation is constant however many those are. E less the pending
is how many have ended since the last purge and not been let go, and that is what is counted.

This one is for a host with one thread, as a simulator or an event loop is; it takes no lock.
`controller.timer.threaded_purgatory` is for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic

from controller.timer.native import mypyc_attr
from controller.timer.operation import CANCELLED, EXPIRED, PENDING, UNWATCHED, DelayedOperation, OperationState
from controller.timer.ports import Timer
from controller.timer.report import log_failure
from controller.timer.task import IN_BUNDLE, NOWHERE, Bucket, TimerTask
from controller.timer.virtual import VirtualTimer
from controller.timer.watchers import K, O, WatchLists

PURGE_INTERVAL = 1_000
"""Kafka's: how many ended operations in the watch lists are worth a purge. More costs memory, fewer cost time."""
PURGE_SHARE = 2.0
"""Twice as many ended operations as pending ones: the lists are at most three times what they must be. 0 is Kafka's
rule."""


class AlreadyWatched(Exception):
    """An operation was handed to a purgatory for the second time, or has ended."""

    def __init__(self, operation: DelayedOperation) -> None:
        super().__init__(operation)
        self.operation = operation

    def __str__(self) -> str:
        return f"operation {self.operation!r} can't be watched again; it is {self.operation.state.name}"


@mypyc_attr(allow_interpreted_subclasses=True)
class Purgatory(Generic[K, O]):
    """`K` is the type of keys, `O` that of operations. The timer may be shared with other purgatories and tasks.

    `on_error` is called for an operation that raised when its key was checked; the others are still checked.
    ValueError: `purge_interval` below 1, `purge_share` below 0.
    """

    def __init__(
        self,
        timer: Timer,
        *,
        purge_interval: int = PURGE_INTERVAL,
        purge_share: float = PURGE_SHARE,
        on_error: Callable[[TimerTask, Exception], None] = log_failure,
        watchers: WatchLists[K, O] | None = None,
    ) -> None:
        if purge_interval < 1:
            raise ValueError(f"purge_interval {purge_interval}: expected 1 or more")
        if purge_share < 0:
            raise ValueError(f"purge_share {purge_share}: expected 0 or more")
        self._timer = timer
        self._wheel = timer if isinstance(timer, VirtualTimer) else None
        """A timer that knows bundles: who comes right after one with the same timeout is of its cohort."""
        self._fresh = timer._fresh if isinstance(timer, VirtualTimer) else Bucket(0)
        """Its last is what was started last, if the clock has not moved since."""
        self._last: TimerTask = NOWHERE
        """The last that was started by itself."""
        self._purge_interval = purge_interval
        self._purge_share = purge_share
        self._on_error = on_error
        self._watchers: WatchLists[K, O] = WatchLists() if watchers is None else watchers
        self._cohort = self._watchers.cohorts[-1]
        self._ended = 0
        """Of those that were watched."""
        self._gone = 0
        """How many of them are in no list any more, or fewer."""
        self._purge_beyond = purge_interval
        """While no more than so many have ended, no purge can be worth it."""
        self.purges = 0
        self.purged = 0
        """Entries of watch lists that purges have left out."""

    @property
    def delayed(self) -> int:
        """Operations that are watched and pending."""
        last = self._cohort  # `handed_in`, asked at each append
        return self._watchers.came_before + last.released + len(last.members) - self._ended

    @property
    def watched(self) -> int:
        """Entries in the watch lists, an operation counting once a key, ended ones included until they are purged.
        They are counted now, list by list."""
        return self._watchers.watched()

    def try_complete_else_watch(self, operation: O, keys: Collection[K]) -> bool:
        """False: it is watched, and will end in its time at the latest. True: it has ended by the time this returns.

        AlreadyWatched. What the operation raises comes through, and so does what the timer raises (that it is
        closed) or a key (that it has no hash): then the operation is cancelled, if it had not ended.
        """
        if self._ended > self._purge_beyond:
            self._purge_if_worth_it(self._ended)
        if operation.judge is not UNWATCHED:
            raise AlreadyWatched(operation)
        if operation.try_complete():
            return True
        # Nothing can have happened since: one thread.
        operation.judge = self
        operation.watches = keys = tuple(keys)  # the caller's may change
        cohort = self._cohort
        cohort.members.append(operation)
        try:
            hash(keys)  # an unhashable key is refused now, not during a check of another key
            if (
                self._fresh._previous is cohort
                and operation.timeout_ms == cohort.timeout_ms
                and operation._next is None  # who is in a timer already is refused there
            ):
                operation._due_ms = cohort._due_ms
                operation._next = operation._previous = IN_BUNDLE
                return False
            if self._wheel is None:
                self._timer.start(operation, operation.timeout_ms)
            else:
                self._start(operation, self._wheel)
        except Exception:
            self.settle(operation, CANCELLED)
            raise
        return operation.state is not PENDING

    def check_and_complete(self, key: K) -> int:
        """Something about `key` has changed: tries every operation that watches it; how many this call completed."""
        watchers = self._watchers
        last = watchers.cohorts[-1]
        if last.entered != len(last.members) or len(watchers.cohorts) > 1:
            watchers.let_in()
        watching = watchers.by_key.get(key)  # as `WatchLists.of`, without a call
        return 0 if watching is None else self._complete_those(key, watching[:])

    def _complete_those(self, key: K, watching: Sequence[O]) -> int:
        """`watching`: who watches the key."""
        completed = 0
        ended = False
        for operation in watching:
            if operation.state is PENDING:
                try:
                    if self._try(operation):
                        completed += 1
                except Exception as error:  # noqa: BLE001 - whatever one raises, the others are tried
                    self._on_error(operation, error)
            ended = ended or operation.state is not PENDING
        if ended:
            self._watchers.sweep(key)
        return completed

    def cancel_for_key(self, key: K) -> list[O]:
        """Cancel all operations that watch `key`, because what they wait for does not exist any more; none watches it
        afterwards.

        Returns those that were pending, in order of arrival; the caller answers them: `on_complete` is not called."""
        return [operation for operation in self._watchers.take(key) if self.settle(operation, CANCELLED)]

    def cancel_all(self) -> list[O]:
        """As `cancel_for_key`, for every key: at the end of a host, whose last duty is to answer them."""
        return [operation for key in self._watchers.watched_keys() for operation in self.cancel_for_key(key)]

    def purge(self) -> int:
        """Leaves ended operations out of every watch list; how many entries that were."""
        self._purged_at(self._ended)
        self._last = NOWHERE
        gone = self._watchers.sweep_all()
        for cohort in self._watchers.drop_empty():
            self._timer.cancel(cohort)
        self.purges += 1
        self.purged += gone
        return gone

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        """For operations: see `Judge`. It leaves the timer at once."""
        if operation.state is not PENDING:
            return False
        operation.state = end
        self._ended += 1
        following = operation._next
        if following is IN_BUNDLE:
            operation._next = None
        elif self._wheel is not None:  # its few steps are taken here, since the call costs as much
            if following is not None:
                previous = operation._previous
                previous._next = following
                following._previous = previous
                operation._next = None
                operation._previous = NOWHERE
        elif end is not EXPIRED:
            self._timer.cancel(operation)
        return True

    def _start(self, operation: O, wheel: VirtualTimer) -> None:
        """By itself, unless the one right before it is due with it: then a cohort begins."""
        timeout_ms = operation.timeout_ms
        last = self._last
        if self._fresh._previous is last and last._due_ms == wheel.now_ms + timeout_ms and operation._next is None:
            self._cohort.members.pop()
            cohort = self._cohort = self._watchers.open(timeout_ms)
            wheel.start(cohort, timeout_ms)
            cohort.members.append(operation)
            operation._due_ms = cohort._due_ms
            operation._next = operation._previous = IN_BUNDLE
            self._last = NOWHERE
        else:
            wheel.start(operation, timeout_ms)
            self._last = operation

    def _try(self, operation: O) -> bool:
        return operation.try_complete()

    def _purged_at(self, ended: int) -> None:
        self._gone = ended
        self._watchers.take_released()
        self._purge_beyond = ended + self._purge_interval

    def _purge_if_worth_it(self, ended: int) -> None:
        """`ended`: in all, and more than `_purge_beyond`."""
        self._gone += self._watchers.take_released()
        there = ended - self._gone  # in the lists, or more
        early = self._purge_interval - there
        short = self._purge_share * self.delayed - there
        if short < 0 and early < 0:
            self.purge()
        else:  # with each that ends, one more has ended and one fewer is pending
            self._purge_beyond = ended + max(int(short / (1 + self._purge_share)), early)
