"""Scheme 7: wheels upon wheels, on this library's own `TimingWheel`.

Varghese and Lauck fix the number of wheels and with it the longest interval; here, as in Kafka, all wheels have one
size and another is put on top when an interval needs it.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.timer.schemes.scheme import Scheme, SchemeTimer
from controller.timer.task import TimerTask
from controller.timer.wheel import TimingWheel


class _Task(TimerTask):
    __slots__ = ("timer",)

    def __init__(self, timer: SchemeTimer) -> None:
        super().__init__()
        self.timer = timer


class _TimerWithTask(SchemeTimer):
    """The task is the wheel's node; the links of the timer itself serve among the expired alone."""

    __slots__ = ("task",)

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(action)
        self.task = _Task(self)


class HierarchicalWheels(Scheme):
    """Scheme 7. Start O(m), stop O(1), a tick O(1) on the average: a timer migrates at most once from each of the m
    wheels. `wheel_size`: buckets of each wheel, 2 or more (ValueError)."""

    def __init__(self, wheel_size: int = 20) -> None:
        super().__init__()
        self._wheel = TimingWheel(1, wheel_size)

    def _new(self, action: Callable[[], object]) -> SchemeTimer:
        return _TimerWithTask(action)

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        self._wheel.start(_task_of(timer), interval)
        # The wheel leaves the search for the bucket to the next tick. As published, it is the start that pays for it.
        self._wheel.turn(self.now_tick)

    def _remove(self, timer: SchemeTimer) -> None:
        self._wheel.cancel(_task_of(timer))

    def _collect(self) -> None:
        wheel = self._wheel
        if not wheel.turn(self.now_tick):
            return
        while (task := wheel.take()) is not None:
            assert isinstance(task, _Task)
            self._due(task.timer)


def _task_of(timer: SchemeTimer) -> TimerTask:
    assert isinstance(timer, _TimerWithTask)
    return timer.task
