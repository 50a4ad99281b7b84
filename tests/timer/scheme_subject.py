"""A scheme as a subject of the model's histories: intervals for delays, ticks for milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controller.labs.schemes import Scheme, SchemeTimer
from tests.timer.model import Advance, Cancel, History, Model, Outcome, Restart, Start, Step, histories, run_history

Make = Callable[[], Scheme]


class OnScheme:
    def __init__(self, scheme: Scheme) -> None:
        self.fire: Callable[[int], None] = lambda task: None
        self._scheme = scheme
        self._timers: dict[int, SchemeTimer] = {}

    @property
    def now_ms(self) -> int:
        return self._scheme.now_tick

    def __len__(self) -> int:
        return len(self._scheme)

    def pending(self, task: int) -> bool:
        return task in self._timers and self._timers[task].pending

    def start(self, task: int, delay_ms: int) -> None:
        self._timers[task] = self._scheme.start(delay_ms, lambda: self.fire(task))

    def cancel(self, task: int) -> bool:
        return task in self._timers and self._scheme.stop(self._timers[task])

    def restart(self, task: int, delay_ms: int) -> None:
        if task in self._timers:
            self._scheme.restart(self._timers[task], delay_ms)
        else:
            self.start(task, delay_ms)

    def advance_to(self, now_ms: int) -> int:
        return self._scheme.advance_to(now_ms)


def scheme_histories(longest: int) -> st.SearchStrategy[History]:
    """Intervals of 1 to `longest` ticks: a scheme has none of 0."""
    return histories(wheel_size=8, limit_ms=longest).map(_without_zero)


def crowded_history(longest: int, seed: int = 1) -> History:
    """200 timers, most of them pending at any time, started, stopped and restarted a thousand times."""
    random = Random(seed)
    steps: list[Step] = []
    for _ in range(1_000):
        task, interval = random.randrange(200), random.randint(1, longest)
        kinds: tuple[Step, ...] = (Start(task, interval), Restart(task, interval), Cancel(task))
        steps.append(random.choices((*kinds, Advance(random.randint(0, longest // 50))), (4, 3, 2, 2))[0])
    return History([*steps, Advance(longest)])


def _without_zero(history: History) -> History:
    return History(
        [_at_least_one(step) for step in history.steps],
        {task: [_at_least_one(step) for step in steps] for task, steps in history.reactions.items()},
    )


def _at_least_one(step: Step) -> Step:
    if isinstance(step, Start | Restart):
        return replace(step, delay_ms=max(step.delay_ms, 1))
    return step


def outcome(scheme: Scheme, history: History) -> Outcome:
    return run_history(OnScheme(scheme), history)


def expected(history: History) -> Outcome:
    return run_history(Model(), history)


def hold_to_model(make: Make, longest: int, examples: int) -> None:
    """Raises AssertionError for a history in which the scheme does not do what the model does: one that is long, with
    many timers at a time, and then many that are short and contrived."""
    crowded = crowded_history(longest)
    assert outcome(make(), crowded) == expected(crowded)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(history=scheme_histories(longest))
    def holds(history: History) -> None:
        assert outcome(make(), history) == expected(history)

    holds()
