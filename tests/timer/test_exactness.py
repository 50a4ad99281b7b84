"""The wheel fires the same tasks in the same ticks, in the same order, as a sorted list of all of them does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.labs.virtual_timer import VirtualTimer
from controller.timer import TimerTask
from tests.timer.model import History, Model, histories, run_history

SHAPES = ((1, 20), (1, 2), (1, 3), (1, 256), (7, 5), (10, 20), (1_000, 4))


class Numbered(TimerTask):
    __slots__ = ("number", "subject")

    def __init__(self, subject: OnVirtualTimer, number: int) -> None:
        super().__init__()
        self.subject = subject
        self.number = number

    def run(self) -> None:
        self.subject.fire(self.number)


class OnVirtualTimer:
    """A VirtualTimer as a subject of the model's histories."""

    def __init__(self, timer: VirtualTimer) -> None:
        self.timer = timer
        self.fire: Callable[[int], None] = lambda task: None
        self.tasks: dict[int, TimerTask] = {}

    @property
    def now_ms(self) -> int:
        return self.timer.now_ms

    def __len__(self) -> int:
        return len(self.timer)

    def task(self, number: int) -> TimerTask:
        if number not in self.tasks:
            self.tasks[number] = Numbered(self, number)
        return self.tasks[number]

    def pending(self, task: int) -> bool:
        return self.task(task).pending

    def start(self, task: int, delay_ms: int) -> None:
        self.timer.start(self.task(task), delay_ms)

    def cancel(self, task: int) -> bool:
        return self.timer.cancel(self.task(task))

    def restart(self, task: int, delay_ms: int) -> None:
        self.timer.restart(self.task(task), delay_ms)

    def advance_to(self, now_ms: int) -> int:
        return self.timer.advance_to(now_ms)


def _raise(task: TimerTask, error: Exception) -> None:
    raise error


def check(history: History, timer: VirtualTimer) -> None:
    expected = run_history(Model(timer.tick_ms, timer.now_ms), history, timer.tick_ms)
    assert run_history(OnVirtualTimer(timer), history, timer.tick_ms) == expected


@pytest.mark.parametrize(("tick_ms", "wheel_size"), SHAPES)
def test_a_wheel_fires_what_a_sorted_list_fires(tick_ms: int, wheel_size: int) -> None:
    @settings(max_examples=60, deadline=None)
    @given(history=histories(tick_ms, wheel_size), start_ms=st.integers(0, 3 * tick_ms * wheel_size))
    def holds(history: History, start_ms: int) -> None:
        check(history, VirtualTimer(tick_ms, wheel_size, start_ms, on_error=_raise))

    holds()
