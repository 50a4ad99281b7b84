"""The purgatory: holds requests that wait for a condition, each until the condition holds or its time is over.

    operation  -- watches -->  keys           `check_and_complete(key)` tries the operations that watch the key
    operation  -- is in ---->  the timer      which expires it when its time is over

Whichever comes first ends the operation and answers; the other finds it ended. An operation that has ended leaves the
timer at once, in constant time. It stays in the watch lists, where finding it would cost a search, until its list is
next checked or until a purge.

E estimates how many operations are in the lists. It grows by one with each that is watched and is set to the number of
pending ones at a purge, so it errs upwards, never downwards. A purge begins when E exceeds the pending by more than an
interval (source: Kafka's DelayedOperationPurgatory, 0.9 to 3.9), and by more than a share of them, because a purge
looks at all pending operations too: so its cost an operation is constant however many those are. E less the pending is
the number of operations that have ended since the last purge, and that is what is counted.

For one thread, that of the timer's callbacks; it takes no lock. The timer is the host's clock: the process's
timing wheel on a real host, the world's event heap in the simulator.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from enum import IntEnum
from typing import Any, Final, Generic, Protocol, TypeVar

from controller.clock import Timer
from controller.timer.wheel import mypyc_attr


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

PURGE_INTERVAL = 1_000
"""Kafka's: how many ended operations in the watch lists are worth a purge. More costs memory, fewer cost time."""
PURGE_SHARE = 2.0
"""Twice as many ended operations as pending ones: the lists are at most three times what they must be. 0 is Kafka's
rule."""


class CallsLater(Protocol):
    """What of a `controller.clock.Clock` is needed."""

    def call_later(self, delay_ms: int, callback: Callable[[], None], /) -> Timer: ...


