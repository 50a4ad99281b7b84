"""The real host's clock: its wheel fires what a sorted list fires, never early, with one timer of the loop's."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from controller.clock import Timer
from controller.hosts.network import AT_ONCE
from controller.timer.wheel import NEVER_MS, WheelCounts
from tests.timer.model import Advance, History, Model, Start, histories, run_history
from tests.timer.wheel_clock import WheelClock


class OnWheelClock:
    """A WheelClock as a subject of the model's histories. The model runs what is due inside of `start`, the clock when
    the loop next calls: so the loop runs after each start that no callback made."""

    def __init__(self, clock: WheelClock) -> None:
        self.clock = clock
        self.fire: Callable[[int], None] = lambda task: None
        self.timers: dict[int, Timer] = {}
        self.advancing = False

    @property
    def now_ms(self) -> int:
        return int(self.clock.now_ms())

    def __len__(self) -> int:
        return len(self.timers)

    def pending(self, task: int) -> bool:
        return task in self.timers

    def start(self, task: int, delay_ms: int) -> None:
        def fired() -> None:
            del self.timers[task]
            self.fire(task)

        self.timers[task] = self.clock.call_later(delay_ms, fired)
        if not self.advancing:
            self.advance_to(self.now_ms)

    def cancel(self, task: int) -> bool:
        timer = self.timers.pop(task, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def restart(self, task: int, delay_ms: int) -> None:
        self.cancel(task)
        self.start(task, delay_ms)

    def advance_to(self, now_ms: int) -> None:
        self.advancing = True
        self.clock.advance_to(now_ms)
        self.advancing = False


def check(history: History, start_ms: int = 0, kind: type[WheelClock] = WheelClock) -> None:
    clock = kind(start_ms)
    assert run_history(OnWheelClock(clock), history) == run_history(Model(1, start_ms), history)
    assert clock.host.failures == []


@settings(max_examples=200, deadline=None)
@example(History([Advance(7_877), Start(0, 0), Advance(160_000)], {}), 247)  # 8.124 s are a bit more than 8,124 ms
@given(history=histories(1, 20), start_ms=st.integers(0, 1_200))
def test_it_fires_what_a_sorted_list_fires(history: History, start_ms: int) -> None:
    check(history, start_ms)


class WakesLate(WheelClock):
    """The loop is asked for a millisecond too late."""

    def _arm(self) -> None:
        super()._arm()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self._loop.call_at((self._armed_ms + 1) / 1_000.0, self._run)


class ForgetsToArm(WheelClock):
    """What is started while something later is waited for does not move the wake-up."""

    def _arm(self) -> None:
        if self._handle is None:
            super()._arm()


class FiresEarly(WheelClock):
    """Rounds a due time down."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(delay_ms - 1 if delay_ms > 1 else delay_ms, callback)


