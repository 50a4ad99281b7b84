"""Watch lists: which operations a key's news may complete. For one thread; no lock.

A new operation is appended to the last cohort. It is entered in the list of each of its keys when the operations of any
key are next requested, so one that has ended by then is never entered. An operation that ends is not searched for in
the lists: it is left out when its list is next swept, when its cohort's time comes, or by a purge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from controller.timer.cohort import Cohort
from controller.timer.native import mypyc_attr
from controller.timer.operation import PENDING, DelayedOperation

K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=DelayedOperation)  # noqa: E741 - an operation, beside a key


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchLists(Generic[K, O]):
    """Lists by key; a key that no operation watches has none. The caller sets an operation's keys in `watches` and
    appends the operation to the last cohort itself. Keys are plain: comparing two that have a hash raises nothing."""

    __slots__ = ("_released", "by_key", "came_before", "cohorts", "entered")

    def __init__(self) -> None:
        self.by_key: dict[K, list[O]] = {}
        self.cohorts: deque[Cohort] = deque((Cohort(0),))
        """Those with newcomers, in the order in which they came, and always a last, to which who comes is appended. The
        first of all is in no timer; it is the only one where each operation is in the timer by itself."""
        self.entered: deque[Cohort] = deque()
        """Those without newcomers that are in the timer still."""
        self.came_before = 0
        """How many came that the last cohort does not know of."""
        self._released = 0
        """By cohorts that are no longer here."""

    @property
    def handed_in(self) -> int:
        """How many operations came, ever."""
        last = self.cohorts[-1]
        return self.came_before + last.released + len(last.members)

    @property
    def newcomers(self) -> list[O]:
        """In the order in which they came; in no list of a key yet."""
        return [operation for cohort in self.cohorts for operation in cohort.members[cohort.entered :]]

    def open(self, timeout_ms: int) -> Cohort:
        """A new last cohort. Those that are over go, first come first."""
        self.came_before = self.handed_in
        cohorts = self.cohorts
        while cohorts and not (cohorts[0].pending or cohorts[0].members):
            over = cohorts.popleft()
            if not over.entered:
                self._released += over.released
        cohort = Cohort(timeout_ms)
        cohorts.append(cohort)
        return cohort

    def take_released(self) -> int:
        """How many newcomers that have ended are here no more, without a purge, since this was last asked; or fewer."""
        released, self._released = self._released, 0
        return released

    def of(self, key: K) -> list[O]:
        """Those that watch the key now, in the order in which they came; some may have ended."""
        last = self.cohorts[-1]
        if last.entered != len(last.members) or len(self.cohorts) > 1:
            self.let_in()
        watching = self.by_key.get(key)
        return [] if watching is None else watching[:]

    def let_in(self) -> None:
        """Enters newcomers under each of their keys, as often as it is named. Should it break off (a hash that is a
        call beyond the interpreter's depth), they stay newcomers from the one at which it did."""
        cohorts = self.cohorts
        last = cohorts[-1]
        for cohort in cohorts:
            self._enter_those_of(cohort)
        entered = self.entered
        while entered and not entered[0].pending:
            entered.popleft()
        while len(cohorts) > 1:
            cohort = cohorts.popleft()
            if cohort.pending:
                entered.append(cohort)
        if not last.pending:  # then its members are not needed
            self.came_before += last.entered
            last.members = []
            last.entered = 0

    def _enter_those_of(self, cohort: Cohort) -> None:
        by_key = self.by_key
        entered = cohort.entered
        try:
            for operation in cohort.members[entered:]:
                if operation.state is PENDING:
                    for key in operation.watches:
                        try:
                            by_key[key].append(operation)
                        except KeyError:
                            by_key[key] = [operation]
                entered += 1
        finally:
            cohort.entered = entered

    def sweep(self, key: K) -> int:
        """Leaves out what has ended; how many that were."""
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
        """Leaves out what has ended, everywhere; how many entries that were. Newcomers stay such. They
        are looked at, and freed, in the order in which they came, which is mostly that in which they lie in memory."""
        came = self.handed_in
        gone = 0
        for cohort in self.cohorts:
            gone += cohort.sweep()
            cohort.released = 0
        self._released = 0
        self.came_before = came - len(self.cohorts[-1].members)
        for cohort in self.entered:
            cohort.members = cohort.in_timer()
        for key in list(self.by_key):
            gone += self.sweep(key)
        return gone

    def drop_empty(self) -> list[Cohort]:
        """Remove the cohorts that a sweep has left without members, except the last one, and return them."""
        last = self.cohorts.pop()
        dropped = [cohort for cohort in (*self.cohorts, *self.entered) if not cohort.members]
        self.cohorts = deque(cohort for cohort in self.cohorts if cohort.members)
        self.cohorts.append(last)
        self.entered = deque(cohort for cohort in self.entered if cohort.members)
        return dropped

    def take(self, key: K) -> list[O]:
        """Those that watch the key, who no longer do."""
        self.let_in()
        return self.by_key.pop(key, [])

    def watched_keys(self) -> list[K]:
        """Return every key that an operation watches."""
        self.let_in()
        return list(self.by_key)

    def watched(self) -> int:
        """How many entries there are, an operation counting once a key, newcomers too; counted now."""
        waiting = sum([len(operation.watches) for operation in self.newcomers])
        return waiting + sum(map(len, list(self.by_key.values())))
