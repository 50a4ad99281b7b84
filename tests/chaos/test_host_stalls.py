"""Times for which the machine gave the run's own process nothing, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.chaos.clock import LEAST_MS, LOOK_MS, HostStallWatch
from controller.trace import StoodStill
from tests.processes import eventually


class Clock:
    """Goes on by `steps`, one a look, and then by LOOK_MS each time."""

    def __init__(self, steps: Sequence[float]) -> None:
        self._steps = [0.0, *steps]
        self.at_ms = 1_000.0
        self.looks = 0

    def now_ms(self) -> float:
        self.looks += 1
        self.at_ms += self._steps.pop(0) if self._steps else LOOK_MS
        return self.at_ms


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([], []),
        ([LOOK_MS + LEAST_MS - 1.0] * 20, []),
        ([LOOK_MS, 5_000.0, LOOK_MS, LOOK_MS + LEAST_MS], [5_000.0, LOOK_MS + LEAST_MS]),
    ],
)
def test_each_time_without_a_turn_is_told_when_it_is_over(steps: list[float], told: list[float]) -> None:
    clock, seen = Clock(steps), list[StoodStill]()
    watch = HostStallWatch(clock.now_ms, seen.append)
    watch.start()
    eventually(lambda: clock.looks > len(steps) + 3, "it looks again and again")
    watch.close()
    looks = clock.looks
    assert seen == [StoodStill(ms) for ms in told]
    watch.close()
    assert clock.looks == looks, "it has ended"


def test_one_that_was_never_started_can_be_closed() -> None:
    HostStallWatch(Clock([]).now_ms, lambda _stood: None).close()