@pytest.mark.parametrize("faulty", [WakesLate, ForgetsToArm, FiresEarly])
def test_a_fault_is_caught(faulty: type[WheelClock]) -> None:
    @settings(
        max_examples=300,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(history=histories(1, 20))
    def holds(history: History) -> None:
        check(history, kind=faulty)

    with pytest.raises(AssertionError):
        holds()


@settings(max_examples=200, deadline=None)
@example(begin_ms=1.999999999999993, starts=[(0.0, 63.0)])
@given(
    begin_ms=st.floats(0, 1e6),
    starts=st.lists(st.tuples(st.floats(0, 50), st.floats(-5, 2_000)), min_size=1, max_size=20),
)
def test_nothing_is_early_or_more_than_a_millisecond_late(begin_ms: float, starts: list[tuple[float, float]]) -> None:
    clock = WheelClock(begin_ms)
    off_ms: list[Fraction] = []  # exact: 1.999999999999993 + 63 is 65.0 in floats

    def start(delay_ms: float) -> None:
        due_ms = Fraction(clock.now_ms()) + Fraction(max(delay_ms, 0.0))
        clock.call_later(delay_ms, lambda: off_ms.append(Fraction(clock.now_ms()) - due_ms))

    for gap_ms, delay_ms in starts:
        clock.advance_to(clock.now_ms() + gap_ms)
        start(delay_ms)
    clock.advance_to(clock.now_ms() + 2_002)
    assert len(off_ms) == len(starts)
    assert all(-1e-6 < off < 1.000001 for off in off_ms), [float(off) for off in off_ms]


def test_the_loop_is_asked_once_for_many_and_not_at_all_while_idle() -> None:
    clock = WheelClock(5.5)
    far = [clock.call_later(30_000.0, lambda: None) for _ in range(1_000)]
    assert (clock.host.armed, len(clock)) == (1, 1_000)
    for timer in far:
        timer.cancel()
    assert len(clock) == 0
    clock.advance_to(31_000)
    assert (clock.virtual.next_due_ms(), clock._armed_ms, clock.host.armed) == (None, NEVER_MS, 1)


def test_without_a_delay_it_is_the_loop_that_runs_it_and_not_the_wheel() -> None:
    clock = WheelClock(5.5)
    ran: list[str] = []
    clock.call_later(0.0, lambda: ran.append("first"))
    cancelled = clock.call_later(0.0, lambda: ran.append("cancelled"))
    clock.call_later(-1.0, lambda: ran.append("last"))
    cancelled.cancel()
    assert (ran, len(clock), clock.host.armed) == ([], 0, 0)
    clock.advance_to(5.5)
    assert ran == ["first", "last"]


def test_what_one_without_a_delay_leads_to_runs_before_the_loop_goes_on() -> None:
    clock = WheelClock()
    order: list[str] = []

    def first() -> None:
        clock.call_later(0.0, lambda: order.append("led to"))

    clock.call_later(0.0, first)
    clock.virtual.call_later(0.0, lambda: order.append("other"))
    clock.advance_to(0.0)
    assert order == ["led to", "other"]


NEVER_GAVE_WAY = 1_000_000
"""Callbacks: far more than run in a millisecond."""


def test_one_that_leads_to_itself_leaves_the_loop_to_others() -> None:
    clock = WheelClock()
    order: list[str] = []

    def again() -> None:
        order.append("timer")
        if "other" not in order[-2:] and len(order) < NEVER_GAVE_WAY:
            clock.call_later(0.0, again)

    clock.call_later(0.0, again)
    clock.virtual.call_later(0.0, lambda: order.append("other"))
    clock.advance_to(0.0)
    assert order.index("other") < NEVER_GAVE_WAY


def test_one_that_fails_holds_up_none_that_wait() -> None:
    clock = WheelClock()
    ran: list[str] = []
    clock.call_later(0.0, lambda: ran.append(str(1 // 0)))
    clock.call_later(0.0, lambda: ran.append("next"))
    with pytest.raises(ZeroDivisionError):
        clock.advance_to(0.0)  # a loop would have logged it
    clock.advance_to(0.0)
    assert ran == ["next"]


def test_many_that_are_due_at_once_leave_the_loop_to_others() -> None:
    clock = WheelClock()
    order: list[str] = []
    for _ in range(AT_ONCE + 1):
        clock.call_later(1.0, lambda: order.append("timer"))
    clock.virtual.call_later(1.0, lambda: order.append("other"))
    clock.advance_to(2.0)
    assert order.index("other") == AT_ONCE
    assert len(order) == AT_ONCE + 2


def test_a_failure_is_the_loops_to_report_and_harms_no_other() -> None:
    clock = WheelClock()
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("planted")

    clock.call_later(1.0, fail)
    clock.call_later(1.0, lambda: ran.append("the other"))
    clock.advance_to(1.5)
    assert (clock.host.failures, ran, len(clock)) == (["planted"], ["the other"], 0)


def test_a_delay_without_end_never_comes() -> None:
    clock = WheelClock()
    timer = clock.call_later(float("inf"), lambda: None)
    clock.advance_to(1e9)
    assert len(clock) == 1
    timer.cancel()
    assert len(clock) == 0


def test_wakes_and_saved_advances_are_counted() -> None:
    """For what is due, not for the bucket of 800 ms on the way to 840 ms; and then nothing."""
    clock, fired = WheelClock(), list[float]()
    for delay_ms in (200, 840):
        clock.call_later(delay_ms, lambda: fired.append(clock.now_ms()))
    clock.advance_to(1_840)
    assert len(fired) == 2
    assert clock.wakes == 2
    assert clock.wheel_counts == WheelCounts(polls=5, empty_polls=0, advances=3, ticks=1_840)
    assert clock.wheel_counts.advances_saved == 837 + 1_000
