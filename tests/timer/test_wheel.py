"""What the wheel promises one task at a time: due tasks at once, neighbours from within, failures, the clock, and when
a driver is wanted next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.labs.virtual_timer import VirtualTimer
from controller.timer import AlreadyStarted, TimerTask, TimingWheel
from controller.timer.wheel import LOOKED_AT, MAX_DELAY_MS, NEVER_MS, Bucket, Wheel, WheelCounts


class Note(TimerTask):
    """Writes its name down when it runs, and does what it was told to."""

    __slots__ = ("act", "name", "ran")

    def __init__(self, ran: list[str], name: str, act: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.ran, self.name, self.act = ran, name, act

    def run(self) -> None:
        self.ran.append(self.name)
        if self.act is not None:
            self.act()


@pytest.mark.parametrize("delay_ms", [0, -1, -1_000_000])
def test_a_task_that_is_due_runs_inside_of_start(delay_ms: int) -> None:
    timer, ran = VirtualTimer(start_ms=50), list[str]()
    timer.start(task := Note(ran, "due"), delay_ms)
    assert (ran, task.pending, len(timer)) == (["due"], False, 0)
    timer.call_later(delay_ms, lambda: ran.append("again"))
    assert ran == ["due", "again"]


def test_times_are_clipped_to_the_tick_as_kafka_clips_them() -> None:
    """A task fires at the start of the tick that it is due in; in the current tick, at once."""
    timer, at_ms = VirtualTimer(tick_ms=10, start_ms=105), list[int]()
    for delay_ms in (4, 5, 14, 15, 94, 95, 1_999):
        timer.call_later(delay_ms, lambda: at_ms.append(timer.now_ms))
    timer.advance_to(10_000)
    assert at_ms == [105, 110, 110, 120, 190, 200, 2_100]


def test_a_task_that_is_started_when_due_runs_after_those_of_the_tick() -> None:
    timer, ran = VirtualTimer(), list[str]()
    last = Note(ran, "last")
    timer.start(Note(ran, "first", lambda: timer.start(last, 0)), 7)
    timer.start(Note(ran, "second"), 7)
    assert timer.advance_to(7) == 3
    assert ran == ["first", "second", "last"]


def test_a_task_cancels_its_neighbours_and_restarts_itself() -> None:
    timer, ran = VirtualTimer(), list[str]()
    before, after, moved = (Note(ran, name) for name in ("before", "after", "moved"))
    results: list[bool] = []

    def act() -> None:
        results.extend(timer.cancel(task) for task in (before, after, itself))
        timer.restart(moved, 3)
        if len(ran) < 4:
            timer.start(itself, 5)

    itself = Note(ran, "itself", act)
    for task in (before, itself, after, moved):
        timer.start(task, 5)
    timer.advance_to(5)
    assert (ran, results) == (["before", "itself"], [False, True, False])
    timer.advance_to(100)
    assert ran == ["before", "itself", "moved", "itself", "moved"]


def test_a_failing_task_is_reported_and_harms_no_other() -> None:
    reported: list[tuple[TimerTask, str]] = []
    timer = VirtualTimer(on_error=lambda task, error: reported.append((task, str(error))))
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("planted")

    timer.start(failing := TimerTask(fail), 1)
    timer.start(Note(ran, "other"), 1)
    assert timer.advance_to(1) == 2
    assert (reported, ran) == ([(failing, "planted")], ["other"])


def test_what_ends_the_program_comes_through_and_nothing_is_lost() -> None:
    timer, ran = VirtualTimer(), list[str]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    timer.call_later(1, interrupt)
    timer.start(Note(ran, "same tick"), 1)
    timer.start(Note(ran, "later"), 2)
    with pytest.raises(KeyboardInterrupt):
        timer.advance_to(2)
    assert ran == []
    assert timer.advance_to(2) == 2
    assert ran == ["same tick", "later"]


def test_a_task_that_is_pending_is_not_started() -> None:
    timer = VirtualTimer()
    timer.start(task := TimerTask(), 5)
    for other in (timer, VirtualTimer()):
        with pytest.raises(AlreadyStarted, match="due at 5 ms"):
            other.start(task, 1)
    assert (task.due_ms, len(timer)) == (5, 1)
    timer.advance_to(5)
    timer.start(task, 5)
    assert (task.due_ms, task.pending) == (10, True)


def test_cancel_says_whether_it_was_in_time() -> None:
    timer = VirtualTimer()
    task = TimerTask()
    assert not timer.cancel(task)
    timer.start(task, 500)
    assert timer.cancel(task)
    assert not timer.cancel(task)
    assert timer.advance_to(1_000) == 0


@pytest.mark.parametrize("delay_ms", [MAX_DELAY_MS + 1, 2**60, 2**63 - 1])
def test_what_is_too_far_is_pending_for_ever(delay_ms: int) -> None:
    timer, ran = VirtualTimer(start_ms=1_000), list[str]()
    timer.start(task := Note(ran, "never"), delay_ms)
    timer.start(Note(ran, "soon"), 1)
    timer.advance_to(1_000_000)
    assert (ran, len(timer), task.pending) == (["soon"], 1, True)
    assert timer.next_ms == NEVER_MS
    assert timer.cancel(task)


def test_the_longest_delay_is_kept() -> None:
    timer, at_ms = VirtualTimer(), list[int]()
    timer.call_later(MAX_DELAY_MS, lambda: at_ms.append(timer.now_ms))
    timer.advance_to(MAX_DELAY_MS + 1)
    assert at_ms == [MAX_DELAY_MS]


def test_the_clock_does_not_go_back_nor_move_within_a_task() -> None:
    errors: list[str] = []
    timer = VirtualTimer(start_ms=10, on_error=lambda task, error: errors.append(str(error)))
    with pytest.raises(ValueError, match="the clock is at 10 ms"):
        timer.advance_to(9)

    def move_on() -> None:
        timer.advance_to(100)

    timer.call_later(5, move_on)
    timer.advance_to(20)
    assert len(errors) == 1
    assert "called by a task" in errors[0]


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [(0, 20), (-1, 20), (1, 1), (1, 0), (1, 70_000), (2**44, 2)])
def test_a_wheel_that_can_not_be_is_refused(tick_ms: int, wheel_size: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        TimingWheel(tick_ms, wheel_size)


def test_a_driver_is_told_when_it_is_wanted_and_for_nothing_that_was_cancelled() -> None:
    """And not for a coarser bucket on the way: 307 ms are in that of 300 ms first."""
    wheel = TimingWheel()
    assert wheel.next_ms == NEVER_MS
    wheel.start(far := TimerTask(), 307)
    assert wheel.next_ms == 307
    assert not wheel.turn(1)
    assert (wheel.next_ms, wheel.next_bucket_ms) == (307, 300)
    wheel.start(near := TimerTask(), 9)
    assert wheel.next_ms == 10
    assert wheel.cancel(near)
    assert not wheel.turn(2)
    assert wheel.next_ms == 307
    assert not wheel.turn(300)
    assert wheel.next_ms == 307
    assert wheel.turn(307)
    assert (wheel.take(), wheel.take()) == (far, None)
    assert not wheel.turn(307)
    assert wheel.next_ms == NEVER_MS


@pytest.mark.parametrize(("count", "wanted_ms"), [(LOOKED_AT, 301), (LOOKED_AT + 1, 300)])
def test_of_a_bucket_of_many_tasks_the_driver_is_told_when_it_begins(count: int, wanted_ms: int) -> None:
    wheel = TimingWheel()
    for number in range(count):
        wheel.start(TimerTask(), 319 - number % 19)
    assert not wheel.turn(1)
    assert wheel.next_ms == wanted_ms
    assert not wheel.turn(300)
    assert wheel.next_ms == 301


def test_a_driver_is_told_of_the_next_bucket_if_it_begins_before_the_first_of_its_tasks() -> None:
    """The task at 415 ms is in a bucket of 400 ms ticks, that at 412 ms in one of 20 ms ticks."""
    wheel = TimingWheel()
    wheel.start(TimerTask(), 415)
    assert not wheel.turn(100)
    assert wheel.next_ms == 415
    wheel.start(TimerTask(), 312)
    assert not wheel.turn(101)
    assert (wheel.next_bucket_ms, wheel.next_ms) == (400, 400)
    assert not wheel.turn(400)
    assert wheel.next_ms == 412


def test_wheels_are_made_when_they_are_needed() -> None:
    wheel = TimingWheel(1, 20)

    def levels() -> int:
        found, level = 1, wheel._lowest
        while level.above is not None:
            found, level = found + 1, level.above
        return found

    counts = []
    for delay_ms in (19, 20, 399, 400, 8_000):
        wheel.start(TimerTask(), delay_ms)
        wheel.turn(0)
        counts.append(levels())
    assert counts == [1, 2, 2, 3, 4]


def levels_and_slots(wheel: TimingWheel, task: TimerTask) -> tuple[int, int]:
    """The level of the wheel that a task is on, and its bucket's place."""
    wheel.turn(wheel.now_ms)
    link = task._next
    while not isinstance(link, Bucket):
        assert link is not None
        link = link._next
    level: Wheel | None = wheel._lowest
    while level is not None and link not in level.buckets:
        level = level.above
    assert level is not None
    return level.level, level.buckets.index(link)


