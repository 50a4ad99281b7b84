"""Watch lists that are appended to without a lock: whatever comes between two steps of a thread, nobody who watches is
overlooked and nobody who has been handed over is handed over again.

The two steps are forced apart: the dictionary and the lists are the tests', and let something happen between them. A
check takes the kind of lists it is to look at, so that it can be given one with a step left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from controller.labs.threaded_purgatory import ShardedWatchLists
from controller.timer.purgatory import CANCELLED, COMPLETED
from tests.timer.operations import Switched
from tests.timer.test_purgatory_threads import elsewhere

Lists = ShardedWatchLists[str, Switched]


class Interleaved(dict[str, Any]):
    """Calls `found` after somebody has found a list in it, `removed` after a list was taken out of it; once each."""

    found: Callable[[], object] | None = None
    removed: Callable[[], object] | None = None

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        then, self.found = self.found, None
        if then is not None:
            then()
        return value

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._has_removed()

    def pop(self, key: str, *default: Any) -> Any:
        value = super().pop(key, *default)
        self._has_removed()
        return value

    def _has_removed(self) -> None:
        then, self.removed = self.removed, None
        if then is not None:
            then()


class Copied(list[Switched]):
    """Calls `copied` after somebody has copied a part of it; once."""

    copied: Callable[[], object] | None = None

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        then, self.copied = self.copied, None
        if then is not None:
            then()
        return part


def interleaved(kind: type[Lists]) -> tuple[Lists, Interleaved, Switched]:
    """With one that has ended and watches "a"."""
    lists = kind()
    between = Interleaved()
    lists.by_key = between
    lists.watch(ended := Switched("ended"), ["a"])
    ended.state = COMPLETED
    return lists, between, ended


def check_a_list_that_goes_before_the_entry(kind: type[Lists]) -> None:
    """The list was found, then swept empty and taken out by another thread, then appended to."""
    lists, between, _ = interleaved(kind)
    between.found = lambda: elsewhere(lambda: lists.sweep("a"))
    lists.watch(late := Switched("late"), ["a", "b"])
    assert lists.of("a") == lists.of("b") == [late]
    assert lists.watched() == 2


def check_an_entry_while_its_list_goes(kind: type[Lists]) -> None:
    """The list was found empty and taken out; before that is marked, somebody who had found it has appended, and has
    seen no mark."""
    lists, between, _ = interleaved(kind)
    entered, late = lists.by_key["a"], Switched("late")
    between.removed = lambda: entered.append(late)
    assert lists.sweep("a") == 1
    assert lists.of("a") == [late]
    assert lists.watched_keys() == ["a"]


def check_an_entry_during_a_sweep(kind: type[Lists]) -> None:
    """The list was looked through, then appended to, then swept."""
    lists, between, ended = interleaved(kind)
    watching = Copied([ended, early := Switched("early")])
    between["a"] = watching
    watching.copied = lambda: elsewhere(lambda: lists.watch(late, ["a"]))
    late = Switched("late")
    assert lists.sweep("a") == 1
    assert lists.of("a") == [early, late]


def check_a_list_that_is_handed_over_before_the_entry(kind: type[Lists]) -> None:
    """The list was found, then taken by another thread, then appended to: as if it had come after."""
    lists, between, _ = interleaved(kind)
    lists.watch(first := Switched("first"), ["a"])
    taken: list[Switched] = []

    def take() -> None:
        taken.extend(lists.take("a"))
        for operation in taken:
            operation.state = CANCELLED

    between.found = lambda: elsewhere(take)
    lists.watch(late := Switched("late"), ["a"])
    assert first in taken
    assert late not in taken
    assert lists.of("a") == [late]


def check_an_entry_while_its_list_is_handed_over(kind: type[Lists]) -> None:
    """The list was taken out; before that is marked, somebody who had found it has appended, and has seen no mark."""
    lists, between, ended = interleaved(kind)
    entered, late = lists.by_key["a"], Switched("late")
    between.removed = lambda: entered.append(late)
    assert lists.take("a") == [ended, late]
    assert lists.watched() == 0


CHECKS = [
    check_a_list_that_goes_before_the_entry,
    check_an_entry_while_its_list_goes,
    check_an_entry_during_a_sweep,
    check_a_list_that_is_handed_over_before_the_entry,
    check_an_entry_while_its_list_is_handed_over,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_nobody_is_overlooked(check: Callable[[type[Lists]], None]) -> None:
    check(ShardedWatchLists)


class LooksAtNoMark(Lists):
    def _make_sure(self, operation: Switched, keys: Collection[str]) -> None:
        return None


class LeavesNoMark(Lists):
    def take(self, key: str) -> list[Switched]:
        before = self.mark
        taken = super().take(key)
        self.mark = before
        return taken


class RemovesForGood(Lists):
    def _remove(self, key: str, watching: list[Switched]) -> None:
        del self.by_key[key]
        self.mark = object()


class SweepsIntoANewList(Lists):
    def sweep(self, key: str) -> int:
        with self._lock_of(key):
            before = self.by_key[key][:]
            left = self.by_key[key] = [operation for operation in before if not operation.has_ended()]
        return len(before) - len(left)


class CopiesBeforeItTakesOut(Lists):
    def take(self, key: str) -> list[Switched]:
        with self._lock_of(key):
            taken = self.by_key[key][:]
            self.by_key.pop(key)
            self.mark = object()
            return taken


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (LooksAtNoMark, check_a_list_that_goes_before_the_entry),
        (LooksAtNoMark, check_a_list_that_is_handed_over_before_the_entry),
        (LeavesNoMark, check_a_list_that_is_handed_over_before_the_entry),
        (RemovesForGood, check_an_entry_while_its_list_goes),
        (SweepsIntoANewList, check_an_entry_during_a_sweep),
        (CopiesBeforeItTakesOut, check_an_entry_while_its_list_is_handed_over),
    ],
)
def test_a_step_that_is_left_out_is_found(kind: type[Lists], check: Callable[[type[Lists]], None]) -> None:
    with pytest.raises(AssertionError):
        check(kind)


def test_a_key_is_entered_as_often_as_it_is_named_and_goes_with_its_last_operation() -> None:
    lists = Lists()
    lists.watch(operation := Switched(), ["a", "a"])
    assert (lists.of("a"), lists.watched()) == ([operation, operation], 2)
    operation.state = COMPLETED
    assert (lists.sweep("a"), lists.sweep("a"), lists.watched_keys()) == (2, 0, [])
    assert lists.take("a") == lists.of("a") == []
