"""A purgatory with threads whose steps are forced apart: by the timer's clock, which is read between the look for the
last cohort and joining it, and by lists that let something happen between two steps of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller.timer import TimerTask
from controller.timer.operation import EXPIRED
from controller.timer.task import IN_COHORT
from controller.timer.threaded import ThreadTimer
from controller.timer.threaded_cohort import NS_PER_MS, ThreadedCohort
from controller.timer.threaded_purgatory import ThreadedPurgatory
from controller.timer.threaded_watchers import ThreadedWatchLists
from tests.timer.operations import Switched
from tests.timer.test_purgatory_threads import LIMIT_S, STUCK_S, Aside

TIMEOUT_MS = 50
Step = Callable[[], object]


class Steps(ThreadedWatchLists[str, Switched]):
    """Lists that let something happen, once, at a step: `entering` and `entered` newcomers of a cohort, `copied` what
    is to be swept, `empty` as a cohort seems, `asked` for a key. The step is the thread's that takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.then: dict[str, Step] = {}

    def happen(self, step: str) -> None:
        self.then.pop(step, lambda: None)()

    def of(self, key: str) -> list[Switched]:
        found = super().of(key)
        self.happen("asked")
        return found

    def _enter_newcomers_of(self, cohort: ThreadedCohort) -> None:
        self.happen("entering")
        super()._enter_newcomers_of(cohort)
        self.happen("entered")

    def _sweep(self, cohort: ThreadedCohort, before: list[Switched]) -> tuple[int, int]:
        self.happen("copied")
        return super()._sweep(cohort, before)

    def _drop(self, cohort: ThreadedCohort) -> bool:
        self.happen("empty")
        return super()._drop(cohort)


class Stepwise(ThreadedPurgatory[str, Switched]):
    lists_of: type[Steps] = Steps

    def __init__(self, timer: ThreadTimer) -> None:
        super().__init__(timer)
        self.steps = self.lists_of()
        self._watchers = self._lists = self.steps


class Clock:
    """Stands still, unless it is moved. On the thread that reads it for the next time `then` happens, and the time is
    that from before: between two steps, he was away."""

    def __init__(self) -> None:
        self.at_ms = 1_000
        self.then: Step | None = None
        self.thread = threading.current_thread()

    def was_read(self) -> bool:
        return self.then is None

    def __call__(self) -> int:
        at_ns = self.at_ms * NS_PER_MS
        if self.then is not None and threading.current_thread() is self.thread:
            then, self.then = self.then, None
            then()
        return at_ns


class World:
    """A purgatory with a cohort that is open for whoever comes."""

    def __init__(self, kind: type[Stepwise]) -> None:
        self.clock = Clock()
        self.timer = ThreadTimer(clock_ns=self.clock)
        self.purgatory = kind(self.timer)
        self.steps = self.purgatory.steps
        self.limit_s = LIMIT_S if kind is Stepwise else STUCK_S
        self.first, self.second = self.handed_in("first"), self.handed_in("second")
        assert self.first._next is not IN_COHORT
        assert self.second._next is IN_COHORT

    def handed_in(self, name: str, timeout_ms: int = TIMEOUT_MS) -> Switched:
        operation = Switched(name, timeout_ms)
        assert not self.purgatory.try_complete_else_watch(operation, ["all", name])
        return operation

    def another_cohort(self) -> None:
        self.clock.at_ms += 1
        for name in ("third", "fourth"):
            self.handed_in(name)

    def away(self, then: Step, *, changes: bool = False) -> Switched:
        """Handed in by this thread; `then` happens when it has found the cohort, and not joined it. `changes`: its
        condition comes true after its first look."""
        self.clock.then = then
        operation = Switched("late", TIMEOUT_MS)
        if changes:
            operation.looked = lambda: setattr(operation, "on", True)
        self.purgatory.try_complete_else_watch(operation, ["all", "late"])
        operation.looked = None
        assert self.clock.was_read()
        return operation

    def pass_time(self, by_ms: int = TIMEOUT_MS) -> None:
        """Until all has run that is due by then."""
        self.clock.at_ms += by_ms
        ran = threading.Event()
        self.timer.start(TimerTask(lambda: ran.set()), 0)
        assert ran.wait(LIMIT_S)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.limit_s
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.001)

    def is_over_for(self, *operations: Switched) -> None:
        """All have expired once, and nothing is left."""
        for operation in operations:
            self.eventually(lambda one=operation: one.expirations > 0, "never expires")  # type: ignore[misc]
            assert (operation.state, operation.answers, operation.expirations) == (EXPIRED, 1, 1)
        self.pass_time(1)
        self.purgatory.purge()
        assert (self.purgatory.delayed, self.purgatory.watched, len(self.timer)) == (0, 0, 0)
        assert not self.timer._cohorts


@contextmanager
def world_of(kind: type[Stepwise]) -> Iterator[World]:
    world = World(kind)
    try:
        yield world
    finally:
        world.timer.close()


def joins_at(world: World, step: str, trigger: Step, *, changes: bool = False) -> Switched:
    """He joins the cohort when another thread, in `trigger`, is at that step, which then goes on."""
    reached, joined = threading.Event(), threading.Event()

    def there() -> None:
        reached.set()
        assert joined.wait(LIMIT_S)

    def begin() -> None:
        world.steps.then[step] = there
        others.append(Aside(trigger))
        assert reached.wait(LIMIT_S)

    others: list[Aside] = []
    try:
        late = world.away(begin, changes=changes)
    finally:
        joined.set()
    others[0].finish()
    return late


class Door:
    """A lock that says when somebody waits for it."""

    def __init__(self, told: Step) -> None:
        self._lock = threading.Lock()
        self._told = told

    def acquire(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._told()
            self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
