"""What every scheme promises beside the right tick: errors that name the interval, actions that may do anything,
exceptions that harm nobody else; and what single schemes promise about their memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from controller.labs.schemes import (
    CATALOGUE,
    CLOCK_UNITS,
    STALE_LEAST,
    Entry,
    HierarchicalWheels,
    IntervalError,
    IntervalTooLong,
    IntervalTooShort,
    LazyHeap,
    MaskedHashedWheel,
    OrderedHashedWheel,
    RequestOutstanding,
    RequestTimers,
    Scheme,
    SchemeTimer,
    SimpleWheel,
    TickFromAction,
    TreeOfTimers,
    UnorderedHashedWheel,
    _task_of,
    table_text,
    wheels_needed,
)
from controller.labs.search_tree import height_of
from controller.timer.wheel import Bucket, TimerTask, TimingWheel, Wheel

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


@pytest.mark.parametrize("kind", [SimpleWheel, OrderedHashedWheel, MaskedHashedWheel, UnorderedHashedWheel])
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


@pytest.mark.parametrize("slots", [3, 255, 257])
def test_a_mask_wants_a_power_of_two(slots: int) -> None:
    with pytest.raises(ValueError, match=f"{slots} slots, expected a power of two"):
        MaskedHashedWheel(slots)


def test_the_low_bits_are_the_slot_and_the_high_bits_the_order_in_it() -> None:
    """256 slots and a time of 32 bits: 8 bits by the mask, 24 by the shift."""
    scheme = MaskedHashedWheel(256)
    late, soon = scheme.start(0x0312, nothing), scheme.start(0x0112, nothing)
    assert (late.place, soon.place) == (3, 1)
    sentinel = scheme._buckets[0x12]
    assert (sentinel.next, sentinel.next.next, sentinel.previous) == (soon, late, late)
    assert scheme.start(0xFFFF_FF12, nothing).place == 0xFF_FFFF


def test_equal_intervals_make_a_list_of_a_tree_that_is_not_balanced() -> None:
    heights = {}
    for balanced in (False, True):
        scheme = TreeOfTimers(balanced)
        for _ in range(1_000):
            scheme.start(500, nothing)
        heights[balanced] = scheme._tree.height()
        assert scheme.advance_to(500) == 1_000
        assert scheme._tree.root is None
    assert heights == {False: 1_000, True: 10}


def test_a_balanced_tree_stays_balanced_whatever_is_started_and_stopped() -> None:
    random, scheme = Random(1), TreeOfTimers()
    timers = [scheme.start(random.randint(1, 3_000), nothing) for _ in range(1_000)]
    for _ in range(2_000):
        scheme.restart(random.choice(timers), random.randint(1, 3_000))
    for timer in random.sample(timers, 500):
        scheme.stop(timer)
    level = [scheme._tree.root]
    nodes = 0
    while level:
        found = [node for node in level if node is not None]
        nodes += len(found)
        for node in found:
            assert abs(height_of(node.left) - height_of(node.right)) <= 1
            assert node.height == 1 + max(height_of(node.left), height_of(node.right))
        level = [below for node in found for below in (node.left, node.right)]
    assert nodes == 500
    assert scheme._tree.height() <= 1.45 * math.log2(500) + 1


SECOND, MINUTE, HOUR, DAY = 1, 60, 3_600, 86_400


def wheel_and_slot(scheme: HierarchicalWheels, timer: SchemeTimer) -> tuple[int, int]:
    """The level of the wheel that the timer is on, and the slot."""
    link = _task_of(timer)._next
    while not isinstance(link, Bucket):
        assert link is not None
        link = link._next
    wheel = scheme._wheel._lowest
    while wheel.level < link.level:
        assert wheel.above is not None
        wheel = wheel.above
    return wheel.level, wheel.buckets.index(link)


@pytest.mark.parametrize(
    ("now", "places"),
    [
        # 1:30:40 from 0: hour 1, then with 30:40 left minute 30, then with 40 left second 40.
        (0, [(0, 2, 1), (HOUR, 1, 30), (HOUR + 30 * MINUTE, 0, 40)]),
        # From 11 days 10:24:30: due at 11:55:10, so hour 11, then with 55:10 left minute 55, then second 10.
        (
            11 * DAY + 10 * HOUR + 24 * MINUTE + 30,
            [
                (11 * DAY + 10 * HOUR + 24 * MINUTE + 30, 2, 11),
                (11 * DAY + 11 * HOUR, 1, 55),
                (11 * DAY + 11 * HOUR + 55 * MINUTE, 0, 10),
            ],
        ),
    ],
)
def test_an_interval_of_1_30_40_goes_by_hours_then_minutes_then_seconds(
    now: int, places: list[tuple[int, int, int]]
) -> None:
    scheme, expired = HierarchicalWheels(CLOCK_UNITS), list[int]()
    scheme.now_tick = now
    scheme._wheel.turn(now)
    timer = scheme.start(HOUR + 30 * MINUTE + 40, lambda: expired.append(scheme.now_tick))
    for at, level, slot in places:
        scheme.advance_to(at)
        assert wheel_and_slot(scheme, timer) == (level, slot)
    assert scheme.advance_to(timer.due_tick) == 1
    assert expired == [now + HOUR + 30 * MINUTE + 40]


def slots_of(scheme: HierarchicalWheels) -> list[int]:
    wheel: Wheel | None = scheme._wheel._lowest
    found = []
    while wheel is not None:
        found.append(len(wheel.buckets))
        wheel = wheel.above
    return found


def test_100_days_take_244_slots_by_units_and_8_640_000_in_a_flat_wheel() -> None:
    scheme = HierarchicalWheels(CLOCK_UNITS)
    longest = 100 * DAY
    for now in (0, 11 * DAY + 10 * HOUR + 24 * MINUTE + 30, 99 * DAY + 1):
        scheme.now_tick = now
        scheme._wheel.turn(now)
        timer = scheme.start(longest, nothing)
        assert wheel_and_slot(scheme, timer) == (3, (now + longest) // DAY % 100)
        with pytest.raises(IntervalTooLong, match=f"interval {longest + 1} is beyond its maximum of {longest} ticks"):
            scheme.start(longest + 1, nothing)
    assert slots_of(scheme) == [60, 60, 24, 100]
    assert sum(CLOCK_UNITS) == 244
    assert math.prod(CLOCK_UNITS) == longest == 8_640_000


def test_the_longest_interval_expires_to_the_second() -> None:
    """The wheels are turned from bucket to bucket: 8,640,000 ticks one by one take long."""
    wheel, task = TimingWheel(1, CLOCK_UNITS), TimerTask()
    wheel.turn(DAY - 1)
    wheel.start(task, 100 * DAY)
    wheel.turn(wheel.now_ms)  # into its slot
    moves = []
    while task.pending:
        wheel.turn(wheel.next_bucket_ms)
        if wheel.take() is not task:
            moves.append(wheel.now_ms)
    assert wheel.now_ms == 101 * DAY - 1
    assert moves == [100 * DAY, 100 * DAY + 23 * HOUR, 101 * DAY - MINUTE]


@each_scheme
def test_timers_go_by_request_id(entry: Entry) -> None:
    timers, expired = RequestTimers(make(entry)), list[str]()
    for interval, request in ((10, "a"), (20, "b"), (20, "c")):
        timers.start_timer(interval, request, partial(expired.append, request))
    with pytest.raises(RequestOutstanding, match="request 'a': its timer is outstanding"):
        timers.start_timer(5, "a", nothing)
    with pytest.raises(IntervalTooShort):
        timers.start_timer(0, "d", nothing)
    assert len(timers) == 3
    assert [timers.stop_timer(request) for request in "bbd"] == [True, False, False]
    timers.start_timer(5, "b", lambda: timers.start_timer(5, "b", lambda: expired.append("b again")))
    assert timers.scheme.advance_to(LONGEST) == 4
    assert expired == ["a", "b again", "c"]
    assert (len(timers), timers.stop_timer("a")) == (0, False)


def test_the_table_has_a_row_for_each_scheme() -> None:
    assert table_text().count("\n") == len(CATALOGUE) + 2