class CompletionArbiter(Protocol):
    """Decides which of several events ends an operation."""

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        """Move a pending operation to `end`. Return whether this call did."""

    def report(self, operation: DelayedOperation, error: Exception) -> None:
        """Handle an exception of an operation that completed, or expired, on its own."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedOperation(metaclass=ABCMeta):
    """A request that waits. Override `try_complete` and `on_complete`, and `on_expiration` if needed.

    An operation is equal to itself alone: `__eq__` and `__hash__` stay object's. Each ends once: `on_complete` is
    called once, however many would complete it and whether or not its time is over at that moment, or not at all
    after a cancellation, whose caller answers. `state` says how it ended, already while `on_complete` runs. No lock is
    held while any of the three runs, so all of them may call the purgatory again, for any key.
    """

    __slots__ = ("arbiter", "state", "timeout_ms", "timer", "watches")
    watches: tuple[Any, ...]
    """For a purgatory, which sets it: the keys that it was watched under."""

    def __init__(self, timeout_ms: int) -> None:
        """`timeout_ms` counts from when it is watched; 0 or less: it is tried once, and then its time is over."""
        self.timeout_ms = timeout_ms
        self.state: OperationState = PENDING
        self.arbiter: CompletionArbiter | None = None
        """The purgatory that watches it, or did. None: it may still be watched."""
        self.timer: Timer | None = None
        """For a purgatory: what will expire it."""

    @abstractmethod
    def try_complete(self) -> bool:
        """Check the condition; if it holds, `return self.force_complete()`, else False.

        Called by one thread at a time, at any time between being passed to a purgatory and the operation's end: first
        of all before it is watched.
        """

    @abstractmethod
    def on_complete(self) -> None:
        """Answer, with what there is by then: the condition may not hold (`state` is Expired then)."""

    def on_expiration(self) -> None:  # noqa: B027 - overriding it is optional
        """Called after `on_complete`, if the operation expired: for counters."""

    def force_complete(self) -> bool:
        """Complete it whatever its condition says. True: this call did. False: it had ended before."""
        if not self._settle(COMPLETED):
            return False
        self.on_complete()
        return True

    def has_ended(self) -> bool:
        return self.state is not PENDING

    def expire(self) -> None:
        """Its time is over; the timer calls this."""
        if self._settle(EXPIRED):
            try:
                self.on_complete()
                self.on_expiration()
            except Exception as error:
                if self.arbiter is None:
                    raise
                self.arbiter.report(self, error)

    def _settle(self, end: OperationState) -> bool:
        if self.arbiter is not None:
            return self.arbiter.settle(self, end)
        if self.state is not PENDING:
            return False
        self.state = end
        return True


K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=DelayedOperation)  # noqa: E741 - an operation, beside a key


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchLists(Generic[K, O]):
    """Lists of operations by key; a key that no operation watches has none.

    A new operation is appended to `newcomers`. It is entered in the list of each of its keys when the operations of any
    key are next requested, so one that has ended by then is never entered. The caller sets an operation's keys in
    `watches` and appends it to `newcomers` itself. Keys are plain: comparing two that have a hash raises nothing.
    """

    __slots__ = ("_entered", "by_key", "newcomers")

    def __init__(self) -> None:
        self.by_key: dict[K, list[O]] = {}
        self.newcomers: list[O] = []
        """In order of arrival; in no list of a key yet. Always the same list."""
        self._entered = 0
        """How many newcomers there were before those."""

    @property
    def arrived(self) -> int:
        """How many operations came, ever."""
        return self._entered + len(self.newcomers)

    def of(self, key: K) -> list[O]:
        """Those that watch the key now, in order of arrival; some may have ended."""
        if self.newcomers:
            self.enter_newcomers()
        watching = self.by_key.get(key)
        return [] if watching is None else watching[:]

    def enter_newcomers(self) -> None:
        """Enter newcomers under each of their keys, as often as it is named. If that raises (a hash that is a call
        beyond the interpreter's depth), they stay newcomers from the one at which it did."""
        newcomers, by_key = self.newcomers, self.by_key
        entered = 0
        try:
            for operation in newcomers:
                if operation.state is PENDING:
                    for key in operation.watches:
                        try:
                            by_key[key].append(operation)
                        except KeyError:
                            by_key[key] = [operation]
                entered += 1
        finally:
            self._entered += entered
            del newcomers[:entered]

    def sweep(self, key: K) -> int:
        """Remove what has ended from the key's list. Return the number removed."""
        before = self.by_key.get(key)
        if before is None:
            return 0
        left = [operation for operation in before if operation.state is PENDING]
        if left:
            self.by_key[key] = left
        else:
            del self.by_key[key]
        return len(before) - len(left)

    def sweep_all(self) -> int:
        """Remove what has ended from all lists. Return the number of entries removed. Newcomers stay such. They
        are looked at, and freed, in order of arrival, which is mostly that in which they lie in memory."""
        gone = 0
        left: list[O] = []
        for operation in self.newcomers:
            if operation.state is PENDING:
                left.append(operation)
            else:
                gone += len(operation.watches)
        self._entered += len(self.newcomers) - len(left)
        self.newcomers[:] = left
        for key in list(self.by_key):
            gone += self.sweep(key)
        return gone

    def take(self, key: K) -> list[O]:
        """Remove and return those that watch the key."""
        self.enter_newcomers()
        return self.by_key.pop(key, [])

    def watched_keys(self) -> list[K]:
        """Return every key that an operation watches."""
        self.enter_newcomers()
        return list(self.by_key)

    def watched(self) -> int:
        """Return the number of entries, an operation counting once a key, newcomers too; counted now."""
        waiting = sum([len(operation.watches) for operation in self.newcomers])
        return waiting + sum(map(len, list(self.by_key.values())))


NEVER_SLICED: Final = 1 << 62


class _SlicedCheck:
    """`rest`: the operations to be tried, the next one last. `again`: the key was checked again meanwhile. `kept`: how
    many of those tried are still in the key's list, at its start."""

    __slots__ = ("again", "kept", "rest")

    def __init__(self, watching: list[Any]) -> None:
        watching.reverse()
        self.rest = watching
        self.again = False
        self.kept = 0


class AlreadyWatched(Exception):
    """An operation was passed to a purgatory for the second time, or has ended."""

    def __init__(self, operation: DelayedOperation) -> None:
        super().__init__(operation)
        self.operation = operation

    def __str__(self) -> str:
        return f"operation {self.operation!r} can't be watched again; it is {self.operation.state.name}"


def log_failed_operation(operation: DelayedOperation, error: Exception) -> None:
    from controller.log import logger  # rarely needed, and slow to import

    logger.opt(exception=error).error("a delayed operation failed: {!r}", operation)


@mypyc_attr(allow_interpreted_subclasses=True)
class Purgatory(Generic[K, O]):
    """`K` is the type of keys, `O` that of operations. The timer may be shared with other purgatories and callbacks.

    `on_error` is called for an operation that raised when its key was checked, or when it expired; the others are
    unaffected.

    `slice_operations`: how many operations of a key are tried at a time. A check of a key that more operations watch
    tries that many at once, and the others later, that many each time the timer runs what is due, so that the host
    serves others in between. All checks under way share these turns. An operation is tried in its turn against the
    state of that moment; a check of the same key meanwhile lets all that watch it be tried again afterwards, so no
    change is missed. None: all at once.

    ValueError: `purge_interval` or `slice_operations` below 1, `purge_share` below 0.
    """

    def __init__(
        self,
        timer: CallsLater,
        *,
        purge_interval: int = PURGE_INTERVAL,
        purge_share: float = PURGE_SHARE,
        on_error: Callable[[DelayedOperation, Exception], None] = log_failed_operation,
        watchers: WatchLists[K, O] | None = None,
        slice_operations: int | None = None,
    ) -> None:
        if purge_interval < 1:
            raise ValueError(f"purge_interval {purge_interval}: expected 1 or more")
        if purge_share < 0:
            raise ValueError(f"purge_share {purge_share}: expected 0 or more")
        if slice_operations is not None and slice_operations < 1:
            raise ValueError(f"slice_operations {slice_operations}: expected 1 or more, or None")
        self._timer = timer
        self._purge_interval = purge_interval
        self._purge_share = purge_share
        self._on_error = on_error
        self._watchers: WatchLists[K, O] = WatchLists() if watchers is None else watchers
        self._newcomers = self._watchers.newcomers
        self._slice_operations = NEVER_SLICED if slice_operations is None else slice_operations
        self._checks: dict[K, _SlicedCheck] = {}
        """Checks under way, the one whose turn is next first."""
        self._turn_is_due = False
        self._ended = 0
        """Of those that were watched."""
        self._ended_at_purge = 0
        self._purge_beyond = purge_interval
        """While no more than so many have ended, no purge can be worth it."""
        self.purges = 0
        self.purged = 0
        """Entries of watch lists that purges have removed."""

    @property
    def delayed(self) -> int:
        """Operations that are watched and pending."""
        return self._watchers.arrived - self._ended

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
        if operation.arbiter is not None or operation.state is not PENDING:
            raise AlreadyWatched(operation)
        if operation.try_complete():
            return True
        # Nothing can have happened since: one thread.
        operation.arbiter = self
        operation.watches = keys = tuple(keys)  # the caller's may change
        self._newcomers.append(operation)
        try:
            hash(keys)  # an unhashable key is refused now, not during a check of another key
            timeout_ms = operation.timeout_ms
            operation.timer = self._timer.call_later(timeout_ms if timeout_ms > 0 else 0, operation.expire)
        except Exception:
            self.settle(operation, CANCELLED)
            raise
        return operation.state is not PENDING

    def check_and_complete(self, key: K) -> int:
        """Try every operation that watches `key`, because something about it has changed. Return the number that this
        call completed; see `slice_operations`."""
        watchers = self._watchers
        if watchers.newcomers:
            watchers.enter_newcomers()
        watching = watchers.by_key.get(key)  # as `WatchLists.of`, without a call
        if watching is None:
            return 0
        if len(watching) > self._slice_operations:
            return self._check_in_slices(key, watching)
        return self._complete_those(key, watching[:])

    def _check_in_slices(self, key: K, watching: Sequence[O]) -> int:
        under_way = self._checks.get(key)
        if under_way is not None:
            under_way.again = True  # some have been tried already
            self._await_turn()
            return 0
        check = _SlicedCheck(list(watching))
        is_first = not self._checks
        self._checks[key] = check
        if is_first:
            return self._try_slice(key, check)
        self._await_turn()
        return 0

    def _await_turn(self) -> None:
        if self._checks and not self._turn_is_due:
            self._timer.call_later(0, self._take_turn)
            self._turn_is_due = True

    def _take_turn(self) -> None:
        self._turn_is_due = False
        for key, check in self._checks.items():
            self._try_slice(key, check)
            return

    def _try_slice(self, key: K, check: _SlicedCheck) -> int:
        """Try the next operations of a check; then it is another's turn, or the check is over."""
        some = check.rest[-self._slice_operations :]
        del check.rest[-self._slice_operations :]
        some.reverse()
        completed = self._try_all(some)
        self._sweep_slice(key, check, len(some))
        if not check.rest and check.again:
            check.again, check.kept = False, 0
            check.rest = self._watchers.of(key)
            check.rest.reverse()
        del self._checks[key]
        if check.rest:
            self._checks[key] = check
        self._await_turn()
        return completed

    def _sweep_slice(self, key: K, check: _SlicedCheck, count: int) -> None:
        """Remove from the key's list what has ended among the next `count`: freeing all of a long list takes long."""
        watching = self._watchers.by_key.get(key)
        if watching is None:
            return
        left = [one for one in watching[check.kept : check.kept + count] if one.state is PENDING]
        watching[check.kept : check.kept + count] = left
        check.kept += len(left)
        if not watching:
            del self._watchers.by_key[key]

    def _complete_those(self, key: K, watching: Sequence[O]) -> int:
        """`watching`: the operations that watch the key."""
        completed = self._try_all(watching)
        for operation in watching:
            if operation.state is not PENDING:
                self._watchers.sweep(key)
                break
        return completed

    def _try_all(self, operations: Sequence[O]) -> int:
        completed = 0
        for operation in operations:
            if operation.state is PENDING:
                try:
                    if self._try(operation):
                        completed += 1
                except Exception as error:  # noqa: BLE001 - whatever one raises, the others are tried
                    self._on_error(operation, error)
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
        """Remove ended operations from every watch list. Return the number of entries removed."""
        self._purged_at(self._ended)
        gone = self._watchers.sweep_all()
        self.purges += 1
        self.purged += gone
        return gone

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        """For operations: see `CompletionArbiter`. The operation leaves the timer at once."""
        if operation.state is not PENDING:
            return False
        operation.state = end
        self._ended += 1
        timer = operation.timer
        if timer is not None:
            operation.timer = None  # refers to the operation
            if end is not EXPIRED:
                timer.cancel()
        return True

    def report(self, operation: DelayedOperation, error: Exception) -> None:
        self._on_error(operation, error)

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
