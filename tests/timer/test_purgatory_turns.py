"""Whose turn it is to try an operation: news that come at the very moment at which a try ends are not missed, and
each operation is answered once (S58, KAFKA-6653).

No lock orders that moment, so news are let in on either side of the one step that ends a try: the purgatory's set of
those that are being tried is the test's. The compiled build calls no method of a set's subclass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.labs.threaded_purgatory import ThreadedPurgatory
from controller.timer import COMPILED
from controller.timer.purgatory import COMPLETED, DelayedOperation
from tests.timer.operations import Switched
from tests.timer.test_purgatory_threads import elsewhere
from tests.timer.wheel_clock import CountedClock

Shared = ThreadedPurgatory[str, Switched]


class Trying(set[DelayedOperation]):
    """Calls `leaving` just before an operation's try is over, and `left` just after; once each."""

    leaving: Callable[[], object] | None = None
    left: Callable[[], object] | None = None

    def discard(self, operation: object) -> None:
        then, self.leaving = self.leaving, None
        if then is not None:
            then()
        super().discard(operation)
        then, self.left = self.left, None
        if then is not None:
            then()


def check_news_as_a_look_ends(kind: type[Shared], moment: str, first: bool) -> None:
    """`first`: in the second look of the thread that hands in, since news came in its first; else in one that news have
    set off."""
    purgatory = kind(CountedClock())
    purgatory._trying = trying = Trying()
    operation = Switched()

    def changed() -> None:
        operation.on = True
        elsewhere(lambda: purgatory.check_and_complete("a"))

    def looks_first() -> None:
        operation.looked = looks_again
        elsewhere(lambda: purgatory.check_and_complete("a"))

    def looks_again() -> None:
        operation.looked = None
        setattr(trying, moment, changed)

    if first:
        operation.looked = looks_first
        purgatory.try_complete_else_watch(operation, ["a"])
    else:
        purgatory.try_complete_else_watch(operation, ["a"])
        setattr(trying, moment, changed)
        purgatory.check_and_complete("a")
    if COMPILED:
        changed()
    assert operation.state is COMPLETED, "a change was missed"
    assert operation.answers == 1
    assert not trying
    assert not purgatory._asked_again


@pytest.mark.parametrize("moment", ["leaving", "left"])
@pytest.mark.parametrize("first", [True, False])
def test_news_as_a_look_ends_are_not_missed(moment: str, first: bool) -> None:
    check_news_as_a_look_ends(ThreadedPurgatory, moment, first)


class SeesBeforeItSays(Shared):
    """Looks whether it was asked again, and then says that its look is over."""

    def _try(self, operation: Switched) -> bool:
        if operation in self._trying:
            self._asked_again.add(operation)
            return False
        self._trying.add(operation)
        completed = again = True
        while again:
            self._asked_again.discard(operation)
            completed = operation.try_complete()
            again = operation in self._asked_again
        self._trying.discard(operation)
        return completed


@pytest.mark.skipif(COMPILED, reason="the set is not the test's")
def test_a_try_that_ends_in_the_wrong_order_is_found() -> None:
    with pytest.raises(AssertionError, match="a change was missed"):
        check_news_as_a_look_ends(SeesBeforeItSays, "leaving", False)
