"""What every scheme promises beside the right tick: errors that name the interval, actions that may do anything,
exceptions that harm nobody else; and what single schemes promise about their memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.labs.schemes import (
    CATALOGUE,
    STALE_LEAST,
    Entry,
    IntervalError,
    IntervalTooLong,
    IntervalTooShort,
    LazyHeap,
    OrderedHashedWheel,
    Scheme,
    SimpleWheel,
    TickFromAction,
    UnorderedHashedWheel,
    table_text,
    wheels_needed,
)

LONGEST, SLOTS = 500, 32
each_scheme = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)


def make(entry: Entry) -> Scheme:
    return entry.make(LONGEST, SLOTS)


def nothing() -> None:
    return None


def test_all_seven_are_in_the_catalogue() -> None:
    assert sorted({entry.number for entry in CATALOGUE}) == [1, 2, 3, 4, 5, 6, 7]
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)


@each_scheme
@pytest.mark.parametrize("interval", [0, -1])
def test_an_interval_below_a_tick_is_refused_and_changes_nothing(entry: Entry, interval: int) -> None:
    scheme = make(entry)
    timer = scheme.start(5, nothing)
    with pytest.raises(IntervalTooShort, match=f"interval {interval}: expected 1"):
        scheme.start(interval, nothing)
    with pytest.raises(IntervalTooShort):
        scheme.restart(timer, interval)
    assert (len(scheme), timer.pending, timer.due_tick) == (1, True, 5)
    assert scheme.advance_to(5) == 1


def test_an_interval_beyond_a_simple_wheel_is_refused_with_both_numbers() -> None:
    scheme = SimpleWheel(256)
    timer = scheme.start(256, nothing)
    for refused in (lambda: scheme.start(257, nothing), lambda: scheme.restart(timer, 257)):
        with pytest.raises(
            IntervalTooLong, match="simple wheel: interval 257 is beyond its maximum of 256 ticks"
        ) as at:
            refused()
        assert (at.value.interval, at.value.maximum) == (257, 256)
        assert isinstance(at.value, IntervalError)
    assert scheme.advance_to(255) == 0
    assert scheme.tick() == 1


@pytest.mark.parametrize("kind", [SimpleWheel, OrderedHashedWheel, UnorderedHashedWheel])
def test_a_wheel_without_a_slot_is_refused(kind: Callable[[int], Scheme]) -> None:
    with pytest.raises(ValueError, match="0 slots, expected 1 or more"):
        kind(0)


@each_scheme
def test_of_two_timers_that_stop_each_other_in_one_tick_the_first_runs_alone(entry: Entry) -> None:
    scheme, ran = make(entry), []
    first = scheme.start(40, lambda: ran.append(("first", scheme.stop(second))))
    second = scheme.start(40, lambda: ran.append(("second", scheme.stop(first))))
    assert scheme.advance_to(LONGEST) == 1
    assert ran == [("first", True)]
    assert len(scheme) == 0


@each_scheme
def test_a_timer_may_restart_itself_and_a_neighbour_of_its_tick(entry: Entry) -> None:
    scheme, ran = make(entry), []

    def again() -> None:
        ran.append(("periodic", scheme.now_tick))
        if len(ran) < 3:
            scheme.restart(periodic, SLOTS)
            scheme.restart(neighbour, 1)

    periodic = scheme.start(10, again)
    neighbour = scheme.start(10, lambda: ran.append(("neighbour", scheme.now_tick)))
    scheme.advance_to(LONGEST)
    assert ran == [("periodic", 10), ("neighbour", 11), ("periodic", 10 + SLOTS), ("neighbour", 11 + SLOTS)][: len(ran)]
    assert ran[0] == ("periodic", 10)
    assert ran[1] == ("neighbour", 11)
    assert len(scheme) == 0


@each_scheme
def test_an_action_that_raises_is_reported_after_the_others_have_run(entry: Entry) -> None:
    scheme, ran = make(entry), []
    scheme.start(7, lambda: 1 // 0)
    scheme.start(7, lambda: ran.append(scheme.now_tick))
    scheme.start(8, lambda: ran.append(scheme.now_tick))
    with pytest.raises(ExceptionGroup, match="actions of tick 7") as raised:
        scheme.advance_to(8)
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]
    assert ran == [7]
    assert scheme.advance_to(8) == 1


@each_scheme
def test_time_does_not_pass_from_within_an_action(entry: Entry) -> None:
    scheme = make(entry)
    scheme.start(3, scheme.tick)
    with pytest.raises(ExceptionGroup) as raised:
        scheme.advance_to(3)
    (error,) = raised.value.exceptions
    assert isinstance(error, TickFromAction)
    assert str(error) == f"{type(scheme).__name__}: tick called by an expiry action of tick 3"


@each_scheme
def test_a_stop_that_comes_too_late_or_twice_says_so(entry: Entry) -> None:
    scheme = make(entry)
    expired, stopped = scheme.start(1, nothing), scheme.start(100, nothing)
    scheme.tick()
    assert not scheme.stop(expired)
    assert scheme.stop(stopped)
    assert not scheme.stop(stopped)
    assert len(scheme) == 0


def test_stopped_timers_do_not_fill_a_lazy_heap() -> None:
    scheme = LazyHeap()
    scheme.start(1_000_000, nothing)
    for _ in range(10 * STALE_LEAST):
        scheme.stop(scheme.start(1_000, nothing))
        assert len(scheme._heap) <= 2 * len(scheme) + STALE_LEAST + 1


@pytest.mark.parametrize(
    ("longest", "slots", "wheels"),
    [
        (10, 10, 1),
        (11, 10, 2),
        (25, 10, 2),
        (26, 10, 3),
        (27, 10, 3),
        (32, 10, 5),
        (400, 40, 2),
        (600_000, 256, 3),
        (1_000_000, 256, 4),
    ],
)
def test_the_fewest_wheels_that_reach_far_enough(longest: int, slots: int, wheels: int) -> None:
    assert wheels_needed(longest, slots) == wheels
    assert (slots // wheels) ** wheels >= longest


def test_no_number_of_wheels_reaches_everywhere() -> None:
    with pytest.raises(ValueError, match="10 slots: no number of wheels of 2 slots or more spans 33 ticks"):
        wheels_needed(33, 10)


def test_the_table_has_a_row_for_each_scheme() -> None:
    assert table_text().count("\n") == len(CATALOGUE) + 2
