"""The purgatory: where requests wait that can't be answered yet, each until its condition holds or its time is over.

    operation  -- watches -->  keys           news of a key: `check_and_complete(key)` tries who watches it
    operation  -- is in ---->  the timer      which ends it when its time is over

Whichever comes first ends the operation and answers; the other finds it ended. An operation that has ended leaves the
timer at once, in constant time. It stays in the watch lists, where finding it would cost a search, until a purge. E
estimates how many operations are in them. It grows by one with each that is watched, and is set to the number of those
that are pending just before a purge, so that what is watched meanwhile adds to it: it errs upwards, never downwards.
A purge begins when E exceeds the pending by more than an interval (source: Kafka's DelayedOperationPurgatory, 0.9 to
3.9), and by more than a share of them, for it looks at all that are pending, too: so its cost an operation is constant
however many those are. E less the pending is how many have ended since the last purge, and that is what is counted.

This one is for a host with one thread, as a simulator or an event loop is; it takes no lock.
`controller.timer.threaded_purgatory` is for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic

from controller.timer.native import mypyc_attr
from controller.timer.operation import CANCELLED, EXPIRED, NOBODY, PENDING, DelayedOperation
from controller.timer.ports import Timer
from controller.timer.report import log_failure
from controller.timer.task import NOWHERE, TimerTask
from controller.timer.watchers import K, O, WatchLists
from controller.timer.wheel import TimingWheel
from statemachines.operation import OperationState

if TYPE_CHECKING:
    from mypy_extensions import i64

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
    """`K` is what operations wait for, `O` what they are. The timer may be shared with other purgatories and tasks.

    `on_error` hears of an operation that raised while news of its key were told; the others are told all the same.
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
        self._wheel = timer if isinstance(timer, TimingWheel) else None
        """A timer that is a wheel is not asked to start and to cancel: its few steps are taken here as it has them,
        since the two calls cost as much."""
        self._purge_interval = purge_interval
        self._purge_share = purge_share
        self._on_error = on_error
        self._watchers: WatchLists[K, O] = WatchLists() if watchers is None else watchers
        self._newcomers = self._watchers.newcomers
        self._ended = 0
        """Of those that were watched."""
        self._ended_at_purge = 0
        self._purge_beyond = purge_interval
        """While no more than so many have ended, no purge can be worth it."""
        self.purges = 0
        self.purged = 0
        """Entries of watch lists that purges have left out."""

    @property
    def delayed(self) -> int:
        """Operations that are watched and pending."""
        return self._watchers.let_in_before + len(self._newcomers) - self._ended  # `handed_in`, asked at each append

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
        if operation.judge is not NOBODY:
            raise AlreadyWatched(operation)
        if operation.try_complete():
            return True
        # Nothing can have happened since: one thread.
        operation.judge = self
        operation.watches = keys = tuple(keys)  # the caller's may change
        self._newcomers.append(operation)
        try:
            hash(keys)  # one that has none is refused now, not when news of another key are told
            wheel = self._wheel
            if wheel is None or operation._next is not None:  # who is in a timer already is refused there
                self._timer.start(operation, operation.timeout_ms)
            else:
                due_ms: i64 = wheel.now_ms + operation.timeout_ms
                operation._due_ms = due_ms
                if due_ms >= wheel._soonest_ms or not wheel._sooner(operation, operation.timeout_ms):
                    fresh = wheel._fresh
                    last = fresh._previous
                    operation._previous = last
                    operation._next = fresh
                    fresh._previous = last._next = operation
                    return False
        except Exception:
            self.settle(operation, CANCELLED)
            raise
        return operation.state is not PENDING

    def check_and_complete(self, key: K) -> int:
        """Something about `key` has changed: tries every operation that watches it; how many this call completed."""
        completed = 0
        ended = False
        for operation in self._watchers.of(key):
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
        """What they wait for is gone: nobody watches `key` any more. Those that were pending have ended by this call,
        in the order in which they came; the caller answers them, for `on_complete` is not called."""
        return [operation for operation in self._watchers.take(key) if self.settle(operation, CANCELLED)]

    def cancel_all(self) -> list[O]:
        """As `cancel_for_key`, for every key: at the end of a host, whose last duty is to answer them."""
        return [operation for key in self._watchers.watched_keys() for operation in self.cancel_for_key(key)]

    def purge(self) -> int:
        """Leaves ended operations out of every watch list; how many entries that were."""
        self._purged_at(self._ended)
        gone = self._watchers.sweep_all()
        self.purges += 1
        self.purged += gone
        return gone

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        """For operations: see `Judge`. It leaves the timer at once."""
        if operation.state is not PENDING:
            return False
        operation.state = end
        self._ended += 1
        if self._wheel is not None:
            following = operation._next
            if following is not None:
                previous = operation._previous
                previous._next = following
                following._previous = previous
                operation._next = None
                operation._previous = NOWHERE
        elif end is not EXPIRED:
            self._timer.cancel(operation)
        return True

    def _try(self, operation: O) -> bool:
        return operation.try_complete()

    def _purged_at(self, ended: int) -> None:
        self._ended_at_purge = ended
        self._purge_beyond = ended + self._purge_interval

    def _purge_if_worth_it(self, ended: int) -> None:
        """`ended`: in all, and more than `_purge_beyond`."""
        short = self._purge_share * self.delayed - (ended - self._ended_at_purge)
        if short < 0:
            self.purge()
        else:  # with each that ends, one more has ended and one fewer is pending
            self._purge_beyond = ended + int(short / (1 + self._purge_share))