def test_slots_of_a_wheel_of_20_buckets_of_1_ms() -> None:
    """At 0 ms, 2 ms go to slot 2; at 2 ms, 8 ms go to slot 10 and 19 ms, past the end of the array, to slot 1; 350 ms
    overflow to the second wheel, slot 17."""
    wheel, started = TimingWheel(1, 20), {}
    for at_ms, delay_ms in ((0, 2), (2, 8), (2, 19)):
        assert not wheel.turn(at_ms) or wheel.take() is not None
        wheel.start(task := TimerTask(), delay_ms)
        started[at_ms, delay_ms] = levels_and_slots(wheel, task)
    assert started == {(0, 2): (0, 2), (2, 8): (0, 10), (2, 19): (0, 1)}
    wheel = TimingWheel(1, 20)
    wheel.start(task := TimerTask(), 350)
    assert levels_and_slots(wheel, task) == (1, 17)


def test_450_ms_go_to_the_third_wheel_and_come_down_with_50_and_then_10_ms_left() -> None:
    wheel, task = TimingWheel(1, 20), TimerTask()
    wheel.start(task, 450)
    found = {0: levels_and_slots(wheel, task)}
    while not wheel.turn(wheel.next_bucket_ms):
        found[task.due_ms - wheel.now_ms] = levels_and_slots(wheel, task)
    assert found == {0: (2, 1), 50: (1, 2), 10: (0, 10)}
    assert (wheel.take(), wheel.now_ms) == (task, 450)


