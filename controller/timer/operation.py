"""A request that waits for a condition, until its time is over: what a purgatory holds.

It is the timer's task itself, so nothing is allocated beside it. It ends once; who decides
between two that would end it at once is its purgatory (`Judge`). Knows no host: no thread, no lock, no clock. Source:
Kafka's DelayedOperation (0.9 to 3.9), whose one flag says "completed" and leaves out why; cancelling a key's operations
is Kafka's cancelForKey.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from enum import IntEnum
from typing import Any, Final, Protocol

from controller.timer.native import mypyc_attr
from controller.timer.task import IN_BUNDLE, IN_COHORT, TimerTask


class OperationState(IntEnum):
    Pending = 0
    """It is not answered: its condition does not hold yet, and its timeout has not expired."""
    Completed = 1
    """Its condition holds, or it was completed by force."""
    Expired = 2
    """Its timeout expired first; it was answered with the data available."""
    Cancelled = 3
    """What it waits for no longer exists; the code that cancelled it answers."""


PENDING: Final = OperationState.Pending
COMPLETED: Final = OperationState.Completed
EXPIRED: Final = OperationState.Expired
CANCELLED: Final = OperationState.Cancelled


class Judge(Protocol):
    """Decides who ends an operation."""

    _ended: int
    """Those of its operations that are in a cohort settle themselves, on its one thread, and are counted here."""

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        """Moves a pending operation to `end`, and says whether it was this call that did."""


class _Unwatched:
    """An operation that is not watched is known to one thread alone, the one that made it."""

    __slots__ = ("_ended",)
    _ended: int

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        operation.state = end
        operation.judge = ENDED
        return True


class _Ended:
    """Of an operation that has ended and never was watched."""

    __slots__ = ("_ended",)
    _ended: int

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        return False


UNWATCHED: Final[Judge] = _Unwatched()
ENDED: Final[Judge] = _Ended()


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedOperation(TimerTask, metaclass=ABCMeta):
    """Override `try_complete` and `on_complete`, and `on_expiration` where it is wanted.

    An operation is equal to itself alone: `__eq__` and `__hash__` stay object's. Each ends once: `on_complete` is
    called once, however many would complete it and whether or not its time is over at that moment, or not at all
    after a cancellation, whose caller answers. `state` says how it ended, and says so already while `on_complete`
    runs (`pending`, a task's, is about the timer alone). No lock is held while any of the three runs, so all of
    them may call the purgatory again, for any key.
    """

    __slots__ = ("judge", "state", "timeout_ms", "trying", "watches")
    watches: tuple[Any, ...]
    """For a purgatory, which sets it: the keys that it was handed in with."""
    trying: bool
    """For a purgatory that has threads, which sets it: whether one is in `try_complete` now."""

    def __init__(self, timeout_ms: int) -> None:
        """`timeout_ms` counts from when it is watched; 0 or less: it is tried once, and then its time is over."""
        # As TimerTask's __init__ has it, which called from here would double the cost of making an operation.
        self._callback = None
        self._next = None
        self.timeout_ms = timeout_ms
        self.state: OperationState = PENDING
        self.judge: Judge = UNWATCHED
        """The purgatory that watches it, or did, which decides who ends it. `UNWATCHED`: it may still be watched."""

    @abstractmethod
    def try_complete(self) -> bool:
        """Looks at the condition; if it holds, `return self.force_complete()`, else False.

        Called by one thread at a time, at any time between being handed to a purgatory and the operation's end: first
        of all before it is watched.
        """

    @abstractmethod
    def on_complete(self) -> None:
        """Answers, with what there is by then: the condition may not hold (`state` is Expired then)."""

    def on_expiration(self) -> None:
        """Called after `on_complete`, if it was the time that ended it: for counters."""

    def force_complete(self) -> bool:
        """Completes it whatever its condition says. True: this call did. False: it has ended before."""
        if self._next is IN_BUNDLE:  # pending, and known to one thread alone: as its judge would settle it
            self._next = None
            self.state = COMPLETED
            self.judge._ended += 1
        elif not self.judge.settle(self, COMPLETED):
            return False
        self.on_complete()
        return True

    @property
    def pending(self) -> bool:
        """As any task's. One of a cohort with threads leaves the timer by ending, which is all that it does there."""
        return self._next is not None and (self._next is not IN_COHORT or self.state is PENDING)

    def has_ended(self) -> bool:
        return self.state is not PENDING

    def run(self) -> None:
        """Its time is over; the timer calls this."""
        if self._next is IN_BUNDLE:  # as above
            self._next = None
            self.state = EXPIRED
            self.judge._ended += 1
        elif not self.judge.settle(self, EXPIRED):
            return
        self.on_complete()
        self.on_expiration()
