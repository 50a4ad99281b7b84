"""Watch lists on one thread: who comes is in no list of a key until somebody asks for one, and nobody can tell."""

from __future__ import annotations

import pytest

from controller.timer.purgatory import OperationState, Purgatory, WatchLists
from tests.timer.operations import Switched
from tests.timer.wheel_clock import CountedClock

Pending, Completed, Expired, Cancelled = OperationState


def watched_by(*names: str) -> tuple[Purgatory[str, Switched], WatchLists[str, Switched], list[Switched]]:
    """Operations of these names, each watching "all" and its name."""
    purgatory: Purgatory[str, Switched] = Purgatory(CountedClock())
    operations = [Switched(name) for name in names]
    for operation in operations:
        assert not purgatory.try_complete_else_watch(operation, ["all", operation.name])
    return purgatory, purgatory._watchers, operations


def test_who_has_ended_before_anybody_asks_never_sees_the_list_of_a_key() -> None:
    purgatory, lists, (x, y, z) = watched_by("x", "y", "z")
    y.force_complete()
    assert (lists.by_key, lists.watched(), purgatory.delayed) == ({}, 6, 2)
    assert purgatory.check_and_complete("nobody's") == 0
    assert lists.by_key == {"all": [x, z], "x": [x], "z": [z]}
    assert (lists.newcomers, lists.watched(), purgatory.delayed, lists.arrived) == ([], 4, 2, 3)


def test_who_comes_later_stands_behind_who_came_before() -> None:
    purgatory, lists, (x, y) = watched_by("x", "y")
    assert lists.of("all") == [x, y]
    purgatory.try_complete_else_watch(z := Switched("z"), ["all"])
    assert lists.by_key["all"] == [x, y]
    assert lists.of("all") == [x, y, z]
    assert purgatory.cancel_for_key("all") == [x, y, z]
    assert purgatory.delayed == 0


@pytest.mark.parametrize("asked", [False, True])
def test_a_purge_leaves_out_what_has_ended_wherever_it_stands(asked: bool) -> None:
    purgatory, lists, (x, y, z) = watched_by("x", "y", "z")
    if asked:
        lists.enter_newcomers()
    x.force_complete()
    z.force_complete()
    assert (purgatory.purge(), purgatory.watched, purgatory.delayed) == (4, 2, 1)
    assert (lists.of("all"), lists.watched_keys(), purgatory.delayed) == ([y], ["all", "y"], 1)
    assert purgatory.purge() == 0


class Deep:
    """A key whose hash is a call; `beyond`: there is no depth left for it."""

    beyond = False

    def __hash__(self) -> int:
        if self.beyond:
            raise RecursionError("maximum recursion depth exceeded")
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def test_letting_in_that_breaks_off_loses_nobody() -> None:
    purgatory: Purgatory[str | Deep, Switched] = Purgatory(CountedClock())
    deep = Deep()
    first, second, third = (Switched(name) for name in ("first", "second", "third"))
    watched: list[tuple[Switched, list[str | Deep]]] = [(first, ["a"]), (second, ["a", deep]), (third, ["a", "b"])]
    for operation, keys in watched:
        purgatory.try_complete_else_watch(operation, keys)
    deep.beyond = True
    with pytest.raises(RecursionError):
        purgatory.check_and_complete("a")
    assert (purgatory.delayed, purgatory._watchers.newcomers) == (3, [second, third])
    deep.beyond = False
    first.on = second.on = third.on = True
    assert [purgatory.check_and_complete(key) for key in (deep, "b", "a")] == [1, 1, 1]
    assert [operation.answers for operation in (first, second, third)] == [1, 1, 1]
    purgatory.purge()
    assert (purgatory.delayed, purgatory.watched) == (0, 0)