@pytest.mark.parametrize(
    ("wheel_size", "counts"),
    [
        # One wheel: a bucket for 200 ms and one for 840 ms. Of 840 ticks, 199 and 639 find nothing.
        (1_000, WheelCounts(polls=2, empty_polls=0, advances=2, ticks=840)),
        # Three wheels: 200 ms at once from the second to the first, 840 ms by a bucket for 800 ms.
        (20, WheelCounts(polls=5, empty_polls=0, advances=3, ticks=840)),
    ],
)
def test_lists_for_200_and_840_ms_save_the_advances_in_between(wheel_size: int, counts: WheelCounts) -> None:
    timer, ran = VirtualTimer(1, wheel_size), list[int]()
    for delay_ms in (200, 840):
        timer.call_later(delay_ms, lambda: ran.append(timer.now_ms))
    timer.advance_to(840)
    assert ran == [200, 840]
    assert timer.counts(timer.now_ms) == counts
    assert counts.advances_saved == {1_000: 199 + 639, 20: 837}[wheel_size]


def test_buckets_of_cancelled_tasks_are_empty_polls() -> None:
    timer = VirtualTimer()
    tasks = [timer.call_later(delay_ms, lambda: None) for delay_ms in (3, 5, 7)]
    timer.advance_to(1)
    timer.cancel(tasks[1])
    timer.advance_to(10)
    assert timer.counts(timer.now_ms) == WheelCounts(polls=3, empty_polls=1, advances=2, ticks=10)
