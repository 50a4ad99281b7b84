"""Watch lists for a purgatory with threads, in which adding an operation takes no lock.

A new operation is appended to a list of newcomers, which is that of a cohort too (`threaded_cohort`). It is entered
under its keys when the operations of any key are next requested. So an operation that has ended by then is never
entered in those lists.

A thread that requests the operations of a key first acquires the door lock. One thread at a time enters newcomers under
it; others wait until these are entered and do not miss them. Adding an operation does not take the door lock. Below it
are the lists by key and their locks (`sharded_watchers`): these are taken while the door is held, never the other way
round, and no operation's method is called under either. Objects that are dropped are kept until the door is released,
as the last reference to an operation may be among them.

Knows no timer: who is dropped here is the purgatory's to take out of it.
"""

from __future__ import annotations

import threading

from controller.timer.native import mypyc_attr
from controller.timer.operation import PENDING
from controller.timer.sharded_watchers import SHARDS, ShardedWatchLists
from controller.timer.threaded_cohort import ThreadedCohort
from controller.timer.watchers import K, O


@mypyc_attr(allow_interpreted_subclasses=True)
class ThreadedWatchLists(ShardedWatchLists[K, O]):
    """Who hands in says in `watches` what the operation does, and appends it to `last` itself, or calls `stand`."""

    __slots__ = ("_door", "_let_go", "entered_in_timer", "fresh", "last")

    def __init__(self, shards: int = SHARDS) -> None:
        super().__init__(shards)
        self._door = threading.Lock()
        self._let_go = 0
        """How many newcomers that have ended are here no more, without a purge, since this was last asked."""
        self.last = ThreadedCohort()
        """Who comes joins this one, if it is for his time and not over."""
        self.fresh: dict[ThreadedCohort, None] = {self.last: None}
        """Those that may have newcomers, in the order in which they were opened."""
        self.entered_in_timer: dict[ThreadedCohort, None] = {}
        """Those that have none, for good, and are in the timer still."""

    @property
    def newcomers(self) -> list[O]:
        """In the order in which they came; in no list of a key yet."""
        with self._door:
            return [operation for cohort in list(self.fresh) for operation in cohort.members[cohort.entered :]]

    def stand(self, operation: O) -> None:
        """Among the newcomers, with whichever cohort is the last."""
        while True:
            last = self.last
            last.members.append(operation)
            if not last.over:
                return
            cohort = ThreadedCohort()
            self.fresh[cohort] = None
            self.last = cohort

    def take_released(self) -> int:
        with self._door:
            let_go, self._let_go = self._let_go, 0
        return let_go

    def of(self, key: K) -> list[O]:
        self.let_in()
        return super().of(key)

    def take(self, key: K) -> list[O]:
        self.let_in()
        return super().take(key)

    def watched_keys(self) -> list[K]:
        self.let_in()
        return list(self.by_key)

    def let_in(self) -> None:
        """Enters newcomers under each of their keys, as often as it is named. Should it break off (a hash that is a
        call beyond the interpreter's depth), they stay newcomers from the one at which it did."""
        kept: list[object] = []
        self._door.acquire()
        try:
            for cohort in list(self.fresh):
                if cohort is not self.last:
                    cohort.over = True
                over = cohort.over  # before its members are read: who comes to it later than that stands elsewhere, too
                self._enter_newcomers_of(cohort)
                if cohort.out:
                    kept.append(cohort.members[: cohort.entered])
                    del cohort.members[: cohort.entered]
                    cohort.entered = 0
                if over:
                    kept.append(cohort)
                    del self.fresh[cohort]
                    if not cohort.out:
                        self.entered_in_timer[cohort] = None
        finally:
            self._door.release()
        kept.clear()

    def let_go(self, cohort: ThreadedCohort) -> None:
        """On the timer's thread. Those that are pending still (they were cancelled in the timer, say) and not entered
        stay newcomers."""
        self._door.acquire()
        try:
            kept = cohort.members[:]
            self._let_go += self._sweep(cohort, kept)[0]
            cohort.out = True
            del cohort.members[: cohort.entered]
            cohort.entered = 0
            self.entered_in_timer.pop(cohort, None)
            if not cohort.members:
                self.fresh.pop(cohort, None)
        finally:
            self._door.release()
        kept.clear()

    def sweep_cohorts(self) -> tuple[int, list[ThreadedCohort]]:
        """Remove ended operations that are with a cohort. The door is released between cohorts.

        Returns:
            How many keys they watched that had not been entered, and the cohorts without members, which are dropped."""
        gone = 0
        dropped = []
        for cohort in (*list(self.fresh), *list(self.entered_in_timer)):
            with self._door:
                kept = cohort.members[:]
                gone += self._sweep(cohort, kept)[1]
                if not cohort.members and self._drop(cohort):
                    dropped.append(cohort)
            kept.clear()
        return gone, dropped

    def _enter_newcomers_of(self, cohort: ThreadedCohort) -> None:
        entered = cohort.entered
        try:
            for operation in cohort.members[entered:]:
                if operation.state is PENDING:
                    self.watch(operation, operation.watches)
                entered += 1
        finally:
            cohort.entered = entered

    def _sweep(self, cohort: ThreadedCohort, before: list[O]) -> tuple[int, int]:
        """At the door, through `before`, a copy of its members from there. Of those that have ended and were newcomers:
        how many, and how many keys they watch."""
        entered = cohort.entered
        newcomers = before[entered:] if entered else before
        left_entered = [operation for operation in before[:entered] if operation.state is PENDING] if entered else []
        left = [operation for operation in newcomers if operation.state is PENDING]
        cohort.entered = len(left_entered)
        cohort.members[: len(before)] = left_entered + left
        keys = sum([len(operation.watches) for operation in newcomers])
        return len(newcomers) - len(left), keys - sum([len(operation.watches) for operation in left])

    def _drop(self, cohort: ThreadedCohort) -> bool:
        """At the door, one that seems empty. False: it is not, after all, or is where all that come now stand."""
        if cohort is self.last and cohort.out and not cohort.over:
            return False
        cohort.over = True
        if cohort.members:  # somebody came who may not have seen that
            return False
        cohort.out = True
        self.fresh.pop(cohort, None)
        self.entered_in_timer.pop(cohort, None)
        return True
