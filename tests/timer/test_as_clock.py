"""A clock on a wheel: never early, whatever is between two ticks, and not late by more than it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.clock import Clock, VirtualClock
from controller.timer import VirtualTimer
from controller.timer.as_clock import ClockOnTimer


def clock_at(now_ms: float, tick_ms: int) -> tuple[ClockOnTimer, VirtualTimer]:
    """A clock that reads `now_ms`, and the timer that a driver has turned up to it."""
    timer = VirtualTimer(tick_ms, start_ms=int(now_ms))
    return ClockOnTimer(VirtualClock(now_ms), timer, tick_ms), timer


@pytest.mark.parametrize("tick_ms", [1, 10])
@given(now_ms=st.floats(0, 1e6), delay_ms=st.floats(0.001, 1e6))
def test_a_timer_is_never_early_and_two_ticks_late_at_most(tick_ms: int, now_ms: float, delay_ms: float) -> None:
    clock, timer = clock_at(now_ms, tick_ms)
    ran_at_ms: list[int] = []
    clock.call_later(delay_ms, lambda: ran_at_ms.append(timer.now_ms))
    timer.advance_to(3_000_000)
    assert len(ran_at_ms) == 1
    assert now_ms + delay_ms - 1e-6 <= ran_at_ms[0] <= now_ms + delay_ms + 2 * tick_ms


def test_it_is_a_clock_with_timers_that_can_be_cancelled_and_slept_on() -> None:
    on_timer, timer = clock_at(5.5, 1)
    clock: Clock = on_timer
    ran: list[str] = []
    assert (clock.now_ms(), clock.wall_ms()) == (5.5, 1_700_000_000_005)
    clock.call_later(0, lambda: ran.append("at once"))
    assert ran == ["at once"]
    cancelled = clock.call_later(3, lambda: ran.append("cancelled"))
    slept = clock.sleep(4)
    cancelled.cancel()
    cancelled.cancel()
    done = [slept.done]
    timer.advance_to(100)
    assert [*done, slept.done] == [False, True]
    assert ran == ["at once"]
