"""Whose turn it is to look at an operation: news that come at the very moment at which a look ends are not missed, and
nobody answers twice (S58, KAFKA-6653).

No lock orders that moment, so news are let in on either side of the one step that ends a look. The step is an
attribute's assignment, of which only interpreted code tells the operation's class: the compiled build stores at once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.timer import COMPILED, VirtualTimer
from controller.timer.operation import COMPLETED, DelayedOperation
from controller.timer.threaded_purgatory import ThreadedPurgatory
from tests.timer.operations import Switched
from tests.timer.test_purgatory_threads import elsewhere

Shared = ThreadedPurgatory[str, Switched]
SLOT = DelayedOperation.__dict__["trying"]


class Leaving(Switched):
    """Calls `leaving` just before a thread's look is over, and `left` just after; once each."""

    __slots__ = ("leaving", "left")

    def __init__(self) -> None:
        super().__init__()
        self.leaving: Callable[[], object] | None = None
        self.left: Callable[[], object] | None = None

    def _get(self) -> bool:
        now: bool = SLOT.__get__(self)
        return now

    def _set(self, now: bool) -> None:
        if not now:
            then, self.leaving = self.leaving, None
            if then is not None:
                then()
        SLOT.__set__(self, now)
        if not now:
            then, self.left = self.left, None
            if then is not None:
                then()

    if not COMPILED:
        trying = property(_get, _set)


def check_news_as_a_look_ends(kind: type[Shared], moment: str, first: bool) -> None:
    """`first`: in the second look of the thread that hands in, since news came in its first; else in one that news have
    set off."""
    purgatory = kind(VirtualTimer())
    operation = Leaving()

    def changed() -> None:
        operation.on = True
        elsewhere(lambda: purgatory.check_and_complete("a"))

    def looks_first() -> None:
        operation.looked = looks_again
        elsewhere(lambda: purgatory.check_and_complete("a"))

    def looks_again() -> None:
        operation.looked = None
        setattr(operation, moment, changed)

    if first:
        operation.looked = looks_first
        purgatory.try_complete_else_watch(operation, ["a"])
    else:
        purgatory.try_complete_else_watch(operation, ["a"])
        setattr(operation, moment, changed)
        purgatory.check_and_complete("a")
    if COMPILED:
        changed()
    assert operation.state is COMPLETED, "a change was missed"
    assert operation.answers == 1
    assert not operation.trying
    assert not purgatory._asked_again


@pytest.mark.parametrize("moment", ["leaving", "left"])
@pytest.mark.parametrize("first", [True, False])
def test_news_as_a_look_ends_are_not_missed(moment: str, first: bool) -> None:
    check_news_as_a_look_ends(ThreadedPurgatory, moment, first)


class SeesBeforeItSays(Shared):
    """Looks whether it was asked again, and then says that its look is over."""

    def _try(self, operation: Switched) -> bool:
        if operation.trying:
            self._asked_again.add(operation)
            return False
        operation.trying = True
        completed = again = True
        while again:
            self._asked_again.discard(operation)
            completed = operation.try_complete()
            again = operation in self._asked_again
        operation.trying = False
        return completed


if not COMPILED:

    def test_a_look_that_ends_in_the_wrong_order_is_found() -> None:
        with pytest.raises(AssertionError, match="a change was missed"):
            check_news_as_a_look_ends(SeesBeforeItSays, "leaving", False)
