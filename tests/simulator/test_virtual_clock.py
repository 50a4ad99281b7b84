"""The virtual clock against a plain model: timers fire by due time, then in the order of being set, whatever is set or
cancelled while others fire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.clock import SWEPT_FROM, Timer, VirtualClock

DELAYS = st.sampled_from((0.0, 0.0, 1.0, 1.0, 2.0, 2.5))


@dataclass(frozen=True)
class Task:
    """A timer: when it is due, what it sets when it fires, and which of all timers set so far it cancels then."""

    delay_ms: float
    sets: tuple[Task, ...] = ()
    cancels: tuple[int, ...] = ()


TASKS = st.recursive(
    st.builds(Task, DELAYS, cancels=st.lists(st.integers(0, 12), max_size=2).map(tuple)),
    lambda inner: st.builds(
        Task, DELAYS, st.lists(inner, max_size=3).map(tuple), st.lists(st.integers(0, 12), max_size=2).map(tuple)
    ),
    max_leaves=8,
)


@dataclass
class Run:
    """What fired when, on a clock: the number in the order of being set, and the time."""

    call_later: Callable[[float, Callable[[], None]], Timer]
    now_ms: Callable[[], float]
    timers: list[Timer] = field(default_factory=list)
    fired: list[tuple[int, float]] = field(default_factory=list)

    def begin(self, task: Task) -> None:
        number = len(self.timers)

        def fire() -> None:
            self.fired.append((number, self.now_ms()))
            for other in task.cancels:
                if other < len(self.timers):
                    self.timers[other].cancel()
            for each in task.sets:
                self.begin(each)

        self.timers.append(self.call_later(task.delay_ms, fire))


@dataclass(eq=False)
class _ModelTimer:
    due_ms: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class ModelClock:
    """All timers in one list, in the order of being set: the earliest that is left is next."""

    def __init__(self) -> None:
        self.time_ms = 0.0
        self.left: list[_ModelTimer] = []

    def now_ms(self) -> float:
        return self.time_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        self.left.append(_ModelTimer(self.time_ms + delay_ms, callback))
        return self.left[-1]

    def run_to(self, limit_ms: float) -> None:
        while due := [timer for timer in self.left if not timer.cancelled and timer.due_ms <= limit_ms]:
            first = min(due, key=lambda timer: timer.due_ms)
            self.left.remove(first)
            self.time_ms = first.due_ms
            first.callback()


def _stepwise(clock: VirtualClock, limit_ms: float) -> None:
    while (due_ms := clock.next_due_ms()) is not None and due_ms <= limit_ms:
        assert clock.step()


ADVANCES: dict[str, Callable[[VirtualClock, float], object]] = {
    "advance_to": VirtualClock.advance_to,
    "run_until": lambda clock, limit_ms: clock.run_until(lambda: False, limit_ms),
    "step": _stepwise,
    "run_until, one at a time": lambda clock, limit_ms: [
        clock.run_until(iter((False, True)).__next__, limit_ms) for _ in range(200)
    ],
}


@settings(max_examples=60)
@given(
    tasks=st.lists(TASKS, max_size=5),
    limit_ms=st.sampled_from((0.0, 2.0, 3.5, 100.0)),
    swept_from=st.sampled_from((0, 1, 2, SWEPT_FROM)),
)
def test_timers_fire_as_in_a_plain_list(tasks: list[Task], limit_ms: float, swept_from: int) -> None:
    model = ModelClock()
    expected = Run(model.call_later, model.now_ms)
    for task in tasks:
        expected.begin(task)
    model.run_to(limit_ms)
    due = [timer.due_ms for timer in model.left if not timer.cancelled]
    for name, advance in ADVANCES.items():
        with patch("controller.clock.SWEPT_FROM", swept_from):
            clock = VirtualClock()
            run = Run(clock.call_later, clock.now_ms)
            for task in tasks:
                run.begin(task)
            advance(clock, limit_ms)
        assert run.fired == expected.fired, name
        assert clock.next_due_ms() == min(due, default=None), name


def test_a_clock_that_is_told_to_goes_there_with_nothing_to_fire() -> None:
    clock = VirtualClock(5.0)
    clock.advance_to(9.0)
    assert clock.now_ms() == 9.0
    assert not clock.step()
    assert not clock.run_until(lambda: False, 100.0)
    assert clock.run_until(lambda: True, 100.0)
    assert clock.now_ms() == 9.0


def test_a_timer_can_be_cancelled_twice_and_after_it_fired() -> None:
    clock = VirtualClock()
    fired: list[float] = []
    timers = [clock.call_later(1.0, lambda: fired.append(clock.now_ms())) for _ in range(3)]
    timers[1].cancel()
    timers[1].cancel()
    clock.advance_to(1.0)
    timers[0].cancel()
    assert fired == [1.0, 1.0]


def test_a_delay_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        VirtualClock().call_later(-1.0, lambda: None)


def test_timers_that_are_cancelled_do_not_stay_until_they_would_be_due() -> None:
    clock = VirtualClock()
    clock.call_later(1e9, lambda: None)
    for number in range(4 * SWEPT_FROM):
        clock.call_later(1e6 + number // 2, lambda: None).cancel()
        assert len(clock._moments) <= SWEPT_FROM + 1
    assert clock.next_due_ms() == 1e9
