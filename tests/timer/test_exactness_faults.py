"""The histories and the sorted list find what is wrong: wheels with a fault in each of their parts are caught."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from controller.labs.virtual_timer import VirtualTimer
from controller.timer import TimerTask
from controller.timer.wheel import Bucket, Wheel
from tests.timer.model import History, histories
from tests.timer.test_exactness import check

SIZE = 4


class LimitTooFar(VirtualTimer):
    """A wheel takes what is due two ticks beyond its span, to where what is due next is."""

    def _clock_to(self, now_ms: int) -> None:
        super()._clock_to(now_ms)
        self._lowest.limit_ms = self._lowest.now_ms + self._lowest.span_ms + 2 * self._lowest.tick_ms


class LosesOrder(VirtualTimer):
    """What comes down is put behind what is there."""

    def _bring_down(self, wheel: Wheel, bucket: Bucket) -> None:
        tasks = []
        while (task := bucket._next) is not bucket:
            assert task is not None
            super().cancel(task)
            tasks.append(task)
        for task in tasks:
            super().start(task, task._due_ms - self.now_ms)


class DropsOne(VirtualTimer):
    """Of what comes down, the first is lost."""

    def _bring_down(self, wheel: Wheel, bucket: Bucket) -> None:
        first = bucket._next
        assert first is not None
        super().cancel(first)
        super()._bring_down(wheel, bucket)


class TurnsRuns(VirtualTimer):
    """What was started in one tick goes to its buckets last first."""

    def _place(self) -> None:
        tasks = []
        while (task := self._fresh._next) is not self._fresh:
            assert task is not None
            super().cancel(task)
            tasks.append(task)
        for task in reversed(tasks):
            super().start(task, task._due_ms - self.now_ms)
        super()._place()


class CutsRuns(VirtualTimer):
    """Of what comes down, as much moves as is due with the last, and stays due when that is."""

    def _bring_down(self, wheel: Wheel, bucket: Bucket) -> None:
        last = bucket._previous
        task = bucket._next
        while task is not bucket:
            assert task is not None
            task._due_ms = last._due_ms
            task = task._next
        super()._bring_down(wheel, bucket)


class CachesTheNext(VirtualTimer):
    """Who runs next is decided before a task runs, which may cancel it."""

    def _run_ready(self) -> int:
        tasks = []
        while (task := self.take()) is not None:
            tasks.append(task)
        self._running = True
        for task in tasks:
            task.run()
        self._running = False
        return len(tasks) + (super()._run_ready() if tasks else 0)


class RestartsInPlace(VirtualTimer):
    """A restart that would make a task later leaves it where it is."""

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        if not task.pending or self.now_ms + delay_ms < task.due_ms:
            super().restart(task, delay_ms)


@pytest.mark.parametrize(
    "faulty", [LimitTooFar, LosesOrder, DropsOne, TurnsRuns, CutsRuns, CachesTheNext, RestartsInPlace]
)
def test_a_faulty_wheel_is_caught(faulty: type[VirtualTimer]) -> None:
    @settings(
        max_examples=500,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(history=histories(1, SIZE))
    def holds(history: History) -> None:
        check(history, faulty(1, SIZE))

    with pytest.raises(AssertionError):
        holds()
