"""What a timer must do, as a plain sorted list says it, and random histories that hold any timer against it.

A history is a list of operations on tasks that go by number. `run_history` plays it on a `Subject`, an adapter of a
few lines around whatever is tested, and returns what fired when; `Model` is the subject that is right by inspection.
Tasks may react: when task n fires the first time, it does the operations that the history gave it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hypothesis import strategies as st


@dataclass(frozen=True, slots=True)
class Start:
    """Nothing, if the task is pending."""

    task: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Cancel:
    task: int


@dataclass(frozen=True, slots=True)
class Restart:
    task: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Advance:
    by_ms: int


Step = Start | Cancel | Restart | Advance
Reactions = Mapping[int, Sequence[Step]]


@dataclass(frozen=True, slots=True)
class History:
    steps: Sequence[Step]
    reactions: Reactions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fired:
    """Task `task` ran in tick `tick` (the clock divided by the tick's length)."""

    tick: int
    task: int


class Subject(Protocol):
    """A timer whose tasks are numbers. It calls `fire(task)` for each one that is due."""

    fire: Callable[[int], None]

    @property
    def now_ms(self) -> int: ...

    def pending(self, task: int) -> bool: ...

    def start(self, task: int, delay_ms: int) -> None: ...

    def cancel(self, task: int) -> bool: ...

    def restart(self, task: int, delay_ms: int) -> None: ...

    def advance_to(self, now_ms: int) -> object: ...

    def __len__(self) -> int: ...


class Model:
    """Every pending task in one list, sorted by tick and then by when it was started."""

    def __init__(self, tick_ms: int = 1, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self.fire: Callable[[int], None] = lambda task: None
        self._tick_ms = tick_ms
        self._starts = 0
        self._pending: list[tuple[int, int, int]] = []
        self._firing = False

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self, task: int) -> bool:
        return any(one == task for _, _, one in self._pending)

    def start(self, task: int, delay_ms: int) -> None:
        assert not self.pending(task)
        self._starts += 1
        tick = max(self.now_ms + delay_ms, self.now_ms) // self._tick_ms
        insort(self._pending, (tick, self._starts, task))
        if not self._firing:
            self.advance_to(self.now_ms)

    def cancel(self, task: int) -> bool:
        was_pending = self.pending(task)
        self._pending = [entry for entry in self._pending if entry[2] != task]
        return was_pending

    def restart(self, task: int, delay_ms: int) -> None:
        self.cancel(task)
        self.start(task, delay_ms)

    def advance_to(self, now_ms: int) -> None:
        self._firing = True
        while self._pending and self._pending[0][0] * self._tick_ms <= now_ms:
            tick, _, task = self._pending.pop(0)
            self.now_ms = max(self.now_ms, tick * self._tick_ms)
            self.fire(task)
        self._firing = False
        self.now_ms = now_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    fired: Sequence[Fired]
    cancelled: Sequence[bool]
    pending: Sequence[int]

    def without_order(self) -> Outcome:
        """The same sets in the same ticks, whatever the order within a tick."""
        return Outcome(sorted(self.fired, key=lambda one: (one.tick, one.task)), self.cancelled, self.pending)


def run_history(subject: Subject, history: History, tick_ms: int = 1) -> Outcome:
    """Plays the history. `pending` is how many were, after each of its steps."""
    fired: list[Fired] = []
    cancelled: list[bool] = []
    pending: list[int] = []
    reacted: set[int] = set()

    def play(step: Step) -> None:
        if isinstance(step, Start):
            if not subject.pending(step.task):
                subject.start(step.task, step.delay_ms)
        elif isinstance(step, Cancel):
            cancelled.append(subject.cancel(step.task))
        elif isinstance(step, Restart):
            subject.restart(step.task, step.delay_ms)
        else:
            subject.advance_to(subject.now_ms + step.by_ms)

    def fire(task: int) -> None:
        fired.append(Fired(subject.now_ms // tick_ms, task))
        if task not in reacted:
            reacted.add(task)
            for step in history.reactions.get(task, ()):
                play(step)

    subject.fire = fire
    for step in history.steps:
        play(step)
        pending.append(len(subject))
    return Outcome(fired, cancelled, pending)


TASKS = 10
_task = st.integers(0, TASKS - 1)


def _times(tick_ms: int, wheel_size: int, limit_ms: int) -> st.SearchStrategy[int]:
    """Milliseconds, most of them small or next to where a wheel ends."""
    edges = [tick_ms * wheel_size**level for level in range(5)]
    near = st.sampled_from(edges).flatmap(lambda edge: st.integers(max(edge - 2 * tick_ms, 0), edge + 2 * tick_ms))
    small = st.integers(0, 3 * tick_ms)
    return (small | near | st.integers(0, limit_ms)).map(lambda time_ms: min(time_ms, limit_ms))


def histories(
    tick_ms: int = 1, wheel_size: int = 20, *, limit_ms: int | None = None, reactions: bool = True
) -> st.SearchStrategy[History]:
    """`limit_ms`: the longest delay (four wheels, if not given); advances go a little further. `reactions`: tasks
    do something when they fire, which shows the order within a tick."""
    longest_ms = tick_ms * wheel_size**4 if limit_ms is None else limit_ms
    times = _times(tick_ms, wheel_size, longest_ms)
    on_task = st.builds(Start, _task, times) | st.builds(Restart, _task, times) | st.builds(Cancel, _task)
    advance = st.builds(Advance, _times(tick_ms, wheel_size, longest_ms + wheel_size))
    steps = st.lists(on_task | on_task | advance, max_size=40).map(lambda done: [*done, Advance(longest_ms)])
    acts = st.dictionaries(_task, st.lists(on_task, min_size=1, max_size=3), max_size=TASKS if reactions else 0)
    return st.builds(History, steps, acts)
