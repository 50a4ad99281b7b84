"""The timer on a clock: what a sorted list fires, never late, with one call of the clock's for all tasks."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from controller.clock import Timer, VirtualClock
from controller.timer import TimerError, TimerTask
from controller.timer.on_clock import AT_ONCE, TimerOnClock
from controller.timer.wheel import NEVER_MS
from tests.timer.model import History, Model, histories, run_history

SHAPES = ((1, 20), (1, 2), (1, 256), (7, 5), (1_000, 4))


class CountedClock(VirtualClock):
    """Counts what is asked of it and not cancelled."""

    asked = 0

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        self.asked += 1
        return super().call_later(delay_ms, callback)


class OnClock:
    """A TimerOnClock and its clock as a subject of the model's histories. The model runs what is due inside of
    `start`, a clock when it next calls: so it is let call after each start that no task made."""

    def __init__(self, clock: VirtualClock, timer: TimerOnClock) -> None:
        self.clock = clock
        self.timer = timer
        self.fire: Callable[[int], None] = lambda task: None
        self.tasks: dict[int, TimerTask] = {}
        self.advancing = False

    @property
    def now_ms(self) -> int:
        return int(self.clock.now_ms())

    def __len__(self) -> int:
        return len(self.timer)

    def task(self, number: int) -> TimerTask:
        if number not in self.tasks:
            self.tasks[number] = TimerTask(lambda: self.fire(number))
        return self.tasks[number]

    def pending(self, task: int) -> bool:
        return self.task(task).pending

    def start(self, task: int, delay_ms: int) -> None:
        self.timer.start(self.task(task), delay_ms)
        self._let_call()

    def cancel(self, task: int) -> bool:
        return self.timer.cancel(self.task(task))

    def restart(self, task: int, delay_ms: int) -> None:
        self.timer.restart(self.task(task), delay_ms)
        self._let_call()

    def advance_to(self, now_ms: int) -> None:
        self.advancing = True
        self.clock.advance_to(now_ms)
        self.advancing = False

    def _let_call(self) -> None:
        if not self.advancing:
            self.advance_to(self.now_ms)


def _raise(task: TimerTask, error: Exception) -> None:
    raise error


def check(
    history: History, tick_ms: int, wheel_size: int, start_ms: int = 0, kind: type[TimerOnClock] = TimerOnClock
) -> None:
    clock = VirtualClock(start_ms)
    expected = run_history(Model(tick_ms, start_ms), history, tick_ms)
    subject = OnClock(clock, kind(clock, tick_ms, wheel_size, on_error=_raise))
    assert run_history(subject, history, tick_ms) == expected


@pytest.mark.parametrize(("tick_ms", "wheel_size"), SHAPES)
def test_it_fires_what_a_sorted_list_fires(tick_ms: int, wheel_size: int) -> None:
    @settings(max_examples=40, deadline=None)
    @given(history=histories(tick_ms, wheel_size), start_ms=st.integers(0, 3 * tick_ms * wheel_size))
    def holds(history: History, start_ms: int) -> None:
        check(history, tick_ms, wheel_size, start_ms)

    holds()


class WakesLate(TimerOnClock):
    """The clock is asked for a tick too late."""

    def _arm(self) -> None:
        super()._arm()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self._clock.call_later(self._armed_ms - self._clock.now_ms() + 1.0, self._run)


class ForgetsToArm(TimerOnClock):
    """What is started while something later is waited for does not move the wake-up."""

    def _arm(self) -> None:
        if self._handle is None or self._armed_ms == -1:
            super()._arm()


@pytest.mark.parametrize("faulty", [WakesLate, ForgetsToArm])
def test_a_fault_of_the_waking_is_caught(faulty: type[TimerOnClock]) -> None:
    @settings(
        max_examples=300,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(history=histories(1, 4))
    def holds(history: History) -> None:
        check(history, 1, 4, kind=faulty)

    with pytest.raises(AssertionError):
        holds()


@settings(max_examples=100, deadline=None)
@example(begin_ms=1.999999999999993, starts=[(0.0, 63)])
@given(
    begin_ms=st.floats(0, 1e6),
    starts=st.lists(st.tuples(st.floats(0, 50), st.integers(-5, 2_000)), min_size=1, max_size=20),
)
def test_between_the_milliseconds_of_a_clock_nothing_is_late_or_more_than_a_tick_early(
    begin_ms: float, starts: list[tuple[float, int]]
) -> None:
    clock = VirtualClock(begin_ms)
    timer = TimerOnClock(clock, on_error=_raise)
    off_ms: list[Fraction] = []  # exact: 1.999999999999993 + 63 is 65.0 in floats

    def start(delay_ms: int) -> None:
        due_ms = Fraction(clock.now_ms()) + max(delay_ms, 0)
        timer.call_later(delay_ms, lambda: off_ms.append(Fraction(clock.now_ms()) - due_ms))

    for gap_ms, delay_ms in starts:
        clock.advance_to(clock.now_ms() + gap_ms)
        start(delay_ms)
    assert clock.run_until(lambda: not len(timer), clock.now_ms() + 2_001)
    assert len(off_ms) == len(starts)
    assert all(-1 < off <= 1e-6 for off in off_ms), [float(off) for off in off_ms]


def test_the_clock_is_asked_once_for_many_and_not_at_all_while_idle() -> None:
    clock = CountedClock(5.5)
    timer = TimerOnClock(clock)
    far = [timer.call_later(30_000, lambda: None) for _ in range(1_000)]
    assert clock.asked == 1
    assert all(timer.cancel(task) for task in far)
    clock.advance_to(31_000)
    assert (clock.next_due_ms(), timer._armed_ms) == (None, NEVER_MS)


def test_a_task_that_starts_itself_at_once_leaves_the_clock_to_others() -> None:
    clock = VirtualClock()
    timer = TimerOnClock(clock)
    runs = 0
    others: list[int] = []

    def again() -> None:
        nonlocal runs
        runs += 1
        if runs < 3 * AT_ONCE:
            timer.start(task, 0)

    task = TimerTask(again)
    timer.start(task, 0)
    clock.call_later(0, lambda: others.append(runs))
    clock.advance_to(1)
    assert (others, runs) == ([AT_ONCE], 3 * AT_ONCE)


def test_a_failure_is_reported_and_harms_no_other() -> None:
    clock = VirtualClock()
    reported: list[str] = []
    ran: list[str] = []
    timer = TimerOnClock(clock, on_error=lambda task, error: reported.append(str(error)))

    def fail() -> None:
        raise ValueError("planted")

    timer.call_later(1, fail)
    timer.call_later(1, lambda: ran.append("the other"))
    clock.advance_to(1)
    assert (reported, ran, len(timer)) == (["planted"], ["the other"], 0)


def test_closed_it_runs_nothing_and_takes_nothing() -> None:
    clock = VirtualClock()
    timer = TimerOnClock(clock)
    ran: list[str] = []
    timer.call_later(1, timer.close)
    same_tick = timer.call_later(1, lambda: ran.append("after the end"))
    clock.advance_to(10)
    assert (ran, same_tick.pending, clock.next_due_ms()) == ([], True, None)
    with pytest.raises(TimerError, match="closed"):
        timer.call_later(1, lambda: None)
    assert timer.cancel(same_tick)
    timer.close()
