"""Watch lists: which operations a key's news may complete. For one thread; no lock.

Who comes stands in one list, the newcomers', and is entered in the list of each key that it watches when somebody next
asks who watches a key: whoever has ended by then never sees those lists. Nobody looks for an operation in any list when
it ends: what has ended is left out when its list is next looked at, or by a purge.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from controller.timer.native import mypyc_attr
from controller.timer.operation import PENDING, DelayedOperation

K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=DelayedOperation)  # noqa: E741 - an operation, beside a key


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchLists(Generic[K, O]):
    """Lists by key; a key that nobody watches has none. Who hands in says in `watches` what the operation does, and
    appends it to `newcomers` itself. Keys are plain: to compare two that have a hash raises nothing."""

    __slots__ = ("by_key", "let_in_before", "newcomers")

    def __init__(self) -> None:
        self.by_key: dict[K, list[O]] = {}
        self.newcomers: list[O] = []
        """In the order in which they came; in no list of a key yet. The same list for good."""
        self.let_in_before = 0
        """How many newcomers there were before those."""

    @property
    def handed_in(self) -> int:
        """How many operations came, ever."""
        return self.let_in_before + len(self.newcomers)

    def of(self, key: K) -> list[O]:
        """Those that watch the key now, in the order in which they came; some may have ended."""
        if self.newcomers:
            self.let_in()
        watching = self.by_key.get(key)
        return [] if watching is None else watching[:]

    def let_in(self) -> None:
        """Enters newcomers under each of their keys, as often as it is named. Should it break off (a hash that is a
        call beyond the interpreter's depth), they stay newcomers from the one at which it did."""
        newcomers, by_key = self.newcomers, self.by_key
        if not newcomers:
            return
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
            self.let_in_before += entered
            del newcomers[:entered]

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
        gone = 0
        left: list[O] = []
        for operation in self.newcomers:
            if operation.state is PENDING:
                left.append(operation)
            else:
                gone += len(operation.watches)
        self.let_in_before += len(self.newcomers) - len(left)
        self.newcomers[:] = left
        for key in list(self.by_key):
            gone += self.sweep(key)
        return gone

    def take(self, key: K) -> list[O]:
        """Those that watch the key, who no longer do."""
        self.let_in()
        return self.by_key.pop(key, [])

    def watched_keys(self) -> list[K]:
        """Every key that somebody watches."""
        self.let_in()
        return list(self.by_key)

    def watched(self) -> int:
        """How many entries there are, an operation counting once a key, newcomers too; counted now."""
        waiting = sum([len(operation.watches) for operation in self.newcomers])
        return waiting + sum(map(len, list(self.by_key.values())))
